//! Images as disks: made once per image, read-only, shared by all machines.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use casemate_core::evidence::hex;
use casemate_core::request::ImageDigest;
use rustix::fs::{Mode, OFlags, openat};

use super::erofs;
use crate::sys;
use crate::wall::WallError;

pub(super) struct Disks {
    directory: PathBuf,
    /// Whoever makes one keeps others from making the same.
    making: Mutex<HashMap<ImageDigest, Arc<tokio::sync::Mutex<()>>>>,
}

impl Disks {
    pub(super) fn of(home: &Path) -> Disks {
        Disks { directory: home.join("microvm/disks"), making: Mutex::default() }
    }

    /// The disk of an image, whose files are in `root`.
    pub(super) async fn of_image(
        &self,
        image: &ImageDigest,
        root: BorrowedFd<'_>,
    ) -> Result<OwnedFd, WallError> {
        let failed =
            |error: io::Error| WallError::Failed(format!("cannot make a disk of the image: {error}"));
        let path = self.directory.join(format!("{}.erofs", image.to_string().replace(':', "-")));
        if let Some(disk) = open(&path).map_err(failed)? {
            return Ok(disk);
        }
        let making =
            self.making.lock().unwrap_or_else(PoisonError::into_inner).entry(*image).or_default().clone();
        let _guard = making.lock().await;
        if let Some(disk) = open(&path).map_err(failed)? {
            return Ok(disk);
        }
        // The store's descriptor only says which directory it is.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(root, ".", flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let directory = self.directory.clone();
        let made = tokio::task::spawn_blocking(move || make(&directory, &path, &root));
        made.await.map_err(|error| WallError::Failed(error.to_string()))?.map_err(failed)
    }
}

fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whole or not at all.
fn make(directory: &Path, path: &Path, root: &OwnedFd) -> io::Result<OwnedFd> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let fresh = path.with_extension(hex(&sys::random::<8>()?));
    // QEMU gets it as a descriptor, and asks again who may read it.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&fresh)?;
    let made = erofs::write(root.as_fd(), &file)
        .and_then(|_| file.sync_all())
        .and_then(|()| fs::rename(&fresh, path))
        .and_then(|()| Ok(File::open(path)?.into()));
    if made.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    made
}
