//! Compiles components: each once, in a cell of its own, under limits.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::outcome::{Cause, Refusal, Status};
use casemate_core::plan::Plan;
use casemate_core::request::{Component, Request, RequestDraft, Stdin, Workload};
use casemate_core::stack::Stack;
use casemate_wire::worker::Mode;
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, Semaphore, mpsc};

use super::cache::{Cache, Key};
use crate::io::{Chunk, Io, Stream};
use crate::run::{self, Ran, Trouble};
use crate::wall::{Attachment, Wall, WallError};

/// What compiling one component may take. An interpreter takes 16 seconds and half a gigabyte, and most tools nothing to speak of.
const CPU_TIME: u64 = 60_000;
const WALL_TIME: u64 = 120_000;
const MEMORY: u64 = 2 << 30;
const CODE: u64 = 512 << 20;
/// Compilers at a time, of all owners together and of each: whoever sends many bombs waits for their own.
const AT_A_TIME: usize = 8;
const OF_ONE_OWNER: usize = 1;
/// Exit code of a compiler that was given nonsense.
const REFUSED: i32 = 3;
/// Compiled code that is kept in memory, by its number.
const KEPT: usize = 64;

pub(crate) struct Compiler {
    cache: Arc<Cache>,
    /// Code by what it was compiled from, including what is being compiled.
    code: Mutex<HashMap<Key, Arc<Slot>>>,
    turns: Semaphore,
    /// Of owners that have something to compile.
    own_turns: Mutex<HashMap<String, Arc<Semaphore>>>,
}

type Slot = OnceCell<Result<Arc<OwnedFd>, Failure>>;

/// Told to everybody who waited for it.
#[derive(Debug, Clone)]
enum Failure {
    Refused(Refusal),
    Failed(String),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        match failure {
            Failure::Refused(refusal) => Trouble::Refused(refusal),
            Failure::Failed(reason) => Trouble::Failed(reason),
        }
    }
}

/// Something to compile.
pub(crate) struct What<'a> {
    pub(crate) name: &'a str,
    /// Whose code it is: a tenant, or nobody's in particular.
    pub(crate) owner: &'a str,
    pub(crate) digest: [u8; 32],
    pub(crate) bytes: Bytes<'a>,
}

/// Only needed if it was not compiled before.
pub(crate) enum Bytes<'a> {
    Here(&'a [u8]),
    File(PathBuf),
}

impl<'a> What<'a> {
    pub(crate) fn of_caller(tenant: &'a str, component: &'a Component) -> What<'a> {
        let bytes = Bytes::Here(component.bytes());
        What { name: component.name(), owner: tenant, digest: component.digest(), bytes }
    }
}

impl What<'_> {
    async fn read(&self) -> io::Result<Vec<u8>> {
        let path = match &self.bytes {
            Bytes::Here(bytes) => return Ok(bytes.to_vec()),
            Bytes::File(path) => path.clone(),
        };
        let read = || std::fs::read(path).map(|bytes| (Sha256::digest(&bytes), bytes));
        let (digest, bytes) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        match digest[..] == self.digest {
            true => Ok(bytes),
            false => Err(io::Error::other(format!("the file of {} was changed", self.name))),
        }
    }
}

/// Where a compiler runs.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) wall: &'a dyn Wall,
    pub(crate) stack: &'a Stack,
    /// Put into memory only if it is needed.
    pub(crate) program: &'a (dyn Fn() -> Result<&'a OwnedFd, WallError> + Sync),
}

impl Compiler {
    pub(crate) fn new(cache: Cache) -> Compiler {
        let (cache, turns) = (Arc::new(cache), Semaphore::new(AT_A_TIME));
        Compiler { cache, code: Mutex::default(), turns, own_turns: Mutex::default() }
    }

    /// Compiled code in sealed memory: from memory, from disk, or made now.
    pub(crate) async fn code(
        &self,
        what: &What<'_>,
        mode: Mode,
        place: Place<'_>,
    ) -> Result<Arc<OwnedFd>, Trouble> {
        let key = Key { owner: what.owner.to_owned(), component: what.digest, mode };
        let slot = {
            let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
            if code.len() >= KEPT && !code.contains_key(&key) {
                // Whatever is in use has other owners as well; the rest can be read again.
                code.retain(|_, slot| !slot.initialized());
            }
            code.entry(key.clone()).or_default().clone()
        };
        let made = slot.get_or_init(|| self.find_or_compile(&key, what, place)).await.clone();
        if made.is_err() {
            // Whoever asks again later may have more luck.
            let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
            if code.get(&key).is_some_and(|current| Arc::ptr_eq(current, &slot)) {
                code.remove(&key);
            }
        }
        Ok(made?)
    }

    async fn find_or_compile(
        &self,
        key: &Key,
        what: &What<'_>,
        place: Place<'_>,
    ) -> Result<Arc<OwnedFd>, Failure> {
        if let Some(found) = self.in_cache(key, Cache::load).await? {
            return Ok(Arc::new(found));
        }
        let closed = |_| Failure::Failed("shutting down".into());
        let own = self.own_turns(&key.owner);
        // First among their own: who waits there takes no place that others could have.
        let _own = own.acquire().await.map_err(closed)?;
        let _turn = self.turns.acquire().await.map_err(closed)?;
        let compiled = compile(key, what, place).await?;
        self.in_cache(key, move |cache, key| cache.keep(key, &compiled)).await.map(Arc::new)
    }

