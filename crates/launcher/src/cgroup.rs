//! Control groups on v2, v1 and mixtures of both: one group per cell and hierarchy, `casemate-RUN.WALL.GENERATION.N`.
//!
//! Found out once at start; whatever is not usable is reported, and the engine refuses limits that would need it.
//! Groups sit at the top of each hierarchy (as other container engines do), so that a later process can find what a killed
//! one left; and there are none above them, because each costs as much to make and to remove as a mount namespace.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use casemate_bare::{files, io};
use casemate_wire::launch::{CellSpec, Cgroups, Counters, Kernel, RunId};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

/// How the name of every group of ours begins.
const PREFIX: &str = "casemate-";
const PERIOD_MICROS: u64 = 100_000;

/// What a cell needs besides what its payload may have.
struct Own {
    memory_bytes: u64,
    processes: u64,
    /// How many processes of this kernel it takes for one of the payload's.
    each: u64,
}

impl Own {
    fn of(kernel: Kernel) -> Own {
        match kernel {
            // The guest. Its memory is too little to tell.
            Kernel::Host => Own { memory_bytes: 0, processes: 1, each: 1 },
            // gVisor's kernel and its gofer take 20 to 40 MiB, and more with what the payload has open. They have dozens of threads; a
            // payload's threads have one of each kernel. Those of the payload alone are counted inside.
            Kernel::Gvisor(_) => Own { memory_bytes: 64 << 20, processes: 256, each: 3 },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
    Cpu,
    CpuAcct,
}

impl Controller {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "memory" => Controller::Memory,
            "pids" => Controller::Pids,
            "cpu" => Controller::Cpu,
            "cpuacct" => Controller::CpuAcct,
            _ => return None,
        })
    }
}

impl Controller {
    /// Where a limit can be read back.
    fn limit_files(self, version: Version) -> &'static [&'static str] {
        match (self, version) {
            (Controller::Memory, Version::V1) => &["memory.limit_in_bytes"],
            (Controller::Memory, Version::V2) => &["memory.max", "memory.oom.group"],
            (Controller::Pids, _) => &["pids.max"],
            (Controller::Cpu, Version::V1) => &["cpu.cfs_quota_us"],
            (Controller::Cpu, Version::V2) => &["cpu.max"],
            (Controller::CpuAcct, _) => &[],
        }
    }
}

struct Hierarchy {
    version: Version,
    controllers: Vec<Controller>,
    /// The directory in which groups are made.
    base: OwnedFd,
}

/// How the processes of a cell are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    /// Through their group, where the kernel can.
    ByGroup,
    /// With the first process of their PID namespace.
    Otherwise,
}

/// The hierarchies in which this launcher makes groups.
pub(crate) struct Tree {
    hierarchies: Vec<Hierarchy>,
    /// There is a v2 hierarchy that is of no use here.
    hybrid: bool,
    /// Until this is known, no group can be made.
    owner: Option<Owner>,
    made: u32,
    missing: Option<String>,
}

/// Whose groups these are: a run of the engine has one launcher per wall, and another one after each that died.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) run: RunId,
    pub(crate) wall: &'static str,
    pub(crate) generation: u32,
}

impl Owner {
    /// How the names of this launcher's groups begin.
    fn prefix(self) -> String {
        format!("{PREFIX}{}.{}.{}.", self.run, self.wall, self.generation)
    }
}

/// The groups of one cell.
pub(crate) struct Group {
    name: String,
    dirs: Vec<OwnedFd>,
    /// The v1 files through which a process enters, opened with the launcher's rights.
    doors: Vec<OwnedFd>,
    gauges: Gauges,
}

/// Open counters: somebody waits for what they say at the end of every run.
#[derive(Default)]
struct Gauges {
    memory_peak: Option<OwnedFd>,
    /// `oom_kill` is in it.
    memory_events: Option<OwnedFd>,
    pids_peak: Option<OwnedFd>,
    /// `max` is in it.
    pids_events: Option<OwnedFd>,
    /// Nanoseconds (v1), or `usage_usec` is in it (v2).
    cpu: Option<(OwnedFd, Version)>,
}

impl Group {
    /// The calling thread goes in. Moving oneself, and through `tasks`, is the one way into a v1 group that does not
    /// wait for every CPU of the machine (`cgroup.procs` takes a global lock, for milliseconds).
    pub(crate) fn enter(&self) -> io::Result<()> {
        for door in &self.doors {
            rustix::io::write(door, b"0")?;
        }
        Ok(())
    }

