//! Whatever a payload does to its limits, the run ends in time, says which limit it was, and leaves nothing behind.

mod common;

use std::time::Duration;

use common::{Done, Home, is_root};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const PROMISED: Duration = Duration::from_secs(1);

/// Runs the words behind both native walls; `check` sees how each ended, and afterwards nothing is left. A limit that a
/// wall cannot enforce for this user must be refused.
fn behind_each_wall(words: &[&str], check: impl Fn(&str, Done, Value)) {
    let home = Home::new();
    let process = home.on_process().to_vec();
    behind(
        &home,
        &[("container", vec!["--on".into(), "container".into()]), ("process", process)],
        words,
        check,
    );
}

/// The same for Python, which the stacks that end in WASM run as well.
fn in_python(words: &[&str], check: impl Fn(&str, Done, Value)) {
    let home = Home::with_languages();
    let process = home.on_process().to_vec();
    let [container_wasm, process_wasm] = home.on_wasm();
    let walls = [
        ("container", vec!["--on".into(), "container".into()]),
        ("process", process),
        ("container+wasm", container_wasm),
        ("process+wasm", process_wasm),
    ];
    behind(&home, &walls, words, check);
}

fn behind(home: &Home, walls: &[(&str, Vec<String>)], words: &[&str], check: impl Fn(&str, Done, Value)) {
    for (wall, flags) in walls {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (done, json) = home.run_json(&[&flags[..], words].concat());
        home.nothing_left();
        if words.iter().any(|word| !is_enforced(wall, word)) {
            assert_eq!(
                (done.code, json["status"]["kind"].as_str()),
                (125, Some("refused")),
                "{wall}: {json}"
            );
            assert!(json["status"]["hint"].as_str().expect("a hint").contains("root"), "{wall}: {json}");
            continue;
        }
        assert_eq!(json["stack"], json!(wall.split('+').collect::<Vec<_>>()));
        check(wall, done, json);
    }
    assert_eq!(home.verify()["open"], json!([]));
    let asked = home
        .records()
        .iter()
        .filter(|record| record["event"] != "closed" && record["body"]["worker"].is_null())
        .count();
    assert_eq!(asked, walls.len(), "one execution each");
}

/// Whether the limit with this flag can be enforced for whoever runs these tests.
fn is_enforced(wall: &str, flag: &str) -> bool {
    match flag {
        "--memory" | "--cpu-time" if wall.ends_with("wasm") => true,
        "--memory" | "--cpu-time" | "--cpus" => is_root(),
        "--pids" => is_root() || wall != "process",
        _ => true,
    }
}

#[track_caller]
fn killed(wall: &str, done: &Done, json: &Value, cause: &str, limit: u64) -> u64 {
    assert_eq!(json["status"]["kind"], "killed", "{wall}: {json}");
    assert_eq!(json["status"]["cause"], cause, "{wall}");
    assert_eq!(json["status"]["limit"], limit, "{wall}");
    let time = matches!(cause, "wall-time" | "cpu-time");
    assert_eq!(done.code, if time { 124 } else { 137 }, "{wall}");
    json["status"]["peak"].as_u64().unwrap_or_else(|| panic!("{wall}: no peak in {json}"))
}

/// The entry of `limits_hit`, which must be there once.
#[track_caller]
fn hit(json: &Value, kind: &str, limit: u64) -> u64 {
    let hits: Vec<&Value> =
        json["limits_hit"].as_array().into_iter().flatten().filter(|hit| hit["kind"] == kind).collect();
    let [hit] = hits[..] else { panic!("{kind} is not once in limits_hit: {json}") };
    assert_eq!(hit["limit"], limit);
    hit["peak"].as_u64().expect("a peak")
}

#[track_caller]
fn in_time(wall: &str, done: &Done, limit: Duration) {
    assert!(done.took < limit + PROMISED, "{wall}: took {:?} with a limit of {limit:?}", done.took);
}

