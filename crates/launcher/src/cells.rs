//! The life of a cell, seen from the launcher.
//!
//! ```text
//! launch ──> Starting ──(payload waits)──> Held ──proceed──> Running ──finish──> Dying ──(reaped, groups removed)──> gone
//!               └───(a step failed)──────────┴──(not what was asked for)────────────^
//! ```
//! A cell that dies by itself stays until the engine finishes it, so that its counters can still be read.

mod look;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use casemate_bare::{Moment, files, io};
use casemate_guest::BORN;
use casemate_wire::launch::{
    Answer, Attached, CellId, CellSpec, Counters, ID_BLOCK_SIZE, ID_BLOCKS, Image, Kernel, MAX_ATTACHED,
    Posture, Wall, block_start,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{getegid, geteuid};

use self::look::find_payload;
use crate::cgroup::{Group, Tree};
use crate::home::Template;
use crate::image::Images;
use crate::inspect::{Namespaces, Surroundings};
use crate::interpret::{self, Site};
use crate::recipe::{self, Mask, Op, PAYLOAD_ID, Procfs};
use crate::report::{self, Report};
use crate::scratch::{self, Quota};
use crate::sys::{self, Cloned};
use crate::{Mode as LauncherMode, inspect};

/// Made with the cell's first process. The cgroup namespace follows, once that process is in its group.
const CLONED_NAMESPACES: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// Made ahead, by sitting in them (see [`Cells::build_ahead`]): a network namespace alone takes as long to make as all the
/// others together. They belong to the launcher's user namespace, so not even root of the cell has a say in them.
const AHEAD_NAMESPACES: i32 = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// What a cell believes it is called.
const HOSTNAME: &[u8] = b"cell";

/// Scheduling weight of a cell when the *host* runs out of memory: cells go first.
const OOM_SCORE_ADJ: &str = "1000";

pub(crate) struct Cells {
    pub(crate) mode: LauncherMode,
    pub(crate) root: bool,
    pub(crate) tree: Tree,
    masks: Vec<Mask>,
    images: Images,
    live: BTreeMap<CellId, Cell>,
    /// The host's namespaces, for comparison.
    host: Namespaces,
    /// Where to go once a cell has those that were made ahead.
    own: Option<sys::Shared>,
    ahead: Ahead,
}

/// Parts of the next cell that do not depend on what it will be. Used by one cell only, like everything else.
#[derive(Default)]
struct Ahead {
    /// The launcher itself sits in namespaces that nothing else was ever in.
    namespaces: bool,
    group: Option<Group>,
    scratch: Option<OwnedFd>,
}

struct Cell {
    state: State,
    pid: i32,
    pidfd: OwnedFd,
    reaped: bool,
    group: Group,
    /// The limits of its groups, as the kernel states them.
    limits: Vec<(String, String)>,
    scratch: Option<OwnedFd>,
    wall: Wall,
    /// In thousandths.
    cpus: Option<u32>,
    /// The gate at which the first payload waits.
    release: OwnedFd,
    /// The engine has said that it may go.
    may_proceed: bool,
    /// What was killed one by one, and may not have died yet.
    killed: Vec<i32>,
    /// What the cell had taken before its payload began, where that is not the payload's.
    own: Counters,
}

enum State {
    /// The report says how far it came, and ends when the first payload waits.
    Starting {
        report: OwnedFd,
        received: Vec<u8>,
        ops: Vec<Op>,
        /// Why the launcher did not do its part, so that the child could not go on.
        refused: Option<Failure>,
        /// Where the first payload is, once it exists.
        surroundings: Option<Surroundings>,
    },
    Held {
        steps: Vec<(String, u32)>,
        posture: Posture,
    },
    Running,
    Dying,
}

/// What a cell is made of, before there is a process in it.
struct Parts {
    /// None for the `process` wall.
    image: Option<Template>,
    scratch: Option<OwnedFd>,
    group: Group,
    /// Namespaces that the process is cloned into.
    flags: i32,
    ops: Vec<Op>,
}

/// The descriptors that came with a request for a cell.
struct Given<'a> {
    channel: BorrowedFd<'a>,
    image: Option<BorrowedFd<'a>>,
    kernel: &'a [OwnedFd],
    attached: &'a [OwnedFd],
}

struct Started {
    pid: i32,
    pidfd: OwnedFd,
    go: OwnedFd,
    report: OwnedFd,
    release: OwnedFd,
}

/// A request that could not be carried out: the step and what the kernel said.
pub(crate) struct Failure {
    pub(crate) step: String,
    pub(crate) message: String,
}

