//! Whatever is wrong with what Casemate is given, it says so, says what to do, exits with 125, and leaves nothing half-made.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use common::{Home, finish, is_root};
use serde_json::json;

/// Not even the words of the command are in order: there is an error and a hint, and no record of anything that ran.
#[track_caller]
fn refused(home: &Home, words: &[&str], reason: &str) {
    home.casemate(words).refused(reason);
    home.nothing_left();
    let ran = home.records().iter().any(|record| record["event"] == "opened");
    assert!(!ran, "{words:?} was started");
}

#[test]
fn a_missing_command_is_refused() {
    let home = Home::new();
    refused(&home, &["run"], "nothing to run");
    refused(&home, &["run", "--"], "nothing to run");
    refused(&home, &["run", "--", ""], "");
    refused(&home, &["run", "--memory", "64M"], "nothing to run");
}

#[test]
fn a_command_that_is_not_in_the_cell_is_refused() {
    let home = Home::new();
    for words in [&["--", "no-such-command"][..], &["--", "/root/.bashrc"], &["--", "./here"]] {
        home.run(words).refused("not found");
        home.nothing_left();
    }
    home.run(&["--", "/etc/passwd"]).refused("cannot be executed");
    home.run(&["--", "/usr"]).refused("cannot be executed");
    home.run(&["--cwd", "/no/such/place", "--", "true"]).refused("working directory");
    home.nothing_left();
    let (done, json) = home.run_json(&["--", "no-such-command"]);
    assert_eq!((done.code, json["status"]["kind"].as_str()), (125, Some("refused")));
    assert!(!json["status"]["hint"].as_str().unwrap().is_empty());
    assert_eq!(home.verify()["open"], json!([]));
}

#[test]
fn an_unknown_image_is_refused() {
    let home = Home::new();
    refused(&home, &["run", "--image", "debian:12", "--", "true"], "debian:12");
    refused(&home, &["run", "--image", "/no/such/place", "--", "true"], "/no/such/place");
    refused(&home, &["run", "--image", "/etc/passwd", "--", "true"], "/etc/passwd");
    refused(&home, &["run", "--image", "", "--", "true"], "");
}

#[test]
fn every_limit_refuses_what_makes_no_sense() {
    let home = Home::new();
    let flags = [
        ("--timeout", "0s"),
        ("--cpu-time", "1ns"),
        ("--cpus", "0"),
        ("--memory", "1"),
        ("--disk", "1"),
        ("--inodes", "1"),
        ("--disk-io", "1"),
        ("--pids", "0"),
        ("--nofile", "1"),
        ("--max-output", "2T"),
    ];
    for (flag, too_little_or_much) in flags {
        for value in ["", "-1", "-5M", "many", "1e99", "99999999999999999999", too_little_or_much] {
            refused(&home, &["run", flag, value, "--", "true"], "");
        }
    }
    refused(&home, &["run", "--memory", "65G", "--", "true"], "64 GiB");
    refused(&home, &["run", "--timeout", "25h", "--", "true"], "24h");
    refused(&home, &["run", "--memory", "16M", "--disk", "32M", "--", "true"], "disk");
    // Every refusal has its record.
    let refusals = home.records();
    assert_eq!(refusals.len(), flags.len() * 7 + 3);
    assert!(refusals.iter().all(|record| record["event"] == "refused"));
    home.verify();
}

#[test]
fn an_unknown_flag_is_refused() {
    let home = Home::new();
    refused(&home, &["run", "--no-sandbox", "--", "true"], "--no-sandbox");
    refused(&home, &["run", "--memroy", "64M", "--", "true"], "--memroy");
    refused(&home, &["run", "--memory"], "--memory");
    refused(&home, &["run", "--risk", "none", "--", "true"], "none");
    refused(&home, &["run", "--on", "castle", "--", "true"], "castle");
    refused(&home, &["run", "--on", "container", "--at-least", "gvisor", "--", "true"], "--at-least");
    refused(&home, &["walk"], "walk");
    refused(&home, &["evidence", "show"], "");
    refused(&home, &["evidence", "verify", "--head", "nonsense"], "");
}

#[test]
fn what_no_wall_here_can_do_is_refused_and_never_done_with_less() {
    let home = Home::new();
    refused(&home, &["run", "--allow", "example.com:443", "--", "true"], "");
    refused(&home, &["run", "--secret", "TOKEN@example.com", "--", "true"], "");
    refused(&home, &["run", "--risk", "critical", "--", "true"], "microvm");
    if !is_root() {
        refused(&home, &["run", "--risk", "high", "--", "true"], "gvisor");
        refused(&home, &["run", "--on", "gvisor", "--", "true"], "gvisor");
    }
    refused(&home, &["run", "--on", "process", "--", "true"], "process");
    refused(&home, &["run", "--needs", "bpf", "--", "true"], "bpf");
    refused(&home, &["run", "--disk-io", "1M", "--", "true"], "disk-io");
    refused(&home, &["run", "--deterministic", "--", "true"], "deterministic");
}

#[test]
fn a_policy_that_cannot_be_read_stops_everything() {
    let home = Home::new();
    let directory = home.beside("directory");
    std::fs::create_dir(&directory).unwrap();
    let directory = directory.to_str().unwrap();
    for policy in ["/no/such/policy.toml", directory] {
        for command in [&["run", "--", "true"][..], &["explain", "--", "true"], &["doctor"]] {
            refused(&home, &[&["--policy", policy], command].concat(), policy);
        }
    }
    // The same for the one in the home, which nobody named.
    std::fs::create_dir(home.path().join("policy.toml")).unwrap();
    refused(&home, &["run", "--", "true"], "policy.toml");
}

