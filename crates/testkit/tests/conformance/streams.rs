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

pub(crate) async fn input_is_empty_unless_provided(rig: &Rig, stack: &Stack) {
    assert_eq!(cell(rig, stack).command(["wc", "-c"]).run().await.out().trim(), "0");
    assert_eq!(cell(rig, stack).stdin("").command(["wc", "-c"]).run().await.out().trim(), "0");
    assert_eq!(cell(rig, stack).stdin("five\0").command(["wc", "-c"]).run().await.out().trim(), "5");
}

pub(crate) async fn input_arrives_whole(rig: &Rig, stack: &Stack) {
    let bytes = many_bytes();
    let ran = cell(rig, stack).stdin(bytes.clone()).command(["cat"]).max_output("8M").run().await;
    succeeded(&ran);
    assert!(ran.stdout == bytes, "{} bytes came back", ran.stdout.len());
}

pub(crate) async fn input_may_be_left_unread(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack).stdin(many_bytes()).command(["head", "-c", "3"]).run().await;
    succeeded(&ran);
    assert_eq!(ran.stdout, many_bytes()[..3]);
    succeeded(&cell(rig, stack).stdin(many_bytes()).command(["true"]).run().await);
    let ran = cell(rig, stack).stdin(many_bytes()).shell("exec <&-; sleep 0.2; echo done").run().await;
    assert_eq!(ran.out(), "done\n");
}

pub(crate) async fn output_is_exact_to_the_byte(rig: &Rig, stack: &Stack) {
    let every: Vec<u8> = (0..=255).chain([0, 0xff, 0xc3, 0x28, b'\r', b'\n', 0]).collect();
    let print = "cat bytes; cat bytes >&2";
    let ran = cell(rig, stack).file("/work/bytes", 0o644, &every).shell(print).run().await;
    succeeded(&ran);
    assert_eq!(ran.stdout, every);
    assert_eq!(ran.stderr, every);
    assert!(!ran.outcome.stdout_truncated && !ran.outcome.stderr_truncated);
}

pub(crate) async fn each_stream_keeps_its_order(rig: &Rig, stack: &Stack) {
    let count = "i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let ran = cell(rig, stack).shell(count).run().await;
    succeeded(&ran);
    let expected = |word: &str| (0..2000).map(|i| format!("{word} {i}\n")).collect::<String>();
    assert!(ran.out() == expected("out"), "standard output is out of order");
    assert!(ran.err() == expected("err"), "standard error is out of order");
}

pub(crate) async fn a_slow_receiver_loses_nothing(rig: &Rig, stack: &Stack) {
    let bytes = many_bytes();
    let ran = cell(rig, stack)
        .stdin(bytes.clone())
        .command(["cat"])
        .max_output("8M")
        .slowly(Duration::from_millis(3))
        .run()
        .await;
    succeeded(&ran);
    assert!(ran.stdout == bytes, "{} bytes came through", ran.stdout.len());
    assert!(ran.hit(LimitKind::Output).is_none());
}

pub(crate) async fn output_is_cut_at_the_limit(rig: &Rig, stack: &Stack) {
    let write = |script: &str| cell(rig, stack).shell(script).max_output("100000").run();
    let whole = write("head -c 100000 /dev/zero").await;
    assert_eq!((whole.code(), whole.stdout.len()), (Some(0), 100_000), "{}", whole.outcome.status.describe());
    assert!(!whole.outcome.stdout_truncated && whole.hit(LimitKind::Output).is_none());

    let cut = write("head -c 100001 /dev/zero").await;
    assert_eq!((cut.code(), cut.stdout.len()), (Some(0), 100_000));
    assert!(cut.outcome.stdout_truncated && !cut.outcome.stderr_truncated);
    let hit = cut.hit(LimitKind::Output).expect("the limit was hit");
    assert_eq!((hit.limit, hit.peak), (100_000, Some(100_001)));

    let error = write("head -c 3000000 /dev/zero >&2; echo after").await;
    assert_eq!((error.code(), error.stderr.len(), error.stdout.len()), (Some(0), 100_000, 0));
    assert!(error.outcome.stdout_truncated && error.outcome.stderr_truncated, "both were cut");

    let both = write("head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2").await;
    assert_eq!(both.stdout.len() + both.stderr.len(), 100_000, "the limit is for both together");
}

pub(crate) async fn no_output_at_all(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack).shell("echo out; echo err >&2; exit 3").max_output("0").run().await;
    assert_eq!(ran.code(), Some(3), "{}", ran.story());
    assert!(ran.stdout.is_empty() && ran.stderr.is_empty());
    assert!(ran.outcome.stdout_truncated && ran.outcome.stderr_truncated);
    let silent = cell(rig, stack).command(["true"]).max_output("0").run().await;
    assert!(!silent.outcome.stdout_truncated && silent.hit(LimitKind::Output).is_none());
}
