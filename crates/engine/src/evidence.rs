//! What the records say: internal types become canonical JSON here and nowhere else.
//!
//! Values of environment variables and the contents of files never enter a record; names and digests do.

use casemate_core::evidence::{Subject, hex};
use casemate_core::limits::Limits;
use casemate_core::outcome::{Outcome, Status};
use casemate_core::plan::Plan;
use casemate_core::request::{CodeSource, ImageRef, Isolation, Request, Stdin, Workload};
use casemate_wire::guest::{Config, Program};
use casemate_wire::launch::Posture;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::run::{Digests, Ran};

/// Arguments are recorded up to this many bytes; beyond, their digest stands for them.
const MAX_ARGUMENTS: usize = 8 * 1024;
/// Members of lists that a hostile payload can make long.
const MAX_LISTED: usize = 64;

/// What was asked.
pub(crate) fn request(request: &Request) -> Value {
    let names = |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let paths = |paths: &[casemate_core::request::GuestPath]| {
        listed(paths.iter().map(|path| path.as_str().to_owned()))
    };
    json!({
        "tenant": request.tenant(),
        "workload": workload(request.workload()),
        "risk": request.risk().as_str(),
        "kind": request.kind().map(|kind| kind.as_str()),
        "tags": request.tags().iter().collect::<Vec<_>>(),
        "needs": request.needs().iter().map(|need| need.as_str()).collect::<Vec<_>>(),
        "isolation": isolation(request.isolation()),
        "image": image(request.image()),
        "env_names": listed(names(request.env()).into_iter()),
        "cwd": request.cwd(),
        "files_in": paths(request.files_in()),
        "files_out": paths(request.files_out()),
        "stdin": request.stdin() == Stdin::Provided,
        "egress": request.egress(),
        "secrets": request.secrets(),
        "capabilities": request.capabilities().iter().map(|capability| capability.as_str()).collect::<Vec<_>>(),
        "deterministic": request.deterministic(),
        "limits": request.limits().iter().map(|(kind, value)| (kind.name().to_owned(), json!(value))).collect::<Map<_, _>>(),
    })
}

/// What was decided, and why nothing else.
pub(crate) fn decision(plan: &Plan) -> Value {
    let passed_over: Vec<Value> = plan
        .choice()
        .passed_over
        .iter()
        .map(|other| json!({"stack": other.stack.to_string(), "reason": other.reason}))
        .collect();
    json!({
        "stack": stack(plan.stack()),
        "class": plan.class().as_str(),
        "limits": limits(plan.limits()),
        "unbounded": plan.unbounded().iter().map(|kind| kind.name()).collect::<Vec<_>>(),
        "image": image(plan.image()),
        "passed_over": passed_over,
    })
}

/// How it ended, what stood around it and what it used.
pub(crate) fn closing(outcome: &Outcome, ran: &mut Ran, program: Option<&(String, String)>) -> Value {
    let mut body = json!({
        "status": status(&outcome.status),
        "limits_hit": outcome.limits_hit.iter().map(|hit| json!({
            "limit": hit.kind.name(), "value": hit.limit, "peak": hit.peak,
        })).collect::<Vec<_>>(),
        "usage": {
            "wall_us": outcome.usage.wall.map(|d| d.as_micros() as u64),
            "cpu_us": outcome.usage.cpu.map(|d| d.as_micros() as u64),
            "memory_peak_bytes": outcome.usage.memory_peak,
            "disk_bytes": outcome.usage.disk_bytes,
            "pids_peak": outcome.usage.pids_peak,
        },
        "denied": listed(outcome.denied.iter().cloned()),
        "truncated": {"stdout": outcome.stdout_truncated, "stderr": outcome.stderr_truncated},
        "program": program.map(|(path, sha256)| json!({"path": path, "sha256": sha256})),
        "destroyed": "killed from outside; every process ends with the cell's first",
    });
    // Written while the payload ran, and moved: somebody waits for this record.
    body["observed"] = ran.observed.take().unwrap_or_default();
    body["applied"] = ran.applied.take().unwrap_or_default();
    body
}

