//! The life of an execution: cancelled, dropped, measured, timed, recorded, and alone.

use std::time::Duration;

use casemate_engine::recorder::Event;
use casemate_testkit::{Cause, Rig, Stack, Status, Traces, Wall, cell};
use tokio::sync::{oneshot, watch};

use crate::{is_not_for, is_wasm, refused, succeeded};

pub(crate) async fn a_caller_can_cancel(rig: &Rig, stack: &Stack) {
    let (cancel, cancelled) = watch::channel(false);
    let run = cell(rig, stack)
        .python("import time; print('ready', flush=True); time.sleep(30)", &[])
        .watching(move |_| _ = cancel.send(true))
        .cancelled_by(cancelled)
        .run();
    let ran = run.await;
    assert!(matches!(ran.outcome.status, Status::Killed { cause: Cause::Cancelled, .. }), "{}", ran.story());
    assert_eq!(ran.out(), "ready\n");
    let soon = if stack.outermost() == Wall::Microvm { 10 } else { 2 };
    assert!(ran.took < Duration::from_secs(soon), "{:?}", ran.took);
}

pub(crate) async fn a_dropped_execution_is_killed_and_recorded(rig: &Rig, stack: &Stack) {
    succeeded(&cell(rig, stack).python("pass", &[]).run().await);
    let look = Duration::from_secs(2);
    let rest = match is_wasm(stack) {
        // The worker stays, and nothing else.
        true => Traces::settled(rig.run_id(), look).await,
        false => Traces::at_rest(rig.run_id(), look).await,
    };
    let rest = rest.expect("the first cell is gone");
    let (ready, started) = oneshot::channel();
    let mut ready = Some(ready);
    let run = cell(rig, stack)
        .python("import time; print('ready', flush=True); time.sleep(30)", &[])
        .watching(move |_| _ = ready.take().map(|ready| ready.send(())))
        .run();
    tokio::select! {
        ran = run => panic!("it ended by itself: {}", ran.story()),
        seen = started => seen.expect("it was running"),
    }
    rest.returns_to(rig.run_id(), look).await.expect("nothing of it is left");
    let reader = casemate_engine::recorder::Reader::open(rig.home()).expect("the evidence");
    let records: Vec<_> =
        reader.records().expect("records").collect::<Result<_, _>>().expect("whole records");
    let last = &records.last().expect("a record").entry;
    assert_eq!(last.event, Event::Closed);
    assert_eq!(last.body["status"]["cause"], "cancelled", "{}", last.body);
    // A shared worker has a record of its own, which is open as long as it lives.
    let open = reader.open_ids_of(rig.run_id()).expect("the open records").len();
    assert_eq!(open, usize::from(is_wasm(stack) && stack.outermost() != Wall::Microvm));
}

pub(crate) async fn usage_is_plausible(rig: &Rig, stack: &Stack) {
    let work = "import time\nx = bytearray(32 << 20)\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\ntime.sleep(0.2)";
    let ran = cell(rig, stack).python(work, &[]).run().await;
    succeeded(&ran);
    let usage = ran.outcome.usage;
    let (wall, cpu) = (usage.wall.expect("wall time"), usage.cpu.expect("processor time"));
    assert!(wall >= Duration::from_millis(400) && wall <= ran.took, "{usage:?}");
    // WASI has no clock of processor time: there, the loop ends by the clock on the wall.
    let least = if is_wasm(stack) { 20 } else { 190 };
    assert!(cpu >= Duration::from_millis(least) && cpu < wall, "{usage:?}");
    let memory = usage.memory_peak.expect("memory");
    assert!((32 << 20..256 << 20).contains(&memory), "{usage:?}");
    assert!(usage.pids_peak.is_none_or(|pids| (1..=4).contains(&pids)), "{usage:?}");
    let write = "open('file', 'wb').write(bytes(3000000))";
    let write = cell(rig, stack).python(write, &[]).out("/work/file").run().await;
    succeeded(&write);
    if let Some(disk) = write.outcome.usage.disk_bytes {
        assert!((3_000_000..3_500_000).contains(&disk), "{disk}");
    }
}

pub(crate) async fn timings_tell_where_time_went(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack).file("/work/file", 0o644, b"x").out("/work/file").run().await;
    succeeded(&ran);
    let phases: Vec<&str> = ran.outcome.timings.iter().map(|(phase, _)| *phase).collect();
    for phase in ["decide", "start", "record", "files in", "launch", "run", "files out", "finish", "close"] {
        assert!(phases.contains(&phase), "{phase} is missing from {phases:?}");
    }
    let total: Duration = ran.outcome.timings.iter().map(|(_, time)| *time).sum();
    assert!(total <= ran.took && total * 2 > ran.took / 2, "{total:?} of {:?}", ran.took);
    // A call is let go by its worker, not by a launcher.
    assert!(is_wasm(stack) || ran.outcome.steps.len() > 5, "{:?}", ran.outcome.steps);
}

