//! Templates on disk, so that a command that runs once need not boot anything. Only what this home made is believed: every file
//! carries a code that takes the home's key to make, and one that is damaged counts as absent.
//!
//! ```text
//! code (32) | about: length (4), JSON | state: length (8), bytes | pieces of memory: place (8), length (4), bytes … | u64::MAX
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use casemate_core::evidence::hex;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::Key;
use super::shape::Shape;
use super::template::Template;
use crate::secret::Secret;
use crate::sys;

const KEY: &str = "templates.key";
const CODE: usize = 32;
/// As much of a machine's memory as is written, or left out, at a time.
const PAGE: usize = 4096;
const PIECE: usize = 1 << 20;
const MAX_ABOUT: u32 = 4096;
const MAX_STATE: u64 = 64 << 20;
const END: u64 = u64::MAX;
/// Templates that are kept. Each takes what its machine had touched of its memory.
const MOST: usize = 8;

#[derive(Clone)]
pub(super) struct Store(Arc<Inner>);

struct Inner {
    directory: PathBuf,
    secret: Secret,
}

/// What a template is, besides memory and state.
#[derive(Serialize, Deserialize)]
struct About {
    qemu: String,
    memory_bytes: u64,
    cpus: u32,
}

impl Store {
    pub(super) fn of(home: &Path) -> Store {
        let directory = home.join("microvm/templates");
        Store(Arc::new(Inner { directory, secret: Secret::of(home, KEY) }))
    }

    /// What was kept under `key`. Whatever is wrong with it, it is made anew then.
    pub(super) async fn load(&self, key: Key, shape: Shape) -> Option<Template> {
        let this = self.clone();
        let loaded = tokio::task::spawn_blocking(move || this.read(key, shape));
        loaded.await.ok()?.ok().flatten()
    }

    /// Keeps it, if there is room. If not, that costs time, the next time.
    pub(super) async fn keep(&self, key: Key, template: &Arc<Template>) {
        let (this, template) = (self.clone(), template.clone());
        let kept =
            tokio::task::spawn_blocking(move || this.write(key, &template).and_then(|()| this.prune()));
        let _ = kept.await;
    }

    fn path(&self, key: Key) -> PathBuf {
        self.0.directory.join(hex(&key.0))
    }

    fn mac(&self, key: Key) -> io::Result<Hmac<Sha256>> {
        Ok(self.0.secret.mac()?.chain_update(b"casemate machine template v1").chain_update(key.0))
    }

    fn read(&self, key: Key, shape: Shape) -> io::Result<Option<Template>> {
        let mut file = match File::open(self.path(key)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut code = [0; CODE];
        file.read_exact(&mut code)?;
        let used = file.try_clone()?;
        let mut reader = Checked { reader: BufReader::with_capacity(PIECE, file), mac: self.mac(key)? };
        let mut about = vec![0; reader.number::<4>()?.min(u64::from(MAX_ABOUT)) as usize];
        reader.exact(&mut about)?;
        let about: About = serde_json::from_slice(&about)?;
        if (about.memory_bytes, about.cpus) != (shape.memory_bytes, shape.cpus) {
            return Ok(None);
        }
        let mut state = vec![0; reader.number::<8>()?.min(MAX_STATE) as usize];
        reader.exact(&mut state)?;
        let memory = File::from(sys::plain_memory("machine", shape.memory_bytes)?);
        let mut piece = vec![0; PIECE];
        loop {
            let place = reader.number::<8>()?;
            if place == END {
                break;
            }
            let length = reader.number::<4>()? as usize;
            let fits = length <= PIECE
                && place.checked_add(length as u64).is_some_and(|end| end <= shape.memory_bytes);
            if !fits {
                return Ok(None);
            }
            reader.exact(&mut piece[..length])?;
            memory.write_all_at(&piece[..length], place)?;
        }
        if reader.mac.verify_slice(&code).is_err() {
            return Ok(None);
        }
        let kept = File::from(sys::plain_memory("state", 0)?);
        kept.write_all_at(&state, 0)?;
        // What was used last goes last.
        let _ = used.set_modified(SystemTime::now());
        let (memory, state) = (sys::seal(memory.into())?, sys::seal(kept.into())?);
        Ok(Some(Template { shape, memory, state, qemu: about.qemu }))
    }

    fn write(&self, key: Key, template: &Template) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0.directory)?;
        let path = self.path(key);
        let fresh = path.with_extension(hex(&sys::random::<8>()?));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        let written = self.write_to(file, key, template).and_then(|()| fs::rename(&fresh, &path));
        if written.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        written
    }

    fn write_to(&self, file: File, key: Key, template: &Template) -> io::Result<()> {
        let Template { shape, memory, state, qemu } = template;
        let (memory_bytes, cpus) = (shape.memory_bytes, shape.cpus);
        let about = serde_json::to_vec(&About { qemu: qemu.clone(), memory_bytes, cpus })?;
        let mut writer = Coded { writer: BufWriter::with_capacity(PIECE, file), mac: self.mac(key)? };
        writer.writer.write_all(&[0; CODE])?;
        writer.put(&(about.len() as u32).to_le_bytes())?;
        writer.put(&about)?;
        let state = read_all(state, MAX_STATE)?;
        writer.put(&(state.len() as u64).to_le_bytes())?;
        writer.put(&state)?;
        let memory = File::from(memory.try_clone()?);
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < memory_bytes {
            // Most of it was never touched.
            match rustix::fs::seek(memory.as_fd(), rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => at = data - data % PAGE as u64,
                Err(rustix::io::Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            }
            let length = PIECE.min((memory_bytes - at) as usize);
            memory.read_exact_at(&mut piece[..length], at)?;
            for (place, bytes) in runs(&piece[..length]) {
                writer.put(&(at + place as u64).to_le_bytes())?;
                writer.put(&(bytes.len() as u32).to_le_bytes())?;
                writer.put(bytes)?;
            }
            at += length as u64;
        }
        writer.put(&END.to_le_bytes())?;
        let code = writer.mac.finalize().into_bytes();
        let mut file = writer.writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&code)
    }

    /// Removes what was not used for longest, until there are no more than [`MOST`].
    fn prune(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.0.directory)? {
            let entry = entry?;
            files.push((entry.metadata()?.modified()?, entry.path()));
        }
        files.sort();
        let too_many = files.len().saturating_sub(MOST);
        files.into_iter().take(too_many).try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// The parts of `bytes` that are not all zeros, page by page, with their places.
