//! Trees of a session as tar archives, in and out. What comes in is read strictly by the reader that images are unpacked with, and
//! what is written goes through the guest, like any other file: an archive can name nothing that a client could not.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use casemate_engine::Entry;
use casemate_engine::session::{FileError, FileInfo, FileKind, Outflow, Piece};
use casemate_unpack::Limits;
use casemate_unpack::fault::Error;
use casemate_unpack::tar::{Archive, Kind};
use futures_util::Stream;
use tokio::io::AsyncRead;
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

use crate::app::App;
use crate::problem::{Code, Problem};
use crate::sessions::Live;

/// Of one tree, on its way in or out.
const MAX_BYTES: u64 = 1 << 34;
const MAX_ENTRIES: u32 = 100_000;
const BLOCK: usize = 512;
/// What is read of a member's content at a time.
const PIECE: usize = 64 << 10;
/// What could not be packed is named up to this many bytes.
const MAX_LEFT_OUT: usize = 32 << 10;

/// What an archive came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// A tree on its way out.
struct Packing {
    pieces: Outflow<Piece>,
    /// A session stays as long as somebody reads from it.
    _live: Arc<Live>,
    /// What a single file is called: a tree has names of its own.
    name: String,
    /// Of the current file, what is still to come.
    left: u64,
    /// And what fills its last block.
    filling: usize,
    over: bool,
}

/// The file or directory at `path`, as it is sent. Links, sockets and the like are not packed; a comment at the beginning names them,
/// since readers do not agree on one at the end.
pub(crate) async fn pack(
    live: &Arc<Live>,
    path: &str,
) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>, Problem> {
    let left_out = left_out(&live.session.list(path, u32::MAX).await?);
    let mut pieces = live.session.get(path, MAX_BYTES, MAX_ENTRIES);
    let first = match pieces.next().await {
        Some(Piece::Failed(error)) => return Err(error.into()),
        None => return Err(FileError::Ended.into()),
        Some(first) => first,
    };
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut packing = Packing { pieces, _live: live.clone(), name, left: 0, filling: 0, over: false };
    let mut begun = Vec::new();
    if !left_out.is_empty() {
        extension(&mut begun, b'g', &[("comment", &left_out)]);
    }
    let begun = packing.take(first).map(|first| [begun.as_slice(), &first].concat().into());
    Ok(futures_util::stream::unfold((Some(begun), packing), |(begun, mut packing)| async {
        if let Some(begun) = begun {
            return Some((begun, (None, packing)));
        }
        let next = packing.next().await?;
        Some((next, (None, packing)))
    }))
}

impl Packing {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.over {
            return None;
        }
        match self.pieces.next().await {
            Some(piece) => Some(self.take(piece)),
            None => {
                self.over = true;
                Some(self.end())
            }
        }
    }

    fn take(&mut self, piece: Piece) -> io::Result<Bytes> {
        match piece {
            Piece::Entry { path, entry } => {
                self.check_whole()?;
                let is_root = path.is_empty();
                let path = if is_root { &self.name } else { &path };
                let (kind, mode, size) = match entry {
                    Entry::File { mode, size } => (b'0', mode, size),
                    Entry::Directory { mode } => (b'5', mode, 0),
                };
                (self.left, self.filling) = (size, filling(size));
                // What the root of a tree is called, is for whoever unpacks it.
                match is_root && kind == b'5' {
                    true => Ok(Bytes::new()),
                    false => Ok(member(path, kind, mode & 0o777, size).into()),
                }
            }
            Piece::Data(mut bytes) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                if self.left == 0 {
                    bytes.resize(bytes.len() + std::mem::take(&mut self.filling), 0);
                }
                Ok(bytes.into())
            }
            // Told at the beginning.
            Piece::Skipped { .. } => Ok(Bytes::new()),
            Piece::Failed(error) => {
                self.over = true;
                Err(io::Error::other(error.to_string()))
            }
        }
    }

    /// A file that ends early would shift all that follows.
    fn check_whole(&self) -> io::Result<()> {
        match self.left {
            0 => Ok(()),
            _ => Err(io::Error::other("a file was shorter than announced")),
        }
    }

    fn end(&self) -> io::Result<Bytes> {
        self.check_whole()?;
        Ok(vec![0; 2 * BLOCK].into())
    }
}

