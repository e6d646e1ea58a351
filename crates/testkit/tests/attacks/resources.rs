//! Attacks 65–80: taking more than was given. Judged by the outcome, never by the probe alone.

use std::time::Duration;

use casemate_testkit::{LimitKind, Traces, cell};

use crate::judged::{barely_overdrawn, hit, in_time, killed, refused, watched};
use crate::row::Control::{self, Nothing, TimeToSpare, Without};
use crate::row::On::{Held, NotApplicable};
use crate::row::layers::{CGROUP, CGROUP_AND_RLIMITS, QUOTA, QUOTA_AND_RLIMITS, RLIMITS};
use crate::row::{Finding, Judge, Judged, Row, Scene, Trial};
use crate::run::judge;

const MIB: u64 = 1 << 20;
const REAPS: &str = "the bare host's first process reaps, too";
const ENDS: &str = "nothing but the end of the cell ends it, and that cannot be left out";

const fn row(attacks: &'static [u16], name: &'static str, judge: Judge, control: Control) -> Row {
    Row { attacks, name, trial: Trial::Judged { judge, container: Held(control), process: Held(control) } }
}

pub(crate) const ROWS: &[Row] = &[
    row(&[65], "fork-bomb", fork_bomb, Without(CGROUP)),
    row(&[65], "thread-bomb", thread_bomb, Without(CGROUP)),
    row(&[66], "memory-bomb", memory_bomb, Without(CGROUP)),
    row(&[67], "disk-fill", disk_fill, Without(QUOTA_AND_RLIMITS)),
    row(&[68], "inode-fill", inode_fill, Without(QUOTA)),
    row(&[69], "memfd-fill", memfd_fill, Without(CGROUP_AND_RLIMITS)),
    row(
        &[69],
        "shm-fill",
        shm_fill,
        Nothing("several layers answer; memfd-fill is the control of the charge"),
    ),
    row(&[70], "fd-exhaust", fd_exhaust, Without(RLIMITS)),
    row(&[71], "cpu-spin (cpu-time)", cpu_spin, TimeToSpare),
    row(&[71], "cpu-spin (wall-time)", cpu_spin_by_the_clock, TimeToSpare),
    row(&[71], "cpu-spin (threads)", cpu_spin_in_threads, TimeToSpare),
    row(&[72], "ignore-term", ignore_term, TimeToSpare),
    row(&[73], "daemon", daemon, Nothing(ENDS)),
    row(&[74], "zombies", zombies, Nothing(REAPS)),
    row(&[75], "signal-storm", signal_storm, Nothing(ENDS)),
    row(&[76], "output-flood (stdout)", flood_stdout, Nothing("conformance shows output that is not cut")),
    row(&[76], "output-flood (stderr)", flood_stderr, Nothing("conformance shows output that is not cut")),
    row(&[77], "hold-stdout", hold_stdout, Nothing(ENDS)),
    row(&[78], "out-bomb", out_bomb, Nothing("conformance shows files that come out")),
    Row {
        attacks: &[79],
        name: "sparse-file",
        trial: Trial::Judged {
            judge: sparse_file,
            container: Held(Without(RLIMITS)),
            process: NotApplicable(
                "disk is unbounded on this wall: reported by default, refused when asked for",
            ),
        },
    },
    row(&[80], "socket-buffers", socket_buffers, Nothing("memfd-fill is the control of the charge")),
    Row {
        attacks: &[21],
        name: "ptrace-traceme-thread (allowed)",
        trial: Trial::Judged {
            judge: traceme_allowed,
            container: Held(Nothing("what is tested is the reaper, not a layer")),
            process: NotApplicable("ptrace is never given on this wall"),
        },
    },
];

/// A probe that says `held` and a limit that says `hit`.
fn counted(
    scene: Scene,
    args: &'static [&'static str],
    kind: LimitKind,
    limit: &'static str,
    slack: u64,
) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.probe(args.iter().copied()).limit(kind, limit)).await?;
        if let Some(refused) = refused(&scene, &ran, &[kind]) {
            return refused;
        }
        let finding = judge(&ran)?;
        if finding == Finding::Held {
            let limit = kind.parse(limit).map_err(|error| error.to_string())?;
            let part = match kind {
                LimitKind::Disk | LimitKind::Inodes => scene.rig.share(&scene.stack, "/work", limit),
                _ => limit,
            };
            hit(&ran, kind, limit, slack + limit - part)?;
        }
        Ok(finding)
    })
}

