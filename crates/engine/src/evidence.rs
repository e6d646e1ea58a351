//! What the records say: internal types become canonical JSON here and nowhere else.
//!
//! Values of environment variables and the contents of files never enter a record; names and digests do.

mod shape;

use std::borrow::Cow;
use std::time::Duration;

use casemate_core::evidence::{Body, EntryError, Fragment, Subject, hex};
use casemate_core::limits::{Bound, LimitKind};
use casemate_core::outcome::{LimitHit, Outcome, Refusal, Status};
use casemate_core::plan::Plan;
use casemate_core::request::{CodeSource, GuestPath, ImageRef, Isolation, Request, Stdin, Workload};
use casemate_wire::guest::{Config, Landlock, Program};
use casemate_wire::launch::Posture;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::run::{Digests, Ran};
use crate::wall::{Begun, Look};
use shape::{
    Asked, AskedComponent, AskedOfFiles, AskedSource, AskedWorkload, DecidedLimit, Decision, DoneToFiles,
    Ended, GivenCode, Hit, Identified, Other, Shown, Truncated, Used,
};

/// Arguments are recorded up to this many bytes; beyond, their digest stands for them.
const MAX_ARGUMENTS: usize = 8 * 1024;
/// Members of lists that a hostile payload can make long.
const MAX_LISTED: usize = 64;

/// What was asked.
pub(crate) fn request(request: &Request) -> Result<Fragment, EntryError> {
    let names = request.env().iter().map(|(name, _)| name.as_str());
    Fragment::new(&Asked {
        capabilities: request.capabilities().iter().map(|capability| capability.as_str()).collect(),
        cwd: request.cwd(),
        deterministic: request.deterministic(),
        egress: request.egress(),
        env_names: listed(names),
        files_in: listed(request.files_in().iter().map(GuestPath::as_str)),
        files_out: listed(request.files_out().iter().map(GuestPath::as_str)),
        image: image(request.image()),
        isolation: isolation(request.isolation()),
        kind: request.kind().map(|kind| kind.as_str()),
        limits: request.limits().iter().map(|(kind, value)| (kind.name(), value)).collect(),
        needs: request.needs().iter().map(|need| need.as_str()).collect(),
        risk: request.risk().as_str(),
        secrets: request.secrets(),
        stdin: request.stdin() == Stdin::Provided,
        tags: request.tags(),
        tenant: request.tenant(),
        workload: workload(request.workload()),
    })
}

/// What was asked, what was decided, and why nothing else.
pub(crate) fn opening(asked: &Fragment, plan: &Plan, session: Option<&str>) -> Result<Body, EntryError> {
    let bound = |(kind, bound): (LimitKind, Bound)| {
        (kind.name(), DecidedLimit { origin: bound.origin.as_str(), value: bound.value })
    };
    let passed_over = plan.choice().passed_over.iter();
    let decision = Decision {
        class: plan.class().as_str(),
        image: image(plan.image()),
        limits: plan.limits().iter().map(bound).collect(),
        passed_over: passed_over
            .map(|other| Other { reason: &other.reason, stack: Shown(&other.stack) })
            .collect(),
        stack: plan.stack().walls().iter().map(|wall| wall.as_str()).collect(),
        unbounded: plan.unbounded().iter().map(|kind| kind.name()).collect(),
    };
    let body = Body::members().with("decision", &decision).with_fragment("request", asked);
    match session {
        Some(session) => body.with("session", &session).end(),
        None => body.end(),
    }
}

