//! `$CASEMATE_HOME`: what processes that share it agree on.
//!
//! ```text
//! keys/ evidence/          the recorder's
//! runs/lock                held while a run is registered or recovered
//! runs/RUN                 locked by the process that owns RUN, and by its launchers
//! ```
//! A run whose file can be locked belongs to nobody alive: its cells, cgroups and open records are closed by whoever comes
//! next. Files that a cell of the `process` wall works in are under the temporary directory, since its uid must be
//! able to reach them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use casemate_wire::launch::{ID_BLOCKS, RunId, block_start, covers_blocks};

use crate::sys::{self, Lock};

/// Where state lives unless the caller says otherwise.
pub fn default_home() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(home) = set("CASEMATE_HOME") {
        return home;
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/casemate");
    }
    let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    data.unwrap_or_else(|| {
        std::env::temp_dir().join(format!("casemate-{}", rustix::process::geteuid().as_raw()))
    })
    .join("casemate")
}

/// This process's place in the home.
pub(crate) struct Home {
    runs: PathBuf,
    pub(crate) run: RunId,
    lock: File,
    ids: Option<Arc<Ids>>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct HomeError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl HomeError {
    fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HomeError {
        let path = path.to_owned();
        move |source| HomeError { action, path, source }
    }
}

/// Makes the directory that all state is in, for this user only, if it is not there.
pub fn make_home(dir: &Path) -> Result<(), HomeError> {
    private_directory(dir).map_err(HomeError::at("create", dir))
}

impl Home {
    /// Registers a new run. The caller recovers what [`Home::dead_runs`] finds.
    pub(crate) fn open(dir: &Path) -> Result<Home, HomeError> {
        let runs = dir.join("runs");
        private_directory(dir).map_err(HomeError::at("create", dir))?;
        private_directory(&runs).map_err(HomeError::at("create", &runs))?;
        let _guard = lock_runs(&runs)?;
        let run = RunId(sys::random().map_err(HomeError::at("name", &runs))?);
        let own = runs.join(run.to_string());
        let lock = open_lock(&own).map_err(HomeError::at("create", &own))?;
        lock.lock().map_err(HomeError::at("lock", &own))?;
        let ids = match rustix::process::geteuid().is_root() && owns_id_blocks() {
            true => Some(Arc::new(Ids::open()?)),
            false => None,
        };
        Ok(Home { runs, run, lock, ids })
    }

    /// Locks that the launcher shares, so that they last until its cells are gone.
    pub(crate) fn shared_locks(&self) -> Vec<BorrowedFd<'_>> {
        let mut locks = vec![self.lock.as_fd()];
        locks.extend(self.ids.as_ref().map(|ids| ids.file.as_fd()));
        locks
    }

    /// Runs whose owner and launchers are gone.
    pub(crate) fn dead_runs(&self) -> Result<Vec<DeadRun>, HomeError> {
        // Not between the making of a run's file and the taking of its lock.
        let _guard = lock_runs(&self.runs)?;
        let mut dead = Vec::new();
        let entries = fs::read_dir(&self.runs).map_err(HomeError::at("list", &self.runs))?;
        for entry in entries.flatten() {
            let Some(run) = entry.file_name().to_str().and_then(|name| name.parse::<RunId>().ok()) else {
                continue;
            };
            if run == self.run {
                continue;
            }
            let path = entry.path();
            let Ok(lock) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
            match lock.try_lock() {
                // Between opening and locking, somebody else may have recovered and removed it.
                Ok(()) if path.exists() => dead.push(DeadRun { run, path, lock }),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(HomeError::at("lock", &path)(error)),
            }
        }
        Ok(dead)
    }

    /// Writes down, for whoever recovers this run, that it had containers made by the Docker Engine behind this socket.
    pub(crate) fn note_engine(&self, socket: &Path) -> io::Result<()> {
        let socket = socket.as_os_str().as_bytes();
        self.lock.write_all_at(socket, 0)?;
        self.lock.set_len(socket.len() as u64)
    }

