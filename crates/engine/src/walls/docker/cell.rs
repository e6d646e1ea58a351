//! One container, from the request to make it until it is gone.
//!
//! ```text
//! start ──> create ──> attach ──> start ──> inspect ──(held)──> look ──> the payload runs ──> counters ──> remove
//!              └──────────┴──────────┴─────────┴───── whatever fails, or is dropped ─────────────────────────┘
//! ```

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::models::ContainerUpdateBody;
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptions};
use casemate_core::policy::DockerRuntime;
use casemate_wire::launch::Counters;
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::engine::{Engine, is_gone, is_leaving, trouble, words};
use super::groups::{self, Groups};
use super::layout::Layout;
use super::look::{self, Seen, check_binds};
use super::settings::{Asked, difference};
use super::skeleton::Skeleton;
use super::{Shared, stream};
use crate::wall::{Begun, Control, Later, Look, WallError};

/// How long the engine may take to kill a container, before we do.
const BY_ITSELF: Duration = Duration::from_secs(3);
/// How long a killed container's stream may stay open.
const END: Duration = Duration::from_secs(10);
/// How often, and how far apart, the engine is asked whether a container is gone.
const ATTEMPTS: u32 = 100;
const APART: Duration = Duration::from_millis(20);
/// How often it may say that it cannot remove one, or nothing at all: it may be starting again. Ever further apart, for some seconds.
const FAILURES: u32 = 15;

/// What a container is to be.
pub(super) struct Blueprint {
    pub(super) engine: Arc<Engine>,
    pub(super) runtime: DockerRuntime,
    pub(super) name: String,
    pub(super) asked: Asked,
    pub(super) layout: Layout,
    pub(super) skeleton: Skeleton,
}

/// A container that runs, with a guest in it.
struct Built {
    id: String,
    /// Of its first process, among the host's.
    pid: i32,
    groups: Groups,
    steps: Vec<(String, u32)>,
}

pub(super) struct DockerCell {
    blueprint: Arc<Blueprint>,
    shared: Arc<Shared>,
    building: Option<oneshot::Receiver<Result<Built, WallError>>>,
    built: Option<Built>,
    held: Arc<Notify>,
    /// Why the stream ended, once it has: `None` in a regular way.
    ended: watch::Receiver<Option<Option<String>>>,
    /// Ends when the container was made, or could not be.
    task: Option<JoinHandle<()>>,
    removal: Option<JoinHandle<Result<(), String>>>,
    /// What the counters said last: they vanish with the container.
    last: Counters,
    /// What it took to get there: the runtime's processor time, and the memory of gVisor's kernel, are not the payload's.
    before: Counters,
}

impl DockerCell {
    /// Begins to build a container; `channel` is what its guest will be connected to.
    pub(super) fn build(
        blueprint: Blueprint,
        shared: Arc<Shared>,
        channel: UnixStream,
        held: Arc<Notify>,
    ) -> DockerCell {
        let blueprint = Arc::new(blueprint);
        let (told, building) = oneshot::channel();
        let (ending, ended) = watch::channel(None);
        shared.live().insert(blueprint.name.clone());
        let task = tokio::spawn({
            let blueprint = blueprint.clone();
            async move {
                let built = build(&blueprint, channel, ending).await;
                let _ = told.send(built);
            }
        });
        DockerCell {
            blueprint,
            shared,
            building: Some(building),
            built: None,
            held,
            ended,
            task: Some(task),
            removal: None,
            last: Counters::default(),
            before: Counters::default(),
        }
    }

    async fn built(&mut self) -> Result<&mut Built, WallError> {
        if let Some(building) = &mut self.building {
            let built = building
                .await
                .unwrap_or_else(|_| Err(WallError::Failed("the container was given up".into())));
            self.building = None;
            self.built = Some(built?);
        }
        self.built.as_mut().ok_or_else(|| WallError::Failed("there is no container".into()))
    }

