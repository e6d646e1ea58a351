//! The engine and its spine.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use casemate_core::limits::{LimitKind, Limits};
use casemate_core::outcome::{Outcome, Refusal, Status};
use casemate_core::plan::{Decision, Plan};
use casemate_core::policy::{self, Policy};
use casemate_core::request::{ImageRef, Language, Request, Shape, Stdin};
use casemate_core::route::{self, Choice, ImageKind, Profile};
use casemate_core::stack::{Stack, Wall as WallName};
use casemate_wire::launch::{self, Hello, Privilege, Serves};
use tokio::sync::mpsc;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::agents::Agents;
use crate::home::{Home, HomeError};
use crate::images::{ImageError, Images, Stored};
use crate::io::{Chunk, ExecutionId, Io};
use crate::launcher::{Keeper, Launcher, LauncherError, Waiting};
use crate::profiles::Here;
use crate::program::{Identifier, Programs};
use crate::record::Record;
use crate::recorder::{Receipt, Store, StoreError};
use crate::run::{self, Ran, Trouble};
use crate::wall::{Cell, Wall, WallError};
use crate::walls::container::Container;
use crate::walls::docker::Docker;
use crate::walls::gvisor::Gvisor;
use crate::walls::microvm::Microvm;
use crate::walls::process::Process;
use crate::walls::wasm::{Runtimes, Wasm};
use crate::watch::cancelled;

#[derive(Debug)]
pub struct Config {
    /// Where keys, evidence and run locks live; see [`crate::default_home`].
    pub home: PathBuf,
    pub policy: Policy,
    pub durability: Durability,
    pub ahead: Ahead,
    pub agents: Agents,
    /// The Docker Engine to use, as `DOCKER_HOST` names it; the usual one if empty.
    pub docker_host: String,
    /// Where what `casemate setup` gets and builds is: the home, unless it is somebody else's.
    pub installed: PathBuf,
    /// Started before the rest of this was known.
    pub launcher: Option<EarlyLauncher>,
}

impl Config {
    /// A long-lived engine.
    pub fn new(home: impl Into<PathBuf>, policy: Policy) -> Config {
        let home = home.into();
        Config {
            installed: home.clone(),
            home,
            policy,
            durability: Durability::FromPolicy,
            ahead: Ahead::Always,
            agents: Agents::embedded(),
            docker_host: std::env::var("DOCKER_HOST").unwrap_or_default(),
            launcher: None,
        }
    }
}

/// A launcher that takes its time to start while its engine is being configured. Dropped, it ends without a word.
#[derive(Debug)]
pub struct EarlyLauncher(Waiting);

impl EarlyLauncher {
    pub fn start(agents: &Agents, ahead: Ahead) -> io::Result<EarlyLauncher> {
        Waiting::spawn(agents, Serves::Container, ahead.into()).map(EarlyLauncher)
    }
}

/// What is made before it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// An engine that may only have to answer questions.
    Nothing,
    /// One cell will be asked for at once, with such an image.
    One(ImageKind),
    /// The next cell, whenever nobody waits.
    Always,
}

impl From<Ahead> for launch::Ahead {
    fn from(ahead: Ahead) -> launch::Ahead {
        match ahead {
            Ahead::Nothing => launch::Ahead::Nothing,
            Ahead::One(ImageKind::Host) => launch::Ahead::First(launch::Image::Host),
            Ahead::One(ImageKind::Directory | ImageKind::Stored) => {
                launch::Ahead::First(launch::Image::Directory)
            }
            Ahead::Always => launch::Ahead::Every,
        }
    }
}

/// When records are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// As the policy says: a long-lived engine.
    FromPolicy,
    /// At [`Engine::shutdown`]: a command that runs once.
    OnExit,
}

/// Runs requests behind walls. One per process; cheap to call from many tasks at once.
pub struct Engine {
    policy: Policy,
    profiles: Vec<Profile>,
    store: Arc<Store>,
    run: String,
    home: Arc<Home>,
    hello: Hello,
    container: Arc<Container>,
    process: Process,
    gvisor: Gvisor,
    microvm: Microvm,
    docker: Docker,
    wasm: Wasm,
    programs: Arc<Programs>,
    images: Images,
    decisions: Mutex<HashMap<Shape, Arc<Decision>>>,
}

/// Decisions that are remembered: many more than an engine has tenants with different habits.
const KEPT_DECISIONS: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Images(#[from] ImageError),
    #[error("cannot start the launcher: {0}")]
    Launcher(String),
}

