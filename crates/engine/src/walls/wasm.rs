//! The `wasm` wall: instances in a worker, which is the payload of a cell of the outer wall.
//!
//! A tenant has one worker per outer wall, and every call an instance of its own in there. What a worker cannot bound for one
//! call among others (files, processor share) makes a call get a worker, and with it a cell, of its own.

mod cache;
mod compiler;
mod grants;
mod line;
mod runtimes;
mod worker;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use casemate_core::evidence::hex;
use casemate_core::limits::LimitKind;
use casemate_core::plan::Plan;
use casemate_core::policy::Sharing;
use casemate_core::request::{Capability, CodeSource, Language, Workload};
use casemate_core::stack::{Stack, Wall as WallName};
use casemate_wire::guest::Id;
use casemate_wire::launch::Counters;
use casemate_wire::worker::{self as wire, CallLimits, Files, Maker, Mode, ToWorker};
use serde_json::{Value, json};

use crate::agents::{Agents, COMPILER_DIGEST, WORKER_DIGEST};
use crate::guest::{Channel, GuestChannel};
use crate::recorder::Store;
use crate::run::{STDERR, STDIN, STDOUT, Trouble};
use crate::wall::{Begun, Cell, Control, Gauges, Hold, Job, Later, Look, Places, Wall, WallError};

use cache::Cache;
use compiler::{Compiler, Place, What};
pub(crate) use line::CallChannel;
pub(crate) use runtimes::{LANGUAGES, Runtimes};
use worker::{Module, Worker};

/// Source code goes to a worker in pieces of this size.
const PIECE: usize = 1 << 20;

/// Workers that stay although they have nothing to do, and for how long, once another one is needed.
const MAX_WORKERS: usize = 64;
const MAX_IDLE: Duration = Duration::from_secs(600);

pub(crate) struct Wasm {
    agents: Agents,
    /// Our own programs, in memory that nobody can write to.
    worker_program: OnceLock<OwnedFd>,
    compiler_program: OnceLock<OwnedFd>,
    compiler: Compiler,
    runtimes: Arc<Runtimes>,
    workers: Mutex<HashMap<Whose, Arc<Worker>>>,
    /// Held while somebody's worker is being started, so that there are never two.
    starting: Mutex<HashMap<Whose, Arc<tokio::sync::Mutex<()>>>>,
    store: Arc<Store>,
    run: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Whose {
    tenant: String,
    outer: WallName,
}

/// One call, from the plan to the worker.
pub(crate) struct Call {
    worker: Arc<Worker>,
    module: Option<Module>,
    /// The guest of a cell that only this call is in.
    files: Option<GuestChannel>,
}

impl Wasm {
    pub(crate) fn new(
        home: &Path,
        agents: Agents,
        runtimes: Arc<Runtimes>,
        store: Arc<Store>,
        run: String,
    ) -> Wasm {
        Wasm {
            compiler: Compiler::new(Cache::new(home, *COMPILER_DIGEST)),
            agents,
            worker_program: OnceLock::new(),
            compiler_program: OnceLock::new(),
            runtimes,
            workers: Mutex::default(),
            starting: Mutex::default(),
            store,
            run,
        }
    }

    /// A place in a worker for one call. Nothing of the request is in there yet.
    pub(crate) async fn start(&self, plan: &Plan, outer: &dyn Wall) -> Result<Cell, WallError> {
        if wants_its_own(plan) {
            return self.start_own(plan, outer).await;
        }
        let worker = self.worker(plan, outer).await?;
        let short = match plan.workload() {
            Workload::Component { component, .. } => worker.is_short((component.digest(), mode(plan))),
            _ => false,
        };
        let channel = worker.line().call(short);
        let control = Box::new(SharedControl { channel: channel.remote() });
        let job = Job::Call(Call { worker, module: None, files: None });
        let places = Places { work: "/work".into(), tmp: "/tmp".into() };
        Ok(Cell {
            channel: Channel::Call(channel),
            job,
            places,
            control,
            gauges: Gauges::Outside,
            hold: Hold::Gate,
            runtime: Value::Null,
        })
    }

