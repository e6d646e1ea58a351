//! An engine on a temporary home.

use std::fmt;
use std::ops::Deref;
use std::path::Path;

use casemate_core::limits::LimitKind;
use casemate_core::policy::{DockerRuntime, Policy};
use casemate_core::stack::{Stack, Wall};
use casemate_engine::recorder::{Event, Reader, Record};
use casemate_engine::{Agents, Config, Engine};
use serde_json::Value;
use tempfile::TempDir;

use crate::HOSTILE_MACHINE;
use crate::remains::Traces;
use crate::{gvisor, microvm, runtimes, stacks};

/// A layer of isolation that the weakened agents can leave out, as they spell it.
pub type Layer = &'static str;

/// Low-risk requests may ask for the `process` wall; everything else is the default policy.
const POLICY: &str = "[floors]\nlow = \"process\"";

static WEAK_LAUNCHER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weak-launcher"));

/// Runs a test on each stack that ends in WASM, with an engine that `open` makes.
pub fn on_wasm_stacks<R: Future<Output = Rig>>(open: impl Fn() -> R, test: impl AsyncFn(&Rig, &Stack)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for stack in stacks().into_iter().filter(|stack| stack.contains(Wall::Wasm)) {
            let rig = open().await;
            test(&rig, &stack).await;
            rig.close().await;
        }
    });
}

/// One engine, its home, and nothing shared with any other.
pub struct Rig {
    engine: Engine,
    home: TempDir,
    run: String,
    docker: DockerRuntime,
}

impl Rig {
    /// The engine as it is shipped.
    pub async fn open() -> Rig {
        Rig::with(Agents::embedded()).await
    }

    /// The engine as it is shipped, on a home that is changed before.
    pub async fn after(change: impl FnOnce(&Path)) -> Rig {
        Rig::on_home(Agents::embedded(), DockerRuntime::default(), None, change).await
    }

    /// The engine as it is shipped, with this runtime for the Docker Engine's containers.
    pub async fn with_docker(runtime: DockerRuntime) -> Rig {
        Rig::having(Agents::embedded(), runtime, None).await
    }

    /// Likewise, with another Docker Engine than that of the suites.
    pub async fn on_engine(docker_host: &str) -> Rig {
        Rig::having(Agents::embedded(), DockerRuntime::default(), Some(docker_host)).await
    }

    /// An engine whose cells lack these layers: a negative control.
    pub async fn without(layers: &[Layer]) -> Rig {
        let tail = format!("\nwithout:{}\n", layers.join(","));
        let weak = [WEAK_LAUNCHER, tail.as_bytes()].concat();
        Rig::with(Agents::for_negative_controls(weak)).await
    }

    /// An engine whose WASM workers were taken over: they run this program, [`HOSTILE_WORKER`](crate::HOSTILE_WORKER) for example.
    pub async fn with_worker(program: &[u8]) -> Rig {
        Rig::with(Agents::for_hostile_worker(program.to_vec())).await
    }

    /// An engine whose virtual machines were taken over, and do this (`crates/machine/src/hostile.rs`).
    pub async fn with_hostile_machine(word: &str) -> Rig {
        let tail = format!("\nhostile:{word}\n");
        let agents = Agents::for_hostile_machine([HOSTILE_MACHINE, tail.as_bytes()].concat());
        Rig::on_home(agents, DockerRuntime::default(), None, |home| {
            // Nobody else has a use for its templates.
            if is_root() {
                microvm::keep_apart(home);
            }
        })
        .await
    }

    /// The record of the shared worker that an execution was in; null if it had one to itself.
    pub fn worker_of(&self, execution: &str) -> Value {
        self.records(execution).last().expect("a record").entry.body["observed"]["worker"].clone()
    }

    async fn with(agents: Agents) -> Rig {
        Rig::having(agents, DockerRuntime::default(), None).await
    }

    async fn having(agents: Agents, docker: DockerRuntime, docker_host: Option<&str>) -> Rig {
        Rig::on_home(agents, docker, docker_host, |_| ()).await
    }

    /// An engine on a home that somebody changes before.
    async fn on_home(
        agents: Agents,
        docker: DockerRuntime,
        docker_host: Option<&str>,
        change: impl FnOnce(&Path),
    ) -> Rig {
        let home = TempDir::with_prefix("casemate-suite-home-").expect("a temporary home");
        runtimes::give_to(home.path());
        if is_root() {
            gvisor::give_to(home.path());
            microvm::give_to(home.path());
        }
        change(home.path());
        let policy = format!("{POLICY}\n[docker]\nruntime = \"{docker}\"");
        let policy = Policy::parse(&policy).expect("the suite's policy");
        let mut config = Config { agents, ..Config::new(home.path(), policy) };
        if let Some(host) = docker_host {
            config.docker_host = host.to_owned();
        }
        let engine = match Engine::open(config).await {
            Ok(engine) => engine,
            Err(error) => panic!("no engine: {error} (hint: {:?})", error.hint()),
        };
        let run = only_run(home.path());
        // A look-out that cannot see a launcher would find every house clean.
        assert!(!Traces::of(&run).launchers.is_empty(), "the launcher cannot be found among our children");
        Rig { engine, home, run, docker }
    }