/// How it ended, what stood around it and what it used.
pub(crate) fn closing(
    outcome: &Outcome,
    ran: &Ran,
    program: Option<&(String, String)>,
) -> Result<Body, EntryError> {
    let hit = |hit: &LimitHit| Hit { limit: hit.kind.name(), peak: hit.peak, value: hit.limit };
    let micros = |time: Duration| time.as_micros() as u64;
    let Outcome { usage, stdout_truncated, stderr_truncated, .. } = outcome;
    Body::members()
        .with_value("applied", ran.applied.as_ref().unwrap_or(&Value::Null))
        .with("denied", &listed(outcome.denied.iter().map(String::as_str)))
        .with("destroyed", &"killed from outside; every process ends with the cell's first")
        .with("limits_hit", &outcome.limits_hit.iter().map(hit).collect::<Vec<_>>())
        .with_value("observed", ran.observed.as_ref().unwrap_or(&Value::Null))
        .with("program", &program.map(|(path, sha256)| Identified { path, sha256 }))
        .with("status", &status(&outcome.status))
        .with("truncated", &Truncated { stderr: *stderr_truncated, stdout: *stdout_truncated })
        .with(
            "usage",
            &Used {
                cpu_us: usage.cpu.map(micros),
                disk_bytes: usage.disk_bytes,
                memory_peak_bytes: usage.memory_peak,
                pids_peak: usage.pids_peak,
                wall_us: usage.wall.map(micros),
            },
        )
        .end()
}

/// What was asked, and why nothing came of it.
pub(crate) fn refused(asked: &Fragment, outcome: &Outcome) -> Result<Body, EntryError> {
    Body::members().with_fragment("request", asked).with("status", &status(&outcome.status)).end()
}

/// Something small that has happened in a session, and is over.
pub(crate) enum Note<'a> {
    /// Something was done to files, for somebody outside.
    Files {
        tenant: &'a str,
        operation: &'a str,
        path: &'a str,
        to: Option<&'a str>,
        /// What went in or came out, if anything could have.
        content: Option<Content<'a>>,
        result: Result<(), &'a str>,
    },
    /// An interpreter was given a piece of code. What came of it is the word of whoever talks to the interpreter.
    Code {
        tenant: &'a str,
        process: &'a str,
        language: &'a str,
        bytes: u64,
        sha256: [u8; 32],
        result: &'a str,
    },
}

/// What was in the files that were moved.
pub(crate) struct Content<'a> {
    pub(crate) bytes: u64,
    /// Of all of it, in the order in which it came.
    pub(crate) sha256: [u8; 32],
    /// Which files that was.
    pub(crate) files: &'a Digests,
}

/// What is recorded about something small in `session`.
pub(crate) fn note(session: &str, note: &Note<'_>) -> Result<(Vec<Subject>, Body), EntryError> {
    let body = Body::members();
    match note {
        Note::Files { tenant, operation, path, to, content, result } => {
            let to = to.map(|to| bounded(to, 512));
            let asked = AskedOfFiles { operation, path: bounded(path, 512), to };
            let digest = Sha256::digest(Fragment::new(&asked)?.as_bytes()).into();
            let nothing = Digests::default();
            let subjects = subjects(digest, content.as_ref().map_or(&nothing, |content| content.files));
            let AskedOfFiles { operation, path, to } = asked;
            let done = DoneToFiles {
                bytes: content.as_ref().map(|content| content.bytes),
                operation,
                path,
                result: result.err().unwrap_or("ok"),
                sha256: content.as_ref().map(|content| hex(&content.sha256)),
                to,
            };
            Ok((subjects, body.with("files", &done).with("session", &session).with("tenant", tenant).end()?))
        }
        Note::Code { tenant, process, language, bytes, sha256, result } => {
            let given = GivenCode {
                bytes: *bytes,
                language: bounded(language, 64),
                process,
                result: bounded(result, 64),
                sha256: hex(sha256),
            };
            let subjects = vec![Subject { name: "code".into(), sha256: *sha256 }];
            Ok((subjects, body.with("code", &given).with("session", &session).with("tenant", tenant).end()?))
        }
    }
}

/// The artifacts that a closing record is about.
pub(crate) fn subjects(request_digest: [u8; 32], digests: &Digests) -> Vec<Subject> {
    let mut subjects = vec![Subject { name: "request".into(), sha256: request_digest }];
    subjects.extend(
        digests
            .0
            .iter()
            .take(MAX_LISTED)
            .map(|(name, sha256)| Subject { name: bounded(name, 512).into_owned(), sha256: *sha256 }),
    );
    subjects
}

