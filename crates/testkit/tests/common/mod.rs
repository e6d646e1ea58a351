//! Drives the `casemate` binary as its users do: every test in a home of its own, every process bounded in time.
//!
//! All but [`surroundings`](../../surroundings.rs) run as root and as a user without privileges, who is refused some limits.

#![allow(dead_code, reason = "each file of tests uses its own part of this module")]

pub(crate) mod leftovers;
pub(crate) mod server;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

/// Nothing here takes this long, unless it hangs.
const HUNG: Duration = Duration::from_secs(60);
/// After a process has ended, how long its output may still be held open.
const HELD_OPEN: Duration = Duration::from_secs(5);
/// The user that owns nothing.
pub(crate) const NOBODY: u32 = 65534;

/// With this policy a run may ask for the process wall; pass it with [`Home::on_process`].
const PROCESS_POLICY: &str = "[floors]\nlow = \"process\"\n";

/// The binary under test: `$CASEMATE_BIN`, or one that is built now.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("CASEMATE_BIN") {
        Some(path) => PathBuf::from(path).canonicalize().expect("CASEMATE_BIN names a binary"),
        None => build(),
    })
}

fn build() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--profile=checks", "--package", "casemate", "--message-format=json"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo starts");
    assert!(built.status.success(), "casemate does not build");
    let is_ours =
        |message: &Value| message["target"]["name"] == "casemate" && message["executable"].is_string();
    let messages = built.stdout.split(|byte| *byte == b'\n');
    let artifact = messages.filter_map(|line| serde_json::from_slice(line).ok()).find(is_ours);
    artifact.expect("cargo names the binary")["executable"].as_str().expect("a path").into()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// For tests that change the machine around Casemate, or the user that it runs as.
pub(crate) fn needs_root() {
    assert!(is_root(), "this test needs root");
}

/// A `$CASEMATE_HOME` for one test, and whoever runs `casemate` in it.
pub(crate) struct Home {
    dir: TempDir,
    user: User,
    /// Runs that were seen, also those that are not in the chain.
    seen: std::sync::Mutex<std::collections::BTreeSet<String>>,
}

enum User {
    Ours,
    /// Uses a copy of the binary that everybody can reach.
    Nobody {
        binary: PathBuf,
    },
}

impl Home {
    pub(crate) fn new() -> Home {
        let dir = tempfile::Builder::new().prefix("cm-test-").tempdir().expect("a temporary directory");
        let home = dir.path().join("home");
        std::fs::create_dir(&home).expect("a home");
        if is_root() {
            casemate_testkit::gvisor::give_to(&home);
        }
        Home { dir, user: User::Ours, seen: Default::default() }
    }

    /// With Python and JavaScript for WASM.
    pub(crate) fn with_languages() -> Home {
        let home = Home::new();
        casemate_testkit::runtimes::give_to(&home.path());
        home
    }

    /// A home of the user [`NOBODY`], who also runs everything in it.
    pub(crate) fn unprivileged() -> Home {
        needs_root();
        let mut home = Home::new();
        std::fs::set_permissions(home.dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        let copy = home.dir.path().join("casemate-under-test");
        std::fs::copy(binary(), &copy).expect("a copy of the binary");
        chown(home.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
        home.user = User::Nobody { binary: copy };
        home
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A place for the test's own files, beside the home.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write_beside(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.beside(name);
        std::fs::write(&path, content).expect("a file of the test");
        path.to_str().expect("a UTF-8 path").to_owned()
    }

    pub(crate) fn chain(&self) -> PathBuf {
        self.path().join("evidence/chain.jsonl")
    }

    /// The binary, where whoever runs it here can reach it.
    pub(crate) fn reachable_binary(&self) -> &Path {
        match &self.user {
            User::Ours => binary(),
            User::Nobody { binary } => binary,
        }
    }

    /// `casemate WORDS…`, not started yet, without any input.
    pub(crate) fn command(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = match &self.user {
            User::Ours => Command::new(binary()),
            User::Nobody { binary } => {
                let mut command = Command::new("setpriv");
                let id = NOBODY.to_string();
                command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(binary);
                command
            }
        };
        command.args(words).env("CASEMATE_HOME", self.path()).env_remove("NO_COLOR").stdin(Stdio::null());
        command
    }

    pub(crate) fn casemate(&self, words: &[&str]) -> Done {
        finish(self.command(words))
    }

    /// `casemate run WORDS…`, with a mark in the payload's environment by which its processes are found.
    pub(crate) fn run_command(&self, words: &[&str]) -> Command {
        let mark = format!("MARK={}", self.path().display());
        self.command([&["run", "--env", &mark], words].concat())
    }

    pub(crate) fn run(&self, words: &[&str]) -> Done {
        finish(self.run_command(words))
    }

    /// With this as standard input.
    #[track_caller]
    pub(crate) fn run_with(&self, words: &[&str], input: &str) -> Done {
        let mut command = self.run_command(words);
        command.stdin(Stdio::piped());
        let mut running = Running::start(command);
        running.feed(input.as_bytes());
        running.finish()
    }

    pub(crate) fn run_json(&self, words: &[&str]) -> (Done, Value) {
        let done = self.run(&[&["--json"], words].concat());
        let json = done.json();
        (done, json)
    }

    /// Flags for a run behind the process wall.
    pub(crate) fn on_process(&self) -> [String; 6] {
        let policy = self.write_beside("process-policy.toml", PROCESS_POLICY);
        ["--policy", &policy, "--risk", "low", "--on", "process"].map(str::to_owned)
    }

    /// Flags for each stack that ends in WASM.
    pub(crate) fn on_wasm(&self) -> [Vec<String>; 2] {
        let mut process = self.on_process().to_vec();
        process[5] = "process+wasm".into();
        [vec!["--on".into(), "container+wasm".into()], process]
    }

    /// `evidence verify --all`, which must pass, as JSON.
    pub(crate) fn verify(&self) -> Value {
        self.casemate(&["evidence", "verify", "--all", "--json"]).expect(0).json()
    }

    /// What every record says, oldest first.
    pub(crate) fn records(&self) -> Vec<Value> {
        let Ok(chain) = std::fs::read(self.chain()) else { return Vec::new() };
        chain.split_inclusive(|byte| *byte == b'\n').filter_map(predicate).collect()
    }

    /// The events of one execution, in order.
    pub(crate) fn events_of(&self, id: &str) -> Vec<String> {
        let of_id = self.records().into_iter().filter(|record| record["id"] == id);
        of_id.map(|record| record["event"].as_str().expect("an event").to_owned()).collect()
    }
}

/// What a record says; nothing for a seal, or for a line that is not complete.
fn predicate(line: &[u8]) -> Option<Value> {
    let mut line: Value = serde_json::from_slice(line).ok()?;
    Some(line.get_mut("intoto")?["predicate"].take())
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// As a shell shows it.
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) took: Duration,
}

impl Done {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Done {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out(), self.err());
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in {:?}\nstderr: {}", self.out(), self.err()))
    }

