//! What the walls that our own launcher builds have in common.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use casemate_core::limits::LimitKind;
use casemate_core::plan::Plan;
use casemate_core::request::{Need, Workload};
use casemate_wire::guest::{Access, LandlockRule, Presence, Ptrace, Rlimits, Terminals};
use casemate_wire::launch::{CellSpec, Cgroups, Counters, Sight, Wall};

use crate::guest::GuestChannel;
use crate::launcher::{Kept, Launcher, LauncherError, Launching};
use crate::wall::{Attachment, Begun, Control, Later, Look, WallError};

/// Asks `launcher` for a cell and opens the channel to its guest.
pub(super) fn launch(
    launcher: &Launcher,
    spec: CellSpec,
    descriptors: &[BorrowedFd<'_>],
    program: Option<Attachment<'_>>,
    kept: Kept,
) -> Result<(GuestChannel, Box<dyn Control>), WallError> {
    let (channel, theirs) =
        channel().map_err(|error| WallError::Failed(format!("cannot make a channel: {error}")))?;
    let mut fds = vec![theirs.as_fd()];
    fds.extend_from_slice(descriptors);
    fds.extend(program.into_iter().flat_map(Attachment::descriptors));
    let launching = launcher.launch(spec, &fds, kept);
    Ok((channel, Box::new(launching)))
}

/// A channel, and the guest's end of it.
pub(super) fn channel() -> io::Result<(GuestChannel, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((GuestChannel::new(ours.into())?, theirs.into()))
}

/// The limits that the cell's cgroups carry: those of the plan that this host can enforce.
pub(super) fn spec(
    plan: &Plan,
    wall: Wall,
    cgroups: &Cgroups,
    id_block: Option<u16>,
    program: Option<Attachment<'_>>,
) -> CellSpec {
    let value = |kind, enforced: bool| plan.limits().get(kind).filter(|_| enforced).map(|bound| bound.value);
    let narrow = |value: Option<u64>| value.map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    CellSpec {
        wall,
        id_block,
        memory_bytes: value(LimitKind::Memory, cgroups.memory),
        pids: narrow(value(LimitKind::Pids, cgroups.pids)),
        cpus: narrow(value(LimitKind::Cpus, cgroups.cpu)),
        disk_io: value(LimitKind::DiskIo, cgroups.io),
        attached: Attachment::kind(program),
    }
}

pub(super) fn rlimits(plan: &Plan, processes: Option<u64>, file_size: Option<u64>) -> Rlimits {
    let open_files = plan.limits().get(LimitKind::OpenFiles).map_or(1024, |bound| bound.value);
    Rlimits { open_files, processes, cpu_seconds: None, file_size }
}

pub(super) fn ptrace(plan: &Plan) -> Ptrace {
    if plan.needs().contains(&Need::Ptrace) { Ptrace::Allowed } else { Ptrace::Denied }
}

/// Only a session can ask for one, and what others do not need does not slow them down.
pub(super) fn terminals(plan: &Plan) -> Terminals {
    if *plan.workload() == Workload::Session { Terminals::Own } else { Terminals::None }
}

pub(super) fn rule(path: impl Into<String>, access: Access, presence: Presence) -> LandlockRule {
    LandlockRule { path: path.into(), access, presence }
}

/// The devices of the host that are harmless to anybody.
pub(super) const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// What a launcher saw.
pub(super) fn look(sight: Sight) -> Look {
    match sight {
        Sight::Good(posture) => Look::Good { posture, unseen: Vec::new() },
        Sight::Nobody => Look::Nobody,
        Sight::Hidden => Look::Hidden,
    }
}

impl Control for Launching {
    fn proceed(&mut self) -> Later<'_, Result<Begun, WallError>> {
        Box::pin(async { Ok(Launching::proceed(self).await?) })
    }
    fn look(&mut self, number: u32) -> Later<'_, Result<Look, WallError>> {
        Box::pin(async move { Ok(look(self.cell.look(number).await?)) })
    }
    fn measure(&mut self) -> Later<'_, Result<Counters, WallError>> {
        Box::pin(async { Ok(self.cell.measure().await?) })
    }
    fn finish(&mut self) -> Later<'_, Result<Counters, WallError>> {
        Box::pin(async { Ok(self.cell.finish().await?) })
    }
}

impl From<LauncherError> for WallError {
    fn from(error: LauncherError) -> WallError {
        WallError::Failed(error.to_string())
    }
}
