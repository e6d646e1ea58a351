//! What images say about themselves: OCI's and Docker's documents, as far as their files depend on it.
//!
//! Pure: bytes in, decisions out. How a program was meant to be started (entry point, user, environment) is not looked at, since a
//! request says that itself.

use casemate_core::image::ImageDigest;
use serde::Deserialize;

use super::error::ImageError;
use super::layout::parse;
use super::unpacker::Compression;

/// Docker allows 127.
const MAX_LAYERS: usize = 128;

const INDEX: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFEST: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const CONFIG: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// What can be asked of a registry.
pub(super) const ACCEPTED: [&str; 4] = [MANIFEST[0], MANIFEST[1], INDEX[0], INDEX[1]];

/// Something by its digest.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Descriptor {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
    pub(super) size: u64,
    platform: Option<Platform>,
}

impl Descriptor {
    pub(super) fn digest(&self) -> Result<ImageDigest, ImageError> {
        Ok(self.digest.parse()?)
    }
}

#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
struct Platform {
    architecture: String,
    os: String,
}

impl Platform {
    fn ours() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Platform { architecture: architecture.into(), os: "linux".into() }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os.escape_debug(), self.architecture.escape_debug())
    }
}

/// What stands behind a digest that somebody asked for.
#[derive(Debug)]
pub(super) enum Document {
    /// Says where there is one for each platform; this is the one for ours.
    Index(Descriptor),
    Manifest(Manifest),
}

/// The parts of one image.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Manifest {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    #[serde(rename = "mediaType")]
    media_type: Option<String>,
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Index {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    #[serde(rename = "mediaType")]
    media_type: Option<String>,
    manifests: Vec<Descriptor>,
}

/// Reads what has this media type.
pub(super) fn read(media_type: &str, bytes: &[u8]) -> Result<Document, ImageError> {
    if INDEX.contains(&media_type) {
        return choose(bytes).map(Document::Index);
    }
    if !MANIFEST.contains(&media_type) {
        return Err(ImageError::MediaType { what: "the image", found: shown(media_type) });
    }
    let manifest: Manifest = parse("the manifest", bytes)?;
    agrees("the manifest", manifest.schema_version, manifest.media_type.as_deref(), media_type)?;
    known("the configuration", &manifest.config.media_type, &CONFIG)?;
    let count = manifest.layers.len();
    if count == 0 || count > MAX_LAYERS {
        return Err(nonsense(
            "the manifest",
            format!("it has {count} layers, and 1 to {MAX_LAYERS} are possible"),
        ));
    }
    manifest.layers.iter().try_for_each(|layer| layer.compression().map(drop))?;
    Ok(Document::Manifest(manifest))
}

/// What a document says that it is; some say it only by what they hold.
pub(super) fn media_type_of(bytes: &[u8]) -> Result<&'static str, ImageError> {
    #[derive(Deserialize)]
    struct Any {
        #[serde(rename = "mediaType")]
        media_type: Option<String>,
        manifests: Option<serde::de::IgnoredAny>,
        layers: Option<serde::de::IgnoredAny>,
    }
    let any: Any = parse("the manifest", bytes)?;
    match (any.media_type, any.manifests, any.layers) {
        (Some(told), ..) => ACCEPTED
            .into_iter()
            .find(|known| *known == told)
            .ok_or_else(|| ImageError::MediaType { what: "the image", found: shown(&told) }),
        (None, Some(_), None) => Ok(INDEX[0]),
        (None, None, Some(_)) => Ok(MANIFEST[0]),
        _ => Err(nonsense("the manifest", "it is neither a manifest nor an index".into())),
    }
}

/// The one image for this machine that an index names. An index without platforms may name just one.
pub(super) fn choose(bytes: &[u8]) -> Result<Descriptor, ImageError> {
    let index: Index = parse("the index", bytes)?;
    let told = index.media_type.as_deref().unwrap_or(INDEX[0]);
    known("the index", told, &INDEX)?;
    agrees("the index", index.schema_version, Some(told), told)?;
    let ours = Platform::ours();
    let fits = |one: &&Descriptor| one.platform.as_ref().is_none_or(|platform| *platform == ours);
    let fitting: Vec<&Descriptor> = index.manifests.iter().filter(fits).collect();
    match fitting[..] {
        [one] => Ok(one.clone()),
        [] if index.manifests.is_empty() => Err(ImageError::Empty),
        [] => {
            let others: Vec<String> = index
                .manifests
                .iter()
                .filter_map(|one| one.platform.as_ref())
                .map(Platform::to_string)
                .collect();
            Err(ImageError::Platform { wanted: ours.to_string(), found: others.join(", ") })
        }
        _ => Err(ImageError::Several(fitting.len())),
    }
}

