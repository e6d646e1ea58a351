//! Files in before, files out after.

use casemate_testkit::{Entry, FetchedEntry, LimitKind, Ran, Rig, Stack, cell};

use crate::{is_wasm, refused, succeeded};

/// Seen from inside; modes are told by what comes out again, since WASI has none.
pub(crate) async fn files_go_in_as_they_are(rig: &Rig, stack: &Stack) {
    let every: Vec<u8> = (0..=255u8).cycle().take(300_000).collect();
    let look = "import os
other = os.environ['TMPDIR'] + '/other'
print(*(os.path.getsize(path) for path in ('file', 'script', other, 'empty')))
assert open('file', 'rb').read() == open(other, 'rb').read() == bytes(range(256)) * 1171 + bytes(range(224))";
    let ran = cell(rig, stack)
        .file("/work/file", 0o640, &every)
        .file("/work/script", 0o755, b"#!/bin/sh\n")
        .file("/tmp/other", 0o600, &every)
        .file("/work/empty", 0o444, b"")
        .python(look, &[])
        .out("/work/file")
        .out("/work/script")
        .out("/tmp/other")
        .out("/work/empty")
        .run()
        .await;
    succeeded(&ran);
    assert_eq!(ran.out(), "300000 10 300000 0\n");
    assert_eq!(modes(&ran), [0o640, 0o755, 0o600, 0o444]);
}

fn modes(ran: &Ran) -> Vec<u32> {
    let mode = |entry: &FetchedEntry| match entry.entry {
        Entry::File { mode, .. } | Entry::Directory { mode } => mode,
    };
    ran.files.entries.iter().map(mode).collect()
}

pub(crate) async fn trees_go_in_as_they_are(rig: &Rig, stack: &Stack) {
    let members: &[(&str, u32, Option<&[u8]>)] = &[
        ("sub", 0o750, None),
        ("sub/deeper", 0o755, None),
        ("sub/deeper/file with spaces", 0o600, Some(b"content")),
        ("ü\n", 0o644, Some(b"odd name")),
    ];
    let look = "import os
print(open('tree/sub/deeper/file with spaces').read(), open('tree/ü\\n').read(), len(os.listdir('tree')))";
    let ran =
        cell(rig, stack).tree("/work/tree", 0o755, members).python(look, &[]).out("/work/tree").run().await;
    succeeded(&ran);
    assert_eq!(ran.out(), "content odd name 2\n");
    for (name, mode, _) in members {
        let found = ran.files.entries.iter().position(|entry| entry.path == *name).expect("it came back");
        assert_eq!(modes(&ran)[found], *mode, "{name}");
    }
}

pub(crate) async fn no_set_id_bit_goes_in(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack)
        .file("/work/setuid", 0o6755, b"")
        .tree("/work/dir", 0o7777, &[])
        .out("/work/setuid")
        .out("/work/dir")
        .run()
        .await;
    succeeded(&ran);
    assert!(modes(&ran).len() == 2 && modes(&ran).iter().all(|mode| mode & 0o7000 == 0), "{:?}", modes(&ran));
    if !is_wasm(stack) {
        let look = "import os; print(*(os.stat(path).st_mode & 0o7000 for path in ('setuid', 'dir')))";
        let given = cell(rig, stack).file("/work/setuid", 0o6755, b"").tree("/work/dir", 0o7777, &[]);
        assert_eq!(given.python(look, &[]).run().await.out(), "0 0\n");
    }
}

