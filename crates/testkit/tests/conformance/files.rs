//! Files in before, files out after.

use casemate_testkit::{Entry, FetchedEntry, LimitKind, Ran, Rig, Stack, can_enforce, cell};

use crate::{refused, succeeded};

pub(crate) async fn files_go_in_as_they_are(rig: &Rig, stack: &Stack) {
    let every: Vec<u8> = (0..=255u8).cycle().take(300_000).collect();
    let look =
        "stat -c '%a %s %U' file script \"$TMPDIR/other\" empty | tr '\\n' ' '; cmp file \"$TMPDIR/other\"";
    let ran = cell(rig, stack)
        .file("/work/file", 0o640, &every)
        .file("/work/script", 0o755, b"#!/bin/sh\n")
        .file("/tmp/other", 0o600, &every)
        .file("/work/empty", 0o444, b"")
        .shell(look)
        .run()
        .await;
    succeeded(&ran);
    let modes: Vec<String> = ran.out().split_whitespace().map(str::to_owned).collect();
    let expected = [("640", "300000"), ("755", "10"), ("600", "300000"), ("444", "0")];
    for (seen, (mode, size)) in modes.chunks(3).zip(expected) {
        assert_eq!((seen[0].as_str(), seen[1].as_str()), (mode, size), "{modes:?}");
    }
}

pub(crate) async fn trees_go_in_as_they_are(rig: &Rig, stack: &Stack) {
    let members: &[(&str, u32, Option<&[u8]>)] = &[
        ("sub", 0o750, None),
        ("sub/deeper", 0o755, None),
        ("sub/deeper/file with spaces", 0o600, Some(b"content")),
        ("ü\n", 0o644, Some(b"odd name")),
    ];
    let look =
        "cat 'tree/sub/deeper/file with spaces'; cat tree/ü*; stat -c %a tree tree/sub; ls tree | wc -l";
    let ran = cell(rig, stack).tree("/work/tree", 0o755, members).shell(look).run().await;
    succeeded(&ran);
    assert!(ran.out().starts_with("contentodd name755\n750\n"), "{}", ran.story());
}

pub(crate) async fn no_set_id_bit_goes_in(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack)
        .file("/work/setuid", 0o6755, b"")
        .tree("/work/dir", 0o7777, &[])
        .shell("stat -c %a setuid dir")
        .run()
        .await;
    succeeded(&ran);
    let modes: Vec<u32> =
        ran.out().lines().map(|mode| u32::from_str_radix(mode, 8).expect("a mode")).collect();
    assert_eq!(modes.len(), 2);
    assert!(modes.iter().all(|mode| mode & 0o7000 == 0), "{modes:?}");
}

pub(crate) async fn too_much_does_not_go_in(rig: &Rig, stack: &Stack) {
    let large = vec![7; 3 << 20];
    let ran = cell(rig, stack).file("/work/large", 0o644, &large).disk("1M").run().await;
    refused(&ran, if can_enforce(stack, LimitKind::Disk) { "does not fit" } else { "disk" });
}

fn file<'r>(ran: &'r Ran, path: &str) -> (&'r [u8], u32) {
    let named = |entry: &&FetchedEntry| entry.path == path && matches!(entry.entry, Entry::File { .. });
    let entry = ran.files.entries.iter().find(named);
    match entry.map(|entry| (entry, entry.entry)) {
        Some((entry, Entry::File { mode, size })) => {
            assert_eq!(size, entry.bytes.len() as u64, "{path}");
            (&entry.bytes, mode)
        }
        other => panic!("{path}: {other:?} in {:?}", ran.files),
    }
}

pub(crate) async fn files_and_trees_come_out(rig: &Rig, stack: &Stack) {
    // By descriptor: by name it is refused behind the process wall without root.
    let make = "umask 0; mkdir -p tree/sub tree/empty; printf hello > tree/sub/hello; : > tree/nothing
        head -c 200000 /dev/zero > single
        fchmod() { python3 -c 'import os, sys; os.fchmod(0, int(sys.argv[1], 8))' $1 < $2; }
        fchmod 4755 tree/sub/hello; fchmod 600 single";
    let ran = cell(rig, stack).shell(make).out("/work/tree").out("/work/single").run().await;
    succeeded(&ran);
    assert_eq!(file(&ran, "sub/hello"), (&b"hello"[..], 0o755), "and no set-uid bit");
    assert_eq!(file(&ran, "nothing").0, b"");
    let (single, mode) = file(&ran, "");
    assert_eq!((single.len(), mode), (200_000, 0o600));
    let directories: Vec<&str> = ran
        .files
        .entries
        .iter()
        .filter(|entry| matches!(entry.entry, Entry::Directory { .. }))
        .map(|entry| entry.path.as_str())
        .collect();
    assert_eq!(directories.len(), 3, "{directories:?}");
    assert!(directories.contains(&"empty") && directories.contains(&"sub") && directories.contains(&""));
    assert_eq!(ran.files.entries.iter().map(|entry| entry.index).max(), Some(1));
    assert!(ran.files.skipped.is_empty() && ran.outcome.denied.is_empty());
}

pub(crate) async fn what_is_missing_is_said(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack).command(["true"]).out("/work/never-made").run().await;
    succeeded(&ran);
    assert!(ran.outcome.denied.iter().any(|what| what.contains("/work/never-made")), "{}", ran.story());
    assert_eq!(ran.files.skipped.len(), 1, "{:?}", ran.files);
    assert!(ran.files.entries.is_empty());
}

pub(crate) async fn only_files_and_directories_come_out(rig: &Rig, stack: &Stack) {
    let make =
        "mkdir out; mkfifo out/fifo; ln -s /etc/passwd out/link; ln -s . out/dir-link; echo kept > out/kept
        python3 -c 'import os, stat; os.mknod(\"out/socket\", stat.S_IFSOCK | 0o600)'";
    let ran = cell(rig, stack).shell(make).out("/work/out").run().await;
    let mut skipped: Vec<&str> = ran.files.skipped.iter().map(|(_, path, _)| path.as_str()).collect();
    skipped.sort_unstable();
    let mut expected = vec!["dir-link", "fifo", "link"];
    // A filter may deny the socket in the first place.
    if ran.code() == Some(0) {
        expected.push("socket");
    }
    assert_eq!(skipped, expected, "{}", ran.story());
    assert!(ran.files.skipped.iter().all(|(_, _, why)| !why.is_empty()));
    assert_eq!(ran.outcome.denied.len(), skipped.len(), "{:?}", ran.outcome.denied);
    assert_eq!(file(&ran, "kept").0, b"kept\n");
}

pub(crate) async fn too_much_does_not_come_out(rig: &Rig, stack: &Stack) {
    // Each hole is within the limit of one file; together they claim more than the disk could hold.
    let holes = "mkdir holes; truncate -s 40M holes/a holes/b holes/c";
    let ran = cell(rig, stack).shell(holes).out("/work/holes").run().await;
    assert_eq!(ran.outcome.status.as_str(), "failed", "{}", ran.story());
    assert!(ran.outcome.status.describe().contains("larger"), "{}", ran.story());
    let came: usize = ran.files.entries.iter().map(|entry| entry.bytes.len()).sum();
    assert!(came <= 64 << 20, "{came} bytes came out");
    let deep = "d=out; mkdir $d; i=0; while [ $i -lt 70 ]; do d=$d/d; mkdir $d; i=$((i+1)); done";
    let ran = cell(rig, stack).shell(deep).out("/work/out").run().await;
    assert_eq!(ran.outcome.status.as_str(), "failed", "{}", ran.story());
}
