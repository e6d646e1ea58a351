//! The lock that orders writers, and gives readers an instant without one. It is on the chain's own file, so that nobody
//! can hold the one without having the other.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::StoreError;

/// Which file was opened, whatever its name leads to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    dev: u64,
    ino: u64,
}

/// Proof that the exclusive lock is held; released on drop.
#[derive(Debug)]
pub(super) struct Exclusive<'a>(&'a File);

/// Proof that no writer is in the middle of a line; released on drop.
#[derive(Debug)]
pub(super) struct Shared<'a>(&'a File);

impl Exclusive<'_> {
    pub(super) fn take<'a>(file: &'a File, path: &Path) -> Result<Exclusive<'a>, StoreError> {
        lock(file, FlockOperation::LockExclusive, path)?;
        Ok(Exclusive(file))
    }
}

impl Shared<'_> {
    pub(super) fn take<'a>(file: &'a File, path: &Path) -> Result<Shared<'a>, StoreError> {
        lock(file, FlockOperation::LockShared, path)?;
        Ok(Shared(file))
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        unlock(self.0);
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        unlock(self.0);
    }
}

impl Identity {
    pub(super) fn of(file: &File) -> io::Result<Identity> {
        file.metadata().map(|meta| Identity { dev: meta.dev(), ino: meta.ino() })
    }

    /// What the path shows now, provided that it still is this file.
    pub(super) fn look(self, path: &Path) -> Result<Metadata, StoreError> {
        match path.metadata() {
            Ok(found) if (found.dev(), found.ino()) == (self.dev, self.ino) => Ok(found),
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::io("look at", path, e)),
            Ok(_) | Err(_) => Err(StoreError::Replaced { path: path.to_owned() }),
        }
    }
}

fn lock(file: &File, operation: FlockOperation, path: &Path) -> Result<(), StoreError> {
    loop {
        match flock(file, operation) {
            Err(Errno::INTR) => {}
            done => return done.map_err(|e| StoreError::io("lock", path, e.into())),
        }
    }
}

fn unlock(file: &File) {
    // Unlocking an open descriptor has no failure that could be acted on; closing it would unlock as well.
    let _ = flock(file, FlockOperation::Unlock);
}
