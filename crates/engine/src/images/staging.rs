//! Where images are made: a directory each, locked by whoever makes it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use casemate_core::evidence::hex;

use super::About;
use super::error::{ImageError, at};
use super::names::sync_directory;
use crate::home::{open_lock, remove_tree};
use crate::sys;

/// One image in the making. Dropped before it is kept, it is gone.
pub(super) struct Staging {
    /// Where it is.
    path: PathBuf,
    /// Where it goes back to, to be removed.
    place: PathBuf,
    lock: File,
    kept: bool,
}

/// What a tree has besides its files; everything else in a staging directory is on the way there.
const ROOT: &str = "root";
const ABOUT: &str = "image.json";

impl Staging {
    /// Under the store's lock, so that nobody takes it for a dead one before it is locked.
    pub(super) fn new(dir: &Path) -> Result<Staging, ImageError> {
        let name: [u8; 16] = sys::random().map_err(at("name", dir))?;
        let path = dir.join(hex(&name));
        DirBuilder::new().mode(0o700).create(&path).map_err(at("create", &path))?;
        let made = || -> io::Result<Staging> {
            let lock = open_lock(&path.join("lock"))?;
            lock.lock()?;
            DirBuilder::new().mode(0o700).create(path.join(ROOT))?;
            Ok(Staging { path: path.clone(), place: path.clone(), lock, kept: false })
        };
        made().map_err(|error| {
            let _ = remove_tree(&path);
            at("create", &path)(error)
        })
    }

    /// Where the image's files go.
    pub(super) fn root(&self) -> PathBuf {
        self.path.join(ROOT)
    }

    /// A place for what is not part of the image.
    pub(super) fn aside(&self, name: &str) -> PathBuf {
        debug_assert!(![ROOT, ABOUT, "lock"].contains(&name));
        self.path.join(name)
    }

    /// What was unpacked turns out to be something that images are in: it moves aside, and the root is empty again.
    pub(super) fn set_root_aside(&self, name: &str) -> Result<PathBuf, ImageError> {
        let (root, aside) = (self.root(), self.aside(name));
        fs::rename(&root, &aside).map_err(at("rename", &root))?;
        DirBuilder::new().mode(0o700).create(&root).map_err(at("create", &root))?;
        Ok(aside)
    }

    /// Everything is there: what is not part of the image goes, and the rest reaches the disk.
    pub(super) fn complete(&self, about: &About) -> Result<(), ImageError> {
        for entry in fs::read_dir(&self.path).map_err(at("list", &self.path))? {
            let entry = entry.map_err(at("list", &self.path))?;
            if ![ROOT, "lock"].iter().any(|kept| entry.file_name() == *kept) {
                remove_tree(&entry.path()).map_err(at("remove", &entry.path()))?;
            }
        }
        let path = self.path.join(ABOUT);
        let text = serde_json::to_vec_pretty(about).unwrap_or_default();
        File::create(&path).and_then(|mut file| file.write_all(&text)).map_err(at("write", &path))?;
        // As in any image, everybody may look around; the directories above are closed.
        fs::set_permissions(self.root(), fs::Permissions::from_mode(0o755))
            .map_err(at("open", &self.root()))?;
        rustix::fs::syncfs(&self.lock).map_err(|error| at("sync", &self.path)(error.into()))
    }

    /// Renames it to where images are. It is still locked, so nobody uses it before it is kept. Under the store's lock.
    pub(super) fn publish(&mut self, tree: &Path) -> Result<(), ImageError> {
        fs::rename(&self.path, tree).map_err(at("rename", &self.path))?;
        self.path = tree.to_owned();
        match tree.parent() {
            Some(trees) => sync_directory(trees).map_err(at("sync", trees)),
            None => Ok(()),
        }
    }

    /// From here on, it can be used.
    pub(super) fn keep(mut self) {
        self.kept = true;
        // Not only closed: a process that is being started at this moment has a copy of the lock until it executes something.
        let _ = self.lock.unlock();
    }

    /// The other way: a tree that nobody uses is on its way out. Under the store's lock.
    pub(super) fn take_out(dir: &Path, tree: &Path, lock: File) -> Result<Staging, ImageError> {
        let name: [u8; 16] = sys::random().map_err(at("name", dir))?;
        let path = dir.join(hex(&name));
        fs::rename(tree, &path).map_err(at("rename", tree))?;
        Ok(Staging { place: path.clone(), path, lock, kept: false })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Never removed bit by bit where images are: somebody could find half of one.
        if self.path != self.place {
            let _ = fs::rename(&self.path, &self.place);
        }
        let _ = remove_tree(&self.place);
    }
}

/// Removes what nobody makes any more. Under the store's lock.
pub(super) fn sweep(dir: &Path) -> Result<(), ImageError> {
    for entry in fs::read_dir(dir).map_err(at("list", dir))? {
        let path = entry.map_err(at("list", dir))?.path();
        let held = match open_lock_of(&path) {
            Some(lock) => match lock.try_lock() {
                Ok(()) => false,
                Err(TryLockError::WouldBlock) => true,
                Err(TryLockError::Error(error)) => return Err(at("lock", &path)(error)),
            },
            // It was never locked, or its lock was the first thing that was removed of it.
            None => false,
        };
        if !held {
            remove_tree(&path).map_err(at("remove", &path))?;
        }
    }
    Ok(())
}

fn open_lock_of(path: &Path) -> Option<File> {
    fs::OpenOptions::new().read(true).write(true).open(path.join("lock")).ok()
}
