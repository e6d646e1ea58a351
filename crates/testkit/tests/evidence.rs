//! The evidence of runs that the binary made: complete, verifiable, and useless to whoever changes a byte of it.

mod common;

use std::fs;
use std::path::Path;

use casemate_engine::recorder::{Reader, StoreError};
use common::{Home, Running, finish};
use serde_json::{Value, json};

/// A home with runs that ended in different ways.
fn home_with_runs() -> Home {
    let home = Home::new();
    home.run(&["--", "true"]).expect(0);
    home.run(&["--timeout", "100ms", "--", "sleep", "5"]).expect(124);
    home.run(&["--risk", "critical", "--", "true"]).expect(125);
    home.run(&["--", "sh", "-c", "kill -SEGV $$"]).expect(139);
    home
}

#[test]
fn every_run_is_in_the_chain_and_the_chain_verifies() {
    let home = home_with_runs();
    let report = home.verify();
    assert_eq!((&report["verified"], &report["anchored"]), (&json!(true), &json!(false)));
    assert_eq!(
        (&report["executions"], &report["records"], &report["open"]),
        (&json!(4), &json!(7), &json!([]))
    );
    assert_eq!(
        (&report["seals"], &report["unsealed"]),
        (&json!(4), &json!(0)),
        "every run seals what it did"
    );
    let events: Vec<Value> = home.records().into_iter().map(|mut record| record["event"].take()).collect();
    let run = ["opened", "closed"];
    assert_eq!(events, [&run[..], &run, &["refused"], &run].concat());
    let text = home.casemate(&["evidence", "verify", "--all"]).expect(0);
    assert!(text.out().contains("consistent, unanchored"), "{}", text.out());
}

#[test]
fn the_receipt_is_the_place_of_the_closing_record() {
    let home = Home::new();
    let (_, json) = home.run_json(&["--", "echo", "proved"]);
    let (id, receipt) = (json["id"].as_str().unwrap(), json["receipt"].as_str().unwrap());
    let shown = home.casemate(&["evidence", "show", id]).expect(0).json();
    let closed = shown.as_array().unwrap().last().unwrap();
    assert_eq!(format!("{}:{}", closed["seq"], closed["digest"].as_str().unwrap()), receipt);
    // The chain ends with the seal that names it; either of them can be pinned.
    let head = home.casemate(&["evidence", "head"]).expect(0).out().trim().to_owned();
    assert_eq!(closed["seal"], json!(head));
    for pin in [receipt, &head] {
        home.casemate(&["evidence", "verify", id, "--head", pin]).expect(0);
    }
    assert_eq!((closed["event"].as_str(), closed["id"].as_str()), (Some("closed"), Some(id)));
    // What the outcome said is what was signed.
    let body = &closed["body"];
    assert_eq!(body["status"], json["status"]);
    assert_eq!(body["usage"]["memory_peak_bytes"], json["usage"]["memory_peak_bytes"]);
    let digest = closed["subjects"].as_array().unwrap().iter().find(|subject| subject["name"] == "stdout");
    let sum = finish(shell("printf 'proved\\n' | sha256sum")).expect(0).out();
    assert!(sum.starts_with(digest.expect("a digest of the output")["sha256"].as_str().unwrap()));
    let observed = &body["observed"];
    assert_eq!(observed["no_new_privs"], true);
    assert_eq!(observed["capabilities"]["effective"], 0);
    assert_eq!(observed["seccomp"]["mode"], 2);
}

#[test]
fn a_refusal_is_recorded_with_its_reason() {
    let home = Home::new();
    let (_, json) = home.run_json(&["--allow", "example.com:443", "--", "true"]);
    assert_eq!(json["status"]["kind"], "refused");
    let records = home.records();
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!((&record["event"], &record["id"]), (&json!("refused"), &json["id"]));
    assert_eq!(record["body"]["status"]["reason"], json["status"]["reason"]);
    home.casemate(&["evidence", "verify", "--head", json["receipt"].as_str().unwrap()]).expect(0);
}

