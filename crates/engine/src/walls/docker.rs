//! The `docker` wall: a container that the Docker Engine of this machine makes, with the settings of a cell. One new container
//! per execution, removed with everything that belongs to it whatever happens.
//!
//! Its root is a small image of ours (`skeleton.rs`) into which the directories of the request's image are bound (`layout.rs`). The
//! guest is its first process and speaks over the attached standard streams (`stream.rs`). Before the payload runs, the
//! engine has said what it did (`settings.rs`), and the host's kernel has shown it (`look.rs`).

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bollard::query_parameters::ListContainersOptions;
use casemate_core::evidence::hex;
use casemate_core::limits::LimitKind;
use casemate_core::outcome::Refusal;
use casemate_core::plan::Plan;
use casemate_core::policy::DockerRuntime;
use casemate_core::request::ImageRef;
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::guest::{Config, Filter, Ids, Landlock, Network, Privileges, Terminals};
use casemate_wire::launch::RunId;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::agents::Agents;
use crate::guest::Channel;
use crate::home::Home;
use crate::wall::{Attachment, Cell, Gauges, Hold, Job, Later, Places, Wall, WallError};
use crate::walls::container::{self, FILE_SIZE_SLACK};
use crate::walls::native;

mod cell;
mod engine;
mod groups;
mod image;
mod layout;
mod look;
mod seccomp;
mod settings;
mod skeleton;
mod stream;

use cell::{Blueprint, DockerCell};
use engine::Engine;
use layout::Layout;
use settings::{Context, HOME_LABEL, PAYLOAD_ID, RUN_LABEL};
use skeleton::Skeleton;

pub(crate) struct Docker {
    agents: Agents,
    home: Arc<Home>,
    /// Names this home to the engine, which several may share. Known once it is needed.
    home_id: OnceLock<String>,
    runtime: DockerRuntime,
    socket: Result<PathBuf, Refusal>,
    shared: Arc<Shared>,
    made: AtomicU32,
}

/// What a wall and its cells have in common.
#[derive(Default)]
struct Shared {
    /// The engine, once it has answered; forgotten when it does not any more.
    engine: tokio::sync::Mutex<Option<Arc<Engine>>>,
    /// Containers of ours that somebody looks after.
    live: Mutex<HashSet<String>>,
    /// Removals that nobody waits for.
    leaving: Mutex<Vec<JoinHandle<Result<(), String>>>>,
}

impl Shared {
    fn live(&self) -> MutexGuard<'_, HashSet<String>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Next time, the engine has to show that it is there, and what was left with it is removed.
    async fn distrust(&self) {
        *self.engine.lock().await = None;
    }

    fn wait_for(&self, removal: JoinHandle<Result<(), String>>) {
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.retain(|other| !other.is_finished());
        leaving.push(removal);
    }
}

impl Docker {
    pub(crate) fn new(agents: Agents, home: Arc<Home>, runtime: DockerRuntime, host: &str) -> Docker {
        let home_id = OnceLock::new();
        let (socket, shared, made) = (engine::socket(host), Arc::default(), AtomicU32::new(0));
        Docker { agents, home, home_id, runtime, socket, shared, made }
    }

    pub(crate) fn runtime(&self) -> DockerRuntime {
        self.runtime
    }

    /// Why there is no such wall here, as far as is known without asking the engine.
    pub(crate) fn missing(&self) -> Option<Refusal> {
        match &self.socket {
            Ok(socket) => engine::obstacle(socket),
            Err(refusal) => Some(refusal.clone()),
        }
    }

    /// Removes what is left of `dead`, whose lock we have, if the engine that has it answers. If not, it is removed when that
    /// engine is next used by this home.
    pub(crate) async fn recover(&self, socket: &Path, dead: RunId) {
        if let Ok(engine) = Engine::reach(socket, DockerRuntime::Runc).await {
            let _ = self.sweep(&engine, Some(dead)).await;
        }
    }

    /// Waits until every container is gone.
    pub(crate) async fn shutdown(&self) {
        let leaving =
            std::mem::take(&mut *self.shared.leaving.lock().unwrap_or_else(PoisonError::into_inner));
        for removal in leaving {
            let _ = removal.await;
        }
    }

    fn home_id(&self) -> Result<&str, WallError> {
        if self.home_id.get().is_none() {
            let identity = self.home.identity().map_err(|error| WallError::Failed(error.to_string()))?;
            let _ = self.home_id.set(identity);
        }
        self.home_id.get().map(String::as_str).ok_or_else(|| WallError::Failed("the home has no name".into()))
    }

    /// The engine, after it has answered. What dead runs left with it is removed then.
    async fn engine(&self) -> Result<Arc<Engine>, WallError> {
        let mut known = self.shared.engine.lock().await;
        if let Some(engine) = &*known
            && engine.answers().await
        {
            return Ok(engine.clone());
        }
        *known = None;
        let socket = self.socket.as_ref().map_err(|refusal| WallError::Refused(refusal.clone()))?;
        let engine = Engine::reach(socket, self.runtime).await.map_err(WallError::Refused)?;
        // Before there is anything to be found.
        self.home.note_engine(socket).map_err(|error| {
            WallError::Failed(format!("cannot note which Docker Engine is used: {error}"))
        })?;
        self.sweep(&engine, None).await?;
        Ok(known.insert(Arc::new(engine)).clone())
    }

