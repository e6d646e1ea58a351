//! The life of a cell, seen from the launcher.
//!
//! ```text
//! launch ──> Starting ──(payload waits)──> Held ──proceed──> Running ──finish──> Dying ──(reaped, groups removed)──> gone
//!               └───(a step failed)──────────┴──(not what was asked for)────────────^
//! ```
//! A cell that dies by itself stays until the engine finishes it, so that its counters can still be read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use casemate_guest::HELD;
use casemate_wire::launch::{
    Answer, CellId, CellSpec, Counters, ID_BLOCK_SIZE, ID_BLOCKS, Image, Posture, Wall, block_start,
};
use rustix::fs::{AtFlags, Gid, Mode, Uid, chmodat, chownat, fstatvfs, mkdirat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{getegid, geteuid};

use crate::cgroup::{Group, Tree};
use crate::expected::Expected;
use crate::image::Images;
use crate::inspect::Namespaces;
use crate::interpret::{self, Site};
use crate::recipe::{self, Mask, Op, PAYLOAD_ID, ScratchDir};
use crate::sys::{self, Cloned};
use crate::{Mode as LauncherMode, inspect};

/// The network namespace is not among them: it takes as long to make as all the others together, so the launcher
/// makes the next one ahead (see [`Cells::build_ahead`]).
const CONTAINER_NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Scheduling weight of a cell when the *host* runs out of memory: cells go first.
const OOM_SCORE_ADJ: &str = "1000";

/// Inodes of the scratch file system that are ours: its root and the three directories in it.
const OWN_INODES: u64 = 1 + ScratchDir::ALL.len() as u64;

pub(crate) struct Cells {
    pub(crate) mode: LauncherMode,
    pub(crate) root: bool,
    pub(crate) tree: Tree,
    masks: Vec<Mask>,
    images: Images,
    live: BTreeMap<CellId, Cell>,
    /// The host's namespaces, for comparison.
    host: Namespaces,
    ahead: Ahead,
}

/// Parts of the next cell that do not depend on what it will be. Used by one cell only, like everything else.
#[derive(Default)]
struct Ahead {
    /// The launcher itself sits in a network namespace that nothing else was ever in.
    network: bool,
    group: Option<Group>,
}

struct Cell {
    state: State,
    pid: i32,
    pidfd: OwnedFd,
    reaped: bool,
    group: Group,
    scratch: Option<OwnedFd>,
    wall: Wall,
    /// The gate at which the first payload waits.
    release: File,
    /// The engine has said that it may go.
    may_proceed: bool,
    /// What was killed one by one, and may not have died yet.
    killed: Vec<i32>,
}

enum State {
    /// The report says how far it came, and ends when the first payload waits.
    Starting {
        report: File,
        received: Vec<u8>,
        ops: Vec<Op>,
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
    image: String,
    scratch: Option<OwnedFd>,
    group: Group,
    /// Namespaces that the process is cloned into.
    flags: i32,
    ops: Vec<Op>,
}

struct Started {
    pid: i32,
    pidfd: OwnedFd,
    go: File,
    report: File,
    release: File,
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
    pub(crate) fn new(mode: LauncherMode, root: bool, tree: Tree, host: Namespaces) -> Cells {
        let exists = |mask: &&Mask| {
            let (Mask::File(path) | Mask::Directory(path)) = mask;
            fs::symlink_metadata(format!("{}/{path}", mode.proc())).is_ok()
        };
        Cells {
            masks: recipe::PROC_MASKS.iter().filter(exists).copied().collect(),
            images: Images::default(),
            live: BTreeMap::new(),
            host,
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
        let (channel, image) = self.check(spec, fds)?;
        let parts = self.gather(spec, image)?;
        let started = self.start(&parts, channel);
        // From here on the network namespace is the cell's, and ours must be another one.
        self.ahead.network = false;
        let Started { pid, pidfd, go, report, release } = match started {
            Ok(started) => started,
            Err(failure) => {
                let _ = self.tree.remove(&parts.group);
                return Err(failure);
            }
        };
        let admitted = self.admit(pid, spec, &parts).and_then(|()| go_ahead(go, &report));
        let state = State::Starting { report, received: Vec::new(), ops: parts.ops };
        let (group, scratch, wall) = (parts.group, parts.scratch, spec.wall.clone());
        let cell = Cell {
            state,
            pid,
            pidfd,
            reaped: false,
            group,
            scratch,
            wall,
            release,
            may_proceed: false,
            killed: Vec::new(),
        };
        self.live.insert(id, cell);
        if admitted.is_err() {
            self.doom(id);
        }
        admitted
    }

    /// Everything a cell is made of besides its process.
    fn gather(&mut self, spec: &CellSpec, image: Option<BorrowedFd<'_>>) -> Result<Parts, Failure> {
        let image = match (&spec.wall, image) {
            (Wall::Process, _) => String::new(),
            (Wall::Container { .. }, None) => self.images.host().map_err(Failure::at("prepare image"))?,
            (Wall::Container { .. }, Some(fd)) => {
                self.images.directory(fd).map_err(Failure::at("prepare image"))?
            }
        };
        let scratch = match spec.wall {
            Wall::Container { disk_bytes, inodes, .. } => {
                let owner = spec.id_block.map(|block| block_start(block) + PAYLOAD_ID);
                #[cfg(feature = "weaken")]
                let owner = if crate::weaken::without("user-namespace") {
                    owner.and(Some(PAYLOAD_ID))
                } else {
                    owner
                };
                Some(make_scratch(disk_bytes, inodes, owner).map_err(Failure::at("make scratch"))?)
            }
            Wall::Process => None,
        };
        self.build_ahead().map_err(Failure::at("network namespace"))?;
        let group = match self.ahead.group.take() {
            Some(group) => group,
            None => self.tree.create().map_err(Failure::at("make cgroup"))?,
        };
        if let Err(error) = self.tree.limit(&group, spec) {
            let _ = self.tree.remove(&group);
            return Err(Failure::at("set limits")(error));
        }
        let (flags, ops) = self.recipe(spec);
        Ok(Parts { image, scratch, group, flags, ops })
    }

    /// Whether a cell, alive or dying, has this number.
    pub(crate) fn exists(&self, id: CellId) -> bool {
        self.live.contains_key(&id)
    }

    /// Makes what the next cell will need anyway, while the last one is busy starting.
    pub(crate) fn build_ahead(&mut self) -> io::Result<()> {
        if self.mode == LauncherMode::Process {
            return Ok(());
        }
        #[cfg(feature = "weaken")]
        if crate::weaken::without("net-namespace") {
            return Ok(());
        }
        if !self.ahead.network {
            sys::unshare(libc::CLONE_NEWNET)?;
            // The only interface. Nothing routes out of it.
            sys::raise_loopback()?;
            self.ahead.network = true;
        }
        if self.ahead.group.is_none() {
            self.ahead.group = self.tree.create().ok();
        }
        Ok(())
    }

    fn recipe(&self, spec: &CellSpec) -> (i32, Vec<Op>) {
        let ops = recipe::operations(spec, &self.masks);
        let flags = match spec.wall {
            Wall::Container { .. } => CONTAINER_NAMESPACES,
            Wall::Process => 0,
        };
        #[cfg(feature = "weaken")]
        let (flags, ops) = crate::weaken::weaken(flags, ops);
        (flags, ops)
    }

    /// A spec comes from a process that may have been taken over: every number is checked here.
    fn check<'a>(
        &self,
        spec: &CellSpec,
        fds: &'a [OwnedFd],
    ) -> Result<(BorrowedFd<'a>, Option<BorrowedFd<'a>>), Failure> {
        let bad = |message: &str| Err(Failure::new("check request", message));
        match (self.mode, &spec.wall) {
            (LauncherMode::Container, Wall::Container { .. }) | (LauncherMode::Process, Wall::Process) => {}
            _ => return bad("this launcher serves another wall"),
        }
        match spec.id_block {
            Some(_) if !self.root => return bad("only root can assign ids"),
            Some(block) if block >= ID_BLOCKS => return bad("no such id block"),
            None if self.root => return bad("as root, a cell needs its own ids"),
            _ => {}
        }
        match (&spec.wall, fds) {
            (Wall::Process | Wall::Container { image: Image::Host, .. }, [channel]) => {
                Ok((channel.as_fd(), None))
            }
            (Wall::Container { image: Image::Directory, .. }, [channel, image]) => {
                Ok((channel.as_fd(), Some(image.as_fd())))
            }
            _ => bad("wrong number of descriptors"),
        }
    }

    /// Makes the process, which waits for [`go_ahead`].
    fn start(&self, parts: &Parts, channel: BorrowedFd<'_>) -> Result<Started, Failure> {
        let pipes = || pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from).map_err(Failure::at("pipe"));
        let (go_read, go_write) = pipes()?;
        let (report_read, report_write) = pipes()?;
        let (release_read, release_write) = pipes()?;
        let group = self.tree.clone_target(&parts.group);
        match sys::clone3(parts.flags as u64, group).map_err(Failure::at("clone"))? {
            Cloned::Child => {
                drop(go_write);
                drop(report_read);
                drop(release_write);
                let site = Site {
                    image: &parts.image,
                    scratch: parts.scratch.as_ref().map(OwnedFd::as_fd),
                    group: &parts.group,
                    channel,
                    go: File::from(go_read),
                    report: File::from(report_write),
                    release: File::from(release_read),
                };
                interpret::build(&parts.ops, site)
            }
            Cloned::Parent { pid, pidfd } => {
                let (go, report) = (File::from(go_write), File::from(report_read));
                Ok(Started { pid, pidfd, go, report, release: File::from(release_write) })
            }
        }
    }

    /// The launcher's part, while the child waits.
    fn admit(&self, pid: i32, spec: &CellSpec, parts: &Parts) -> Result<(), Failure> {
        let proc = self.mode.proc();
        if parts.flags & libc::CLONE_NEWUSER != 0 {
            let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
            for (file, own) in [("uid_map", uid), ("gid_map", gid)] {
                let map = match spec.id_block {
                    Some(block) => format!("0 {} {ID_BLOCK_SIZE}", block_start(block)),
                    None => format!("{PAYLOAD_ID} {own} 1"),
                };
                fs::write(format!("{proc}/{pid}/{file}"), map).map_err(Failure::at("map ids"))?;
            }
        }
        fs::write(format!("{proc}/{pid}/oom_score_adj"), OOM_SCORE_ADJ).map_err(Failure::at("oom score"))
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
        let State::Starting { report, received, ops } = &mut cell.state else { return None };
        let mut buffer = [0; 4096];
        loop {
            match report.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => received.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let report = parse_report(received, ops);
        let began = Instant::now();
        let looked_at = match report {
            Report::Held(steps) => self.look_at_payload(id).map(|posture| (steps, posture)),
            Report::Failed(failure) => Err(failure),
            Report::NoPayload => {
                // The guest tells the engine why, for which it has to live on.
                self.live.get_mut(&id)?.state = State::Running;
                let message = "it could not be confined".into();
                return Some(Answer::Failed { id, step: "first payload".into(), message });
            }
        };
        match looked_at {
            Ok((mut steps, posture)) => {
                steps.push(("look at payload".into(), began.elapsed().as_micros() as u32));
                self.live.get_mut(&id)?.state = State::Held { steps, posture };
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
        let State::Held { steps, posture } = std::mem::replace(&mut cell.state, State::Running) else {
            return None;
        };
        match cell.release.write_all(&[1]) {
            Ok(()) => Some(Answer::Running { id, steps, posture }),
            Err(error) => {
                self.doom(id);
                Some(Answer::Failed { id, step: "let go".into(), message: error.to_string() })
            }
        }
    }

    /// The posture of a cell's first payload, which waits at the gate. An error if it is not as it must be.
    fn look_at_payload(&self, id: CellId) -> Result<Posture, Failure> {
        let cell = self.get(id)?;
        let proc = self.mode.proc();
        let (pid, status) = inspect::only_child(proc, cell.pid).map_err(Failure::at("find payload"))?;
        let mut posture =
            inspect::posture(proc, pid, &status, &self.host).map_err(Failure::at("read posture"))?;
        let membership =
            sys::read_text(&format!("{proc}/{pid}/cgroup")).map_err(Failure::at("read posture"))?;
        if !self.tree.holds(&cell.group, &membership) {
            return Err(Failure::new("check posture", "the payload is not in the cell's cgroups"));
        }
        posture.cgroup = self.tree.observed(&cell.group);
        match Expected::of(&cell.wall, self.root).violation(&posture) {
            // A launcher that leaves a layer out on purpose cannot hold it against the payload.
            Some(_) if cfg!(feature = "weaken") => Ok(posture),
            Some(violation) => Err(Failure::new("check posture", violation)),
            None => Ok(posture),
        }
    }

    pub(crate) fn measure(&self, cell: CellId) -> Result<Counters, Failure> {
        let cell = self.get(cell)?;
        let mut counters = Counters::default();
        self.tree.measure(&cell.group, &mut counters);
        if let Some(scratch) = &cell.scratch {
            let stat = fstatvfs(scratch).map_err(|e| Failure::new("measure scratch", e.to_string()))?;
            counters.disk_bytes = Some((stat.f_blocks - stat.f_bfree) * stat.f_frsize);
            counters.inodes = Some((stat.f_files - stat.f_ffree).saturating_sub(OWN_INODES));
        }
        let mut pids = self.tree.processes(&cell.group).unwrap_or_default();
        if pids.is_empty() {
            pids = inspect::descendants(self.mode.proc(), cell.pid);
            if counters.pids_peak.is_none() {
                counters.pids_peak = Some(inspect::threads(self.mode.proc(), &pids));
            }
        }
        pids.retain(|&pid| pid != cell.pid);
        pids.truncate(64);
        counters.open_files = inspect::most_open_files(self.mode.proc(), &pids);
        Ok(counters)
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
            cell.killed.extend(kill_tree(self.mode.proc(), cell.pid));
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
        let (tree, proc) = (&self.tree, self.mode.proc());
        let guests: Vec<i32> = self.live.values().map(|cell| cell.pid).collect();
        let gone = |cell: &Cell| {
            if !matches!(cell.state, State::Dying) || !cell.reaped {
                return false;
            }
            // They are ours to reap now, so a number that is still a child of ours still means the same process.
            if inspect::children_among(proc, &cell.killed).iter().any(|pid| !guests.contains(pid)) {
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
fn go_ahead(mut go: File, report: &File) -> Result<(), Failure> {
    rustix::io::ioctl_fionbio(report, true).map_err(io::Error::from).map_err(Failure::at("pipe"))?;
    go.write_all(&[1]).map_err(Failure::at("let go"))
}

/// What a report says once it has ended.
enum Report {
    /// The timings of all steps; the first payload waits at the gate.
    Held(Vec<(String, u32)>),
    /// The guest runs, but its first payload did not come to the gate.
    NoPayload,
    Failed(Failure),
}

fn parse_report(report: &[u8], ops: &[Op]) -> Report {
    let failure = |bytes: &[u8]| {
        let step = bytes.first().and_then(|&index| ops.get(usize::from(index)));
        Report::Failed(Failure {
            step: step.map_or_else(|| "setup".into(), |op| op.name()),
            message: String::from_utf8_lossy(bytes.get(1..).unwrap_or_default()).into_owned(),
        })
    };
    match report.split_first() {
        Some((&interpret::TIMINGS, rest)) => {
            // Every operation but the last, which does not return.
            let (timings, rest) = rest.split_at(rest.len().min(4 * (ops.len() - 1)));
            let micros = timings.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) / 1000);
            match rest.split_first() {
                Some((&interpret::FAILURE, rest)) => failure(rest),
                Some((&HELD, [])) => Report::Held(ops.iter().map(|op| op.name()).zip(micros).collect()),
                _ => Report::NoPayload,
            }
        }
        Some((&interpret::FAILURE, rest)) => failure(rest),
        _ => Report::Failed(Failure::new("setup", "the child ended without a word")),
    }
}

/// A tmpfs that holds every writable byte of a cell. Detached: it has no path anywhere. Without `owner` it is the
/// launcher's own id that the payload has.
fn make_scratch(bytes: u64, inodes: u64, owner: Option<u32>) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let options = [
        ("source", "scratch".to_owned()),
        ("mode", "0755".to_owned()),
        ("size", bytes.to_string()),
        ("nr_inodes", (inodes + OWN_INODES).to_string()),
    ];
    for (key, value) in options {
        #[cfg(feature = "weaken")]
        if crate::weaken::without("scratch-quota") && matches!(key, "size" | "nr_inodes") {
            continue;
        }
        fsconfig_set_string(&context, key, value.as_str())?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let scratch = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    for dir in ScratchDir::ALL {
        let (name, _) = dir.paths();
        let mode = if dir == ScratchDir::Work { 0o755 } else { 0o1777 };
        mkdirat(&scratch, name, Mode::from_raw_mode(0o700))?;
        if let Some(owner) = owner {
            chownat(
                &scratch,
                name,
                Some(Uid::from_raw(owner)),
                Some(Gid::from_raw(owner)),
                AtFlags::empty(),
            )?;
        }
        chmodat(&scratch, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
    }
    Ok(scratch)
}

/// Ends everything below `root` where neither a PID namespace nor a cgroup does it: stop all first, so that nothing
/// can fork away from the signals, then kill. Orphans stay below `root`, which is their subreaper. Returns what was killed.
fn kill_tree(proc: &str, root: i32) -> Vec<i32> {
    let mut stopped = std::collections::HashSet::new();
    for _ in 0..100 {
        let fresh: Vec<i32> =
            inspect::descendants(proc, root).into_iter().filter(|pid| stopped.insert(*pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            let _ = sys::kill(pid, libc::SIGSTOP);
        }
    }
    let killed = inspect::descendants(proc, root);
    for &pid in &killed {
        let _ = sys::kill(pid, libc::SIGKILL);
    }
    killed
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPS: [Op; 3] = [Op::EnterCgroups, Op::AwaitLauncher, Op::BecomeGuest];

    fn failed(report: &[u8]) -> (String, String) {
        match parse_report(report, &OPS) {
            Report::Failed(failure) => (failure.step, failure.message),
            _ => panic!("not a failure: {report:?}"),
        }
    }

    /// Timings of the two steps that return: 5 and 7 µs.
    fn timings() -> Vec<u8> {
        [vec![interpret::TIMINGS], 5000u32.to_le_bytes().into(), 7000u32.to_le_bytes().into()].concat()
    }

    #[test]
    fn a_payload_at_the_gate_ends_the_report() {
        let Report::Held(steps) = parse_report(&[timings(), vec![HELD]].concat(), &OPS) else {
            panic!("it is held");
        };
        assert_eq!(steps, [("enter cgroups".to_owned(), 5), ("await launcher".to_owned(), 7)]);
    }

    #[test]
    fn a_report_without_that_is_not_a_payload_at_the_gate() {
        for end in [&b""[..], b"x", b"hh", b"h\0"] {
            let report = [&timings(), end].concat();
            assert!(matches!(parse_report(&report, &OPS), Report::NoPayload), "{report:?}");
        }
    }

    #[test]
    fn a_failure_names_its_step() {
        let refused = [&[interpret::FAILURE, 1][..], b"not allowed"].concat();
        assert_eq!(failed(&refused), ("await launcher".into(), "not allowed".into()));
        assert_eq!(failed(&[interpret::FAILURE, 200]).0, "setup");
        assert_eq!(failed(b"").1, "the child ended without a word");
        assert_eq!(failed(&[HELD]).0, "setup", "the gate alone says nothing");
    }
}