fn fork_bomb(scene: Scene) -> Judged {
    counted(scene, &["fork-bomb", "200"], LimitKind::Pids, "32", 0)
}

fn thread_bomb(scene: Scene) -> Judged {
    counted(scene, &["thread-bomb", "200"], LimitKind::Pids, "32", 0)
}

fn disk_fill(scene: Scene) -> Judged {
    counted(scene, &["disk-fill", ".", "16"], LimitKind::Disk, "8M", 2 * MIB)
}

fn inode_fill(scene: Scene) -> Judged {
    counted(scene, &["inode-fill", ".", "500"], LimitKind::Inodes, "100", 2)
}

fn fd_exhaust(scene: Scene) -> Judged {
    counted(scene, &["fd-exhaust", "500"], LimitKind::OpenFiles, "64", 0)
}

/// Memory that was taken in whatever way ends the cell.
fn charged(scene: Scene, args: &'static [&'static str]) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.probe(args.iter().copied()).memory("64M")).await?;
        if let Some(refused) = refused(&scene, &ran, &[LimitKind::Memory]) {
            return refused;
        }
        match ran.code() {
            Some(_) => judge(&ran),
            None => killed(&ran, LimitKind::Memory, 64 * MIB),
        }
    })
}

fn memory_bomb(scene: Scene) -> Judged {
    charged(scene, &["memory-bomb", "192"])
}

fn memfd_fill(scene: Scene) -> Judged {
    charged(scene, &["memfd-fill", "192"])
}

fn shm_fill(scene: Scene) -> Judged {
    charged(scene, &["shm-fill", "192"])
}

fn socket_buffers(scene: Scene) -> Judged {
    charged(scene, &["socket-buffers", "192"])
}

/// Time that runs out, of either kind. The probe would go on for far longer than a busy machine takes to spend the budget;
/// with time to spare, it ends by itself.
fn timed(scene: Scene, name: &'static str, threads: Option<&'static str>, kind: LimitKind) -> Judged {
    Box::pin(async move {
        let limit = Duration::from_millis(500);
        let (value, seconds) = if scene.time_to_spare { ("20s", "1") } else { ("500ms", "60") };
        let args = [name, seconds].into_iter().chain(threads);
        let ran = watched(&scene, |cell| cell.probe(args).timeout("40s").limit(kind, value)).await?;
        if let Some(refused) = refused(&scene, &ran, &[kind]) {
            return refused;
        }
        if ran.code().is_some() {
            return judge(&ran);
        }
        match kind {
            LimitKind::CpuTime => barely_overdrawn(&ran, limit)?,
            _ => in_time(&ran, limit)?,
        }
        killed(&ran, kind, limit.as_millis() as u64)
    })
}

fn cpu_spin(scene: Scene) -> Judged {
    timed(scene, "cpu-spin", None, LimitKind::CpuTime)
}

fn cpu_spin_by_the_clock(scene: Scene) -> Judged {
    timed(scene, "cpu-spin", None, LimitKind::WallTime)
}

/// The budget is the cell's, not each thread's.
fn cpu_spin_in_threads(scene: Scene) -> Judged {
    timed(scene, "cpu-spin", Some("8"), LimitKind::CpuTime)
}

fn ignore_term(scene: Scene) -> Judged {
    timed(scene, "ignore-term", None, LimitKind::WallTime)
}

/// Seen alive while the cell lives, so that not seeing it afterwards means something.
fn daemon(scene: Scene) -> Judged {
    Box::pin(async move {
        let look = async {
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let traces = Traces::of(scene.rig.run_id());
                if traces.processes.iter().any(|(_, command)| command.contains("probe daemon")) {
                    return true;
                }
            }
            false
        };
        let script = "./probe daemon 30 beat; sleep 0.6";
        let run = watched(&scene, |cell| cell.probe(["daemon"]).shell(script));
        let (ran, seen) = tokio::join!(run, look);
        let ran = ran?;
        // What runs in gVisor is no process of this kernel: there, the look at the house has to do.
        let gvisor = scene.rig.is_in_gvisor(&scene.stack);
        match (ran.code(), seen || gvisor) {
            (Some(0), true) if ran.took < Duration::from_secs(3) => Ok(Finding::Held),
            _ => Err(format!("daemon seen: {seen}, {}", ran.story())),
        }
    })
}

