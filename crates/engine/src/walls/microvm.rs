//! The `microvm` wall: a virtual machine with a kernel of its own, for one execution or session, never shared.
//!
//! QEMU runs in a container cell of ours (`vmm.rs`). In the machine, our first process starts the same launcher as on the host, which builds
//! a cell in the same way; its guest speaks to the engine over a port of the machine. A machine is not booted but cloned from one that was
//! (`template.rs`), and told who it is before anything else.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use casemate_core::evidence::hex;
use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::outcome::{Refusal, Status};
use casemate_core::plan::Plan;
use casemate_core::request::{ImageRef, Need, Request as Asked, RequestDraft, Workload};
use casemate_core::stack::{Stack, Wall as WallName};
use casemate_wire::launch::{self, Answer, Attached, CellSpec, Counters, Image, Kernel, Op, Request};
use casemate_wire::machine::{FromMachine, Seed, ToMachine};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};

use crate::agents::Agents;
use crate::guest::Channel;
use crate::io::Io;
use crate::run::{self, Ran, Trouble};
use crate::sys;
use crate::wall::{Attachment, Begun, Cell, Control, Gauges, Hold, Job, Later, Look, Wall, WallError};
use crate::walls::container::{self, Container};
use crate::walls::native;

mod disk;
mod erofs;
mod initramfs;
mod kit;
mod line;
mod link;
mod qemu;
mod shape;
mod store;
mod template;
mod vmm;

use disk::Disks;
use kit::{Kit, Qemu};
use line::Pump;
use link::{Link, LinkError};
use shape::Shape;
use store::Store;
use template::{Content, Ports, Programs, Template};
use vmm::Vmm;

/// Templates in memory, besides those that are being made. Each takes what its machine had touched of its memory.
const MOST_TEMPLATES: usize = 8;

/// There is one cell in a machine.
const CELL: u32 = 1;

pub(crate) struct Microvm {
    container: Arc<Container>,
    agents: Agents,
    /// What machines are made of, or why there is nothing.
    kit: Result<(Kit, Qemu), Refusal>,
    disks: Disks,
    store: Store,
    templates: Mutex<HashMap<Key, Arc<Slot>>>,
    programs: OurPrograms,
}

/// Made by whoever needs it first; the others wait for that.
type Slot = tokio::sync::Mutex<Option<Arc<Template>>>;

