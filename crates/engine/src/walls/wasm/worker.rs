//! One worker: a process in a cell that makes instances for one tenant, or for one call.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use casemate_core::evidence::{Body, Event, Subject, hex};
use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::outcome::Refusal;
use casemate_core::plan::Plan;
use casemate_core::request::{Request, RequestDraft, Workload};
use casemate_core::stack::Stack;
use casemate_wire::guest::ToHost;
use casemate_wire::worker::{Maker, Mode, ModuleId, ToWorker, World};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::line::{Gone, Line, Pace};
use crate::guest::Event as Said;
use crate::recorder::Store;
use crate::run::{self, Trouble};
use crate::sys;
use crate::wall::{Attachment, Begun, Cell, Wall, WallError};

/// How long a worker may take from its start to its hello.
const HELLO: Duration = Duration::from_secs(10);
/// How long, and how much of it, a worker that did not start is listened to.
const LAST_WORDS: Duration = Duration::from_secs(1);
const MAX_WORDS: usize = 4096;
/// What all calls of a tenant may have together, besides what each may have.
const SHARED_MEMORY: u64 = 4 << 30;
/// What a worker takes for itself.
const OVERHEAD: u64 = 96 << 20;
/// Threads.
const PIDS: u64 = 64;
/// Components that a worker has loaded at a time.
const MAX_MODULES: usize = 64;

pub(super) struct Worker {
    line: Arc<Line>,
    /// Only kept alive, and only of a shared worker.
    cell: tokio::sync::Mutex<Option<Cell>>,
    modules: Mutex<Modules>,
    /// When it was last asked for.
    used: Mutex<Instant>,
    observed: OnceLock<Value>,
    record: Mutex<Option<OpenRecord>>,
}

/// A component by its digest, and how it is run.
type What = ([u8; 32], Mode);

/// Code that a worker has, or is getting, with the order in which it was last used.
#[derive(Default)]
struct Modules {
    slots: HashMap<What, (u64, Arc<OnceCell<Module>>)>,
    uses: u64,
}

impl Modules {
    /// The place of `what`, and what had to go for it.
    fn slot(&mut self, what: What) -> (Arc<OnceCell<Module>>, Option<Module>) {
        self.uses += 1;
        // What nobody waits for any more, and never came.
        self.slots.retain(|_, (_, slot)| slot.initialized() || Arc::strong_count(slot) > 1);
        let mut gone = None;
        if self.slots.len() >= MAX_MODULES && !self.slots.contains_key(&what) {
            let loaded = self.slots.iter().filter(|(_, (_, slot))| slot.initialized());
            if let Some(oldest) = loaded.min_by_key(|(_, (used, _))| *used).map(|(what, _)| *what) {
                gone = self.slots.remove(&oldest).and_then(|(_, slot)| slot.get().cloned());
            }
        }
        let slot = self.slots.entry(what).or_default();
        slot.0 = self.uses;
        (slot.1.clone(), gone)
    }
}

/// Code that a worker has loaded.
#[derive(Debug, Clone)]
pub(super) struct Module {
    pub(super) number: ModuleId,
    pub(super) world: World,
    pub(super) imports: Vec<String>,
    pub(super) callable: Result<(), String>,
    pub(super) pace: Pace,
}

/// The record of a shared worker, until it ends.
struct OpenRecord {
    store: Arc<Store>,
    run: String,
    id: String,
    subjects: Vec<Subject>,
}

/// Starts a worker in a new cell, and waits until it listens.
pub(super) async fn launch(
    plan: &Plan,
    outer: &dyn Wall,
    program: BorrowedFd<'_>,
) -> Result<(Arc<Line>, Cell, Begun), WallError> {
    let io = |error: std::io::Error| WallError::Failed(format!("cannot make a line to a worker: {error}"));
    let (ours, theirs) = UnixStream::pair().map_err(io)?;
    let attachment = Attachment::Program { program, line: Some(theirs.as_fd()) };
    let mut cell = outer.start_program(plan, attachment).await?;
    drop(theirs);
    let begun = run::start_program(&mut cell, plan).await.map_err(|trouble| match trouble {
        Trouble::Failed(reason) => WallError::Failed(format!("the WASM worker: {reason}")),
        Trouble::Refused(refusal) => WallError::Failed(format!("the WASM worker: {}", refusal.reason)),
        Trouble::Cancelled => WallError::Failed("the WASM worker: cancelled".into()),
    })?;
    let line = Line::open(OwnedFd::from(ours)).map_err(io)?;
    match timeout(HELLO, line.ready()).await {
        Ok(Ok(())) => Ok((line, cell, begun)),
        Ok(Err(why)) => {
            let said = last_words(&mut cell).await;
            Err(WallError::Failed(format!("the WASM worker did not start: {why}{said}")))
        }
        Err(_) => Err(WallError::Failed(format!("the WASM worker was silent for {HELLO:?}"))),
    }
}