/// Identifies the request including everything that is not written out in the record as `asked`.
pub(crate) fn request_digest(request: &Request, asked: &Fragment) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(asked.as_bytes());
    match request.workload() {
        Workload::Command { argv } => argv.iter().for_each(|argument| part(argument.as_bytes())),
        Workload::Code { source, args, .. } => {
            match source {
                CodeSource::Inline(code) => part(code.as_bytes()),
                CodeSource::File { bytes, .. } => part(bytes),
            }
            args.iter().for_each(|argument| part(argument.as_bytes()));
        }
        Workload::Component { component, args } => {
            part(&component.digest());
            args.iter().for_each(|argument| part(argument.as_bytes()));
        }
        Workload::Session => {}
    }
    for (name, value) in request.env() {
        part(name.as_bytes());
        part(value.as_bytes());
    }
    hash.finalize().into()
}

fn status(status: &Status) -> Ended<'_> {
    match status {
        Status::Exited { code } => Ended::Exited { code: *code, kind: "exited" },
        Status::Signaled { signal } => Ended::Signaled { kind: "signaled", signal: *signal },
        Status::Killed { cause, limit, peak } => {
            Ended::Killed { cause: cause.as_str(), kind: "killed", limit: *limit, peak: *peak }
        }
        Status::Refused(Refusal { reason, hint }) => {
            Ended::Refused { hint: bounded(hint, 2048), kind: "refused", reason: bounded(reason, 2048) }
        }
        Status::Failed { reason } => Ended::Failed { kind: "failed", reason: bounded(reason, 2048) },
    }
}

fn workload(workload: &Workload) -> AskedWorkload<'_> {
    match workload {
        Workload::Command { argv } => AskedWorkload { kind: "command", ..arguments(argv) },
        Workload::Code { language, source, args } => {
            let (form, name, bytes) = match source {
                CodeSource::Inline(code) => ("inline", None, code.as_bytes()),
                CodeSource::File { name, bytes } => ("file", Some(name.as_str()), bytes.as_slice()),
            };
            let sha256 = hex(&Sha256::digest(bytes));
            AskedWorkload {
                kind: "code",
                language: Some(language.as_str()),
                source: Some(AskedSource { bytes: bytes.len(), form, name, sha256 }),
                ..arguments(args)
            }
        }
        Workload::Component { component, args } => {
            let (name, sha256) = (bounded(component.name(), 512), hex(&component.digest()));
            let component = AskedComponent { bytes: component.bytes().len(), name, sha256 };
            AskedWorkload { kind: "component", component: Some(component), ..arguments(args) }
        }
        Workload::Session => AskedWorkload { kind: "session", ..AskedWorkload::default() },
    }
}

/// The arguments, or what stands for them if they are long.
fn arguments(argv: &[String]) -> AskedWorkload<'_> {
    let length: usize = argv.iter().map(String::len).sum();
    if length + argv.len() <= MAX_ARGUMENTS {
        return AskedWorkload { argv: Some(argv), ..AskedWorkload::default() };
    }
    let mut hash = Sha256::new();
    for argument in argv {
        hash.update((argument.len() as u64).to_le_bytes());
        hash.update(argument);
    }
    AskedWorkload {
        argv_bytes: Some(length),
        argv_count: Some(argv.len()),
        argv_sha256: Some(hex(&hash.finalize())),
        ..AskedWorkload::default()
    }
}

/// What it is made of, and whether that is pinned.
pub(crate) fn image(image: &ImageRef) -> Cow<'_, str> {
    match image {
        ImageRef::Host => "host (unpinned)".into(),
        ImageRef::Directory { label } => format!("directory {} (unpinned)", bounded(label, 1024)).into(),
        ImageRef::Stored { .. } => image.label(),
    }
}

