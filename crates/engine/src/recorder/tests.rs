use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::sync::Syncer;
use super::*;

mod disk;
mod seals;
mod tail;

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn store(home: &Path) -> Store {
    Store::open(home, Durability::OnExit).unwrap()
}

fn subjects() -> Vec<Subject> {
    vec![Subject { name: "request".to_owned(), sha256: [1; 32] }]
}

fn append(store: &Store, event: Event, id: &str) -> Result<Receipt, StoreError> {
    append_with(store, event, id, &json!({"what": "a test", "n": 1}))
}

fn append_with(store: &Store, event: Event, id: &str, body: &Value) -> Result<Receipt, StoreError> {
    append_for("run-1", store, event, id, body)
}

fn append_for(run: &str, store: &Store, event: Event, id: &str, body: &Value) -> Result<Receipt, StoreError> {
    store.append(event, id, run, &subjects(), &Body::new(body).unwrap())
}

fn run(store: &Store, id: &str) {
    append(store, Event::Opened, id).unwrap();
    append(store, Event::Closed, id).unwrap();
}

fn chain_path(home: &Path) -> PathBuf {
    home.join("evidence/chain.jsonl")
}

/// The chain's lines, newlines included.
fn lines(home: &Path) -> Vec<Vec<u8>> {
    let chain = fs::read(chain_path(home)).unwrap();
    chain.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect()
}

fn words(error: &StoreError) -> String {
    let cause = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// This test, in a process of its own.
fn again(test: &str, home: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("recorder::tests::{test}"), "--exact", "--nocapture"]);
    command.env("CASEMATE_TEST_HOME", home).stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// The home handed down by [`again`], in the process it started.
fn handed_down() -> Option<PathBuf> {
    std::env::var_os("CASEMATE_TEST_HOME").map(PathBuf::from)
}

#[test]
fn what_was_appended_reads_back_and_verifies() {
    let home = home();
    let store = store(home.path());
    let opened = append(&store, Event::Opened, "a").unwrap();
    append(&store, Event::Refused, "b").unwrap();
    let closed = append(&store, Event::Closed, "a").unwrap();
    assert_eq!((opened.seq, closed.seq), (1, 3));

    let reader = Reader::open(home.path()).unwrap();
    assert_eq!(reader.head().unwrap(), closed);
    assert_eq!(reader.records().unwrap().count(), 3);
    let found = reader.find("a").unwrap();
    assert_eq!(found.iter().map(Record::head).collect::<Vec<_>>(), [opened, closed]);
    assert_eq!(found[0].entry.body, json!({"what": "a test", "n": 1}));
    assert!(reader.find("nobody").unwrap().is_empty());

    let report = reader.verify(None, Some(closed)).unwrap();
    assert_eq!((report.records, report.executions, report.verdict), (3, 2, Verdict::Unanchored));
    let key = reader.public_key().unwrap();
    let anchored = |head| reader.verify(Some(key.clone()), Some(head)).unwrap().verdict;
    assert_eq!(anchored(closed), Verdict::Anchored { line: 3 });
    store.sync().unwrap();
    let head = reader.head().unwrap();
    assert_eq!(anchored(closed), Verdict::Anchored { line: 3 });
    assert_eq!(anchored(head), Verdict::Anchored { line: 4 });

    let mut exported = Vec::new();
    reader.export(&mut exported).unwrap();
    assert_eq!(exported, fs::read(chain_path(home.path())).unwrap());
}

#[test]
fn reading_needs_no_private_key() {
    let home = home();
    run(&store(home.path()), "a");
    fs::remove_file(home.path().join("keys/evidence.key")).unwrap();
    let reader = Reader::open(home.path()).unwrap();
    assert_eq!(reader.verify(None, None).unwrap().records, 2);
    assert_eq!(reader.head().unwrap().seq, 3);
}

