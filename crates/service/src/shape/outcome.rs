//! What came of something: `casemate run --json`, and what the API answers. These shapes are a contract: fields may be added, none
//! changes.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_core::limits::{LimitKind, Limits};
use casemate_core::outcome::{LimitHit, Refusal, Status, Usage};
use casemate_core::stack::Stack;
use casemate_engine::{Executed, Explanation};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use utoipa::ToSchema;

pub use super::files::FileJson;
use super::words;

/// One execution, or one program of a session: `casemate run --json`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Outcome)]
pub struct ExecutionJson {
    /// Its receipt has the same.
    id: String,
    /// Of a program in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pid: Option<u32>,
    /// The walls that stood around it, outermost first.
    #[schema(value_type = Vec<words::Wall>)]
    stack: Vec<&'static str>,
    /// How it ended.
    status: StatusJson,
    stdout: String,
    stderr: String,
    /// The exact bytes, where they are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stderr_base64: Option<String>,
    /// It wrote more than it may.
    stdout_truncated: bool,
    stderr_truncated: bool,
    limits_hit: Vec<LimitHitJson>,
    /// Limits that these walls cannot enforce, and nobody asked for.
    #[schema(value_type = Vec<words::LimitKind>)]
    unbounded: Vec<&'static str>,
    /// What an escape from its walls would have to break.
    #[schema(value_type = Option<words::Class>, required = true)]
    class: Option<&'static str>,
    usage: UsageJson,
    /// How long each phase took, in microseconds.
    #[serde(serialize_with = "timings")]
    #[schema(value_type = BTreeMap<String, u64>)]
    timings_us: Vec<(&'static str, Duration)>,
    /// The steps of the launch, each with its microseconds.
    launch_steps_us: Vec<(String, u32)>,
    /// What it tried and was not let.
    denied: Vec<String>,
    /// What came out, where the answer has to carry it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    files: Option<Vec<FileJson>>,
    /// `seq:digest` of the closing record.
    #[schema(required = true)]
    receipt: Option<String>,
    /// Why its record could not be closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    evidence_error: Option<String>,
}

/// How something ended.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[schema(as = Status)]
pub enum StatusJson {
    /// By itself.
    Exited { code: i32 },
    /// By a signal that was not ours.
    Signaled { signal: i32 },
    /// By us; `limit` and `peak` are in the unit of the limit.
    Killed {
        #[schema(value_type = words::Cause)]
        cause: &'static str,
        #[schema(required = true)]
        limit: Option<u64>,
        #[schema(required = true)]
        peak: Option<u64>,
    },
    /// It never began.
    Refused { reason: String, hint: String },
    /// Something went wrong that is not its fault.
    Failed { reason: String },
}

/// A limit that something ran into, without being killed for it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LimitHit)]
struct LimitHitJson {
    #[schema(value_type = words::LimitKind)]
    kind: &'static str,
    limit: u64,
    #[schema(required = true)]
    peak: Option<u64>,
}

/// What it used, where that can be told.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct UsageJson {
    #[schema(required = true)]
    wall_ms: Option<u64>,
    #[schema(required = true)]
    cpu_ms: Option<u64>,
    #[schema(required = true)]
    memory_peak_bytes: Option<u64>,
    #[schema(required = true)]
    disk_bytes: Option<u64>,
    #[schema(required = true)]
    pids_peak: Option<u64>,
}

/// What would run where, and why: `casemate explain --json`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explanation)]
pub struct ExplainJson {
    #[schema(value_type = Vec<words::Wall>)]
    stack: Vec<&'static str>,
    #[schema(value_type = words::Class)]
    class: &'static str,
    image: String,
    /// What asks for at least which walls.
    floors: Vec<String>,
    limits: Vec<LimitJson>,
    #[schema(value_type = Vec<words::LimitKind>)]
    unbounded: Vec<&'static str>,
    passed_over: Vec<PassedOverJson>,
}

/// `casemate explain --json` when nothing fits.
#[derive(Debug, Serialize)]
pub struct RefusedJson {
    status: StatusJson,
}