#[test]
fn evidence_can_be_listed_shown_and_exported() {
    let home = home_with_runs();
    let listed = home.casemate(&["evidence", "ls"]).expect(0).out();
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 5, "{listed}");
    for (line, words) in lines[1..].iter().zip(["exited 0", "killed wall-time", "refused", "signaled 11"]) {
        assert!(line.ends_with(words), "{line}");
    }
    let objects = home.casemate(&["evidence", "ls", "--json"]).expect(0).out();
    let objects: Vec<Value> = objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects[1]["status"]["cause"], "wall-time");

    let id = objects[0]["id"].as_str().unwrap();
    let raw = home.casemate(&["evidence", "show", id, "--json"]).expect(0);
    let chain = fs::read(home.chain()).unwrap();
    assert!(chain.starts_with(&raw.stdout), "the first run's records and their seal are the first lines");
    home.casemate(&["evidence", "verify", id]).expect(0);
    home.casemate(&["evidence", "show", "no-such-id"]).refused("no-such-id");
    let unknown = home.casemate(&["evidence", "verify", "no-such-id"]).expect(1);
    assert!(unknown.err().contains("no-such-id"));

    assert_eq!(home.casemate(&["evidence", "export"]).expect(0).stdout, chain);
    let file = home.beside("export.jsonl");
    let export = ["evidence", "export", file.to_str().unwrap()];
    home.casemate(&export).expect(0);
    assert_eq!(fs::read(&file).unwrap(), chain);
    home.casemate(&export).refused("export.jsonl");
}

#[test]
fn a_chain_is_bound_to_its_key() {
    let home = home_with_runs();
    let other = Home::new();
    other.run(&["--", "true"]).expect(0);
    let key = |home: &Home| home.path().join("keys/evidence.pub").to_str().unwrap().to_owned();
    home.casemate(&["evidence", "verify", "--key", &key(&home)]).expect(0);
    let done = home.casemate(&["evidence", "verify", "--key", &key(&other)]).expect(1);
    assert!(done.err().contains("seal 3: signed with another key"), "{}", done.err());
    // Without a pinned key, a key beside the chain that does not belong to it is no better.
    fs::copy(key(&other), key(&home)).unwrap();
    home.casemate(&["evidence", "verify"]).expect(1);
}

#[test]
fn the_signing_key_is_nobody_elses_to_read() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.run(&["--", "true"]).expect(0);
    let key = home.path().join("keys/evidence.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    home.run(&["--", "true"]).refused("can be read by others");
}

/// The number of the record or seal that is named.
#[track_caller]
fn named(words: &str) -> u64 {
    let numbered = ["record ", "seal ", "line "].iter().filter_map(|what| {
        let (before, rest) = words.split_once(what)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some((before.len(), digits.parse().ok()?))
    });
    // What comes first is what is blamed.
    numbered.min().unwrap_or_else(|| panic!("nothing is named in {words}")).1
}

/// The line that the binary blames, after it refused to verify.
#[track_caller]
fn blamed(home: &Home, flags: &[&str]) -> u64 {
    named(&home.casemate(&[&["evidence", "verify", "--all"], flags].concat()).expect(1).err())
}

#[test]
fn records_that_were_removed_moved_or_repeated_are_noticed() {
    let home = home_with_runs();
    let chain = fs::read(home.chain()).unwrap();
    let lines: Vec<&[u8]> = chain.split_inclusive(|byte| *byte == b'\n').collect();
    let n = lines.len();
    let try_order = |order: Vec<usize>, expected: usize| {
        let changed: Vec<u8> = order.iter().flat_map(|line| lines[*line]).copied().collect();
        fs::write(home.chain(), changed).unwrap();
        assert_eq!(blamed(&home, &[]), expected as u64, "{order:?}");
    };
    for at in 0..n {
        if at + 1 < n {
            try_order((0..n).filter(|line| *line != at).collect(), at + 1);
            let mut swapped: Vec<usize> = (0..n).collect();
            swapped.swap(at, at + 1);
            try_order(swapped, at + 1);
        }
        try_order((0..=at).chain(at..n).collect(), at + 2);
    }
    try_order((0..n).rev().collect(), 1);
    fs::write(home.chain(), &chain).unwrap();
    home.verify();
}

