//! What stands after the last newline: repaired if a kill can have left it there, otherwise left alone.

use std::io::Write;

use super::*;

/// Three records, as a writer leaves them that is killed before it can seal them.
fn unsealed(home: &Path) -> Vec<Vec<u8>> {
    let store = store(home);
    run(&store, "a");
    append(&store, Event::Opened, "b").unwrap();
    lines(home)
}

/// Two records and their seal.
fn sealed(home: &Path) -> Vec<Vec<u8>> {
    run(&store(home), "a");
    lines(home)
}

type Chain = fn(&Path) -> Vec<Vec<u8>>;

/// Chains of three lines, ending with a record and with a seal.
const CHAINS: [Chain; 2] = [unsealed, sealed];

fn put(home: &Path, bytes: &[u8]) {
    fs::write(chain_path(home), bytes).unwrap();
}

#[test]
fn a_torn_last_line_of_any_length_is_removed_and_the_chain_goes_on() {
    for chain in CHAINS {
        let home = home();
        let lines = chain(home.path());
        let (before, last) = (lines[..2].concat(), &lines[2]);
        // Every length is tried in `core`; here each one costs a flush to the disk.
        for cut in (1..last.len() - 1).step_by(9).chain([last.len() - 2]) {
            put(home.path(), &[&before, &last[..cut]].concat());
            let torn = Reader::open(home.path()).unwrap().verify(None, None).unwrap_err();
            assert!(words(&torn).ends_with(" 3: the line is incomplete"), "{}", words(&torn));
            assert!(torn.hint().unwrap().contains("the next run removes it"));
            let store = store(home.path());
            assert_eq!(append(&store, Event::Refused, "c").unwrap().seq, 3, "cut at {cut}");
            assert_eq!(store.verify(None, None).unwrap().records, 3);
        }
    }
}

#[test]
fn a_first_line_torn_at_any_length_is_removed() {
    let home = home();
    let first = unsealed(home.path()).swap_remove(0);
    for cut in (1..first.len() - 1).step_by(7) {
        put(home.path(), &first[..cut]);
        let store = store(home.path());
        assert_eq!(append(&store, Event::Refused, "c").unwrap().seq, 1);
        assert_eq!(store.verify(None, None).unwrap().records, 1);
    }
}

#[test]
fn a_line_that_lacks_only_its_newline_is_completed() {
    for chain in CHAINS {
        let home = home();
        let chain = chain(home.path()).concat();
        put(home.path(), &chain[..chain.len() - 1]);
        let error = words(&Reader::open(home.path()).unwrap().head().unwrap_err());
        assert!(error.ends_with(" 3: the line has no newline"), "{error}");
        let store = store(home.path());
        assert_eq!(fs::read(chain_path(home.path())).unwrap(), chain);
        assert_eq!(append(&store, Event::Refused, "c").unwrap().seq, 4);
        store.verify(None, None).unwrap();
    }
}

#[test]
fn a_tail_torn_by_another_writer_is_repaired_by_a_store_already_open() {
    let home = home();
    let store = store(home.path());
    run(&store, "a");
    let line = lines(home.path()).swap_remove(0);
    let mut other = fs::OpenOptions::new().append(true).open(chain_path(home.path())).unwrap();
    other.write_all(&line[..100]).unwrap();
    run(&store, "b");
    assert_eq!(store.verify(None, None).unwrap().records, 4);
}

#[test]
fn a_changed_last_line_or_newline_is_never_repaired_away() {
    for chain in CHAINS {
        let home = home();
        let lines = chain(home.path());
        let (chain, last) = (lines.concat(), lines[..2].concat().len());
        for at in last..chain.len() {
            for flip in [0x01, 0x02, 0x08, 0x20, 0x80, 0xff] {
                let mut bad = chain.clone();
                bad[at] ^= flip;
                put(home.path(), &bad);
                let error = Store::open(home.path(), Durability::OnExit).expect_err("damage must be refused");
                let named = ["record 3", "seal 3", "line 3"].map(|name| words(&error).contains(name));
                assert!(named.contains(&true), "byte {at}: {}", words(&error));
                assert!(error.hint().unwrap().contains("evidence verify"));
                assert_eq!(fs::read(chain_path(home.path())).unwrap(), bad, "nothing is written to damage");
            }
        }
    }
}

#[test]
fn a_whole_line_that_does_not_continue_the_chain_is_not_completed() {
    for chain in CHAINS {
        let home = home();
        let lines = chain(home.path());
        let bad = [&lines.concat()[..], lines[0].trim_ascii_end()].concat();
        put(home.path(), &bad);
        let error = Store::open(home.path(), Durability::OnExit).unwrap_err();
        assert!(words(&error).contains("record 4"), "{}", words(&error));
        assert_eq!(fs::read(chain_path(home.path())).unwrap(), bad);
    }
}

#[test]
fn zeros_garbage_and_endless_lines_are_refused_and_left_alone() {
    for chain in CHAINS {
        let home = home();
        let chain = chain(home.path()).concat();
        for extra in [
            vec![0; 100],
            b" ".to_vec(),
            b"\n".to_vec(),
            b"{}\n".to_vec(),
            vec![b'x'; 600_000],
            vec![b'\n'; 3],
        ] {
            let bad = [&chain[..], &extra].concat();
            put(home.path(), &bad);
            let error = Store::open(home.path(), Durability::OnExit).unwrap_err();
            assert!(words(&error).contains("is damaged: line 4"), "{}", words(&error));
            assert_eq!(fs::read(chain_path(home.path())).unwrap(), bad);
        }
    }
}

#[test]
fn the_end_is_found_behind_records_of_any_size() {
    let home = home();
    let store = store(home.path());
    for (n, size) in [10, 9_000, 60_000, 90_000, 10, 130_000].into_iter().enumerate() {
        let body = json!({"text": "x".repeat(size)});
        let receipt = append_with(&store, Event::Refused, &format!("r{n}"), &body).unwrap();
        assert_eq!(Reader::open(home.path()).unwrap().head().unwrap(), receipt);
    }
    // Another writer has to find all of them, since none is sealed.
    super::store(home.path()).sync().unwrap();
    let report = store.verify(None, None).unwrap();
    assert_eq!((report.records, report.seals, report.unsealed), (6, 1, 0));
    let error = append_with(&store, Event::Refused, "r9", &json!({"text": "x".repeat(131_000)}));
    assert!(matches!(error, Err(StoreError::Entry(_))));
    append(&store, Event::Refused, "r9").unwrap();
    store.verify(None, None).unwrap();
}
