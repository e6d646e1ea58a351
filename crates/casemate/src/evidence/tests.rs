use std::fs;

use casemate_engine::recorder::{Body, Durability, Event, Store, Subject};
use tempfile::TempDir;

use super::*;

fn chain() -> (TempDir, Reader) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path(), Durability::OnExit).unwrap();
    let subjects = || vec![Subject { name: "request".to_owned(), sha256: [0; 32] }];
    let opened = json!({"request": {"tenant": "acme"}, "decision": {"stack": ["container"]}});
    let refused = json!({"request": null, "status": {"kind": "refused", "reason": "no", "hint": ""}});
    for (event, id, body) in [
        (Event::Opened, "a", opened.clone()),
        (Event::Refused, "b", refused),
        (Event::Closed, "a", json!({"status": {"kind": "exited", "code": 3}})),
        (Event::Opened, "c", opened),
    ] {
        store.append(event, id, "run-1", &subjects(), &Body::new(&body).unwrap()).unwrap();
        if event == Event::Refused {
            store.sync().unwrap();
        }
    }
    // Lines 1 and 2 are sealed by 3, and 4 and 5 by 6.
    drop(store);
    let reader = Reader::open(home.path()).unwrap();
    (home, reader)
}

fn said(run: impl FnOnce(&mut Vec<u8>) -> Result<u8, Failure>) -> (u8, String) {
    let mut out = Vec::new();
    let code = run(&mut out).unwrap();
    (code, String::from_utf8(out).unwrap())
}

fn unpinned() -> Pins {
    Pins { key: None, head: None }
}

#[test]
fn one_line_per_execution_in_the_order_of_their_beginning() {
    let (_home, reader) = chain();
    let (_, text) = said(|out| list::list(&reader, false, out));
    let words = |n: usize| {
        let words: Vec<&str> = text.lines().nth(n).unwrap().split_whitespace().collect();
        [&words[..1], &words[2..]].concat().join(" ")
    };
    assert_eq!(words(0), "ID TENANT STACK STATUS");
    assert_eq!(words(1), "a acme container exited 3");
    assert_eq!(words(2), "b - - refused");
    assert_eq!(words(3), "c acme container open");

    let (_, lines) = said(|out| list::list(&reader, true, out));
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((&first["id"], &first["records"]), (&json!("a"), &json!([1, 4])));
}

#[test]
fn what_is_noted_of_a_session_has_a_line_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path(), Durability::OnExit).unwrap();
    let files = json!({"files": {"operation": "put", "path": "/work/x", "result": "ok"}, "session": "s", "tenant": "acme"});
    let code = json!({"code": {"process": "p", "result": "error"}, "session": "s", "tenant": "acme"});
    for (id, body) in [("f", files), ("c", code)] {
        let subjects = [Subject { name: "request".to_owned(), sha256: [0; 32] }];
        store.append(Event::Noted, id, "run-1", &subjects, &Body::new(&body).unwrap()).unwrap();
    }
    drop(store);
    let reader = Reader::open(home.path()).unwrap();
    let (_, text) = said(|out| list::list(&reader, false, out));
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|line| {
            line.split_whitespace().enumerate().filter(|(n, _)| *n != 1).map(|(_, word)| word).collect()
        })
        .collect();
    assert_eq!(rows, [["f", "acme", "-", "put", "ok"], ["c", "acme", "-", "code", "error"]]);
    let (_, text) = said(|out| verify(&reader, Some("c"), unpinned(), false, out));
    assert!(text.contains("2 records, 0 executions, 0 still open"), "{text}");
    let (_, shown) = said(|out| show(&reader, "f", false, out));
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()[0]["body"]["session"], "s");
}

#[test]
fn the_records_of_one_execution_are_shown_with_their_seals_and_their_lines_are_exact() {
    let (home, reader) = chain();
    let (_, text) = said(|out| show(&reader, "a", false, out));
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&shown[0]["event"], &shown[1]["body"]["status"]["code"]), (&json!("opened"), &json!(3)));

    let seal = |n: usize| shown[n]["seal"].as_str().unwrap().split_once(':').unwrap().0;
    assert_eq!((seal(0), seal(1)), ("3", "6"));

    let stored = fs::read_to_string(home.path().join("evidence/chain.jsonl")).unwrap();
    let stored: Vec<&str> = stored.lines().collect();
    let (_, text) = said(|out| show(&reader, "a", true, out));
    assert_eq!(text.lines().collect::<Vec<_>>(), [stored[0], stored[2], stored[3], stored[5]]);
    assert!(show(&reader, "nobody", false, &mut Vec::new()).is_err());
}

