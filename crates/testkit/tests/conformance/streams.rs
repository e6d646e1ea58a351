//! Standard input, output and error.

use std::time::Duration;

use casemate_testkit::{LimitKind, Rig, Stack, cell};

use crate::succeeded;

/// Five million bytes without a pattern that a lost or doubled block could hide in.
fn many_bytes() -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..5_000_000).map(|_| next()).collect()
}

const COPY: &str = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)";

pub(crate) async fn input_is_empty_unless_provided(rig: &Rig, stack: &Stack) {
    let count = || cell(rig, stack).python("import sys; print(len(sys.stdin.buffer.read()))", &[]);
    assert_eq!(count().run().await.out(), "0\n");
    assert_eq!(count().stdin("").run().await.out(), "0\n");
    assert_eq!(count().stdin("five\0").run().await.out(), "5\n");
}

pub(crate) async fn input_arrives_whole(rig: &Rig, stack: &Stack) {
    let bytes = many_bytes();
    let ran = cell(rig, stack).stdin(bytes.clone()).python(COPY, &[]).max_output("8M").run().await;
    succeeded(&ran);
    assert!(ran.stdout == bytes, "{} bytes came back", ran.stdout.len());
}

pub(crate) async fn input_may_be_left_unread(rig: &Rig, stack: &Stack) {
    let fed = |code: &str| cell(rig, stack).stdin(many_bytes()).python(code, &[]).run();
    let ran = fed("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read(3))").await;
    succeeded(&ran);
    assert_eq!(ran.stdout, many_bytes()[..3]);
    succeeded(&cell(rig, stack).stdin(many_bytes()).run().await);
    let ran = fed("import os, time; os.close(0); time.sleep(0.2); print('done')").await;
    assert_eq!(ran.out(), "done\n", "{}", ran.story());
}

pub(crate) async fn output_is_exact_to_the_byte(rig: &Rig, stack: &Stack) {
    let every: Vec<u8> = (0..=255).chain([0, 0xff, 0xc3, 0x28, b'\r', b'\n', 0]).collect();
    let print = "import sys
for out in sys.stdout, sys.stderr: out.buffer.write(open('bytes', 'rb').read())";
    let ran = cell(rig, stack).file("/work/bytes", 0o644, &every).python(print, &[]).run().await;
    succeeded(&ran);
    assert_eq!(ran.stdout, every);
    assert_eq!(ran.stderr, every);
    assert!(!ran.outcome.stdout_truncated && !ran.outcome.stderr_truncated);
}

pub(crate) async fn each_stream_keeps_its_order(rig: &Rig, stack: &Stack) {
    let count = "import sys
for i in range(2000):
    print('out', i, flush=True)
    print('err', i, file=sys.stderr, flush=True)";
    let ran = cell(rig, stack).python(count, &[]).run().await;
    succeeded(&ran);
    let expected = |word: &str| (0..2000).map(|i| format!("{word} {i}\n")).collect::<String>();
    assert!(ran.out() == expected("out"), "standard output is out of order");
    assert!(ran.err() == expected("err"), "standard error is out of order");
}

pub(crate) async fn a_slow_receiver_loses_nothing(rig: &Rig, stack: &Stack) {
    let bytes = many_bytes();
    let ran = cell(rig, stack)
        .stdin(bytes.clone())
        .python(COPY, &[])
        .max_output("8M")
        .slowly(Duration::from_millis(3))
        .run()
        .await;
    succeeded(&ran);
    assert!(ran.stdout == bytes, "{} bytes came through", ran.stdout.len());
    assert!(ran.hit(LimitKind::Output).is_none());
}

pub(crate) async fn output_is_cut_at_the_limit(rig: &Rig, stack: &Stack) {
    let write = |out: u32, err: u32| {
        let code = format!(
            "import os, sys\nsys.stdout.write('o' * {out}); sys.stdout.flush(); sys.stderr.write('e' * {err})"
        );
        cell(rig, stack).python(&code, &[]).max_output("100000").run()
    };
    let whole = write(100_000, 0).await;
    assert_eq!((whole.code(), whole.stdout.len()), (Some(0), 100_000), "{}", whole.outcome.status.describe());
    assert!(!whole.outcome.stdout_truncated && whole.hit(LimitKind::Output).is_none());

    let cut = write(100_001, 0).await;
    assert_eq!((cut.code(), cut.stdout.len()), (Some(0), 100_000));
    assert!(cut.outcome.stdout_truncated && !cut.outcome.stderr_truncated);
    let hit = cut.hit(LimitKind::Output).expect("the limit was hit");
    assert_eq!((hit.limit, hit.peak), (100_000, Some(100_001)));

    let after = "import sys; sys.stderr.write('e' * 3000000); sys.stderr.flush(); print('after')";
    let error = cell(rig, stack).python(after, &[]).max_output("100000").run().await;
    assert_eq!((error.code(), error.stderr.len(), error.stdout.len()), (Some(0), 100_000, 0));
    assert!(error.outcome.stdout_truncated && error.outcome.stderr_truncated, "both were cut");

    let both = write(60_000, 60_000).await;
    assert_eq!(both.stdout.len() + both.stderr.len(), 100_000, "the limit is for both together");
}

pub(crate) async fn no_output_at_all(rig: &Rig, stack: &Stack) {
    let speak = "import sys; print('out'); print('err', file=sys.stderr); exit(3)";
    let ran = cell(rig, stack).python(speak, &[]).max_output("0").run().await;
    assert_eq!(ran.code(), Some(3), "{}", ran.story());
    assert!(ran.stdout.is_empty() && ran.stderr.is_empty());
    assert!(ran.outcome.stdout_truncated && ran.outcome.stderr_truncated);
    let silent = cell(rig, stack).max_output("0").run().await;
    assert!(!silent.outcome.stdout_truncated && silent.hit(LimitKind::Output).is_none());
}
