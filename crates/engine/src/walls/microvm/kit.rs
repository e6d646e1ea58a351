//! What machines are made of on this host: a kernel with its drivers, which `casemate setup microvm` puts into the home, and QEMU, which
//! the distribution has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use casemate_core::evidence::hex;
use casemate_core::outcome::Refusal;
use serde::Deserialize;
use sha2::{Digest, Sha256};

const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const SETUP: &str = "`casemate setup microvm` installs what is needed";
/// A kernel has a few dozen files, and its description a line for each.
const MAX_DESCRIPTION: u64 = 256 * 1024;
const MAX_FILE: u64 = 256 << 20;

const KERNEL: &str = "vmlinuz";

/// The kernel kit as its description has it: `kernel.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    version: String,
    source: String,
    /// SHA-256 by path.
    files: BTreeMap<String, String>,
}

pub(super) struct Kit {
    directory: PathBuf,
    description: Description,
    /// Of the description, which has the digest of everything else.
    digest: [u8; 32],
}

impl Kit {
    /// Reads what the kit says of itself. Its files are looked at when they are used.
    pub(super) fn find(installed: &Path) -> Result<Kit, Refusal> {
        let directory = installed.join("microvm/kernel");
        let place = directory.join("kernel.json");
        let mut bytes = Vec::new();
        let read = File::open(&place).and_then(|file| file.take(MAX_DESCRIPTION).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Refusal::new("there is no kernel for virtual machines here", SETUP));
            }
            Err(error) => return Err(damaged(&place, &error.to_string())),
        }
        let description: Description =
            serde_json::from_slice(&bytes).map_err(|error| damaged(&place, &error.to_string()))?;
        if !description.files.contains_key(KERNEL) {
            return Err(damaged(&place, "no kernel is listed"));
        }
        Ok(Kit { directory, description, digest: Sha256::digest(&bytes).into() })
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// For people and records.
    pub(super) fn version(&self) -> &str {
        &self.description.version
    }

    pub(super) fn source(&self) -> &str {
        &self.description.source
    }

    pub(super) fn kernel(&self) -> Result<Vec<u8>, Refusal> {
        self.read(KERNEL)
    }

    /// The files of one directory of the kit, by name.
    pub(super) fn drivers(&self, group: &str) -> Result<Vec<(String, Vec<u8>)>, Refusal> {
        let of_group = |path: &String| path.strip_prefix(group).is_some_and(|rest| rest.starts_with('/'));
        let paths = self.description.files.keys().filter(|path| of_group(path));
        paths.map(|path| Ok((path.clone(), self.read(path)?))).collect()
    }

    /// A file of the kit, if it is the one that was installed.
    fn read(&self, path: &str) -> Result<Vec<u8>, Refusal> {
        let place = self.directory.join(path);
        let plain = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
        let mut bytes = Vec::new();
        let read = File::open(&place).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
        match read {
            Ok(_) if !plain => Err(damaged(&place, "its name leads elsewhere")),
            Ok(_) if self.description.files.get(path) == Some(&hex(&Sha256::digest(&bytes))) => Ok(bytes),
            Ok(_) => Err(damaged(&place, "it is not the file that was installed")),
            Err(error) => Err(damaged(&place, &error.to_string())),
        }
    }
}

fn damaged(place: &Path, why: &str) -> Refusal {
    Refusal::new(
        format!("the kernel for virtual machines is damaged: {}: {why}", place.display()),
        "`casemate setup microvm` installs it again",
    )
}

/// The emulator, as cells see it: in `/usr`.
pub(super) struct Qemu {
    /// Changes whenever the program does.
    pub(super) identity: String,
}

impl Qemu {
    pub(super) const PATH: &str = QEMU;

    pub(super) fn find() -> Result<Qemu, Refusal> {
        let found = fs::metadata(QEMU).ok().filter(|found| found.is_file());
        let Some(found) = found else {
            return Err(Refusal::new(format!("QEMU is not installed ({QEMU})"), SETUP));
        };
        let times = (found.mtime(), found.mtime_nsec());
        let identity = format!("{} {} {} {}.{}", found.dev(), found.ino(), found.size(), times.0, times.1);
        Ok(Qemu { identity })
    }
}
