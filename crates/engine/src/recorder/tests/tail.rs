//! What stands after the last newline: repaired if a kill can have left it there, otherwise left alone.

use std::io::Write;

use super::*;

/// A chain of three records, and where its last line begins.
fn three_records(home: &Path) -> (Vec<u8>, usize) {
    let store = store(home);
    run(&store, "a");
    append(&store, Event::Opened, "b").unwrap();
    let chain = fs::read(chain_path(home)).unwrap();
    let last = chain[..chain.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
    (chain, last)
}

#[test]
fn a_torn_last_line_of_any_length_is_removed_and_the_chain_goes_on() {
    let home = home();
    let (chain, last) = three_records(home.path());
    for cut in last + 1..chain.len() - 1 {
        fs::write(chain_path(home.path()), &chain[..cut]).unwrap();
        let torn = Reader::open(home.path()).unwrap().verify(None, None).unwrap_err();
        assert!(words(&torn).ends_with("record 3: the line is incomplete"), "{torn}");
        assert!(torn.hint().unwrap().contains("the next run removes it"));
        let store = store(home.path());
        assert_eq!(append(&store, Event::Refused, "c").unwrap().seq, 3, "cut at {cut}");
        assert_eq!(store.verify(None, None).unwrap().records, 3);
    }
}

#[test]
fn a_first_line_torn_at_any_length_is_removed() {
    let home = home();
    let (chain, _) = three_records(home.path());
    let first = chain.iter().position(|b| *b == b'\n').unwrap();
    for cut in (1..first).step_by(7) {
        fs::write(chain_path(home.path()), &chain[..cut]).unwrap();
        let store = store(home.path());
        assert_eq!(append(&store, Event::Refused, "c").unwrap().seq, 1);
        assert_eq!(store.verify(None, None).unwrap().records, 1);
    }
}

#[test]
fn a_record_that_lacks_only_its_newline_is_completed() {
    let home = home();
    let (chain, _) = three_records(home.path());
    fs::write(chain_path(home.path()), &chain[..chain.len() - 1]).unwrap();
    let error = words(&Reader::open(home.path()).unwrap().head().unwrap_err());
    assert!(error.ends_with("record 3: the line has no newline"), "{error}");
    let store = store(home.path());
    assert_eq!(fs::read(chain_path(home.path())).unwrap(), chain);
    append(&store, Event::Closed, "b").unwrap();
    assert_eq!(store.verify(None, None).unwrap().records, 4);
}

#[test]
fn a_tail_torn_by_another_writer_is_repaired_by_a_store_already_open() {
    let home = home();
    let store = store(home.path());
    run(&store, "a");
    let line = fs::read(chain_path(home.path())).unwrap();
    let mut other = fs::OpenOptions::new().append(true).open(chain_path(home.path())).unwrap();
    other.write_all(&line[..100]).unwrap();
    run(&store, "b");
    assert_eq!(store.verify(None, None).unwrap().records, 4);
}

#[test]
fn a_changed_last_line_or_newline_is_never_repaired_away() {
    let home = home();
    let (chain, last) = three_records(home.path());
    let path = chain_path(home.path());
    for at in last..chain.len() {
        for flip in [0x01, 0x02, 0x08, 0x20, 0x80, 0xff] {
            let mut bad = chain.clone();
            bad[at] ^= flip;
            fs::write(&path, &bad).unwrap();
            let error = Store::open(home.path(), Durability::OnExit).expect_err("damage must be refused");
            assert!(words(&error).contains("is damaged: record 3"), "byte {at}: {}", words(&error));
            assert!(error.hint().unwrap().contains("evidence verify"));
            assert_eq!(fs::read(&path).unwrap(), bad, "nothing is written to a damaged chain");
        }
    }
}

#[test]
fn a_whole_record_that_does_not_continue_the_chain_is_not_completed() {
    let home = home();
    let (chain, _) = three_records(home.path());
    let first = chain.iter().position(|b| *b == b'\n').unwrap();
    let bad = [&chain[..], &chain[..first]].concat();
    fs::write(chain_path(home.path()), &bad).unwrap();
    let error = Store::open(home.path(), Durability::OnExit).unwrap_err();
    assert!(words(&error).contains("record 4"), "{}", words(&error));
    assert_eq!(fs::read(chain_path(home.path())).unwrap(), bad);
}

#[test]
fn zeros_garbage_and_endless_lines_are_refused_and_left_alone() {
    let home = home();
    let (chain, _) = three_records(home.path());
    for extra in
        [vec![0; 100], b" ".to_vec(), b"\n".to_vec(), b"{}\n".to_vec(), vec![b'x'; 600_000], vec![b'\n'; 3]]
    {
        let bad = [&chain[..], &extra].concat();
        fs::write(chain_path(home.path()), &bad).unwrap();
        let error = Store::open(home.path(), Durability::OnExit).unwrap_err();
        assert!(words(&error).contains("is damaged: record 4"), "{}", words(&error));
        assert_eq!(fs::read(chain_path(home.path())).unwrap(), bad);
    }
}

#[test]
fn the_last_line_is_found_behind_records_of_any_size() {
    let home = home();
    let store = store(home.path());
    for (n, size) in [10, 9_000, 60_000, 90_000, 10, 90_000].into_iter().enumerate() {
        let body = json!({"text": "x".repeat(size)});
        let receipt = store.append(Event::Refused, &format!("r{n}"), "run-1", subjects(), body).unwrap();
        assert_eq!(Reader::open(home.path()).unwrap().head().unwrap(), receipt);
        assert_eq!(super::store(home.path()).head().unwrap(), receipt);
    }
    let error = store.append(Event::Refused, "r9", "run-1", subjects(), json!({"text": "x".repeat(100_000)}));
    assert!(matches!(error, Err(StoreError::Entry(_))));
    store.verify(None, None).unwrap();
}
