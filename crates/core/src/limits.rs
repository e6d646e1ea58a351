//! What an execution may use: the kinds of limit, their defaults and hard caps, and how the bounds of one run
//! follow from what was asked, what the policy says and what is left to the defaults.

mod quantity;

pub use quantity::{parse_count, parse_cpus, parse_duration, parse_size};

use crate::words::{Invalid, words};

words! {
    /// Everything that is bounded. A default never depends on a kind that comes later in this list.
    pub enum LimitKind: "limit" {
        WallTime = "wall-time",
        CpuTime = "cpu-time",
        Cpus = "cpus",
        Memory = "memory",
        Disk = "disk",
        Inodes = "inodes",
        DiskIo = "disk-io",
        Pids = "pids",
        OpenFiles = "open-files",
        Output = "output",
    }
}

words! {
    /// Who set a bound.
    pub enum Origin: "origin" {
        /// Nobody: it is the built-in default, which a wall may be unable to enforce as long as it says so.
        Default = "default",
        Policy = "policy",
        Request = "request",
    }
}

/// What the number of a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Milliseconds,
    /// Thousandths of a cpu.
    MilliCpus,
    Bytes,
    BytesPerSecond,
    Count,
}

/// What a limit may be set to. `default` is what holds when nobody sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub default: Option<u64>,
    pub cap: u64,
}

/// One bound, and who set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub value: u64,
    pub origin: Origin,
}

/// Limits that somebody wrote down, and nothing else: a value or nothing per kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LimitsDraft([Option<u64>; LimitKind::ALL.len()]);

/// The decided bounds of one execution. Every kind but the disk I/O rate always has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits([Option<Bound>; LimitKind::ALL.len()]);

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl LimitKind {
    pub const fn name(self) -> &'static str {
        self.as_str()
    }

    /// The command line's spelling.
    pub const fn flag(self) -> &'static str {
        match self {
            LimitKind::WallTime => "--timeout",
            LimitKind::CpuTime => "--cpu-time",
            LimitKind::Cpus => "--cpus",
            LimitKind::Memory => "--memory",
            LimitKind::Disk => "--disk",
            LimitKind::Inodes => "--inodes",
            LimitKind::DiskIo => "--disk-io",
            LimitKind::Pids => "--pids",
            LimitKind::OpenFiles => "--nofile",
            LimitKind::Output => "--max-output",
        }
    }

    pub const fn unit(self) -> Unit {
        match self {
            LimitKind::WallTime | LimitKind::CpuTime => Unit::Milliseconds,
            LimitKind::Cpus => Unit::MilliCpus,
            LimitKind::Memory | LimitKind::Disk | LimitKind::Output => Unit::Bytes,
            LimitKind::DiskIo => Unit::BytesPerSecond,
            LimitKind::Inodes | LimitKind::Pids | LimitKind::OpenFiles => Unit::Count,
        }
    }

    /// The smallest value that still lets a program start, the default, and the largest value that any policy
    /// can allow.
    pub const fn range(self) -> Range {
        const fn range(min: u64, default: u64, cap: u64) -> Range {
            Range { min, default: Some(default), cap }
        }
        match self {
            LimitKind::WallTime | LimitKind::CpuTime => range(10, 10 * SECOND, 24 * HOUR),
            LimitKind::Cpus => range(50, 1000, 64_000),
            LimitKind::Memory => range(8 * MIB, 256 * MIB, 64 * GIB),
            LimitKind::Disk => range(64 * KIB, 64 * MIB, 64 * GIB),
            LimitKind::Inodes => range(16, 16_384, 16_777_216),
            // No default: most walls cannot throttle, and memory-backed disks have nothing to throttle.
            LimitKind::DiskIo => Range { min: 64 * KIB, default: None, cap: 64 * GIB },
            LimitKind::Pids => range(1, 64, 32_768),
            LimitKind::OpenFiles => range(16, 1024, 65_536),
            LimitKind::Output => range(0, MIB, GIB),
        }
    }

    /// Reads a value as the command line and the policy file write it. Does not check the range.
    pub fn parse(self, text: &str) -> Result<u64, Invalid> {
        // The parsers refuse zero as a limit; it only means something where nothing at all may come out.
        if self.range().min == 0 && text.trim() == "0" {
            return Ok(0);
        }
        let parsed = match self.unit() {
            Unit::Milliseconds => parse_duration(text),
            Unit::MilliCpus => parse_cpus(text),
            Unit::Bytes => parse_size(text),
            Unit::BytesPerSecond => parse_size(text.trim().strip_suffix("/s").unwrap_or(text)),
            Unit::Count => parse_count(text),
        };
        parsed.map_err(|invalid| Invalid { reason: format!("{self}: {}", invalid.reason), ..invalid })
    }

    /// Refuses what is below the minimum or above the hard cap.
    pub fn check(self, value: u64) -> Result<u64, Invalid> {
        let Range { min, cap, .. } = self.range();
        let outside = |relation, bound| {
            let reason = format!("{self} {} is {relation} {}", self.format(value), self.format(bound));
            let hint = format!("set {} between {} and {}", self.flag(), self.format(min), self.format(cap));
            Err(Invalid::new(reason, hint))
        };
        match value {
            _ if value < min => outside("below the minimum of", min),
            _ if value > cap => outside("above the hard cap of", cap),
            _ => Ok(value),
        }
    }

    /// Exact, for a value that somebody set: `64 MiB`, `10s`, `1.5 cpus`. `parse` reads it back.
    pub fn format(self, value: u64) -> String {
        match self.unit() {
            Unit::Milliseconds => quantity::format_duration(value),
            Unit::MilliCpus => quantity::format_cpus(value),
            Unit::Bytes => quantity::format_size(value),
            Unit::BytesPerSecond => format!("{}/s", quantity::format_size(value)),
            Unit::Count => value.to_string(),
        }
    }

    /// Rounded, for a value that was measured: `64.0 MiB`.
    pub fn format_measured(self, value: u64) -> String {
        match self.unit() {
            Unit::Bytes => quantity::format_size_rounded(value),
            Unit::BytesPerSecond => format!("{}/s", quantity::format_size_rounded(value)),
            _ => self.format(value),
        }
    }
}

