//! The image store: trees by digest, shared read-only by every wall and every cell.
//!
//! ```text
//! images/lock                  held while names or trees change
//! images/names.json            names, and the digests that they stand for
//! images/trees/HEX/root/       one image, flattened
//!                 /image.json  where it came from
//!                 /lock        shared by whoever uses the image, exclusive for whoever removes it
//! images/staging/ID/           one image that is being made, or removed; its lock is held for as long
//! ```
//! Nothing is ever changed in place. An image is made in the staging area, verified, and renamed to where it belongs, its lock with
//! it; a name is moved by renaming a new list over the old one. What a dead process has left in the staging area is removed by
//! whoever comes next: it is known by its lock, which nobody holds any more.

mod archive;
mod error;
mod layout;
mod list;
mod manifest;
mod names;
mod pull;
mod staging;
mod survey;
mod unpacker;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use casemate_core::image::{ImageDigest, ImageRef};
use casemate_core::outcome::Refusal;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::home::{open_lock, private_directory};
pub use error::ImageError;
use error::at;
pub use list::{ImageInfo, Removed};
use names::Names;
pub use pull::{Credentials, Remote};
use staging::Staging;

/// What one image may hold in files, unless its importer allows more or less.
pub const DEFAULT_SIZE_LIMIT: u64 = 8 << 30;
/// Files, directories and links of one image.
pub const MAX_ENTRIES: u64 = 500_000;

/// The store of one home.
#[derive(Debug, Clone)]
pub struct Images {
    dir: PathBuf,
}

/// An image in use. For as long as it is, nobody removes it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) dir: OwnedFd,
    lock: File,
}

/// Not only closed: a process that is being started at this moment has a copy of the lock until it executes something.
impl Drop for Stored {
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

/// How an image gets in.
#[derive(Debug, Clone)]
pub struct Import {
    pub name: Option<String>,
    /// Of all its files together.
    pub size_limit: u64,
    /// Where it comes from, for people.
    pub source: String,
}

/// Where an image comes from.
pub enum Origin {
    /// A tar, compressed or not: of a root file system, of `docker save`, or of an OCI layout.
    Stream(Box<dyn Read + Send>),
    /// A directory with an OCI layout in it.
    Layout(PathBuf),
}

/// What became of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    pub digest: ImageDigest,
    /// It was in the store already.
    pub known: bool,
    /// What the name stood for before, if that has no other name now.
    pub unnamed: Option<ImageDigest>,
}

/// Hears how far things have come.
pub trait Progress {
    /// Something else begins; of how many bytes, if that is known.
    fn begin(&mut self, what: &str, bytes: Option<u64>);
    /// So many bytes more.
    fn advance(&mut self, bytes: u64);
}

/// What the store knows about an image besides its files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    /// Seconds since 1970.
    created: u64,
    source: String,
    format: String,
    bytes: u64,
    entries: u64,
}

impl Images {
    /// The store below `home`. Nothing is made or looked at yet.
    pub fn of(home: &Path) -> Images {
        Images { dir: home.join("images") }
    }

    /// Takes in an image. The store changes at the very end, or not at all.
    pub fn import(
        &self,
        origin: Origin,
        import: &Import,
        progress: &mut dyn Progress,
    ) -> Result<Imported, ImageError> {
        if let Some(name) = &import.name {
            casemate_core::image::check_image_name(name)?;
        }
        let staging = self.stage()?;
        let taken = match origin {
            Origin::Stream(stream) => archive::take(&staging, stream, import.size_limit, progress)?,
            Origin::Layout(path) => archive::take_layout(&staging, &path, import.size_limit, progress)?,
        };
        self.publish(staging, &taken, import)
    }

    /// What a request calls by a name, or by a digest or the beginning of one.
    pub fn find(&self, asked: &str) -> Result<ImageRef, Refusal> {
        let digest = list::find(self, asked)?;
        let is_name = casemate_core::image::check_image_name(asked).is_ok();
        let name = if is_name { asked.to_owned() } else { digest.to_string() };
        Ok(ImageRef::Stored { name, digest })
    }

