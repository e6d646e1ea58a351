//! The `container` wall: namespaces, a read-only root, a quota-bound work directory, cgroups, no network but a
//! loopback that leads nowhere. Native: no daemon, no runtime, our launcher builds it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use casemate_core::limits::LimitKind;
use casemate_core::plan::Plan;
use casemate_core::request::ImageRef;
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::guest::{Access, Config, Filter, Ids, Network, Presence};
use casemate_wire::launch::{self, Image};

use crate::guest::Channel;
use crate::home::Home;
use crate::launcher::{Keeper, Kept};
use crate::wall::{Attachment, Cell, Job, Later, Places, Wall, WallError};
use crate::walls::native::{self, rule};

/// Uid and gid of the payload inside the cell.
const PAYLOAD_ID: u32 = 1000;

const FILE_SIZE_SLACK: u64 = 1 << 20;

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
        let kind = match plan.image() {
            ImageRef::Host => Image::Host,
            ImageRef::Directory { .. } => Image::Directory,
        };
        self.build(plan, kind, image, None)
    }

    fn start_program<'a>(
        &'a self,
        plan: &'a Plan,
        program: Attachment<'a>,
    ) -> Later<'a, Result<Cell, WallError>> {
        self.build(plan, Image::Empty, None, Some(program))
    }
}

impl Container {
    fn build<'a>(
        &'a self,
        plan: &'a Plan,
        kind: Image,
        image: Option<BorrowedFd<'a>>,
        program: Option<Attachment<'a>>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(async move {
            let launcher = self.keeper.launcher().await?;
            let block = self.home.id_block().map_err(|e| WallError(format!("cannot assign ids: {e}")))?;
            let bound = |kind| plan.limits().get(kind).map_or(0, |bound| bound.value);
            let wall = launch::Wall::Container {
                image: kind,
                disk_bytes: bound(LimitKind::Disk),
                inodes: bound(LimitKind::Inodes),
                ptrace: native::ptrace(plan),
            };
            let cgroups = &launcher.hello().cgroups;
            let spec = native::spec(plan, wall, cgroups, block.as_ref().map(|block| block.block), program);
            // Without a cgroup, the kernel counts processes per user namespace; the guest is one of them.
            let processes = (!cgroups.pids).then(|| bound(LimitKind::Pids) + 1);
            // No file can hold more than the disk does, and a hole must not pretend to. The slack lets a full disk
            // answer ENOSPC before this limit sends its signal.
            let file_size = bound(LimitKind::Disk) + FILE_SIZE_SLACK;
            let payload_id = block.is_some().then_some(PAYLOAD_ID);
            let (channel, control) =
                native::launch(&launcher, spec, image, program, Kept { block, scratch: None })?;
            let mut landlock = vec![rule("/", Access::ReadExecute, Presence::Required)];
            landlock.extend(WRITABLE.iter().map(|path| rule(*path, Access::ReadWrite, Presence::Required)));
            // A cell's /dev has nothing but harmless devices in it.
            landlock.push(rule("/dev", Access::Device, Presence::Required));
            let config = Config {
                version: PROTOCOL_VERSION,
                payload_id,
                network: Network::Namespaced,
                // Without a block the uid is the caller's, but of the caller's files this mount namespace shows only
                // those of the image, and these read-only, which holds for metadata too.
                ids: Ids::Own,
                ptrace: native::ptrace(plan),
                filter: Filter::Inherited,
                rlimits: native::rlimits(plan, processes, Some(file_size)),
                landlock,
                file_roots: vec!["/work".into(), "/tmp".into()],
            };
            let places = Places { work: "/work".into(), tmp: "/tmp".into() };
            let job = Job::Program { config, attached: Attachment::kind(program) };
            Ok(Cell { channel: Channel::Guest(channel), job, places, control })
        })
    }
}
