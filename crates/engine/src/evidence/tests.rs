use std::sync::Arc;

use casemate_core::evidence::parse_canonical;
use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::outcome::Cause;
use casemate_core::plan;
use casemate_core::policy::{self, Policy};
use casemate_core::request::{Language, RequestDraft};
use casemate_core::route::{self, Clauses, ImageKind, Profile, Support};
use casemate_core::stack::Stack;

use super::*;

fn asked(workload: Workload, change: impl FnOnce(&mut RequestDraft)) -> Request {
    let mut draft = RequestDraft::new(workload);
    change(&mut draft);
    Request::new(draft).unwrap()
}

fn command(argv: &[&str]) -> Workload {
    Workload::Command { argv: argv.iter().map(|&argument| argument.to_owned()).collect() }
}

fn read(fragment: &Fragment) -> Value {
    parse_canonical(fragment.as_bytes()).expect("what goes into a record is canonical")
}

fn read_body(body: &Body) -> Value {
    parse_canonical(body.as_bytes()).expect("a body is canonical")
}

#[test]
fn a_request_is_recorded_without_values_of_the_environment() {
    let request = asked(command(&["echo", "\"é\"\n"]), |draft| {
        draft.env = vec![("TOKEN".into(), "hush".into())];
        draft.tags = vec!["b".into(), "a".into()];
        draft.limits = LimitsDraft::new().with(LimitKind::WallTime, 1000).with(LimitKind::Memory, 1 << 26);
    });
    let fragment = super::request(&request).unwrap();
    assert_eq!(
        read(&fragment),
        json!({
            "capabilities": [], "cwd": null, "deterministic": false, "egress": [], "env_names": ["TOKEN"],
            "files_in": [], "files_out": [], "image": "host (unpinned)", "isolation": "auto", "kind": null,
            "limits": {"memory": 1 << 26, "wall-time": 1000}, "needs": [], "risk": "medium", "secrets": [],
            "stdin": false, "tags": ["a", "b"], "tenant": "local",
            "workload": {"argv": ["echo", "\"é\"\n"], "type": "command"},
        })
    );
    // They count for the digest nevertheless.
    let other =
        asked(command(&["echo", "\"é\"\n"]), |draft| draft.env = vec![("TOKEN".into(), "shh".into())]);
    assert_ne!(request_digest(&request, &fragment), request_digest(&other, &fragment));
}

#[test]
fn long_arguments_and_code_are_recorded_as_digests() {
    let long = "x".repeat(MAX_ARGUMENTS);
    let written = read(&super::request(&asked(command(&["echo", &long]), |_| ())).unwrap());
    let workload = &written["workload"];
    assert_eq!((&workload["argv_count"], &workload["argv_bytes"]), (&json!(2), &json!(MAX_ARGUMENTS + 4)));
    assert!(
        workload["argv"].is_null() && workload["argv_sha256"].as_str().is_some_and(|hex| hex.len() == 64)
    );

    let code = Workload::Code {
        language: Language::Python,
        source: CodeSource::Inline("print()".into()),
        args: vec!["-v".into()],
    };
    let written = read(&super::request(&asked(code, |_| ())).unwrap());
    let sha256 = hex(&Sha256::digest("print()"));
    let source = json!({"bytes": 7, "form": "inline", "name": null, "sha256": sha256});
    assert_eq!(
        written["workload"],
        json!({"argv": ["-v"], "language": "python", "source": source, "type": "code"})
    );
}

