//! What can be done to the files of a cell that goes on, besides moving their content: look, make, rename, remove. Resolved beneath
//! the writable directories like every transfer, and done with the payload's rights.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use casemate_bare::io;
use casemate_wire::guest::{FileInfo, FileKind, ToHost};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, mkdirat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::beneath::open_beneath;
use crate::channel::Channel;
use crate::files::{MAX_DEPTH, Roots};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directory that an entry is in, and its name there. None for one of the roots itself.
pub(crate) fn parent<'a>(roots: &Roots, path: &'a str) -> io::Result<(OwnedFd, Option<&'a str>)> {
    let (root, rest) = roots.find(path)?;
    let rest = rest.trim_end_matches('/');
    if matches!(rest, "" | ".") {
        return Ok((open_beneath(root, ".", OFlags::PATH | DIRECTORY, Mode::empty())?, None));
    }
    let (above, name) = rest.rsplit_once('/').unwrap_or((".", rest));
    if matches!(name, "." | "..") {
        return Err(Errno::INVAL.into());
    }
    let above = if above.is_empty() { "." } else { above };
    Ok((open_beneath(root, above, OFlags::PATH | DIRECTORY, Mode::empty())?, Some(name)))
}

fn info(stat: &Stat) -> FileInfo {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    };
    let modified = stat.st_mtime * 1_000_000 + stat.st_mtime_nsec as i64 / 1000;
    FileInfo { kind, mode: stat.st_mode & 0o7777, size: stat.st_size as u64, modified_micros: modified }
}

/// Makes a directory and all that are missing above it. Says what it made, if anything.
pub(crate) fn make_directory(roots: &Roots, path: &str) -> io::Result<Option<FileInfo>> {
    let (root, rest) = roots.find(path)?;
    let mut at = open_beneath(root, ".", OFlags::PATH | DIRECTORY, Mode::empty())?;
    let mut made = None;
    for name in rest.split('/').filter(|name| !matches!(*name, "" | ".")) {
        if name == ".." {
            return Err(Errno::INVAL.into());
        }
        made = match mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                roots.hand_over_directory(&at, name)?;
                Some(info(&statat(&at, name, AtFlags::SYMLINK_NOFOLLOW)?))
            }
            Err(Errno::EXIST) => None,
            Err(error) => return Err(error.into()),
        };
        at = open_beneath(&at, name, OFlags::PATH | DIRECTORY, Mode::empty())?;
    }
    Ok(made)
}

pub(crate) fn rename(roots: &Roots, from: &str, to: &str) -> io::Result<()> {
    let ((from, Some(old)), (to, Some(new))) = (parent(roots, from)?, parent(roots, to)?) else {
        return Err(Errno::BUSY.into());
    };
    Ok(renameat_with(from, old, to, new, RenameFlags::empty())?)
}

/// Removes what is there, with everything below it. Links are removed, not followed.
pub(crate) fn remove(roots: &Roots, path: &str) -> io::Result<()> {
    let (above, Some(name)) = parent(roots, path)? else { return Err(Errno::BUSY.into()) };
    remove_at(&above, name, 0)
}

fn remove_at(above: &OwnedFd, name: &str, depth: usize) -> io::Result<()> {
    match unlinkat(above, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return Ok(removed?),
    }
    if depth >= MAX_DEPTH {
        return Err(Errno::NAMETOOLONG.into());
    }
    let directory = open_beneath(above, name, DIRECTORY, Mode::empty())?;
    // Read as a whole first: what is removed while it is listed may hide what comes next.
    let mut names = Vec::new();
    for entry in Dir::read_from(directory.as_fd())? {
        let entry = entry?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            _ => names.push(entry.file_name().to_owned()),
        }
    }
    for name in names {
        match name.to_str() {
            Ok(name) => remove_at(&directory, name, depth + 1)?,
            // No directory that we would have made; the kernel refuses if it is one.
            Err(_) => unlinkat(&directory, &*name, AtFlags::empty())?,
        }
    }
    Ok(unlinkat(above, name, AtFlags::REMOVEDIR)?)
}

/// A tree that is being looked at, told bit by bit as the channel takes it.
pub(crate) struct List {
    pub(crate) id: u32,
    entries_left: u32,
    depth: usize,
    /// Directories still to be listed: opened, with their path relative to the requested one.
    directories: Vec<(Dir, String)>,
}

impl List {
    pub(crate) fn begin(
        roots: &Roots,
        id: u32,
        path: &str,
        (depth, entries_left): (u32, u32),
        channel: &mut Channel,
    ) -> io::Result<List> {
        let mut list =
            List { id, entries_left, depth: MAX_DEPTH.min(depth as usize), directories: Vec::new() };
        let (above, name) = parent(roots, path)?;
        let name = name.unwrap_or(".");
        let found = info(&statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)?);
        list.tell(String::new(), found, channel)?;
        if found.kind == FileKind::Directory && list.depth > 0 {
            let directory = open_beneath(&above, name, DIRECTORY, Mode::empty())?;
            list.directories.push((Dir::read_from(directory.as_fd())?, String::new()));
        }
        Ok(list)
    }

    /// Tells of one more. `Ok(true)` when all were told.
    pub(crate) fn go_on(&mut self, channel: &mut Channel) -> io::Result<bool> {
        let level = self.directories.len();
        let Some((dir, prefix)) = self.directories.last_mut() else { return Ok(true) };
        let Some(entry) = dir.next() else {
            self.directories.pop();
            return Ok(false);
        };
        let entry = entry?;
        // A name that is no text cannot be asked for either.
        let Ok(name) = entry.file_name().to_str() else { return Ok(false) };
        if matches!(name, "." | "..") {
            return Ok(false);
        }
        let path = format!("{prefix}{name}");
        let found = match statat(dir.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => info(&stat),
            // Gone meanwhile.
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let below = match (found.kind, level < self.depth) {
            (FileKind::Directory, true) => open_beneath(dir.fd()?, name, DIRECTORY, Mode::empty()).ok(),
            _ => None,
        };
        if let Some(below) = below {
            self.directories.push((Dir::read_from(below.as_fd())?, format!("{path}/")));
        }
        self.tell(path, found, channel)?;
        Ok(false)
    }

    fn tell(&mut self, path: String, info: FileInfo, channel: &mut Channel) -> io::Result<()> {
        self.entries_left =
            self.entries_left.checked_sub(1).ok_or_else(|| io::Error::from_raw_os_error(libc::EFBIG))?;
        channel.tell(&ToHost::Found { id: self.id, path, info });
        Ok(())
    }
}