    /// What is taken already when the payload begins. From then on the peak is its own, as far as this kernel can forget the one
    /// before: what started the cell's kernel took memory, too, and has gone.
    pub(crate) fn begin(&self) -> Counters {
        let mut own = Counters::default();
        self.measure(&mut own);
        for dir in &self.dirs {
            let forget = files::write_at(dir.as_fd(), "memory.max_usage_in_bytes", "0");
            let now = files::read_text_at(dir.as_fd(), "memory.usage_in_bytes");
            if let (Ok(()), Some(now)) = (forget, now.ok().and_then(|text| text.trim().parse().ok())) {
                own.memory_peak_bytes = Some(now);
            }
        }
        own
    }

    /// Nobody else goes in.
    pub(crate) fn entered(mut self) -> Group {
        self.doors.clear();
        self
    }
}

impl Tree {
    pub(crate) fn open(root: bool, kill: Kill) -> Tree {
        let mut tree = Tree { hierarchies: Vec::new(), hybrid: false, owner: None, made: 0, missing: None };
        let candidates = match find_mounts() {
            Ok(candidates) => candidates,
            Err(error) => {
                tree.missing = Some(format!("cannot read the mount table: {error}"));
                return tree;
            }
        };
        for (version, mount, controllers) in candidates {
            // Beside v1 hierarchies that have all controllers, it could only end what is in it.
            if version == Version::V2 && controllers.is_empty() && kill == Kill::Otherwise {
                tree.hybrid = true;
                continue;
            }
            match open_hierarchy(version, &mount, controllers, root) {
                Ok(Some(hierarchy)) => tree.hierarchies.push(hierarchy),
                Ok(None) => {}
                Err(error) => tree.missing = Some(format!("{}: {error}", mount)),
            }
        }
        if tree.hierarchies.is_empty() && tree.missing.is_none() {
            tree.missing = Some("no cgroup hierarchy is mounted".into());
        }
        tree
    }

    pub(crate) fn belong_to(&mut self, owner: Owner) {
        self.owner = Some(owner);
    }

    fn owner(&self) -> io::Result<Owner> {
        self.owner.ok_or_else(|| io::Error::other("nobody to make groups for yet"))
    }

    pub(crate) fn describe(&self) -> Cgroups {
        let has = |controller| self.with(controller).is_some();
        let versions =
            |version| self.hierarchies.iter().any(|h| h.version == version && !h.controllers.is_empty());
        let layout = match (versions(Version::V1), versions(Version::V2)) {
            (true, true) => "v1+v2",
            (true, false) if self.hybrid || self.v2().is_some() => "v1 hybrid",
            (true, false) => "v1",
            (false, true) => "v2",
            (false, false) => "none",
        };
        let v2_cpu = self
            .hierarchies
            .iter()
            .any(|h| h.version == Version::V2 && h.controllers.contains(&Controller::Cpu));
        Cgroups {
            layout: layout.into(),
            memory: has(Controller::Memory),
            pids: has(Controller::Pids),
            cpu: has(Controller::Cpu),
            cpu_usage: has(Controller::CpuAcct) || v2_cpu,
            io: false,
            kill: self.v2().is_some(),
            missing: self.missing.clone(),
        }
    }

    fn with(&self, controller: Controller) -> Option<(usize, Version)> {
        let at = self.hierarchies.iter().position(|h| h.controllers.contains(&controller))?;
        Some((at, self.hierarchies[at].version))
    }

    /// Makes the groups of a cell. Nothing is in them yet, and nothing limited.
    pub(crate) fn create(&mut self) -> io::Result<Group> {
        let prefix = self.owner()?.prefix();
        self.made += 1;
        let mut group = Group {
            name: format!("{prefix}{}", self.made),
            dirs: Vec::new(),
            doors: Vec::new(),
            gauges: Gauges::default(),
        };
        for hierarchy in &self.hierarchies {
            let made = make_new_directory(hierarchy.base.as_fd(), &group.name).and_then(|dir| {
                let door = match hierarchy.version {
                    Version::V1 => {
                        Some(openat(&dir, "tasks", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()))
                    }
                    Version::V2 => None,
                };
                // What is listed is removed if the rest fails.
                group.dirs.push(dir);
                group.doors.extend(door.transpose()?);
                Ok(())
            });
            if let Err(error) = made {
                let _ = self.remove(&group);
                return Err(error);
            }
        }
        match self.gauges(&group) {
            Ok(gauges) => group.gauges = gauges,
            Err(error) => {
                let _ = self.remove(&group);
                return Err(error);
            }
        }
        Ok(group)
    }

