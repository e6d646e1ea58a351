//! The `container` wall: namespaces, a read-only root, a quota-bound work directory, cgroups, no network but a
//! loopback that leads nowhere. Native: no daemon, no runtime, our launcher builds it.
//!
//! What is in it is a guest and its payloads; or gVisor, and the guest in that (`gvisor.rs`).

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use casemate_core::limits::LimitKind;
use casemate_core::plan::Plan;
use casemate_core::request::ImageRef;
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::guest::{Access, Config, Filter, Ids, Landlock, Network, Presence, Privileges, Terminals};
use casemate_wire::launch::{self, Image, Kernel, Platform};
use serde_json::Value;

use crate::guest::Channel;
use crate::home::Home;
use crate::launcher::{Keeper, Kept};
use crate::wall::{Attachment, Cell, Gauges, Hold, Job, Later, Places, Wall, WallError};
use crate::walls::native::{self, rule};

/// Uid and gid of the payload inside the cell.
const PAYLOAD_ID: u32 = 1000;

pub(super) const FILE_SIZE_SLACK: u64 = 1 << 20;

pub(crate) struct Container {
    pub(crate) keeper: Keeper,
    pub(crate) home: Arc<Home>,
}

/// Besides these, everything in a cell is read-only.
const WRITABLE: [&str; 3] = ["/work", "/tmp", "/dev/shm"];

impl Wall for Container {
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>> {
        let kind = image_kind(plan);
        Box::pin(self.build(plan, Content { kind, image, program: None, sentry: None }))
    }

    fn start_program<'a>(
        &'a self,
        plan: &'a Plan,
        program: Attachment<'a>,
    ) -> Later<'a, Result<Cell, WallError>> {
        let content = Content { kind: Image::Empty, image: None, program: Some(program), sentry: None };
        Box::pin(self.build(plan, content))
    }
}

/// What is to be in a container.
pub(super) struct Content<'a> {
    pub(super) kind: Image,
    pub(super) image: Option<BorrowedFd<'a>>,
    pub(super) program: Option<Attachment<'a>>,
    pub(super) sentry: Option<Sentry<'a>>,
}

/// gVisor, which is the kernel for what is in the container.
#[derive(Clone, Copy)]
pub(super) struct Sentry<'a> {
    pub(super) platform: Platform,
    pub(super) runsc: BorrowedFd<'a>,
    pub(super) guest: BorrowedFd<'a>,
}

/// The image that a plan asks for.
pub(super) fn image_kind(plan: &Plan) -> Image {
    match plan.image() {
        ImageRef::Host => Image::Host,
        ImageRef::Directory { .. } | ImageRef::Stored { .. } => Image::Directory,
    }
}

impl Container {
    pub(super) async fn build(&self, plan: &Plan, content: Content<'_>) -> Result<Cell, WallError> {
        let Content { kind, image, program, sentry } = content;
        let launcher = self.keeper.launcher().await?;
        let block = self.home.id_block().map_err(|e| WallError::Failed(format!("cannot assign ids: {e}")))?;
        let kernel = sentry.map_or(Kernel::Host, |sentry| Kernel::Gvisor(sentry.platform));
        let wall = wall(plan, kind, kernel);
        let cgroups = &launcher.hello().cgroups;
        let spec = native::spec(plan, wall, cgroups, block.as_ref().map(|block| block.block), program);
        let processes = match sentry {
            None if cgroups.pids => None,
            // Without a cgroup, the kernel counts processes per user namespace; the guest is one of them.
            None => Some(bound(plan, LimitKind::Pids) + 1),
            // gVisor counts what a user has started: not the guest, which is another one, and not what the guest starts for it.
            Some(_) => Some(bound(plan, LimitKind::Pids).saturating_sub(1)),
        };
        let ids = if block.is_some() { CellIds::Two } else { CellIds::One };
        let kept = Kept { block, scratch: None };
        let of_kernel = sentry.into_iter().flat_map(|sentry| [sentry.runsc, sentry.guest]);
        let descriptors: Vec<_> = image.into_iter().chain(of_kernel).collect();
        let (channel, control) = native::launch(&launcher, spec, &descriptors, program, kept)?;
        let config = config(plan, ids, kernel, processes);
        let job = Job::Program { config, attached: Attachment::kind(program) };
        let gauges = if sentry.is_some() { Gauges::Inside } else { Gauges::Outside };
        let channel = Channel::Guest(channel);
        Ok(Cell { channel, job, places: places(), control, gauges, hold: Hold::Gate, runtime: Value::Null })
    }
}

