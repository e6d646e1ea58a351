//! The command line as its users meet it: what goes in, what comes out, and what the exit code says.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Home, Running, binary, eventually, finish, is_root};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn the_first_command_of_the_readme_says_hello() {
    let home = Home::new();
    let done = home.casemate(&["run", "-c", "print(\"hello from inside\")"]).expect(0);
    assert_eq!((done.out().as_str(), done.err().as_str()), ("hello from inside\n", ""));
}

#[test]
fn a_payload_sees_no_host_file_writes_nothing_and_is_nobody() {
    let home = Home::new();
    let script = r#"cat /etc/shadow; ls /root /home; cat /proc/1/environ; touch /usr/x; id -u; grep -E "CapEff|NoNewPrivs|Seccomp:" /proc/self/status"#;
    let done = home.casemate(&["run", "--", "sh", "-c", script]).expect(0);
    // No host file came out, not even a name.
    assert_eq!(done.out(), "1000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n");
    let err = done.err();
    let refusals: Vec<&str> = err.lines().collect();
    assert_eq!(refusals.len(), 5, "{err}");
    for (refusal, words) in refusals.iter().zip([
        "/etc/shadow: No such file",
        "'/root': No such file",
        "'/home': No such file",
        "/proc/1/environ: Permission denied",
        "'/usr/x': Read-only file system",
    ]) {
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(!fs::exists("/usr/x").unwrap());
    home.nothing_left();
}

#[test]
fn the_guests_own_end_is_the_exit_code() {
    let home = Home::new();
    for code in [0, 1, 7, 124, 125, 137, 255] {
        let (done, json) = home.run_json(&["--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(json["status"], json!({"kind": "exited", "code": code}));
        assert_eq!(done.code, code);
    }
    for (name, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11)] {
        let (done, json) = home.run_json(&["--", "sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(json["status"], json!({"kind": "signaled", "signal": number}));
        assert_eq!(done.code, 128 + number);
    }
    home.nothing_left();
}

#[test]
fn every_language_runs() {
    let home = Home::new();
    let file = home.write_beside("program.py", "import sys\nprint(sys.argv[1:])");
    let cases: [(&[&str], &str); 5] = [
        (&["-c", "print(6 * 7)"], "42\n"),
        (&["--lang", "javascript", "-c", "console.log(6 * 7)"], "42\n"),
        (&["--lang", "shell", "-c", "echo $((6 * 7)) $1", "arg"], "42 arg\n"),
        (&[&file, "--json", "-c", "x"], "['--json', '-c', 'x']\n"),
        (&["--", "expr", "6", "*", "7"], "42\n"),
    ];
    for (words, expected) in cases {
        assert_eq!(home.run(words).expect(0).out(), expected, "{words:?}");
    }
}

#[test]
fn nothing_of_the_hosts_environment_gets_in() {
    let home = Home::new();
    let mut command = home.run_command(&["--env", "A=b c", "--", "env"]);
    command.env("SECRET_TOKEN", "do not tell");
    let done = finish(command).expect(0);
    let out = done.out();
    let mut names: Vec<&str> = out.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "HOME", "MARK", "PATH", "TMPDIR"]);
    assert!(out.contains("A=b c\n"));
}

#[test]
fn output_arrives_while_the_run_goes_on() {
    let home = Home::new();
    let mut command = home.run_command(&["--timeout", "60s", "--", "sh", "-c", "echo first; cat; echo last"]);
    command.stdin(Stdio::piped());
    let mut run = Running::start(command);
    run.wait_for_output("first");
    run.feed(b"second\n");
    run.wait_for_output("second");
    assert_eq!(run.finish().expect(0).out(), "first\nsecond\nlast\n");
}

#[test]
fn bytes_pass_a_pipe_unchanged() {
    let home = Home::new();
    let script = "import sys
sys.stdout.buffer.write(bytes(range(256)) * 3)
sys.stderr.buffer.write(bytes(range(255, -1, -1)))";
    let done = home.run(&["-c", script]).expect(0);
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(done.stdout, all.repeat(3));
    assert_eq!(done.stderr, all.iter().rev().copied().collect::<Vec<u8>>());
    // In JSON, what is not text is there twice: readable, and exact.
    let (_, json) = home.run_json(&["-c", script]);
    use base64::Engine as _;
    let exact = base64::engine::general_purpose::STANDARD.decode(json["stdout_base64"].as_str().unwrap());
    assert_eq!(exact.unwrap(), all.repeat(3));
}

#[test]
fn input_passes_a_pipe_unchanged() {
    let home = Home::new();
    let input: Vec<u8> =
        (0..5_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).take(5 << 20).collect();
    let path = home.write_beside("input", &input);
    let mut command = home.run_command(&["--max-output", "16M", "--", "cat"]);
    command.stdin(fs::File::open(&path).unwrap());
    assert!(finish(command).expect(0).stdout == input, "the input came back changed");
    // A guest that does not read its input is not kept waiting for it.
    let mut command = home.run_command(&["--", "head", "-c", "3"]);
    command.stdin(fs::File::open("/dev/zero").unwrap());
    assert_eq!(finish(command).expect(0).stdout, [0; 3]);
    assert_eq!(home.run(&["--", "cat"]).expect(0).out(), "");
    home.nothing_left();
}

/// The words on a terminal of their own.
fn on_a_terminal(home: &Home, words: &str) -> Command {
    let mut command = Command::new("script");
    command.args(["-qec", &format!("{} {words}", binary().display()), "/dev/null"]);
    command
        .env("CASEMATE_HOME", home.path())
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    command
}

#[test]
fn on_a_terminal_output_is_shown_and_never_obeyed() {
    let home = Home::new();
    let hostile = r"run -- printf 'a\033[31mb\rc\tg\007\302\233z\377\n'";
    let done = finish(on_a_terminal(&home, hostile)).expect(0);
    assert_eq!(done.out(), "a\\x1b[31mb\\rc\tg\\x07\\u{9b}z\\xff\r\n");
    let done = finish(on_a_terminal(&home, r"run -- sh -c 'printf \\033]0\;title\\007 >&2'")).expect(0);
    assert!(!done.stdout.contains(&0x1b), "{}", done.out());
}

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let home = Home::new();
    let wrong = "run --memory x -- true";
    let done = finish(on_a_terminal(&home, wrong)).expect(125);
    assert!(done.stdout.contains(&0x1b), "{}", done.out());
    let mut plain = on_a_terminal(&home, wrong);
    plain.env("NO_COLOR", "1");
    let done = finish(plain).expect(125);
    assert!(!done.stdout.contains(&0x1b), "{}", done.out());
    let done = home.casemate(&["run", "--memory", "x", "--", "true"]);
    assert!(!done.stderr.contains(&0x1b), "{}", done.err());
    let mut plain = on_a_terminal(&home, "doctor");
    plain.env("NO_COLOR", "1");
    assert!(!finish(plain).expect(0).stdout.contains(&0x1b));
}

/// The exit code of a child whose output is the test's own business.
fn within_a_minute(child: &mut std::process::Child) -> Option<i32> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().expect("its own child") {
            return status.code();
        }
        if Instant::now() > deadline {
            child.kill().expect("its own child");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run() {
    let home = Home::new();
    let mut command = home.run_command(&["--timeout", "60s", "--max-output", "1G", "--", "yes"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let gone = Instant::now();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(within_a_minute(&mut child), Some(141));
    assert!(gone.elapsed() < Duration::from_secs(2), "{:?}", gone.elapsed());
    assert_eq!(err, "");
    home.nothing_left();
    assert_eq!(home.verify()["open"], json!([]));
}

#[test]
fn a_reader_that_stops_reading_does_not_hold_up_the_deadline() {
    let home = Home::new();
    let mut command = home.run_command(&["--timeout", "300ms", "--max-output", "1G", "--", "yes"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    assert_eq!(within_a_minute(&mut child), Some(124));
    // Three seconds are for the reader, in case it comes back.
    assert!(started.elapsed() < Duration::from_millis(300 + 3000 + 1000), "{:?}", started.elapsed());
    assert_eq!(home.records()[1]["body"]["status"]["cause"], "wall-time");
    home.nothing_left();
}

#[test]
fn files_go_in_and_come_out() {
    let home = Home::new();
    let tree = home.beside("in");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/deep"), "deep").unwrap();
    fs::write(tree.join("run.sh"), "#!/bin/sh\necho ran").unwrap();
    fs::set_permissions(tree.join("run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("/etc/shadow", tree.join("link")).unwrap();
    let out = home.beside("out");
    let (input, output) = (format!("{}:/work/tree", tree.display()), format!("/work/tree:{}", out.display()));
    let script = "cd /work/tree; ./run.sh > new; ls -A | tr '\\n' ' '; cat a/b/deep";
    let done = home.run(&["--in", &input, "--out", &output, "--", "sh", "-c", script]).expect(0);
    assert_eq!(done.out(), "a new run.sh deep");
    assert!(done.err().contains("link"), "what is left out is named: {}", done.err());
    assert_eq!(fs::read_to_string(out.join("a/b/deep")).unwrap(), "deep");
    assert_eq!(fs::read_to_string(out.join("new")).unwrap(), "ran\n");
    assert!(!fs::exists(out.join("link")).unwrap());
    // One file, to a name of its own.
    let single = home.beside("single");
    home.run(&["--out", &format!("/tmp/x:{}", single.display()), "--", "sh", "-c", "echo one > /tmp/x"])
        .expect(0);
    assert_eq!(fs::read_to_string(single).unwrap(), "one\n");
    home.nothing_left();
}

#[test]
fn a_hostile_tree_comes_out_as_plain_files() {
    let home = Home::new();
    let script = r#"import os, socket
os.makedirs('/work/t/d'); os.chdir('/work/t')
open('d/plain', 'w').write('plain')
os.symlink('/etc/shadow', 'shadow'); os.symlink('/', 'root'); os.symlink('../../..', 'd/up')
os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket')
open('setuid', 'w').write('x'); os.chmod('setuid', 0o7755); os.link('setuid', 'hard')
open(b'bytes\xff', 'w'); open('new\nline\x1b[31m', 'w')
open('secret', 'w').write('s'); os.chmod('secret', 0)
os.makedirs('locked/in'); os.chmod('locked', 0)
for _ in range(40): os.mkdir('n'); os.chdir('n')"#;
    let out = home.beside("out");
    fs::create_dir(&out).unwrap();
    let victim = home.write_beside("victim", "untouched");
    symlink(&victim, out.join("setuid")).unwrap();
    symlink(home.beside(""), out.join("d")).unwrap();
    let done = home.run(&["--out", &format!("/work/t:{}", out.display()), "-c", script]).expect(0);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched", "nothing is written through a link");
    assert!(!fs::exists(home.beside("plain")).unwrap(), "nothing is written beside the destination");
    let own = rustix::process::getuid().as_raw();
    let mut todo = vec![out.clone()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if dir == out && (path.ends_with("setuid") || path.ends_with("d")) {
                assert!(meta.is_symlink(), "ours stay where they were");
                continue;
            }
            assert!(meta.is_file() || meta.is_dir(), "{path:?}");
            assert_eq!((meta.uid(), meta.mode() & 0o7000), (own, 0), "{path:?}");
            if meta.is_dir() {
                todo.push(path);
            }
        }
    }
    assert_eq!(fs::read_to_string(out.join("hard")).unwrap(), "x");
    // Each thing that was left out is named, harmlessly.
    for name in ["shadow", "root", "fifo", "socket", "setuid"] {
        assert!(done.err().contains(name), "{name} in {}", done.err());
    }
    assert!(!done.stderr.contains(&0x1b), "{}", done.err());
    home.nothing_left();
}

#[test]
fn a_file_that_pretends_to_be_huge_does_not_fill_the_host() {
    let home = Home::new();
    let out = home.beside("out");
    let started = Instant::now();
    let done =
        home.run(&["--out", &format!("/work/x:{}", out.display()), "--", "truncate", "-s", "1T", "/work/x"]);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(fs::metadata(&out).map_or(0, |meta| meta.len()) <= 64 << 20);
    assert_ne!(done.code, 0, "it is not taken for a file like any other");
    home.nothing_left();
}

#[test]
fn a_tree_without_end_is_an_error_that_names_it() {
    let home = Home::new();
    let out = format!("/work:{}", home.beside("out").display());
    let deep = "import os\nfor _ in range(500): os.mkdir('n'); os.chdir('n')";
    let done = home.run(&["--out", &out, "-c", deep]).expect(125);
    assert!(done.err().starts_with("error: ") && done.err().contains("/work"), "{}", done.err());
    home.nothing_left();
    home.verify();
}

#[test]
fn explain_says_what_would_run_and_runs_nothing() {
    let home = Home::new();
    let text = home.casemate(&["explain", "--memory", "64M", "--", "touch", "/tmp/x"]);
    if is_root() {
        let out = text.expect(0).out();
        assert!(out.starts_with("would run on container (shared-kernel)\n"), "{out}");
        assert!(out.contains("memory") && out.contains("64 MiB") && out.contains("request"), "{out}");
    } else {
        text.refused("memory 64 MiB");
    }
    let json = home.casemate(&["explain", "--json", "--", "true"]).expect(0).json();
    assert_eq!(json["stack"], json!(["container"]));
    let passed: Vec<&Value> = json["passed_over"].as_array().unwrap().iter().collect();
    assert!(passed.iter().all(|other| !other["reason"].as_str().unwrap().is_empty()));
    assert!(passed.iter().any(|other| other["stack"] == json!(["gvisor"])));
    let unbounded: &[&str] = if is_root() { &[] } else { &["cpu-time", "cpus", "memory"] };
    assert_eq!(json["unbounded"], json!(unbounded));

    let refused =
        home.casemate(&["explain", "--json", "--risk", "critical", "--", "true"]).expect(125).json();
    assert_eq!(refused["status"]["kind"], "refused");
    home.casemate(&["explain", "--risk", "critical", "--", "true"]).refused("microvm");
    assert_eq!(home.records(), [] as [Value; 0]);
    home.nothing_left();
}

#[test]
fn doctor_starts_both_walls_and_leaves_no_record() {
    let home = Home::new();
    let json = home.casemate(&["doctor", "--json"]).expect(0).json();
    for wall in ["process", "container"] {
        let found = json["walls"].as_array().unwrap().iter().find(|one| one["stack"] == json!([wall]));
        assert_eq!(found.expect("it is examined")["state"], "ready", "{json}");
    }
    let out = home.casemate(&["doctor"]).expect(0).out();
    let line = out.lines().find(|line| line.starts_with("container ")).expect("a line");
    assert!(line.contains("ready"), "{line}");
    assert_eq!(home.records(), [] as [Value; 0]);
    home.nothing_left();
}

#[test]
fn doctor_compares_what_it_measured() {
    let home = Home::new();
    let policy =
        home.write_beside("prices.toml", "[prices]\ncurrency = \"EUR\"\ncpu-hour = 36\ngb-hour = 3.6\n");
    let json = home.casemate(&["doctor", "--compare", "--json", "--policy", &policy]).expect(0).json();
    let of = |name: &str| {
        let stacks = json["stacks"].as_array().expect("stacks");
        let is_it = |one: &&Value| one["stack"] == json!(name.split('+').collect::<Vec<_>>());
        stacks.iter().find(is_it).unwrap_or_else(|| panic!("no {name} in {json}"))
    };
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number: {value}"));
    for name in ["process", "container", "process+wasm", "container+wasm"] {
        let stack = of(name);
        assert_eq!((&stack["state"], &stack["class"]), (&json!("ready"), &json!("shared-kernel")), "{name}");
        let measured = &stack["measured"];
        assert!(
            number(&measured["cold_ms"]) > 0.5 && number(&measured["again_ms"]) > 0.01,
            "{name}: {measured}"
        );
        assert!(number(&measured["memory_bytes"]) > 300e3, "{name}: {measured}");
        if name.ends_with("wasm") {
            let why = measured["not_evaluated"].as_str().unwrap_or_default();
            assert!(why.contains("casemate setup wasm"), "{name}: {measured}");
            continue;
        }
        let cost = &measured["evaluation"];
        let memory = number(&cost["gb_seconds"]);
        assert!((0.00001..1.0).contains(&memory), "{name}: {cost}");
        // Other tests run beside this one, so that there may be nothing to believe.
        let Some(cpu) = cost["cpu_seconds"].as_f64() else {
            assert_eq!(cost["price"], Value::Null, "{name}: {cost}");
            continue;
        };
        assert!((0.001..20.0).contains(&cpu), "{name}: {cost}");
        let price = number(&cost["price"]);
        assert!((price - (cpu * 0.01 + memory * 0.001)).abs() < price / 1e6, "{name}: {cost}");
    }
    let allowed = |name: &str| of(name)["allowed_by_policy"].clone();
    assert_eq!((allowed("container"), allowed("process")), (json!(true), json!(false)));
    assert_eq!(of("container")["strace"], "works");
    assert_eq!(of("process")["strace"], "refused");
    let loose = of("process")["limits_not_enforced"].as_array().expect("a list");
    assert!(loose.contains(&json!("disk")) && !loose.contains(&json!("wall-time")), "{loose:?}");
    for (risk, work, stack) in
        [("medium", "a program", json!("container")), ("critical", "Python", Value::Null)]
    {
        let advice = json["advice"].as_array().expect("advice");
        let line = advice.iter().find(|one| one["risk"] == risk && one["work"] == work).expect("a line");
        assert_eq!(line["stack"], stack);
    }
    let out = home.casemate(&["doctor", "--compare", "--policy", &policy]).expect(0).out();
    for words in ["EUR per 1000", "where your policy sends work", "Work of critical risk is refused here"] {
        assert!(out.contains(words), "{words} in {out}");
    }
    assert_eq!(home.records(), [] as [Value; 0]);
    home.nothing_left();
}

#[test]
fn a_doctor_that_is_stopped_or_killed_leaves_nothing() {
    let home = Home::new();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let run = Running::start(home.command(["doctor", "--compare"]));
        eventually("it has begun", Duration::from_secs(20), || doctors(&home) == 1);
        std::thread::sleep(Duration::from_millis(700));
        run.signal(signal);
        run.finish().expect(137);
        assert_eq!(doctors(&home), usize::from(signal == Signal::KILL), "{signal:?}");
    }
    // What the killed one left, the next one clears away.
    home.casemate(&["doctor"]).expect(0);
    assert_eq!(doctors(&home), 0);
    home.nothing_left();
}

/// Homes that doctors have made for their probes.
fn doctors(home: &Home) -> usize {
    let names = fs::read_dir(home.path()).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("doctor-")).count()
}

#[test]
fn help_and_version_are_answers_and_not_errors() {
    let home = Home::new();
    let count = || fs::read_dir(home.path()).unwrap().count();
    let before = count();
    let help = home.casemate(&["--help"]).expect(0);
    for command in ["run", "explain", "doctor", "evidence", "completions"] {
        assert!(help.out().contains(command), "{command}");
        assert!(home.casemate(&[command, "--help"]).expect(0).out().contains("Usage: casemate"));
    }
    assert!(home.casemate(&["--version"]).expect(0).out().starts_with("casemate "));
    for shell in ["bash", "zsh", "fish"] {
        assert!(home.casemate(&["completions", shell]).expect(0).out().contains("casemate"));
    }
    // Nothing was created on the way.
    assert_eq!(count(), before);
}

#[test]
fn the_completions_for_bash_are_understood_by_bash() {
    let home = Home::new();
    let script = home.write_beside("completions", home.casemate(&["completions", "bash"]).expect(0).stdout);
    let try_it = format!(
        "source {script}; COMP_WORDS=(casemate run --mem); COMP_CWORD=2; _casemate casemate --mem run; echo ${{COMPREPLY[@]}}"
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &try_it]).stdin(Stdio::null());
    assert_eq!(finish(bash).expect(0).out().trim(), "--memory");
}

#[test]
fn json_is_one_object_whatever_happens() {
    let home = Home::new();
    let cases: [&[&str]; 6] = [
        &["--", "true"],
        &["--timeout", "100ms", "--", "sleep", "9"],
        &["--risk", "critical", "--", "true"],
        &["--memory", "x", "--", "true"],
        &["--", "no-such-command"],
        &[],
    ];
    let expected = [
        "id",
        "stack",
        "status",
        "stdout",
        "stderr",
        "stdout_truncated",
        "stderr_truncated",
        "limits_hit",
        "unbounded",
        "class",
        "usage",
        "timings_us",
        "denied",
        "receipt",
    ];
    for words in cases {
        let (done, json) = home.run_json(words);
        assert!(expected.iter().all(|key| json.get(key).is_some()), "{words:?}: {json}");
        assert_eq!(done.out().lines().count(), 1, "{words:?}");
        assert_eq!(done.err(), "", "{words:?}");
    }
}

#[test]
fn a_second_signal_does_not_wait_for_a_reader() {
    let home = Home::new();
    let mut command = home.run_command(&["--timeout", "60s", "--max-output", "1G", "--", "yes"]);
    // Nobody reads from this pipe.
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let started = Instant::now();
    for _ in 0..2 {
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(within_a_minute(&mut child), Some(137));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    home.nothing_left();
}
