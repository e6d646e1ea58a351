//! Reads tar archives: v7, ustar, GNU and pax, as far as images use them.
//!
//! Strict where readers differ: a member that two of them could understand differently is refused. Owners and extended attributes
//! are passed over, as is everything else that a tree in the store does not keep.

mod header;
mod pax;
#[cfg(test)]
mod tests;

use std::io::{self, Read};

use crate::Limits;
use crate::fault::{Error, Fault};
use crate::path::{MAX_PATH_BYTES, MemberPath};
use header::{BLOCK, Header};
use pax::Extensions;

/// Content of one extended header. Real ones have a few hundred bytes.
pub const MAX_EXTENSION_BYTES: u64 = 256 * 1024;

/// Zeros after the end. Archives are filled up to 10 KiB, and for some tapes to more.
const MAX_FILLING: usize = 1 << 20;

/// One file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub path: MemberPath,
    pub kind: Kind,
    /// The nine bits that say who may do what. There are no others in the store.
    pub mode: u32,
    /// Seconds since 1970; not before, and not after what 32 bits can say.
    pub mtime: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Its content comes with [`Archive::content`].
    File {
        size: u64,
    },
    Directory,
    /// Where it leads is for whoever follows it, in a cell.
    Symlink {
        target: Vec<u8>,
    },
    HardLink {
        target: MemberPath,
    },
}

/// An archive that is being read.
#[derive(Debug)]
pub struct Archive<R> {
    input: R,
    /// What is left of the current member's content, and the zeros after it.
    content: u64,
    padding: u64,
    limits: Limits,
    bytes: u64,
    entries: u64,
}

impl<R: Read> Archive<R> {
    pub fn new(input: R, limits: Limits) -> Archive<R> {
        Archive { input, content: 0, padding: 0, limits, bytes: 0, entries: 0 }
    }

    /// The next member, or nothing at the end of the archive, which must be the end of the input as well.
    pub fn next_member(&mut self) -> Result<Option<Member>, Error> {
        self.skip_content()?;
        let mut extensions = Extensions::default();
        loop {
            let mut block = [0; BLOCK];
            self.read_exactly(&mut block)?;
            if block == [0; BLOCK] {
                // Extensions that belong to no member mean that one is missing.
                if !extensions.is_empty() {
                    return Err(Error::archive(Fault::Truncated));
                }
                return self.end().map(|()| None);
            }
            self.count_entry()?;
            let header = Header::parse(&block).map_err(Error::archive)?;
            let named = extensions.path.clone().unwrap_or_else(|| header.path());
            match header.kind() {
                b'x' => extensions.read_pax(&self.extension(&header)?).map_err(|f| Error::at(&named, f))?,
                b'g' => pax::check_global(&self.extension(&header)?).map_err(|f| Error::at(&named, f))?,
                b'L' => extensions.path = Some(gnu_name(self.extension(&header)?)),
                b'K' => extensions.link = Some(gnu_name(self.extension(&header)?)),
                _ => return self.member(&header, extensions).map(Some),
            }
        }
    }

    /// Some of the current member's content; 0 at its end.
    pub fn content(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let most = buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let n = self.read_some(&mut buffer[..most])?;
        if n == 0 {
            return Err(Error::archive(Fault::Truncated));
        }
        self.content -= n as u64;
        Ok(n)
    }

