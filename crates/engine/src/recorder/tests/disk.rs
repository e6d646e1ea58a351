//! Disks that are full or read-only: real ones, small, in a mount namespace of the test's own.

use std::io::Write;

use super::*;

/// Runs this test again with a 512 KiB tmpfs for a home; there it returns the home.
fn on_a_small_disk(test: &str) -> Option<PathBuf> {
    if let Some(home) = handed_down() {
        return Some(home);
    }
    let home = home();
    let root = rustix::process::geteuid().is_root();
    let script = "mount -t tmpfs -o size=512k casemate-test \"$1\" && exec \"$2\" \"$3\" --exact --nocapture";
    let output = Command::new("unshare")
        .args(if root { &["-m"][..] } else { &["-r", "-m"][..] })
        .args(["sh", "-c", script, "sh"])
        .args([home.path(), &std::env::current_exe().unwrap()])
        .arg(format!("recorder::tests::disk::{test}"))
        .env("CASEMATE_TEST_HOME", home.path())
        .output()
        .expect("unshare(1) from util-linux");
    let text = [output.stdout, output.stderr].map(|out| String::from_utf8_lossy(&out).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    None
}

fn fill_up(home: &Path) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(home.join("filler")).unwrap();
    for size in [4096, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
}

fn make_read_only(home: &Path) {
    let done = Command::new("mount").args(["-o", "remount,bind,ro"]).arg(home).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_full_disk_refuses_the_run_at_the_beginning_and_the_chain_stays_valid() {
    let Some(home) =
        on_a_small_disk("a_full_disk_refuses_the_run_at_the_beginning_and_the_chain_stays_valid")
    else {
        return;
    };
    let store = store(&home);
    let error = (0..1000).find_map(|n| {
        let opened = append(&store, Event::Opened, &format!("x{n}"));
        opened.and_then(|_| append(&store, Event::Closed, &format!("x{n}")).map_err(|e| panic!("{e}"))).err()
    });
    let error = error.expect("512 KiB do not hold a thousand runs");
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("free some space"));
    store.sync().unwrap();
    let report = store.verify(None, None).unwrap();
    assert!(report.open.is_empty() && report.unsealed == 0, "{report:?}");
}

#[test]
fn a_disk_that_fills_up_during_runs_still_takes_their_closing_records_and_the_seals() {
    let Some(home) =
        on_a_small_disk("a_disk_that_fills_up_during_runs_still_takes_their_closing_records_and_the_seals")
    else {
        return;
    };
    for durability in [Durability::OnExit, Durability::Batch, Durability::Each] {
        let home = home.join(durability.name());
        let store = Store::open(&home, durability).unwrap();
        append(&store, Event::Opened, "a").unwrap();
        append(&store, Event::Opened, "b").unwrap();
        fill_up(&home);
        // A disk this full still takes refusals only as long as they leave the room alone.
        while append(&store, Event::Refused, &format!("r{}", store.head().unwrap().seq)).is_ok() {}
        assert!(matches!(append(&store, Event::Opened, "c"), Err(StoreError::Full { .. })));
        for id in ["a", "b"] {
            append_with(&store, Event::Closed, id, &json!({"text": "x".repeat(130_000)})).unwrap();
        }
        store.sync().unwrap();
        let report = store.verify(None, None).unwrap();
        assert!(report.open.is_empty() && report.unsealed == 0, "{report:?}");
        drop(store);
        fs::remove_dir_all(home).unwrap();
    }
}

#[test]
fn seals_that_find_no_room_are_made_up_for_when_there_is_some() {
    let Some(home) = on_a_small_disk("seals_that_find_no_room_are_made_up_for_when_there_is_some") else {
        return;
    };
    let store = store(&home);
    let path = chain_path(&home);
    let len = || fs::metadata(&path).unwrap().len();
    let refuse = |id: &str, text: u64| {
        let body = json!({"text": "x".repeat(text as usize)});
        append_with(&store, Event::Refused, id, &body).unwrap();
    };
    refuse("r1", 0);
    // Leaves less of the last page than a seal takes.
    refuse("r2", 8192 - 2 * len() - 100);
    assert_eq!(len(), 8192 - 100);
    // Give the reserved room back, as a file system without reservations would.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len()).unwrap();
    fill_up(&home);
    assert!(matches!(store.sync(), Err(StoreError::Full { action: "append to", .. })));
    let report = store.verify(None, None).unwrap();
    assert_eq!((report.records, report.unsealed), (2, 2), "nothing is lost, and nothing half written");
    fs::remove_file(home.join("filler")).unwrap();
    store.sync().unwrap();
    assert_eq!(store.verify(None, None).unwrap().unsealed, 0);
}

#[test]
fn an_append_that_finds_no_room_leaves_nothing_behind() {
    let Some(home) = on_a_small_disk("an_append_that_finds_no_room_leaves_nothing_behind") else {
        return;
    };
    let store = store(&home);
    append(&store, Event::Opened, "a").unwrap();
    // Give the reserved room back, as a file system without reservations would.
    let path = chain_path(&home);
    let before = fs::read(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(before.len() as u64).unwrap();
    fill_up(&home);
    let close = || append_with(&store, Event::Closed, "a", &json!({"text": "x".repeat(50_000)}));
    let error = close().unwrap_err();
    assert!(matches!(error, StoreError::Full { action: "append to", .. }), "{error:?}");
    assert_eq!(fs::read(&path).unwrap(), before);
    fs::remove_file(home.join("filler")).unwrap();
    close().unwrap();
    assert_eq!(store.verify(None, None).unwrap().records, 2);
}

#[test]
fn a_read_only_store_refuses_to_append_but_can_be_read() {
    let Some(home) = on_a_small_disk("a_read_only_store_refuses_to_append_but_can_be_read") else {
        return;
    };
    run(&store(&home), "a");
    make_read_only(&home);
    let error = Store::open(&home, Durability::Each).unwrap_err();
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("CASEMATE_HOME"));
    let reader = Reader::open(&home).unwrap();
    assert_eq!((reader.verify(None, None).unwrap().records, reader.head().unwrap().seq), (2, 3));
    // Nothing there yet, and nothing can be made.
    let error = Store::open(&home.join("elsewhere"), Durability::Each).unwrap_err();
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error:?}");
}