/// Names what is neither a file nor a directory.
fn left_out(found: &[(String, FileInfo)]) -> String {
    let mut names = String::new();
    for (path, info) in found {
        let what = match info.kind {
            FileKind::File | FileKind::Directory => continue,
            FileKind::Link => "a symbolic link",
            FileKind::Other => "no file",
        };
        if names.len() < MAX_LEFT_OUT {
            names += if names.is_empty() { "left out: " } else { "; " };
            names += &format!("{} ({what})", path.escape_default());
        }
    }
    names
}

/// Zeros after a member's content.
fn filling(size: u64) -> usize {
    (size.next_multiple_of(BLOCK as u64) - size) as usize
}

/// The header of one member, and the one before it that says what does not fit into it.
fn member(path: &str, kind: u8, mode: u32, size: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK);
    // Eleven octal digits.
    let large = size >= 1 << 33;
    let mut more = Vec::new();
    let text = size.to_string();
    if path.len() > 100 || !path.is_ascii() {
        more.push(("path", path));
    }
    if large {
        more.push(("size", &text));
    }
    if !more.is_empty() {
        extension(&mut out, b'x', &more);
    }
    out.extend(header(path.as_bytes(), kind, mode, if large { 0 } else { size }));
    out
}

fn header(name: &[u8], kind: u8, mode: u32, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name[..name.len().min(100)]);
    put(100, format!("{mode:07o}").as_bytes());
    // Whoever unpacks it owns it.
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    put(136, format!("{:011o}", crate::store::now().max(0)).as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

/// A pax header: records that count their own length.
fn extension(out: &mut Vec<u8>, kind: u8, records: &[(&str, &str)]) {
    let mut content = String::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        content += &format!("{length} {key}={value}\n");
    }
    out.extend(header(b"pax", kind, 0o644, content.len() as u64));
    out.extend(content.as_bytes());
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

/// Puts what is in an archive below `root`, which is made if it is not there. What came before an error stays.
pub(crate) async fn unpack(
    app: &App,
    live: Arc<Live>,
    root: String,
    archive: impl AsyncRead + Send + Unpin + 'static,
) -> Result<Unpacked, Problem> {
    let turn = app.archives.take(&live.tenant, 1).await?;
    let handle = Handle::current();
    let unpacking = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let reader = SyncIoBridge::new_with_handle(archive, handle.clone());
        Unpacking { live: &live, root: &root, made: BTreeSet::new(), handle }.all(reader)
    });
    unpacking.await.map_err(|_| Problem::internal("the archive was lost"))?
}

/// An archive on its way in, on a thread that may wait.
struct Unpacking<'a> {
    live: &'a Live,
    root: &'a str,
    made: BTreeSet<String>,
    handle: Handle,
}

