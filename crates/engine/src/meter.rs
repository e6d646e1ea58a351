//! What a cell has used: peaks, the limits that were hit, and those that were passed.

use std::time::Duration;

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, LimitHit, Usage};
use casemate_core::plan::Plan;
use casemate_wire::guest::Inside;
use casemate_wire::launch::Counters;

use crate::wall::Gauges;

/// What a kernel in the cell may take for what its payload does, besides an eighth of what that may have.
const SLACK: u64 = 8 << 20;
const PAGE: u64 = 4096;

/// The bound on something, where it is enforced.
pub(crate) fn limit(plan: &Plan, kind: LimitKind) -> Option<u64> {
    let bound = plan.limits().get(kind)?;
    (!plan.unbounded().contains(&kind)).then_some(bound.value)
}

#[derive(Default)]
pub(crate) struct Meter {
    pub(crate) peaks: Counters,
    disk_seen_outside: bool,
    /// Of several writable file systems, one has no room left.
    disk_full: bool,
    inodes_used_up: bool,
}

impl Meter {
    /// Remembers what the guest sees. None of it kills.
    pub(crate) fn look_inside(&mut self, now: &Inside) {
        let peaks = &mut self.peaks;
        peaks.pids_peak = peaks.pids_peak.max(Some(now.threads));
        peaks.open_files = peaks.open_files.max(now.open_files);
        // Where the host sees the disk, it sees it better.
        if !self.disk_seen_outside {
            peaks.disk_bytes = peaks.disk_bytes.max(Some(now.disk_bytes));
            peaks.inodes = peaks.inodes.max(Some(now.inodes));
            self.disk_full |= now.disk_is_full;
            self.inodes_used_up |= now.inodes_are_used_up;
        }
    }

    /// Remembers peaks and says whether a limit that kills was passed.
    pub(crate) fn judge(&mut self, plan: &Plan, now: &Counters, gauges: Gauges) -> Option<Cause> {
        self.disk_seen_outside |= now.disk_bytes.is_some();
        let peaks = &mut self.peaks;
        peaks.cpu_micros = peaks.cpu_micros.max(now.cpu_micros);
        peaks.memory_peak_bytes = peaks.memory_peak_bytes.max(now.memory_peak_bytes);
        peaks.oom_kills = peaks.oom_kills.max(now.oom_kills);
        peaks.pids_peak = peaks.pids_peak.max(now.pids_peak);
        peaks.pids_denied = peaks.pids_denied.max(now.pids_denied);
        peaks.disk_bytes = peaks.disk_bytes.max(now.disk_bytes);
        peaks.inodes = peaks.inodes.max(now.inodes);
        peaks.open_files = peaks.open_files.max(now.open_files);
        if self.ran_out_of_memory() {
            return Some(Cause::Memory);
        }
        // Where a kernel of its own is in the cell, the group has room for that, too, and does not see to the payload's limit. (On
        // other walls whose guest is asked, the group does, and this is never reached.)
        if gauges.need_the_guest()
            && let Some((limit, peak)) = limit(plan, LimitKind::Memory).zip(self.peaks.memory_peak_bytes)
            && peak > limit.saturating_add(SLACK + limit / 8)
        {
            return Some(Cause::Memory);
        }
        let cpu_limit = limit(plan, LimitKind::CpuTime)?;
        (self.peaks.cpu_micros? > cpu_limit * 1000).then_some(Cause::CpuTime)
    }

    pub(crate) fn ran_out_of_memory(&self) -> bool {
        self.peaks.oom_kills.is_some_and(|kills| kills > 0)
    }

    /// How far it went beyond what it was ended for.
    pub(crate) fn peak_of(&self, cause: Cause, wall: Option<Duration>) -> Option<u64> {
        match cause {
            Cause::WallTime => wall.map(|wall| wall.as_millis() as u64),
            Cause::CpuTime => self.peaks.cpu_micros.map(|micros| micros / 1000),
            Cause::Memory => self.peaks.memory_peak_bytes,
            _ => None,
        }
    }

    pub(crate) fn fill(&self, usage: &mut Usage) {
        usage.cpu = self.peaks.cpu_micros.map(Duration::from_micros).or(usage.cpu);
        usage.memory_peak = self.peaks.memory_peak_bytes.or(usage.memory_peak);
        usage.disk_bytes = self.peaks.disk_bytes;
        usage.pids_peak = self.peaks.pids_peak;
    }

    /// The limits that made calls fail, or cut the output, of which so much came and which was or was not cut.
    pub(crate) fn limits_hit(&self, plan: &Plan, (output, cut): (u64, bool)) -> Vec<LimitHit> {
        let denied = self.peaks.pids_denied.is_some_and(|times| times > 0);
        let reached = [
            (LimitKind::Pids, self.peaks.pids_peak, if denied { u64::MAX } else { 0 }),
            // The last page may stay free when a block of several did not fit.
            (LimitKind::Disk, self.peaks.disk_bytes, PAGE),
            (LimitKind::Inodes, self.peaks.inodes, 0),
            (LimitKind::OpenFiles, self.peaks.open_files, 0),
            (LimitKind::Output, Some(output), if cut { u64::MAX } else { 0 }),
        ];
        let mut hits = Vec::new();
        for (kind, peak, slack) in reached {
            let Some((limit, peak)) = limit(plan, kind).zip(peak) else { continue };
            let hit = match kind {
                // Output exactly at the limit was not cut, and with a cgroup a full house is not yet a refusal.
                LimitKind::Output => cut,
                LimitKind::Pids if self.peaks.pids_denied.is_some() => denied,
                LimitKind::Disk if self.disk_full => true,
                LimitKind::Inodes if self.inodes_used_up => true,
                _ => peak.saturating_add(slack) >= limit,
            };
            if hit {
                hits.push(LimitHit { kind, limit, peak: Some(peak) });
            }
        }
        hits
    }
}
