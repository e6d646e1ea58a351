//! A directory with blobs in it: an OCI layout, or what `docker save` makes. All of it may be hostile.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use casemate_core::image::ImageDigest;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::error::{ImageError, at};

/// A manifest, an index or a configuration. Registries refuse larger ones.
pub(super) const MAX_DOCUMENT_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Layout {
    dir: OwnedFd,
}

impl Layout {
    pub(super) fn open(path: &Path) -> Result<Layout, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| at("open", path)(error.into()))?;
        Ok(Layout { dir })
    }

    /// A regular file in the layout. `docker save` has links from one layer to another, which lead nowhere else.
    pub(super) fn file(&self, name: &str) -> Result<Option<File>, ImageError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(&self.dir, name, flags, Mode::empty(), within) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL | Errno::LOOP) => return Ok(None),
            opened => File::from(opened.map_err(|error| at("open", Path::new(name))(error.into()))?),
        };
        let is_file = file.metadata().map_err(at("look at", Path::new(name)))?.is_file();
        Ok(is_file.then_some(file))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// A blob by its digest, which is checked by whoever reads it.
    pub(super) fn blob(&self, digest: ImageDigest) -> Result<File, ImageError> {
        let missing = || ImageError::Document {
            what: "the image".into(),
            why: format!("its part {digest} is not there"),
        };
        self.file(&blob_name(digest))?.ok_or_else(missing)
    }

    /// A document by its digest, as it was when it got that digest.
    pub(super) fn document(&self, what: &str, digest: ImageDigest, size: u64) -> Result<Vec<u8>, ImageError> {
        let bytes = read_bounded(what, self.blob(digest)?)?;
        let found = bytes.len() as u64;
        if found != size {
            return Err(ImageError::Size { what: what.into(), expected: size, found });
        }
        check_digest(what, digest, &bytes)?;
        Ok(bytes)
    }

    /// A document by its name.
    pub(super) fn named(&self, name: &str) -> Result<Option<Vec<u8>>, ImageError> {
        self.file(name)?.map(|file| read_bounded(name, file)).transpose()
    }
}

pub(super) fn blob_name(digest: ImageDigest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

pub(super) fn check_digest(what: &str, expected: ImageDigest, bytes: &[u8]) -> Result<(), ImageError> {
    let found = ImageDigest(Sha256::digest(bytes).into());
    match found == expected {
        true => Ok(()),
        false => Err(ImageError::Digest { what: what.into(), expected, found }),
    }
}

pub(super) fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ImageError::Document { what: what.into(), why: error.to_string() })
}

fn read_bounded(what: &str, file: File) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    file.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes).map_err(at("read", Path::new(what)))?;
    if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
        let why = format!("it has more than {MAX_DOCUMENT_BYTES} bytes");
        return Err(ImageError::Document { what: what.into(), why });
    }
    Ok(bytes)
}