fn bound(plan: &Plan, kind: LimitKind) -> u64 {
    plan.limits().get(kind).map_or(0, |bound| bound.value)
}

/// What a launcher builds.
pub(super) fn wall(plan: &Plan, image: Image, kernel: Kernel) -> launch::Wall {
    launch::Wall::Container {
        image,
        disk_bytes: bound(plan, LimitKind::Disk),
        inodes: bound(plan, LimitKind::Inodes),
        ptrace: native::ptrace(plan),
        kernel,
        terminals: native::terminals(plan),
    }
}

/// What the launcher of a virtual machine builds for a payload that is root of it.
pub(super) fn machine(plan: &Plan) -> launch::Wall {
    launch::Wall::Machine {
        disk_bytes: bound(plan, LimitKind::Disk),
        inodes: bound(plan, LimitKind::Inodes),
        terminals: native::terminals(plan),
    }
}

/// How the guest treats such a payload: it is bounded, and nothing else.
pub(super) fn machine_config(plan: &Plan) -> Config {
    Config {
        payload_id: None,
        filter: Filter::Inherited,
        landlock: Landlock::NotThere,
        privileges: Privileges::All,
        rlimits: native::rlimits(plan, None, None),
        ..config(plan, CellIds::Two, Kernel::Host, None)
    }
}

/// Which ids there are in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellIds {
    /// One for the guest and one for its payload.
    Two,
    /// The caller's own, for both.
    One,
}

/// How the guest in there confines what it starts. `processes` is what one user may have, where no group counts them.
pub(super) fn config(plan: &Plan, ids: CellIds, kernel: Kernel, processes: Option<u64>) -> Config {
    let terminals = native::terminals(plan);
    // No file can hold more than the disk does, and a hole must not pretend to. The slack lets a full disk
    // answer ENOSPC before this limit sends its signal.
    let file_size = bound(plan, LimitKind::Disk) + FILE_SIZE_SLACK;
    Config {
        version: PROTOCOL_VERSION,
        payload_id: (ids == CellIds::Two).then_some(PAYLOAD_ID),
        network: Network::Namespaced,
        // With one id the uid is the caller's, but of the caller's files this mount namespace shows only
        // those of the image, and these read-only, which holds for metadata too.
        ids: Ids::Own,
        ptrace: native::ptrace(plan),
        filter: if kernel == Kernel::Host { Filter::Inherited } else { Filter::Own },
        rlimits: native::rlimits(plan, processes, Some(file_size)),
        landlock: if kernel == Kernel::Host { landlock(terminals) } else { Landlock::NotThere },
        terminals,
        privileges: Privileges::None,
        file_roots: vec!["/work".into(), "/tmp".into()],
    }
}

/// Where a container's writable places are: where they are called so.
pub(super) fn places() -> Places {
    Places { work: "/work".into(), tmp: "/tmp".into() }
}

/// Nothing is written outside of the three places, and no device is used but those in `/dev`.
pub(super) fn landlock(terminals: Terminals) -> Landlock {
    let mut rules = vec![rule("/", Access::ReadExecute, Presence::Required)];
    rules.extend(WRITABLE.iter().map(|path| rule(*path, Access::ReadWrite, Presence::Required)));
    // A cell's /dev has nothing but harmless devices in it.
    rules.push(rule("/dev", Access::Device, Presence::Required));
    if terminals == Terminals::Own {
        rules.extend(["/dev/pts", "/dev/tty"].map(|path| rule(path, Access::Terminal, Presence::Required)));
    }
    Landlock::Rules(rules)
}
