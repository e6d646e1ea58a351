//! When records are sealed, by whom, and what is never sealed.

use std::io::Write;
use std::time::{Duration, Instant};

use casemate_core::evidence::{Draft, End, Line, SecretKey, Subject, Timestamp};

use super::*;

/// What a chain looks like: `r` for a record, `S` for a seal.
fn shape(home: &Path) -> String {
    let kind = |line: &Vec<u8>| match Line::parse(line).unwrap() {
        Line::Record(_) => 'r',
        Line::Seal(_) => 'S',
    };
    lines(home).iter().map(kind).collect()
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !check() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn refuse(store: &Store, range: std::ops::Range<usize>) {
    for n in range {
        append(store, Event::Refused, &format!("r{n}")).unwrap();
    }
}

#[test]
fn each_record_is_sealed_in_the_write_that_appends_it() {
    let home = home();
    let store = Store::open(home.path(), Durability::Each).unwrap();
    append(&store, Event::Opened, "a").unwrap();
    assert_eq!(shape(home.path()), "rS");
    append(&store, Event::Closed, "a").unwrap();
    assert_eq!(shape(home.path()), "rSrS");
    drop(store);
    assert_eq!(shape(home.path()), "rSrS", "there is nothing left to seal");
}

#[test]
fn a_batch_is_sealed_in_the_background() {
    let home = home();
    let store = Store::open(home.path(), Durability::Batch).unwrap();
    refuse(&store, 0..3);
    eventually("the background thread never sealed", || store.verify(None, None).unwrap().unsealed == 0);
    let sealed = shape(home.path());
    assert!(sealed.ends_with('S') && sealed.len() < 6, "{sealed}");
    drop(store);
    assert_eq!(shape(home.path()), sealed);
}

#[test]
fn on_exit_the_seal_comes_with_the_sync_or_with_the_end_of_the_store() {
    let home = home();
    let store = store(home.path());
    run(&store, "a");
    assert_eq!(shape(home.path()), "rr");
    store.sync().unwrap();
    assert_eq!(shape(home.path()), "rrS");
    store.sync().unwrap();
    assert_eq!(shape(home.path()), "rrS");
    run(&store, "b");
    drop(store);
    assert_eq!(shape(home.path()), "rrSrrS");
}

#[test]
fn the_256th_record_without_a_seal_brings_one_along() {
    let home = home();
    let store = store(home.path());
    refuse(&store, 0..255);
    assert_eq!(store.verify(None, None).unwrap().unsealed, 255);
    refuse(&store, 255..257);
    let report = store.verify(None, None).unwrap();
    assert_eq!((report.records, report.seals, report.unsealed), (257, 1, 1));
    assert_eq!(shape(home.path()), format!("{}Sr", "r".repeat(256)));
    assert!(store.find_sealed("r255").unwrap()[0].1.is_some());
    assert_eq!(store.find_sealed("r256").unwrap()[0].1, None);
}

#[test]
fn whoever_seals_seals_the_records_of_everybody() {
    let home = home();
    let (one, other) = (store(home.path()), store(home.path()));
    append(&one, Event::Opened, "a").unwrap();
    append(&other, Event::Opened, "b").unwrap();
    append(&one, Event::Closed, "a").unwrap();
    one.sync().unwrap();
    assert_eq!(shape(home.path()), "rrrS");
    append(&other, Event::Closed, "b").unwrap();
    drop(one);
    assert_eq!(shape(home.path()), "rrrSr", "what is another's, and not known, is left to it");
    drop(other);
    assert_eq!(shape(home.path()), "rrrSrS");
    Reader::open(home.path()).unwrap().verify(None, None).unwrap();
}

#[test]
fn a_writer_catches_up_with_many_seals_of_another() {
    let home = home();
    let (idle, busy) = (store(home.path()), store(home.path()));
    refuse(&idle, 0..1);
    refuse(&busy, 1..600);
    refuse(&idle, 600..601);
    assert_eq!(shape(home.path()), format!("{0}S{0}S{1}", "r".repeat(256), "r".repeat(89)));
    idle.sync().unwrap();
    assert_eq!(idle.verify(None, None).unwrap().unsealed, 0);
    drop(busy);
    assert!(shape(home.path()).ends_with("rS"), "the other one found nothing left to seal");
}

#[test]
fn what_a_killed_process_left_is_sealed_by_the_next() {
    if let Some(home) = handed_down() {
        let store = store(&home);
        append(&store, Event::Opened, "a").unwrap();
        fs::write(home.join("ready"), "").unwrap();
        thread::sleep(Duration::from_secs(60));
        return;
    }
    for durability in [Durability::OnExit, Durability::Batch, Durability::Each] {
        let home = home();
        let mut child = again("seals::what_a_killed_process_left_is_sealed_by_the_next", home.path());
        eventually("the child never got ready", || home.path().join("ready").exists());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shape(home.path()), "r");
        let report = Reader::open(home.path()).unwrap().verify(None, None).unwrap();
        assert_eq!((report.records, report.unsealed, &report.open[..]), (1, 1, &["a".to_owned()][..]));

        // It has nothing of its own to say, and seals what it finds nevertheless.
        let store = Store::open(home.path(), durability).unwrap();
        let found = store.find_sealed("a").unwrap();
        drop(store);
        assert_eq!(shape(home.path()), "rS", "{durability}");
        assert_eq!(found.len(), 1);
        assert_eq!(Reader::open(home.path()).unwrap().verify(None, None).unwrap().unsealed, 0);
    }
}

