//! The chain's file as its writers see it: where it ends, and how more lines get there.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use casemate_core::evidence::{End, Fault, SEAL_START, SecretKey, is_torn};
use rustix::fs::{AtFlags, FallocateFlags, StatxFlags, fallocate, statx};
use rustix::io::Errno;

use super::lock::{Exclusive, Identity};
use super::read::first_fault;
use super::tail::Tail;
use super::{Paths, StoreError};

/// Reserved on top of what is needed, so that most appends find room already there.
const AHEAD: u64 = 256 * 1024;
/// Blocks that a file system may count to a file without holding its data (extent trees).
const OVERHEAD: u64 = 64 * 1024;

#[derive(Debug)]
pub(super) struct ChainFile {
    file: File,
    identity: Identity,
    path: PathBuf,
    /// Up to here the file holds whole lines, which end like this.
    len: u64,
    end: End,
    allocated: u64,
    reservation: Reservation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reservation {
    Supported,
    /// This file system cannot promise room: a full disk then shows at the append itself.
    Unsupported,
}

impl ChainFile {
    pub(super) fn open(paths: &Paths) -> Result<ChainFile, StoreError> {
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
            end: End::default(),
            allocated: 0,
            reservation: Reservation::Supported,
        })
    }

    /// Whether the file holds nothing at all, not even the beginning of a line.
    pub(super) fn is_empty(&self) -> Result<bool, StoreError> {
        self.identity.look(&self.path).map(|meta| meta.len() == 0)
    }

    pub(super) fn end(&self) -> &End {
        &self.end
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The same open file once more.
    pub(super) fn file(&self) -> Result<File, StoreError> {
        self.file.try_clone().map_err(|e| self.io("open", e))
    }

    /// Checks that the path still leads to this file. Too slow for every record; every seal does it.
    pub(super) fn look(&self, _: &Exclusive<'_>) -> Result<(), StoreError> {
        self.identity.look(&self.path).map(drop)
    }

    /// Brings `len` and `end` up to date with what other writers did, and repairs what a killed one left.
    pub(super) fn refresh(&mut self, lock: &Exclusive<'_>, key: &SecretKey) -> Result<(), StoreError> {
        // Whoever asks for times makes the next write update them, which costs more than all of this.
        let wanted = StatxFlags::SIZE | StatxFlags::BLOCKS | StatxFlags::NLINK;
        let meta = statx(&self.file, c"", AtFlags::EMPTY_PATH, wanted);
        let meta = meta.map_err(|e| self.io("look at", e.into()))?;
        if meta.stx_nlink == 0 {
            return Err(StoreError::Replaced { path: self.path.clone() });
        }
        self.allocated = meta.stx_blocks * 512;
        let found = meta.stx_size;
        if found == self.len {
            return Ok(());
        }
        if found < self.len {
            return Err(StoreError::Cut { path: self.path.clone(), known: self.len, found });
        }
        let tail = Tail::read(&self.file, self.len, found).map_err(|e| self.io("read", e))?;
        let Some(tail) = tail else { return Err(self.corrupt(key)) };
        let Ok(end) = follow(self.end.clone(), &tail, key) else { return Err(self.corrupt(key)) };
        self.end = end;
        self.len = found - tail.rest().len() as u64;
        if tail.rest().is_empty() { Ok(()) } else { self.repair(lock, tail.rest(), key) }
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

    /// Appends whole lines, or nothing. `then` brings the end up to date.
    pub(super) fn append(
        &mut self,
        _: &Exclusive<'_>,
        lines: &[u8],
        then: impl FnOnce(&mut End),
    ) -> Result<(), StoreError> {
        // The kernel takes all of it in one write unless room runs out, so a kill seldom falls inside.
        if let Err(e) = self.file.write_all(lines) {
            // If this fails too, the beginning of a line stays behind for the next writer to remove.
            let _ = self.file.set_len(self.len);
            return Err(self.io("append to", e));
        }
        self.len += lines.len() as u64;
        then(&mut self.end);
        Ok(())
    }

    /// Deals with bytes after the last newline. A kill leaves either the beginning of a line or, at worst, all of it
    /// but the newline; anything else was not a kill, and is not touched.
    fn repair(&mut self, _: &Exclusive<'_>, rest: &[u8], key: &SecretKey) -> Result<(), StoreError> {
        if is_torn(rest) {
            return self.file.set_len(self.len).map_err(|e| self.io("repair", e));
        }
        let whole = [rest, b"\n"].concat();
        let mut end = self.end.clone();
        if end.follow(&whole, key).is_err() {
            return Err(self.corrupt(key));
        }
        self.file.write_all(b"\n").map_err(|e| self.io("repair", e))?;
        self.len += whole.len() as u64;
        self.end = end;
        Ok(())
    }

    /// Finds and names the damage. Slow, which no longer matters.
    fn corrupt(&self, key: &SecretKey) -> StoreError {
        match first_fault(&self.file, &self.path, key.public(), Some(key.mac())) {
            Ok(source) => StoreError::Corrupt { path: self.path.clone(), source },
            Err(e) => e,
        }
    }

    fn io(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::io(action, &self.path, source)
    }
}

/// Goes on from the last seal, if others have written one; its signature vouches for what lies before it, and whatever it
/// was made to cover, `verify` finds. Everything behind it may be ours to seal next, so it is checked line by line.
fn follow(mut end: End, tail: &Tail, key: &SecretKey) -> Result<End, Fault> {
    for (n, line) in tail.lines().enumerate() {
        if n == 0 && line.starts_with(SEAL_START) {
            end.resume(line, key.public())?;
        } else {
            end.follow(line, key)?;
        }
    }
    Ok(end)
}