impl Descriptor {
    pub(super) fn media_type(&self) -> &str {
        &self.media_type
    }

    /// Of a layer.
    pub(super) fn compression(&self) -> Result<Compression, ImageError> {
        match self.media_type.as_str() {
            "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
                Ok(Compression::Plain)
            }
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Ok(Compression::Gzip),
            "application/vnd.oci.image.layer.v1.tar+zstd" => Ok(Compression::Zstd),
            other => Err(ImageError::MediaType { what: "a layer", found: shown(other) }),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Config {
    architecture: String,
    os: String,
    rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    #[serde(rename = "type")]
    kind: String,
    diff_ids: Vec<String>,
}

/// The digests of the expanded layers, lowest first, of an image for this machine.
pub(super) fn diff_ids(config: &[u8], layers: usize) -> Result<Vec<ImageDigest>, ImageError> {
    let config: Config = parse("the configuration", config)?;
    let platform = Platform { architecture: config.architecture, os: config.os };
    if platform != Platform::ours() {
        return Err(ImageError::Platform {
            wanted: Platform::ours().to_string(),
            found: platform.to_string(),
        });
    }
    if config.rootfs.kind != "layers" || config.rootfs.diff_ids.len() != layers || layers > MAX_LAYERS {
        let why = format!("it speaks of {} layers, and there are {layers}", config.rootfs.diff_ids.len());
        return Err(nonsense("the configuration", why));
    }
    config.rootfs.diff_ids.iter().map(|digest| Ok(digest.parse()?)).collect()
}

/// What `docker save` says about one image.
#[derive(Debug, Deserialize)]
pub(super) struct DockerImage {
    #[serde(rename = "Config")]
    pub(super) config: String,
    #[serde(rename = "Layers")]
    pub(super) layers: Vec<String>,
}

/// `manifest.json`, of which every image of an archive is a part.
pub(super) fn docker_image(bytes: &[u8]) -> Result<DockerImage, ImageError> {
    let mut images: Vec<DockerImage> = parse("manifest.json", bytes)?;
    match (images.pop(), images.len()) {
        (None, _) => Err(ImageError::Empty),
        (Some(image), 0) if image.layers.is_empty() => Err(ImageError::Empty),
        (Some(image), 0) => Ok(image),
        (Some(_), others) => Err(ImageError::Several(others + 1)),
    }
}

impl DockerImage {
    /// The digest that the name of the configuration promises, in either of the two ways that Docker has had.
    pub(super) fn promised(&self) -> Result<ImageDigest, ImageError> {
        let digits = self.config.strip_suffix(".json").or_else(|| self.config.strip_prefix("blobs/sha256/"));
        let digits = digits.ok_or_else(|| {
            nonsense("manifest.json", format!("its configuration is called {:?}", shown(&self.config)))
        })?;
        Ok(format!("sha256:{digits}").parse()?)
    }
}

/// `oci-layout`, the file by which a layout is known.
pub(super) fn check_layout(bytes: &[u8]) -> Result<(), ImageError> {
    #[derive(Deserialize)]
    struct Marker {
        #[serde(rename = "imageLayoutVersion")]
        version: String,
    }
    let marker: Marker = parse("oci-layout", bytes)?;
    match marker.version.as_str() {
        "1.0.0" => Ok(()),
        other => Err(nonsense("oci-layout", format!("its version is {:?}", shown(other)))),
    }
}

fn known(what: &'static str, found: &str, known: &[&str]) -> Result<(), ImageError> {
    match known.contains(&found) {
        true => Ok(()),
        false => Err(ImageError::MediaType { what, found: shown(found) }),
    }
}

/// A document that says what it is must say what it was announced as.
fn agrees(what: &'static str, version: u32, told: Option<&str>, announced: &str) -> Result<(), ImageError> {
    if version != 2 {
        return Err(nonsense(what, format!("its schema is version {version}")));
    }
    match told.is_none_or(|told| told == announced) {
        true => Ok(()),
        false => Err(ImageError::MediaType { what, found: shown(told.unwrap_or_default()) }),
    }
}

fn nonsense(what: &str, why: String) -> ImageError {
    ImageError::Document { what: what.into(), why }
}

/// Of hostile words, as many as say something.
fn shown(words: &str) -> String {
    words.chars().take(120).collect()
}