#[test]
fn a_full_batch_of_a_killed_process_is_sealed_before_the_next_record() {
    let home = home();
    {
        let store = store(home.path());
        refuse(&store, 0..256);
    }
    // Killed between the last record and its seal.
    fs::write(chain_path(home.path()), lines(home.path())[..256].concat()).unwrap();
    let store = store(home.path());
    refuse(&store, 256..257);
    assert_eq!(shape(home.path()), format!("{}Sr", "r".repeat(256)));
    store.verify(None, None).unwrap();
}

/// A line with the right number and link, by somebody who can write to the file and lacks the key.
fn forged_line(home: &Path) -> Vec<u8> {
    let (stranger, mine) =
        (SecretKey::from_seed(&[66; 32]), fs::read(home.join("keys/evidence.key")).unwrap());
    let mine = SecretKey::from_file_bytes(&mine).unwrap();
    let mut end = End::default();
    lines(home).iter().for_each(|line| end.follow(line, &mine).unwrap());
    let subjects = [Subject { name: "request".to_owned(), sha256: [1; 32] }];
    let body = Body::new(&json!({"what": "never happened"})).unwrap();
    let draft = Draft::new(Event::Refused, "forged", "run-1", Durability::OnExit, &subjects, &body).unwrap();
    end.link(draft, Timestamp::from_unix_micros(0), &stranger).unwrap().0
}

#[test]
fn a_forged_record_is_named_and_never_sealed() {
    let home = home();
    let live = store(home.path());
    append(&live, Event::Opened, "a").unwrap();
    let forged = forged_line(home.path());
    let path = chain_path(home.path());
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&forged).unwrap();
    let bad = fs::read(&path).unwrap();
    let expected = "record 2 (id forged): its mac is not from the holder of the signing key";

    // To whoever lacks the key it is one of two records that nothing proves.
    assert_eq!(live.verify(None, None).unwrap().unsealed, 2);
    for error in [
        append(&live, Event::Closed, "a").unwrap_err(),
        live.sync().unwrap_err(),
        Store::open(home.path(), Durability::OnExit).unwrap_err(),
    ] {
        assert!(words(&error).ends_with(expected), "{}", words(&error));
    }
    drop(live);
    assert_eq!(fs::read(&path).unwrap(), bad, "it is left as it was found");
}

#[test]
fn a_seal_that_was_removed_or_replaced_is_noticed() {
    let home = home();
    let store = store(home.path());
    run(&store, "a");
    store.sync().unwrap();
    run(&store, "b");
    store.sync().unwrap();
    let good = lines(home.path());
    let put = |lines: &[&[Vec<u8>]]| fs::write(chain_path(home.path()), lines.concat().concat()).unwrap();
    let open = || words(&Store::open(home.path(), Durability::OnExit).unwrap_err());
    let verify = || words(&store.verify(None, None).unwrap_err());
    // Lines 1 2 S 4 5 S, without the first seal.
    put(&[&good[..2], &good[3..]]);
    assert!(verify().contains("record 3 (id b): says it is line 4"));
    // Neither of the seals, which nobody continues.
    put(&[&good[..2], &good[3..5]]);
    assert!(open().contains("record 3 (id b): says it is line 4"), "{}", open());
    // The seal of another batch in place of the last.
    put(&[&good[..5], &good[2..3]]);
    assert!(verify().contains("seal 6: says it is line 3"));
}

#[test]
fn a_chain_moved_away_is_noticed_by_the_next_seal() {
    let home = home();
    let store = store(home.path());
    run(&store, "a");
    fs::rename(chain_path(home.path()), home.path().join("elsewhere")).unwrap();
    assert!(matches!(store.sync(), Err(StoreError::Replaced { .. })));
    drop(store);
    assert!(!chain_path(home.path()).exists(), "nothing is written in its place");
}

#[test]
fn one_execution_is_exported_with_the_seals_that_name_it() {
    let home = home();
    let store = store(home.path());
    append(&store, Event::Opened, "a").unwrap();
    run(&store, "b");
    store.sync().unwrap();
    run(&store, "c");
    append(&store, Event::Closed, "a").unwrap();
    let exported = |id: &str| {
        let mut out = Vec::new();
        store.export_one(id, &mut out).unwrap();
        out
    };
    let all = lines(home.path());
    assert_eq!(exported("a"), [&all[0][..], &all[3], &all[6]].concat(), "the last one has no seal yet");
    store.sync().unwrap();
    let all = lines(home.path());
    assert_eq!(exported("a"), [&all[0][..], &all[3], &all[6], &all[7]].concat());
    assert_eq!(exported("b"), [&all[1][..], &all[2], &all[3]].concat());
    assert!(exported("nobody").is_empty());
    let sealed = store.find_sealed("a").unwrap();
    let numbers: Vec<_> =
        sealed.iter().map(|(record, seal)| (record.seq, seal.map(|seal| seal.seq))).collect();
    assert_eq!(numbers, [(1, Some(4)), (7, Some(8))]);
}
