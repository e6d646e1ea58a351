//! Each limit: enforced and reported with its value, or refused with a hint.

use std::time::Duration;

use casemate_testkit::{Cause, CellBuilder, LimitKind, Ran, Rig, Stack, Status, Wall, cell, wasm};

use crate::{is_not_for, is_wasm, refused, succeeded};

const MIB: u64 = 1 << 20;
const LATE: Duration = Duration::from_secs(1);

/// An emulated machine has to begin first.
fn late(stack: &Stack) -> Duration {
    if stack.outermost() == Wall::Microvm { 10 * LATE } else { LATE }
}

/// Runs with the limit, or shows that it is refused; `None` then.
async fn limited<'r>(
    rig: &'r Rig,
    stack: &Stack,
    (kind, value): (LimitKind, &str),
    describe: impl FnOnce(CellBuilder<'r>) -> CellBuilder<'r>,
) -> Option<Ran> {
    let ran = describe(cell(rig, stack)).limit(kind, value).run().await;
    if rig.can_enforce(stack, kind) {
        assert!(ran.refusal().is_none(), "{kind} is enforced here: {}", ran.story());
        return Some(ran);
    }
    refused(&ran, kind.as_str());
    None
}

#[track_caller]
fn killed(ran: &Ran, cause: Cause, limit: u64) {
    match ran.outcome.status {
        Status::Killed { cause: said, limit: Some(value), peak: Some(peak) } => {
            assert_eq!((said, value), (cause, limit), "{}", ran.story());
            assert!(peak + peak / 16 >= limit, "the peak is below the limit: {}", ran.story());
        }
        _ => panic!("not killed: {}", ran.story()),
    }
}

#[track_caller]
fn hit(ran: &Ran, kind: LimitKind, limit: u64, slack: u64) {
    hit_part(ran, kind, (limit, limit), slack);
}

/// A part of the limit was all there was.
#[track_caller]
fn hit_part(ran: &Ran, kind: LimitKind, (limit, part): (u64, u64), slack: u64) {
    let hit = ran.hit(kind).unwrap_or_else(|| panic!("{kind} was not reported: {}", ran.story()));
    assert_eq!(hit.limit, limit);
    assert!(hit.peak.is_some_and(|peak| peak + slack >= part && peak <= limit), "{hit:?}");
}

pub(crate) async fn time_runs_out(rig: &Rig, stack: &Stack) {
    // To start an interpreter takes an emulated processor longer than that.
    let (limit, millis) = if stack.outermost() == Wall::Microvm { ("3s", 3000) } else { ("300ms", 300) };
    let limit = (LimitKind::WallTime, limit);
    // In a single call of the system, or of the host.
    let wait = "import time; print('before', flush=True); time.sleep(30)";
    let ran = limited(rig, stack, limit, |cell| cell.python(wait, &[])).await.expect("everywhere");
    killed(&ran, Cause::WallTime, millis);
    assert!(ran.took < Duration::from_millis(millis) + late(stack), "{:?}", ran.took);
    assert_eq!(ran.out(), "before\n", "what it said before counts");
    if !is_wasm(stack) {
        let deaf = limited(rig, stack, limit, |cell| cell.shell("trap '' TERM; sleep 30")).await;
        killed(&deaf.expect("everywhere"), Cause::WallTime, millis);
    }
}

pub(crate) async fn processor_time_runs_out(rig: &Rig, stack: &Stack) {
    // To start an interpreter takes an emulated processor longer than that.
    let (limit, millis) = if stack.outermost() == Wall::Microvm { ("2s", 2000) } else { ("300ms", 300) };
    let limit = (LimitKind::CpuTime, limit);
    let Some(ran) = limited(rig, stack, limit, |cell| cell.python("while True: pass", &[])).await else {
        return;
    };
    killed(&ran, Cause::CpuTime, millis);
    let idle = limited(rig, stack, limit, |cell| cell.python("import time; time.sleep(0.6)", &[])).await;
    succeeded(&idle.expect("enforced a moment ago"));
}

pub(crate) async fn processors_are_shared_out(rig: &Rig, stack: &Stack) {
    let spin = "import time
end = time.monotonic() + 1
while time.monotonic() < end: pass";
    let limit = (LimitKind::Cpus, "0.2");
    let Some(ran) = limited(rig, stack, limit, |cell| cell.python(spin, &[])).await else { return };
    let (wall, used) = (ran.outcome.usage.wall.expect("wall"), ran.outcome.usage.cpu.expect("cpu"));
    // What it takes to load an interpreter is in there, and where the processor is emulated that takes longer.
    let to_begin = if stack.outermost() == Wall::Microvm { 0.6 } else { 0.15 };
    assert!(used.as_secs_f64() < 0.2 * wall.as_secs_f64() + to_begin, "{used:?} of processor in {wall:?}");
}

pub(crate) async fn memory_runs_out(rig: &Rig, stack: &Stack) {
    let take = "x = bytearray(200 << 20)";
    let limit = (LimitKind::Memory, "64M");
    let Some(ran) = limited(rig, stack, limit, |cell| cell.python(take, &[])).await else {
        return;
    };
    killed(&ran, Cause::Memory, 64 * MIB);
    // An OOM kill anywhere in the cell counts, even if the first process survives it.
    if !is_wasm(stack) {
        let shell = "python3 -c 'x = bytearray(200 << 20)'; exit 0";
        let ran = limited(rig, stack, limit, |cell| cell.shell(shell)).await.expect("enforced a moment ago");
        killed(&ran, Cause::Memory, 64 * MIB);
    }
    let enough = (LimitKind::Memory, "512M");
    let ran = limited(rig, stack, enough, |cell| cell.python(take, &[])).await;
    succeeded(&ran.expect("enforced a moment ago"));
}