pub(crate) async fn too_much_does_not_go_in(rig: &Rig, stack: &Stack) {
    let large = vec![7; 3 << 20];
    let ran = cell(rig, stack).file("/work/large", 0o644, &large).disk("1M").run().await;
    refused(&ran, if rig.can_enforce(stack, LimitKind::Disk) { "does not fit" } else { "disk" });
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
    // By descriptor: by name it is refused behind the process wall without root. WASI has no modes.
    let make = "import os
os.makedirs('tree/sub'); os.makedirs('tree/empty')
def make(path, content, mode):
    with open(path, 'wb') as file:
        file.write(content)
        hasattr(os, 'fchmod') and os.fchmod(file.fileno(), mode)
make('tree/sub/hello', b'hello', 0o4755)
make('tree/nothing', b'', 0o644)
make('single', bytes(200000), 0o600)";
    let ran = cell(rig, stack).python(make, &[]).out("/work/tree").out("/work/single").run().await;
    succeeded(&ran);
    let (hello, mode) = file(&ran, "sub/hello");
    assert_eq!((hello, mode & 0o7000), (&b"hello"[..], 0), "and no set-uid bit");
    assert!(is_wasm(stack) || mode == 0o755, "{mode:o}");
    assert_eq!(file(&ran, "nothing").0, b"");
    let (single, mode) = file(&ran, "");
    assert_eq!(single.len(), 200_000);
    assert!(is_wasm(stack) || mode == 0o600, "{mode:o}");
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
    let ran = cell(rig, stack).out("/work/never-made").run().await;
    succeeded(&ran);
    assert!(ran.outcome.denied.iter().any(|what| what.contains("/work/never-made")), "{}", ran.story());
    assert_eq!(ran.files.skipped.len(), 1, "{:?}", ran.files);
    assert!(ran.files.entries.is_empty());
}

pub(crate) async fn only_files_and_directories_come_out(rig: &Rig, stack: &Stack) {
    // Not every stack has every kind of file; what could be made must be left out.
    let make = "import os, stat
os.mkdir('out'); open('out/kept', 'w').write('kept')
def attempt(name, make):
    try: make('out/' + name); print(name)
    except (OSError, AttributeError): pass
attempt('dir-link', lambda path: os.symlink('.', path))
attempt('fifo', lambda path: os.mkfifo(path))
attempt('link', lambda path: os.symlink('../../etc/passwd', path))
attempt('socket', lambda path: os.mknod(path, stat.S_IFSOCK | 0o600))";
    let ran = cell(rig, stack).python(make, &[]).out("/work/out").run().await;
    succeeded(&ran);
    let mut skipped: Vec<&str> = ran.files.skipped.iter().map(|(_, path, _)| path.as_str()).collect();
    skipped.sort_unstable();
    let out = ran.out();
    let expected: Vec<&str> = out.lines().collect();
    assert!(expected.contains(&"dir-link"), "links can be made everywhere: {}", ran.story());
    assert!(is_wasm(stack) || expected.contains(&"fifo"), "{}", ran.story());
    assert_eq!(skipped, expected, "{}", ran.story());
    assert!(ran.files.skipped.iter().all(|(_, _, why)| !why.is_empty()));
    assert_eq!(ran.outcome.denied.len(), skipped.len(), "{:?}", ran.outcome.denied);
    assert_eq!(file(&ran, "kept").0, b"kept");
}

pub(crate) async fn too_much_does_not_come_out(rig: &Rig, stack: &Stack) {
    // Each hole is within the limit of one file; together they claim more than the disk could hold.
    let holes = "import os
os.mkdir('holes')
for name in 'abc': open('holes/' + name, 'w').truncate(40 << 20)";
    let ran = cell(rig, stack).python(holes, &[]).out("/work/holes").run().await;
    assert_eq!(ran.outcome.status.as_str(), "failed", "{}", ran.story());
    assert!(ran.outcome.status.describe().contains("larger"), "{}", ran.story());
    let came: usize = ran.files.entries.iter().map(|entry| entry.bytes.len()).sum();
    assert!(came <= 64 << 20, "{came} bytes came out");
    let deep = "import os; os.makedirs('out' + '/d' * 70)";
    let ran = cell(rig, stack).python(deep, &[]).out("/work/out").run().await;
    assert_eq!(ran.outcome.status.as_str(), "failed", "{}", ran.story());
}