/// What a template was made from. Another of any of these is another template.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Microvm {
    pub(crate) fn new(home: &Path, installed: &Path, agents: Agents, container: Arc<Container>) -> Microvm {
        let kit = Kit::find(installed).and_then(|kit| Ok((kit, Qemu::find()?)));
        let (disks, store) = (Disks::of(home), Store::of(home));
        Microvm {
            container,
            agents,
            kit,
            disks,
            store,
            templates: Mutex::default(),
            programs: OurPrograms::default(),
        }
    }

    /// Why there is no such wall here.
    pub(crate) fn missing(&self) -> Option<Refusal> {
        self.kit.as_ref().err().cloned()
    }

    /// Boots a machine in which the guest itself is the payload: it finds nobody to talk to, and ends.
    pub(crate) async fn probe(&self) -> Result<(), Refusal> {
        let plan = probe_plan()?;
        let failed = |why: String| {
            Refusal::new(
                format!("no virtual machine can be started: {why}"),
                "`casemate setup microvm` installs a kernel that is known to work",
            )
        };
        let guest = self.agents.guest().map_err(|error| failed(error.to_string()))?;
        let program = Attachment::Program { program: guest.as_fd(), line: None };
        let cell = self.with_program(&plan, program).await.map_err(|error| match error {
            WallError::Refused(refusal) => refusal,
            WallError::Failed(why) => failed(why),
        })?;
        match run::run(cell, &plan, Io::default(), &mut Ran::default()).await {
            Ok(Status::Exited { code: 0 }) => Ok(()),
            Ok(status) => Err(failed(status.describe())),
            Err(Trouble::Failed(why)) => Err(failed(why)),
            Err(Trouble::Refused(refusal)) => Err(refusal),
            Err(Trouble::Cancelled) => Err(failed("cancelled".into())),
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        match &self.kit {
            Ok((kit, _)) => format!("kernel {} ({}), QEMU, tcg", kit.version(), kit.source()),
            Err(refusal) => format!("{}; `casemate setup microvm` gets it", refusal.reason),
        }
    }

    fn key(&self, kit: &Kit, qemu: &Qemu, shape: Shape, content: (&str, &[u8])) -> Key {
        let mut digest = Sha256::new();
        let (name, identity) = content;
        let numbers = [shape.memory_bytes, shape.cpus.into()].map(u64::to_le_bytes).concat();
        let parts = [
            b"casemate machine v1",
            &kit.digest()[..],
            qemu.identity.as_bytes(),
            &self.agents.machine_digest(),
            &numbers,
            name.as_bytes(),
            identity,
        ];
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        Key(digest.finalize().into())
    }

    /// The template for such a machine: of this process, or of this home, or made now.
    async fn template(
        &self,
        key: Key,
        shape: Shape,
        content: Content<'_>,
    ) -> Result<Arc<Template>, WallError> {
        let (kit, _) = self.kit.as_ref().map_err(|refusal| WallError::Refused(refusal.clone()))?;
        let slot = {
            let mut templates = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
            if templates.len() >= MOST_TEMPLATES && !templates.contains_key(&key) {
                // Whoever uses one holds it. The others are on disk, if anybody wants them again.
                templates.retain(|_, slot| Arc::strong_count(slot) > 1);
            }
            templates.entry(key).or_default().clone()
        };
        let mut made = slot.lock().await;
        if let Some(template) = &*made {
            return Ok(template.clone());
        }
        if let Some(template) = self.store.load(key, shape).await {
            return Ok(made.insert(Arc::new(template)).clone());
        }
        let programs =
            Programs { machine: self.agents.machine_program(), launcher: self.agents.machine_launcher() };
        let template = Arc::new(template::make(&self.container, kit, programs, content, shape).await?);
        self.store.keep(key, &template).await;
        Ok(made.insert(template).clone())
    }

    /// A machine with an image in it.
    async fn with_image(&self, plan: &Plan, image: Option<BorrowedFd<'_>>) -> Result<Cell, WallError> {
        let (ImageRef::Stored { digest, .. }, Some(directory)) = (plan.image(), image) else {
            return Err(WallError::Refused(Refusal::new(
                "a virtual machine takes its image as a disk, which only those of the store have",
                "import one (`casemate image --help`) and name it with --image",
            )));
        };
        let disk = self.disks.of_image(digest, directory).await?;
        let identity = digest.to_string();
        let content = Content::Disk(disk.as_fd());
        self.build(plan, content, ("image", identity.as_bytes()), None).await
    }

    /// A machine with one program of ours in it.
    async fn with_program(&self, plan: &Plan, given: Attachment<'_>) -> Result<Cell, WallError> {
        let Attachment::Program { program, line } = given else {
            return Err(WallError::Failed("a virtual machine inherits nothing".into()));
        };
        let read = |error: io::Error| WallError::Failed(format!("cannot read a program: {error}"));
        let (bytes, digest) = self.programs.get(program).map_err(read)?;
        let pump = match line {
            Some(line) => line::open(line),
            None => line::silence(),
        }
        .map_err(read)?;
        let attached = Attachment::kind(Some(given));
        self.build(plan, Content::Program(&bytes), ("program", &digest), Some((attached, pump))).await
    }

    async fn build(
        &self,
        plan: &Plan,
        content: Content<'_>,
        identity: (&str, &[u8]),
        line: Option<(Attached, (Pump, OwnedFd))>,
    ) -> Result<Cell, WallError> {
        let (kit, qemu) = self.kit.as_ref().map_err(|refusal| WallError::Refused(refusal.clone()))?;
        let shape = match content {
            Content::Disk(_) => Shape::of(plan, 0),
            // It is in the machine's memory, besides what it takes itself.
            Content::Program(bytes) => Shape::of(plan, bytes.len() as u64),
        };
        let template = self.template(self.key(kit, qemu, shape, identity), shape, content).await?;
        let (channel, theirs) = native::channel()
            .map_err(|error| WallError::Failed(format!("cannot make a channel: {error}")))?;
        let ports = Ports { cell: theirs.as_fd(), line: line.as_ref().map(|(_, (_, port))| port.as_fd()) };
        let template::Clone { vmm, mut link, monitor } =
            template::clone(&self.container, &template, content, ports).await?;
        drop(theirs);
        let seed = seed().map_err(|error| WallError::Failed(format!("cannot draw a seed: {error}")))?;
        let id = seed.id;
        link.tell(&ToMachine::Wake(seed));
        let (kind, attached) = match &line {
            None => (Image::Directory, Attached::Nothing),
            Some((attached, _)) => (Image::Empty, *attached),
        };
        // It is alone in there: any block of ids will do.
        let wall = match owns_its_machine(plan) {
            false => container::wall(plan, kind, Kernel::Host),
            true => container::machine(plan),
        };
        let spec = CellSpec { attached, ..native::spec(plan, wall, &WITH_EVERYTHING, Some(0), None) };
        let launch = Request { id: CELL, op: Op::Launch(spec) };
        link.tell(&ToMachine::Launcher(launch.encode()));
        let runtime = json!({
            "accelerator": "tcg",
            "qemu": template.qemu,
            "kernel": kit.version(),
            // Of the list of its files, which has a digest for each.
            "kernel_files_sha256": hex(&kit.digest()),
            "memory_bytes": shape.memory_bytes,
            "cpus": shape.cpus,
            "vmm": crate::evidence::posture(&vmm.begun.posture),
        });
        let control = Running {
            link,
            vmm,
            _line: line.map(|(_, (pump, _))| pump),
            _monitor: monitor,
            id,
            awake: None,
            asked: CELL,
            own: Counters::default(),
            inside: Counters::default(),
            pace: FIRST_LOOK_INSIDE,
            next_look: Instant::now(),
            ended: false,
        };
        let config = match owns_its_machine(plan) {
            false => container::config(plan, container::CellIds::Two, Kernel::Host, None),
            true => container::machine_config(plan),
        };
        Ok(Cell {
            channel: Channel::Guest(channel),
            job: Job::Program { config, attached },
            places: container::places(),
            control: Box::new(control),
            gauges: Gauges::Outside,
            hold: Hold::Gate,
            runtime,
        })
    }
}