impl Unpacking<'_> {
    fn all(mut self, archive: impl io::Read) -> Result<Unpacked, Problem> {
        let limits = Limits { bytes: MAX_BYTES, entries: u64::from(MAX_ENTRIES) };
        let (mut archive, mut done) = (Archive::new(archive, limits), Unpacked::default());
        let root = self.root;
        self.make_directory(root)?;
        while let Some(member) = archive.next_member().map_err(wrong)? {
            let name = std::str::from_utf8(member.path.as_bytes());
            let name = name.map_err(|_| refused("a name in it is not UTF-8"))?;
            let path = format!("{root}/{name}");
            match member.kind {
                Kind::Directory if member.path.is_root() => {}
                Kind::Directory => self.make_directory(&path)?,
                Kind::File { size } => {
                    if let Some((above, _)) = path.rsplit_once('/') {
                        self.make_directory(above)?;
                    }
                    self.put(&path, member.mode & 0o777, &mut archive)?;
                    done.files += 1;
                    done.bytes += size;
                }
                Kind::Symlink { .. } => return Err(refused(format!("{name} is a symbolic link"))),
                Kind::HardLink { .. } => return Err(refused(format!("{name} is a hard link"))),
            }
        }
        Ok(done)
    }

    fn make_directory(&mut self, path: &str) -> Result<(), Problem> {
        if matches!(path, "/work" | "/tmp") || !self.made.insert(path.to_owned()) {
            return Ok(());
        }
        self.handle.block_on(self.live.session.make_directory(path))?;
        Ok(())
    }

    fn put<R: io::Read>(&self, path: &str, mode: u32, archive: &mut Archive<R>) -> Result<(), Problem> {
        let (input, done) = self.live.session.put(path, mode);
        let mut piece = vec![0; PIECE];
        loop {
            let length = archive.content(&mut piece).map_err(wrong)?;
            // Whoever takes it says why they do not take more.
            if length == 0 || self.handle.block_on(input.send(piece[..length].to_vec())).is_err() {
                break;
            }
        }
        input.end();
        Ok(self.handle.block_on(done).unwrap_or(Err(FileError::Ended))?)
    }
}

fn refused(what: impl Into<String>) -> Problem {
    Problem::new(
        Code::Invalid,
        what,
        "an archive may have files and directories; nothing after this was unpacked",
    )
}

fn wrong(error: Error) -> Problem {
    match &error {
        Error::Archive { member: None, .. } => {
            let hint = "send a tar that is whole, and not compressed";
            Problem::new(Code::Invalid, error.reason(), hint)
        }
        Error::Read(source) if source.kind() == io::ErrorKind::TimedOut => {
            Problem::new(Code::TooSlow, "the archive did not arrive in time", "send it without long pauses")
        }
        Error::Read(_) => Problem::new(Code::Malformed, error.reason(), "send all of it"),
        Error::Archive { .. } | Error::Write { .. } => {
            Problem::new(Code::Invalid, error.reason(), error.hint())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our reader of archives is stricter than others.
    #[test]
    fn what_is_written_can_be_read() {
        let long = format!("{}/é", "d".repeat(120));
        let mut bytes = member(&long, b'0', 0o640, 3);
        bytes.extend(b"abc");
        bytes.resize(bytes.len() + filling(3), 0);
        bytes.extend(member("dir", b'5', 0o755, 0));
        extension(&mut bytes, b'g', &[("comment", &"x".repeat(90))]);
        bytes.resize(bytes.len() + 2 * BLOCK, 0);
        let mut archive = Archive::new(bytes.as_slice(), Limits { bytes: 100, entries: 10 });
        let file = archive.next_member().expect("readable").expect("a member");
        assert_eq!((file.path.as_bytes(), file.mode), (long.as_bytes(), 0o640));
        let mut content = [0; 9];
        assert_eq!(archive.content(&mut content).expect("readable"), 3);
        assert_eq!(&content[..3], b"abc");
        let directory = archive.next_member().expect("readable").expect("a member");
        assert_eq!((directory.path.as_bytes(), directory.kind), (&b"dir"[..], Kind::Directory));
        assert!(archive.next_member().expect("readable").is_none());
    }

    #[test]
    fn records_count_their_own_length() {
        for value in ["", "x", &"y".repeat(85), &"z".repeat(990)] {
            let mut out = Vec::new();
            extension(&mut out, b'g', &[("comment", value)]);
            let end = out[BLOCK..].iter().position(|byte| *byte == b'\n').expect("a line") + 1;
            let length: usize = std::str::from_utf8(&out[BLOCK..])
                .expect("text")
                .split(' ')
                .next()
                .expect("a number")
                .parse()
                .expect("a number");
            assert_eq!(length, end);
        }
    }
}
