//! From bytes to an image in the staging area: finds out what they are, and checks every digest on the way.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use casemate_core::image::ImageDigest;

use super::error::{ImageError, at};
use super::layout::{Layout, check_digest};
use super::manifest::{self, Document, Manifest};
use super::staging::Staging;
use super::unpacker::{Compression, Limits, Measured, Role, Unpacker};
use super::{MAX_ENTRIES, Progress};

/// An image that was unpacked.
pub(super) struct Taken {
    pub(super) digest: ImageDigest,
    pub(super) format: &'static str,
}

/// Enough to know any compression by.
const BEGINNING: u64 = 8;

/// An archive, whatever it is of.
pub(super) fn take(
    staging: &Staging,
    mut stream: Box<dyn Read + Send>,
    size_limit: u64,
    progress: &mut dyn Progress,
) -> Result<Taken, ImageError> {
    let unpacker = Unpacker::new()?;
    let mut beginning = Vec::new();
    let image = Path::new("the image");
    stream.by_ref().take(BEGINNING).read_to_end(&mut beginning).map_err(at("read", image))?;
    let compression = Compression::of(&beginning)?;
    let mut stream = io::Cursor::new(beginning).chain(stream);
    let limits = Limits { bytes: size_limit, entries: MAX_ENTRIES };
    progress.begin("unpacking", None);
    let unpacked =
        unpacker.unpack(&mut stream, compression, (Role::Whole, limits), &staging.root(), progress)?;
    match kind(&Layout::open(&staging.root())?)? {
        Kind::RootFs => Ok(Taken { digest: unpacked.plain.digest, format: "rootfs" }),
        Kind::Oci => {
            let layout = Layout::open(&staging.set_root_aside("archive")?)?;
            take_oci(staging, &layout, &unpacker, size_limit, progress)
        }
        Kind::Docker => {
            let layout = Layout::open(&staging.set_root_aside("archive")?)?;
            take_docker(staging, &layout, &unpacker, size_limit, progress)
        }
    }
}

/// A directory with an OCI layout in it.
pub(super) fn take_layout(
    staging: &Staging,
    path: &Path,
    size_limit: u64,
    progress: &mut dyn Progress,
) -> Result<Taken, ImageError> {
    let layout = Layout::open(path)?;
    if !layout.has("oci-layout") {
        return Err(ImageError::NotALayout(path.to_owned()));
    }
    take_oci(staging, &layout, &Unpacker::new()?, size_limit, progress)
}

enum Kind {
    RootFs,
    Oci,
    Docker,
}

/// What an archive holds, by the names at its top. If two answers are possible, none is given.
fn kind(top: &Layout) -> Result<Kind, ImageError> {
    let is_root = ["bin", "sbin", "usr", "lib", "etc"].iter().any(|name| top.has(name));
    match (top.has("oci-layout"), top.has("manifest.json"), is_root) {
        (false, false, _) => Ok(Kind::RootFs),
        (true, _, true) => Err(ImageError::Ambiguous("an OCI layout")),
        (_, true, true) => Err(ImageError::Ambiguous("an archive of Docker's")),
        // Docker's archives are both today, and then this says more.
        (true, _, false) => Ok(Kind::Oci),
        (false, true, false) => Ok(Kind::Docker),
    }
}

fn take_oci(
    staging: &Staging,
    layout: &Layout,
    unpacker: &Unpacker,
    size_limit: u64,
    progress: &mut dyn Progress,
) -> Result<Taken, ImageError> {
    let missing =
        |name: &str| ImageError::Document { what: "the layout".into(), why: format!("it has no {name}") };
    manifest::check_layout(&layout.named("oci-layout")?.ok_or_else(|| missing("oci-layout"))?)?;
    let index = layout.named("index.json")?.ok_or_else(|| missing("index.json"))?;
    let mut descriptor = manifest::choose(&index)?;
    // An index may name an index, but not for ever.
    for _ in 0..2 {
        let digest = descriptor.digest()?;
        let bytes = layout.document("the manifest", digest, descriptor.size)?;
        match manifest::read(descriptor.media_type(), &bytes)? {
            Document::Index(chosen) => descriptor = chosen,
            Document::Manifest(manifest) => {
                take_manifest(staging, layout, &manifest, unpacker, size_limit, progress)?;
                return Ok(Taken { digest, format: "oci" });
            }
        }
    }
    Err(ImageError::Document {
        what: "the index".into(),
        why: "it names an index that names an index".into(),
    })
}

