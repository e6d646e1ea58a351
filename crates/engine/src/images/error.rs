//! What keeps an image out of the store, or in it.

use std::io;
use std::path::{Path, PathBuf};

use casemate_core::image::ImageDigest;
use casemate_core::outcome::Refusal;
use casemate_core::request::Invalid;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// By the unpacker, in its words.
    #[error("{reason}")]
    Archive { reason: String, hint: String },
    #[error("{what} has the digest {found}, and not {expected}")]
    Digest { what: String, expected: ImageDigest, found: ImageDigest },
    #[error("{what} has {found} bytes, and not {expected}")]
    Size { what: String, expected: u64, found: u64 },
    #[error("{what} has a media type that is not known: {found:?}")]
    MediaType { what: &'static str, found: String },
    #[error("{what} makes no sense: {why}")]
    Document { what: String, why: String },
    #[error("this is compressed with {0}, which casemate does not read")]
    Compression(&'static str),
    #[error("this could be a root file system or {0}, and it is not clear which")]
    Ambiguous(&'static str),
    #[error("there is nothing in it")]
    Empty,
    #[error("there are {0} images in it")]
    Several(usize),
    #[error("there is no image for {wanted} in it, only for {found}")]
    Platform { wanted: String, found: String },
    #[error("{} is not an OCI layout", .0.display())]
    NotALayout(PathBuf),
    /// Whoever unpacked it has done something that was not asked for.
    #[error("the unpacked image holds {0}")]
    Survey(String),
    #[error("cannot pull {asked}: {why}")]
    Registry { asked: String, why: String, hint: String },
    #[error("{asked:?} does not name an image of a registry: {why}")]
    Reference { asked: String, why: String },
    #[error("the image has {bytes} bytes, and {limit} are allowed")]
    Large { bytes: u64, limit: u64 },
    #[error("the image {0} is in use")]
    InUse(String),
    #[error("{}", .0.reason)]
    Refused(Refusal),
    #[error("cannot {action} {}", path.display())]
    Host {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the unpacker failed: {0}")]
    Unpacker(String),
}

impl ImageError {
    pub fn hint(&self) -> String {
        match self {
            ImageError::Archive { hint, .. } | ImageError::Registry { hint, .. } => hint.clone(),
            ImageError::Reference { .. } => {
                "write HOST/NAME:TAG, or HOST/NAME@sha256:DIGEST to have exactly that image".into()
            }
            ImageError::Large { .. } => "get a smaller image, or allow more with --size-limit".into(),
            ImageError::Refused(refusal) => refusal.hint.clone(),
            ImageError::Digest { .. } | ImageError::Size { .. } => {
                "it was changed or damaged on its way: get it again, and do not use this copy".into()
            }
            ImageError::MediaType { .. } => {
                "casemate takes images of Linux programs in the OCI and Docker formats, with plain, gzip or zstd layers"
                    .into()
            }
            ImageError::Document { .. } => {
                "make the image anew with a current `docker save` or `skopeo`".into()
            }
            ImageError::Compression(name) => format!("expand it first: un{name}, bunzip2 or the like"),
            ImageError::Ambiguous(_) => {
                "pack the root file system alone, without oci-layout and manifest.json at its top".into()
            }
            ImageError::Empty => "pack the content of the directory: tar -C ROOT -cf FILE .".into(),
            ImageError::Several(_) => "save one image at a time".into(),
            ImageError::Platform { .. } => "get the image for this machine".into(),
            ImageError::NotALayout(path) => format!(
                "to run in a directory as it is, use --image {0}/; to store it: tar -C {0} -c . | casemate image import - --name NAME",
                path.display()
            ),
            ImageError::Survey(_) => "the archive may attack whoever unpacks it: do not use it, and tell us".into(),
            ImageError::InUse(_) => "wait until the runs that use it have ended".into(),
            ImageError::Host { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space, or set CASEMATE_HOME to a larger disk".into()
            }
            ImageError::Host { .. } | ImageError::Unpacker(_) => {
                "the images lie under CASEMATE_HOME: it must be a local disk of yours".into()
            }
        }
    }
}

impl From<Refusal> for ImageError {
    fn from(refusal: Refusal) -> ImageError {
        ImageError::Refused(refusal)
    }
}

impl From<Invalid> for ImageError {
    fn from(invalid: Invalid) -> ImageError {
        ImageError::Refused(invalid.into())
    }
}

/// Names the file that something could not be done with.
pub(super) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Host { action, path, source }
}