/// A limit that would hold.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Limit)]
struct LimitJson {
    #[schema(value_type = words::LimitKind)]
    kind: &'static str,
    value: u64,
    /// For people.
    shown: String,
    /// Who set it.
    #[schema(value_type = words::Origin)]
    origin: &'static str,
    enforced: bool,
}

/// A stack that is not taken, and why.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PassedOver)]
struct PassedOverJson {
    #[schema(value_type = Vec<words::Wall>)]
    stack: Vec<&'static str>,
    reason: String,
}

impl ExecutionJson {
    /// `output` is what it wrote to standard output and standard error.
    pub fn new(executed: Executed, output: (Vec<u8>, Vec<u8>)) -> ExecutionJson {
        let steps = executed.outcome.steps.clone();
        ExecutionJson { launch_steps_us: steps, ..ExecutionJson::of(&executed, output) }
    }

    /// Without its output, which was told otherwise.
    pub(crate) fn summary(executed: &Executed) -> ExecutionJson {
        ExecutionJson::of(executed, Default::default())
    }

    /// Likewise, of something that others hear of, too.
    pub(crate) fn of(executed: &Executed, output: (Vec<u8>, Vec<u8>)) -> ExecutionJson {
        let Executed { outcome, receipt, evidence_error, .. } = executed;
        let (stdout, stdout_base64) = text(output.0);
        let (stderr, stderr_base64) = text(output.1);
        let hit = |hit: &LimitHit| LimitHitJson { kind: hit.kind.as_str(), limit: hit.limit, peak: hit.peak };
        ExecutionJson {
            id: outcome.id.clone(),
            pid: None,
            stack: outcome.stack.as_ref().map(walls).unwrap_or_default(),
            status: outcome.status.clone().into(),
            stdout,
            stderr,
            stdout_base64,
            stderr_base64,
            stdout_truncated: outcome.stdout_truncated,
            stderr_truncated: outcome.stderr_truncated,
            limits_hit: outcome.limits_hit.iter().map(hit).collect(),
            unbounded: names(&outcome.unbounded),
            class: outcome.class.map(|class| class.as_str()),
            usage: outcome.usage.into(),
            timings_us: outcome.timings.clone(),
            launch_steps_us: Vec::new(),
            denied: outcome.denied.clone(),
            files: None,
            receipt: receipt.as_ref().map(ToString::to_string),
            evidence_error: evidence_error.as_ref().map(ToString::to_string),
        }
    }

    pub(crate) fn with_files(self, files: Option<Vec<FileJson>>) -> ExecutionJson {
        ExecutionJson { files, ..self }
    }

    /// The same without what it wrote and what came out, and says so.
    pub(crate) fn without_output(self) -> ExecutionJson {
        let cut = |was: bool, text: &str, bytes: &Option<String>| was || !text.is_empty() || bytes.is_some();
        ExecutionJson {
            stdout_truncated: cut(self.stdout_truncated, &self.stdout, &self.stdout_base64),
            stderr_truncated: cut(self.stderr_truncated, &self.stderr, &self.stderr_base64),
            stdout: String::new(),
            stdout_base64: None,
            stderr: String::new(),
            stderr_base64: None,
            files: None,
            ..self
        }
    }

    /// Of a program in a session.
    pub(crate) fn with_pid(self, pid: u32) -> ExecutionJson {
        ExecutionJson { pid: Some(pid), ..self }
    }
}

impl ExplainJson {
    pub fn new(Explanation { choice, image, limits, floors }: Explanation) -> ExplainJson {
        let passed_over = choice.passed_over.into_iter();
        ExplainJson {
            stack: walls(&choice.stack),
            class: choice.class.as_str(),
            image,
            floors,
            limits: limits_of(&limits, &choice.unbounded),
            unbounded: names(&choice.unbounded),
            passed_over: passed_over
                .map(|other| PassedOverJson { stack: walls(&other.stack), reason: other.reason })
                .collect(),
        }
    }
}

impl From<Refusal> for RefusedJson {
    fn from(refusal: Refusal) -> RefusedJson {
        RefusedJson { status: Status::Refused(refusal).into() }
    }
}