    async fn look_at_first(&mut self) -> Result<Begun, WallError> {
        self.built().await?;
        // The stream's end is the engine's, or the guest's.
        let mut ended = self.ended.clone();
        let waits = tokio::select! {
            () = self.held.notified() => true,
            _ = ended.wait_for(Option::is_some) => false,
        };
        if !waits {
            return Err(self.vanished().await);
        }
        let began = Instant::now();
        let blueprint = self.blueprint.clone();
        let built = self.built().await?;
        let seen = inspect(&blueprint, built)
            .map_err(|why| WallError::Failed(format!("the container is not as it must be: {why}")))?;
        let mut steps = std::mem::take(&mut built.steps);
        self.before = built.groups.counters(1);
        steps.push(("look".into(), micros(began)));
        Ok(Begun { steps, posture: seen.posture, unseen: seen.unseen })
    }

    fn count(&mut self) -> Counters {
        if let Some(built) = &self.built
            && built.groups.exist()
        {
            let mut counters = built.groups.counters(1);
            let less = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before.unwrap_or(0)));
            if self.blueprint.runtime == DockerRuntime::Runsc {
                // Those of gVisor itself: the payload's are seen inside.
                (counters.pids_peak, counters.pids_denied) = (None, None);
                counters.memory_peak_bytes = less(counters.memory_peak_bytes, self.before.memory_peak_bytes);
            }
            // They may vanish while they are read.
            if counters != Counters::default() {
                counters.cpu_micros = less(counters.cpu_micros, self.before.cpu_micros);
                self.last = counters;
            }
        }
        self.last
    }

    /// Kills and removes the container. The first time; after that, it has been done.
    fn remove(&mut self) {
        let Some(task) = self.task.take() else { return };
        let (blueprint, shared) = (self.blueprint.clone(), self.shared.clone());
        let groups = self.built.as_ref().map(|built| built.groups.clone());
        let handle = tokio::spawn(async move {
            // There may be nothing to remove yet. Nor do we wait for ever for an engine that is stuck.
            let mut task = task;
            if timeout(END, &mut task).await.is_err() {
                task.abort();
            }
            let mut removing = pin!(remove(&blueprint.engine, &blueprint.name));
            let removed = match (timeout(BY_ITSELF, &mut removing).await, groups) {
                (Ok(removed), _) => removed,
                // A runtime that cannot kill it (gVisor's hangs now and then) is not waited for.
                (Err(_), Some(groups)) => {
                    groups.kill();
                    removing.await
                }
                (Err(_), None) => removing.await,
            };
            shared.live().remove(&blueprint.name);
            if removed.is_err() {
                shared.distrust().await;
            }
            removed
        });
        self.removal = Some(handle);
    }

    /// Why there is no guest any more.
    async fn vanished(&mut self) -> WallError {
        let said = self.ended.borrow().clone().flatten();
        if let Some(why) = said {
            return WallError::Failed(why);
        }
        let Some(built) = &self.built else { return WallError::Failed("there is no container".into()) };
        match self.blueprint.engine.client.inspect_container(&built.id, None).await {
            Ok(found) => {
                let state = found.state.unwrap_or_default();
                if state.oom_killed == Some(true) {
                    self.last.oom_kills = Some(1);
                }
                let code = state.exit_code.unwrap_or_default();
                WallError::Failed(format!("the container ended by itself, with code {code}"))
            }
            // Removed by the engine itself, since nobody was in it any more.
            Err(error) if is_gone(&error) => WallError::Failed("the container ended by itself".into()),
            Err(error) => trouble("say what became of the container", error),
        }
    }
}

