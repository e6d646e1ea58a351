//! Each limit: enforced and reported with its value, or refused with a hint.

use std::time::Duration;

use casemate_testkit::{Cause, CellBuilder, LimitKind, Ran, Rig, Stack, Status, can_enforce, cell};

use crate::{refused, succeeded};

const MIB: u64 = 1 << 20;
const LATE: Duration = Duration::from_secs(1);

/// Runs with the limit, or shows that it is refused; `None` then.
async fn limited<'r>(
    rig: &'r Rig,
    stack: &Stack,
    (kind, value): (LimitKind, &str),
    describe: impl FnOnce(CellBuilder<'r>) -> CellBuilder<'r>,
) -> Option<Ran> {
    let ran = describe(cell(rig, stack)).limit(kind, value).run().await;
    if can_enforce(stack, kind) {
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
    let hit = ran.hit(kind).unwrap_or_else(|| panic!("{kind} was not reported: {}", ran.story()));
    assert_eq!(hit.limit, limit);
    assert!(hit.peak.is_some_and(|peak| peak + slack >= limit), "{hit:?}");
}

pub(crate) async fn time_runs_out(rig: &Rig, stack: &Stack) {
    let limit = (LimitKind::WallTime, "300ms");
    let wait = "trap '' TERM; echo before; sleep 30";
    let ran = limited(rig, stack, limit, |cell| cell.shell(wait)).await.expect("everywhere");
    killed(&ran, Cause::WallTime, 300);
    assert!(ran.took < Duration::from_millis(300) + LATE, "{:?}", ran.took);
    assert_eq!(ran.out(), "before\n", "what it said before counts");
}

pub(crate) async fn processor_time_runs_out(rig: &Rig, stack: &Stack) {
    let limit = (LimitKind::CpuTime, "300ms");
    let Some(ran) = limited(rig, stack, limit, |cell| cell.shell("while :; do :; done")).await else {
        return;
    };
    killed(&ran, Cause::CpuTime, 300);
    let idle = limited(rig, stack, limit, |cell| cell.command(["sleep", "0.6"])).await;
    succeeded(&idle.expect("enforced a moment ago"));
}

pub(crate) async fn processors_are_shared_out(rig: &Rig, stack: &Stack) {
    let spin = "(while :; do :; done) & (while :; do :; done) & sleep 1; kill %1 %2; exit 0";
    let limit = (LimitKind::Cpus, "0.2");
    let Some(ran) = limited(rig, stack, limit, |cell| cell.shell(spin)).await else { return };
    let (wall, used) = (ran.outcome.usage.wall.expect("wall"), ran.outcome.usage.cpu.expect("cpu"));
    assert!(used.as_secs_f64() < 0.2 * wall.as_secs_f64() + 0.15, "{used:?} of processor in {wall:?}");
}

pub(crate) async fn memory_runs_out(rig: &Rig, stack: &Stack) {
    let take = "x = bytearray(200 << 20)";
    let limit = (LimitKind::Memory, "64M");
    let Some(ran) = limited(rig, stack, limit, |cell| cell.command(["python3", "-c", take])).await else {
        return;
    };
    killed(&ran, Cause::Memory, 64 * MIB);
    // An OOM kill anywhere in the cell counts, even if the first process survives it.
    let shell = "python3 -c 'x = bytearray(200 << 20)'; exit 0";
    let ran = limited(rig, stack, limit, |cell| cell.shell(shell)).await.expect("enforced a moment ago");
    killed(&ran, Cause::Memory, 64 * MIB);
    let enough = (LimitKind::Memory, "512M");
    let ran = limited(rig, stack, enough, |cell| cell.command(["python3", "-c", take])).await;
    succeeded(&ran.expect("enforced a moment ago"));
}

pub(crate) async fn disk_runs_out(rig: &Rig, stack: &Stack) {
    for place in ["$HOME", "$TMPDIR"] {
        let fill = format!("head -c 20000000 /dev/zero > {place}/fill || exit 5");
        let Some(ran) = limited(rig, stack, (LimitKind::Disk, "8M"), |cell| cell.shell(&fill)).await else {
            return;
        };
        assert_eq!(ran.code(), Some(5), "{}", ran.story());
        hit(&ran, LimitKind::Disk, 8 * MIB, 64 << 10);
        assert!(ran.err().contains("No space left"), "{}", ran.story());
    }
}

pub(crate) async fn inodes_run_out(rig: &Rig, stack: &Stack) {
    let fill = "i=0; while echo > f$i; do i=$((i+1)); [ $i -lt 300 ] || exit 0; done; exit 5";
    let Some(ran) = limited(rig, stack, (LimitKind::Inodes, "100"), |cell| cell.shell(fill)).await else {
        return;
    };
    assert_ne!(ran.code(), Some(0), "{}", ran.story());
    hit(&ran, LimitKind::Inodes, 100, 0);
}

pub(crate) async fn processes_run_out(rig: &Rig, stack: &Stack) {
    let fork = "import os, time\nn = 0\ntry:\n  while n < 100:\n    if os.fork() == 0: time.sleep(30); os._exit(0)\n    n += 1\n\
                except OSError: pass\ntime.sleep(0.2)\nprint(n)";
    let limit = (LimitKind::Pids, "12");
    let Some(ran) = limited(rig, stack, limit, |cell| cell.command(["python3", "-c", fork])).await else {
        return;
    };
    assert_eq!((ran.code(), ran.out().trim()), (Some(0), "11"), "{}", ran.story());
    hit(&ran, LimitKind::Pids, 12, 0);
    assert!(ran.outcome.usage.pids_peak.is_some_and(|peak| peak == 12), "{:?}", ran.outcome.usage);
}

pub(crate) async fn descriptors_run_out(rig: &Rig, stack: &Stack) {
    let open = "import os, time\nn = 0\ntry:\n  while n < 200: os.dup(0); n += 1\nexcept OSError: pass\n\
                time.sleep(0.2)\nprint(n)";
    let limit = (LimitKind::OpenFiles, "40");
    let ran =
        limited(rig, stack, limit, |cell| cell.command(["python3", "-c", open])).await.expect("everywhere");
    assert_eq!((ran.code(), ran.out().trim()), (Some(0), "37"), "{}", ran.story());
    hit(&ran, LimitKind::OpenFiles, 40, 0);
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
        if let Some(ran) = limited(rig, stack, limit, |cell| cell.command(["true"])).await {
            succeeded(&ran);
            assert!(!ran.outcome.unbounded.contains(&limit.0), "{} is said to be unbounded", limit.0);
        }
    }
}

pub(crate) async fn unbounded_defaults_are_reported(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack).command(["true"]).run().await;
    succeeded(&ran);
    for kind in LimitKind::ALL {
        let bounded = can_enforce(stack, kind) || kind == LimitKind::DiskIo;
        assert_eq!(!bounded, ran.outcome.unbounded.contains(&kind), "{kind}: {:?}", ran.outcome.unbounded);
    }
}
