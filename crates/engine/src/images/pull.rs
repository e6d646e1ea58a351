//! Gets images from registries. What a registry sends is believed by its digest, and not before.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};
use std::time::Duration;

use casemate_core::image::ImageDigest;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use tokio::io::AsyncWrite;

use super::archive::{Taken, take_manifest};
use super::error::{ImageError, at};
use super::layout::{Layout, MAX_DOCUMENT_BYTES, blob_name, check_digest};
use super::manifest::{self, ACCEPTED, Document, Manifest};
use super::unpacker::Unpacker;
use super::{Images, Import, Imported, Progress};

/// Who asks a registry for an image.
#[derive(Clone)]
pub enum Credentials {
    Anonymous,
    User { name: String, password: String },
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credentials::Anonymous => f.write_str("Anonymous"),
            Credentials::User { name, .. } => write!(f, "User({name:?})"),
        }
    }
}

const CONNECT: Duration = Duration::from_secs(15);
/// Without a single byte.
const SILENCE: Duration = Duration::from_secs(60);

/// What is asked for, and where.
#[derive(Debug, Clone)]
pub struct Remote {
    reference: Reference,
    digest: Option<ImageDigest>,
}

impl Remote {
    /// `HOST/NAME:TAG`, or `HOST/NAME@sha256:…`, which is pinned.
    pub fn parse(text: &str) -> Result<Remote, ImageError> {
        let wrong = |why: String| ImageError::Reference { asked: text.to_owned(), why };
        let reference: Reference = text.parse().map_err(|error| wrong(format!("{error}")))?;
        let digest = reference.digest().map(str::parse).transpose()?;
        Ok(Remote { reference, digest })
    }

    /// Whose credentials are needed.
    pub fn registry(&self) -> &str {
        self.reference.registry()
    }

    /// What it is called, without its digest.
    pub fn name(&self) -> String {
        let (registry, repository) = (self.reference.registry(), self.reference.repository());
        match self.reference.tag() {
            Some(tag) => format!("{registry}/{repository}:{tag}"),
            None => format!("{registry}/{repository}"),
        }
    }

    /// Without encryption only to this machine itself.
    fn protocol(&self) -> ClientProtocol {
        let registry = self.reference.resolve_registry();
        let host = match registry.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|c| c.is_ascii_digit()) => host,
            _ => registry,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_here = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        if is_here { ClientProtocol::Http } else { ClientProtocol::Https }
    }
}

impl Images {
    /// Gets an image from a registry. The store changes at the very end, or not at all.
    pub async fn pull(
        &self,
        remote: &Remote,
        credentials: &Credentials,
        import: &Import,
        progress: &mut dyn Progress,
    ) -> Result<Imported, ImageError> {
        if let Some(name) = &import.name {
            casemate_core::image::check_image_name(name)?;
        }
        let staging = self.stage()?;
        let place = staging.aside("pulled");
        let puller = Puller::new(remote, credentials, &place)?;
        progress.begin(&format!("asking for {}", remote.reference), None);
        let (digest, manifest) = puller.manifest(remote).await?;
        puller.blobs(&manifest, import.size_limit, progress).await?;
        let layout = Layout::open(&place)?;
        take_manifest(&staging, &layout, &manifest, &Unpacker::new()?, import.size_limit, progress)?;
        self.publish(staging, &Taken { digest, format: "oci" }, import)
    }
}

struct Puller<'a> {
    client: Client,
    auth: RegistryAuth,
    reference: &'a Reference,
    place: &'a Path,
}

impl<'a> Puller<'a> {
    fn new(remote: &'a Remote, credentials: &Credentials, place: &'a Path) -> Result<Puller<'a>, ImageError> {
        // The library has more than one to choose from, and chooses none by itself.
        static CRYPTOGRAPHY: Once = Once::new();
        CRYPTOGRAPHY.call_once(|| {
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let config = ClientConfig {
            protocol: remote.protocol(),
            connect_timeout: Some(CONNECT),
            read_timeout: Some(SILENCE),
            user_agent: concat!("casemate/", env!("CARGO_PKG_VERSION")),
            platform_resolver: None,
            ..ClientConfig::default()
        };
        let reference = &remote.reference;
        let client = Client::try_from(config).map_err(|error| told(reference, error))?;
        let auth = match credentials {
            Credentials::Anonymous => RegistryAuth::Anonymous,
            Credentials::User { name, password } => RegistryAuth::Basic(name.clone(), password.clone()),
        };
        for dir in [place.to_owned(), place.join("blobs"), place.join("blobs/sha256")] {
            DirBuilder::new().mode(0o700).create(&dir).map_err(at("create", &dir))?;
        }
        Ok(Puller { client, auth, reference, place })
    }

    /// The manifest of the image for this machine, and its digest.
    async fn manifest(&self, remote: &Remote) -> Result<(ImageDigest, Manifest), ImageError> {
        let (mut reference, mut wanted) = (remote.reference.clone(), remote.digest);
        for _ in 0..2 {
            let asked = self.client.pull_manifest_raw(&reference, &self.auth, &ACCEPTED).await;
            let (bytes, _) = asked.map_err(|error| told(&reference, error))?;
            if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
                let why = format!("it has {} bytes, and {MAX_DOCUMENT_BYTES} are the most", bytes.len());
                return Err(ImageError::Document { what: "the manifest".into(), why });
            }
            // The library has looked as well; this is what the record will say.
            let digest = match wanted {
                Some(wanted) => check_digest("the manifest", wanted, &bytes).map(|()| wanted)?,
                None => digest_of(&bytes),
            };
            match manifest::read(manifest::media_type_of(&bytes)?, &bytes)? {
                Document::Manifest(manifest) => return Ok((digest, manifest)),
                Document::Index(chosen) => {
                    let digest = chosen.digest()?;
                    (reference, wanted) = (reference.clone_with_digest(digest.to_string()), Some(digest));
                }
            }
        }
        Err(ImageError::Document { what: "the index".into(), why: "it names an index".into() })
    }