pub(crate) async fn receipts_lead_to_records(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack)
        .file("/work/in", 0o644, b"x")
        .stdin("y")
        .python("import shutil; shutil.copyfile('in', 'out')", &[])
        .out("/work/out")
        .run()
        .await;
    succeeded(&ran);
    let records = rig.records(&ran.outcome.id);
    let events: Vec<Event> = records.iter().map(|record| record.entry.event).collect();
    assert_eq!(events, [Event::Opened, Event::Closed]);
    let closing = &records[1];
    assert_eq!(ran.receipt, Some(closing.head()));
    let names: Vec<&str> = closing.entry.subjects.iter().map(|subject| subject.name.as_str()).collect();
    for name in ["request", "in:/work/in", "stdin", "stdout", "stderr", "out:/work/out"] {
        assert!(names.contains(&name), "{name} is missing from {names:?}");
    }
    let walls: Vec<&str> = stack.walls().iter().map(|wall| wall.as_str()).collect();
    assert_eq!(records[0].entry.body["decision"]["stack"], serde_json::json!(walls));
    assert_eq!(closing.entry.body["status"]["code"], 0);
    let digest = |name: &str| closing.entry.subjects.iter().find(|s| s.name == name).map(|s| s.sha256);
    assert_eq!(digest("in:/work/in"), digest("out:/work/out"), "the same bytes have the same digest");
}

pub(crate) async fn refusals_are_recorded(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack).with(|draft| draft.egress.push("example.com:443".into())).run().await;
    refused(&ran, "egress");
    let records = rig.records(&ran.outcome.id);
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].entry.event, Event::Refused);
    assert_eq!(ran.receipt, Some(records[0].head()));
    assert_eq!(ran.outcome.stack, None);
}

/// Two at once, and one after the other.
pub(crate) async fn executions_share_nothing(rig: &Rig, stack: &Stack) {
    let look = "import os, time
places = ['.', os.environ['TMPDIR'], '/tmp', '/dev/shm']
for place in places:
    try: print(*(name for name in os.listdir(place) if 'mine' in name))
    except OSError: pass
for place in places:
    try: open(place + '/mine', 'x').close()
    except OSError: pass
time.sleep(0.3)
assert os.path.exists('mine')";
    let run = |tenant: &str| cell(rig, stack).tenant(tenant).python(look, &[]).out("/work/mine").run();
    let (one, two) = tokio::join!(run("one"), run("two"));
    let three = run("three").await;
    for ran in [&one, &two, &three] {
        succeeded(ran);
        assert!(!ran.out().contains("mine"), "{}", ran.story());
    }
}

/// Neither by two cells at once, nor by one after the other, nor after a launch that failed. Parts of the next cell are made ahead
/// and must go to one cell only.
pub(crate) async fn no_namespace_is_used_twice(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "no_namespace_is_used_twice") {
        let look = "import os; os.readlink('/proc/self/ns/net')";
        return assert_eq!(cell(rig, stack).python(look, &[]).run().await.code(), Some(1));
    }
    if rig.is_in_gvisor(stack) || stack.outermost() == Wall::Microvm {
        // The namespaces inside are numbers of its kernel, the same in each; those around it are a container's.
        let look = "readlink /proc/self/ns/pid";
        let (one, two) = tokio::join!(cell(rig, stack).shell(look).run(), cell(rig, stack).shell(look).run());
        let host = std::fs::read_link("/proc/self/ns/pid").expect("a namespace").display().to_string();
        assert!(one.out() == two.out() && one.out().trim() != host, "{} {}", one.story(), two.story());
        return;
    }
    const KINDS: [&str; 7] = ["mnt", "pid", "net", "ipc", "uts", "cgroup", "user"];
    // The Docker Engine's containers have the host's users.
    let kinds = if stack.outermost() == Wall::Docker { &KINDS[..6] } else { &KINDS[..] };
    let tell = |pause: &str| {
        let script =
            format!("for n in {}; do readlink /proc/self/ns/$n; done; sleep {pause}", kinds.join(" "));
        cell(rig, stack).shell(&script).run()
    };
    let links = |path: &str| std::fs::read_link(path).expect("a namespace").display().to_string();
    let host: Vec<String> = kinds.iter().map(|kind| links(&format!("/proc/self/ns/{kind}"))).collect();
    if stack.outermost() == Wall::Process {
        // As it says: it has none of its own.
        return assert_eq!(tell("0").await.out().lines().collect::<Vec<_>>(), host);
    }
    let (one, two, three) = tokio::join!(tell("0.5"), tell("0.5"), tell("0.5"));
    let four = tell("0").await;
    cell(rig, stack).command(["no-such-command"]).run().await;
    let five = tell("0").await;
    let mut seen = host.clone();
    let alive = [&one, &two, &three];
    for ran in alive {
        assert_eq!(ran.out().lines().count(), kinds.len(), "{}", ran.story());
        seen.extend(ran.out().lines().map(str::to_owned));
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count, "cells at once share a namespace: {seen:?}");
    // The kernel may use the numbers of what is gone again, so these are held against the host's only.
    for ran in [&four, &five] {
        assert!(ran.out().lines().count() == kinds.len(), "{}", ran.story());
        assert!(ran.out().lines().all(|link| !host.contains(&link.to_owned())), "{}", ran.story());
    }
}
