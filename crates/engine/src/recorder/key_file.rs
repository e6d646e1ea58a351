//! The key files. A key is created once, under the store's lock, and never replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use casemate_core::evidence::{PublicKey, SecretKey};

use super::lock::Exclusive;
use super::{Paths, StoreError};
use crate::sys;

/// Far more than a key takes in either spelling.
const MAX_KEY_FILE: u64 = 4096;

/// Whether the chain already has records, which only the key that signed them may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChainIs {
    Empty,
    Signed,
}

pub(super) fn load_or_create(
    paths: &Paths,
    _: &Exclusive<'_>,
    chain: ChainIs,
) -> Result<SecretKey, StoreError> {
    let key = match load(&paths.key)? {
        Some(key) => key,
        None if chain == ChainIs::Signed => return Err(StoreError::KeyMissing { path: paths.key.clone() }),
        None => create(paths)?,
    };
    match load_public(&paths.public)? {
        Some(public) if public == *key.public() => {}
        Some(_) => return Err(StoreError::KeyMismatch { path: paths.public.clone() }),
        None => write_whole(&paths.public, &paths.keys, key.public().to_pem().as_bytes(), 0o644)?,
    }
    Ok(key)
}

/// The public key beside the chain, if there is one.
pub(super) fn load_public(path: &Path) -> Result<Option<PublicKey>, StoreError> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let bytes = read_bounded(&mut file, path)?;
    let key = String::from_utf8_lossy(&bytes).parse();
    key.map(Some).map_err(|source| StoreError::KeyInvalid { path: path.to_owned(), source })
}

fn load(path: &Path) -> Result<Option<SecretKey>, StoreError> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let mode = file.metadata().map_err(|e| StoreError::io("look at", path, e))?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(StoreError::KeyExposed { path: path.to_owned(), mode });
    }
    let bytes = read_bounded(&mut file, path)?;
    let key = SecretKey::from_file_bytes(&bytes);
    key.map(Some).map_err(|source| StoreError::KeyInvalid { path: path.to_owned(), source })
}

fn create(paths: &Paths) -> Result<SecretKey, StoreError> {
    let seed = sys::random().map_err(|e| StoreError::io("draw randomness for", &paths.key, e))?;
    let key = SecretKey::from_seed(&seed);
    write_whole(&paths.key, &paths.keys, key.to_pem().as_bytes(), 0o600)?;
    Ok(key)
}

/// Writes a file that is either absent or complete, even after a power cut. The caller holds the store's lock and
/// knows that `path` does not exist.
fn write_whole(path: &Path, dir: &Path, content: &[u8], mode: u32) -> Result<(), StoreError> {
    let fresh = path.with_extension("new");
    let write = || {
        match fs::remove_file(&fresh) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            // Gone now, or left by a creator that was killed.
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| StoreError::io("create", path, e))
}

fn open(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StoreError::io("read", path, e)),
    }
}

fn read_bounded(file: &mut File, path: &Path) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    file.take(MAX_KEY_FILE).read_to_end(&mut bytes).map_err(|e| StoreError::io("read", path, e))?;
    Ok(bytes)
}