#[test]
fn a_memory_bomb_is_killed_for_its_memory() {
    let bomb = "x = []\nwhile True: x.append(bytearray(1 << 20))";
    in_python(&["--memory", "32M", "-c", bomb], |wall, done, json| {
        let peak = killed(wall, &done, &json, "memory", 32 * MIB);
        assert!((31 * MIB..=32 * MIB).contains(&peak), "{wall}: {peak}");
        in_time(wall, &done, Duration::from_secs(1));
    });
}

#[test]
fn a_bomb_in_a_child_counts_even_if_its_parent_survives() {
    let bomb = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'; sleep 30";
    behind_each_wall(&["--memory", "32M", "--lang", "shell", "-c", bomb], |wall, done, json| {
        killed(wall, &done, &json, "memory", 32 * MIB);
        in_time(wall, &done, Duration::from_secs(1));
    });
}

#[test]
fn a_fork_bomb_gets_no_further_than_its_processes() {
    // Not a shell's: one that cannot fork gives up, and with it the run may end before its time.
    let bomb = "import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(0.01)";
    let words = ["--pids", "16", "--timeout", "500ms", "-c", bomb];
    behind_each_wall(&words, |wall, done, json| {
        killed(wall, &done, &json, "wall-time", 500);
        assert!(json["usage"]["pids_peak"].as_u64().expect("a peak") <= 16, "{wall}: {json}");
        in_time(wall, &done, Duration::from_millis(500));
        if is_root() {
            assert_eq!(hit(&json, "pids", 16), 16, "{wall}");
        }
    });
}

#[test]
fn too_many_processes_fail_to_start_and_are_reported() {
    let many = "import subprocess, time
try:
    while True: subprocess.Popen(['sleep', '100'])
except OSError as error: print(error.strerror)
time.sleep(0.3)";
    behind_each_wall(&["--pids", "16", "-c", many], |wall, done, json| {
        assert_eq!(json["stdout"], "Resource temporarily unavailable\n", "{wall}: {json}");
        assert_eq!(hit(&json, "pids", 16), 16, "{wall}");
        in_time(wall, &done, Duration::from_secs(1));
    });
}

#[test]
fn a_spin_is_killed_for_its_cpu_time() {
    in_python(&["--cpu-time", "200ms", "-c", "while True: pass"], |wall, done, json| {
        let peak = killed(wall, &done, &json, "cpu-time", 200);
        assert!((200..700).contains(&peak), "{wall}: {peak}");
        in_time(wall, &done, Duration::from_millis(200));
    });
}

#[test]
fn the_cpu_time_of_many_short_processes_adds_up() {
    let many = "while :; do /usr/bin/true; done";
    behind_each_wall(&["--cpu-time", "200ms", "--", "sh", "-c", many], |wall, done, json| {
        killed(wall, &done, &json, "cpu-time", 200);
        in_time(wall, &done, Duration::from_millis(200));
    });
}

#[test]
fn a_sleep_past_the_timeout_ends_with_the_timeout() {
    in_python(&["--timeout", "300ms", "-c", "import time; time.sleep(30)"], |wall, done, json| {
        let peak = killed(wall, &done, &json, "wall-time", 300);
        assert!((300..1300).contains(&peak), "{wall}: {peak}");
        in_time(wall, &done, Duration::from_millis(300));
    });
}

#[test]
fn a_payload_that_ignores_signals_ends_all_the_same() {
    let stubborn = "trap '' TERM INT HUP QUIT; while :; do sleep 1; done";
    behind_each_wall(&["--timeout", "300ms", "--", "sh", "-c", stubborn], |wall, done, json| {
        killed(wall, &done, &json, "wall-time", 300);
        in_time(wall, &done, Duration::from_millis(300));
    });
}

#[test]
fn a_full_disk_fails_the_write_and_is_reported() {
    let home = Home::new();
    let fill = "head -c 64M /dev/zero > /work/x; echo $?";
    let (done, json) = home.run_json(&["--disk", "4M", "--", "sh", "-c", fill]);
    assert_eq!(json["status"], json!({"kind": "exited", "code": 0}));
    assert_eq!(json["stdout"], "1\n");
    assert!(json["stderr"].as_str().unwrap().contains("No space left on device"), "{json}");
    let peak = hit(&json, "disk", 4 * MIB);
    assert!((4 * MIB - 4096..=4 * MIB).contains(&peak), "{peak}");
    assert_eq!(done.code, 0);
    home.nothing_left();
}