fn probe_plan() -> Result<Plan, Refusal> {
    let draft = RequestDraft::new(Workload::Command { argv: vec!["probe".into()] });
    let limits = LimitsDraft::new()
        .with(LimitKind::Memory, 64 << 20)
        .with(LimitKind::Disk, LimitKind::Disk.range().min)
        .with(LimitKind::WallTime, 20_000);
    Plan::of_our_own(Asked::new(draft)?, limits, Stack::of(WallName::Microvm))
}

/// Programs of ours, as they lie in memory, by the number of their file. It is kept open, so that no other gets that number.
#[derive(Default)]
struct OurPrograms(Mutex<HashMap<u64, (File, Known)>>);

type Known = (Arc<Vec<u8>>, [u8; 32]);

impl OurPrograms {
    fn get(&self, program: BorrowedFd<'_>) -> io::Result<Known> {
        let file = File::from(program.try_clone_to_owned()?);
        let number = file.metadata()?.ino();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = known.get(&number) {
            return Ok(known.clone());
        }
        let mut bytes = vec![0; file.metadata()?.len() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let digest = Sha256::digest(&bytes).into();
        Ok(known.entry(number).or_insert((file, (Arc::new(bytes), digest))).1.clone())
    }
}

/// Needs that no container can meet, and that only somebody with a machine to themselves may have met.
const OF_A_MACHINE: [Need; 4] = [Need::Bpf, Need::NestedContainers, Need::FullLinux, Need::Root];

/// Whether the payload is root of its machine. The router lets it only where nothing was promised to stand within that.
fn owns_its_machine(plan: &Plan) -> bool {
    plan.needs().iter().any(|need| OF_A_MACHINE.contains(need))
}

/// What the launcher in a machine has of control groups: its template was refused otherwise.
const WITH_EVERYTHING: launch::Cgroups = launch::Cgroups {
    layout: String::new(),
    memory: true,
    pids: true,
    cpu: true,
    cpu_usage: true,
    io: false,
    kill: true,
    missing: None,
};

fn seed() -> io::Result<Seed> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Seed {
        entropy: [sys::random()?, sys::random()?],
        nanoseconds: now.as_nanos() as u64,
        id: sys::random()?,
    })
}