    /// Elsewhere: to check what an interpreter was compiled to takes tens of milliseconds, and other calls go on here.
    async fn in_cache<T: Send + 'static>(
        &self,
        key: &Key,
        work: impl FnOnce(&Cache, &Key) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let (cache, key) = (self.cache.clone(), key.clone());
        let done = tokio::task::spawn_blocking(move || work(&cache, &key)).await;
        done.map_err(io::Error::other)
            .flatten()
            .map_err(|error| Failure::Failed(format!("the cache of compiled code: {error}")))
    }

    fn own_turns(&self, owner: &str) -> Arc<Semaphore> {
        let mut turns = self.own_turns.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody waits for those that only this map knows.
        turns.retain(|_, own| Arc::strong_count(own) > 1);
        turns.entry(owner.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(OF_ONE_OWNER))).clone()
    }
}

async fn compile(key: &Key, what: &What<'_>, place: Place<'_>) -> Result<Vec<u8>, Failure> {
    let refused = |reason: String, hint: &str| Failure::Refused(Refusal::new(reason, hint));
    let failed = |reason: String| Failure::Failed(format!("the compiler: {reason}"));
    let bytes = what.read().await.map_err(|error| failed(error.to_string()))?;
    let plan = plan(key.mode, place.stack).map_err(Failure::Refused)?;
    let program = (place.program)().map_err(|error| failed(error.to_string()))?;
    let attachment = Attachment::Program { program: program.as_fd(), line: None };
    let cell =
        place.wall.start_program(&plan, attachment).await.map_err(|error| failed(error.to_string()))?;
    let (output, mut chunks) = mpsc::channel(8);
    let io = Io { stdin: Some(Box::new(std::io::Cursor::new(bytes))), output: Some(output), ..Io::default() };
    let (mut code, mut words) = (Vec::new(), Vec::new());
    let mut take = |chunk: Chunk| match chunk.stream {
        Stream::Stdout => code.extend(chunk.bytes),
        Stream::Stderr => words.extend(chunk.bytes),
    };
    let gather = async {
        while let Some(chunk) = chunks.recv().await {
            take(chunk);
        }
    };
    let mut ran = Ran::default();
    // Both ends of the output at once: neither waits for the other.
    let (ended, ()) = tokio::join!(run::run(cell, &plan, io, &mut ran), gather);
    std::mem::take(&mut ran.undelivered).into_iter().for_each(take);
    let name = what.name;
    match ended {
        Ok(Status::Exited { code: 0 }) if !ran.stdout_truncated => Ok(code),
        Ok(Status::Exited { code: REFUSED }) => {
            let words = String::from_utf8_lossy(&words);
            let words = words.lines().next().unwrap_or_default();
            Err(refused(
                format!("{name} cannot be compiled: {words}"),
                "`wasm-tools validate` says more about a file",
            ))
        }
        Ok(Status::Killed { cause: cause @ (Cause::Memory | Cause::CpuTime | Cause::WallTime), .. }) => {
            Err(refused(
                format!(
                    "{name} takes too much to compile: {}",
                    Status::Killed { cause, limit: None, peak: None }.describe()
                ),
                "make it smaller: its functions are too large, or too many",
            ))
        }
        // Without a cgroup its own limits end it: a processor for too long, or memory that it does not get.
        Ok(status @ Status::Signaled { signal: libc::SIGXCPU | libc::SIGABRT | libc::SIGKILL }) => {
            Err(refused(
                format!("{name} takes too much to compile: {}", status.describe()),
                "make it smaller: its functions are too large, or too many",
            ))
        }
        Ok(status) => Err(failed(format!("{} {}", status.describe(), String::from_utf8_lossy(&words)))),
        Err(Trouble::Failed(reason)) => Err(failed(reason)),
        Err(Trouble::Refused(refusal)) => Err(Failure::Refused(refusal)),
        Err(Trouble::Cancelled) => Err(failed("cancelled".into())),
    }
}

fn plan(mode: Mode, stack: &Stack) -> Result<Plan, Refusal> {
    let mode = match mode {
        Mode::Ordinary => "ordinary",
        Mode::Deterministic => "deterministic",
    };
    let argv = vec!["casemate-wasm-compile".to_owned(), mode.to_owned()];
    let mut draft = RequestDraft::new(Workload::Command { argv });
    draft.stdin = Stdin::Provided;
    let limits = LimitsDraft::new()
        .with(LimitKind::CpuTime, CPU_TIME)
        .with(LimitKind::WallTime, WALL_TIME)
        .with(LimitKind::Memory, MEMORY)
        .with(LimitKind::Output, CODE)
        .with(LimitKind::Disk, 1 << 20)
        .with(LimitKind::Pids, 16);
    Plan::of_our_own(Request::new(draft)?, limits, stack.clone())
}
