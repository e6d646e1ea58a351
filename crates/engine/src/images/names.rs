//! Names of images. The list is small, and replaced as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use casemate_core::image::ImageDigest;
use serde::{Deserialize, Serialize};

use super::error::{ImageError, at};

const FILE: &str = "names.json";
/// Written, and not in force yet. Only whoever holds the store's lock does that.
const NEXT: &str = "names.json.next";

#[derive(Debug, Clone, Default)]
pub(super) struct Names(BTreeMap<String, ImageDigest>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    names: BTreeMap<String, String>,
}

const VERSION: u32 = 1;

impl Names {
    pub(super) fn read(images: &Path) -> Result<Names, ImageError> {
        let path = images.join(FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Names::default()),
            text => text.map_err(at("read", &path))?,
        };
        let wrong = |why: String| ImageError::Document { what: path.display().to_string(), why };
        let stored: Stored = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if stored.version != VERSION {
            return Err(wrong(format!("it was written by another version ({})", stored.version)));
        }
        let names = stored.names.into_iter().map(|(name, digest)| Ok((name, digest.parse()?)));
        Ok(Names(names.collect::<Result<_, ImageError>>()?))
    }

    pub(super) fn get(&self, name: &str) -> Option<ImageDigest> {
        self.0.get(name).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, ImageDigest)> {
        self.0.iter().map(|(name, digest)| (name.as_str(), *digest))
    }

    /// The names of one image.
    pub(super) fn of(&self, digest: ImageDigest) -> impl Iterator<Item = &str> {
        self.iter().filter(move |(_, of)| *of == digest).map(|(name, _)| name)
    }

    pub(super) fn with(&self, name: &str, digest: ImageDigest) -> Names {
        let mut names = self.clone();
        names.0.insert(name.to_owned(), digest);
        names
    }

    pub(super) fn without(&self, mut is_gone: impl FnMut(&str, ImageDigest) -> bool) -> Names {
        let mut names = self.clone();
        names.0.retain(|name, digest| !is_gone(name, *digest));
        names
    }

    /// Writes the list beside the one in force. Under the store's lock.
    pub(super) fn prepare(&self, images: &Path) -> Result<Prepared, ImageError> {
        let path = images.join(NEXT);
        let names = self.iter().map(|(name, digest)| (name.to_owned(), digest.to_string())).collect();
        let text = serde_json::to_vec_pretty(&Stored { version: VERSION, names }).unwrap_or_default();
        let write = || {
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        let prepared = Prepared { images: images.to_owned() };
        write().map_err(at("write", &path))?;
        Ok(prepared)
    }
}

/// A list that is complete, on disk, and not in force. Dropped, it never will be.
pub(super) struct Prepared {
    images: PathBuf,
}

impl Prepared {
    pub(super) fn commit(self) -> Result<(), ImageError> {
        let (from, to) = (self.images.join(NEXT), self.images.join(FILE));
        fs::rename(&from, &to).map_err(at("replace", &to))?;
        // It is in force. Should the disk not keep that, the list before is still whole.
        let _ = sync_directory(&self.images);
        Ok(())
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.images.join(NEXT));
    }
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}
