//! The lock that orders writers, and gives readers an instant without one.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::StoreError;

#[derive(Debug)]
pub(super) struct LockFile {
    file: File,
    identity: Identity,
    path: PathBuf,
}

/// Which file was opened, whatever its name leads to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    dev: u64,
    ino: u64,
}

/// Proof that the exclusive lock is held; released on drop.
#[derive(Debug)]
pub(super) struct Exclusive<'a>(&'a LockFile);

/// Proof that no writer is in the middle of a line; released on drop.
#[derive(Debug)]
pub(super) struct Shared<'a>(&'a LockFile);

impl LockFile {
    pub(super) fn create(path: &Path) -> Result<LockFile, StoreError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path).and_then(|file| LockFile::new(file, path));
        lock.map_err(|e| StoreError::io("open", path, e))
    }

    /// For readers, who may not be able to write anywhere in the store.
    pub(super) fn existing(path: &Path) -> io::Result<LockFile> {
        LockFile::new(File::open(path)?, path)
    }

    pub(super) fn exclusive(&self) -> Result<Exclusive<'_>, StoreError> {
        self.take(FlockOperation::LockExclusive)?;
        let guard = Exclusive(self);
        // Two writers holding two different lock files would fork the chain.
        self.identity.look(&self.path)?;
        Ok(guard)
    }

    pub(super) fn shared(&self) -> Result<Shared<'_>, StoreError> {
        self.take(FlockOperation::LockShared)?;
        Ok(Shared(self))
    }

    fn new(file: File, path: &Path) -> io::Result<LockFile> {
        Ok(LockFile { identity: Identity::of(&file)?, file, path: path.to_owned() })
    }

    fn take(&self, operation: FlockOperation) -> Result<(), StoreError> {
        loop {
            match flock(&self.file, operation) {
                Err(Errno::INTR) => {}
                done => return done.map_err(|e| StoreError::io("lock", &self.path, e.into())),
            }
        }
    }

    fn release(&self) {
        // Unlocking an open descriptor has no failure that could be acted on; closing it would unlock as well.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.0.release();
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
