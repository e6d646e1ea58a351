//! What the launcher sees of a cell from outside: the posture of what waits to run, and the counters of what does.

use alloc::boxed::Box;

use casemate_bare::io;
use casemate_wire::launch::{CellId, Counters, Kernel, Posture, Sight};
use rustix::fd::OwnedFd;

use super::{Cell, Cells, Failure};
use crate::expected::Expected;
use crate::inspect::{self, Namespaces, Surroundings};
use crate::scratch;

/// What the process that is gVisor's kernel calls itself.
const SENTRY: &[u8] = b"runsc-sandbox";

impl Cells {
    /// What holds for a payload and not for the kernel that was started for it.
    pub(super) fn limit_payload(&mut self, id: CellId) -> Result<(), Failure> {
        let Some(cell) = self.live.get_mut(&id) else { return Ok(()) };
        if cell.wall.kernel() != Kernel::Host {
            self.tree.limit_processors(&cell.group, cell.cpus).map_err(Failure::at("set limits"))?;
            cell.limits = self.tree.observed(&cell.group);
        }
        Ok(())
    }

    /// The posture of a cell's first payload, which waits at the gate. An error if it is not as it must be.
    pub(super) fn look_at_payload(
        &self,
        id: CellId,
        known: Option<Surroundings>,
    ) -> Result<Posture, Failure> {
        let cell = self.get(id)?;
        let mut posture = match (cell.wall.kernel(), known) {
            (Kernel::Host, Some(payload)) => {
                self.check_posture(cell, payload, Expected::of(&cell.wall, self.root))
            }
            (Kernel::Host, None) => {
                let payload = find_payload(cell.pid, &self.host).map_err(Failure::at("find payload"))?;
                self.check_posture(cell, payload, Expected::of(&cell.wall, self.root))
            }
            (Kernel::Gvisor(_), _) => self.look_at_sandbox(cell),
        }?;
        posture.cgroup = cell.limits.clone();
        Ok(posture)
    }

    /// A later payload, which the guest holds. If it is not as it must be, the cell is done for.
    pub(crate) fn look_at_held(&mut self, id: CellId, number: u32) -> Result<Sight, Failure> {
        let cell = self.get(id)?;
        if cell.wall.kernel() != Kernel::Host {
            return Ok(Sight::Hidden);
        }
        let found = inspect::child_numbered(cell.pid, number);
        let Some(process) = found.map_err(Failure::at("find payload"))? else { return Ok(Sight::Nobody) };
        match self.look_at_child(cell, &process) {
            Ok(posture) => Ok(Sight::Good(Box::new(posture))),
            // It may be killed while it waits.
            Err(_) if inspect::has_ended(&process) => Ok(Sight::Nobody),
            Err(failure) => {
                self.doom(id);
                Err(failure)
            }
        }
    }

    fn look_at_child(&self, cell: &Cell, process: &OwnedFd) -> Result<Posture, Failure> {
        let process = rustix::io::fcntl_dupfd_cloexec(process, 0).map_err(io::Error::from);
        let surroundings = process.and_then(|process| Surroundings::of(process, &self.host));
        let surroundings = surroundings.map_err(Failure::at("find payload"))?;
        let mut posture = self.check_posture(cell, surroundings, Expected::of(&cell.wall, self.root))?;
        posture.cgroup = cell.limits.clone();
        Ok(posture)
    }

    /// A payload in gVisor is no process of this kernel. What stands between it and the host is the sandbox: its kernel, which
    /// the posture is of, and the processes that it uses. None of them may have what a payload may not have.
    fn look_at_sandbox(&self, cell: &Cell) -> Result<Posture, Failure> {
        let mut sentry = None;
        for pid in inspect::descendants(cell.pid) {
            let at = Failure::at("find sandbox");
            let Some(process) = inspect::process(pid).map_err(at)? else { continue };
            let is_sentry = process.is_called(SENTRY);
            let surroundings =
                Surroundings::of(process.directory, &self.host).map_err(Failure::at("find sandbox"))?;
            let expected =
                if is_sentry { Expected::of(&cell.wall, self.root) } else { Expected::of_helper() };
            let posture = self.check_posture(cell, surroundings, expected)?;
            if is_sentry && sentry.replace(posture).is_some() {
                return Err(Failure::new("check posture", "there are two sandboxes in the cell"));
            }
        }
        sentry.ok_or_else(|| Failure::new("find sandbox", "there is none"))
    }

    fn check_posture(&self, cell: &Cell, of: Surroundings, expected: Expected) -> Result<Posture, Failure> {
        if !self.tree.holds(&cell.group, &of.membership) {
            return Err(Failure::new("check posture", "the payload is not in the cell's cgroups"));
        }
        let posture = inspect::posture(of).map_err(Failure::at("read posture"))?;
        match expected.violation(&posture) {
            // A launcher that leaves a layer out on purpose cannot hold it against the payload.
            Some(_) if cfg!(feature = "weaken") => Ok(posture),
            Some(violation) => Err(Failure::new("check posture", violation)),
            None => Ok(posture),
        }
    }

    /// The counters of a cell that goes on, with what can only be sampled.
    pub(crate) fn measure(&self, id: CellId) -> Result<Counters, Failure> {
        let mut counters = self.totals(id)?;
        let cell = self.get(id)?;
        if cell.wall.kernel() != Kernel::Host {
            return Ok(counters);
        }
        let mut pids = self.tree.processes(&cell.group).unwrap_or_default();
        if pids.is_empty() {
            pids = inspect::descendants(cell.pid);
            if counters.pids_peak.is_none() {
                counters.pids_peak = Some(inspect::threads(&pids));
            }
        }
        pids.retain(|&pid| pid != cell.pid);
        pids.truncate(64);
        counters.open_files = inspect::most_open_files(&pids);
        Ok(counters)
    }

    /// The counters of a cell that ends. Samples are only taken of what nothing else counts: somebody waits.
    pub(crate) fn balance(&self, id: CellId) -> Result<Counters, Failure> {
        match self.totals(id)? {
            counters if counters.pids_peak.is_some() => Ok(counters),
            _ => self.measure(id),
        }
    }

    /// The counters that the kernel keeps.
    fn totals(&self, id: CellId) -> Result<Counters, Failure> {
        let cell = self.get(id)?;
        let mut counters = Counters::default();
        cell.group.measure(&mut counters);
        if cell.wall.kernel() != Kernel::Host {
            // These processes are those of the kernel in the cell, and not the payload's; neither is what it took to start.
            (counters.pids_peak, counters.pids_denied) = (None, None);
            let without = |all: Option<u64>, own: Option<u64>| Some(all?.saturating_sub(own.unwrap_or(0)));
            counters.memory_peak_bytes = without(counters.memory_peak_bytes, cell.own.memory_peak_bytes);
            counters.cpu_micros = without(counters.cpu_micros, cell.own.cpu_micros);
        }
        if let Some(scratch) = &cell.scratch {
            let (bytes, inodes) = scratch::used(scratch).map_err(Failure::at("measure scratch"))?;
            (counters.disk_bytes, counters.inodes) = (Some(bytes), Some(inodes));
        }
        Ok(counters)
    }
}

/// The first payload of the cell with this guest.
pub(super) fn find_payload(guest: i32, host: &Namespaces) -> io::Result<Surroundings> {
    Surroundings::of(inspect::only_child(guest)?, host)
}