    /// A counter that is there and cannot be opened is an error: without it, what it counts would not be limited.
    fn gauges(&self, group: &Group) -> io::Result<Gauges> {
        // Older kernels know no peak: then samples of what is there now have to do.
        let open = |at: usize, names: &[&str]| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            for name in names {
                match openat(&group.dirs[at], *name, flags, Mode::empty()) {
                    Ok(gauge) => return Ok(Some(gauge)),
                    Err(Errno::NOENT) => {}
                    Err(error) => return Err(io::Error::from(error)),
                }
            }
            Ok(None)
        };
        let mut gauges = Gauges::default();
        if let Some((at, version)) = self.with(Controller::Memory) {
            let (peak, events) = match version {
                Version::V2 => (["memory.peak", "memory.current"], "memory.events"),
                Version::V1 => (["memory.max_usage_in_bytes", "memory.usage_in_bytes"], "memory.oom_control"),
            };
            (gauges.memory_peak, gauges.memory_events) = (open(at, &peak)?, open(at, &[events])?);
        }
        if let Some((at, _)) = self.with(Controller::Pids) {
            gauges.pids_peak = open(at, &["pids.peak", "pids.current"])?;
            gauges.pids_events = open(at, &["pids.events"])?;
        }
        gauges.cpu = match (self.with(Controller::CpuAcct), self.with(Controller::Cpu)) {
            (Some((at, Version::V1)), _) => open(at, &["cpuacct.usage"])?.map(|fd| (fd, Version::V1)),
            (_, Some((at, Version::V2))) => open(at, &["cpu.stat"])?.map(|fd| (fd, Version::V2)),
            _ => None,
        };
        Ok(gauges)
    }

    /// The engine asks only for what [`Tree::describe`] offered; anything else is an error, never ignored.
    pub(crate) fn limit(&self, group: &Group, spec: &CellSpec) -> io::Result<()> {
        #[cfg(feature = "weaken")]
        if crate::weaken::without("cgroup-limits") {
            return Ok(());
        }
        let place = |controller, what: &str| {
            self.with(controller)
                .ok_or_else(|| io::Error::other(format!("no cgroup controller can limit {what}")))
        };
        let own = Own::of(spec.wall.kernel());
        if let Some(bytes) = spec.memory_bytes {
            let bytes = bytes.saturating_add(own.memory_bytes);
            let (at, version) = place(Controller::Memory, "memory")?;
            let dir = group.dirs[at].as_fd();
            match version {
                Version::V2 => {
                    write(dir, "memory.max", &bytes.to_string())?;
                    write_if_present(dir, "memory.swap.max", "0")?;
                    write(dir, "memory.oom.group", "1")?;
                }
                Version::V1 => {
                    write(dir, "memory.limit_in_bytes", &bytes.to_string())?;
                    write_if_present(dir, "memory.memsw.limit_in_bytes", &bytes.to_string())?;
                }
            }
        }
        if let Some(pids) = spec.pids {
            let (at, _) = place(Controller::Pids, "processes")?;
            let processes = u64::from(pids).saturating_mul(own.each).saturating_add(own.processes);
            write(group.dirs[at].as_fd(), "pids.max", &processes.to_string())?;
        }
        if spec.wall.kernel() == Kernel::Host {
            self.limit_processors(group, spec.cpus)?;
        }
        if spec.disk_io.is_some() {
            return Err(io::Error::other("disk I/O cannot be limited"));
        }
        Ok(())
    }

    /// Where a kernel of its own has to start first, that is not held up: the limit is the payload's, and set before it begins.
    pub(crate) fn limit_processors(&self, group: &Group, cpus: Option<u32>) -> io::Result<()> {
        let Some(cpus) = cpus else { return Ok(()) };
        #[cfg(feature = "weaken")]
        if crate::weaken::without("cgroup-limits") {
            return Ok(());
        }
        let (at, version) = self
            .with(Controller::Cpu)
            .ok_or_else(|| io::Error::other("no cgroup controller can limit CPU share"))?;
        let quota = u64::from(cpus) * PERIOD_MICROS / 1000;
        let dir = group.dirs[at].as_fd();
        match version {
            Version::V2 => write(dir, "cpu.max", &format!("{quota} {PERIOD_MICROS}")),
            Version::V1 => write(dir, "cpu.cfs_quota_us", &quota.to_string()),
        }
    }

    /// The v2 group, into which a child can be cloned directly.
    pub(crate) fn clone_target<'a>(&self, group: &'a Group) -> Option<BorrowedFd<'a>> {
        Some(group.dirs[self.v2()?].as_fd())
    }

    fn v2(&self) -> Option<usize> {
        self.hierarchies.iter().position(|h| h.version == Version::V2)
    }

    /// Whether the process whose `/proc/PID/cgroup` this is is where it belongs in every hierarchy.
    pub(crate) fn holds(&self, group: &Group, membership: &str) -> bool {
        let place = format!("/{}", group.name);
        membership.lines().filter(|line| line.ends_with(&place)).count() == self.hierarchies.len()
    }

    /// Ends every process of the group at once, where the kernel can.
    pub(crate) fn kill(&self, group: &Group) {
        if let Some(dir) = self.clone_target(group) {
            let _ = write(dir, "cgroup.kill", "1");
        }
    }

    pub(crate) fn processes(&self, group: &Group) -> Option<Vec<i32>> {
        let text = read(group.dirs.first()?.as_fd(), "cgroup.procs")?;
        Some(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// The limits as the kernel states them: evidence.
    pub(crate) fn observed(&self, group: &Group) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (hierarchy, dir) in self.hierarchies.iter().zip(&group.dirs) {
            for controller in &hierarchy.controllers {
                for file in controller.limit_files(hierarchy.version) {
                    if let Some(text) = read(dir.as_fd(), file) {
                        found.push(((*file).to_owned(), text.trim().to_owned()));
                    }
                }
            }
        }
        found
    }

    /// Removes the groups; fails with `EBUSY` while a process is in one of them.
    pub(crate) fn remove(&self, group: &Group) -> io::Result<()> {
        for (hierarchy, _) in self.hierarchies.iter().zip(&group.dirs) {
            remove_directory(hierarchy.base.as_fd(), &group.name)?;
        }
        Ok(())
    }

    /// Kills and removes everything that a dead run left; of our own run, what earlier launchers for this wall left.
    pub(crate) fn recover(&self, run: RunId) -> io::Result<()> {
        let owner = self.owner()?;
        let (theirs, ours) = match run == owner.run {
            true => (format!("{PREFIX}{run}.{}.", owner.wall), Some(owner.prefix())),
            false => (format!("{PREFIX}{run}."), None),
        };
        for hierarchy in &self.hierarchies {
            let listing = open_directory(hierarchy.base.as_fd(), ".")?;
            for name in subdirectories(listing.as_fd())? {
                if name.starts_with(&theirs) && !ours.as_ref().is_some_and(|ours| name.starts_with(ours)) {
                    drain(open_directory(hierarchy.base.as_fd(), &name)?.as_fd())?;
                    remove_directory(hierarchy.base.as_fd(), &name)?;
                }
            }
        }
        Ok(())
    }
}

