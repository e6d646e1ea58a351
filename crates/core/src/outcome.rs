//! How an execution ended. The same words on every wall.

use std::time::Duration;

use thiserror::Error;

use crate::limits::LimitKind;
use crate::request::Invalid;
use crate::stack::{Class, Stack};
use crate::words::words;

/// A run that did not start because it would have been less than what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Refusal {
    pub reason: String,
    /// What the caller can do about it.
    pub hint: String,
}

impl Refusal {
    pub fn new(reason: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal { reason: reason.into(), hint: hint.into() }
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Refusal {
        Refusal { reason: invalid.reason, hint: invalid.hint }
    }
}

words! {
    /// Why Casemate killed a cell.
    pub enum Cause: "cause" {
        WallTime = "wall-time",
        CpuTime = "cpu-time",
        Memory = "memory",
        Egress = "egress",
        Policy = "policy",
        Cancelled = "cancelled",
    }
}

impl Cause {
    /// The limit whose excess this is, if it is one: it knows how to print the numbers.
    pub const fn limit_kind(self) -> Option<LimitKind> {
        match self {
            Cause::WallTime => Some(LimitKind::WallTime),
            Cause::CpuTime => Some(LimitKind::CpuTime),
            Cause::Memory => Some(LimitKind::Memory),
            Cause::Egress | Cause::Policy | Cause::Cancelled => None,
        }
    }
}

/// How it ended, as seen from outside the untrusted code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    Exited {
        code: i32,
    },
    Signaled {
        signal: i32,
    },
    Killed {
        cause: Cause,
        limit: Option<u64>,
        peak: Option<u64>,
    },
    Refused(Refusal),
    /// The host's fault, never the workload's.
    Failed {
        reason: String,
    },
}

impl Status {
    /// The word that stands for this status in every interface.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Status::Exited { .. } => "exited",
            Status::Signaled { .. } => "signaled",
            Status::Killed { .. } => "killed",
            Status::Refused(_) => "refused",
            Status::Failed { .. } => "failed",
        }
    }

    /// One line for a person, e.g. `memory limit 64 MiB exceeded (peak 64.0 MiB)`.
    pub fn describe(&self) -> String {
        match self {
            Status::Exited { code } => format!("exited with code {code}"),
            Status::Signaled { signal } => format!("ended by signal {signal}"),
            Status::Killed { cause, limit, peak } => describe_kill(*cause, *limit, *peak),
            Status::Refused(refusal) => format!("refused: {}", refusal.reason),
            Status::Failed { reason } => format!("failed: {reason}"),
        }
    }
}

/// A limit that made the workload's own calls fail, or cut its output, without ending it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitHit {
    pub kind: LimitKind,
    pub limit: u64,
    pub peak: Option<u64>,
}

impl LimitHit {
    pub fn describe(&self) -> String {
        format!(
            "{} limit {} reached{}",
            self.kind,
            self.kind.format(self.limit),
            peak_of(self.kind, self.peak)
        )
    }
}

/// What was used; `None` where this wall cannot measure it from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub wall: Option<Duration>,
    pub cpu: Option<Duration>,
    pub memory_peak: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub pids_peak: Option<u64>,
}

/// Everything a caller learns about one execution besides its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub id: String,
    /// The stack that stood; none when the run was refused.
    pub stack: Option<Stack>,
    pub class: Option<Class>,
    pub status: Status,
    pub limits_hit: Vec<LimitHit>,
    /// Default bounds that this wall could not enforce.
    pub unbounded: Vec<LimitKind>,
    pub usage: Usage,
    /// Phases in the order in which they happened.
    pub timings: Vec<(&'static str, Duration)>,
    /// The steps of the launch with the microseconds that each took.
    pub steps: Vec<(String, u32)>,
    pub denied: Vec<String>,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
}

impl Outcome {
    /// The outcome of a run for which no wall was ever raised.
    pub fn without_cell(id: impl Into<String>, status: Status) -> Outcome {
        Outcome {
            id: id.into(),
            stack: None,
            class: None,
            status,
            limits_hit: Vec::new(),
            unbounded: Vec::new(),
            usage: Usage::default(),
            timings: Vec::new(),
            steps: Vec::new(),
            denied: Vec::new(),
            stdout_truncated: false,
            stderr_truncated: false,
        }
    }
}

fn describe_kill(cause: Cause, limit: Option<u64>, peak: Option<u64>) -> String {
    match (cause, cause.limit_kind(), limit) {
        (_, Some(kind), Some(limit)) => {
            format!("{kind} limit {} exceeded{}", kind.format(limit), peak_of(kind, peak))
        }
        (_, Some(kind), None) => format!("{kind} limit exceeded{}", peak_of(kind, peak)),
        (Cause::Egress, None, Some(limit)) => format!("egress limit {limit} exceeded"),
        (Cause::Egress, None, None) => "egress limit exceeded".to_owned(),
        (Cause::Cancelled, ..) => "cancelled".to_owned(),
        (cause, ..) => format!("killed by {cause}"),
    }
}

fn peak_of(kind: LimitKind, peak: Option<u64>) -> String {
    peak.map(|peak| format!(" (peak {})", kind.format_measured(peak))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_names_the_limit_its_value_and_the_peak() {
        let mib = 1 << 20;
        let killed =
            Status::Killed { cause: Cause::Memory, limit: Some(64 * mib), peak: Some(64 * mib + mib / 100) };
        assert_eq!(killed.describe(), "memory limit 64 MiB exceeded (peak 64.0 MiB)");
        let killed = Status::Killed { cause: Cause::WallTime, limit: Some(10_000), peak: None };
        assert_eq!(killed.describe(), "wall-time limit 10s exceeded");
        let killed = Status::Killed { cause: Cause::Policy, limit: None, peak: None };
        assert_eq!(killed.describe(), "killed by policy");
    }

    #[test]
    fn a_limit_that_was_hit_is_described_with_its_numbers() {
        let hit = LimitHit { kind: LimitKind::Pids, limit: 64, peak: Some(64) };
        assert_eq!(hit.describe(), "pids limit 64 reached (peak 64)");
    }
}