impl Bound {
    /// Whether somebody relies on this bound: then it is enforced or the run is refused.
    pub fn asked(&self) -> bool {
        self.origin != Origin::Default
    }
}

impl LimitsDraft {
    pub fn new() -> LimitsDraft {
        LimitsDraft::default()
    }

    pub fn with(mut self, kind: LimitKind, value: u64) -> LimitsDraft {
        self.set(kind, value);
        self
    }

    pub fn set(&mut self, kind: LimitKind, value: u64) {
        self.0[kind as usize] = Some(value);
    }

    pub fn get(&self, kind: LimitKind) -> Option<u64> {
        self.0[kind as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = (LimitKind, u64)> + '_ {
        LimitKind::ALL.into_iter().filter_map(|kind| Some((kind, self.get(kind)?)))
    }

    /// Kind by kind the smaller of the two: how caps combine.
    pub fn smaller(&self, other: &LimitsDraft) -> LimitsDraft {
        let mut smaller = self.clone();
        for (kind, value) in other.iter() {
            smaller.set(kind, self.get(kind).map_or(value, |own| own.min(value)));
        }
        smaller
    }
}

impl Limits {
    pub fn get(&self, kind: LimitKind) -> Option<Bound> {
        self.0[kind as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = (LimitKind, Bound)> + '_ {
        LimitKind::ALL.into_iter().filter_map(|kind| Some((kind, self.get(kind)?)))
    }

    pub(crate) fn set(&mut self, kind: LimitKind, bound: Bound) {
        self.0[kind as usize] = Some(bound);
    }

    /// Leaves this one unbounded.
    pub(crate) fn lift(&mut self, kind: LimitKind) {
        self.0[kind as usize] = None;
    }

    /// Decides every bound: what the request asks for, else the policy's default, else the built-in one, and
    /// never above the policy's cap. A request above a cap is refused; a default is lowered to it.
    pub(crate) fn resolve(
        asked: &LimitsDraft,
        defaults: &LimitsDraft,
        caps: &LimitsDraft,
    ) -> Result<Limits, Invalid> {
        let mut limits = Limits([None; LimitKind::ALL.len()]);
        for kind in LimitKind::ALL {
            let bound = match asked.get(kind) {
                Some(value) => Some(limits.requested(kind, value, caps.get(kind))?),
                None => limits.unrequested(kind, defaults.get(kind), caps.get(kind)),
            };
            limits.0[kind as usize] = bound;
        }
        Ok(limits)
    }

    fn requested(&self, kind: LimitKind, value: u64, cap: Option<u64>) -> Result<Bound, Invalid> {
        if let Some(cap) = cap.filter(|cap| value > *cap) {
            return Err(Invalid::new(
                format!("{kind} {} is above the policy's cap of {}", kind.format(value), kind.format(cap)),
                format!("ask for at most {} with {}", kind.format(cap), kind.flag()),
            ));
        }
        if kind == LimitKind::Disk {
            check_disk_below_memory(value, self.value(LimitKind::Memory))?;
        }
        Ok(Bound { value, origin: Origin::Request })
    }

    fn unrequested(&self, kind: LimitKind, policy: Option<u64>, cap: Option<u64>) -> Option<Bound> {
        let policy = policy.map(|value| match kind {
            LimitKind::Disk if value >= self.value(LimitKind::Memory) => self.value(LimitKind::Memory) / 2,
            _ => value,
        });
        let value = policy.or_else(|| self.built_in(kind));
        // A cap is the policy asking for a bound, even where nobody named a value.
        let origin = if policy.or(cap).is_some() { Origin::Policy } else { Origin::Default };
        let value = [value, cap].into_iter().flatten().min()?;
        Some(Bound { value, origin })
    }

    /// The built-in default, adapted so that it never surprises someone who set something else.
    fn built_in(&self, kind: LimitKind) -> Option<u64> {
        let default = kind.range().default?;
        Some(match kind {
            // Who asks for a longer run does not expect to be stopped by a processor budget they never set.
            LimitKind::CpuTime => default.max(self.value(LimitKind::WallTime)),
            // The disk is memory: leave half of it to the program.
            LimitKind::Disk => default.min(self.value(LimitKind::Memory) / 2),
            _ => default,
        })
    }

    fn value(&self, kind: LimitKind) -> u64 {
        self.get(kind).map_or(u64::MAX, |bound| bound.value)
    }
}

/// Files in a cell live in memory, so a disk that is as large as the memory is a promise nobody can keep.
pub(crate) fn check_disk_below_memory(disk: u64, memory: u64) -> Result<(), Invalid> {
    if disk < memory {
        return Ok(());
    }
    let (disk, memory) = (LimitKind::Disk.format(disk), LimitKind::Memory.format(memory));
    Err(Invalid::new(
        format!("disk {disk} is not below memory {memory}, and files in a cell count as memory"),
        format!("set --memory above {disk}, or --disk below {memory}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(asked: LimitsDraft) -> Limits {
        Limits::resolve(&asked, &LimitsDraft::new(), &LimitsDraft::new()).unwrap()
    }

    fn bound(value: u64, origin: Origin) -> Option<Bound> {
        Some(Bound { value, origin })
    }

    #[test]
    fn every_default_lies_within_its_own_range() {
        for kind in LimitKind::ALL {
            if let Some(default) = kind.range().default {
                kind.check(default).unwrap();
            }
        }
    }

    #[test]
    fn everything_but_disk_io_is_bounded_by_default() {
        let limits = resolve(LimitsDraft::new());
        for kind in LimitKind::ALL {
            let expected = kind.range().default.map(|value| Bound { value, origin: Origin::Default });
            assert_eq!(limits.get(kind), expected, "{kind}");
        }
        assert_eq!(limits.get(LimitKind::DiskIo), None);
    }

    #[test]
    fn a_longer_run_gets_a_larger_default_of_cpu_time() {
        let limits = resolve(LimitsDraft::new().with(LimitKind::WallTime, 60 * SECOND));
        assert_eq!(limits.get(LimitKind::CpuTime), bound(60 * SECOND, Origin::Default));
        let asked =
            LimitsDraft::new().with(LimitKind::WallTime, 60 * SECOND).with(LimitKind::CpuTime, SECOND);
        assert_eq!(resolve(asked).get(LimitKind::CpuTime), bound(SECOND, Origin::Request));
    }

    #[test]
    fn a_small_memory_shrinks_the_default_disk() {
        let limits = resolve(LimitsDraft::new().with(LimitKind::Memory, 32 * MIB));
        assert_eq!(limits.get(LimitKind::Disk), bound(16 * MIB, Origin::Default));
    }

    #[test]
    fn an_asked_disk_must_be_below_memory() {
        let asked = LimitsDraft::new().with(LimitKind::Disk, 256 * MIB);
        let error = Limits::resolve(&asked, &LimitsDraft::new(), &LimitsDraft::new()).unwrap_err();
        assert_eq!(
            error.reason,
            "disk 256 MiB is not below memory 256 MiB, and files in a cell count as memory"
        );
        assert!(error.hint.contains("--memory"));
    }

    #[test]
    fn a_cap_refuses_a_request_and_lowers_a_default() {
        let caps = LimitsDraft::new().with(LimitKind::Memory, 128 * MIB).with(LimitKind::DiskIo, MIB);
        let asked = LimitsDraft::new().with(LimitKind::Memory, 129 * MIB);
        let error = Limits::resolve(&asked, &LimitsDraft::new(), &caps).unwrap_err();
        assert_eq!(error.reason, "memory 129 MiB is above the policy's cap of 128 MiB");

        let limits = Limits::resolve(&LimitsDraft::new(), &LimitsDraft::new(), &caps).unwrap();
        assert_eq!(limits.get(LimitKind::Memory), bound(128 * MIB, Origin::Policy));
        assert_eq!(limits.get(LimitKind::DiskIo), bound(MIB, Origin::Policy));
    }

    #[test]
    fn values_outside_the_range_are_refused_with_the_range() {
        let error = LimitKind::Memory.check(MIB).unwrap_err();
        assert_eq!(error.reason, "memory 1 MiB is below the minimum of 8 MiB");
        assert_eq!(error.hint, "set --memory between 8 MiB and 64 GiB");
        assert!(LimitKind::Pids.check(32_769).is_err());
        assert!(LimitKind::Output.check(0).is_ok());
    }
}
