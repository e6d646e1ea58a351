//! Which program a request will execute, and its digest.
//!
//! An unpinned image has no digest of its own, so the receipt names the program at least. Hashing a large interpreter
//! takes milliseconds: it happens beside the run, and results are kept, in memory and in the home, for as long as
//! inode, size, modification and change time stay the same.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use casemate_core::evidence::hex;
use casemate_core::plan::Plan;
use casemate_core::request::{Language, Workload};
use casemate_core::stack::Wall;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use sha2::{Digest, Sha256};

use crate::images::Stored;

/// Entries kept on disk; when there are more, the file starts anew.
const MAX_KEPT: usize = 256;

pub(crate) struct Programs {
    known: Arc<Mutex<HashMap<String, String>>>,
    file: PathBuf,
}

/// Programs of one image.
pub(crate) struct Identifier {
    pub(crate) programs: Arc<Programs>,
    /// Kept from being removed meanwhile.
    pub(crate) image: Option<Stored>,
}

impl Identifier {
    pub(crate) fn program(&self, plan: &Plan) -> Option<Program> {
        self.programs.identify(plan, self.image.as_ref().map(|stored| &stored.dir))
    }
}

/// A program whose digest is known or being computed.
pub(crate) struct Program {
    path: String,
    digest: Mutex<Pending>,
}

enum Pending {
    Known(String),
    Computing(JoinHandle<Option<String>>),
    Unknown,
}

impl Programs {
    pub(crate) fn new(home: &Path) -> Programs {
        let file = home.join("programs");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let known =
            text.lines().filter_map(|line| line.split_once(' ')).map(|(k, v)| (k.to_owned(), v.to_owned()));
        Programs { known: Arc::new(Mutex::new(known.collect())), file }
    }

    /// Finds the program as the cell will: in the image, along the search path.
    pub(crate) fn identify(&self, plan: &Plan, image: Option<&OwnedFd>) -> Option<Program> {
        if plan.stack().contains(Wall::Wasm) {
            return None;
        }
        let name = match plan.workload() {
            Workload::Component { .. } | Workload::Session => return None,
            Workload::Command { argv } => argv.first()?.as_str(),
            Workload::Code { language, .. } => match language {
                Language::Python => "python3",
                Language::Javascript => "node",
                Language::Shell => "sh",
            },
        };
        let root = match image {
            Some(image) => image.try_clone().ok()?,
            None => OwnedFd::from(File::open("/").ok()?),
        };
        let candidates: Vec<String> = match name.contains('/') {
            true => vec![name.to_owned()],
            false => {
                let set = plan.env().iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_str());
                let path = set.unwrap_or("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
                path.split(':').map(|dir| format!("{dir}/{name}")).collect()
            }
        };
        let (path, file) =
            candidates.into_iter().find_map(|path| Some((path.clone(), open(&root, &path).ok()?)))?;
        let digest = Mutex::new(self.digest(file));
        Some(Program { path, digest })
    }

    fn digest(&self, file: File) -> Pending {
        let Ok(meta) = file.metadata() else { return Pending::Unknown };
        let key = format!(
            "{}:{}:{}:{}.{}:{}.{}",
            meta.dev(),
            meta.ino(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec()
        );
        if let Some(digest) = lock(&self.known).get(&key) {
            return Pending::Known(digest.clone());
        }
        let (known, path) = (self.known.clone(), self.file.clone());
        Pending::Computing(std::thread::spawn(move || {
            let mut hash = Sha256::new();
            io::copy(&mut &file, &mut HashWriter(&mut hash)).ok()?;
            let digest = hex(&hash.finalize());
            let mut known = lock(&known);
            known.insert(key.clone(), digest.clone());
            let _ = keep(&path, &known, &key, &digest);
            Some(digest)
        }))
    }
}

impl Program {
    /// Path and digest, waiting for the latter if need be.
    pub(crate) fn finish(&self) -> Option<(String, String)> {
        let mut pending = lock(&self.digest);
        let digest = match std::mem::replace(&mut *pending, Pending::Unknown) {
            Pending::Known(digest) => Some(digest),
            Pending::Computing(thread) => thread.join().ok().flatten(),
            Pending::Unknown => None,
        };
        Some((self.path.clone(), digest?))
    }
}

/// Opens a regular file beneath the image's root. What an execution brings along itself is not looked for here.
fn open(root: &OwnedFd, path: &str) -> io::Result<File> {
    if path.starts_with("/work/") || path.starts_with("/tmp/") || !path.starts_with('/') {
        return Err(io::ErrorKind::NotFound.into());
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(openat2(
        root.as_fd(),
        path,
        flags,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Adds one line; several processes may do so at once, and a damaged line only costs a digest.
fn keep(path: &Path, known: &HashMap<String, String>, key: &str, digest: &str) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.create(true).mode(0o600);
    if known.len() > MAX_KEPT {
        options.write(true).truncate(true)
    } else {
        options.append(true)
    };
    options.open(path)?.write_all(format!("{key} {digest}\n").as_bytes())
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