#[test]
fn a_home_without_evidence_is_said_to_have_none() {
    let home = home();
    let error = Reader::open(home.path()).unwrap_err();
    assert!(matches!(error, StoreError::NoStore { .. }));
    assert!(error.hint().unwrap().contains("CASEMATE_HOME"));
}

#[test]
fn flipping_any_byte_of_the_file_is_noticed_and_its_line_is_named() {
    let home = home();
    let store = store(home.path());
    run(&store, "a");
    store.sync().unwrap();
    let path = chain_path(home.path());
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for flip in [0x01, 0x20, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            fs::write(&path, bad).unwrap();
            let error = words(&store.verify(None, None).expect_err("a changed byte must not verify"));
            let line = 1 + good[..at].iter().filter(|b| **b == b'\n').count();
            let named = ["record", "seal", "line"].map(|what| format!("is damaged: {what} {line}"));
            assert!(named.iter().any(|named| error.contains(named)), "byte {at}: {error}");
        }
    }
    fs::write(&path, good).unwrap();
    store.verify(None, None).unwrap();
}

#[test]
fn removing_moving_or_repeating_a_line_is_noticed() {
    let home = home();
    let store = store(home.path());
    (0..3).for_each(|n| run(&store, &format!("x{n}")));
    store.sync().unwrap();
    let good = lines(home.path());
    let bad = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut lines = good.clone();
        change(&mut lines);
        fs::write(chain_path(home.path()), lines.concat()).unwrap();
        words(&store.verify(None, None).unwrap_err())
    };
    assert!(bad(&|lines| drop(lines.remove(2))).contains("record 3 (id x1): says it is line 4"));
    assert!(bad(&|lines| lines.swap(2, 3)).contains("record 3 (id x1): says it is line 4"));
    assert!(bad(&|lines| lines.insert(2, lines[1].clone())).contains("record 3 (id x0): says it is line 2"));
}

#[test]
fn a_cut_tail_is_seen_with_a_pinned_head_only() {
    let home = home();
    let head = {
        let store = store(home.path());
        run(&store, "a");
        store.head().unwrap()
    };
    fs::write(chain_path(home.path()), &lines(home.path())[0]).unwrap();
    let reader = Reader::open(home.path()).unwrap();
    assert_eq!(reader.verify(None, None).unwrap().open, ["a"]);
    let error = words(&reader.verify(None, Some(head)).unwrap_err());
    assert!(error.ends_with("the chain was cut: pinned head is line 2, the store ends at 1"), "{error}");
}

#[test]
fn twenty_threads_with_their_own_stores_keep_one_chain() {
    let home = home();
    thread::scope(|scope| {
        for t in 0..20 {
            let home = home.path();
            scope.spawn(move || {
                let store = store(home);
                (0..10).for_each(|n| run(&store, &format!("t{t}.{n}")));
            });
        }
    });
    let report = Reader::open(home.path()).unwrap().verify(None, None).unwrap();
    assert_eq!((report.records, report.executions, report.open.len()), (400, 200, 0));
    assert_eq!(report.unsealed, 0);
}

#[test]
fn twenty_threads_with_one_store_keep_one_chain() {
    let home = home();
    let store = Store::open(home.path(), Durability::Batch).unwrap();
    thread::scope(|scope| {
        for t in 0..20 {
            let store = &store;
            scope.spawn(move || (0..10).for_each(|n| run(store, &format!("t{t}.{n}"))));
        }
    });
    store.sync().unwrap();
    let report = store.verify(None, None).unwrap();
    assert_eq!((report.records, report.unsealed), (400, 0));
}

#[test]
fn twenty_processes_keep_one_chain() {
    if let Some(home) = handed_down() {
        let durability =
            [Durability::OnExit, Durability::Batch, Durability::Each][std::process::id() as usize % 3];
        let store = Store::open(&home, durability).unwrap();
        return (0..10).for_each(|n| run(&store, &format!("p{}.{n}", std::process::id())));
    }
    let home = home();
    let children: Vec<Child> =
        (0..20).map(|_| again("twenty_processes_keep_one_chain", home.path())).collect();
    children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    let report = Reader::open(home.path()).unwrap().verify(None, None).unwrap();
    assert_eq!((report.records, report.unsealed), (400, 0));
}

