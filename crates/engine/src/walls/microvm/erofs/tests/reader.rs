//! Reads an image back, by the rules of the format and not by the code of the writer, and is strict about them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::{Path, Seen};

const BLOCK: usize = 4096;
const DIRECTORY: u16 = 0o040000;

pub(super) struct Image(Vec<u8>);

pub(super) struct Inode {
    pub(super) at: usize,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: i64,
    pub(super) links: u32,
    pub(super) content: Vec<u8>,
    /// What of the image it takes up: itself with its tail, and its blocks.
    pub(super) taken: [Range<usize>; 2],
}

impl Image {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let image = Self(bytes);
        assert_eq!(image.u32(1024), 0xE0F5_E1E2, "the magic number");
        assert_eq!(image.0[1024 + 12], 12, "the size of a block");
        assert_eq!(image.u32(1024 + 36) as usize * BLOCK, image.0.len(), "the number of blocks");
        assert_eq!(image.u32(1024 + 40), 0, "the block from which nids count");
        assert_eq!(image.u32(1024 + 80), 0, "the features that a kernel must know");
        let mut covered = image.0[1024..BLOCK].to_vec();
        covered[4..8].fill(0);
        assert_eq!(image.u32(1024 + 4), crc32c_by_long_division(&covered), "the checksum");
        image
    }

    pub(super) fn root(&self) -> u64 {
        u64::from(self.u16(1024 + 14))
    }

    pub(super) fn inodes(&self) -> u64 {
        self.u64(1024 + 16)
    }

    pub(super) fn inode(&self, nid: u64) -> Inode {
        let at = at(nid);
        let format = self.u16(at);
        assert_eq!(format & 1, 1, "an inode is of the long form");
        assert_eq!(self.u16(at + 2), 0, "an inode has no extended attributes");
        let size = usize::try_from(self.u64(at + 8)).unwrap();
        let tail = match format >> 1 {
            0 => 0,
            2 => size - (size - 1) / BLOCK * BLOCK,
            other => panic!("content of kind {other}"),
        };
        let end = at + 64 + tail;
        assert_eq!(at / BLOCK, (end - 1) / BLOCK, "an inode and its tail lie in one block");
        let first = self.u32(at + 16) as usize * BLOCK;
        let blocks = first..first + (size - tail);
        let mut content = self.0[blocks.clone()].to_vec();
        content.extend(&self.0[at + 64..end]);
        Inode {
            at,
            mode: self.u16(at + 4),
            uid: self.u32(at + 24),
            gid: self.u32(at + 28),
            mtime: self.u64(at + 32).cast_signed(),
            links: self.u32(at + 44),
            content,
            taken: [at..end.next_multiple_of(32), blocks.start..blocks.end.next_multiple_of(BLOCK)],
        }
    }

    /// The entries of a directory, in the order in which they are written.
    pub(super) fn list(&self, nid: u64) -> Vec<(Vec<u8>, u64)> {
        let inode = self.inode(nid);
        assert_eq!(inode.mode & 0o170000, DIRECTORY);
        let entries: Vec<_> = inode.content.chunks(BLOCK).flat_map(|block| self.entries(block)).collect();
        assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "names ascend, and none comes twice");
        entries
    }

    /// Looks a name up as the kernel does: bisects the blocks by their first names, and then the block.
    pub(super) fn find(&self, directory: u64, name: &[u8]) -> Option<u64> {
        let content = self.inode(directory).content;
        let blocks: Vec<_> = content.chunks(BLOCK).collect();
        let after = blocks.partition_point(|block| self.entry(block, 0).0.as_slice() <= name);
        let entries = self.entries(blocks[after.checked_sub(1)?]);
        let index = entries.binary_search_by(|(found, _)| found.as_slice().cmp(name)).ok()?;
        Some(entries[index].1)
    }

    fn entries(&self, block: &[u8]) -> Vec<(Vec<u8>, u64)> {
        (0..entries_in(block)).map(|index| self.entry(block, index)).collect()
    }

    fn entry(&self, block: &[u8], index: usize) -> (Vec<u8>, u64) {
        let name_at = |index: usize| u16_at(block, index * 12 + 8) as usize;
        let rest = &block[name_at(index)..];
        let name = if index + 1 < entries_in(block) {
            &rest[..name_at(index + 1) - name_at(index)]
        } else {
            rest.split(|&byte| byte == 0).next().unwrap()
        };
        assert!((1..=255).contains(&name.len()) && !name.contains(&0));
        let nid = u64_at(block, index * 12);
        let kind = match self.u16(at(nid) + 4) >> 12 {
            0o10 => 1,
            0o04 => 2,
            0o12 => 7,
            other => panic!("an inode of type {other:o}"),
        };
        assert_eq!(block[index * 12 + 10], kind, "an entry has the type of its inode");
        (name.to_vec(), nid)
    }

    /// All that the image holds, by path, after a check that no part of it is used twice.
    pub(super) fn walk(&self) -> BTreeMap<Path, Seen> {
        let mut walk = Walk { seen: BTreeMap::new(), first_names: HashMap::new(), taken: Vec::new() };
        walk.taken.push(0..BLOCK);
        self.visit(self.root(), self.root(), &[], &mut walk);
        assert_eq!(walk.first_names.len() as u64, self.inodes(), "the number of inodes");
        walk.taken.sort_by_key(|range| (range.start, range.end));
        assert!(walk.taken.windows(2).all(|pair| pair[0].end <= pair[1].start), "nothing overlaps");
        walk.seen
    }

    fn visit(&self, nid: u64, parent: u64, path: &[u8], walk: &mut Walk) {
        let inode = self.inode(nid);
        let first_name = walk.first_names.entry(nid).or_insert_with(|| path.to_vec()).clone();
        if first_name == path {
            walk.taken.extend(inode.taken.iter().filter(|range| !range.is_empty()).cloned());
        }
        let directory = inode.mode & 0o170000 == DIRECTORY;
        let seen = Seen {
            mode: inode.mode.into(),
            uid: inode.uid,
            gid: inode.gid,
            mtime: inode.mtime,
            links: inode.links.into(),
            content: if directory { Vec::new() } else { inode.content },
            first_name,
        };
        walk.seen.insert(path.to_vec(), seen);
        if directory {
            assert_eq!(self.find(nid, b"."), Some(nid));
            assert_eq!(self.find(nid, b".."), Some(parent));
            for (name, below) in self.list(nid) {
                if name != b"." && name != b".." {
                    self.visit(below, nid, &[path, b"/", &name].concat(), walk);
                }
            }
        }
    }

    fn u16(&self, at: usize) -> u16 {
        u16_at(&self.0, at)
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64_at(&self.0, at)
    }
}

struct Walk {
    seen: BTreeMap<Path, Seen>,
    first_names: HashMap<u64, Path>,
    taken: Vec<Range<usize>>,
}

fn at(nid: u64) -> usize {
    usize::try_from(nid).unwrap() * 32
}

fn entries_in(block: &[u8]) -> usize {
    u16_at(block, 8) as usize / 12
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The definition of the checksum: the remainder of the message, a polynomial whose first 32 coefficients are
/// inverted, after division by the polynomial of Castagnoli. Bits count from the lowest of each byte.
fn crc32c_by_long_division(message: &[u8]) -> u32 {
    let mut bits: Vec<bool> =
        message.iter().chain(&[0; 4]).flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1)).collect();
    bits[..32].iter_mut().for_each(|bit| *bit = !*bit);
    let polynomial = 0x1_1EDC_6F41_u64;
    for start in 0..bits.len() - 32 {
        if bits[start] {
            for (offset, bit) in bits[start..=start + 32].iter_mut().enumerate() {
                *bit ^= polynomial >> (32 - offset) & 1 == 1;
            }
        }
    }
    bits[bits.len() - 32..].iter().rev().fold(0, |sum, &bit| sum << 1 | u32::from(bit))
}