fn zombies(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.probe(["zombies", "30"])).await?;
        // Where the probe cannot see processes, the look at the house has judged.
        match ran.code() {
            Some(30) if ran.out().contains("judged from outside: 30 orphans") => Ok(Finding::Held),
            _ => judge(&ran),
        }
    })
}

/// Done in the time it set itself, with its own word for it, and nobody else noticed.
fn signal_storm(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.probe(["signal-storm", "1"])).await?;
        in_time(&ran, Duration::from_secs(1))?;
        match ran.code() == Some(30) && ran.out().contains("judged from outside") {
            true => Ok(Finding::Held),
            false => Err(ran.story()),
        }
    })
}

fn flood_stdout(scene: Scene) -> Judged {
    flood(scene, &["output-flood", "256"])
}

fn flood_stderr(scene: Scene) -> Judged {
    flood(scene, &["output-flood", "256", "err"])
}

/// Cut to the byte, flagged, and this process does not grow.
fn flood(scene: Scene, args: &'static [&'static str]) -> Judged {
    Box::pin(async move {
        let before = resident();
        let ran = watched(&scene, |cell| cell.probe(args.iter().copied()).max_output("64K")).await?;
        let grown = resident().saturating_sub(before);
        let kept = ran.stdout.len() + ran.stderr.len();
        let flagged = match args.last() {
            Some(&"err") => ran.outcome.stderr_truncated,
            _ => ran.outcome.stdout_truncated,
        };
        hit(&ran, LimitKind::Output, 64 << 10, 0)?;
        match ran.code() {
            Some(30) if kept == 64 << 10 && flagged && grown < 32 * MIB => Ok(Finding::Held),
            _ => Err(format!(
                "kept {kept} bytes, flagged {flagged}, grown by {grown}: {}",
                ran.outcome.status.describe()
            )),
        }
    })
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn hold_stdout(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.probe(["hold-stdout", "30"])).await?;
        match ran.code() == Some(30) && ran.took < Duration::from_secs(2) {
            true => Ok(Finding::Held),
            false => Err(ran.story()),
        }
    })
}

/// Whatever the files claim, no more comes out than the disk could hold, and not too deep.
fn out_bomb(scene: Scene) -> Judged {
    Box::pin(async move {
        let script = "mkdir out && ./probe out-bomb out 1";
        let ran = watched(&scene, |cell| cell.probe(["out-bomb"]).shell(script).out("/work/out")).await?;
        let came: usize = ran.files.entries.iter().map(|entry| entry.bytes.len()).sum();
        let deepest = ran.files.entries.iter().map(|entry| entry.path.split('/').count()).max().unwrap_or(0);
        let told = ran.outcome.status.as_str() == "failed" || !ran.files.skipped.is_empty();
        match came as u64 <= 64 * MIB && deepest <= 64 && told {
            true => Ok(Finding::Held),
            false => Err(format!("{came} bytes, {deepest} deep, {}", ran.story())),
        }
    })
}

fn sparse_file(scene: Scene) -> Judged {
    Box::pin(async move { judge(&watched(&scene, |cell| cell.probe(["sparse-file", ".", "1"])).await?) })
}

/// The trap that keeps a process from being waited for by number: the reaper must not fall into it.
fn traceme_allowed(scene: Scene) -> Judged {
    Box::pin(async move {
        let limit = Duration::from_millis(700);
        let needs = casemate_testkit::Need::Ptrace;
        let hung = watched(&scene, |cell| {
            cell.probe(["ptrace-traceme-thread", "hang"]).needs(needs).timeout("700ms")
        });
        let hung = hung.await?;
        in_time(&hung, limit)?;
        killed(&hung, LimitKind::WallTime, 700)?;
        let exit = cell(&scene.rig, &scene.stack).probe(["ptrace-traceme-thread", "exit"]);
        let exited = exit.needs(needs).timeout("700ms").run().await;
        in_time(&exited, limit)?;
        // gVisor lets only the first thread of a process be traced like this.
        let refused = scene.rig.is_in_gvisor(&scene.stack) && exited.code() == Some(10);
        match exited.out().contains("PTRACE_TRACEME from a thread of the payload: done") || refused {
            true => Ok(Finding::Held),
            false => Err(exited.story()),
        }
    })
}