    /// An image for a cell, if it is one from the store.
    pub(crate) fn of_request(&self, image: &ImageRef) -> Result<Option<Stored>, Refusal> {
        let ImageRef::Stored { digest, .. } = image else { return Ok(None) };
        let gone = || {
            Refusal::new(
                format!("the image {} is not in the store", image.label()),
                "`casemate image ls` lists what is there",
            )
        };
        let failed = |error: io::Error| {
            Refusal::new(
                format!("the image {} cannot be used: {error}", image.label()),
                "the images lie under CASEMATE_HOME and must be readable",
            )
        };
        self.hold(*digest).map_err(failed)?.ok_or_else(gone).map(Some)
    }

    /// Nothing if there is no such image, or somebody is about to remove it.
    fn hold(&self, digest: ImageDigest) -> io::Result<Option<Stored>> {
        let tree = self.tree(digest);
        let lock = match File::open(tree.join("lock")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            lock => lock?,
        };
        match lock.try_lock_shared() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        // Between opening and locking, it may have been removed, and another put in its place.
        let same = |now: fs::Metadata, then: fs::Metadata| (now.dev(), now.ino()) == (then.dev(), then.ino());
        if !fs::metadata(tree.join("lock")).is_ok_and(|now| lock.metadata().is_ok_and(|then| same(now, then)))
        {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(tree.join("root"), flags, Mode::empty())?;
        Ok(Some(Stored { dir, lock }))
    }

    /// Removes what dead processes have left in the staging area.
    pub fn sweep(&self) -> Result<(), ImageError> {
        // Most homes have none.
        let staging = self.staging();
        if fs::read_dir(&staging).is_ok_and(|mut entries| entries.next().is_some()) {
            let _guard = self.lock()?;
            staging::sweep(&staging)?;
        }
        Ok(())
    }

    fn stage(&self) -> Result<Staging, ImageError> {
        for dir in [&self.dir, &self.staging(), &self.dir.join("trees")] {
            private_directory(dir).map_err(at("create", dir))?;
        }
        self.sweep()?;
        let _guard = self.lock()?;
        Staging::new(&self.staging())
    }

    /// Renames a complete image to where it belongs, and gives it its name.
    fn publish(
        &self,
        staging: Staging,
        taken: &archive::Taken,
        import: &Import,
    ) -> Result<Imported, ImageError> {
        let surveyed = survey::survey(&staging.root(), import.size_limit)?;
        let about = About {
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            source: import.source.clone(),
            format: taken.format.into(),
            bytes: surveyed.bytes,
            entries: surveyed.entries,
        };
        staging.complete(&about)?;
        let _guard = self.lock()?;
        // Gone before the lock is, if something goes wrong.
        let mut staging = staging;
        let digest = taken.digest;
        let tree = self.tree(digest);
        let before = Names::read(&self.dir)?;
        let after = match &import.name {
            Some(name) => before.with(name, digest),
            None => before.clone(),
        };
        // Whatever takes room is written before anything changes.
        let names = after.prepare(&self.dir)?;
        let known = tree.exists();
        if !known {
            staging.publish(&tree)?;
        }
        names.commit()?;
        if !known {
            staging.keep();
        }
        let moved = import.name.as_ref().and_then(|name| before.get(name)).filter(|moved| *moved != digest);
        let unnamed = moved.filter(|moved| after.of(*moved).next().is_none());
        Ok(Imported { digest, known, unnamed })
    }

    fn lock(&self) -> Result<File, ImageError> {
        let path = self.dir.join("lock");
        let file = open_lock(&path).map_err(at("open", &path))?;
        file.lock().map_err(at("lock", &path))?;
        Ok(file)
    }

    fn staging(&self) -> PathBuf {
        self.dir.join("staging")
    }

    fn tree(&self, digest: ImageDigest) -> PathBuf {
        self.dir.join("trees").join(digest.hex())
    }
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Stream(_) => f.write_str("Stream"),
            Origin::Layout(path) => f.debug_tuple("Layout").field(path).finish(),
        }
    }
}
