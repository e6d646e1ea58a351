//! Keys of a home that authenticate what lies in it: whoever cannot read them cannot make files that are believed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use casemate_core::evidence::hex;
use hmac::{Hmac, KeyInit};
use sha2::Sha256;

use crate::sys;

/// One such key. Made when it is first needed, once per home.
pub(crate) struct Secret {
    path: PathBuf,
    key: OnceLock<[u8; 32]>,
}

impl Secret {
    /// The key of that name in `home`.
    pub(crate) fn of(home: &Path, name: &str) -> Secret {
        Secret { path: home.join("keys").join(name), key: OnceLock::new() }
    }

    /// A code over something, to be fed.
    pub(crate) fn mac(&self) -> io::Result<Hmac<Sha256>> {
        Hmac::<Sha256>::new_from_slice(self.key()?).map_err(io::Error::other)
    }

    fn key(&self) -> io::Result<&[u8; 32]> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let key = match fs::read(&self.path) {
            Ok(bytes) => parse(bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(&self.path)?,
            Err(error) => return Err(error),
        };
        Ok(self.key.get_or_init(|| key))
    }
}

fn parse(bytes: Vec<u8>) -> io::Result<[u8; 32]> {
    bytes.try_into().map_err(|_| io::Error::other("what should be a key is none"))
}

fn create(path: &Path) -> io::Result<[u8; 32]> {
    let key = sys::random::<32>()?;
    // Several processes may get here at once: whoever links first has made the key.
    let own = path.with_extension(hex(&sys::random::<8>()?));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&own)?;
    let made = file.write_all(&key).and_then(|()| file.sync_all()).and_then(|()| fs::hard_link(&own, path));
    fs::remove_file(&own)?;
    match made {
        Ok(()) => Ok(key),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => parse(fs::read(path)?),
        Err(error) => Err(error),
    }
}