pub(crate) async fn disk_runs_out(rig: &Rig, stack: &Stack) {
    for (place, path) in [("HOME", "/work"), ("TMPDIR", "/tmp")] {
        let fill = "import os, sys
try:
    with open(os.environ[sys.argv[1]] + '/fill', 'wb', 0) as file:
        for n in range(5000): file.write(bytes(4096))
except OSError as error: exit(error.strerror)";
        let disk = (LimitKind::Disk, "8M");
        let Some(ran) = limited(rig, stack, disk, |cell| cell.python(fill, &[place])).await else {
            return;
        };
        // The C library of WASI has one word for all that can happen to a stream.
        let words = if is_wasm(stack) { "I/O error\n" } else { "No space left on device\n" };
        assert_eq!((ran.code(), ran.err().as_str()), (Some(1), words), "{}", ran.story());
        let limit = 8 * MIB;
        hit_part(&ran, LimitKind::Disk, (limit, rig.share(stack, path, limit)), 64 << 10);
    }
}

pub(crate) async fn inodes_run_out(rig: &Rig, stack: &Stack) {
    let fill = "for n in range(300): open(f'f{n}', 'w').close()";
    let inodes = (LimitKind::Inodes, "100");
    let Some(ran) = limited(rig, stack, inodes, |cell| cell.python(fill, &[])).await else { return };
    assert_ne!(ran.code(), Some(0), "{}", ran.story());
    hit_part(&ran, LimitKind::Inodes, (100, rig.share(stack, "/work", 100)), 0);
}

pub(crate) async fn processes_run_out(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "processes_run_out") {
        let fork = "import os; assert not hasattr(os, 'fork')";
        return succeeded(&cell(rig, stack).python(fork, &[]).pids("12").run().await);
    }
    let fork = "import os, time\nn = 0\ntry:\n  while n < 100:\n    if os.fork() == 0: time.sleep(30); os._exit(0)\n    n += 1\n\
                except OSError: pass\ntime.sleep(0.2)\nprint(n)";
    let limit = (LimitKind::Pids, "12");
    let Some(ran) = limited(rig, stack, limit, |cell| cell.python(fork, &[])).await else {
        return;
    };
    assert_eq!((ran.code(), ran.out().trim()), (Some(0), "11"), "{}", ran.story());
    hit(&ran, LimitKind::Pids, 12, 0);
    assert!(ran.outcome.usage.pids_peak.is_some_and(|peak| peak == 12), "{:?}", ran.outcome.usage);
}

pub(crate) async fn descriptors_run_out(rig: &Rig, stack: &Stack) {
    let open = "import time
held = []
try:
    while len(held) < 200: held.append(open('file'))
except OSError: pass
time.sleep(0.2)
print(len(held))";
    let limit = (LimitKind::OpenFiles, "40");
    let ran = limited(rig, stack, limit, |cell| cell.file("/work/file", 0o644, b"").python(open, &[])).await;
    let ran = ran.expect("everywhere");
    if is_wasm(stack) {
        // A component that wants one more handle than it may have traps; no call of WASI can say so.
        assert_eq!(ran.outcome.status, Status::Signaled { signal: 6 }, "{}", ran.story());
        return assert!(ran.err().contains("resource table has no free keys"), "{}", ran.story());
    }
    assert_eq!((ran.code(), ran.out().trim()), (Some(0), "37"), "{}", ran.story());
    hit(&ran, LimitKind::OpenFiles, 40, 0);
}

/// A program's own fault, and nobody else's.
pub(crate) async fn the_stack_runs_out(rig: &Rig, stack: &Stack) {
    let deep = "def deeper(n): return deeper(n + 1) + 1
try: deeper(0)
except RecursionError: print('too deep')";
    let ran = cell(rig, stack).python(deep, &[]).run().await;
    succeeded(&ran);
    assert_eq!(ran.out(), "too deep\n");
    if is_wasm(stack) {
        let ran = cell(rig, stack).component(&wasm::recursion(), &[]).run().await;
        assert_eq!(ran.outcome.status, Status::Signaled { signal: 11 }, "{}", ran.story());
        assert!(ran.err().contains("call stack exhausted"), "{}", ran.story());
    }
    succeeded(&cell(rig, stack).run().await);
}

/// One request per kind, with nothing else in it.
pub(crate) async fn what_cannot_be_enforced_is_refused(rig: &Rig, stack: &Stack) {
    let values = [
        (LimitKind::WallTime, "5s"),
        (LimitKind::CpuTime, "5s"),
        (LimitKind::Cpus, "1"),
        (LimitKind::Memory, "200M"),
        (LimitKind::Disk, "8M"),
        (LimitKind::Inodes, "500"),
        (LimitKind::DiskIo, "10M"),
        (LimitKind::Pids, "20"),
        (LimitKind::OpenFiles, "100"),
        (LimitKind::Output, "1M"),
    ];
    assert_eq!(values.map(|(kind, _)| kind), LimitKind::ALL);
    for limit in values {
        if let Some(ran) = limited(rig, stack, limit, |cell| cell).await {
            succeeded(&ran);
            assert!(!ran.outcome.unbounded.contains(&limit.0), "{} is said to be unbounded", limit.0);
        }
    }
}

pub(crate) async fn unbounded_defaults_are_reported(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack).run().await;
    succeeded(&ran);
    for kind in LimitKind::ALL {
        let bounded = rig.can_enforce(stack, kind) || kind == LimitKind::DiskIo;
        assert_eq!(!bounded, ran.outcome.unbounded.contains(&kind), "{kind}: {:?}", ran.outcome.unbounded);
    }
}
