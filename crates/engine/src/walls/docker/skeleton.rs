//! The root of a container before anything is bound into it: the guest, places to mount on, links, and for the `host` image a few
//! files in `/etc`. An image for the Docker Engine, made here byte by byte; the same content always has the same digest.

use std::io;

use casemate_core::evidence::hex;
use casemate_wire::image::ETC;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::layout::{Etc, Layout};
use super::settings::PAYLOAD_ID;

/// The name at the top that is ours.
pub(super) const OWN: &str = ".casemate";
/// Where the guest lies, and under which name everything in the root can be found once more: what is mounted there is sorted after
/// the Docker Engine's own mounts, some of which it must cover.
pub(super) const GUEST: &str = "/.casemate/guest";
pub(super) const ROOT_AGAIN: &str = "/.casemate/root";
/// Every image of ours has this name, and its digest as tag.
pub(super) const NAME: &str = "casemate-skeleton";
/// How images of ours are found.
pub(super) const LABEL: &str = "casemate.skeleton";

pub(super) struct Skeleton {
    /// Under which the Docker Engine knows it.
    pub(super) reference: String,
    /// The digest of its one layer: what makes sure that the engine means the same image.
    pub(super) layer: String,
    /// As `docker load` takes it.
    pub(super) archive: Vec<u8>,
}

impl Skeleton {
    pub(super) fn new(guest: &[u8], layout: &Layout) -> io::Result<Skeleton> {
        let layer = root(guest, layout)?;
        let digest = hex(&Sha256::digest(&layer));
        let reference = format!("{NAME}:{}", &digest[..32]);
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Labels": {LABEL: env!("CARGO_PKG_VERSION")}},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "casemate"}],
        })
        .to_string();
        let name = format!("{}.json", hex(&Sha256::digest(config.as_bytes())));
        let manifest =
            json!([{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]).to_string();
        let mut archive = Tar::default();
        archive.file(&name, 0o644, config.as_bytes())?;
        archive.file("layer.tar", 0o644, &layer)?;
        archive.file("manifest.json", 0o644, manifest.as_bytes())?;
        Ok(Skeleton { reference, layer: format!("sha256:{digest}"), archive: archive.end() })
    }
}

fn root(guest: &[u8], layout: &Layout) -> io::Result<Vec<u8>> {
    let mut tar = Tar::default();
    // What is mounted on a directory takes over its mode.
    for (name, mode, owner) in [
        (OWN, 0o755, 0),
        ("dev", 0o755, 0),
        ("etc", 0o755, 0),
        ("proc", 0o555, 0),
        ("run", 0o755, 0),
        ("sys", 0o555, 0),
        ("tmp", 0o1777, 0),
        ("work", 0o755, PAYLOAD_ID),
    ] {
        tar.directory(name, mode, owner)?;
    }
    tar.file(GUEST.trim_start_matches('/'), 0o555, guest)?;
    tar.link(ROOT_AGAIN.trim_start_matches('/'), "..")?;
    if layout.etc == Etc::Synthesised {
        for (name, text) in ETC {
            tar.file(&format!("etc/{name}"), 0o644, text.as_bytes())?;
        }
        tar.directory("var", 0o755, 0)?;
        tar.link("var/tmp", "../tmp")?;
    }
    for (name, target) in &layout.links {
        tar.link(name, target)?;
    }
    Ok(tar.end())
}

/// A `ustar` archive, as far as it is needed here.
#[derive(Default)]
struct Tar(Vec<u8>);

const BLOCK: usize = 512;

impl Tar {
    fn directory(&mut self, name: &str, mode: u32, owner: u32) -> io::Result<()> {
        self.header(b'5', &format!("{name}/"), "", mode, owner, 0)
    }

    fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.header(b'2', name, target, 0o777, 0, 0)
    }

    fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.header(b'0', name, "", mode, 0, bytes.len())?;
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        Ok(())
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }

    fn header(
        &mut self,
        kind: u8,
        name: &str,
        link: &str,
        mode: u32,
        owner: u32,
        size: usize,
    ) -> io::Result<()> {
        let mut header = [0; BLOCK];
        let mut put = |at: usize, room: usize, bytes: &[u8]| match bytes.len() <= room {
            true => {
                header[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            false => Err(io::Error::other(format!("a name is longer than {room} bytes"))),
        };
        put(0, 100, name.as_bytes())?;
        put(100, 8, format!("{mode:07o}").as_bytes())?;
        put(108, 8, format!("{owner:07o}").as_bytes())?;
        put(116, 8, format!("{owner:07o}").as_bytes())?;
        put(124, 12, format!("{size:011o}").as_bytes())?;
        put(136, 12, format!("{:011o}", 0).as_bytes())?;
        put(148, 8, b"        ")?;
        put(156, 1, &[kind])?;
        put(157, 100, link.as_bytes())?;
        put(257, 8, b"ustar\x0000")?;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        Ok(())
    }
}
