//! Writes members below one directory, and nowhere else.
//!
//! Every path is looked up by the kernel beneath that directory, without following a link: whatever an archive has put there before,
//! no name leads out of it, or to another place in it. What is in the way of a member is removed and never written to.

mod remove;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::Read;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, futimens, linkat, mkdirat, openat,
    openat2, statat, symlinkat, utimensat,
};
use rustix::io::Errno;

use crate::fault::{Error, Fault, Shown};
use crate::path::MemberPath;
use crate::tar::{Archive, Kind, Member};

/// What an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// All there is. Whiteouts make no sense in it.
    Whole,
    /// On top of what was unpacked before, some of which it may take away.
    Layer,
}

/// Says what of the layers below a directory or file hides.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Of other tools that had more ideas.
const RESERVED: &[u8] = b".wh..wh.";

/// Unpacks `archive` beneath `root`. Returns how many entries it had.
pub fn unpack<R: Read>(mut archive: Archive<R>, root: OwnedFd, role: Role) -> Result<u64, Error> {
    let mut tree = Tree { root, role, parent: None, ours: BTreeSet::new(), directories: Vec::new() };
    let mut buffer = vec![0; 128 * 1024];
    while let Some(member) = archive.next_member()? {
        tree.add(&member, &mut archive, &mut buffer)?;
    }
    tree.date_directories()?;
    Ok(archive.entries())
}

struct Tree {
    root: OwnedFd,
    role: Role,
    /// The directory that the last member went to: the next one often goes there, too.
    parent: Option<(Vec<u8>, OwnedFd)>,
    /// What this layer has brought, which its own whiteouts do not hide.
    ours: BTreeSet<Vec<u8>>,
    /// With their times, which change with everything that is put into them.
    directories: Vec<(MemberPath, u32)>,
}

/// Something that did not work, before it is known whose fault that is.
enum Trouble {
    Fault(Fault),
    Host(Errno),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Trouble {
        Trouble::Host(errno)
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Trouble {
        Trouble::Fault(fault)
    }
}

impl Trouble {
    fn of(self, path: &[u8]) -> Error {
        match self {
            Trouble::Fault(fault) => Error::at(path, fault),
            Trouble::Host(errno) => Error::Write { member: Shown::new(path), source: errno.into() },
        }
    }
}

impl Tree {
    fn add<R: Read>(
        &mut self,
        member: &Member,
        archive: &mut Archive<R>,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let path = member.path.as_bytes();
        // The root is there, and is ours to arrange.
        let Some((above, name)) = member.path.split() else { return Ok(()) };
        if name.starts_with(WHITEOUT) {
            return self.whiteout(member, above, name).map_err(|trouble| trouble.of(path));
        }
        match &member.kind {
            Kind::File { .. } => return self.file(member, above, name, archive, buffer),
            Kind::Directory => self.directory(member, above, name),
            Kind::Symlink { target } => self.symlink(member, above, name, target),
            Kind::HardLink { target } => self.hard_link(member, above, name, target),
        }
        .map_err(|trouble| trouble.of(path))?;
        self.keep(&member.path);
        Ok(())
    }

    fn file<R: Read>(
        &mut self,
        member: &Member,
        above: &[u8],
        name: &[u8],
        archive: &mut Archive<R>,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let path = member.path.as_bytes();
        let file = self.create(member, above, name).map_err(|trouble| trouble.of(path))?;
        loop {
            let n = archive.content(buffer)?;
            if n == 0 {
                break;
            }
            write_all(file.as_fd(), &buffer[..n]).map_err(|errno| Trouble::Host(errno).of(path))?;
        }
        futimens(&file, &times(member.mtime)).map_err(|errno| Trouble::Host(errno).of(path))?;
        self.keep(&member.path);
        Ok(())
    }

    fn create(&mut self, member: &Member, above: &[u8], name: &[u8]) -> Result<OwnedFd, Trouble> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(file_mode(member.mode));
        self.replace(&member.path, above, name, |parent| openat(parent, name, flags, mode))
    }

