//! Images in every form that they travel in, made by the suites themselves.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::tar::Tar;

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// As images call it.
pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("in memory")
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Programs of this machine and the libraries that they need, so that something runs in an image.
pub fn with_programs(mut tar: Tar, programs: &[&str]) -> Tar {
    let mut added = std::collections::BTreeSet::new();
    for program in programs {
        let linked = Command::new("ldd").arg(program).output().expect("ldd is part of every C library");
        let linked = String::from_utf8_lossy(&linked.stdout).into_owned();
        let paths = linked.split_whitespace().filter(|word| word.starts_with('/')).chain([*program]);
        for path in paths.map(str::to_owned) {
            if added.insert(path.clone()) {
                let bytes = std::fs::read(&path).expect("a program of this machine");
                tar = tar.file_with_mode(&path[1..], bytes, 0o755);
            }
        }
    }
    tar
}

/// An image's parts by their digests, as a registry or an OCI layout has them.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub manifest: String,
    pub config: String,
    /// As they were before they were compressed.
    layers: Vec<Vec<u8>>,
}

impl Parts {
    /// Of these layers, lowest first, each with the end of its media type: nothing, `+gzip` or `+zstd`.
    pub fn new(layers: &[(&str, Vec<u8>)]) -> Parts {
        let mut parts = Parts::default();
        let mut described = Vec::new();
        for (compression, plain) in layers {
            let stored = match *compression {
                "+gzip" => gzip(plain),
                "+zstd" => zstd(plain),
                _ => plain.clone(),
            };
            let size = stored.len();
            let digest = parts.add(stored);
            described.push(
                json!({"mediaType": format!("{OCI_LAYER}{compression}"), "digest": digest, "size": size}),
            );
            parts.layers.push(plain.clone());
        }
        let diff_ids: Vec<String> = parts.layers.iter().map(|layer| digest(layer)).collect();
        let config = json!({"architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        let config = serde_json::to_vec(&config).expect("JSON");
        let size = config.len();
        parts.config = parts.add(config);
        let config_type = "application/vnd.oci.image.config.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": described,
            "config": {"mediaType": config_type, "digest": parts.config, "size": size}});
        parts.manifest = parts.add(serde_json::to_vec(&manifest).expect("JSON"));
        parts
    }

    pub fn add(&mut self, bytes: Vec<u8>) -> String {
        let digest = digest(&bytes);
        self.blobs.insert(digest.clone(), bytes);
        digest
    }

    /// The manifest, changed; everything else stays.
    pub fn with_manifest(mut self, change: impl FnOnce(&mut Value)) -> Parts {
        let mut manifest = serde_json::from_slice(&self.blobs[&self.manifest]).expect("JSON");
        change(&mut manifest);
        self.blobs.remove(&self.manifest);
        self.manifest = self.add(serde_json::to_vec(&manifest).expect("JSON"));
        self
    }

    /// What `index.json` of a layout with this image says.
    pub fn index(&self) -> Value {
        let size = self.blobs[&self.manifest].len();
        let platform = json!({"architecture": "amd64", "os": "linux"});
        let other = json!({"architecture": "s390x", "os": "linux"});
        json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [
            {"mediaType": OCI_MANIFEST, "digest": digest(b"another"), "size": 7, "platform": other},
            {"mediaType": OCI_MANIFEST, "digest": self.manifest, "size": size, "platform": platform}]})
    }

    /// The files of an OCI layout.
    pub fn layout(&self) -> Vec<(String, Vec<u8>)> {
        let blob = |(digest, bytes): (&String, &Vec<u8>)| {
            (format!("blobs/sha256/{}", digest.trim_start_matches("sha256:")), bytes.clone())
        };
        let mut files: Vec<(String, Vec<u8>)> = self.blobs.iter().map(blob).collect();
        files.push(("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
        files.push(("index.json".into(), serde_json::to_vec(&self.index()).expect("JSON")));
        files
    }

    /// The files of what `docker save` wrote for a long time. A layer that is there twice is a link the second time.
    pub fn docker_archive(&self) -> Tar {
        let config = self.config.trim_start_matches("sha256:");
        let names: Vec<String> = (0..self.layers.len()).map(|n| format!("{n:064x}/layer.tar")).collect();
        let manifest = json!([{"Config": format!("{config}.json"), "RepoTags": ["t:1"], "Layers": names}]);
        let mut tar = Tar::new().file(&format!("{config}.json"), &self.blobs[&self.config]);
        for (number, (name, layer)) in names.iter().zip(&self.layers).enumerate() {
            tar = match self.layers[..number].iter().position(|earlier| earlier == layer) {
                Some(first) => tar.symlink(name, &format!("../{}", names[first])),
                None => tar.file(name, layer),
            };
        }
        tar.file("manifest.json", serde_json::to_vec(&manifest).expect("JSON"))
    }
}

/// Writes the files of a layout below a directory.
pub fn write_layout(files: &[(String, Vec<u8>)], dir: &Path) {
    for (name, bytes) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().expect("below the directory")).expect("directories");
        std::fs::write(path, bytes).expect("a file of the layout");
    }
}

/// The same as one archive.
pub fn pack_layout(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    files.iter().fold(Tar::new(), |tar, (name, bytes)| tar.file(name, bytes)).end()
}