impl OpenError {
    pub fn hint(&self) -> Option<String> {
        match self {
            OpenError::Home(_) => Some("set CASEMATE_HOME to a directory that you can write to".into()),
            OpenError::Store(error) => error.hint(),
            OpenError::Images(error) => Some(error.hint()),
            OpenError::Launcher(_) => None,
        }
    }
}

impl From<LauncherError> for OpenError {
    fn from(error: LauncherError) -> OpenError {
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        OpenError::Launcher(format!("{error}{source}"))
    }
}

/// What an execution comes to.
#[derive(Debug)]
pub struct Executed {
    pub outcome: Outcome,
    /// The closing record's place in the chain.
    pub receipt: Option<Receipt>,
    /// Set when a record could not be written: then the outcome is `failed`.
    pub evidence_error: Option<EvidenceError>,
}

/// Why a record could not be written, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvidenceError {
    pub reason: String,
    pub hint: Option<String>,
}

impl From<&StoreError> for EvidenceError {
    fn from(error: &StoreError) -> EvidenceError {
        EvidenceError { reason: error.to_string(), hint: error.hint() }
    }
}

impl std::fmt::Display for EvidenceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.hint {
            Some(hint) => write!(f, "{} ({hint})", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// What would run where, and why.
#[derive(Debug)]
pub struct Explanation {
    pub choice: Choice,
    /// As the record would show it.
    pub image: String,
    pub limits: Limits,
    pub floors: Vec<String>,
}

impl Engine {
    /// Opens the home, starts the launcher, and closes what dead processes left open.
    pub async fn open(config: Config) -> Result<Engine, OpenError> {
        let Config { home, policy, durability, ahead, agents, docker_host, installed, launcher } = config;
        let ahead = ahead.into();
        let durability = match durability {
            Durability::OnExit => crate::recorder::Durability::OnExit,
            Durability::FromPolicy => match policy.durability() {
                policy::Durability::Batch => crate::recorder::Durability::Batch,
                policy::Durability::Each => crate::recorder::Durability::Each,
            },
        };
        let dir = home;
        // It takes a while to start, and needs nothing of ours before it is told what to do.
        let waiting = match launcher {
            Some(EarlyLauncher(waiting)) => waiting,
            None => Waiting::spawn(&agents, Serves::Container, ahead).map_err(LauncherError::Start)?,
        };
        let home = Arc::new(Home::open(&dir)?);
        let keeper = Keeper::new(agents.clone(), home.clone(), Serves::Container, ahead).with(waiting);
        let images = Images::of(&dir);
        let prepare = || {
            images.sweep()?;
            Ok((Store::open(&dir, durability)?, Arc::new(Programs::new(&dir))))
        };
        let docker = Docker::new(agents.clone(), home.clone(), policy.docker_runtime(), &docker_host);
        let (launcher, (store, programs)) = match begin(&keeper, &home, &docker, prepare).await {
            Ok(begun) => begun,
            // What was begun is undone: a start that fails leaves no more behind than one that succeeds.
            Err(error) => {
                let _leaving = keeper.shutdown(|| ()).await;
                drop(docker);
                if let Some(home) = Arc::into_inner(home) {
                    home.close();
                }
                return Err(error);
            }
        };
        let runtimes = Arc::new(Runtimes::find(&installed));
        let (store, run) = (Arc::new(store), home.run.to_string());
        let container = Arc::new(Container { keeper, home: home.clone() });
        let gvisor = Gvisor::new(&installed, agents.clone(), container.clone());
        let microvm = Microvm::new(&dir, &installed, agents.clone(), container.clone());
        let languages = runtimes.languages();
        let here = Here {
            hello: launcher.hello(),
            gvisor: gvisor.missing(),
            microvm: microvm.missing(),
            docker: (docker.runtime(), docker.missing()),
            languages: &languages,
        };
        Ok(Engine {
            policy,
            profiles: crate::profiles::profiles(&here),
            wasm: Wasm::new(&dir, agents.clone(), runtimes, store.clone(), run.clone()),
            store,
            run,
            hello: launcher.hello().clone(),
            container,
            gvisor,
            microvm,
            docker,
            process: Process {
                keeper: Keeper::new(agents, home.clone(), Serves::Process, ahead),
                home: home.clone(),
                made: AtomicU32::new(0),
            },
            programs,
            images,
            decisions: Mutex::default(),
            home,
        })
    }

    /// What this process is called in records.
    pub fn run_id(&self) -> &str {
        &self.run
    }

    /// The most of this that the policy lets a tenant ask for.
    pub fn cap(&self, tenant: &str, kind: LimitKind) -> u64 {
        self.policy.cap(tenant, kind)
    }

    /// Whether whoever is called so in records still runs: several processes may share a home.
    pub fn is_alive(&self, run: &str) -> Result<bool, OpenError> {
        match run.parse() {
            Ok(run) => Ok(self.home.is_alive(run)?),
            Err(_) => Ok(false),
        }
    }

    /// What each stack can do on this host.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// Facts about this host that decide what can be enforced.
    pub fn facts(&self) -> Vec<(String, String)> {
        let hello = &self.hello;
        let privilege = match hello.privilege {
            Privilege::Root => "root",
            Privilege::Rootless => "rootless",
        };
        let cgroups = &hello.cgroups;
        let controllers = [
            ("memory", cgroups.memory),
            ("pids", cgroups.pids),
            ("cpu", cgroups.cpu),
            ("cpu usage", cgroups.cpu_usage),
            ("io", cgroups.io),
        ];
        let usable: Vec<&str> =
            controllers.iter().filter(|(_, usable)| *usable).map(|(name, _)| *name).collect();
        let mut facts = vec![
            ("privilege".into(), privilege.into()),
            ("landlock".into(), format!("ABI {}", hello.landlock_abi)),
            ("seccomp".into(), if hello.seccomp { "yes" } else { "no" }.into()),
            ("cgroups".into(), format!("{} ({})", cgroups.layout, usable.join(", "))),
        ];
        let languages: Vec<&str> = self.wasm.languages().iter().map(|language| language.as_str()).collect();
        facts.push((
            "in wasm".into(),
            match languages[..] {
                [] => "components only; `casemate setup wasm` adds python and javascript".into(),
                _ => format!("components, {}", languages.join(", ")),
            },
        ));
        facts.push(("gvisor".into(), self.gvisor.describe()));
        facts.push(("microvm".into(), self.microvm.describe()));
        if let Some(missing) = &cgroups.missing {
            facts.push(("cgroups missing".into(), missing.clone()));
        }
        facts
    }

    /// Decides and routes without running anything.
    pub fn explain(&self, request: &Request) -> Result<Explanation, Refusal> {
        let grants = policy::decide(&self.policy, request)?;
        let choice = route::choose(&grants, &self.profiles)?;
        Ok(Explanation {
            choice,
            image: crate::evidence::image(request.image()).into_owned(),
            limits: grants.limits().clone(),
            floors: grants.floors().iter().map(ToString::to_string).collect(),
        })
    }

    /// What a request may use, as it is decided for it, and which of that nothing here enforces.
    pub fn bounds(&self, request: &Request) -> Result<(Limits, Vec<LimitKind>), Refusal> {
        let decision = self.decide(request)?;
        Ok((decision.limits().clone(), decision.unbounded().to_vec()))
    }

    /// Runs one request in a cell of its own: decide, route, plan, record, run, destroy, record.
    pub async fn execute(&self, request: Request, mut io: Io) -> Executed {
        let request = Arc::new(request);
        let mut record = Record::open(&self.store, &self.run, io.id.take().unwrap_or_else(ExecutionId::new));
        let mut ran = Ran::default();
        let output = io.output.clone();
        let ended = async {
            check_attachments(&request, &io).map_err(Trouble::Refused)?;
            let decision = self.decide(&request).map_err(Trouble::Refused)?;
            let plan = Plan::new(request.clone(), decision);
            ran.timings.mark("decide");
            // Building an empty cell takes longer than writing the record: they go on at the same time. What is to run
            // in it gets there only after that.
            // From the store, nobody removes it before this block ends.
            let stored = self.image_of(&request).map_err(Trouble::Refused)?;
            let directory = io.image.take();
            let image = stored.as_ref().map(|stored| &stored.dir).or(directory.as_ref());
            let started = self.start(&plan, image.map(AsFd::as_fd)).await;
            ran.timings.mark("start");
            let program = self.programs.identify(&plan, image);
            record.planned(&request, &plan, program).map_err(not_recorded)?;
            ran.timings.mark("record");
            let cell = self.prepare(started?, &plan, &mut io, &mut ran).await?;
            run::run(cell, &plan, io, &mut ran).await
        }
        .await;
        let status = ended.unwrap_or_else(Status::from);
        let undelivered = std::mem::take(&mut ran.undelivered);
        let mut executed = record.close(Some(&request), status, ran);
        let patience = match executed.outcome.status {
            Status::Killed { .. } => AFTER_A_KILL,
            _ => Duration::MAX,
        };
        if deliver(output, undelivered, patience).await.is_err() {
            (executed.outcome.stdout_truncated, executed.outcome.stderr_truncated) = (true, true);
        }
        executed
    }

    /// Takes in an interpreter that was compiled to WASM: the language runs on `+wasm` stacks from now on, here and in engines
    /// that are opened later. Compiling it takes a while; `progress` hears of it.
    pub async fn install_runtime(
        &mut self,
        language: Language,
        component: &[u8],
        progress: impl FnMut(&str),
    ) -> Result<(), Refusal> {
        let installed = self.wasm.install(language, component, &*self.container, progress).await;
        installed.map_err(|trouble| match trouble {
            Trouble::Refused(refusal) => refusal,
            Trouble::Failed(reason) => Refusal::new(reason, "`casemate doctor` says what stands here"),
            Trouble::Cancelled => Refusal::new("cancelled", "try again"),
        })?;
        let languages = self.wasm.languages();
        let here = Here {
            hello: &self.hello,
            gvisor: self.gvisor.missing(),
            microvm: self.microvm.missing(),
            docker: (self.docker.runtime(), self.docker.missing()),
            languages: &languages,
        };
        self.profiles = crate::profiles::profiles(&here);
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    /// Starts a real sandbox with gVisor, unless that was done since this machine was started, and says what with.
    pub async fn probe_gvisor(&self) -> Result<String, Refusal> {
        let gvisor = Stack::of(WallName::Gvisor);
        let profile = self.profiles.iter().find(|profile| *profile.stack() == gvisor);
        // What is missing may be something else than a sandbox that starts.
        if let (Privilege::Rootless, Some(route::State::Missing { reason, hint })) =
            (self.hello.privilege, profile.map(Profile::state))
        {
            return Err(Refusal::new(reason, hint));
        }
        self.gvisor.probe().await?;
        Ok(self.gvisor.describe())
    }

    /// Boots a virtual machine, and says what of.
    pub async fn probe_microvm(&self) -> Result<String, Refusal> {
        let microvm = Stack::of(WallName::Microvm);
        let profile = self.profiles.iter().find(|profile| *profile.stack() == microvm);
        if let Some(route::State::Missing { reason, hint }) = profile.map(Profile::state) {
            return Err(Refusal::new(reason, hint));
        }
        self.microvm.probe().await?;
        Ok(self.microvm.describe())
    }

    /// Records a request that was refused before it became valid.
    pub async fn refuse(&self, refusal: Refusal) -> Executed {
        self.new_record().close(None, Status::Refused(refusal), Ran::default())
    }

    /// Waits until every cell is gone and every record durable, then leaves the home. What is left are launchers on their
    /// way out, which are waited for when the [`Leaving`] is dropped.
    pub async fn shutdown(self) -> Result<Leaving, OpenError> {
        self.wasm.shutdown().await;
        self.docker.shutdown().await;
        let Engine { container, process, gvisor, microvm, docker, wasm, home, store, .. } = self;
        drop((wasm, gvisor, microvm, docker));
        let Some(container) = Arc::into_inner(container) else {
            return Err(OpenError::Launcher("somebody still uses it".into()));
        };
        // The disk and the launchers take their time at the same time.
        let mut synced = None;
        let process_leaving = process.keeper.shutdown(|| ()).await;
        let container_leaving = container.keeper.shutdown(|| synced = Some(store.sync())).await;
        drop((process.home, container.home));
        if let Some(home) = Arc::into_inner(home) {
            home.close();
        }
        synced.unwrap_or_else(|| store.sync())?;
        Ok(Leaving([process_leaving, container_leaving]))
    }

    pub(crate) fn new_record(&self) -> Record {
        Record::open(&self.store, &self.run, ExecutionId::new())
    }

    /// Whoever knows which program a request means, if its image is this one.
    pub(crate) fn identifier(&self, image: Option<Stored>) -> Identifier {
        Identifier { programs: self.programs.clone(), image }
    }

    pub(crate) fn image_of(&self, request: &Request) -> Result<Option<Stored>, Refusal> {
        self.images.of_request(request.image())
    }

    /// What the policy and the profiles make of a request. They do not change, so neither does what they make of the next one
    /// that is like it.
    pub(crate) fn decide(&self, request: &Request) -> Result<Arc<Decision>, Refusal> {
        let shape = request.shape();
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decision) = decisions.get(&shape) {
            return Ok(decision.clone());
        }
        let grants = policy::decide(&self.policy, request)?;
        let choice = route::choose(&grants, &self.profiles)?;
        let decision = Arc::new(Decision::new(&grants, choice));
        if decisions.len() >= KEPT_DECISIONS {
            decisions.clear();
        }
        decisions.insert(shape, decision.clone());
        Ok(decision)
    }

    /// Asks for a cell.
    pub(crate) async fn start(&self, plan: &Plan, image: Option<BorrowedFd<'_>>) -> Result<Cell, WallError> {
        if plan.stack().contains(WallName::Wasm) {
            return self.wasm.start(plan, self.outer(plan)).await;
        }
        let started = self.outer(plan).start(plan, image).await;
        // Whoever was just asked may have been woken behind us, on this very processor: they go first.
        std::thread::yield_now();
        started
    }

    /// What has to be done with what is to run before it can. It is hostile already, so the record comes first.
    async fn prepare(
        &self,
        mut cell: Cell,
        plan: &Plan,
        io: &mut Io,
        ran: &mut Ran,
    ) -> Result<Cell, Trouble> {
        if plan.stack().contains(WallName::Wasm) {
            let mut cancel = io.cancel.clone();
            tokio::select! {
                biased;
                prepared = self.wasm.prepare(&mut cell, plan, self.outer(plan)) => prepared?,
                () = cancelled(&mut cancel) => return Err(Trouble::Cancelled),
            }
            ran.timings.mark("prepare");
        }
        Ok(cell)
    }

    fn outer(&self, plan: &Plan) -> &dyn Wall {
        match plan.stack().outermost() {
            WallName::Process => &self.process,
            WallName::Gvisor => &self.gvisor,
            WallName::Docker => &self.docker,
            WallName::Microvm => &self.microvm,
            // The router only hands out stacks whose profile is ready, and these are all there are today.
            _ => &*self.container,
        }
    }
}

/// Puts the launcher to work, and closes what dead processes left open.
async fn begin(
    keeper: &Keeper,
    home: &Home,
    docker: &Docker,
    prepare: impl FnOnce() -> Result<(Store, Arc<Programs>), OpenError>,
) -> Result<(Launcher, (Store, Arc<Programs>)), OpenError> {
    // Told first, so that it works while we do.
    let (launcher, ours) = tokio::join!(keeper.launcher(), async { (prepare(), home.dead_runs()) });
    let (launcher, (store, programs), dead_runs) = (launcher?, ours.0?, ours.1?);
    for dead in dead_runs {
        launcher.recover(dead.run).await?;
        if let Some(socket) = dead.engine() {
            docker.recover(&socket, dead.run).await;
        }
        store.close_interrupted(&dead.run.to_string())?;
        dead.remove()?;
    }
    Ok((launcher, (store, programs)))
}

/// What is left of an engine that was shut down: processes that are ending. Waited for when dropped.
#[derive(Debug)]
pub struct Leaving(#[allow(dead_code, reason = "held until it is dropped")] [crate::launcher::Leaving; 2]);

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("run", &self.run).finish_non_exhaustive()
    }
}

/// A request that names something must come with it, and nothing comes that was not named.
fn check_attachments(request: &Request, io: &Io) -> Result<(), Refusal> {
    let hint = "this is a mistake of the calling program, not of the request";
    let mismatch = |what: &str| {
        Err(Refusal::new(format!("the request and its attachments disagree about {what}"), hint))
    };
    if (request.stdin() == Stdin::Provided) != io.stdin.is_some() {
        return mismatch("standard input");
    }
    if matches!(request.image(), ImageRef::Directory { .. }) != io.image.is_some() {
        return mismatch("the image");
    }
    let named = |path: &str| {
        request.files_in().iter().any(|root| {
            path.strip_prefix(root.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    if let Some(input) = io.inputs.iter().find(|input| !named(&input.path)) {
        return mismatch(&format!("the file {}", input.path));
    }
    if !request.files_out().is_empty() && io.outbox.is_none() {
        return mismatch("files out");
    }
    Ok(())
}

/// Whoever waits for a killed run was promised an end: a receiver that takes nothing for this long is given up on.
const AFTER_A_KILL: Duration = Duration::from_secs(1);

/// Hands over what the receiver has not taken yet, for as long as it listens.
async fn deliver(
    output: Option<mpsc::Sender<Chunk>>,
    chunks: Vec<Chunk>,
    patience: Duration,
) -> Result<(), Elapsed> {
    let Some(output) = output else { return Ok(()) };
    for chunk in chunks {
        if timeout(patience, output.send(chunk)).await?.is_err() {
            break;
        }
    }
    Ok(())
}

pub(crate) fn not_recorded(error: StoreError) -> Trouble {
    Trouble::Failed(EvidenceError::from(&error).to_string())
}