impl From<Status> for StatusJson {
    fn from(status: Status) -> StatusJson {
        match status {
            Status::Exited { code } => StatusJson::Exited { code },
            Status::Signaled { signal } => StatusJson::Signaled { signal },
            Status::Killed { cause, limit, peak } => {
                StatusJson::Killed { cause: cause.as_str(), limit, peak }
            }
            Status::Refused(Refusal { reason, hint }) => StatusJson::Refused { reason, hint },
            Status::Failed { reason } => StatusJson::Failed { reason },
        }
    }
}

impl From<Usage> for UsageJson {
    fn from(usage: Usage) -> UsageJson {
        let ms = |duration: Duration| duration.as_millis() as u64;
        UsageJson {
            wall_ms: usage.wall.map(ms),
            cpu_ms: usage.cpu.map(ms),
            memory_peak_bytes: usage.memory_peak,
            disk_bytes: usage.disk_bytes,
            pids_peak: usage.pids_peak,
        }
    }
}

pub fn walls(stack: &Stack) -> Vec<&'static str> {
    stack.walls().iter().map(|wall| wall.as_str()).collect()
}

fn names(kinds: &[LimitKind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.as_str()).collect()
}

fn limits_of(limits: &Limits, unbounded: &[LimitKind]) -> Vec<LimitJson> {
    let limit = |(kind, bound): (LimitKind, casemate_core::limits::Bound)| LimitJson {
        kind: kind.as_str(),
        value: bound.value,
        shown: kind.format(bound.value),
        origin: bound.origin.as_str(),
        enforced: !unbounded.contains(&kind),
    };
    limits.iter().map(limit).collect()
}

/// The text, and the exact bytes where the text is not exact.
fn text(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let exact = STANDARD.encode(error.as_bytes());
            (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(exact))
        }
    }
}

/// An object whose members stand in the order in which the phases happened.
fn timings<S: Serializer>(phases: &[(&'static str, Duration)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(phases.len()))?;
    for (phase, duration) in phases {
        map.serialize_entry(phase, &(duration.as_micros() as u64))?;
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use casemate_core::outcome::{Cause, Outcome};
    use casemate_core::stack::Class;

    use super::*;

    fn json(outcome: Outcome, stdout: &[u8]) -> String {
        let executed = Executed { outcome, receipt: None, evidence_error: None };
        let output = (stdout.to_vec(), b"oops\n".to_vec());
        serde_json::to_string_pretty(&ExecutionJson::new(executed, output)).unwrap()
    }

    #[test]
    fn the_shape_of_a_run() {
        let mut outcome = Outcome::without_cell("x1", Status::Exited { code: 3 });
        outcome.stack = Some("container".parse().unwrap());
        outcome.class = Some(Class::SharedKernel);
        outcome.limits_hit = vec![LimitHit { kind: LimitKind::Pids, limit: 64, peak: Some(64) }];
        outcome.unbounded = vec![LimitKind::Cpus];
        outcome.usage = Usage { wall: Some(Duration::from_millis(12)), ..Usage::default() };
        outcome.timings = vec![("launch", Duration::from_micros(900)), ("exec", Duration::from_micros(80))];
        insta::assert_snapshot!(json(outcome, b"hello\n"));
    }

    #[test]
    fn the_shape_of_a_kill() {
        let status = Status::Killed { cause: Cause::Memory, limit: Some(64 << 20), peak: Some(64 << 20) };
        insta::assert_snapshot!(json(Outcome::without_cell("x2", status), b""));
    }

    #[test]
    fn the_shape_of_a_refusal() {
        let status = Status::Refused(Refusal::new("memory 1 MiB is below the minimum of 8 MiB", "set it"));
        insta::assert_snapshot!(json(Outcome::without_cell("x3", status), b""));
    }

    #[test]
    fn bytes_that_are_not_text_come_exactly_as_well() {
        let json = json(Outcome::without_cell("x4", Status::Signaled { signal: 9 }), b"a\xffb");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["stdout"], "a\u{fffd}b");
        assert_eq!(value["stdout_base64"], "Yf9i");
        assert_eq!(value.get("stderr_base64"), None);
    }
}
