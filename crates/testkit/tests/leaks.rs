//! A long-lived engine: a thousand runs, twenty at a time, and it is as small as before, with nothing of them left anywhere.
//! The tests here look at the whole machine and at their own process, so they run one after the other.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use casemate_core::outcome::Status;
use casemate_core::policy::Policy;
use casemate_core::request::{Isolation, Request, RequestDraft, Risk, Workload};
use casemate_core::stack::Stack;
use casemate_engine::{Config, Engine, Io};
use common::leftovers::{groups, names, processes};
use common::{Home, eventually};
use rustix::process::Signal;
use tokio::task::JoinSet;

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const RUNS: usize = 1000;
const SETTLED: usize = 200;
const AT_ONCE: usize = 20;
/// What an allocator may keep for itself.
const SLACK_KIB: u64 = 2 * 1024;

fn request(stack: &str, argv: &[&str]) -> Request {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    let mut draft = RequestDraft::new(Workload::Command { argv });
    draft.risk = Risk::Low;
    draft.isolation = Isolation::Exactly(stack.parse::<Stack>().expect("a stack"));
    Request::new(draft).expect("a request")
}

async fn engine(home: &Path) -> Engine {
    let policy = Policy::parse("[floors]\nlow = \"process\"").expect("a policy");
    Engine::open(Config::new(home, policy)).await.expect("an engine")
}

/// The size of the engine and of its launchers: resident KiB and open files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Size {
    engine: (u64, usize),
    launchers: Vec<(u64, usize)>,
}

impl Size {
    fn now() -> Size {
        let own = std::process::id() as i32;
        let mut launchers: Vec<i32> = processes()
            .into_iter()
            .filter(|process| process.parent == own && process.command.starts_with("casemate-launcher"))
            .map(|process| process.pid)
            .collect();
        launchers.sort_unstable();
        Size { engine: size(own), launchers: launchers.into_iter().map(size).collect() }
    }
}

fn size(pid: i32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is alive");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
    let resident = line.trim().trim_end_matches(" kB").parse().expect("a number");
    (resident, names(Path::new(&format!("/proc/{pid}/fd"))).len())
}

/// Twenty at a time; every third behind the process wall, every tenth with a daemon that wants to stay.
async fn many_runs(engine: &Arc<Engine>, count: usize) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (engine, next) = (engine.clone(), next.clone());
        workers.spawn(async move {
            while let n = next.fetch_add(1, Ordering::Relaxed)
                && n < count
            {
                one_run(&engine, n).await;
            }
        });
    }
    while let Some(joined) = workers.join_next().await {
        joined.expect("its runs");
    }
}

async fn one_run(engine: &Engine, n: usize) {
    let stack = if n.is_multiple_of(3) { "process" } else { "container" };
    let argv: &[&str] = match n % 10 {
        9 => &["sh", "-c", "setsid sleep 100 & echo x > $TMPDIR/x"],
        _ => &["true"],
    };
    let executed = engine.execute(request(stack, argv), Io::default()).await;
    assert_eq!(executed.outcome.status, Status::Exited { code: 0 }, "run {n} on {stack}");
    assert!(executed.receipt.is_some());
}

#[test]
fn a_thousand_runs_leave_nothing_and_the_engine_stays_small() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let home = Home::new();
    // The first runtime of a process opens what tokio then keeps for good.
    drop(tokio::runtime::Runtime::new().expect("a runtime"));
    let started = size(std::process::id() as i32);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = Arc::new(engine(&home.path()).await);
        many_runs(&engine, SETTLED).await;
        let settled = quiet(&home).await;
        many_runs(&engine, RUNS - SETTLED).await;
        let after = quiet(&home).await;
        println!("after {SETTLED} runs {settled:?}, after {RUNS} {after:?}");

        assert_eq!(after.engine.1, settled.engine.1, "open files of the engine");
        assert!(after.engine.0 < settled.engine.0 + SLACK_KIB, "the engine grew: {settled:?} {after:?}");
        assert_eq!(after.launchers.len(), settled.launchers.len(), "{after:?}");
        for (after, settled) in after.launchers.iter().zip(&settled.launchers) {
            assert_eq!(after.1, settled.1, "open files of a launcher");
            assert!(after.0 < settled.0 + SLACK_KIB / 4, "a launcher grew: {settled:?} {after:?}");
        }
        Arc::into_inner(engine).expect("nobody else has it").shutdown().await.expect("a clean end");
    });
    drop(runtime);
    home.nothing_left();
    assert_eq!(
        names(Path::new("/proc/self/fd")).len(),
        started.1,
        "files that the engine left open in its process"
    );
    let report = home.verify();
    assert_eq!((report["executions"].as_u64(), report["records"].as_u64()), (Some(1000), Some(2000)));
}