#[test]
fn a_cut_tail_is_noticed_by_whoever_kept_a_head() {
    let home = home_with_runs();
    let head = home.casemate(&["evidence", "head"]).expect(0).out().trim().to_owned();
    let key = home.path().join("keys/evidence.pub");
    let pinned = ["evidence", "verify", "--all", "--head", &head, "--key", key.to_str().unwrap()];
    home.casemate(&pinned).expect(0);
    home.run(&["--", "true"]).expect(0);
    let anchored = home.casemate(&pinned).expect(0);
    assert!(anchored.out().contains("verified, anchored at line 11"), "{}", anchored.out());

    let chain = fs::read(home.chain()).unwrap();
    let lines: Vec<&[u8]> = chain.split_inclusive(|byte| *byte == b'\n').collect();
    for kept in 0..11 {
        fs::write(home.chain(), lines[..kept].concat()).unwrap();
        // Nothing in what is left shows that there was more: a cut cannot be seen without a head.
        let alone = home.casemate(&["evidence", "verify", "--all"]).expect(0);
        assert!(alone.out().contains("unanchored"));
        assert_eq!(blamed(&home, &["--head", &head]), 11, "cut after {kept}");
    }
    // Cut within a line.
    fs::write(home.chain(), &chain[..chain.len() - 10]).unwrap();
    assert_eq!(blamed(&home, &[]), 14);
    // A head of another chain.
    fs::write(home.chain(), &chain).unwrap();
    let other = head.replace(|c: char| c.is_ascii_lowercase(), "0");
    assert_eq!(blamed(&home, &["--head", &other]), 11);
}

/// Changes one bit at `at` and says which line is blamed, in-process: there are thousands of bytes to try.
fn blamed_for_bit(home: &Path, chain: &[u8], at: usize, bit: u32) -> u64 {
    let mut changed = chain.to_vec();
    changed[at] ^= 1 << bit;
    fs::write(home.join("evidence/chain.jsonl"), changed).expect("the chain can be written");
    match Reader::open(home).and_then(|reader| reader.verify(None, None)) {
        Err(StoreError::Corrupt { source, .. }) => named(&source.to_string()),
        other => panic!("byte {at} bit {bit} changed, and the answer is {other:?}"),
    }
}

#[test]
fn no_byte_of_a_record_can_change() {
    let home = Home::new();
    home.run(&["--", "true"]).expect(0);
    let chain = fs::read(home.chain()).unwrap();
    let first = chain.iter().position(|byte| *byte == b'\n').unwrap();
    for at in 0..=first {
        assert_eq!(blamed_for_bit(&home.path(), &chain, at, at as u32 % 8), 1, "byte {at}");
    }
    fs::write(home.chain(), &chain).unwrap();
    home.verify();
}