    /// Compiles what the plan wants to run, unless that was done before, and has the worker load it.
    pub(crate) async fn prepare(
        &self,
        cell: &mut Cell,
        plan: &Plan,
        outer: &dyn Wall,
    ) -> Result<(), Trouble> {
        let Job::Call(call) = &mut cell.job else { return Ok(()) };
        let mode = mode(plan);
        let (what, maker) = match plan.workload() {
            Workload::Component { component, .. } => {
                (What::of_caller(plan.tenant(), component), Maker::Caller)
            }
            Workload::Code { language, .. } => {
                let ours = self.runtimes.get(*language).map_err(Trouble::Refused)?;
                (ours, Maker::Us)
            }
            Workload::Command { .. } | Workload::Session => {
                return Err(Trouble::Failed("a command is not WASM".into()));
            }
        };
        let module = call
            .worker
            .module((what.digest, mode), maker, what.name, async {
                let stack = outer_stack(plan.stack());
                let place = Place { wall: outer, stack: &stack, program: &|| self.compiler_program() };
                self.compiler.code(&what, mode, place).await
            })
            .await?;
        grants::check(what.name, maker, &module, plan.capabilities()).map_err(Trouble::Refused)?;
        call.module = Some(module);
        Ok(())
    }

    /// Takes an interpreter in: keeps it, and compiles it for every way of running it.
    pub(crate) async fn install(
        &self,
        language: Language,
        bytes: &[u8],
        outer: &dyn Wall,
        mut progress: impl FnMut(&str),
    ) -> Result<(), Trouble> {
        let installed =
            self.runtimes.install(language, bytes).map_err(|error| Trouble::Failed(error.to_string()))?;
        let what = installed.what();
        let stack = Stack::of(WallName::Container);
        let place = Place { wall: outer, stack: &stack, program: &|| self.compiler_program() };
        for (mode, words) in
            [(Mode::Ordinary, "compiling"), (Mode::Deterministic, "compiling, deterministic")]
        {
            progress(words);
            self.compiler.code(&what, mode, place).await?;
        }
        Ok(())
    }

    /// Those that there is an interpreter for.
    pub(crate) fn languages(&self) -> Vec<Language> {
        self.runtimes.languages()
    }

    /// Ends every worker.
    pub(crate) async fn shutdown(&self) {
        let workers = std::mem::take(&mut *self.workers());
        for worker in workers.into_values() {
            worker.end("the engine shuts down").await;
        }
    }

    /// The worker that this plan's tenant has already, or a new one.
    async fn worker(&self, plan: &Plan, outer: &dyn Wall) -> Result<Arc<Worker>, WallError> {
        let whose = Whose { tenant: plan.tenant().to_owned(), outer: plan.stack().outermost() };
        if let Some(worker) = self.living(&whose) {
            return Ok(worker);
        }
        let starting = {
            let mut starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody waits for those that only this map knows.
            starting.retain(|_, lock| Arc::strong_count(lock) > 1);
            starting.entry(whose.clone()).or_default().clone()
        };
        let _starting = starting.lock().await;
        if let Some(worker) = self.living(&whose) {
            return Ok(worker);
        }
        let dead = self.workers().remove(&whose);
        if let Some(dead) = dead {
            dead.end("it had died").await;
        }
        for idle in self.take_idle() {
            idle.end("nobody needed it for a while").await;
        }
        let program = self.worker_program()?;
        let stack = outer_stack(plan.stack());
        let shared = worker::shared_plan(&stack, plan.tenant())
            .map_err(|refusal| WallError::Failed(refusal.reason))?;
        let (line, cell, begun) = worker::launch(&shared, outer, program.as_fd()).await?;
        let description = describe(plan, &begun, &cell.runtime);
        let worker = Worker::shared(line, cell);
        worker.open_record(&self.store, &self.run, description)?;
        let worker = Arc::new(worker);
        self.workers().insert(whose, worker.clone());
        Ok(worker)
    }

