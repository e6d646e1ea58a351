//! The first walk: what there is in the tree, without the contents of its files.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use super::error::{beyond, changed, under};
use super::{Limits, format};

/// What is kept of a mode: the type, the permissions and the sticky bit.
const KEPT_MODE: u32 = 0o17_1777;

/// The root's place among the inodes.
pub(super) const ROOT: usize = 0;

pub(super) struct Tree {
    device: u64,
    /// In the order in which a walk meets them: all that a directory names, and then what its directories name.
    pub(super) inodes: Vec<Inode>,
}

pub(super) struct Inode {
    pub(super) kind: Kind,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: i64,
    /// How many entries lead here, the `.` and `..` of directories among them.
    pub(super) links: u32,
    pub(super) size: u64,
    /// A directory's entries, by ascending name; nothing for the other kinds.
    pub(super) entries: Vec<Entry>,
    /// The inode number in the filesystem that the tree lies in.
    source: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
}

pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    pub(super) inode: usize,
}

impl Tree {
    pub(super) fn scan(root: BorrowedFd<'_>, limits: &Limits) -> io::Result<Self> {
        let stat = fstat(root)?;
        if Kind::of(&stat) != Some(Kind::Directory) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let tree = Self { device: stat.st_dev, inodes: Vec::new() };
        let mut scan = Scan { limits, tree, linked: HashMap::new(), names: 0, name_bytes: 0, bytes: 0 };
        scan.add(Kind::Directory, &stat)?;
        scan.directory(root, ROOT, ROOT, 0)?;
        Ok(scan.tree)
    }

    /// Opens what an entry of `directory` named when it was scanned, and nothing that has taken its place since.
    pub(super) fn open(&self, directory: BorrowedFd<'_>, entry: &Entry) -> io::Result<OwnedFd> {
        let inode = &self.inodes[entry.inode];
        // What was a file may be a pipe or a terminal by now, which must neither block nor become ours.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = match openat(directory, &*entry.name, flags, Mode::empty()) {
            // What the kernel answers to an attempt to open a link without following it.
            Err(Errno::LOOP) => return Err(changed("was replaced")),
            opened => opened?,
        };
        let stat = fstat(&opened)?;
        let same = stat.st_dev == self.device && stat.st_ino == inode.source;
        if !same || Kind::of(&stat) != Some(inode.kind) {
            return Err(changed("was replaced"));
        }
        Ok(opened)
    }

    /// Whether this entry of the directory `parent` names a directory within it: not itself, nor the one above.
    pub(super) fn descends(&self, parent: usize, entry: &Entry) -> bool {
        entry.inode > parent && self.inodes[entry.inode].kind == Kind::Directory
    }
}

impl Kind {
    fn of(stat: &Stat) -> Option<Self> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Some(Self::File),
            FileType::Directory => Some(Self::Directory),
            FileType::Symlink => Some(Self::Symlink),
            _ => None,
        }
    }
}

struct Scan<'a> {
    limits: &'a Limits,
    tree: Tree,
    /// The inodes that may have further names, by their number in the filesystem.
    linked: HashMap<u64, usize>,
    names: usize,
    name_bytes: usize,
    bytes: u64,
}

impl Scan<'_> {
    fn directory(
        &mut self,
        opened: BorrowedFd<'_>,
        this: usize,
        parent: usize,
        depth: usize,
    ) -> io::Result<()> {
        if depth > self.limits.depth {
            return Err(beyond(format!("directories are nested deeper than {}", self.limits.depth)));
        }
        let mut entries = vec![self.entry(b"."[..].into(), this), self.entry(b".."[..].into(), parent)];
        for name in self.names(opened)? {
            if let Some(inode) = self.visit(opened, &name).map_err(|error| under(&name, error))? {
                entries.push(self.entry(name, inode));
            }
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for entry in &entries {
            if self.tree.descends(this, entry) {
                self.tree
                    .open(opened, entry)
                    .and_then(|below| self.directory(below.as_fd(), entry.inode, this, depth + 1))
                    .map_err(|error| under(&entry.name, error))?;
            }
        }
        self.tree.inodes[this].size = format::directory_size(&entries);
        self.tree.inodes[this].entries = entries;
        Ok(())
    }

    /// The names in a directory, sorted, so that the order in which the filesystem happens to hold them is forgotten.
    fn names(&mut self, opened: BorrowedFd<'_>) -> io::Result<Vec<Box<[u8]>>> {
        let mut names = Vec::new();
        for found in Dir::read_from(opened)? {
            let found = found?;
            let name = found.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if name.len() > format::LONGEST_NAME {
                let longest = format!("is a name of more than {} bytes", format::LONGEST_NAME);
                return Err(under(name, beyond(longest)));
            }
            self.names += 1;
            self.name_bytes += name.len();
            if self.names > self.limits.names {
                return Err(beyond(format!("the tree has more than {} names", self.limits.names)));
            }
            if self.name_bytes > self.limits.name_bytes {
                let limit = self.limits.name_bytes;
                return Err(beyond(format!("the names in the tree have more than {limit} bytes")));
            }
            names.push(name.into());
        }
        names.sort_unstable();
        // A directory that is changed while it is listed may give a name twice.
        names.dedup();
        Ok(names)
    }

    /// The inode behind a name: a new one, or one that has been met under another name. `None` if it is left out.
    fn visit(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<usize>> {
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?;
        // A part of the same filesystem that is mounted here does not show: it would be copied.
        if stat.st_dev != self.tree.device {
            return Err(io::Error::new(io::ErrorKind::CrossesDevices, "lies on another filesystem"));
        }
        let Some(kind) = Kind::of(&stat) else { return Ok(None) };
        if kind != Kind::Directory && stat.st_nlink > 1 {
            if let Some(&known) = self.linked.get(&stat.st_ino) {
                return Ok(Some(known));
            }
            self.linked.insert(stat.st_ino, self.tree.inodes.len());
        }
        self.add(kind, &stat).map(Some)
    }

    fn add(&mut self, kind: Kind, stat: &Stat) -> io::Result<usize> {
        // A directory's size is that of its entries in the image, which are yet to be read.
        let size = if kind == Kind::Directory { 0 } else { stat.st_size.cast_unsigned() };
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes {
            return Err(beyond(format!(
                "with this, the files of the tree have more than {} bytes",
                self.limits.bytes
            )));
        }
        self.tree.inodes.push(Inode {
            kind,
            mode: (stat.st_mode & KEPT_MODE) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: stat.st_mtime,
            links: 0,
            size,
            entries: Vec::new(),
            source: stat.st_ino,
        });
        Ok(self.tree.inodes.len() - 1)
    }

    fn entry(&mut self, name: Box<[u8]>, inode: usize) -> Entry {
        self.tree.inodes[inode].links += 1;
        Entry { name, inode }
    }
}