#[test]
fn verification_says_how_much_it_proves() {
    let (home, reader) = chain();
    let (code, text) = said(|out| verify(&reader, None, unpinned(), false, out));
    assert_eq!(code, exit::DONE);
    assert!(text.starts_with("consistent, unanchored: 4 records, 3 executions, 1 still open\n"), "{text}");

    let pins = || Pins {
        key: Some(read_key(home.path().join("keys/evidence.pub").as_os_str()).unwrap()),
        head: Some(reader.head().unwrap()),
    };
    let (_, text) = said(|out| verify(&reader, Some("a"), pins(), false, out));
    assert_eq!(
        text,
        "verified, anchored at line 6: 4 records, 3 executions, 1 still open\n\
         a: record 1 sealed by 3, record 4 sealed by 6\n"
    );
    let (_, text) = said(|out| verify(&reader, None, pins(), true, out));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["anchored"], &report["open"]), (&json!(true), &json!(["c"])));
    assert_eq!((&report["seals"], &report["unsealed"]), (&json!(2), &json!(0)));
}

#[test]
fn what_has_no_seal_yet_is_said_to_have_none() {
    let (home, reader) = chain();
    let path = home.path().join("evidence/chain.jsonl");
    let stored = fs::read_to_string(&path).unwrap();
    let without_the_last: Vec<&str> = stored.split_inclusive('\n').take(5).collect();
    fs::write(&path, without_the_last.concat()).unwrap();
    let (code, text) = said(|out| verify(&reader, Some("a"), unpinned(), false, out));
    assert_eq!(code, exit::DONE);
    assert_eq!(
        text,
        "consistent, unanchored: 4 records, 2 not sealed yet, 3 executions, 1 still open\n\
         a: record 1 sealed by 3, record 4 not sealed yet\n"
    );
    let (_, text) = said(|out| verify(&reader, Some("a"), unpinned(), true, out));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["unsealed"], &report["of_id"]), (&json!(2), &json!([1, 4])));
    assert_eq!(report["sealed_by"], json!([3, null]));
    let (_, text) = said(|out| show(&reader, "a", false, out));
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown[1]["seal"], Value::Null);
}

#[test]
fn an_execution_without_a_record_does_not_verify() {
    let (_home, reader) = chain();
    assert_eq!(said(|out| verify(&reader, Some("nobody"), unpinned(), false, out)).0, exit::NO);
}

#[test]
fn a_changed_record_does_not_verify() {
    let (home, reader) = chain();
    let path = home.path().join("evidence/chain.jsonl");
    let lines = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.swap(0, 1);
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let (code, text) = said(|out| verify(&reader, None, unpinned(), true, out));
    assert_eq!(code, exit::NO);
    assert!(text.contains("record 1 (id b)"), "{text}");
}

#[test]
fn keys_and_heads_are_read_strictly() {
    let (home, reader) = chain();
    let file = home.path().join("keys/evidence.pub");
    let key = read_key(file.as_os_str()).unwrap();
    assert_eq!(read_key(OsStr::new(&key.to_string())).unwrap(), key);
    assert!(read_key(OsStr::new("/no/such/key")).is_err());
    assert!(read_key(home.path().join("evidence/chain.jsonl").as_os_str()).is_err());
    assert!(read_head("4").is_err());
    let head = reader.head().unwrap();
    assert_eq!(read_head(&format!("{head}\n")).unwrap(), head);
}

#[test]
fn an_export_is_exact_and_replaces_nothing() {
    let (home, reader) = chain();
    let stored = fs::read(home.path().join("evidence/chain.jsonl")).unwrap();
    let file = home.path().join("export");
    export(&reader, Some(&file), &mut Vec::new()).unwrap();
    assert_eq!(fs::read(&file).unwrap(), stored);
    assert!(export(&reader, Some(&file), &mut Vec::new()).is_err());
    let mut out = Vec::new();
    export(&reader, None, &mut out).unwrap();
    assert_eq!(out, stored);
}
