//! Files in and out: regular files and directories only, resolved beneath the cell's writable directories, accessed
//! with the payload's rights.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use casemate_bare::io;
use casemate_wire::frame::{Body, MAX_PAYLOAD, OverCredit, ReceiveWindow, SendWindow};
use casemate_wire::guest::{Entry, ToHost};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, mkdirat, statat};
use rustix::io::Errno;

use crate::beneath::open_beneath;
use crate::channel::Channel;
use crate::sys::FileRights;

/// The directories below which files may be put and got, opened before anything hostile runs.
pub(crate) struct Roots {
    roots: Vec<(String, OwnedFd)>,
    rights: FileRights,
}

impl Roots {
    pub(crate) fn open(paths: &[String], rights: FileRights) -> io::Result<Roots> {
        let open = |path: &String| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok((path.clone(), rustix::fs::open(path.as_str(), flags, Mode::empty())?))
        };
        Ok(Roots { roots: paths.iter().map(open).collect::<io::Result<_>>()?, rights })
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.roots.iter().map(|(path, _)| path.as_str())
    }

    /// Gives what was made to whom it was made for.
    fn hand_over(&self, made: impl AsFd) -> io::Result<()> {
        if let FileRights::Root { owner } = self.rights {
            fchown(made, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
        }
        Ok(())
    }

    pub(crate) fn hand_over_directory(&self, parent: &OwnedFd, name: &str) -> io::Result<()> {
        if self.rights == FileRights::Payload {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.hand_over(open_beneath(parent, name, flags, Mode::empty())?)
    }

    /// The root above `path` and the rest of it, `.` for the root itself.
    pub(crate) fn find<'a>(&self, path: &'a str) -> io::Result<(&OwnedFd, &'a str)> {
        for (root, fd) in &self.roots {
            match path.strip_prefix(root.as_str()) {
                Some("" | "/") => return Ok((fd, ".")),
                Some(rest) if rest.starts_with('/') => return Ok((fd, &rest[1..])),
                _ => {}
            }
        }
        Err(io::Error::from_raw_os_error(libc::EXDEV))
    }
}

/// A file on its way in.
pub(crate) struct Put {
    pub(crate) id: u32,
    file: OwnedFd,
    left: u64,
    window: ReceiveWindow,
}