fn runs(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut runs = Vec::new();
    let mut begun = None;
    for (index, page) in bytes.chunks(PAGE).enumerate() {
        let at = index * PAGE;
        let empty = page.iter().all(|byte| *byte == 0);
        match (begun, empty) {
            (None, false) => begun = Some(at),
            (Some(from), true) => {
                runs.push((from, &bytes[from..at]));
                begun = None;
            }
            _ => {}
        }
    }
    runs.extend(begun.map(|from| (from, &bytes[from..])));
    runs
}

fn read_all(file: &OwnedFd, most: u64) -> io::Result<Vec<u8>> {
    let file = File::from(file.try_clone()?);
    let length = file.metadata()?.len();
    if length > most {
        return Err(io::Error::other("the state of a machine is larger than any should be"));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

struct Coded {
    writer: BufWriter<File>,
    mac: Hmac<Sha256>,
}

impl Coded {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.mac.update(bytes);
        self.writer.write_all(bytes)
    }
}

struct Checked {
    reader: BufReader<File>,
    mac: Hmac<Sha256>,
}

impl Checked {
    fn exact(&mut self, space: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact(space)?;
        self.mac.update(space);
        Ok(())
    }

    /// Little endian, of so many bytes.
    fn number<const N: usize>(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.exact(&mut bytes[..N])?;
        Ok(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { memory_bytes: 4 << 20, cpus: 1 };

    fn home() -> (tempfile::TempDir, Store) {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("keys")).unwrap();
        let store = Store::of(home.path());
        (home, store)
    }

    fn template() -> Template {
        let memory = File::from(sys::plain_memory("m", SHAPE.memory_bytes).unwrap());
        memory.write_all_at(b"begin", 0).unwrap();
        memory.write_all_at(&[7; 3 * PAGE], (2 << 20) - PAGE as u64).unwrap();
        memory.write_all_at(b"end", SHAPE.memory_bytes - 3).unwrap();
        let state = File::from(sys::plain_memory("s", 0).unwrap());
        state.write_all_at(b"state", 0).unwrap();
        let (memory, state) = (sys::seal(memory.into()).unwrap(), sys::seal(state.into()).unwrap());
        Template { shape: SHAPE, memory, state, qemu: "7.2.0".into() }
    }

    fn bytes_of(file: &OwnedFd) -> Vec<u8> {
        read_all(file, u64::MAX).unwrap()
    }

    #[test]
    fn what_was_kept_is_loaded_and_cannot_be_written_to() {
        let (_home, store) = home();
        let (key, made) = (Key([1; 32]), template());
        assert!(store.read(key, SHAPE).unwrap().is_none());
        store.write(key, &made).unwrap();
        let loaded = store.read(key, SHAPE).unwrap().expect("it was kept");
        assert_eq!(bytes_of(&loaded.memory), bytes_of(&made.memory));
        assert_eq!((bytes_of(&loaded.state), &*loaded.qemu), (b"state".to_vec(), "7.2.0"));
        let file = File::from(loaded.memory);
        assert!(file.write_all_at(b"x", 0).is_err() && file.set_len(1).is_err());
        // Holes stay holes.
        assert!(fs::metadata(store.path(key)).unwrap().len() < 64 * 1024);
        let other = Shape { cpus: 2, ..SHAPE };
        assert!(store.read(key, other).unwrap().is_none(), "a machine of another shape");
        assert!(store.read(Key([2; 32]), SHAPE).unwrap().is_none(), "another key");
    }

    #[test]
    fn what_is_damaged_is_not_there() {
        let (_home, store) = home();
        let key = Key([1; 32]);
        store.write(key, &template()).unwrap();
        let good = fs::read(store.path(key)).unwrap();
        let absent = |bytes: &[u8]| {
            fs::write(store.path(key), bytes).unwrap();
            !matches!(store.read(key, SHAPE), Ok(Some(_)))
        };
        for at in (0..good.len()).step_by(97).chain(0..100) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(absent(&bad), "byte {at}");
        }
        for length in (0..good.len()).step_by(131) {
            assert!(absent(&good[..length]), "{length} bytes");
        }
        assert!(!absent(&good));
        // Another home's, or another key's.
        fs::rename(store.path(key), store.path(Key([3; 32]))).unwrap();
        assert!(!matches!(store.read(Key([3; 32]), SHAPE), Ok(Some(_))));
    }

    #[test]
    fn few_are_kept_and_the_last_used_among_them() {
        let (_home, store) = home();
        let made = template();
        for number in 0..MOST as u8 + 3 {
            let key = Key([number; 32]);
            store.write(key, &made).unwrap();
            let age = std::time::Duration::from_secs(100 - u64::from(number));
            File::open(store.path(key)).unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
        store.prune().unwrap();
        assert_eq!(fs::read_dir(&store.0.directory).unwrap().count(), MOST);
        assert!(store.read(Key([2; 32]), SHAPE).unwrap().is_none());
        assert!(store.read(Key([MOST as u8 + 2; 32]), SHAPE).unwrap().is_some());
    }
}