    /// Whether an asked-for limit is enforced on `stack` by this user; otherwise the run must be refused with a hint.
    pub fn can_enforce(&self, stack: &Stack, kind: LimitKind) -> bool {
        let process = stack.outermost() == Wall::Process;
        match kind {
            LimitKind::WallTime | LimitKind::Output | LimitKind::OpenFiles => true,
            // A worker counts what its instances take, and they cannot start processes.
            LimitKind::Memory | LimitKind::CpuTime | LimitKind::Pids if stack.contains(Wall::Wasm) => true,
            // Its own kernel does.
            LimitKind::Memory | LimitKind::CpuTime | LimitKind::Cpus | LimitKind::Pids
                if stack.outermost() == Wall::Microvm =>
            {
                true
            }
            // gVisor does not count those of a file system that the Docker Engine asked for.
            LimitKind::Inodes if stack.outermost() == Wall::Docker => !self.is_in_gvisor(stack),
            LimitKind::Disk | LimitKind::Inodes => !process,
            // Without a cgroup, the kernel counts processes per user namespace.
            LimitKind::Pids => is_root() || !process,
            LimitKind::Memory | LimitKind::CpuTime | LimitKind::Cpus => is_root(),
            LimitKind::DiskIo => false,
        }
    }

    /// How much of a limit on disk or inodes is there for `place`. The Docker Engine mounts a file system for each.
    pub fn share(&self, stack: &Stack, place: &str, limit: u64) -> u64 {
        match (stack.outermost(), place) {
            (Wall::Docker, "/work") => limit * 13 / 16,
            (Wall::Docker, "/tmp") => limit * 2 / 16,
            (Wall::Docker, _) => limit / 16,
            _ => limit,
        }
    }

    /// Whether the kernel that payloads on `stack` talk to is gVisor's.
    pub fn is_in_gvisor(&self, stack: &Stack) -> bool {
        match stack.outermost() {
            Wall::Gvisor => true,
            Wall::Docker => self.docker == DockerRuntime::Runsc,
            _ => false,
        }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The random name under which this engine owns cgroups, scratch directories and records.
    pub fn run_id(&self) -> &str {
        &self.run
    }

    /// The records of one execution, oldest first.
    pub fn records(&self, id: &str) -> Vec<Record> {
        let reader = Reader::open(self.home.path()).expect("the evidence can be read");
        reader.find(id).expect("the records can be parsed")
    }

    /// What was noted of a session, in the order in which it happened.
    pub fn notes(&self, session: &str) -> Vec<Record> {
        let reader = Reader::open(self.home.path()).expect("the evidence can be read");
        let records = reader.records().expect("the evidence can be read");
        let records = records.map(|record| record.expect("the records can be parsed"));
        let is_note =
            |record: &Record| record.entry.event == Event::Noted && record.entry.body["session"] == session;
        records.filter(is_note).collect()
    }

    /// Shuts down, and insists that every record verifies and nothing of any cell is left.
    pub async fn close(self) {
        let Rig { engine, home, run, .. } = self;
        engine.shutdown().await.expect("an orderly shutdown");
        let reader = Reader::open(home.path()).expect("the evidence can be read");
        let key = reader.public_key().expect("the public key");
        let report = reader.verify(Some(key), None).expect("the chain verifies");
        assert_eq!(report.open, Vec::<String>::new(), "records were left open");
        let traces = Traces::of(&run);
        assert!(traces.is_clear(), "left behind after shutdown: {traces:?}");
        let runs: Vec<_> = std::fs::read_dir(home.path().join("runs")).expect("runs").flatten().collect();
        assert!(runs.iter().all(|entry| entry.file_name() == "lock"), "the run stays registered: {runs:?}");
    }
}

impl Deref for Rig {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl fmt::Debug for Rig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rig").field("run", &self.run).finish_non_exhaustive()
    }
}

/// Whether this process may make cgroups and assign ids; without, some limits are refused.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn only_run(home: &Path) -> String {
    let runs = std::fs::read_dir(home.join("runs")).expect("the engine has made its runs");
    let mut names = runs.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| name != "lock").expect("the engine has registered its run")
}