    fn directory(&mut self, member: &Member, above: &[u8], name: &[u8]) -> Result<(), Trouble> {
        self.directories.push((member.path.clone(), member.mtime));
        let parent = self.parent(above)?;
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            // Made by an earlier layer or member: what is in it stays.
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Ok(()),
            _ => self.replace(&member.path, above, name, |parent| mkdirat(parent, name, DIRECTORY_MODE)),
        }
    }

    fn symlink(&mut self, member: &Member, above: &[u8], name: &[u8], target: &[u8]) -> Result<(), Trouble> {
        self.replace(&member.path, above, name, |parent| {
            symlinkat(target, parent, name)?;
            utimensat(parent, name, &times(member.mtime), AtFlags::SYMLINK_NOFOLLOW)
        })
    }

    /// Only to what is there, and only to what has no names of its own below it.
    fn hard_link(
        &mut self,
        member: &Member,
        above: &[u8],
        name: &[u8],
        target: &MemberPath,
    ) -> Result<(), Trouble> {
        if *target == member.path {
            return Err(self.dangling(target).into());
        }
        let Some((target_above, target_name)) = target.split() else { return Err(Fault::EmptyLink.into()) };
        let from = match self.open_directory(target_above) {
            Err(Trouble::Host(Errno::NOENT)) => return Err(self.dangling(target).into()),
            opened => opened?,
        };
        let stat = match statat(&from, target_name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(self.dangling(target).into()),
            stat => stat?,
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(Fault::HardLinkToDirectory(Shown::new(target.as_bytes()).to_string()).into());
        }
        self.replace(&member.path, above, name, |parent| {
            linkat(&from, target_name, parent, name, AtFlags::empty())
        })
    }

    fn dangling(&self, target: &MemberPath) -> Fault {
        Fault::DanglingHardLink(Shown::new(target.as_bytes()).to_string())
    }

    /// Takes away what layers below have brought.
    fn whiteout(&mut self, member: &Member, above: &[u8], name: &[u8]) -> Result<(), Trouble> {
        if self.role == Role::Whole {
            return Err(Fault::StrayWhiteout.into());
        }
        let hidden = &name[WHITEOUT.len()..];
        let is_empty = matches!(member.kind, Kind::File { size: 0 } | Kind::HardLink { .. });
        let is_known = name == OPAQUE || !name.starts_with(RESERVED) && !matches!(hidden, b"" | b"." | b"..");
        if !is_empty || !is_known {
            return Err(Fault::Whiteout.into());
        }
        let directory = match self.open_directory(above) {
            // Nothing there that could be hidden.
            Err(Trouble::Host(Errno::NOENT)) => return Ok(()),
            opened => opened?,
        };
        self.parent = None;
        match name == OPAQUE {
            true => Ok(remove::content(directory, above, &self.ours)?),
            false => {
                let path = if above.is_empty() { hidden.to_vec() } else { [above, b"/", hidden].concat() };
                Ok(remove::entry(directory.as_fd(), hidden, &path, &self.ours)?)
            }
        }
    }

    /// Makes something under a name of its own. What has that name goes away first.
    fn replace<T>(
        &mut self,
        path: &MemberPath,
        above: &[u8],
        name: &[u8],
        make: impl Fn(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, Trouble> {
        let parent = self.parent(above)?;
        match make(parent) {
            Err(Errno::EXIST) => {
                remove::entry(parent, name, path.as_bytes(), &BTreeSet::new())?;
                let made = make(parent)?;
                // What was known of directories below may be gone.
                self.parent = None;
                Ok(made)
            }
            made => Ok(made?),
        }
    }

    /// The directory at `path`. Those that no member has made are made now, as other readers do.
    fn parent(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>, Trouble> {
        if self.parent.as_ref().is_none_or(|(known, _)| known != path) {
            let opened = match self.open_directory(path) {
                Err(Trouble::Host(Errno::NOENT)) => {
                    self.make_directories(path)?;
                    self.open_directory(path)?
                }
                opened => opened?,
            };
            self.parent = Some((path.to_vec(), opened));
        }
        Ok(self.parent.as_ref().map_or(self.root.as_fd(), |(_, opened)| opened.as_fd()))
    }

    fn make_directories(&mut self, path: &[u8]) -> Result<(), Trouble> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let (above, name) = match path[..end].iter().rposition(|byte| *byte == b'/') {
                Some(at) => (&path[..at], &path[at + 1..end]),
                None => (&b""[..], &path[..end]),
            };
            match mkdirat(self.open_directory(above)?, name, DIRECTORY_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Trouble> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), BENEATH).map_err(|errno| match errno {
            Errno::LOOP | Errno::XDEV => Fault::ThroughLink.into(),
            Errno::NOTDIR => Fault::ThroughFile.into(),
            errno => errno.into(),
        })
    }

    fn keep(&mut self, path: &MemberPath) {
        if self.role == Role::Layer {
            self.ours.insert(path.as_bytes().to_vec());
        }
    }

    /// Last, when nothing changes any more.
    fn date_directories(&self) -> Result<(), Error> {
        for (path, mtime) in &self.directories {
            match self.open_directory(path.as_bytes()) {
                Ok(directory) => futimens(&directory, &times(*mtime))
                    .map_err(|errno| Trouble::Host(errno).of(path.as_bytes()))?,
                // Something else came in its place.
                Err(Trouble::Fault(_) | Trouble::Host(Errno::NOENT)) => {}
                Err(trouble) => return Err(trouble.of(path.as_bytes())),
            }
        }
        Ok(())
    }
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Cells run with ids that own nothing here, so everybody may look around. Only the owner of the store can change anything, and
/// cells see it on a mount that is read-only.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// Readable for all, executable for all if anybody may execute it, writable for nobody but the owner; no set-id bits.
fn file_mode(mode: u32) -> u32 {
    let executable = if mode & 0o111 == 0 { 0 } else { 0o111 };
    0o444 | executable | mode & 0o200
}

fn times(mtime: u32) -> Timestamps {
    let time = Timespec { tv_sec: i64::from(mtime), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
