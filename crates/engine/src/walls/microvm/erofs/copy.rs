//! The second walk: the inodes and the contents go to the places that were planned for them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{SeekFrom, readlinkat, seek};
use rustix::io::Errno;

use super::error::{changed, under};
use super::format::{self, BLOCK};
use super::plan::Plan;
use super::tree::{Entry, Kind, ROOT, Tree};

/// How much of a file is held in memory at once.
const PIECE: usize = 256 << 10;

/// Writes everything but the superblock. The file `to` has the length of the image already, and is one hole.
pub(super) fn contents(root: BorrowedFd<'_>, tree: &Tree, plan: &Plan, to: &File) -> io::Result<()> {
    let mut copy = Copy { tree, plan, to, piece: vec![0; PIECE], next: ROOT + 1 };
    copy.directory(root, ROOT)
}

struct Copy<'a> {
    tree: &'a Tree,
    plan: &'a Plan,
    to: &'a File,
    piece: Vec<u8>,
    /// The lowest number of an inode that the walk has not met yet.
    next: usize,
}

impl Copy<'_> {
    fn directory(&mut self, opened: BorrowedFd<'_>, this: usize) -> io::Result<()> {
        self.entries(this)?;
        let tree = self.tree;
        let entries = &tree.inodes[this].entries;
        for entry in entries {
            // This walk has the order of the first one, so a lower number has been met: under another name of the
            // file, or it is this directory or the one above.
            if entry.inode == self.next {
                self.next += 1;
                self.content(opened, entry).map_err(|error| under(&entry.name, error))?;
            }
        }
        for entry in entries.iter().filter(|entry| tree.descends(this, entry)) {
            tree.open(opened, entry)
                .and_then(|below| self.directory(below.as_fd(), entry.inode))
                .map_err(|error| under(&entry.name, error))?;
        }
        Ok(())
    }

    fn entries(&self, directory: usize) -> io::Result<()> {
        let inode = &self.tree.inodes[directory];
        let mut tail = Vec::new();
        for (index, entries) in format::by_block(&inode.entries).enumerate() {
            let bytes = format::directory_block(entries, self.tree, self.plan);
            if (index as u64) < format::whole_blocks(inode.size) {
                self.write(&bytes, self.block(directory) + (index * BLOCK) as u64)?;
            } else {
                tail = bytes;
            }
        }
        self.inode(directory, &tail)
    }

    fn content(&mut self, directory: BorrowedFd<'_>, entry: &Entry) -> io::Result<()> {
        match self.tree.inodes[entry.inode].kind {
            Kind::File => self.file(&self.tree.open(directory, entry)?.into(), entry.inode),
            Kind::Symlink => self.symlink(directory, entry),
            // It is written when the walk enters it.
            Kind::Directory => Ok(()),
        }
    }

    fn symlink(&self, directory: BorrowedFd<'_>, entry: &Entry) -> io::Result<()> {
        let target = readlinkat(directory, &*entry.name, Vec::new())?.into_bytes();
        let size = self.tree.inodes[entry.inode].size;
        if target.len() as u64 != size {
            return Err(changed("was replaced"));
        }
        let (blocks, tail) = target.split_at(target.len() - format::tail(size));
        self.write(blocks, self.block(entry.inode))?;
        self.inode(entry.inode, tail)
    }

    fn file(&mut self, file: &File, inode: usize) -> io::Result<()> {
        let size = self.tree.inodes[inode].size;
        let mut tail = vec![0; format::tail(size)];
        let blocks = size - tail.len() as u64;
        self.blocks(file, blocks, self.block(inode))?;
        read(file, &mut tail, blocks)?;
        // Where a file became shorter looks like a hole, so that reading it does not always fail.
        if file.metadata()?.len() < size {
            return Err(shrunk());
        }
        self.inode(inode, &tail)
    }

    /// Copies the first `length` bytes of `file`, but not its holes: these cost neither time nor room on the disk.
    fn blocks(&mut self, file: &File, length: u64, to: u64) -> io::Result<()> {
        let mut at = 0;
        while at < length {
            at = match seek(file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => return Ok(()),
                found => found?,
            };
            let hole = match seek(file, SeekFrom::Hole(at)) {
                Err(Errno::NXIO) => return Err(shrunk()),
                found => found?.min(length),
            };
            while at < hole {
                let piece = (hole - at).min(PIECE as u64) as usize;
                read(file, &mut self.piece[..piece], at)?;
                self.write(&self.piece[..piece], to + at)?;
                at += piece as u64;
            }
        }
        Ok(())
    }

    fn inode(&self, number: usize, tail: &[u8]) -> io::Result<()> {
        let place = self.plan.place(number);
        let inode = format::inode(&self.tree.inodes[number], number, place);
        self.write(&[&inode, tail].concat(), place.nid * format::SLOT as u64)
    }

    /// Where the blocks of an inode's content begin, as an offset in the image.
    fn block(&self, inode: usize) -> u64 {
        self.plan.place(inode).first_block * BLOCK as u64
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.to.write_all_at(bytes, at).map_err(|error| {
            io::Error::new(error.kind(), format!("its part of the image could not be written: {error}"))
        })
    }
}

fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => shrunk(),
        _ => error,
    })
}

fn shrunk() -> io::Error {
    changed("became shorter")
}