impl Wall for Microvm {
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(self.with_image(plan, image))
    }

    fn start_program<'a>(
        &'a self,
        plan: &'a Plan,
        program: Attachment<'a>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(self.with_program(plan, program))
    }
}

/// How long the launcher in a machine may take for an answer, while its payload may have all of the processors. What is known from outside
/// has to do then.
const ANSWER: Duration = Duration::from_millis(500);
/// To ask costs the payload time of its own, so it is asked less and less often.
const FIRST_LOOK_INSIDE: Duration = Duration::from_millis(20);
const STEADY_LOOK_INSIDE: Duration = Duration::from_millis(80);

/// A machine with a cell in it.
struct Running {
    link: Link,
    vmm: Vmm,
    _line: Option<Pump>,
    _monitor: UnixStream,
    id: [u8; 16],
    /// What the machine drew when it had become itself.
    awake: Option<[u8; 32]>,
    /// The number of the last request.
    asked: u32,
    /// What QEMU had taken when the payload began.
    own: Counters,
    /// The last that the launcher in the machine has said.
    inside: Counters,
    pace: Duration,
    next_look: Instant,
    ended: bool,
}

impl Running {
    /// The next answer of the launcher in there.
    async fn answer(&mut self) -> Result<Answer, WallError> {
        loop {
            let said = tokio::select! {
                biased;
                said = self.link.next() => said,
                () = self.vmm.console.ended() => Err(LinkError::Closed),
            };
            match said {
                Ok(FromMachine::Awake { id, sample }) if id == self.id && self.awake.is_none() => {
                    self.awake = Some(sample);
                }
                // Nothing happens in a machine before it is one of its own.
                Ok(FromMachine::Launcher(bytes)) if self.awake.is_some() => match Answer::decode(&bytes) {
                    Ok(answer) => return Ok(answer),
                    Err(error) => return Err(broken(&error.to_string())),
                },
                Ok(FromMachine::Failed { step, message }) => {
                    return Err(WallError::Failed(format!("in the virtual machine: {step}: {message}")));
                }
                Ok(_) => return Err(broken("it spoke out of turn")),
                Err(LinkError::Closed) => {
                    self.ended = true;
                    return Err(WallError::Failed(self.vmm.console.epitaph().await));
                }
                Err(error) => return Err(broken(&error.to_string())),
            }
        }
    }

    fn ask(&mut self, op: Op) -> u32 {
        self.asked = self.asked.wrapping_add(1).max(CELL + 1);
        let request = Request { id: self.asked, op };
        self.link.tell(&ToMachine::Launcher(request.encode()));
        self.asked
    }