    /// Removes containers of this home that nobody looks after any more, and no others. `dead` is a run that we have locked.
    async fn sweep(&self, engine: &Engine, dead: Option<RunId>) -> Result<(), WallError> {
        let filters =
            HashMap::from([("label".to_owned(), vec![format!("{HOME_LABEL}={}", self.home_id()?)])]);
        let options =
            ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let found = engine.client.list_containers(Some(options)).await;
        for container in found.map_err(|error| engine::trouble("list containers", error))? {
            let labels = container.labels.unwrap_or_default();
            let run = labels.get(RUN_LABEL).and_then(|run| run.parse::<RunId>().ok());
            let (Some(run), Some(id)) = (run, container.id) else { continue };
            let ours = run == self.home.run;
            let looked_after = match ours {
                true => {
                    let live = self.shared.live();
                    container.names.iter().flatten().any(|name| live.contains(name.trim_start_matches('/')))
                }
                false if dead == Some(run) => false,
                // If that cannot be found out, it is not ours to remove.
                false => self.home.is_alive(run).unwrap_or(true),
            };
            if !looked_after {
                let _ = cell::remove(engine, &id).await;
            }
        }
        Ok(())
    }

    async fn build(&self, plan: &Plan, image: Option<BorrowedFd<'_>>) -> Result<Cell, WallError> {
        let layout = match (plan.image(), image) {
            (ImageRef::Host, _) => Layout::host(),
            (_, Some(image)) => Layout::directory(image, self.runtime),
            (_, None) => return Err(WallError::Failed("the image is missing".into())),
        };
        let layout = layout.map_err(WallError::Refused)?;
        let config = self.config(plan);
        let engine = self.engine().await?;
        let skeleton = Skeleton::new(self.agents.guest_program(), &layout)
            .map_err(|error| WallError::Failed(format!("cannot make an image: {error}")))?;
        let seccomp = seccomp::profile(config.program());
        let run = self.home.run.to_string();
        let context = Context {
            image: &skeleton.reference,
            layout: &layout,
            seccomp: &seccomp,
            runtime: self.runtime,
            home: self.home_id()?,
            run: &run,
            processors: engine.processors,
            swap: engine.swap,
        };
        let asked = settings::asked(plan, &context);
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let name = format!("casemate-{run}-{number}");
        let runtime = json!({
            "engine": engine.version,
            "api": engine.api,
            "runtime": self.runtime.as_str(),
            "image": skeleton.reference,
            "layer": skeleton.layer,
            "seccomp_profile_sha256": hex(&Sha256::digest(seccomp.as_bytes())),
            "container": name,
        });
        let (channel, theirs) = native::channel().map_err(no_channel)?;
        let theirs = std::os::unix::net::UnixStream::from(theirs);
        theirs.set_nonblocking(true).map_err(no_channel)?;
        let theirs = UnixStream::from_std(theirs).map_err(no_channel)?;
        let held = Arc::new(Notify::new());
        let blueprint = Blueprint { engine, runtime: self.runtime, name, asked, layout, skeleton };
        let control = DockerCell::build(blueprint, self.shared.clone(), theirs, held.clone());
        Ok(Cell {
            channel: Channel::Guest(channel),
            job: Job::Program { config, attached: Attachment::kind(None) },
            places: Places { work: "/work".into(), tmp: "/tmp".into() },
            control: Box::new(control),
            gauges: Gauges::AllInside,
            hold: Hold::Guest(held),
            runtime,
        })
    }

    /// How the guest confines the payload.
    fn config(&self, plan: &Plan) -> Config {
        let bound = |kind| plan.limits().get(kind).map_or(0, |bound| bound.value);
        let gvisor = self.runtime == DockerRuntime::Runsc;
        // gVisor's processes are many to this kernel's cgroup, so it counts those of the payload's user itself; but not the first
        // one, which became that user.
        let processes = gvisor.then(|| bound(LimitKind::Pids).saturating_sub(1));
        Config {
            version: PROTOCOL_VERSION,
            payload_id: gvisor.then_some(PAYLOAD_ID),
            network: Network::Namespaced,
            // Its files are those of the image, which it sees read-only, and its own.
            ids: Ids::Own,
            ptrace: native::ptrace(plan),
            filter: Filter::Own,
            rlimits: native::rlimits(plan, processes, Some(bound(LimitKind::Disk) + FILE_SIZE_SLACK)),
            landlock: if gvisor { Landlock::NotThere } else { container::landlock(Terminals::None) },
            // The engine mounts none beneath a /dev that is not its own.
            terminals: Terminals::None,
            privileges: Privileges::None,
            file_roots: vec!["/work".into(), "/tmp".into()],
        }
    }
}

impl Wall for Docker {
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(self.build(plan, image))
    }

    fn start_program<'a>(
        &'a self,
        _plan: &'a Plan,
        _program: Attachment<'a>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(async {
            Err(WallError::Refused(Refusal::new(NO_PROGRAM, "use container+wasm or gvisor+wasm")))
        })
    }
}

/// Why there is no `docker+wasm`.
pub(crate) const NO_PROGRAM: &str = "a WASM worker and the line to it are open files, which cannot be handed to a container of the Docker Engine";

fn no_channel(error: std::io::Error) -> WallError {
    WallError::Failed(format!("cannot make a channel: {error}"))
}