impl Group {
    pub(crate) fn measure(&self, counters: &mut Counters) {
        let Gauges { memory_peak, memory_events, pids_peak, pids_events, cpu } = &self.gauges;
        counters.memory_peak_bytes = memory_peak.as_ref().and_then(number);
        counters.oom_kills = memory_events.as_ref().and_then(|events| keyed(events, "oom_kill"));
        let payload = |n: u64| n.saturating_sub(Own::of(Kernel::Host).processes);
        counters.pids_peak = pids_peak.as_ref().and_then(number).map(payload);
        counters.pids_denied = pids_events.as_ref().and_then(|events| keyed(events, "max"));
        counters.cpu_micros = match cpu {
            Some((usage, Version::V1)) => number(usage).map(|nanos| nanos / 1000),
            Some((stat, Version::V2)) => keyed(stat, "usage_usec"),
            None => None,
        };
    }
}

/// Kills until the group is empty. A process cannot leave it, so this ends.
fn drain(group: BorrowedFd<'_>) -> io::Result<()> {
    for _ in 0..500 {
        let _ = write(group, "cgroup.kill", "1");
        let text = read(group, "cgroup.procs").unwrap_or_default();
        let mut empty = true;
        for pid in text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|&pid| pid > 0) {
            empty = false;
            let _ = crate::sys::kill(pid, libc::SIGKILL);
        }
        if empty {
            return Ok(());
        }
        crate::sys::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other("processes of a dead run do not end"))
}