    /// A worker, and a cell, that this call alone is in.
    async fn start_own(&self, plan: &Plan, outer: &dyn Wall) -> Result<Cell, WallError> {
        let program = self.worker_program()?;
        let stack = outer_stack(plan.stack());
        let own = worker::own_plan(&stack, plan).map_err(|refusal| WallError::Failed(refusal.reason))?;
        let (line, cell, begun) = worker::launch(&own, outer, program.as_fd()).await?;
        let observed = json!({
            "worker_sha256": hex(WORKER_DIGEST), "posture": crate::evidence::observed(&begun, &cell.runtime),
        });
        let Cell { channel, places, control, .. } = cell;
        let Channel::Guest(files) = channel else {
            return Err(WallError::Failed("the worker's cell has no guest".into()));
        };
        let worker = Arc::new(Worker::own(line, observed));
        let channel = worker.line().call(false);
        let job = Job::Call(Call { worker, module: None, files: Some(files) });
        let (channel, control) = (Channel::Call(channel), Box::new(OwnControl(control)));
        let (gauges, hold) = (Gauges::Outside, Hold::Gate);
        Ok(Cell { channel, job, places, control, gauges, hold, runtime: Value::Null })
    }

    /// Workers that are not worth their memory any more, taken from the others.
    fn take_idle(&self) -> Vec<Arc<Worker>> {
        let mut workers = self.workers();
        let mut unused: Vec<(Duration, Whose)> = workers
            .iter()
            .filter(|(_, worker)| !worker.line().is_busy())
            .map(|(whose, worker)| (worker.idle(), whose.clone()))
            .collect();
        unused.sort_unstable_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        let too_many = (workers.len() + 1).saturating_sub(MAX_WORKERS);
        let gone =
            unused.into_iter().enumerate().filter(|(at, (idle, _))| *at < too_many || *idle > MAX_IDLE);
        gone.filter_map(|(_, (_, whose))| workers.remove(&whose)).collect()
    }

    fn living(&self, whose: &Whose) -> Option<Arc<Worker>> {
        self.workers().get(whose).filter(|worker| worker.take()).cloned()
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, HashMap<Whose, Arc<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker_program(&self) -> Result<&OwnedFd, WallError> {
        super::made_once(&self.worker_program, || self.agents.worker())
    }

    fn compiler_program(&self) -> Result<&OwnedFd, WallError> {
        super::made_once(&self.compiler_program, || self.agents.compiler())
    }
}

/// What the record of a shared worker says about it.
fn describe(plan: &Plan, begun: &Begun, runtime: &Value) -> Value {
    json!({
        "worker": {
            "tenant": plan.tenant(),
            "stack": plan.stack().walls().iter().map(|wall| wall.as_str()).collect::<Vec<_>>(),
            "class": plan.class().as_str(),
            "sha256": hex(WORKER_DIGEST),
        },
        "observed": crate::evidence::observed(begun, runtime),
    })
}

/// What cannot be bounded for one call among others.
fn wants_its_own(plan: &Plan) -> bool {
    let asked = |kind| plan.limits().get(kind).is_some_and(|bound| bound.asked());
    plan.sharing() == Sharing::None
        // A machine is never shared.
        || plan.stack().outermost() == WallName::Microvm
        || !plan.files_in().is_empty()
        || !plan.files_out().is_empty()
        || [LimitKind::Cpus, LimitKind::Disk, LimitKind::Inodes].into_iter().any(asked)
}

/// The walls around the worker.
fn outer_stack(stack: &Stack) -> Stack {
    let walls = stack.walls();
    let outer = walls.strip_suffix(&[WallName::Wasm]).unwrap_or(walls);
    Stack::new(outer).unwrap_or_else(|_| stack.clone())
}

fn mode(plan: &Plan) -> Mode {
    if plan.deterministic() { Mode::Deterministic } else { Mode::Ordinary }
}

impl Call {
    pub(crate) fn files(&mut self) -> Option<&mut GuestChannel> {
        self.files.as_mut()
    }

    /// What stands around this call, as it was seen from outside when its worker began.
    pub(crate) fn observed(&self) -> Value {
        self.worker.observed()
    }