#[test]
fn no_directory_is_beyond_the_disk_limit() {
    let home = Home::new();
    let fill = "for d in /work /tmp /dev/shm; do head -c 64M /dev/zero > $d/x; done 2>/dev/null; cat /work/x /tmp/x /dev/shm/x | wc -c";
    let (_, json) = home.run_json(&["--disk", "4M", "--", "sh", "-c", fill]);
    let written: u64 = json["stdout"].as_str().unwrap().trim().parse().unwrap();
    assert!(written <= 4 * MIB, "{written} bytes in a disk of 4 MiB");
    hit(&json, "disk", 4 * MIB);
}

#[test]
fn too_many_files_fail_to_be_made_and_are_reported() {
    let home = Home::new();
    let fill = "import os\nfor n in range(1000): open(f'/work/{n}', 'w')";
    let (_, json) = home.run_json(&["--inodes", "100", "-c", fill]);
    assert_eq!(json["status"], json!({"kind": "exited", "code": 1}));
    assert!(json["stderr"].as_str().unwrap().contains("No space left on device"), "{json}");
    assert_eq!(hit(&json, "inodes", 100), 100);
    home.nothing_left();
}

#[test]
fn a_flood_of_output_is_cut_at_the_limit() {
    let flood = "print(end='x' * (8 << 20))";
    in_python(&["--max-output", "64K", "-c", flood], |wall, done, json| {
        assert_eq!(json["status"], json!({"kind": "exited", "code": 0}), "{wall}");
        assert_eq!(json["stdout"].as_str().unwrap(), "x".repeat(64 << 10), "{wall}");
        assert_eq!(json["stdout_truncated"], true, "{wall}");
        assert_eq!(hit(&json, "output", 64 << 10), 8 * MIB, "{wall}");
        assert_eq!(done.code, 0);
    });
}

#[test]
fn an_endless_flood_ends_with_the_timeout() {
    let words = ["--max-output", "64K", "--timeout", "300ms", "-c", "while True: print('y' * 999)"];
    in_python(&words, |wall, done, json| {
        killed(wall, &done, &json, "wall-time", 300);
        assert_eq!(json["stdout"].as_str().unwrap().len(), 64 << 10, "{wall}");
        assert_eq!(json["stdout_truncated"], true, "{wall}");
        hit(&json, "output", 64 << 10);
        in_time(wall, &done, Duration::from_millis(300));
    });
}

#[test]
fn too_many_open_files_fail_to_be_opened() {
    let open = "import os, time
fd = []
try:
    while True: fd.append(os.open('/dev/null', 0))
except OSError as error: print(error.strerror)
time.sleep(0.3)";
    behind_each_wall(&["--nofile", "32", "-c", open], |wall, _, json| {
        assert_eq!(json["stdout"], "Too many open files\n", "{wall}: {json}");
        assert_eq!(hit(&json, "open-files", 32), 32, "{wall}");
    });
}

#[test]
fn a_daemon_does_not_outlive_its_run() {
    let daemon = "import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        time.sleep(100)
    os._exit(0)
os.wait()
raise SystemExit(3)";
    behind_each_wall(&["-c", daemon], |wall, done, json| {
        assert_eq!(json["status"], json!({"kind": "exited", "code": 3}), "{wall}");
        in_time(wall, &done, Duration::ZERO);
    });
}

#[test]
fn a_child_that_holds_standard_output_open_does_not_hold_up_the_end() {
    behind_each_wall(&["--", "sh", "-c", "sleep 100 & echo done; exit 4"], |wall, done, json| {
        assert_eq!(json["status"], json!({"kind": "exited", "code": 4}), "{wall}");
        assert_eq!(json["stdout"], "done\n", "{wall}");
        in_time(wall, &done, Duration::ZERO);
    });
}