    /// The answer to that request; others are about questions that nobody waits for any more.
    async fn answer_to(&mut self, asked: u32) -> Result<Answer, WallError> {
        loop {
            match self.answer().await? {
                Answer::Failed { id, step, message } if id == asked => {
                    return Err(WallError::Failed(format!("in the virtual machine: {step}: {message}")));
                }
                answer @ (Answer::Looked { id, .. }
                | Answer::Measured { id, .. }
                | Answer::Finished { id, .. }
                | Answer::Running { id, .. })
                    if id == asked =>
                {
                    return Ok(answer);
                }
                _ => {}
            }
        }
    }

    /// What can be said of the cell, given what QEMU takes: inside is counted what the payload does, outside what it costs, whoever tells
    /// lies in there.
    fn merge(&self, outside: &Counters) -> Counters {
        let since = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then.unwrap_or(0)));
        Counters {
            cpu_micros: self
                .inside
                .cpu_micros
                .max(since(outside.cpu_micros, self.own.cpu_micros).map(beyond_doubt)),
            oom_kills: outside.oom_kills.max(self.inside.oom_kills),
            ..self.inside
        }
    }
}

/// What a payload has certainly used, if its machine took so much: to emulate what it does and the kernel does for it takes time of its
/// own, but not more than that.
fn beyond_doubt(outside_micros: u64) -> u64 {
    const TO_BEGIN: u64 = 1_000_000;
    outside_micros.saturating_sub(TO_BEGIN) / 2
}

fn broken(why: &str) -> WallError {
    WallError::Failed(format!("the virtual machine broke the protocol: {why}"))
}

impl Control for Running {
    fn proceed(&mut self) -> Later<'_, Result<Begun, WallError>> {
        Box::pin(async {
            let proceed = Request { id: 0, op: Op::Proceed { cell: CELL } };
            self.link.tell(&ToMachine::Launcher(proceed.encode()));
            match self.answer_to(CELL).await? {
                Answer::Running { steps, posture, .. } => {
                    self.own = self.vmm.measure().await?;
                    Ok(Begun { steps, posture, unseen: Vec::new() })
                }
                _ => Err(broken("another answer than to what was asked")),
            }
        })
    }

    fn look(&mut self, number: u32) -> Later<'_, Result<Look, WallError>> {
        Box::pin(async move {
            let asked = self.ask(Op::Look { cell: CELL, number });
            match self.answer_to(asked).await? {
                Answer::Looked { sight, .. } => Ok(native::look(sight)),
                _ => Err(broken("another answer than to what was asked")),
            }
        })
    }

    fn measure(&mut self) -> Later<'_, Result<Counters, WallError>> {
        Box::pin(async {
            let outside = self.vmm.measure().await?;
            if Instant::now() >= self.next_look && !self.ended {
                let asked = self.ask(Op::Measure { cell: CELL });
                match timeout(ANSWER, self.answer_to(asked)).await {
                    Ok(Ok(Answer::Measured { counters, .. })) => self.inside = counters,
                    // Its channel has more to say about that, and so has the last look.
                    Ok(_) | Err(_) => {}
                }
                self.pace = (self.pace * 2).min(STEADY_LOOK_INSIDE);
                self.next_look = Instant::now() + self.pace;
            }
            Ok(self.merge(&outside))
        })
    }

    fn finish(&mut self) -> Later<'_, Result<Counters, WallError>> {
        Box::pin(async {
            if !self.ended && self.awake.is_some() {
                let asked = self.ask(Op::Finish { cell: CELL });
                if let Ok(Ok(Answer::Finished { counters, .. })) =
                    timeout(ANSWER, self.answer_to(asked)).await
                {
                    self.inside = counters;
                }
            }
            let outside = self.vmm.finish().await?;
            Ok(self.merge(&outside))
        })
    }

    fn epitaph(&mut self) -> Later<'_, Option<String>> {
        Box::pin(async { Some(self.vmm.console.epitaph().await) })
    }
}

impl std::fmt::Debug for Microvm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Microvm").finish_non_exhaustive()
    }
}
