//! Casemate is killed, its launcher is killed, it is told to stop: the cell goes, the chain holds, and others are not touched.

mod common;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use common::leftovers::{Process, processes};
use common::{Home, Running, eventually, is_root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const KILLS: usize = 32;

/// Flags for each of the walls that this user can have.
fn walls(home: &Home) -> Vec<Vec<String>> {
    let on = |wall: &str| vec!["--on".to_owned(), wall.to_owned()];
    let mut walls = vec![on("container"), home.on_process().to_vec()];
    if is_root() {
        walls.push(on("gvisor"));
    }
    walls
}

/// How long a run that does nothing takes on a wall, at most on a quiet machine.
fn life(wall: &[String]) -> Duration {
    Duration::from_millis(if wall.iter().any(|word| word == "gvisor") { 240 } else { 60 })
}

fn start(home: &Home, wall: &[String], words: &[&str]) -> Running {
    let wall: Vec<&str> = wall.iter().map(String::as_str).collect();
    Running::start(home.run_command(&[&wall, words].concat()))
}

/// A run that goes on until its input ends, and the directory of its run.
fn sibling(home: &Home) -> (Running, BTreeSet<String>) {
    let mut command =
        home.run_command(&["--timeout", "120s", "--", "sh", "-c", "echo ready; cat; echo untouched"]);
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    running.wait_for_output("ready");
    (running, home.live_runs())
}

/// How the executions of runs other than the sibling's ended.
fn last_events(home: &Home, sibling: &BTreeSet<String>) -> Vec<String> {
    let mut last = std::collections::BTreeMap::new();
    for record in home.records() {
        let text = |key: &str| record[key].as_str().expect("a string").to_owned();
        if !sibling.contains(&text("run")) {
            last.insert(text("id"), text("event"));
        }
    }
    last.into_values().collect()
}

#[test]
fn killed_at_any_moment_it_leaves_a_chain_that_the_next_start_completes() {
    let home = Home::new();
    let walls = walls(&home);
    let (mut sibling, siblings) = sibling(&home);
    let seed = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").subsec_nanos() as usize;
    for n in 0..KILLS {
        let wall = &walls[n % walls.len()];
        // Every part of a run's life gets its share; where exactly, is up to chance.
        let chance = Duration::from_micros((seed.wrapping_mul(n + 7) % 3000) as u64);
        let delay = life(wall) * n as u32 / KILLS as u32 + chance;
        let run = start(&home, wall, &["--", "sh", "-c", "echo x > /tmp/x; exec sleep 0.02"]);
        thread::sleep(delay);
        run.signal(Signal::KILL);
        home.runs();
        let code = run.finish().code;
        assert!([137, 0].contains(&code), "after {delay:?}: {code}");
        home.soon_no_process_left(&siblings);

        home.run(&["--", "true"]).expect(0);
        let left = home.leftovers(&siblings);
        assert!(left.is_empty(), "killed after {delay:?}, left behind: {left:#?}");
        let report = home.verify();
        assert_eq!(report["open"].as_array().map(Vec::len), Some(1), "only the sibling is open: {report}");
        assert_eq!(report["unsealed"], json!(0), "whoever ends in order seals everything: {report}");
    }
    let ends = last_events(&home, &siblings);
    let interrupted = ends.iter().filter(|end| *end == "interrupted").count();
    assert!(ends.iter().all(|end| end == "closed" || end == "interrupted"), "{ends:?}");
    assert!(interrupted >= 3, "the kills hit something that ran: {ends:?}");

    sibling.feed(b"still here\n");
    assert_eq!(sibling.finish().expect(0).out(), "ready\nstill here\nuntouched\n");
    assert_eq!(home.verify()["open"], json!([]));
    home.nothing_left();
}

#[test]
fn a_payload_does_not_outlive_a_killed_casemate() {
    let home = Home::new();
    for wall in walls(&home) {
        let daemon = "setsid sleep 100 & echo ready; exec sleep 100";
        let mut run = start(&home, &wall, &["--timeout", "200s", "--", "sh", "-c", daemon]);
        run.wait_for_output("ready");
        let before = Instant::now();
        run.signal(Signal::KILL);
        run.finish().expect(137);
        home.soon_no_process_left(&BTreeSet::new());
        assert!(before.elapsed() < Duration::from_secs(1), "{wall:?}: {:?}", before.elapsed());
        // Nobody needs to be told twice what happened to it.
        for _ in 0..2 {
            home.run(&["--", "true"]).expect(0);
        }
        let interrupted =
            home.records().into_iter().filter(|record| record["event"] == "interrupted").count();
        assert_eq!(interrupted, 1, "{wall:?}");
        home.nothing_left();
        std::fs::remove_dir_all(home.path().join("evidence")).unwrap();
    }
}

#[test]
fn many_that_come_after_a_kill_recover_it_once() {
    let home = Home::new();
    let mut killed = start(&home, &[], &["--", "sh", "-c", "echo ready; exec sleep 100"]);
    killed.wait_for_output("ready");
    killed.signal(Signal::KILL);
    killed.finish().expect(137);
    home.soon_no_process_left(&BTreeSet::new());
    let next: Vec<Running> = (0..6).map(|_| start(&home, &[], &["--timeout", "60s", "--", "true"])).collect();
    for run in next {
        run.finish().expect(0);
    }
    let events: Vec<Value> = home.records().into_iter().map(|mut record| record["event"].take()).collect();
    assert_eq!(events.iter().filter(|event| *event == "interrupted").count(), 1, "{events:?}");
    assert_eq!(home.verify()["open"], json!([]));
    home.nothing_left();
}

/// The launcher of a running `casemate`.
fn launcher_of(run: &Running) -> Pid {
    let casemate = run.pid().as_raw_nonzero().get();
    let is_ours =
        |process: &Process| process.parent == casemate && process.command.starts_with("casemate-launcher");
    let mut launchers: Vec<Process> = processes().into_iter().filter(is_ours).collect();
    // The one of the process wall is started last, when it is needed.
    launchers.sort_by_key(|process| process.pid);
    Pid::from_raw(launchers.last().expect("a launcher").pid).expect("a pid")
}

#[test]
fn a_run_whose_launcher_is_killed_fails_and_says_so() {
    let home = Home::new();
    for wall in walls(&home) {
        let mut run =
            start(&home, &wall, &["--timeout", "100s", "--", "sh", "-c", "echo ready; exec sleep 100"]);
        run.wait_for_output("ready");
        let before = Instant::now();
        kill_process(launcher_of(&run), Signal::KILL).unwrap();
        let done = run.finish().expect(125);
        assert!(before.elapsed() < Duration::from_secs(2), "{wall:?}: {:?}", before.elapsed());
        assert!(done.err().starts_with("error: "), "{wall:?}: {}", done.err());
        assert!(done.err().contains("launcher"), "{wall:?}: {}", done.err());
        // What the dead launcher could not take down, the next start does, if not this one did.
        home.soon_no_process_left(&BTreeSet::new());
        home.run(&["--", "true"]).expect(0);
        home.nothing_left();
        assert_eq!(home.verify()["open"], json!([]));
    }
    let failed = home.records().iter().filter(|record| record["body"]["status"]["kind"] == "failed").count();
    assert_eq!(failed, walls(&home).len());
}

/// Nobody closes the cell's channel, as the engine is stopped: the kernel ends it.
#[test]
fn a_container_does_not_outlive_its_launcher() {
    let home = Home::new();
    let mut run = start(
        &home,
        &walls(&home)[0],
        &["--timeout", "100s", "--", "sh", "-c", "echo ready; exec sleep 100"],
    );
    run.wait_for_output("ready");
    let launcher = launcher_of(&run);
    let children_of = |parent: i32| -> Vec<i32> {
        processes().iter().filter(|process| process.parent == parent).map(|process| process.pid).collect()
    };
    let guests = children_of(launcher.as_raw_nonzero().get());
    let cell: Vec<i32> = guests.iter().flat_map(|guest| children_of(*guest)).chain(guests.clone()).collect();
    assert!(cell.len() >= 2, "a guest and its payload: {cell:?}");
    run.signal(Signal::STOP);
    kill_process(launcher, Signal::KILL).unwrap();
    eventually("the cell is gone", Duration::from_secs(2), || {
        let alive = |pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z') && !rest.starts_with('X'))
        };
        !cell.iter().any(alive)
    });
    run.signal(Signal::CONT);
    run.finish().expect(125);
    home.run(&["--", "true"]).expect(0);
    home.nothing_left();
}