impl Failure {
    fn at(step: &str) -> impl FnOnce(io::Error) -> Failure + '_ {
        move |error| Failure { step: step.into(), message: error.to_string() }
    }
    fn new(step: &str, message: impl Into<String>) -> Failure {
        Failure { step: step.into(), message: message.into() }
    }
}

impl Cells {
    pub(crate) fn new(
        mode: LauncherMode,
        root: bool,
        tree: Tree,
        host: Namespaces,
        own: Option<sys::Shared>,
        images: Images,
    ) -> Cells {
        let exists = |mask: &&Mask| {
            let (Mask::File(path) | Mask::Directory(path)) = mask;
            rustix::fs::lstat(format!("/proc/{path}")).is_ok()
        };
        Cells {
            masks: recipe::PROC_MASKS.iter().filter(exists).copied().collect(),
            images,
            live: BTreeMap::new(),
            host,
            own,
            ahead: Ahead::default(),
            mode,
            root,
            tree,
        }
    }

    /// Starts to build a cell; the answer follows when its first payload runs or a step has failed.
    pub(crate) fn launch(&mut self, id: CellId, spec: &CellSpec, fds: &[OwnedFd]) -> Result<(), Failure> {
        if self.live.contains_key(&id) {
            return Err(Failure::new("check request", "this cell exists already"));
        }
        let given = self.check(spec, fds)?;
        let parts = self.gather(spec, given.image)?;
        let started = self.start(&parts, &given);
        // From here on these namespaces are the cell's, and go when it does. Without root there is no way back out of them; then
        // they go when we move on to the next.
        self.ahead.namespaces = false;
        if let Some(own) = &self.own {
            let _ = own.enter();
        }
        let Started { pid, pidfd, go, report, release } = match started {
            Ok(started) => started,
            Err(failure) => {
                let _ = self.tree.remove(&parts.group);
                return Err(failure);
            }
        };
        // While the child mounts, up to where it waits for us. If we fail, it ends there, and its report with it.
        let admitted = self.admit(pid, spec, &parts).and_then(|()| go_ahead(go));
        let state = State::Starting {
            report,
            received: Vec::new(),
            ops: parts.ops,
            refused: admitted.err(),
            surroundings: None,
        };
        let cell = Cell {
            state,
            pid,
            pidfd,
            reaped: false,
            limits: self.tree.observed(&parts.group),
            group: parts.group.entered(),
            scratch: parts.scratch,
            wall: spec.wall.clone(),
            cpus: spec.cpus,
            release,
            may_proceed: false,
            killed: Vec::new(),
            own: Counters::default(),
        };
        self.live.insert(id, cell);
        Ok(())
    }

    /// Everything a cell is made of besides its process.
    fn gather(&mut self, spec: &CellSpec, given_image: Option<BorrowedFd<'_>>) -> Result<Parts, Failure> {
        let image = match spec.wall {
            Wall::Process | Wall::Machine { .. } => None,
            Wall::Container { image: kind, kernel, .. } => Some(match (kind, given_image) {
                (_, Some(fd)) => self.images.directory(fd, Procfs::of(kernel)),
                (Image::Empty, None) => self.images.empty(Procfs::of(kernel)),
                (_, None) => self.images.host(Procfs::of(kernel)),
            }),
        };
        let mut image = image.transpose().map_err(Failure::at("prepare image"))?;
        self.build_ahead().map_err(Failure::at("make namespaces"))?;
        let scratch = match spec.wall {
            Wall::Container { disk_bytes: bytes, inodes, .. } => {
                let owner = spec.id_block.map(|block| block_start(block) + PAYLOAD_ID);
                #[cfg(feature = "weaken")]
                let owner = if crate::weaken::without("user-namespace") {
                    owner.and(Some(PAYLOAD_ID))
                } else {
                    owner
                };
                let made = self.ahead.scratch.take().map_or_else(scratch::make, Ok);
                let quota = Quota { bytes, inodes };
                let given = made.and_then(|made| scratch::give(&made, quota, owner).map(|()| made));
                Some(given.map_err(Failure::at("make scratch"))?)
            }
            Wall::Machine { disk_bytes: bytes, inodes, .. } => {
                let made = self.ahead.scratch.take().map_or_else(scratch::make, Ok);
                let given =
                    made.and_then(|made| scratch::give(&made, Quota { bytes, inodes }, None).map(|()| made));
                let scratch = given.map_err(Failure::at("make scratch"))?;
                image = Some(
                    self.images.whole_machine(given_image, &scratch).map_err(Failure::at("prepare image"))?,
                );
                Some(scratch)
            }
            Wall::Process => None,
        };
        let group = match self.ahead.group.take() {
            Some(group) => group,
            None => self.tree.create().map_err(Failure::at("make cgroup"))?,
        };
        let (flags, ops) = self.recipe(spec);
        Ok(Parts { image, scratch, group, flags, ops })
    }

