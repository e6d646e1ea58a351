//! The `process` wall alone: Landlock, seccomp and rlimits, for hosts that allow nothing else. No namespaces: the
//! payload sees the host's `/usr` through Landlock and can open no socket. As root, it has ids of its own.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use casemate_core::plan::Plan;
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::guest::{Access, Config, Network, Presence};
use casemate_wire::launch::{self, Privilege};
use tokio::sync::OnceCell;

use crate::agents::Agents;
use crate::home::Home;
use crate::launcher::{Kept, Launcher, Serves};
use crate::wall::{Bounding, Cell, Expected, Later, Places, Wall, WallError};
use crate::walls::native::{self, device_rules, rule};

pub(crate) struct Process {
    agents: Agents,
    home: Arc<Home>,
    /// Started with the first cell: most engines never need it.
    launcher: OnceCell<Launcher>,
    made: AtomicU32,
}

/// What a program needs to start: libraries and interpreters. Links among these lead into `/usr`.
const READABLE: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache"];

impl Process {
    pub(crate) fn new(agents: Agents, home: Arc<Home>) -> Process {
        Process { agents, home, launcher: OnceCell::new(), made: AtomicU32::new(0) }
    }

    pub(crate) fn take_launcher(&mut self) -> Option<Launcher> {
        self.launcher.take()
    }

    async fn launcher(&self) -> Result<&Launcher, WallError> {
        let start =
            || Launcher::start(&self.agents, self.home.run, Serves::Process, self.home.shared_locks());
        Ok(self.launcher.get_or_try_init(start).await?)
    }
}

impl Wall for Process {
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        _image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(async move {
            let launcher = self.launcher().await?;
            let block = self.home.id_block().map_err(|e| WallError(format!("cannot assign ids: {e}")))?;
            let block_number = block.as_ref().map(|block| block.block);
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let scratch = self
                .home
                .scratch(number, block_number)
                .map_err(|e| WallError(format!("cannot make a work directory: {e}")))?;
            let places = Places { work: scratch.part("work"), tmp: scratch.part("tmp") };
            let cgroups = &launcher.hello().cgroups;
            let spec = native::spec(plan, launch::Wall::Process, cgroups, block_number);
            let (channel, control) =
                native::launch(launcher, spec, None, Kept { block, scratch: Some(scratch) })?;
            let mut landlock: Vec<_> =
                READABLE.iter().map(|path| rule(*path, Access::ReadExecute, Presence::Optional)).collect();
            landlock.extend(
                [&places.work, &places.tmp].map(|path| rule(path, Access::ReadWrite, Presence::Required)),
            );
            landlock.extend(device_rules());
            let config = Config {
                version: PROTOCOL_VERSION,
                payload_id: None,
                network: Network::None,
                ptrace: native::ptrace(plan),
                rlimits: native::rlimits(plan, None),
                landlock,
                file_roots: vec![places.work.clone(), places.tmp.clone()],
            };
            let bounding = match launcher.hello().privilege {
                Privilege::Root => Bounding::Empty,
                Privilege::Rootless => Bounding::AsInherited,
            };
            let expected = Expected { namespaces: &[], bounding, writable: &[] };
            Ok(Cell { channel, config, places, control, expected })
        })
    }
}