#[test]
fn no_byte_anywhere_in_the_chain_can_change() {
    let home = home_with_runs();
    let chain = fs::read(home.chain()).unwrap();
    let line_of = |at: usize| 1 + chain[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
    for n in 0..400 {
        let at = (n * chain.len() / 400 + n % 7).min(chain.len() - 1);
        assert_eq!(blamed_for_bit(&home.path(), &chain, at, n as u32 % 8), line_of(at), "byte {at}");
    }
    // The binary says the same.
    for at in
        [0, 1, 50, chain.len() / 3, chain.len() / 2, chain.len() - 100, chain.len() - 2, chain.len() - 1]
    {
        let mut changed = chain.clone();
        changed[at] ^= 0x10;
        fs::write(home.chain(), changed).unwrap();
        assert_eq!(blamed(&home, &[]), line_of(at), "byte {at}");
    }
}

#[test]
fn nothing_runs_on_a_chain_that_was_tampered_with() {
    let home = home_with_runs();
    let mut chain = fs::read(home.chain()).unwrap();
    let at = chain.len() - 200;
    chain[at] ^= 1;
    fs::write(home.chain(), &chain).unwrap();
    home.run(&["--", "true"]).refused("seal 11");
    assert_eq!(fs::read(home.chain()).unwrap(), chain, "it is left as it was found");
    home.nothing_left();
}

#[test]
fn twenty_runs_at_once_keep_one_chain() {
    let home = Home::new();
    let start = |n: usize| {
        Running::start(home.run_command(&[
            "--json",
            "--timeout",
            "60s",
            "--",
            "sh",
            "-c",
            &format!("echo {n}"),
        ]))
    };
    let running: Vec<Running> = (0..20).map(start).collect();
    let mut receipts = std::collections::BTreeSet::new();
    for (n, run) in running.into_iter().enumerate() {
        let json = run.finish().expect(0).json();
        assert_eq!(json["stdout"], format!("{n}\n"));
        receipts.insert(json["receipt"].as_str().unwrap().to_owned());
        assert_eq!(home.events_of(json["id"].as_str().unwrap()), ["opened", "closed"]);
    }
    assert_eq!(receipts.len(), 20);
    let report = home.verify();
    assert_eq!(
        (&report["executions"], &report["records"], &report["open"]),
        (&json!(20), &json!(40), &json!([]))
    );
    assert_eq!(report["unsealed"], json!(0));
    home.nothing_left();
}

#[test]
fn what_a_killed_run_left_is_sealed_by_the_next() {
    let home = Home::new();
    let mut killed = Running::start(home.run_command(&["--", "sh", "-c", "echo ready; exec sleep 100"]));
    killed.wait_for_output("ready");
    killed.signal(rustix::process::Signal::KILL);
    killed.finish().expect(137);
    assert_eq!(home.verify()["unsealed"], json!(1));
    let text = home.casemate(&["evidence", "verify"]).expect(0).out();
    assert!(text.contains("1 records, 1 not sealed yet"), "{text}");
    let opened = home.records().remove(0);
    let show = || home.casemate(&["evidence", "show", opened["id"].as_str().unwrap()]).expect(0).json();
    assert_eq!(show()[0]["seal"], Value::Null);
    home.run(&["--", "true"]).expect(0);
    assert_eq!(home.verify()["unsealed"], json!(0));
    let shown = show();
    assert_eq!((&shown[0]["event"], &shown[1]["event"]), (&json!("opened"), &json!("interrupted")));
    assert!(shown.as_array().unwrap().iter().all(|record| record["seal"].is_string()), "{shown}");
}

#[test]
fn a_record_that_somebody_else_appends_is_never_sealed() {
    let home = home_with_runs();
    let chain = fs::read_to_string(home.chain()).unwrap();
    // A refusal once more, with its number and link as they have to be, and a mac out of thin air.
    let seal = home.casemate(&["evidence", "head"]).expect(0).out();
    let (number, digest) = seal.trim().split_once(':').unwrap();
    let next = number.parse::<u64>().unwrap() + 1;
    let mut line: Value = chain.lines().find(|line| line.contains("\"refused\"")).unwrap().parse().unwrap();
    line["intoto"]["predicate"]["chain"] = json!({"prev": digest, "seq": next});
    line["intoto"]["predicate"]["id"] = json!("forged");
    let forged = format!("{chain}{line}\n");
    fs::write(home.chain(), &forged).unwrap();
    // Without the key, all there is to say is that nothing proves it.
    assert_eq!(home.verify()["unsealed"], json!(1));
    home.run(&["--", "true"]).refused(&format!("record {next} (id forged): its mac"));
    assert_eq!(fs::read_to_string(home.chain()).unwrap(), forged, "it is left as it was found");
}

fn shell(script: &str) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).stdin(std::process::Stdio::null());
    command
}