    /// Tells the worker.
    pub(crate) fn begin(&self, channel: &mut CallChannel, plan: &Plan, stdin: bool) -> Result<(), Trouble> {
        let Some(module) = &self.module else {
            return Err(Trouble::Failed("the call was not prepared".into()));
        };
        let id = channel.number();
        let (args, source) = match plan.workload() {
            Workload::Component { args, .. } => (args.clone(), None),
            Workload::Code { source, args, .. } => (args.clone(), Some(source)),
            Workload::Command { argv } => (argv.clone(), None),
            Workload::Session => (Vec::new(), None),
        };
        let source_name = match source {
            Some(CodeSource::File { name, bytes }) => {
                send_source(channel, id, bytes);
                Some(name.clone())
            }
            Some(CodeSource::Inline(code)) => {
                send_source(channel, id, code.as_bytes());
                None
            }
            None => None,
        };
        let value = |kind| plan.limits().get(kind).map_or(u64::MAX, |bound| bound.value);
        let ours = matches!(plan.workload(), Workload::Code { .. });
        let files = if self.files.is_some() { files(plan) } else { Files::None };
        let granted = |capability| ours || plan.capabilities().contains(&capability);
        let call = wire::Call {
            id,
            module: module.number,
            args,
            env: environment(plan, ours, files != Files::None),
            source_name,
            stdin: stdin.then_some(id + STDIN),
            stdout: id + STDOUT,
            stderr: id + STDERR,
            files,
            egress: plan.egress().to_vec(),
            grants: wire::Grants {
                clocks: granted(Capability::Clocks),
                random: granted(Capability::Random),
                // No rule gets past the router yet.
                http: !plan.egress().is_empty(),
            },
            limits: CallLimits {
                memory_bytes: value(LimitKind::Memory),
                cpu_micros: value(LimitKind::CpuTime).saturating_mul(1000),
                handles: u32::try_from(value(LimitKind::OpenFiles)).unwrap_or(u32::MAX),
                output_bytes: value(LimitKind::Output),
            },
        };
        channel.begin(call, module.pace.clone());
        Ok(())
    }
}

/// A call has files if it was granted some, or room for them. A component that is only given files can only read them.
fn files(plan: &Plan) -> Files {
    let asked = |kind| plan.limits().get(kind).is_some_and(|bound| bound.asked());
    let room = asked(LimitKind::Disk) || asked(LimitKind::Inodes) || !plan.files_out().is_empty();
    match plan.workload() {
        _ if room => Files::ReadWrite,
        _ if plan.files_in().is_empty() => Files::None,
        Workload::Component { .. } => Files::Read,
        // It finds what it would find behind every other wall.
        Workload::Code { .. } | Workload::Command { .. } | Workload::Session => Files::ReadWrite,
    }
}

/// A component has the variables that it was given. An interpreter also has those that it would have on every other wall.
fn environment(plan: &Plan, ours: bool, files: bool) -> Vec<(String, String)> {
    let mut env = Vec::new();
    if ours {
        env.push((
            "PATH".to_owned(),
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ));
    }
    if ours && files {
        env.extend([("HOME".to_owned(), "/work".to_owned()), ("TMPDIR".to_owned(), "/tmp".to_owned())]);
    }
    for (key, value) in plan.env() {
        env.retain(|(existing, _)| existing != key);
        env.push((key.clone(), value.clone()));
    }
    env
}

fn send_source(channel: &CallChannel, call: Id, bytes: &[u8]) {
    for piece in bytes.chunks(PIECE) {
        channel.tell(&ToWorker::Source { call, bytes: piece.to_vec() });
    }
}

/// A call among others: it can only be given up.
struct SharedControl {
    channel: line::Remote,
}

impl Control for SharedControl {
    fn proceed(&mut self) -> Later<'_, Result<Begun, WallError>> {
        Box::pin(async { Err(WallError::Failed("the worker is gone".into())) })
    }
    fn look(&mut self, _number: u32) -> Later<'_, Result<Look, WallError>> {
        Box::pin(async { Ok(Look::Nobody) })
    }
    fn measure(&mut self) -> Later<'_, Result<Counters, WallError>> {
        Box::pin(async { Ok(Counters::default()) })
    }
    fn finish(&mut self) -> Later<'_, Result<Counters, WallError>> {
        self.channel.cancel();
        Box::pin(async { Ok(Counters::default()) })
    }
}

/// A call that has a cell to itself.
struct OwnControl(Box<dyn Control>);

impl Control for OwnControl {
    fn proceed(&mut self) -> Later<'_, Result<Begun, WallError>> {
        Box::pin(async { Err(WallError::Failed("the worker is gone".into())) })
    }
    fn look(&mut self, number: u32) -> Later<'_, Result<Look, WallError>> {
        self.0.look(number)
    }
    fn measure(&mut self) -> Later<'_, Result<Counters, WallError>> {
        self.0.measure()
    }
    fn finish(&mut self) -> Later<'_, Result<Counters, WallError>> {
        self.0.finish()
    }
}