impl Put {
    /// Creates the entry. A directory is complete at once; a file waits for its bytes.
    pub(crate) fn begin(roots: &Roots, id: u32, path: &str, entry: Entry) -> io::Result<Option<Put>> {
        let (root, rest) = roots.find(path)?;
        match entry {
            Entry::Directory { mode } => {
                if rest == "." {
                    return Ok(None);
                }
                let (parent, name) = rest.rsplit_once('/').unwrap_or((".", rest));
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let parent = open_beneath(root, parent, flags, Mode::empty())?;
                match mkdirat(&parent, name, Mode::from_raw_mode(mode & 0o777 | 0o700)) {
                    Ok(()) => {
                        roots.hand_over_directory(&parent, name)?;
                        Ok(None)
                    }
                    Err(Errno::EXIST)
                        if FileType::from_raw_mode(
                            statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode,
                        ) == FileType::Directory =>
                    {
                        Ok(None)
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Entry::File { mode, size } => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = open_beneath(root, rest, flags, Mode::from_raw_mode(0o600))?;
                if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
                    return Err(io::Error::from_raw_os_error(libc::EINVAL));
                }
                // No set-id bits, whatever the sender says.
                fchmod(&file, Mode::from_raw_mode(mode & 0o777))?;
                roots.hand_over(&file)?;
                Ok(Some(Put { id, file, left: size, window: ReceiveWindow::default() }))
            }
        }
    }

    /// Returns an error of the file system, or the peer's breach of the protocol as `Err(Err)`.
    pub(crate) fn data(
        &mut self,
        mut bytes: &[u8],
        channel: &mut Channel,
    ) -> Result<io::Result<()>, OverCredit> {
        self.window.receive(bytes.len())?;
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(OverCredit)?;
        if let Some(credit) = self.window.consume(bytes.len()) {
            channel.send(self.id, Body::Credit(credit));
        }
        while !bytes.is_empty() {
            match rustix::io::write(&self.file, bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(Errno::INTR) => {}
                Err(error) => return Ok(Err(error.into())),
            }
        }
        Ok(Ok(()))
    }
}

/// A file or tree on its way out, sent bit by bit as the channel takes it.
pub(crate) struct Get {
    pub(crate) id: u32,
    window: SendWindow,
    bytes_left: u64,
    entries_left: u32,
    current: Option<(OwnedFd, u64)>,
    /// Directories still to be listed: opened, with their path relative to the requested one.
    directories: Vec<(Dir, String)>,
}

/// Deep trees hold one descriptor per level.
pub(crate) const MAX_DEPTH: usize = 64;

impl Get {
    pub(crate) fn begin(
        roots: &Roots,
        id: u32,
        path: &str,
        (bytes_left, entries_left): (u64, u32),
        channel: &mut Channel,
    ) -> io::Result<Get> {
        let (root, rest) = roots.find(path)?;
        let mut get = Get {
            id,
            window: SendWindow::default(),
            bytes_left,
            entries_left,
            current: None,
            directories: Vec::new(),
        };
        let file = open_beneath(root, rest, OPEN, Mode::empty())?;
        match get.offer(file, String::new(), channel)? {
            Offer::Taken => Ok(get),
            Offer::NotAFile => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    pub(crate) fn credit(&mut self, bytes: u32) -> Result<(), OverCredit> {
        self.window.refund(bytes)
    }

    pub(crate) fn can_go_on(&self) -> bool {
        self.window.available() > 0
    }

    /// Sends a little more. `Ok(true)` when all was sent.
    pub(crate) fn go_on(&mut self, channel: &mut Channel) -> io::Result<bool> {
        if let Some((file, left)) = &mut self.current {
            let mut buffer = [0; MAX_PAYLOAD];
            let wanted =
                MAX_PAYLOAD.min(self.window.available()).min(usize::try_from(*left).unwrap_or(usize::MAX));
            // A file that shrinks meanwhile would leave the receiver waiting: the rest becomes zeros.
            let n = if *left == 0 { 0 } else { rustix::io::read(&*file, &mut buffer[..wanted])? };
            let n = if n == 0 && *left > 0 { wanted } else { n };
            if n > 0 {
                channel.send(self.id, Body::Data(&buffer[..n]));
                self.window.spend(n);
                *left -= n as u64;
            }
            if *left == 0 {
                self.current = None;
            }
            return Ok(false);
        }
        let Some((dir, path)) = self.directories.last_mut() else { return Ok(true) };
        let Some(entry) = dir.next() else {
            self.directories.pop();
            return Ok(false);
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return Ok(false);
        }
        let Ok(name) = name.to_str() else {
            let path = format!("{path}{}", name.to_string_lossy());
            channel.tell(&ToHost::GetSkipped { id: self.id, path, why: "name is not UTF-8".into() });
            return Ok(false);
        };
        let path = format!("{path}{name}");
        let opened = open_beneath(dir.fd()?, name, OPEN, Mode::empty());
        match opened.and_then(|file| self.offer(file, path.clone(), channel)) {
            Ok(Offer::Taken) => {}
            Ok(Offer::NotAFile) => skip(self.id, path, "neither a file nor a directory", channel),
            Err(error) if error.raw_os_error() == Some(libc::EFBIG) => return Err(error),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                skip(self.id, path, "a symbolic link", channel)
            }
            Err(error) => skip(self.id, path, &error.to_string(), channel),
        }
        Ok(false)
    }

    /// Announces an opened file or directory and makes it the next to be sent.
    fn offer(&mut self, file: OwnedFd, path: String, channel: &mut Channel) -> io::Result<Offer> {
        let stat = fstat(&file)?;
        let mode = stat.st_mode & 0o777;
        let too_much = || io::Error::from_raw_os_error(libc::EFBIG);
        let entry = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let size = stat.st_size as u64;
                self.bytes_left = self.bytes_left.checked_sub(size).ok_or_else(too_much)?;
                self.current = (size > 0).then_some((file, size));
                Entry::File { mode, size }
            }
            FileType::Directory => {
                if self.directories.len() >= MAX_DEPTH {
                    return Err(too_much());
                }
                let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
                self.directories.push((Dir::read_from(file.as_fd())?, prefix));
                Entry::Directory { mode }
            }
            _ => return Ok(Offer::NotAFile),
        };
        self.entries_left = self.entries_left.checked_sub(1).ok_or_else(too_much)?;
        channel.tell(&ToHost::GetEntry { id: self.id, path, entry });
        Ok(Offer::Taken)
    }
}

enum Offer {
    Taken,
    NotAFile,
}

/// `NONBLOCK` so that opening a FIFO does not wait for its other end.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

fn skip(id: u32, path: String, why: &str, channel: &mut Channel) {
    channel.tell(&ToHost::GetSkipped { id, path, why: why.into() });
}