#[test]
fn told_to_stop_it_kills_the_cell_and_closes_the_record() {
    let home = Home::new();
    for wall in walls(&home) {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let stubborn = "trap '' INT TERM HUP; echo ready; sleep 100; sleep 100";
            let mut run = start(&home, &wall, &["--timeout", "200s", "--", "sh", "-c", stubborn]);
            run.wait_for_output("ready");
            let before = Instant::now();
            run.signal(signal);
            let done = run.finish().expect(137);
            assert!(before.elapsed() < Duration::from_secs(1), "{signal:?}: {:?}", before.elapsed());
            assert!(done.err().contains("cancelled"), "{}", done.err());
            home.nothing_left();
        }
    }
    let report = home.verify();
    let executions = 3 * walls(&home).len();
    assert_eq!((&report["executions"], &report["open"]), (&json!(executions), &json!([])));
    let closed: Vec<Value> =
        home.records().into_iter().filter(|record| record["event"] == "closed").collect();
    assert!(closed.iter().all(|record| record["body"]["status"]["cause"] == "cancelled"), "{closed:?}");
}

#[test]
fn told_to_stop_at_any_moment_it_leaves_nothing() {
    let home = Home::new();
    for n in 0..16 {
        let run = start(&home, &[], &["--", "sleep", "100"]);
        thread::sleep(Duration::from_millis(n * 3));
        run.signal(Signal::INT);
        run.signal(Signal::TERM);
        let code = run.finish().code;
        // Before it could catch the signal, it is ended by it as any other program.
        assert!([137, 130, 143].contains(&code), "after {n}: {code}");
        eventually("everything is gone", Duration::from_secs(2), || {
            home.live_runs().is_empty() || code != 137
        });
    }
    home.soon_no_process_left(&BTreeSet::new());
    home.run(&["--", "true"]).expect(0);
    assert_eq!(home.verify()["open"], json!([]));
    home.nothing_left();
}