/// What a worker that has ended said, and how it ended, as far as its guest tells soon.
async fn last_words(cell: &mut Cell) -> String {
    let mut said = String::new();
    let listen = async {
        loop {
            match cell.channel.next().await {
                Ok(Said::Data { bytes, .. }) if said.len() < MAX_WORDS => {
                    said.push_str(&String::from_utf8_lossy(&bytes));
                }
                Ok(Said::Message(ToHost::Exited { status, .. })) => {
                    return said.push_str(&format!(" ({status:?})"));
                }
                Ok(Said::Closed) | Err(_) => return,
                Ok(_) => {}
            }
        }
    };
    let _ = timeout(LAST_WORDS, listen).await;
    if said.is_empty() { said } else { format!("; {}", said.trim()) }
}

/// For the worker that a tenant's calls share. What each of them may have, the worker sees to.
pub(super) fn shared_plan(stack: &Stack, tenant: &str) -> Result<Plan, Refusal> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let limits = LimitsDraft::new()
        .with(LimitKind::Memory, SHARED_MEMORY)
        .with(LimitKind::Cpus, (cpus * 1000).min(LimitKind::Cpus.range().cap))
        .with(LimitKind::Disk, LimitKind::Disk.range().min)
        .with(LimitKind::Inodes, LimitKind::Inodes.range().min)
        .with(LimitKind::Pids, PIDS);
    plan(stack, tenant, limits)
}

/// For the worker of one call: the cell's limits are the call's, with room for the worker itself.
pub(super) fn own_plan(stack: &Stack, of: &Plan) -> Result<Plan, Refusal> {
    let mut limits = LimitsDraft::new().with(LimitKind::Pids, PIDS);
    for kind in [LimitKind::Cpus, LimitKind::Memory, LimitKind::Disk, LimitKind::Inodes, LimitKind::OpenFiles]
    {
        if let Some(bound) = of.limits().get(kind) {
            let more = match kind {
                LimitKind::Memory => OVERHEAD,
                LimitKind::OpenFiles => 64,
                _ => 0,
            };
            limits.set(kind, (bound.value + more).min(kind.range().cap));
        }
    }
    plan(stack, of.tenant(), limits)
}

fn plan(stack: &Stack, tenant: &str, limits: LimitsDraft) -> Result<Plan, Refusal> {
    let mut draft = RequestDraft::new(Workload::Command { argv: vec!["casemate-wasm".into()] });
    draft.tenant = Some(tenant.to_owned());
    let plan = Plan::of_our_own(Request::new(draft)?, limits, stack.clone())?;
    Ok(plan.unlimited(LimitKind::WallTime).unlimited(LimitKind::CpuTime))
}

impl Worker {
    pub(super) fn shared(line: Arc<Line>, cell: Cell) -> Worker {
        Worker::new(line, Some(cell), OnceLock::new())
    }

    pub(super) fn own(line: Arc<Line>, observed: Value) -> Worker {
        Worker::new(line, None, OnceLock::from(observed))
    }

    fn new(line: Arc<Line>, cell: Option<Cell>, observed: OnceLock<Value>) -> Worker {
        let cell = tokio::sync::Mutex::new(cell);
        let used = Mutex::new(Instant::now());
        Worker { line, cell, modules: Mutex::default(), used, observed, record: Mutex::default() }
    }