    /// How many there were so far, extended headers included.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    fn member(&mut self, header: &Header<'_>, extensions: Extensions) -> Result<Member, Error> {
        let raw = extensions.path.unwrap_or_else(|| header.path());
        let wrong = |fault| Error::at(&raw, fault);
        if extensions.sparse {
            return Err(wrong(Fault::Sparse));
        }
        let path = MemberPath::new(&raw).map_err(wrong)?;
        let size = match extensions.size {
            Some(size) => size,
            None => header.size().map_err(wrong)?,
        };
        let link = || extensions.link.clone().unwrap_or_else(|| header.link());
        let kind = match header.kind() {
            // Before there were directories, they were files whose name ends in a slash.
            0 | b'0' | b'7' if raw.last() == Some(&b'/') => Kind::Directory,
            0 | b'0' | b'7' => Kind::File { size },
            b'1' => {
                let target = link();
                Kind::HardLink { target: MemberPath::new(&target).map_err(wrong)? }
            }
            b'2' => Kind::Symlink { target: symlink_target(link()).map_err(wrong)? },
            b'3' => return Err(wrong(Fault::Special("a character device"))),
            b'4' => return Err(wrong(Fault::Special("a block device"))),
            b'5' => Kind::Directory,
            b'6' => return Err(wrong(Fault::Special("a FIFO"))),
            b'S' => return Err(wrong(Fault::Sparse)),
            other => return Err(wrong(Fault::UnknownKind(char::from(other)))),
        };
        match &kind {
            Kind::File { .. } => {
                let left = self.limits.bytes - self.bytes;
                if size > left {
                    return Err(wrong(Fault::TooManyBytes(self.limits.bytes)));
                }
                self.bytes += size;
                (self.content, self.padding) = (size, padding(size));
            }
            // Some readers would look for the next header behind its content, and others would not.
            _ if size != 0 => return Err(wrong(Fault::Content)),
            Kind::HardLink { target } if target.is_root() => return Err(wrong(Fault::EmptyLink)),
            _ => {}
        }
        if path.is_root() && kind != Kind::Directory {
            return Err(wrong(Fault::Nameless));
        }
        let mode = header.mode().map_err(wrong)?;
        let mtime = match extensions.mtime {
            Some(mtime) => mtime,
            None => header.mtime().map_err(wrong)?,
        };
        Ok(Member { path, kind, mode, mtime })
    }

    /// The content of an extended header, which is short.
    fn extension(&mut self, header: &Header<'_>) -> Result<Vec<u8>, Error> {
        let size = header.size().map_err(Error::archive)?;
        if size > MAX_EXTENSION_BYTES {
            return Err(Error::archive(Fault::LongExtension(size)));
        }
        let mut content = vec![0; size as usize];
        self.read_exactly(&mut content)?;
        self.padding = padding(size);
        self.skip_content()?;
        Ok(content)
    }

    /// Headers of every kind count, so that they cannot go on for ever.
    fn count_entry(&mut self) -> Result<(), Error> {
        if self.entries == self.limits.entries {
            return Err(Error::archive(Fault::TooManyEntries(self.limits.entries)));
        }
        self.entries += 1;
        Ok(())
    }

    fn skip_content(&mut self) -> Result<(), Error> {
        let mut scratch = [0; 4096];
        while self.content > 0 {
            self.content(&mut scratch)?;
        }
        let padding = std::mem::take(&mut self.padding) as usize;
        self.read_exactly(&mut scratch[..padding])
    }

    /// A second block of zeros, and then nothing but zeros, to which archives are filled up.
    fn end(&mut self) -> Result<(), Error> {
        let mut block = [0; BLOCK];
        self.read_exactly(&mut block)?;
        let mut zeros = block == [0; BLOCK];
        let mut filled = 0;
        let mut rest = [0; 4096];
        while zeros && filled <= MAX_FILLING {
            let n = self.read_some(&mut rest)?;
            if n == 0 {
                return Ok(());
            }
            filled += n;
            zeros = rest[..n].iter().all(|byte| *byte == 0);
        }
        Err(Error::archive(Fault::TrailingBytes))
    }

    fn read_exactly(&mut self, mut buffer: &mut [u8]) -> Result<(), Error> {
        while !buffer.is_empty() {
            let n = self.read_some(buffer)?;
            if n == 0 {
                return Err(Error::archive(Fault::Truncated));
            }
            buffer = &mut buffer[n..];
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        loop {
            match self.input.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(Error::Read),
            }
        }
    }
}

/// What fills up the last block of a content.
fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

/// GNU ends its long names with a NUL.
fn gnu_name(mut content: Vec<u8>) -> Vec<u8> {
    while content.pop_if(|byte| *byte == 0).is_some() {}
    content
}

fn symlink_target(target: Vec<u8>) -> Result<Vec<u8>, Fault> {
    match target.len() {
        0 => Err(Fault::EmptyLink),
        length if length > MAX_PATH_BYTES => Err(Fault::LongPath(length)),
        _ if target.contains(&0) => Err(Fault::Nul),
        _ => Ok(target),
    }
}