impl Control for DockerCell {
    fn proceed(&mut self) -> Later<'_, Result<Begun, WallError>> {
        Box::pin(async {
            let looked = self.look_at_first().await;
            if looked.is_err() {
                // What waits in there is not waited for.
                self.remove();
            }
            looked
        })
    }

    fn look(&mut self, number: u32) -> Later<'_, Result<Look, WallError>> {
        Box::pin(async move {
            let blueprint = self.blueprint.clone();
            let built = self.built().await?;
            look_at_held(&blueprint, built, number)
                .map_err(|why| WallError::Failed(format!("a program is not as it must be: {why}")))
        })
    }

    fn measure(&mut self) -> Later<'_, Result<Counters, WallError>> {
        Box::pin(async {
            self.built().await?;
            Ok(self.count())
        })
    }

    fn finish(&mut self) -> Later<'_, Result<Counters, WallError>> {
        Box::pin(async {
            let built = match timeout(END, self.built()).await {
                Ok(built) => built.map(drop),
                Err(_) => {
                    Err(WallError::Failed("the Docker Engine does not get on with the container".into()))
                }
            };
            let ended = self.ended.borrow().is_some();
            let vanished = if built.is_ok() && ended { Some(self.vanished().await) } else { None };
            self.count();
            self.remove();
            built?;
            if let Some(vanished) = vanished {
                // An end that the kernel's counters explain is none of the engine's.
                return if self.last.oom_kills.is_some_and(|kills| kills > 0) {
                    Ok(self.last)
                } else {
                    Err(vanished)
                };
            }
            // Nothing in there lives any more once the guest's stream has ended.
            let mut ended = self.ended.clone();
            let Some(removal) = &mut self.removal else { return Ok(self.last) };
            let removed = tokio::select! {
                removed = removal => {
                    self.removal = None;
                    removed.unwrap_or_else(|error| Err(error.to_string()))
                }
                gone = timeout(END, ended.wait_for(Option::is_some)) => match gone {
                    Ok(_) => Ok(()),
                    Err(_) => Err(format!("it was still there after {END:?}")),
                },
            };
            match removed {
                Ok(()) => Ok(self.last),
                Err(why) => Err(WallError::Failed(format!("the container could not be removed: {why}"))),
            }
        })
    }
}

impl Drop for DockerCell {
    fn drop(&mut self) {
        // Outside of a runtime, the process is about to end: whoever comes next clears away.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.remove();
        }
        if let Some(removal) = self.removal.take() {
            self.shared.wait_for(removal);
        }
    }
}

async fn build(
    blueprint: &Blueprint,
    channel: UnixStream,
    ending: watch::Sender<Option<Option<String>>>,
) -> Result<Built, WallError> {
    let Blueprint { engine, name, asked, skeleton, .. } = blueprint;
    let mut steps = Steps::new();
    super::image::ensure(engine, skeleton).await?;
    steps.mark("find image");
    let options = CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
    let created = engine.client.create_container(Some(options), asked.body.clone()).await;
    let id = created
        .map_err(|error| match blueprint.layout.is_there() {
            true => trouble("make a container", error),
            false => WallError::Failed("the image changed during the launch".into()),
        })?
        .id;
    steps.mark("create container");
    let (attached, early) = engine.attach(&id).await.map_err(|error| {
        WallError::Failed(format!("the Docker Engine did not attach us: {}", words(&error)))
    })?;
    tokio::spawn(async move {
        let ended = stream::carry(attached, early, channel).await;
        ending.send_replace(Some(ended.err().map(|error| error.to_string())));
    });
    steps.mark("attach");
    engine.client.start_container(&id, None).await.map_err(|error| {
        groups::clear(&id);
        match blueprint.layout.is_there() {
            true => trouble("start the container", error),
            false => WallError::Failed("the image changed during the launch".into()),
        }
    })?;
    steps.mark("start container");
    let said = engine.client.inspect_container(&id, None).await;
    let said = said.map_err(|error| trouble("show the container", error))?;
    if let Some(name) = difference(&asked.body, &said) {
        return Err(WallError::Refused(casemate_core::outcome::Refusal::new(
            format!("the Docker Engine did not set {name} as it was asked to"),
            "it has to: look for what changes it, such as a plugin or a setting of the engine",
        )));
    }
    let pid =
        said.state.and_then(|state| state.pid).and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0);
    let pid = pid.ok_or_else(short_lived)?;
    if let Some(count) = asked.fewer_processes() {
        let fewer = ContainerUpdateBody { pids_limit: Some(count), ..ContainerUpdateBody::default() };
        let updated = engine.client.update_container(&id, fewer).await;
        updated.map_err(|error| trouble("limit processes", error))?;
    }
    let groups = Groups::of(pid, &id).map_err(|_| short_lived())?.ok_or_else(elsewhere)?;
    steps.mark("inspect");
    Ok(Built { id, pid, groups, steps: steps.0 })
}