    /// How long nobody has asked for it.
    pub(super) fn idle(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Whether it can take a call; if so, it is about to get one.
    pub(super) fn take(&self) -> bool {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.line.is_alive()
    }

    pub(super) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// What the record of a call says about the walls.
    pub(super) fn observed(&self) -> Value {
        self.observed.get().cloned().unwrap_or_default()
    }

    /// Records that this worker stands, and how. Its calls' records point here.
    pub(super) fn open_record(&self, store: &Arc<Store>, run: &str, body: Value) -> Result<(), WallError> {
        let unrecorded = |error: crate::recorder::StoreError| {
            WallError::Failed(format!("cannot record the worker: {error}"))
        };
        let id = sys::random::<16>()
            .map(|bytes| hex(&bytes))
            .map_err(|error| WallError::Failed(error.to_string()))?;
        let digest: [u8; 32] = Sha256::digest(body.to_string().as_bytes()).into();
        let subjects = vec![Subject { name: "worker".into(), sha256: digest }];
        let body = Body::new(&body)
            .map_err(|error| WallError::Failed(format!("cannot record the worker: {error}")))?;
        let receipt = store.append(Event::Opened, &id, run, &subjects, &body).map_err(unrecorded)?;
        let _ = self.observed.set(json!({"worker": id, "record": receipt.to_string()}));
        let record = OpenRecord { store: store.clone(), run: run.to_owned(), id, subjects };
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        Ok(())
    }

    /// Whether its calls of this code were short until now.
    pub(super) fn is_short(&self, what: What) -> bool {
        let modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = modules.slots.get(&what).and_then(|(_, slot)| slot.get());
        module.is_some_and(|module| module.pace.is_short())
    }

    /// Code that this worker has, or gets now.
    pub(super) async fn module(
        &self,
        what: What,
        maker: Maker,
        name: &str,
        code: impl Future<Output = Result<Arc<OwnedFd>, Trouble>>,
    ) -> Result<Module, Trouble> {
        let (slot, gone) = self.modules.lock().unwrap_or_else(PoisonError::into_inner).slot(what);
        if let Some(gone) = gone {
            self.line.tell(&ToWorker::Unload { module: gone.number });
        }
        let load = async {
            let code = code.await?;
            let copy = code.try_clone().map_err(|error| Trouble::Failed(error.to_string()))?;
            let message = |module| ToWorker::Load { module, mode: what.1, maker };
            let loaded = match self.line.load(message, copy).await {
                Ok(Ok(loaded)) => loaded,
                Ok(Err(why)) => {
                    return Err(Trouble::Refused(Refusal::new(
                        format!("{name} cannot be loaded: {why}"),
                        "an instance has room for so many memories, tables, globals and imports; make do with fewer",
                    )));
                }
                Err(Gone) => return Err(Trouble::Failed("the worker ended while it loaded the code".into())),
            };
            let (world, callable) = match loaded.world {
                Ok(world) => (world, Ok(())),
                Err(why) => (World::Tool, Err(why)),
            };
            Ok(Module {
                number: loaded.module,
                world,
                imports: loaded.imports,
                callable,
                pace: Pace::default(),
            })
        };
        let loaded = slot.get_or_try_init(|| load).await.cloned();
        if loaded.is_err() {
            // A place that nothing is in would be kept for ever.
            let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
            let ours =
                |(_, kept): &(u64, Arc<OnceCell<Module>>)| Arc::ptr_eq(kept, &slot) && !kept.initialized();
            if modules.slots.get(&what).is_some_and(ours) {
                modules.slots.remove(&what);
            }
        }
        loaded
    }

    /// Ends this worker, with its cell.
    pub(super) async fn end(&self, why: &str) {
        self.line.end(why.to_owned());
        let cell = self.cell.lock().await.take();
        if let Some(mut cell) = cell {
            let _ = cell.control.finish().await;
        }
        self.close_record(why);
    }

    fn close_record(&self, why: &str) {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(OpenRecord { store, run, id, subjects }) = record {
            // If it cannot be written, the next process closes it as interrupted.
            if let Ok(body) = Body::new(&json!({"worker": {"ended": why}})) {
                let _ = store.append(Event::Closed, &id, &run, &subjects, &body);
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.line.end("nobody needs it any more".into());
        self.close_record("nobody needs it any more");
    }
}