/// All mounted hierarchies, with the controllers of interest.
fn find_mounts() -> io::Result<Vec<(Version, String, Vec<Controller>)>> {
    let mut found: Vec<(Version, String, Vec<Controller>)> = Vec::new();
    for line in files::read_text("/proc/self/mountinfo")?.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(point) = left.split(' ').nth(4).map(String::from) else { continue };
        let mut right = right.split(' ');
        let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
        match kind {
            Some("cgroup2") => {
                let text = files::read_text(&format!("{point}/cgroup.controllers")).unwrap_or_default();
                let controllers = text.split_whitespace().filter_map(Controller::parse).collect();
                found.push((Version::V2, point, controllers));
            }
            Some("cgroup") => {
                let controllers: Vec<_> = options.split(',').filter_map(Controller::parse).collect();
                if !controllers.is_empty() && !found.iter().any(|(_, _, c)| *c == controllers) {
                    found.push((Version::V1, point, controllers));
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Finds where groups can be made in a hierarchy. `None`: it is of no use.
fn open_hierarchy(
    version: Version,
    mount: &str,
    controllers: Vec<Controller>,
    root: bool,
) -> io::Result<Option<Hierarchy>> {
    let base = match version {
        Version::V1 => mount.to_owned(),
        Version::V2 if root => mount.to_owned(),
        // Unprivileged, only a delegated subtree will do: beside our own group.
        Version::V2 => match own_v2_group()?.rsplit_once('/') {
            Some((parent, own)) if !own.is_empty() => format!("{mount}{parent}"),
            _ => return Ok(None),
        },
    };
    let base = openat(CWD, base, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::accessat(&base, ".", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)?;
    if version == Version::V2 {
        enable(base.as_fd(), &controllers)?;
    }
    Ok(Some(Hierarchy { version, controllers, base }))
}

/// Hands the controllers down to the children of `dir`.
fn enable(dir: BorrowedFd<'_>, controllers: &[Controller]) -> io::Result<()> {
    let present = read(dir, "cgroup.subtree_control").unwrap_or_default();
    let on = |name: &str| present.split_whitespace().any(|word| word == name);
    for controller in controllers {
        let name = match controller {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
            Controller::CpuAcct => continue,
        };
        if !on(name) {
            write(dir, "cgroup.subtree_control", &format!("+{name}"))?;
        }
    }
    Ok(())
}

/// As an absolute path; `/` is the root of the tree.
fn own_v2_group() -> io::Result<String> {
    let text = files::read_text("/proc/self/cgroup")?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    path.map(String::from).ok_or_else(|| io::Error::other("this process is in no v2 group"))
}

/// A cell's group is its own: one that exists already is an error.
fn make_new_directory(at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    mkdirat(at, name, Mode::from_raw_mode(0o755))?;
    open_directory(at, name)
}

fn open_directory(at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(openat(at, name, flags, Mode::empty())?)
}

fn remove_directory(at: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match unlinkat(at, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn subdirectories(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let entries = files::list(dir)?.into_iter();
    Ok(entries.filter(|(_, kind)| *kind == FileType::Directory).map(|(name, _)| name).collect())
}

fn write(dir: BorrowedFd<'_>, file: &str, value: &str) -> io::Result<()> {
    let fd = openat(dir, file, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
        .map_err(|error| io::Error::other(format!("{file}: {error}")))?;
    rustix::io::write(&fd, value.as_bytes())
        .map_err(|error| io::Error::other(format!("{file}={value}: {error}")))?;
    Ok(())
}

fn write_if_present(dir: BorrowedFd<'_>, file: &str, value: &str) -> io::Result<()> {
    match rustix::fs::accessat(dir, file, rustix::fs::Access::EXISTS, AtFlags::empty()) {
        Ok(()) => write(dir, file, value),
        Err(_) => Ok(()),
    }
}

fn read(dir: BorrowedFd<'_>, file: &str) -> Option<String> {
    files::read_text_at(dir, file).ok()
}

/// What a counter says now.
fn look(gauge: &OwnedFd, buffer: &mut [u8; 2048]) -> Option<usize> {
    rustix::io::pread(gauge, buffer, 0).ok()
}

fn number(gauge: &OwnedFd) -> Option<u64> {
    let mut buffer = [0; 2048];
    let length = look(gauge, &mut buffer)?;
    core::str::from_utf8(&buffer[..length]).ok()?.trim().parse().ok()
}

/// The number after `key` in a file of `key number` lines.
fn keyed(gauge: &OwnedFd, key: &str) -> Option<u64> {
    let mut buffer = [0; 2048];
    let length = look(gauge, &mut buffer)?;
    let text = core::str::from_utf8(&buffer[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}