    /// Whether a cell, alive or dying, has this number.
    pub(crate) fn exists(&self, id: CellId) -> bool {
        self.live.contains_key(&id)
    }

    /// Makes what the next cell will need anyway.
    pub(crate) fn build_ahead(&mut self) -> io::Result<()> {
        if self.mode == LauncherMode::Process {
            return Ok(());
        }
        if !self.ahead.namespaces {
            let namespaces = AHEAD_NAMESPACES;
            #[cfg(feature = "weaken")]
            let namespaces = crate::weaken::ahead(namespaces);
            sys::unshare(namespaces)?;
            if namespaces & libc::CLONE_NEWNET != 0 {
                // The only interface. Nothing routes out of it.
                sys::raise_loopback()?;
            }
            if namespaces & libc::CLONE_NEWUTS != 0 {
                rustix::system::sethostname(HOSTNAME)?;
            }
            self.ahead.namespaces = true;
        }
        // Whatever of this fails is tried again, and reported, by the launch that needs it.
        if self.ahead.group.is_none() {
            self.ahead.group = self.tree.create().ok();
        }
        if self.ahead.scratch.is_none() {
            self.ahead.scratch = scratch::make().ok();
        }
        Ok(())
    }

    /// Prepares the image that cells have unless they ask for another one.
    pub(crate) fn prepare_host_image(&mut self) -> io::Result<()> {
        match self.mode {
            LauncherMode::Container => self.images.host(Procfs::ReadOnly).map(drop),
            LauncherMode::Process => Ok(()),
        }
    }

    pub(crate) fn forget_images(&mut self) {
        self.images.forget();
    }

    fn recipe(&self, spec: &CellSpec) -> (i32, Vec<Op>) {
        let ops = recipe::operations(spec, &self.masks);
        let flags = match spec.wall {
            Wall::Container { .. } => CLONED_NAMESPACES,
            // Root of the machine, and not of a namespace.
            Wall::Machine { .. } => CLONED_NAMESPACES & !libc::CLONE_NEWUSER,
            Wall::Process => 0,
        };
        #[cfg(feature = "weaken")]
        let (flags, ops) = crate::weaken::weaken(flags, ops);
        (flags, ops)
    }