fn short_lived() -> WallError {
    WallError::Failed("the container ended as soon as it was started".into())
}

/// The process that the engine says it started is none of this machine's.
fn elsewhere() -> WallError {
    WallError::Refused(casemate_core::outcome::Refusal::new(
        "the Docker Engine is not on this machine, or its cgroups cannot be seen here",
        "use an engine on this machine, outside of any container or virtual machine",
    ))
}

/// Looks at what waits to run, and at where: the payload on the host's kernel, or the process that is the kernel for it.
fn inspect(blueprint: &Blueprint, built: &Built) -> Result<Seen, String> {
    let unreadable = |error: std::io::Error| format!("it cannot be looked at: {}", words(&error));
    let (pid, files) = match blueprint.runtime {
        DockerRuntime::Runc => {
            look::only_child(built.pid).map(|payload| (payload, payload)).map_err(unreadable)?
        }
        DockerRuntime::Runsc => (built.pid, look::gofer(&built.groups).map_err(unreadable)?),
    };
    let seen = look::look(pid, &built.groups).map_err(unreadable)?;
    if !seen.unseen.contains(&"mounts") {
        check_binds(&PathBuf::from(format!("/proc/{files}/root")), &blueprint.layout.binds)?;
    }
    let violation = match blueprint.runtime {
        DockerRuntime::Runc => seen.violation(&blueprint.asked),
        DockerRuntime::Runsc => seen.sandbox_violation(&blueprint.asked),
    };
    violation.map_or(Ok(seen), Err)
}

/// Looks at a later payload, which waits to run.
fn look_at_held(blueprint: &Blueprint, built: &Built, number: u32) -> Result<Look, String> {
    if blueprint.runtime == DockerRuntime::Runsc {
        return Ok(Look::Hidden);
    }
    let Some(pid) = look::child_numbered(built.pid, number) else { return Ok(Look::Nobody) };
    let looked = look::look(pid, &built.groups)
        .map_err(|error| format!("it cannot be looked at: {}", words(&error)))
        .and_then(|seen| seen.violation(&blueprint.asked).map_or(Ok(seen), Err));
    // Its number may be somebody else's by now, unless it still is the one that waits.
    match (looked, look::child_numbered(built.pid, number)) {
        (Ok(seen), Some(still)) if still == pid => {
            Ok(Look::Good { posture: Box::new(seen.posture), unseen: seen.unseen })
        }
        (Err(why), Some(still)) if still == pid => Err(why),
        _ => Ok(Look::Nobody),
    }
}

/// Whatever state it is in. That there is none is as good; that it is being removed is not yet.
pub(super) async fn remove(engine: &Engine, name: &str) -> Result<(), String> {
    let (mut failures, mut last) = (0, String::new());
    for _ in 0..ATTEMPTS {
        let options = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
        match engine.client.remove_container(name, Some(options)).await {
            Ok(()) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => {
                failures += u32::from(!is_leaving(&error));
                last = error.to_string();
            }
        }
        if failures >= FAILURES {
            break;
        }
        tokio::time::sleep(APART * (1 + failures)).await;
    }
    Err(last)
}

struct Steps(Vec<(String, u32)>, Instant);

impl Steps {
    fn new() -> Steps {
        Steps(Vec::new(), Instant::now())
    }

    fn mark(&mut self, name: &str) {
        self.0.push((name.to_owned(), micros(self.1)));
        self.1 = Instant::now();
    }
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}