    /// Casemate's own "no": 125, one line that says what is wrong and one that says what to do.
    #[track_caller]
    pub(crate) fn refused(&self, words: &str) -> &Done {
        let err = self.err();
        assert_eq!(self.code, 125, "stdout: {}\nstderr: {err}", self.out());
        assert_eq!(err.lines().filter(|line| line.starts_with("error: ")).count(), 1, "one error: in {err}");
        assert_eq!(err.lines().filter(|line| line.starts_with("hint: ")).count(), 1, "one hint: in {err}");
        assert!(err.contains(words), "{words:?} in {err}");
        assert!(!err.contains("os error"), "{err}");
        self
    }
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn finish(command: Command) -> Done {
    Running::start(command).finish()
}

/// A process, and its output as far as it has come.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: Stream,
    stderr: Stream,
    started: Instant,
}

struct Stream {
    chunks: Receiver<Vec<u8>>,
    received: Vec<u8>,
}

impl Running {
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Running {
        let started = Instant::now();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdout = Stream::of(child.stdout.take().expect("a pipe"));
        let stderr = Stream::of(child.stderr.take().expect("a pipe"));
        Running { child, stdout, stderr, started }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended already; whoever needs it alive sees that by its exit code.
        let _ = rustix::process::kill_process(self.pid(), signal);
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let stdin = self.child.stdin.as_mut().expect("standard input is a pipe");
        stdin.write_all(bytes).expect("casemate reads its input");
    }

    /// Waits until standard output holds these words, while the process is still running.
    #[track_caller]
    pub(crate) fn wait_for_output(&mut self, words: &str) {
        let deadline = Instant::now() + HUNG;
        while !String::from_utf8_lossy(&self.stdout.received).contains(words) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stdout.chunks.recv_timeout(left) {
                Ok(chunk) => self.stdout.received.extend(chunk),
                Err(_) => panic!("{words:?} never came, only {:?}", self.stdout.received),
            }
        }
        assert!(self.child.try_wait().expect("its own child").is_none(), "it ended with {words:?}");
    }

    #[track_caller]
    pub(crate) fn finish(mut self) -> Done {
        drop(self.child.stdin.take());
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("its own child") {
                break status;
            }
            if self.started.elapsed() > HUNG {
                self.child.kill().expect("its own child");
                panic!("hung; stderr: {}", String::from_utf8_lossy(&self.stderr.rest()));
            }
            thread::sleep(Duration::from_millis(1));
        };
        let took = self.started.elapsed();
        let code = status.code().unwrap_or_else(|| 128 + status.signal().expect("a signal"));
        Done { code, stdout: self.stdout.rest(), stderr: self.stderr.rest(), took }
    }
}

impl Stream {
    fn of(mut pipe: impl Read + Send + 'static) -> Stream {
        let (sender, chunks) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(n) = pipe.read(&mut buffer)
                && n > 0
                && sender.send(buffer[..n].to_vec()).is_ok()
            {}
        });
        Stream { chunks, received: Vec::new() }
    }

    /// Everything up to the end, which must come soon: the process is gone.
    #[track_caller]
    fn rest(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + HELD_OPEN;
        loop {
            match self.chunks.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(chunk) => self.received.extend(chunk),
                Err(mpsc::RecvTimeoutError::Disconnected) => return std::mem::take(&mut self.received),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("somebody still holds the output open"),
            }
        }
    }
}

/// Waits for something that another process does.
#[track_caller]
pub(crate) fn eventually(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