    /// A spec comes from a process that may have been taken over: every number is checked here.
    fn check<'a>(&self, spec: &CellSpec, fds: &'a [OwnedFd]) -> Result<Given<'a>, Failure> {
        let bad = |message: &str| Err(Failure::new("check request", message));
        match (self.mode, &spec.wall) {
            (LauncherMode::Container, Wall::Container { .. }) | (LauncherMode::Process, Wall::Process) => {}
            (LauncherMode::Container, Wall::Machine { .. }) if cfg!(feature = "machine") => {}
            _ => return bad("this launcher serves another wall"),
        }
        match spec.id_block {
            Some(_) if !self.root => return bad("only root can assign ids"),
            Some(block) if block >= ID_BLOCKS => return bad("no such id block"),
            None if self.root => return bad("as root, a cell needs its own ids"),
            _ => {}
        }
        if spec.id_block.is_none() && spec.wall.kernel() != Kernel::Host {
            return bad("in gVisor, guest and payload need an id each");
        }
        // Zero would mean no limit at all.
        if let Wall::Container { disk_bytes: 0, .. }
        | Wall::Container { inodes: 0, .. }
        | Wall::Machine { disk_bytes: 0, .. }
        | Wall::Machine { inodes: 0, .. } = spec.wall
        {
            return bad("a cell without room");
        }
        let (channel, image, rest) = match (&spec.wall, fds) {
            (
                Wall::Container { image: Image::Directory, .. } | Wall::Machine { .. },
                [channel, image, rest @ ..],
            ) => (channel, Some(image.as_fd()), rest),
            (_, [channel, rest @ ..]) => (channel, None, rest),
            (_, []) => return bad("a cell without a channel"),
        };
        let of_kernel = spec.wall.kernel().descriptors();
        if rest.len() != of_kernel + spec.attached.count() {
            return bad("wrong number of descriptors");
        }
        if let Attached::Descriptors(count) = spec.attached
            && (usize::from(count) > MAX_ATTACHED || spec.wall.kernel() != Kernel::Host)
        {
            return bad("these descriptors cannot be inherited");
        }
        let (kernel, attached) = rest.split_at(of_kernel);
        Ok(Given { channel: channel.as_fd(), image, kernel, attached })
    }

    /// Makes the process, which waits for [`go_ahead`].
    fn start(&self, parts: &Parts, given: &Given<'_>) -> Result<Started, Failure> {
        let Given { channel, kernel, attached, .. } = *given;
        let pipes = || pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from).map_err(Failure::at("pipe"));
        let (go_read, go_write) = pipes()?;
        let (report_read, report_write) = pipes()?;
        let (release_read, release_write) = pipes()?;
        rustix::io::ioctl_fionbio(&report_read, true)
            .map_err(io::Error::from)
            .map_err(Failure::at("pipe"))?;
        let group = self.tree.clone_target(&parts.group);
        let scratch = parts.scratch.as_ref().map(OwnedFd::as_fd);
        let clone = || match sys::clone3(parts.flags as u64, group)? {
            Cloned::Child => {
                drop((go_write, report_read, release_write));
                let (go, report, release) = (go_read, report_write, release_read);
                let group = &parts.group;
                let site = Site { scratch, group, channel, kernel, attached, go, report, release };
                interpret::build(&parts.ops, site)
            }
            Cloned::Parent { pid, pidfd } => {
                Ok(Started { pid, pidfd, go: go_write, report: report_read, release: release_write })
            }
        };
        match &parts.image {
            Some(image) => self.images.home().and_then(|home| home.clone_into(image, clone)?),
            None => clone(),
        }
        .map_err(Failure::at("clone"))
    }

    /// The launcher's part: limits and ids.
    fn admit(&self, pid: i32, spec: &CellSpec, parts: &Parts) -> Result<(), Failure> {
        self.tree.limit(&parts.group, spec).map_err(Failure::at("set limits"))?;
        if parts.flags & libc::CLONE_NEWUSER != 0 {
            let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
            for (file, own) in [("uid_map", uid), ("gid_map", gid)] {
                let map = match spec.id_block {
                    Some(block) => format!("0 {} {ID_BLOCK_SIZE}", block_start(block)),
                    None => format!("{PAYLOAD_ID} {own} 1"),
                };
                files::write(&format!("/proc/{pid}/{file}"), &map).map_err(Failure::at("map ids"))?;
            }
        }
        files::write(&format!("/proc/{pid}/oom_score_adj"), OOM_SCORE_ADJ).map_err(Failure::at("oom score"))
    }

    /// Descriptors to poll for reports of starting cells.
    pub(crate) fn reports(&self) -> impl Iterator<Item = (CellId, BorrowedFd<'_>)> {
        self.live.iter().filter_map(|(&cell, c)| match &c.state {
            State::Starting { report, .. } => Some((cell, report.as_fd())),
            _ => None,
        })
    }

    /// Reads on in a report. At its end the payload waits and is looked at, or the launch has failed.
    pub(crate) fn read_report(&mut self, id: CellId) -> Option<Answer> {
        let cell = self.live.get_mut(&id)?;
        let State::Starting { report, received, ops, refused, surroundings } = &mut cell.state else {
            return None;
        };
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&*report, &mut buffer) {
                Ok(0) => break,
                Ok(n) => received.extend_from_slice(&buffer[..n]),
                // All is said. The guest has an end of the pipe, too, and may take its time to close it.
                Err(Errno::AGAIN) if report::is_complete(received, ops) => break,
                Err(Errno::AGAIN) => {
                    // There is a payload, which is being confined meanwhile. What cannot be read yet is read then.
                    if surroundings.is_none() && received[..] == [BORN] {
                        *surroundings = find_payload(cell.pid, &self.host).ok();
                    }
                    return None;
                }
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        let report = report::parse(received, ops);
        let (refused, surroundings) = (refused.take(), surroundings.take());
        let began = Moment::now();
        let looked_at = match report {
            Report::Held(steps) => self
                .limit_payload(id)
                .and_then(|()| self.look_at_payload(id, surroundings))
                .map(|posture| (steps, posture)),
            Report::Failed(failure) => Err(match refused {
                Some(refused) if failure.step == Op::AwaitLauncher.name() => refused,
                _ => failure,
            }),
            // Its descriptors close a moment before it is dead.
            Report::Silence if sys::ends_within(cell.pidfd.as_fd(), Duration::from_millis(50)) => {
                Err(refused.unwrap_or_else(|| Failure::new("setup", "the child ended without a word")))
            }
            Report::Silence => {
                // The guest tells the engine why, for which it has to live on.
                self.live.get_mut(&id)?.state = State::Running;
                let message = "it could not be confined".into();
                return Some(Answer::Failed { id, step: "first payload".into(), message });
            }
        };
        match looked_at {
            Ok((mut steps, posture)) => {
                steps.push(("look at payload".into(), began.elapsed().as_micros() as u32));
                let cell = self.live.get_mut(&id)?;
                cell.state = State::Held { steps, posture };
                if cell.wall.kernel() != Kernel::Host {
                    cell.own = cell.group.begin();
                }
                self.let_go(id)
            }
            Err(failure) => {
                self.doom(id);
                Some(Answer::Failed { id, step: failure.step, message: failure.message })
            }
        }
    }

    /// The engine agrees that the first payload runs.
    pub(crate) fn proceed(&mut self, id: CellId) -> Option<Answer> {
        self.live.get_mut(&id)?.may_proceed = true;
        self.let_go(id)
    }

    /// Opens the gate if there is no reason left to keep it closed.
    fn let_go(&mut self, id: CellId) -> Option<Answer> {
        let cell = self.live.get_mut(&id)?;
        if !cell.may_proceed || !matches!(cell.state, State::Held { .. }) {
            return None;
        }
        let State::Held { steps, posture } = core::mem::replace(&mut cell.state, State::Running) else {
            return None;
        };
        match io::write_all(&cell.release, &[1]) {
            Ok(()) => Some(Answer::Running { id, steps, posture }),
            Err(error) => {
                self.doom(id);
                Some(Answer::Failed { id, step: "let go".into(), message: error.to_string() })
            }
        }
    }

    fn get(&self, cell: CellId) -> Result<&Cell, Failure> {
        self.live.get(&cell).ok_or_else(|| Failure::new("find cell", format!("no cell {cell}")))
    }

    /// Kills a cell; what is left of it is cleared by [`Cells::sweep`].
    pub(crate) fn doom(&mut self, id: CellId) {
        let Some(cell) = self.live.get_mut(&id) else { return };
        cell.state = State::Dying;
        cell.scratch = None;
        self.tree.kill(&cell.group);
        if cell.wall == Wall::Process {
            cell.killed.extend(kill_tree(cell.pid));
        }
        // With PID 1 of its namespace the kernel ends every process of a container.
        let _ = sys::kill_by_pidfd(cell.pidfd.as_fd());
    }

    pub(crate) fn doom_all(&mut self) {
        if let Some(group) = self.ahead.group.take() {
            let _ = self.tree.remove(&group);
        }
        for id in self.live.keys().copied().collect::<Vec<_>>() {
            self.doom(id);
        }
    }

    /// Reaps children and clears what has died; returns the cells that are gone.
    pub(crate) fn sweep(&mut self) -> Vec<CellId> {
        while let Some(pid) = sys::reap() {
            if let Some(cell) = self.live.values_mut().find(|cell| cell.pid == pid) {
                cell.reaped = true;
            }
        }
        let tree = &self.tree;
        let guests: Vec<i32> = self.live.values().map(|cell| cell.pid).collect();
        let gone = |cell: &Cell| {
            if !matches!(cell.state, State::Dying) || !cell.reaped {
                return false;
            }
            // They are ours to reap now, so a number that is still a child of ours still means the same process.
            if inspect::children_among(&cell.killed).iter().any(|pid| !guests.contains(pid)) {
                return false;
            }
            tree.kill(&cell.group);
            tree.remove(&cell.group).is_ok()
        };
        let ids: Vec<CellId> = self.live.iter().filter(|(_, cell)| gone(cell)).map(|(&id, _)| id).collect();
        for id in &ids {
            self.live.remove(id);
        }
        ids
    }

    /// Whether a cell is on its way out, so that the loop must look again soon.
    pub(crate) fn any_dying(&self) -> bool {
        self.live.values().any(|cell| matches!(cell.state, State::Dying) && cell.reaped)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

/// Lets a waiting child build its cell. Without this byte it ends by itself.
fn go_ahead(go: OwnedFd) -> Result<(), Failure> {
    io::write_all(&go, &[1]).map_err(Failure::at("let go"))
}

/// Ends everything below `root` where neither a PID namespace nor a cgroup does it: stop all first, so that nothing
/// can fork away from the signals, then kill. Orphans stay below `root`, which is their subreaper. Returns what was killed.
fn kill_tree(root: i32) -> Vec<i32> {
    let mut stopped = BTreeSet::new();
    for _ in 0..100 {
        let fresh: Vec<i32> =
            inspect::descendants(root).into_iter().filter(|pid| stopped.insert(*pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            let _ = sys::kill(pid, libc::SIGSTOP);
        }
    }
    let killed = inspect::descendants(root);
    for &pid in &killed {
        let _ = sys::kill(pid, libc::SIGKILL);
    }
    killed
}