/// The layers that a manifest names, one upon the other.
pub(super) fn take_manifest(
    staging: &Staging,
    layout: &Layout,
    manifest: &Manifest,
    unpacker: &Unpacker,
    size_limit: u64,
    progress: &mut dyn Progress,
) -> Result<(), ImageError> {
    let config = layout.document("the configuration", manifest.config.digest()?, manifest.config.size)?;
    let diff_ids = manifest::diff_ids(&config, manifest.layers.len())?;
    let mut layers = Layers { staging, unpacker, bytes: size_limit, entries: MAX_ENTRIES };
    for (number, (layer, diff_id)) in manifest.layers.iter().zip(diff_ids).enumerate() {
        let digest = layer.digest()?;
        let blob = layout.blob(digest)?;
        let what = format!("layer {}", number + 1);
        progress.begin(&format!("unpacking layer {} of {}", number + 1, manifest.layers.len()), None);
        // More than was promised is not even read.
        let mut bounded = blob.take(layer.size.saturating_add(1));
        let stored = layers.add(&what, &mut bounded, layer.compression()?, diff_id, progress);
        let stored = match stored {
            // What was damaged on its way is worth knowing, whatever it did to the unpacker.
            Err(error) => return Err(damaged(&what, layout, digest, layer.size).unwrap_or(error)),
            Ok(stored) => stored,
        };
        if stored.bytes != layer.size {
            return Err(ImageError::Size { what, expected: layer.size, found: stored.bytes });
        }
        if stored.digest != digest {
            return Err(ImageError::Digest { what, expected: digest, found: stored.digest });
        }
    }
    Ok(())
}

/// Why a layer could not be unpacked, if it is not the layer that was promised.
fn damaged(what: &str, layout: &Layout, expected: ImageDigest, size: u64) -> Option<ImageError> {
    let blob = layout.blob(expected).ok()?;
    let found = blob.metadata().ok()?.len();
    if found != size {
        return Some(ImageError::Size { what: what.into(), expected: size, found });
    }
    let found = digest_of(blob).ok()?;
    (found != expected).then(|| ImageError::Digest { what: what.into(), expected, found })
}

fn digest_of(mut file: File) -> io::Result<ImageDigest> {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(ImageDigest(hash.finalize().into())),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// What `docker save` wrote before it wrote OCI layouts: no manifest, and layers by their names.
fn take_docker(
    staging: &Staging,
    layout: &Layout,
    unpacker: &Unpacker,
    size_limit: u64,
    progress: &mut dyn Progress,
) -> Result<Taken, ImageError> {
    let missing = |name: &str| ImageError::Document {
        what: "manifest.json".into(),
        why: format!("it names {name:?}, which is not there"),
    };
    let named = layout.named("manifest.json")?.ok_or_else(|| missing("manifest.json"))?;
    let image = manifest::docker_image(&named)?;
    let digest = image.promised()?;
    let config = layout.named(&image.config)?.ok_or_else(|| missing(&image.config))?;
    check_digest("the configuration", digest, &config)?;
    let diff_ids = manifest::diff_ids(&config, image.layers.len())?;
    let mut layers = Layers { staging, unpacker, bytes: size_limit, entries: MAX_ENTRIES };
    for (number, (layer, diff_id)) in image.layers.iter().zip(diff_ids).enumerate() {
        let file = || layout.file(layer)?.ok_or_else(|| missing(layer));
        let mut beginning = Vec::new();
        file()?.take(BEGINNING).read_to_end(&mut beginning).map_err(at("read", Path::new(layer)))?;
        progress.begin(&format!("unpacking layer {} of {}", number + 1, image.layers.len()), None);
        let what = format!("layer {}", number + 1);
        layers.add(&what, &mut file()?, Compression::of(&beginning)?, diff_id, progress)?;
    }
    Ok(Taken { digest, format: "docker" })
}

/// Layers being unpacked, and what the next ones may still come to.
struct Layers<'a> {
    staging: &'a Staging,
    unpacker: &'a Unpacker,
    bytes: u64,
    entries: u64,
}

impl Layers<'_> {
    fn add(
        &mut self,
        what: &str,
        input: &mut (dyn Read + Send),
        compression: Compression,
        diff_id: ImageDigest,
        progress: &mut dyn Progress,
    ) -> Result<Measured, ImageError> {
        let limits = Limits { bytes: self.bytes, entries: self.entries };
        let root = self.staging.root();
        let unpacked = self.unpacker.unpack(input, compression, (Role::Layer, limits), &root, progress)?;
        if unpacked.plain.digest != diff_id {
            let what = format!("{what}, expanded,");
            return Err(ImageError::Digest { what, expected: diff_id, found: unpacked.plain.digest });
        }
        // What layers take away again has been there; so it counts.
        self.bytes = self.bytes.saturating_sub(unpacked.plain.bytes);
        self.entries = self.entries.saturating_sub(unpacked.entries);
        Ok(unpacked.stored)
    }
}