#[test]
fn a_typo_in_a_policy_is_named_with_its_line() {
    let home = Home::new();
    let cases = [
        ("accept = []\n[floors]\nlow = \"container\"\nhihg = \"gvisor\"\n", ["line 4", "hihg"]),
        ("[floors]\n\nlow = \"castle\"\n", ["line 3", "castle"]),
        ("[defaults]\nmemory = \"lots\"\n", ["line 2", "memory"]),
        ("[tenants.acme.floor]\nlow = \"gvisor\"\n", ["line 1", "floor"]),
        ("[evidence]\ndurability = \"never\"\n", ["line 2", "never"]),
        ("[floors\n", ["line 1", "expected `]`"]),
    ];
    for (text, words) in cases {
        let policy = home.write_beside("policy.toml", text);
        for word in words.into_iter().chain([policy.as_str()]) {
            refused(&home, &["--policy", &policy, "run", "--", "true"], word);
        }
    }
    let policy = home.write_beside("policy.toml", b"accept = [\"\xff\"]");
    refused(&home, &["--policy", &policy, "run", "--", "true"], &policy);
}

#[test]
fn a_source_file_of_a_gigabyte_is_refused_at_once() {
    let home = Home::new();
    let path = home.beside("huge.py");
    File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let done = home.run(&[path.to_str().unwrap()]);
    done.refused("huge.py");
    assert!(done.took < Duration::from_secs(1), "{:?}", done.took);
    // As an input file it does not fit the disk of the cell.
    let done = home.run(&["--in", &format!("{}:/work/huge", path.display()), "--", "true"]);
    done.refused("huge");
    assert!(done.took < Duration::from_secs(5), "{:?}", done.took);
    home.nothing_left();
    home.verify();
}

#[test]
fn a_source_file_that_is_not_there_or_not_known_is_refused() {
    let home = Home::new();
    refused(&home, &["run", "/no/such/file.py"], "/no/such/file.py");
    refused(&home, &["run", "/usr"], "/usr");
    let strange = home.write_beside("strange.xyz", "hello");
    refused(&home, &["run", &strange], "language");
    refused(&home, &["run", "--lang", "cobol", &strange], "cobol");
}

#[test]
fn the_longest_argument_that_the_kernel_takes_arrives_or_is_refused() {
    let home = Home::new();
    // One byte more and `casemate` itself could not be started.
    let longest = "a".repeat(128 * 1024 - 1);
    let done = home.run(&["--", "sh", "-c", "printf %s ${#1}", "sh", &longest]).expect(0);
    assert_eq!(done.out(), "131071");
    let many: Vec<&str> = ["--", "true"].into_iter().chain([longest.as_str(); 14]).collect();
    let done = home.run(&many);
    if done.code != 0 {
        done.refused("together");
    }
    home.nothing_left();
    home.verify();
}

#[test]
fn arguments_that_are_not_utf8_are_refused() {
    let home = Home::new();
    let bad = |before: &str, after: &str| {
        OsString::from_vec([before.as_bytes(), b"\xff\xfe", after.as_bytes()].concat())
    };
    let words = |words: &[&str], bad: OsString, rest: &[&str]| -> Vec<OsString> {
        let all = words.iter().map(OsString::from).chain([bad]).chain(rest.iter().map(OsString::from));
        all.collect()
    };
    let cases = [
        words(&["run", "--", "echo"], bad("a", "b"), &[]),
        words(&["run", "--"], bad("/usr/bin/", ""), &[]),
        words(&["run", "-c"], bad("print(1) #", ""), &[]),
        words(&["run", "--env"], bad("A=", ""), &["--", "true"]),
        words(&["run", "--tenant"], bad("", ""), &["--", "true"]),
        words(&["run", "--cwd"], bad("/work/", ""), &["--", "true"]),
        words(&["run", "--out"], bad("/work/", ":/tmp"), &["--", "true"]),
        words(&["run", "--memory"], bad("", "M"), &["--", "true"]),
        words(&["evidence", "show"], bad("", ""), &[]),
        words(&[], bad("", ""), &[]),
    ];
    for case in cases {
        let done = finish(home.command(&case));
        done.refused("");
        // Nothing in the message could do anything to a terminal, either.
        assert!(std::str::from_utf8(&done.stderr).is_ok(), "{case:?}");
    }
    home.nothing_left();
    // A host path, on the other hand, may be anything.
    let strange = home.beside("x").with_file_name(OsStr::from_bytes(b"strange-\xff.py"));
    std::fs::write(&strange, "print('fine')").unwrap();
    let mut command = home.run_command(&[]);
    command.arg(strange);
    assert_eq!(finish(command).expect(0).out(), "fine\n");
}

#[test]
fn files_that_cannot_go_in_or_out_are_refused_before_anything_runs() {
    let home = Home::new();
    for pair in ["", ":", "nothing", ":/work/x", "/etc/passwd:", "/etc/passwd:relative"] {
        refused(&home, &["run", "--in", pair, "--", "true"], "");
    }
    for guest in ["/etc/passwd", "/usr/x", "/work/../etc/x", "/proc/self/mem"] {
        refused(&home, &["run", "--in", &format!("/etc/hostname:{guest}"), "--", "true"], "");
        refused(&home, &["run", "--out", &format!("{guest}:/tmp/cm-test-never"), "--", "true"], "");
    }
    refused(&home, &["run", "--in", "/no/such/file:/work/x", "--", "true"], "/no/such/file");
    refused(&home, &["run", "--in", "/dev/null:/work/x", "--", "true"], "/dev/null");
    refused(&home, &["run", "--out", "/work/x:/no/such/place/x", "--", "true"], "/no/such/place");
    refused(&home, &["run", "--env", "1=2=3\n", "--", "true"], "");
    refused(&home, &["run", "--env", "NOVALUE", "--", "true"], "NOVALUE");
}