#[test]
fn an_opening_record_says_why_every_other_stack_was_passed_over() {
    let request = asked(command(&["true"]), |_| ());
    let clauses = Clauses { commands: Support::Yes, images: [ImageKind::Host].into(), ..Clauses::default() };
    let profile = |(cost, stack): (u32, Stack)| {
        let class = stack.nominal_class();
        Profile::new(stack, class, cost).supporting(clauses.clone()).enforcing(LimitKind::ALL)
    };
    let machine: Vec<Profile> = (0..).zip(Stack::all()).map(profile).collect();
    let grants = policy::decide(&Policy::default(), &request).unwrap();
    let choice = route::choose(&grants, &machine).unwrap();
    let others = choice.passed_over.len();
    let plan = Plan::new(Arc::new(request.clone()), Arc::new(plan::Decision::new(&grants, choice)));
    let fragment = super::request(&request).unwrap();
    let body = read_body(&opening(&fragment, &plan, None).unwrap());
    assert_eq!(body["request"], read(&fragment));
    let decision = &body["decision"];
    assert_eq!(decision["stack"], json!(["container"]));
    assert_eq!(decision["class"], "shared-kernel");
    assert_eq!(decision["limits"]["wall-time"], json!({"origin": "default", "value": 10_000}));
    let passed_over = decision["passed_over"].as_array().unwrap();
    assert_eq!(passed_over.len(), others);
    assert!(
        passed_over.iter().any(|other| other["stack"] == "microvm+container" && other["reason"].is_string())
    );
}

#[test]
fn a_closing_record_says_how_it_ended() {
    let status_of = |status: Status| {
        let body = closing(&Outcome::without_cell("id".to_owned(), status), &Ran::default(), None).unwrap();
        read_body(&body)["status"].take()
    };
    assert_eq!(status_of(Status::Exited { code: 3 }), json!({"kind": "exited", "code": 3}));
    assert_eq!(status_of(Status::Signaled { signal: 9 }), json!({"kind": "signaled", "signal": 9}));
    assert_eq!(
        status_of(Status::Killed { cause: Cause::Memory, limit: Some(5), peak: None }),
        json!({"kind": "killed", "cause": "memory", "limit": 5, "peak": null})
    );
    assert_eq!(
        status_of(Status::Refused(Refusal::new("no", "ask"))),
        json!({"kind": "refused", "reason": "no", "hint": "ask"})
    );
    let reason = "é".repeat(2000);
    let failed = status_of(Status::Failed { reason });
    assert_eq!(
        (&failed["kind"], failed["reason"].as_str().unwrap().chars().count()),
        (&json!("failed"), 1025)
    );
}

#[test]
fn a_closing_record_holds_all_that_was_seen() {
    let ran = Ran {
        observed: Some(json!({"uid": 1000, "cgroup": {"pids.max": "65"}})),
        applied: Some(json!({"landlock": []})),
        ..Ran::default()
    };
    let mut outcome = Outcome::without_cell("id".to_owned(), Status::Exited { code: 0 });
    outcome.usage.wall = Some(Duration::from_micros(1500));
    outcome.limits_hit = vec![LimitHit { kind: LimitKind::Pids, limit: 64, peak: Some(64) }];
    outcome.denied = (0..MAX_LISTED + 2).map(|n| format!("d{n}")).collect();
    let program = ("/usr/bin/true".to_owned(), "ab".repeat(32));
    let mut body = read_body(&closing(&outcome, &ran, Some(&program)).unwrap());
    let denied = body["denied"].take();
    assert_eq!((denied.as_array().unwrap().len(), &denied[MAX_LISTED]), (65, &json!("and 2 more")));
    assert_eq!(
        body,
        json!({
            "applied": {"landlock": []},
            "denied": null,
            "destroyed": "killed from outside; every process ends with the cell's first",
            "limits_hit": [{"limit": "pids", "value": 64, "peak": 64}],
            "observed": {"uid": 1000, "cgroup": {"pids.max": "65"}},
            "program": {"path": "/usr/bin/true", "sha256": "ab".repeat(32)},
            "status": {"kind": "exited", "code": 0},
            "truncated": {"stdout": false, "stderr": false},
            "usage": {"wall_us": 1500, "cpu_us": null, "memory_peak_bytes": null, "disk_bytes": null, "pids_peak": null},
        })
    );
}

#[test]
fn a_refusal_is_recorded_even_if_the_request_never_was_one() {
    let outcome = Outcome::without_cell("id".to_owned(), Status::Refused(Refusal::new("no", "ask")));
    let body = read_body(&refused(&Fragment::default(), &outcome).unwrap());
    assert_eq!(body["request"], Value::Null);
    assert_eq!(body["status"]["reason"], "no");
}
