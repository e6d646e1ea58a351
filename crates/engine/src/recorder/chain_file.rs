//! The chain's file as its writers see it: where it ends, and how one more line gets there.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use casemate_core::evidence::{Head, MAX_LINE, PublicKey, Record, is_torn};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::lock::{Exclusive, Identity};
use super::read::first_fault;
use super::{Paths, StoreError};

/// Reserved on top of what is needed, so that most appends find room already there.
const AHEAD: u64 = 128 * 1024;
/// Blocks that a file system may count to a file without holding its data (extent trees).
const OVERHEAD: u64 = 64 * 1024;

#[derive(Debug)]
pub(super) struct ChainFile {
    file: File,
    identity: Identity,
    path: PathBuf,
    /// Up to here the file holds whole lines, the last of which is `head`.
    len: u64,
    head: Head,
    allocated: u64,
    reservation: Reservation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reservation {
    Supported,
    /// This file system cannot promise room: a full disk then shows at the append itself.
    Unsupported,
}

/// The end of a stretch of lines.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// The last complete line, newline included.
    pub(super) line: Option<Vec<u8>>,
    /// What follows its newline.
    pub(super) rest: Vec<u8>,
}

impl ChainFile {
    pub(super) fn open(paths: &Paths, _: &Exclusive<'_>) -> Result<ChainFile, StoreError> {
        let path = &paths.chain;
        let existed = path.exists();
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let file = options.open(path).map_err(|e| StoreError::io("open", path, e))?;
        if !existed {
            // Syncing a file does not make its name durable.
            let synced = File::open(&paths.evidence).and_then(|dir| dir.sync_all());
            synced.map_err(|e| StoreError::io("sync", &paths.evidence, e))?;
        }
        Ok(ChainFile {
            identity: Identity::of(&file).map_err(|e| StoreError::io("look at", path, e))?,
            file,
            path: path.clone(),
            len: 0,
            head: Head::GENESIS,
            allocated: 0,
            reservation: Reservation::Supported,
        })
    }

    /// Whether the file holds nothing at all, not even the beginning of a line.
    pub(super) fn is_empty(&self) -> Result<bool, StoreError> {
        self.identity.look(&self.path).map(|meta| meta.len() == 0)
    }

    pub(super) fn head(&self) -> Head {
        self.head
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Brings `len` and `head` up to date with what other writers did, and repairs what a killed one left.
    pub(super) fn refresh(&mut self, lock: &Exclusive<'_>, key: &PublicKey) -> Result<(), StoreError> {
        let meta = self.identity.look(&self.path)?;
        self.allocated = meta.blocks() * 512;
        if meta.len() == self.len {
            return Ok(());
        }
        if meta.len() < self.len {
            return Err(StoreError::Cut { path: self.path.clone(), known: self.len, found: meta.len() });
        }
        let tail = Tail::read(&self.file, self.len, meta.len()).map_err(|e| self.io("read", e))?;
        let Some(tail) = tail else { return Err(self.corrupt(key)) };
        if let Some(line) = &tail.line {
            // The first look at a chain checks the signature; later ones only follow writers of the same store,
            // and whatever they may have let in, `verify` finds.
            let signer = (self.len == 0).then_some(key);
            let last = Record::parse(line, signer).ok().filter(|last| last.seq > self.head.seq);
            let Some(last) = last else { return Err(self.corrupt(key)) };
            self.head = last.head();
        }
        self.len = meta.len() - tail.rest.len() as u64;
        if tail.rest.is_empty() { Ok(()) } else { self.repair(lock, tail.rest, key) }
    }

    /// Promises that `bytes` more can be appended even if the disk fills up meanwhile.
    pub(super) fn reserve(&mut self, _: &Exclusive<'_>, bytes: u64) -> Result<(), StoreError> {
        let end = self.len + bytes;
        if self.reservation == Reservation::Unsupported || self.allocated >= end + OVERHEAD {
            return Ok(());
        }
        let ask = |bytes| fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len, bytes);
        let granted =
            ask(bytes + AHEAD + OVERHEAD).or_else(|e| if e == Errno::NOSPC { ask(bytes) } else { Err(e) });
        match granted {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.reservation = Reservation::Unsupported;
                Ok(())
            }
            Err(e) => Err(self.io("reserve room in", e.into())),
        }
    }

    /// Appends one line, whole or not at all.
    pub(super) fn append(&mut self, _: &Exclusive<'_>, line: &[u8], head: Head) -> Result<(), StoreError> {
        // The kernel takes a whole line in one write unless room runs out, so a kill seldom falls inside it.
        if let Err(e) = self.file.write_all(line) {
            // If this fails too, the beginning of a line stays behind for the next writer to remove.
            let _ = self.file.set_len(self.len);
            return Err(self.io("append to", e));
        }
        self.len += line.len() as u64;
        self.head = head;
        Ok(())
    }

    /// Deals with bytes after the last newline. A kill leaves either the beginning of a line or, at worst, all of it
    /// but the newline; anything else was not a kill, and is not touched.
    fn repair(&mut self, _: &Exclusive<'_>, mut rest: Vec<u8>, key: &PublicKey) -> Result<(), StoreError> {
        if is_torn(&rest) {
            return self.file.set_len(self.len).map_err(|e| self.io("repair", e));
        }
        rest.push(b'\n');
        let checked =
            Record::parse(&rest, Some(key)).and_then(|last| last.follows(self.head).map(|()| last.head()));
        let Ok(head) = checked else { return Err(self.corrupt(key)) };
        self.file.write_all(b"\n").map_err(|e| self.io("repair", e))?;
        self.len += rest.len() as u64;
        self.head = head;
        Ok(())
    }

    /// Finds and names the damage. Slow, which no longer matters.
    fn corrupt(&self, key: &PublicKey) -> StoreError {
        match first_fault(&self.file, &self.path, key) {
            Ok(source) => StoreError::Corrupt { path: self.path.clone(), source },
            Err(e) => e,
        }
    }

    fn io(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::io(action, &self.path, source)
    }
}

impl Tail {
    /// Reads backwards from `to`, as far as needed and never past `from`, where a line begins. `None` if no line can
    /// be that long.
    pub(super) fn read(file: &File, from: u64, to: u64) -> io::Result<Option<Tail>> {
        let mut size = 8 * 1024;
        loop {
            let start = to.saturating_sub(size).max(from);
            let mut window = vec![0; (to - start) as usize];
            file.read_exact_at(&mut window, start)?;
            if let Some(tail) = Tail::within(&window, start == from) {
                return Ok(Some(tail));
            }
            if size > 2 * MAX_LINE as u64 || start == from {
                return Ok(None);
            }
            size *= 4;
        }
    }

    /// `None` if the window does not reach back to where the last complete line begins.
    fn within(window: &[u8], begins_with_a_line: bool) -> Option<Tail> {
        let newline = |bytes: &[u8]| bytes.iter().rposition(|b| *b == b'\n');
        let Some(end) = newline(window) else {
            return begins_with_a_line.then(|| Tail { line: None, rest: window.to_vec() });
        };
        let begin = match newline(&window[..end]) {
            Some(before) => before + 1,
            None if begins_with_a_line => 0,
            None => return None,
        };
        Some(Tail { line: Some(window[begin..=end].to_vec()), rest: window[end + 1..].to_vec() })
    }
}