#[test]
fn an_engine_that_is_dropped_takes_its_launcher_with_it() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let home = Home::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = engine(&home.path()).await;
        let executed = engine.execute(request("container", &["true"]), Io::default()).await;
        assert_eq!(executed.outcome.status, Status::Exited { code: 0 });
        // As a panic does it.
        drop(engine);
        let own = std::process::id() as i32;
        assert!(!processes().iter().any(|one| one.parent == own), "a launcher is left");
        // What it could not tidy up any more is for the next one.
        self::engine(&home.path()).await.shutdown().await.expect("a clean end");
    });
    home.nothing_left();
}

/// The sizes once every cell is gone. An engine that is open keeps its own directories and what it built ahead. The chain
/// is not read here: that would count as the engine's memory.
async fn quiet(home: &Home) -> Size {
    let own = std::process::id() as i32;
    let run = home.live_runs().into_iter().next().expect("the engine's run");
    // One group in each hierarchy is that of the next cell.
    let has_cells = || {
        let ours: Vec<String> = groups().into_iter().filter(|group| group.contains(&run)).collect();
        let hierarchy = |group: &str| group.rsplit_once('/').map(|(dir, _)| dir.to_owned());
        let hierarchies: BTreeSet<_> = ours.iter().map(|group| hierarchy(group)).collect();
        ours.len() > hierarchies.len()
    };
    eventually("every cell of an open engine is gone", Duration::from_secs(10), || {
        let all = processes();
        let launchers: Vec<i32> = all.iter().filter(|one| one.parent == own).map(|one| one.pid).collect();
        !all.iter().any(|one| launchers.contains(&one.parent)) && !has_cells()
    });
    let scratch = names(&std::env::temp_dir().join(format!("casemate-{run}")));
    assert!(scratch.is_empty(), "files of cells: {scratch:?}");
    tokio::time::sleep(Duration::from_millis(50)).await;
    Size::now()
}

/// Everything on this machine that looks like Casemate's and has no living owner.
fn orphans() -> BTreeSet<String> {
    let all = processes();
    let files: BTreeSet<String> =
        all.iter().filter(|one| one.is_agent()).flat_map(|one| one.files()).collect();
    let has_owner = |name: &str| {
        let run = name.split(['.', '-']).find(|part| part.len() == 32);
        run.is_some_and(|run| files.iter().any(|file| file.contains(run)))
    };
    let mut found = BTreeSet::new();
    found.extend(groups().into_iter().filter(|group| !has_owner(group.rsplit('/').next().unwrap_or(group))));
    let scratch = names(&std::env::temp_dir()).into_iter().filter(|name| name.starts_with("casemate-"));
    found.extend(scratch.filter(|name| !has_owner(name)));
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    found.extend(mounts.lines().filter(|line| line.contains("casemate")).map(str::to_owned));
    let lost = all.iter().filter(|one| one.is_agent() && one.parent == 1);
    found.extend(lost.map(|one| format!("process {} ({})", one.pid, one.command)));
    found
}

#[test]
fn nothing_without_an_owner_is_left_on_the_machine() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = orphans();
    let home = Home::new();
    let process = home.on_process();
    let process: Vec<&str> = process.iter().map(String::as_str).collect();
    for wall in [&[][..], &process[..]] {
        home.run(&[wall, &["--", "true"]].concat()).expect(0);
        home.run(&[wall, &["--timeout", "100ms", "--", "sh", "-c", "setsid sleep 100 & sleep 100"]].concat())
            .expect(124);
        home.run(&[wall, &["--", "no-such-command"]].concat()).expect(125);
        let killed = common::Running::start(home.run_command(&[wall, &["--", "sleep", "100"]].concat()));
        std::thread::sleep(Duration::from_millis(100));
        killed.signal(Signal::KILL);
        killed.finish().expect(137);
    }
    home.casemate(&["doctor"]).expect(0);
    home.soon_no_process_left(&BTreeSet::new());
    home.run(&["--", "true"]).expect(0);
    home.nothing_left();
    // Others may be in the middle of something: what is really lost, stays.
    eventually("what is left on the machine has an owner", Duration::from_secs(10), || {
        orphans().difference(&before).next().is_none()
    });
}