    /// The configuration and the layers, as files of an OCI layout. Their digests are checked again when they are read.
    async fn blobs(
        &self,
        manifest: &Manifest,
        size_limit: u64,
        progress: &mut dyn Progress,
    ) -> Result<(), ImageError> {
        let parts: Vec<_> = std::iter::once(&manifest.config).chain(&manifest.layers).collect();
        let total = parts.iter().fold(0u64, |total, part| total.saturating_add(part.size));
        if total > size_limit {
            return Err(ImageError::Large { bytes: total, limit: size_limit });
        }
        progress.begin(&format!("pulling {}", self.reference), Some(total));
        for part in parts {
            let digest = part.digest()?;
            let path = self.place.join(blob_name(digest));
            // Layers may be the same.
            if path.exists() {
                continue;
            }
            let mut sink = Sink::new(&path, part.size, progress)?;
            let name = digest.to_string();
            let pulled = self.client.pull_blob(self.reference, name.as_str(), &mut sink).await;
            match (sink.trouble.take(), pulled) {
                (Some(trouble), _) => return Err(trouble),
                (None, pulled) => pulled.map_err(|error| told(self.reference, error))?,
            }
        }
        Ok(())
    }
}

fn digest_of(bytes: &[u8]) -> ImageDigest {
    use sha2::{Digest, Sha256};
    ImageDigest(Sha256::digest(bytes).into())
}

/// A file that takes as many bytes as it was promised.
struct Sink<'a> {
    file: File,
    path: PathBuf,
    promised: u64,
    taken: u64,
    progress: &'a mut dyn Progress,
    /// Why it takes no more.
    trouble: Option<ImageError>,
}

impl<'a> Sink<'a> {
    fn new(path: &Path, promised: u64, progress: &'a mut dyn Progress) -> Result<Sink<'a>, ImageError> {
        let file = File::create_new(path).map_err(at("create", path))?;
        Ok(Sink { file, path: path.to_owned(), promised, taken: 0, progress, trouble: None })
    }

    fn take(&mut self, bytes: &[u8]) -> Result<usize, ImageError> {
        self.taken += bytes.len() as u64;
        if self.taken > self.promised {
            let what = "a part of the image".to_owned();
            return Err(ImageError::Size { what, expected: self.promised, found: self.taken });
        }
        self.file.write_all(bytes).map_err(at("write", &self.path))?;
        self.progress.advance(bytes.len() as u64);
        Ok(bytes.len())
    }
}

impl AsyncWrite for Sink<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.take(bytes).map_err(|error| {
            self.trouble = Some(error);
            io::ErrorKind::Other.into()
        }))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What went wrong, in our words.
fn told(reference: &Reference, error: OciDistributionError) -> ImageError {
    let asked = reference.to_string();
    let (why, hint) = match &error {
        OciDistributionError::UnauthorizedError { .. } | OciDistributionError::AuthenticationFailure(_) => (
            "the registry does not let us".to_owned(),
            "check the name; for a private image, log in with `docker login`, or give --user and the password on standard input",
        ),
        OciDistributionError::ImageManifestNotFoundError(_) => {
            ("there is no such image".to_owned(), "check its name and its tag or digest")
        }
        OciDistributionError::RegistryError { envelope, .. } => {
            (format!("the registry says: {envelope}"), "check its name and its tag or digest")
        }
        OciDistributionError::DigestError(error) => (
            format!("what the registry sent is not what was asked for: {error}"),
            "it was changed on its way, or the registry lies: do not use it",
        ),
        OciDistributionError::RequestError(error) => {
            let mut words = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                words = cause.to_string();
                source = cause.source();
            }
            (
                words,
                "check the network, and that there is a registry at that address; only one on this machine may do without TLS",
            )
        }
        other => (other.to_string(), "check its name and its tag or digest"),
    };
    ImageError::Registry { asked, why, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_spoken_to_without_encryption() {
        for here in ["localhost:5000/x", "127.0.0.1:5000/x:1", "127.8.9.1/x", "[::1]:5000/x"] {
            let Ok(remote) = Remote::parse(here) else { continue };
            assert!(matches!(remote.protocol(), ClientProtocol::Http), "{here}");
        }
        for elsewhere in
            ["localhost.example.com/x", "registry.example.com:80/x", "10.0.0.1:5000/x", "debian:12"]
        {
            let remote = Remote::parse(elsewhere).unwrap();
            assert!(matches!(remote.protocol(), ClientProtocol::Https), "{elsewhere}");
        }
        assert!(matches!(Remote::parse("localhost:5000/x").unwrap().protocol(), ClientProtocol::Http));
    }

    #[test]
    fn a_reference_is_pinned_by_its_digest() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let remote = Remote::parse(&format!("localhost:5000/team/tool@{digest}")).unwrap();
        assert_eq!(remote.digest.map(|digest| digest.to_string()), Some(digest));
        assert_eq!(remote.name(), "localhost:5000/team/tool");
        assert_eq!(Remote::parse("localhost:5000/tool:1").unwrap().name(), "localhost:5000/tool:1");
        for bad in ["", "a b", "x@sha256:abc", "x@md5:abc"] {
            assert!(Remote::parse(bad).is_err(), "{bad}");
        }
    }
}