    /// Names this home to others for good. Drawn at random: another machine, or a container that uses the same Docker Engine, may have
    /// a home at the same path.
    pub(crate) fn identity(&self) -> Result<String, HomeError> {
        let _guard = lock_runs(&self.runs)?;
        let path = self.runs.with_file_name("identity");
        match fs::read_to_string(&path) {
            Ok(text) if text.trim().parse::<RunId>().is_ok() => return Ok(text.trim().to_owned()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(HomeError::at("read", &path)(error)),
        }
        let identity = RunId(sys::random().map_err(HomeError::at("name", &path))?).to_string();
        fs::write(&path, &identity).map_err(HomeError::at("write", &path))?;
        Ok(identity)
    }

    /// Whether somebody owns this run. If not, what is left of it may be removed by anybody.
    pub(crate) fn is_alive(&self, run: RunId) -> Result<bool, HomeError> {
        let _guard = lock_runs(&self.runs)?;
        let path = self.runs.join(run.to_string());
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(_) if run == self.run => Ok(true),
            Ok(lock) => match lock.try_lock() {
                Ok(()) => Ok(false),
                Err(TryLockError::WouldBlock) => Ok(true),
                Err(TryLockError::Error(error)) => Err(HomeError::at("lock", &path)(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(HomeError::at("open", &path)(error)),
        }
    }

    /// A block of ids for one cell; `None` where ids cannot be assigned.
    pub(crate) fn id_block(&self) -> io::Result<Option<IdBlock>> {
        self.ids.as_ref().map(Ids::take).transpose()
    }

    /// A directory for one cell without a mount namespace, owned by its ids.
    pub(crate) fn scratch(&self, name: u32, owner: Option<u16>) -> io::Result<Scratch> {
        let base = scratch_base(self.run);
        match DirBuilder::new().mode(0o711).create(&base) {
            Ok(()) => {}
            // Made by this run earlier: nobody else can know its name, and the sticky bit keeps it ours.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.lock.metadata().is_ok() => {}
            Err(error) => return Err(error),
        }
        let scratch = Scratch(base.join(name.to_string()));
        DirBuilder::new().mode(0o711).create(&scratch.0)?;
        for part in ["work", "tmp"] {
            let dir = scratch.0.join(part);
            DirBuilder::new().mode(0o700).create(&dir)?;
            if let Some(block) = owner {
                chown(&dir, Some(block_start(block)), Some(block_start(block)))?;
            }
        }
        Ok(scratch)
    }

    /// Leaves the home. Only after every cell is gone.
    pub(crate) fn close(self) {
        let _ = fs::remove_dir(scratch_base(self.run));
        let _guard = lock_runs(&self.runs);
        let _ = fs::remove_file(self.runs.join(self.run.to_string()));
    }
}

/// A run without an owner, locked by us so that nobody else recovers it at the same time.
pub(crate) struct DeadRun {
    pub(crate) run: RunId,
    path: PathBuf,
    lock: File,
}

impl DeadRun {
    /// The socket of the Docker Engine that made containers for it, if one did.
    pub(crate) fn engine(&self) -> Option<PathBuf> {
        let mut path = vec![0; MAX_SOCKET];
        let length = self.lock.read_at(&mut path, 0).ok().filter(|length| *length > 0)?;
        path.truncate(length);
        Some(PathBuf::from(OsString::from_vec(path)))
    }

    /// Forgets the run, after its cells and records have been dealt with.
    pub(crate) fn remove(self) -> Result<(), HomeError> {
        remove_tree(&scratch_base(self.run)).map_err(HomeError::at("remove", &self.path))?;
        fs::remove_file(&self.path).map_err(HomeError::at("remove", &self.path))
    }
}

/// The kernel takes no longer path for a socket.
const MAX_SOCKET: usize = 108;

fn scratch_base(run: RunId) -> PathBuf {
    std::env::temp_dir().join(format!("casemate-{run}"))
}

/// A cell's files on the host; removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn part(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}

/// Removes a tree that hostile code may have arranged: links are not followed, locked directories are opened up.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unlock_directories(path)?;
            fs::remove_dir_all(path)
        }
        other => other,
    }
}

fn unlock_directories(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            unlock_directories(&entry.path())?;
        }
    }
    Ok(())
}

/// The blocks of host ids, shared by every Casemate on this host: one locked byte per block in use.
pub(crate) struct Ids {
    file: File,
    used: Mutex<HashSet<u16>>,
}

impl Ids {
    const DIR: &str = "/run/casemate";

    fn open() -> Result<Ids, HomeError> {
        let dir = Path::new(Self::DIR);
        private_directory(dir).map_err(HomeError::at("create", dir))?;
        let path = dir.join("ids");
        let file = open_lock(&path).map_err(HomeError::at("open", &path))?;
        Ok(Ids { file, used: Mutex::default() })
    }

    fn take(self: &Arc<Self>) -> io::Result<IdBlock> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let start = u16::from_le_bytes(sys::random()?) % ID_BLOCKS;
        for offset in 0..ID_BLOCKS {
            let block = (start + offset) % ID_BLOCKS;
            // The lock is the process's, so what we have ourselves has to be remembered beside it.
            if !used.contains(&block) && sys::lock_byte(&self.file, block, Lock::Take)? {
                used.insert(block);
                return Ok(IdBlock { block, ids: self.clone() });
            }
        }
        Err(io::Error::other("every block of ids is in use"))
    }
}

/// A block of ids that no other cell has. Free again when dropped.
pub(crate) struct IdBlock {
    pub(crate) block: u16,
    ids: Arc<Ids>,
}

impl Drop for IdBlock {
    fn drop(&mut self) {
        let mut used = self.ids.used.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = sys::lock_byte(&self.ids.file, self.block, Lock::Release);
        used.remove(&self.block);
    }
}

/// As the launcher decides.
fn owns_id_blocks() -> bool {
    ["/proc/self/uid_map", "/proc/self/gid_map"]
        .into_iter()
        .all(|map| fs::read_to_string(map).is_ok_and(|map| covers_blocks(&map)))
}

pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).recursive(true).create(path) {
        Ok(()) => Ok(()),
        Err(error) if path.is_dir() => {
            let _ = error;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn lock_runs(runs: &Path) -> Result<File, HomeError> {
    let path = runs.join("lock");
    let file = open_lock(&path).map_err(HomeError::at("open", &path))?;
    file.lock().map_err(HomeError::at("lock", &path))?;
    Ok(file)
}

pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