/// The artifacts that a closing record is about.
pub(crate) fn subjects(request_digest: [u8; 32], digests: &Digests) -> Vec<Subject> {
    let mut subjects = vec![Subject { name: "request".into(), sha256: request_digest }];
    subjects.extend(
        digests
            .0
            .iter()
            .take(MAX_LISTED)
            .map(|(name, sha256)| Subject { name: bounded(name, 512), sha256: *sha256 }),
    );
    subjects
}

/// Identifies the request including everything that is not written out in the record as `asked`.
pub(crate) fn request_digest(request: &Request, asked: &Value) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(asked.to_string().as_bytes());
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
    }
    for (name, value) in request.env() {
        part(name.as_bytes());
        part(value.as_bytes());
    }
    hash.finalize().into()
}

pub(crate) fn status(status: &Status) -> Value {
    match status {
        Status::Exited { code } => json!({"kind": "exited", "code": code}),
        Status::Signaled { signal } => json!({"kind": "signaled", "signal": signal}),
        Status::Killed { cause, limit, peak } => {
            json!({"kind": "killed", "cause": cause.as_str(), "limit": limit, "peak": peak})
        }
        Status::Refused(refusal) => {
            json!({"kind": "refused", "reason": bounded(&refusal.reason, 2048), "hint": bounded(&refusal.hint, 2048)})
        }
        Status::Failed { reason } => json!({"kind": "failed", "reason": bounded(reason, 2048)}),
    }
}

fn workload(workload: &Workload) -> Value {
    match workload {
        Workload::Command { argv } => {
            let mut value = arguments(argv);
            value["type"] = json!("command");
            value
        }
        Workload::Code { language, source, args } => {
            let (form, name, bytes) = match source {
                CodeSource::Inline(code) => ("inline", None, code.as_bytes()),
                CodeSource::File { name, bytes } => ("file", Some(name.clone()), bytes.as_slice()),
            };
            let mut value = arguments(args);
            value["type"] = json!("code");
            value["language"] = json!(language.as_str());
            value["source"] = json!({"form": form, "name": name, "bytes": bytes.len(), "sha256": hex(&Sha256::digest(bytes))});
            value
        }
        Workload::Component { component, args } => {
            let mut value = arguments(args);
            value["type"] = json!("component");
            value["component"] = json!({
                "name": bounded(component.name(), 512), "bytes": component.bytes().len(), "sha256": hex(&component.digest()),
            });
            value
        }
    }
}

fn arguments(argv: &[String]) -> Value {
    let length: usize = argv.iter().map(String::len).sum();
    if length + argv.len() <= MAX_ARGUMENTS {
        return json!({"argv": argv});
    }
    let mut hash = Sha256::new();
    for argument in argv {
        hash.update((argument.len() as u64).to_le_bytes());
        hash.update(argument);
    }
    json!({"argv_count": argv.len(), "argv_bytes": length, "argv_sha256": hex(&hash.finalize())})
}

fn image(image: &ImageRef) -> String {
    match image {
        ImageRef::Host => "host (unpinned)".into(),
        ImageRef::Directory { label } => format!("directory {} (unpinned)", bounded(label, 1024)),
    }
}

fn isolation(isolation: &Isolation) -> String {
    match isolation {
        Isolation::Auto => "auto".into(),
        Isolation::AtLeast(wall) => format!("at least {wall}"),
        Isolation::Exactly(stack) => format!("exactly {stack}"),
    }
}

fn stack(stack: &casemate_core::stack::Stack) -> Vec<&'static str> {
    stack.walls().iter().map(|wall| wall.as_str()).collect()
}

fn limits(limits: &Limits) -> Map<String, Value> {
    let entry =
        |bound: casemate_core::limits::Bound| json!({"value": bound.value, "origin": bound.origin.as_str()});
    limits.iter().map(|(kind, bound)| (kind.name().to_owned(), entry(bound))).collect()
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
    let rules = config.landlock.iter().map(|rule| format!("{} {:?}", rule.path, rule.access));
    json!({"landlock": rules.collect::<Vec<_>>(), "seccomp_sha256": filter})
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

fn listed(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut items: Vec<String> = items.map(|item| bounded(&item, 512)).collect();
    if items.len() > MAX_LISTED {
        let more = items.len() - MAX_LISTED;
        items.truncate(MAX_LISTED);
        items.push(format!("and {more} more"));
    }
    items
}

fn bounded(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = (0..=bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &text[..end])
}
