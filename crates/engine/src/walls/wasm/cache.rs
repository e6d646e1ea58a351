//! Compiled code on disk, per owner. Only what this home's own compiler made is ever used: every file carries a code that
//! takes the home's key to make, over everything that says what it is.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use casemate_core::evidence::hex;
use casemate_wire::worker::Mode;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::secret::Secret;
use crate::sys;

const KEY: &str = "wasm-cache.key";
const CODE: usize = 32;
const PIECE: usize = 256 << 10;
/// Bytes that are kept for one owner.
const MOST: u64 = 1 << 30;

pub(crate) struct Cache {
    home: PathBuf,
    secret: Secret,
    /// What compiled: another compiler's code is another's.
    compiler: [u8; 32],
}

/// What code was compiled from, and how.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// A tenant, or [`super::runtimes::OWNER`].
    pub(crate) owner: String,
    pub(crate) component: [u8; 32],
    pub(crate) mode: Mode,
}

impl Cache {
    pub(crate) fn new(home: &Path, compiler: [u8; 32]) -> Cache {
        Cache { home: home.to_owned(), secret: Secret::of(home, KEY), compiler }
    }

    /// What was kept for `key`, as sealed memory. A file that is not what it says it is counts as absent.
    pub(crate) fn load(&self, key: &Key) -> io::Result<Option<OwnedFd>> {
        let mut file = match File::open(self.path(key)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut code = [0; CODE];
        if file.read_exact(&mut code).is_err() {
            return Ok(None);
        }
        let mut mac = self.mac(key, file.metadata()?.len().saturating_sub(CODE as u64))?;
        // Piece by piece, and only what was checked is in the memory that is sealed.
        let mut memory = sys::Memory::new("compiled")?;
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                read => {
                    mac.update(&piece[..read]);
                    memory.write(&piece[..read])?;
                }
            }
        }
        if mac.verify_slice(&code).is_err() {
            return Ok(None);
        }
        // What was used last goes last.
        let _ = file.set_modified(SystemTime::now());
        memory.seal().map(Some)
    }

    /// Keeps what was compiled, and hands it back as sealed memory.
    pub(crate) fn keep(&self, key: &Key, bytes: &[u8]) -> io::Result<OwnedFd> {
        let mut memory = sys::Memory::new("compiled")?;
        memory.write(bytes)?;
        let path = self.path(key);
        let written = self
            .mac(key, bytes.len() as u64)
            .and_then(|mac| write_whole(&path, &mac.chain_update(bytes).finalize().into_bytes(), bytes));
        // If it could not be written, that costs time, the next time.
        if let (Ok(()), Some(directory)) = (written, path.parent()) {
            let _ = prune(directory);
        }
        memory.seal()
    }

    fn path(&self, key: &Key) -> PathBuf {
        let mode = match key.mode {
            Mode::Ordinary => "ordinary",
            Mode::Deterministic => "deterministic",
        };
        let name = format!("{}-{mode}-{}", hex(&key.component), &hex(&self.compiler)[..16]);
        self.home.join("wasm").join("compiled").join(&key.owner).join(name)
    }

    /// Ready for the bytes themselves, of which there are `length`.
    fn mac(&self, key: &Key, length: u64) -> io::Result<Hmac<Sha256>> {
        let mut mac = self.secret.mac()?;
        let Key { owner, component, mode } = key;
        let mode = [*mode as u8];
        for part in [&b"casemate compiled wasm v1"[..], owner.as_bytes(), component, &mode, &self.compiler] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.update(&length.to_le_bytes());
        Ok(mac)
    }
}

fn write_whole(path: &Path, code: &[u8], bytes: &[u8]) -> io::Result<()> {
    let Some(directory) = path.parent() else { return Err(io::Error::other("no directory")) };
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let fresh = path.with_extension(hex(&sys::random::<8>()?));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let written = file.write_all(code).and_then(|()| file.write_all(bytes));
    let done = written.and_then(|()| fs::rename(&fresh, path));
    if done.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    done
}

/// Removes what was not used for longest, until what is left of an owner's code is no more than [`MOST`].
fn prune(directory: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        files.push((meta.modified()?, meta.len(), entry.path()));
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in files {
        if total <= MOST {
            break;
        }
        fs::remove_file(path)?;
        total -= length;
    }
    Ok(())
}
