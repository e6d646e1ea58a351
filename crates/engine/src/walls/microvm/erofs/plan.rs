//! Where each inode and each run of blocks goes.

use std::io;

use super::error::beyond;
use super::format::{BLOCK, FIRST_INODE_BLOCK, INODE, SLOT};
use super::tree::{Kind, Tree};
use super::{Limits, format};

const SLOTS: usize = BLOCK / SLOT;

pub(super) struct Plan {
    places: Vec<Place>,
    pub(super) blocks: u64,
}

pub(super) struct Place {
    pub(super) nid: u64,
    /// Where the blocks of the content begin; zero if there are none.
    pub(super) first_block: u64,
}

impl Plan {
    pub(super) fn new(tree: &Tree, limits: &Limits) -> io::Result<Self> {
        let mut area = InodeArea { room: vec![Vec::new(); SLOTS + 1], end: FIRST_INODE_BLOCK };
        let mut places = Vec::with_capacity(tree.inodes.len());
        for inode in &tree.inodes {
            let nid = area.take((INODE + format::tail(inode.size)).div_ceil(SLOT));
            places.push(Place { nid, first_block: 0 });
        }
        let mut end = area.end;
        // Directories lie beside the inodes: whoever looks for a name reads both.
        for directories in [true, false] {
            for (inode, place) in tree.inodes.iter().zip(&mut places) {
                let blocks = format::whole_blocks(inode.size);
                if blocks > 0 && (inode.kind == Kind::Directory) == directories {
                    place.first_block = end;
                    end += blocks;
                }
            }
        }
        let plan = Self { places, blocks: end };
        if plan.bytes() > limits.bytes {
            return Err(beyond(format!("the image would have more than {} bytes", limits.bytes)));
        }
        Ok(plan)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.blocks * BLOCK as u64
    }

    pub(super) fn place(&self, inode: usize) -> &Place {
        &self.places[inode]
    }
}

/// The blocks that hold the inodes and their tails.
struct InodeArea {
    /// The blocks that still have room, by the number of slots free at their ends.
    room: Vec<Vec<u64>>,
    end: u64,
}

impl InodeArea {
    /// The first of `slots` free slots that lie in one block. Of all blocks with room it is the fullest, so that little
    /// is left over; of those that are equally full the latest, so that neighbours in the tree stay close.
    fn take(&mut self, slots: usize) -> u64 {
        let fullest = (slots..=SLOTS).find_map(|free| Some((self.room[free].pop()?, free)));
        let (block, free) = fullest.unwrap_or_else(|| {
            self.end += 1;
            (self.end - 1, SLOTS)
        });
        self.room[free - slots].push(block);
        block * SLOTS as u64 + (SLOTS - free) as u64
    }
}
