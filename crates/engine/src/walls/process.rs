//! The `process` wall alone: Landlock, seccomp and rlimits, for hosts that allow nothing else. No namespaces: the
//! payload sees the host's `/usr` through Landlock and can open no socket. As root, it has ids of its own; otherwise
//! it has its caller's, and the filter keeps it from the metadata of the caller's files.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use casemate_core::plan::Plan;
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::guest::{Access, Config, Filter, Ids, Landlock, Network, Presence, Privileges, Terminals};
use casemate_wire::launch;
use serde_json::Value;

use crate::guest::Channel;
use crate::home::Home;
use crate::launcher::{Keeper, Kept};
use crate::wall::{Attachment, Cell, Gauges, Hold, Job, Later, Places, Wall, WallError};
use crate::walls::native::{self, rule};

pub(crate) struct Process {
    pub(crate) keeper: Keeper,
    pub(crate) home: Arc<Home>,
    /// Names the work directories.
    pub(crate) made: AtomicU32,
}

/// What a program needs to start: libraries and interpreters. Links among these lead into `/usr`. Node ends when it is
/// denied OpenSSL's settings, which tell nothing about the host; absent it would not mind.
const READABLE: [&str; 10] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/openssl.cnf",
];

impl Wall for Process {
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        _image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>> {
        self.build(plan, &READABLE, None)
    }

    fn start_program<'a>(
        &'a self,
        plan: &'a Plan,
        program: Attachment<'a>,
    ) -> Later<'a, Result<Cell, WallError>> {
        self.build(plan, &[], Some(program))
    }
}

impl Process {
    fn build<'a>(
        &'a self,
        plan: &'a Plan,
        readable: &'static [&'static str],
        program: Option<Attachment<'a>>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(async move {
            let launcher = self.keeper.launcher().await?;
            let block =
                self.home.id_block().map_err(|e| WallError::Failed(format!("cannot assign ids: {e}")))?;
            let block_number = block.as_ref().map(|block| block.block);
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let scratch = self
                .home
                .scratch(number, block_number)
                .map_err(|e| WallError::Failed(format!("cannot make a work directory: {e}")))?;
            let places = Places { work: scratch.part("work"), tmp: scratch.part("tmp") };
            let cgroups = &launcher.hello().cgroups;
            let spec = native::spec(plan, launch::Wall::Process, cgroups, block_number, program);
            let (channel, control) =
                native::launch(&launcher, spec, &[], program, Kept { block, scratch: Some(scratch) })?;
            let mut landlock: Vec<_> =
                readable.iter().map(|path| rule(*path, Access::ReadExecute, Presence::Optional)).collect();
            landlock.extend(
                [&places.work, &places.tmp].map(|path| rule(path, Access::ReadWrite, Presence::Required)),
            );
            landlock.extend(native::DEVICES.map(|path| rule(path, Access::Device, Presence::Optional)));
            let config = Config {
                version: PROTOCOL_VERSION,
                payload_id: None,
                network: Network::None,
                ids: if block_number.is_some() { Ids::Own } else { Ids::Shared },
                ptrace: native::ptrace(plan),
                filter: Filter::Own,
                rlimits: native::rlimits(plan, None, None),
                landlock: Landlock::Rules(landlock),
                // The host's.
                terminals: Terminals::None,
                privileges: Privileges::None,
                file_roots: vec![places.work.clone(), places.tmp.clone()],
            };
            let job = Job::Program { config, attached: Attachment::kind(program) };
            let (channel, gauges, hold) = (Channel::Guest(channel), Gauges::Outside, Hold::Gate);
            Ok(Cell { channel, job, places, control, gauges, hold, runtime: Value::Null })
        })
    }
}