#[test]
fn a_killed_writer_leaves_a_chain_that_goes_on() {
    if let Some(home) = handed_down() {
        let store = store(&home);
        // Until it is killed, or far longer than that should take.
        return (0..100_000).for_each(|n| run(&store, &format!("p{}.{n}", std::process::id())));
    }
    let home = home();
    let size = || fs::metadata(chain_path(home.path())).map_or(0, |m| m.len());
    for round in 0..5 {
        let enough = size() + 20_000;
        let mut child = again("a_killed_writer_leaves_a_chain_that_goes_on", home.path());
        let mut grown = || size() >= enough || child.try_wait().unwrap().is_some();
        while !grown() {
            thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "killed in the middle of its work");
        let store = store(home.path());
        run(&store, &format!("after{round}"));
        store.verify(None, None).unwrap();
    }
}

#[test]
fn an_execution_is_opened_and_ended_once_and_by_its_own_run() {
    let home = home();
    let store = store(home.path());
    append(&store, Event::Opened, "a").unwrap();
    assert!(matches!(append(&store, Event::Opened, "a"), Err(StoreError::AlreadyOpen { .. })));
    assert!(matches!(append(&store, Event::Closed, "b"), Err(StoreError::NotOpen { .. })));
    let stranger = append_for("run-2", &store, Event::Closed, "a", &json!({}));
    assert!(matches!(stranger, Err(StoreError::NotOpen { .. })));
    // Another process of the same run may close it.
    let other = Store::open(home.path(), Durability::Each).unwrap();
    append(&other, Event::Closed, "a").unwrap();
    assert_eq!(store.verify(None, None).unwrap().records, 2);
}

#[test]
fn what_a_dead_run_left_open_is_closed_as_interrupted() {
    let home = home();
    {
        let store = store(home.path());
        append(&store, Event::Opened, "a").unwrap();
        run(&store, "b");
        append(&store, Event::Opened, "c").unwrap();
        append_for("run-2", &store, Event::Opened, "d", &json!({})).unwrap();
    }
    let store = store(home.path());
    let ids = |open: &[OpenRecord]| open.iter().map(|o| o.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&store.open_ids_of("run-1").unwrap()), ["a", "c"]);
    assert_eq!(ids(&store.close_interrupted("run-1").unwrap()), ["a", "c"]);
    assert!(store.open_ids_of("run-1").unwrap().is_empty());
    assert!(store.close_interrupted("run-1").unwrap().is_empty());
    assert_eq!(store.verify(None, None).unwrap().open, ["d"]);
    let interrupted = store.find("c").unwrap().pop().unwrap().entry;
    assert_eq!((interrupted.event, interrupted.run.as_str()), (Event::Interrupted, "run-1"));
    assert_eq!(interrupted.subjects, subjects());
}

#[test]
fn a_record_says_under_which_durability_it_was_written() {
    let home = home();
    for (durability, id) in [(Durability::OnExit, "x"), (Durability::Batch, "y"), (Durability::Each, "z")] {
        let store = Store::open(home.path(), durability).unwrap();
        run(&store, id);
        store.sync().unwrap();
        assert_eq!(store.find(id).unwrap()[0].entry.durability, durability);
    }
}

#[test]
fn after_a_failed_sync_nothing_more_is_accepted() {
    let home = home();
    let mut store = store(home.path());
    // A pipe cannot be synced, which stands in for a disk that fails.
    let pipe = fs::File::from(std::os::fd::OwnedFd::from(std::io::pipe().unwrap().0));
    store.syncer = Syncer::new(pipe, Durability::Each, || Ok(false));
    assert!(matches!(append(&store, Event::Opened, "a"), Err(StoreError::SyncFailed { .. })));
    let error = append(&store, Event::Opened, "b").unwrap_err();
    assert!(matches!(error, StoreError::SyncFailed { .. }) && error.hint().is_some());
    assert!(store.find("b").unwrap().is_empty());
}

