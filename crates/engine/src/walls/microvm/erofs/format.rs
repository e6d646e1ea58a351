//! What the structures of the format look like as bytes.

use super::plan::{Place, Plan};
use super::tree::{Entry, Inode, Kind, ROOT, Tree};

pub(super) const BLOCK: usize = 4096;
const BLOCK_BITS: u8 = 12;
/// The unit in which nids count.
pub(super) const SLOT: usize = 32;
/// The long form of an inode, the only one that is written: the short one has no time of its own.
pub(super) const INODE: usize = 64;
const DIRENT: usize = 12;
pub(super) const LONGEST_NAME: usize = 255;

/// The superblock has its block to itself, so that its checksum covers nothing else.
pub(super) const FIRST_INODE_BLOCK: u64 = 1;

const SUPERBLOCK: usize = 1024;
const MAGIC: u32 = 0xE0F5_E1E2;
/// The superblock has a checksum, and the times of inodes are modification times. Neither needs a newer kernel.
const FEATURES: u32 = 0x1 | 0x2;

const LONG_INODE: u16 = 1;
const WITHOUT_TAIL: u16 = 0 << 1;
const WITH_TAIL: u16 = 2 << 1;

/// How many bytes at the end of a content of `size` bytes are kept behind its inode.
pub(super) fn tail(size: u64) -> usize {
    let rest = (size % BLOCK as u64) as usize;
    if rest <= BLOCK - INODE { rest } else { 0 }
}

/// How many blocks the content has besides.
pub(super) fn whole_blocks(size: u64) -> u64 {
    (size - tail(size) as u64).div_ceil(BLOCK as u64)
}

/// Block 0. Its UUID, label and build time stay zero: two images of one tree do not differ.
pub(super) fn first_block(inodes: usize, plan: &Plan) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let superblock = &mut block[SUPERBLOCK..];
    put(superblock, 0, MAGIC.to_le_bytes());
    put(superblock, 8, FEATURES.to_le_bytes());
    put(superblock, 12, [BLOCK_BITS]);
    put(superblock, 14, (plan.place(ROOT).nid as u16).to_le_bytes());
    put(superblock, 16, (inodes as u64).to_le_bytes());
    put(superblock, 36, (plan.blocks as u32).to_le_bytes());
    // Taken while its own field is still zero.
    let checksum = crc32c(superblock);
    put(superblock, 4, checksum.to_le_bytes());
    block
}

pub(super) fn inode(inode: &Inode, number: usize, place: &Place) -> [u8; INODE] {
    let content = if tail(inode.size) > 0 { WITH_TAIL } else { WITHOUT_TAIL };
    let mut bytes = [0; INODE];
    put(&mut bytes, 0, (LONG_INODE | content).to_le_bytes());
    put(&mut bytes, 4, inode.mode.to_le_bytes());
    put(&mut bytes, 8, inode.size.to_le_bytes());
    put(&mut bytes, 16, (place.first_block as u32).to_le_bytes());
    put(&mut bytes, 20, (number as u32 + 1).to_le_bytes());
    put(&mut bytes, 24, inode.uid.to_le_bytes());
    put(&mut bytes, 28, inode.gid.to_le_bytes());
    put(&mut bytes, 32, inode.mtime.to_le_bytes());
    put(&mut bytes, 44, inode.links.to_le_bytes());
    bytes
}

/// Divides the entries of a directory among its blocks, as many into each as it takes.
pub(super) fn by_block(entries: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        let mut used = 0;
        let fitting = rest.iter().take_while(|entry| {
            used += DIRENT + entry.name.len();
            used <= BLOCK
        });
        let (block, after) = rest.split_at(fitting.count());
        rest = after;
        (!block.is_empty()).then_some(block)
    })
}

/// The size of a directory: all of its blocks count in full, but for the last.
pub(super) fn directory_size(entries: &[Entry]) -> u64 {
    by_block(entries).fold(0, |size: u64, block| {
        let used: usize = block.iter().map(|entry| DIRENT + entry.name.len()).sum();
        size.next_multiple_of(BLOCK as u64) + used as u64
    })
}

/// One block of a directory, up to the end of its last name.
pub(super) fn directory_block(entries: &[Entry], tree: &Tree, plan: &Plan) -> Vec<u8> {
    let mut bytes = vec![0; entries.len() * DIRENT];
    for (position, entry) in entries.iter().enumerate() {
        let at = position * DIRENT;
        let name_at = bytes.len() as u16;
        put(&mut bytes, at, plan.place(entry.inode).nid.to_le_bytes());
        put(&mut bytes, at + 8, name_at.to_le_bytes());
        put(&mut bytes, at + 10, [entry_type(tree.inodes[entry.inode].kind)]);
        bytes.extend_from_slice(&entry.name);
    }
    bytes
}

fn entry_type(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::Symlink => 7,
    }
}

fn put<const LENGTH: usize>(bytes: &mut [u8], at: usize, value: [u8; LENGTH]) {
    bytes[at..at + LENGTH].copy_from_slice(&value);
}

/// The Castagnoli checksum, without the inversion that usually ends it. It is taken once, so it needs no table.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0x82F6_3B78 } else { 0 })
    })
}