fn isolation(isolation: &Isolation) -> Cow<'_, str> {
    match isolation {
        Isolation::Auto => "auto".into(),
        Isolation::AtLeast(wall) => format!("at least {wall}").into(),
        Isolation::Exactly(stack) => format!("exactly {stack}").into(),
    }
}

/// What stands around a payload, as it was seen before it began.
pub(crate) fn observed(begun: &Begun, runtime: &Value) -> Value {
    let mut observed = posture(&begun.posture);
    if !runtime.is_null() {
        observed["runtime"] = runtime.clone();
    }
    if !begun.unseen.is_empty() {
        observed["unseen"] = json!(begun.unseen);
    }
    observed
}

/// Likewise, of a later program in the same cell. `None`: it was nobody.
pub(crate) fn observed_later(look: Look, runtime: &Value) -> Option<Value> {
    match look {
        Look::Good { posture, unseen } => {
            Some(observed(&Begun { steps: Vec::new(), posture: *posture, unseen }, runtime))
        }
        // The host sees the kernel around it, as it was before anything ran.
        Look::Hidden => Some(json!({"runtime": runtime, "unseen": ["program"]})),
        Look::Nobody => None,
    }
}

/// Read from outside.
pub(crate) fn posture(seen: &Posture) -> Value {
    let pairs =
        |pairs: &[(String, String)]| pairs.iter().map(|(k, v)| (k.clone(), json!(v))).collect::<Map<_, _>>();
    json!({
        "uid": seen.uid,
        "gid": seen.gid,
        "groups": seen.groups,
        "capabilities": {
            "effective": seen.cap_effective, "permitted": seen.cap_permitted, "inheritable": seen.cap_inheritable,
            "bounding": seen.cap_bounding, "ambient": seen.cap_ambient,
        },
        "no_new_privs": seen.no_new_privs,
        "seccomp": {"mode": seen.seccomp_mode, "filters": seen.seccomp_filters},
        "namespaces": {"own": seen.own_namespaces, "host": seen.shared_namespaces},
        "mounts": seen.mounts.iter().take(2 * MAX_LISTED)
            .map(|mount| format!("{} {} {}", mount.point, mount.kind, mount.options)).collect::<Vec<_>>(),
        "rlimits": pairs(&seen.rlimits),
        "cgroup": pairs(&seen.cgroup),
        "oom_score_adj": seen.oom_score_adj,
    })
}

/// What cannot be read from outside, as it was applied.
pub(crate) fn applied(config: &Config) -> Value {
    let filter = filter_digest(config.program());
    let landlock = match &config.landlock {
        Landlock::Rules(rules) => {
            rules.iter().map(|rule| format!("{} {:?}", rule.path, rule.access)).collect::<Vec<_>>().into()
        }
        Landlock::NotThere => Value::Null,
    };
    json!({"landlock": landlock, "seccomp_sha256": filter})
}

/// Digest of a filter's code. There are few of them, and they do not change while this process lives.
fn filter_digest(program: Program) -> String {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex, PoisonError};
    static KNOWN: LazyLock<Mutex<HashMap<Program, String>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let digest = || hex(&Sha256::digest(casemate_filter::digest_input(casemate_filter::program(program))));
    known.entry(program).or_insert_with(digest).clone()
}

fn listed<'a>(items: impl Iterator<Item = &'a str>) -> Vec<Cow<'a, str>> {
    let mut items: Vec<Cow<'_, str>> = items.map(|item| bounded(item, 512)).collect();
    if items.len() > MAX_LISTED {
        let more = items.len() - MAX_LISTED;
        items.truncate(MAX_LISTED);
        items.push(format!("and {more} more").into());
    }
    items
}

fn bounded(text: &str, bytes: usize) -> Cow<'_, str> {
    if text.len() <= bytes {
        return text.into();
    }
    let end = (0..=bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &text[..end]).into()
}

#[cfg(test)]
mod tests;
