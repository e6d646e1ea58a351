//! Writes a directory tree as an EROFS image: read-only, uncompressed, and the same bytes for the same tree.
//!
//! The tree comes out of somebody else's container image, so nothing in it is trusted. It is walked by descriptors
//! alone, one name at a time and never through a link; it may change under the walk, which ends in an error and not
//! in an image of something else; and what it can make us hold or write is limited by `LIMITS`.
//!
//! # What is in the image
//!
//! Directories, regular files and symbolic links, with their permissions, owners and modification times in whole
//! seconds (Python believes a `.pyc` only if the time of its source agrees). Several names of one file stay names of
//! one file. Devices, pipes and sockets are left out, and so are the set-user and set-group bits and all extended
//! attributes: a cell has no use for them.
//!
//! # The layout
//!
//! Everything is little-endian, and the image is cut into blocks of 4096 bytes:
//!
//! ```text
//! block 0              byte 1024: the superblock, whose checksum covers the block from there to its end
//! block 1 and on       the inodes, each 64 bytes long and followed by the tail of its content
//! after the inodes     the whole blocks of the directories
//! after those          the whole blocks of the files
//! ```
//!
//! An inode is named by its *nid*, the 32-byte slot at which it starts, counted from the start of the image. (The
//! format can count from a later block; with that set to zero, a nid times 32 is an offset in the file.) The root is
//! the first inode, since the superblock has only 16 bits for its nid.
//!
//! The content of an inode is one run of blocks. What does not fill its last block, the tail, follows the inode
//! itself if both fit into one block, which they must not leave: this is why a tree of tiny files takes little more
//! than its bytes. A tail that is too long for that takes a block of its own. An empty file has neither.
//!
//! A directory is content like any other. Each of its blocks has a table of 12-byte entries (nid, offset of the name
//! within the block, type), and behind the table the names, without separators: a name ends where the next one
//! starts, and the last one at the end of the block or at a zero. The first entry's offset thus tells how many there
//! are. Names ascend by their bytes within and across blocks, `.` and `..` in their places among them, because the
//! kernel looks them up by bisection. An entry and its name never straddle two blocks.

mod copy;
mod error;
mod format;
mod plan;
#[cfg(test)]
mod tests;
mod tree;

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;

use plan::Plan;
use tree::Tree;

/// What a tree may have before it is refused.
struct Limits {
    /// Names in all directories together. Each is held in memory until the image is written, as are the inodes.
    names: usize,
    /// The bytes of these names.
    name_bytes: usize,
    /// Directories within one another. The walk holds one descriptor open for each.
    depth: usize,
    /// The bytes of all files together, and those of the image.
    bytes: u64,
}

const LIMITS: Limits = Limits { names: 1_000_000, name_bytes: 64 << 20, depth: 256, bytes: 16 << 30 };

/// Writes the tree behind the directory `root` to the regular file `to`, and returns how many bytes the image has.
///
/// `to` must not be open for appending, nor lie within the tree, and it is not synced. When this fails, it holds what
/// it held before, or a part of the image without the superblock, which does not mount.
pub(super) fn write(root: BorrowedFd<'_>, to: &File) -> io::Result<u64> {
    write_within(&LIMITS, root, to)
}

fn write_within(limits: &Limits, root: BorrowedFd<'_>, to: &File) -> io::Result<u64> {
    let tree = Tree::scan(root, limits)?;
    let plan = Plan::new(&tree, limits)?;
    write_as_planned(root, &tree, &plan, to)
}

fn write_as_planned(root: BorrowedFd<'_>, tree: &Tree, plan: &Plan, to: &File) -> io::Result<u64> {
    // Emptied before it grows to its full length: what is not written from here on is then a hole, and reads as zeros.
    to.set_len(0)?;
    to.set_len(plan.bytes())?;
    copy::contents(root, tree, plan, to)?;
    to.write_all_at(&format::first_block(tree.inodes.len(), plan), 0)?;
    Ok(plan.bytes())
}
