//! Interpreters that were compiled to WASM, for languages.
//!
//! They are ours, built by `casemate setup wasm`, and so are shared by all tenants. Each is a file whose name holds its digest; that
//! it is what it says is checked when it has to be compiled, and what was compiled is authenticated by the cache.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use casemate_core::evidence::{hex, unhex};
use casemate_core::outcome::Refusal;
use casemate_core::request::Language;
use sha2::{Digest, Sha256};

use super::compiler::{Bytes, What};
use crate::sys;

/// Owner of their compiled code. No tenant can have this name.
pub(super) const OWNER: &str = "_runtimes";

/// Languages that there can be an interpreter for.
pub(crate) const LANGUAGES: [Language; 2] = [Language::Python, Language::Javascript];

pub(crate) struct Runtimes {
    directory: PathBuf,
    found: Mutex<BTreeMap<Language, [u8; 32]>>,
}

/// One that was just taken in.
pub(super) struct Installed {
    language: Language,
    digest: [u8; 32],
    path: PathBuf,
}

impl Runtimes {
    /// Those that this home has.
    pub(crate) fn find(home: &Path) -> Runtimes {
        let directory = home.join("wasm").join("runtimes");
        let names = fs::read_dir(&directory).into_iter().flatten().flatten();
        let named = |name: String| {
            let (language, digest) = name.strip_suffix(".wasm")?.split_once('-')?;
            let language = LANGUAGES.into_iter().find(|known| known.as_str() == language)?;
            Some((language, unhex(digest)?))
        };
        let mut found: Vec<_> = names
            .filter_map(|entry| {
                let made = entry.metadata().and_then(|meta| meta.modified()).ok()?;
                Some((made, named(entry.file_name().into_string().ok()?)?))
            })
            .collect();
        // Of two that a crash has left, the newer one counts.
        found.sort();
        let found = found.into_iter().map(|(_, found)| found).collect();
        Runtimes { directory, found: Mutex::new(found) }
    }

    pub(crate) fn languages(&self) -> Vec<Language> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    pub(super) fn get(&self, language: Language) -> Result<What<'static>, Refusal> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&language).copied();
        match found {
            Some(digest) => Ok(what(language, digest, self.path(language, digest))),
            None => Err(Refusal::new(
                format!("{language} is not there for WASM"),
                "`casemate setup wasm` builds it",
            )),
        }
    }

    pub(super) fn install(&self, language: Language, bytes: &[u8]) -> io::Result<Installed> {
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let path = self.path(language, digest);
        // Two may be at it at once.
        let fresh = path.with_extension(hex(&sys::random::<8>()?));
        fs::write(&fresh, bytes)?;
        fs::rename(&fresh, &path)?;
        self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(language, digest);
        for entry in fs::read_dir(&self.directory)?.flatten().filter(|entry| entry.path() != path) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("{language}-")) && name.ends_with(".wasm") {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Installed { language, digest, path })
    }

    fn path(&self, language: Language, digest: [u8; 32]) -> PathBuf {
        self.directory.join(format!("{language}-{}.wasm", hex(&digest)))
    }
}

impl Installed {
    pub(super) fn what(&self) -> What<'static> {
        what(self.language, self.digest, self.path.clone())
    }
}

fn what(language: Language, digest: [u8; 32], path: PathBuf) -> What<'static> {
    What { name: language.as_str(), owner: OWNER, digest, bytes: Bytes::File(path) }
}