#[test]
fn the_store_is_private() {
    let home = home();
    run(&store(home.path()), "a");
    let mode = |path: &str| fs::metadata(home.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("evidence"), mode("keys")), (0o700, 0o700));
    assert_eq!((mode("evidence/chain.jsonl"), mode("keys/evidence.key")), (0o600, 0o600));
}

#[test]
fn a_key_or_directory_open_to_others_is_refused_with_the_chmod_that_helps() {
    let home = home();
    run(&store(home.path()), "a");
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let refusal = || Store::open(home.path(), Durability::Each).unwrap_err();

    let key = home.path().join("keys/evidence.key");
    for mode in [0o640, 0o604] {
        chmod(&key, mode);
        assert!(matches!(refusal(), StoreError::KeyExposed { .. }));
    }
    assert!(refusal().hint().unwrap().contains(&format!("chmod 600 {}", key.display())));
    chmod(&key, 0o600);

    let evidence = home.path().join("evidence");
    chmod(&evidence, 0o770);
    assert!(refusal().to_string().ends_with("can be written by others (mode 0770)"));
    assert_eq!(refusal().hint().unwrap(), format!("chmod 700 {}", evidence.display()));
}

#[test]
fn a_chain_is_never_continued_with_another_key() {
    let home = home();
    run(&store(home.path()), "a");
    let (key, public) = (home.path().join("keys/evidence.key"), home.path().join("keys/evidence.pub"));
    let refusal = || Store::open(home.path(), Durability::Each).unwrap_err();

    fs::write(&key, [9; 32]).unwrap();
    assert!(matches!(refusal(), StoreError::KeyMismatch { .. }));
    fs::remove_file(&public).unwrap();
    assert!(words(&refusal()).contains("seal 3: signed with another key"), "{}", words(&refusal()));
    fs::write(&key, b"nonsense").unwrap();
    assert!(matches!(refusal(), StoreError::KeyInvalid { .. }));
    fs::remove_file(&key).unwrap();
    assert!(matches!(refusal(), StoreError::KeyMissing { .. }));
    assert!(refusal().hint().unwrap().contains("backup"));
    assert!(!key.exists());
}

#[test]
fn a_raw_key_of_32_bytes_is_accepted() {
    let home = home();
    fs::create_dir_all(home.path().join("keys")).unwrap();
    let key = home.path().join("keys/evidence.key");
    fs::write(&key, [9; 32]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    run(&store(home.path()), "a");
    assert_eq!(Reader::open(home.path()).unwrap().verify(None, None).unwrap().records, 2);
}

#[test]
fn a_file_in_the_way_is_named() {
    let home = home();
    fs::write(home.path().join("evidence"), "").unwrap();
    let error = Store::open(home.path(), Durability::Each).unwrap_err();
    assert!(matches!(error, StoreError::NotADirectory { .. }) && error.hint().is_some());
    let error = Store::open(&home.path().join("evidence"), Durability::Each).unwrap_err();
    assert!(matches!(error, StoreError::NotADirectory { .. }), "{error}");
}

#[test]
fn a_store_that_is_cut_or_replaced_while_in_use_takes_no_more_records() {
    let home = home();
    let store = store(home.path());
    run(&store, "a");
    let path = chain_path(home.path());
    let content = fs::read(&path).unwrap();
    fs::write(&path, &content[..content.len() / 2]).unwrap();
    assert!(matches!(append(&store, Event::Opened, "b"), Err(StoreError::Cut { .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(append(&store, Event::Opened, "b"), Err(StoreError::Replaced { .. })));
    fs::write(&path, &content).unwrap();
    assert!(matches!(append(&store, Event::Opened, "b"), Err(StoreError::Replaced { .. })));
    assert_eq!(fs::read(&path).unwrap(), content);
}
