//! Starting programs.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Errors end up on a terminal and nowhere else.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The workspace's root. Asked at run time: a target directory may be shared by several clones.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest.parent().map(Path::to_owned).unwrap_or(manifest)
}

/// Cargo, in the workspace.
pub(crate) fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Where build output goes.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

pub(crate) fn heading(text: &str) {
    println!("\n=== {text}");
}

/// `program argument argument`, for messages.
pub(crate) fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a program that must succeed, and shows what it says.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command.stdin(Stdio::null()).status().map_err(|error| cannot_start(command, &error))?;
    succeeded(command, status)
}

/// Runs a program that must succeed, and returns what it prints. Its messages are shown.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| cannot_start(command, &error))?;
    succeeded(command, output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program succeeds. What it says does not matter.
pub(crate) fn quietly(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// What became of a program whose output was watched.
pub(crate) struct Watched {
    pub(crate) end: Result,
    pub(crate) stdout: String,
}

/// Runs a program, shows its output as it comes and keeps a copy. It is killed when its time is up.
pub(crate) fn watch(command: &mut Command, limit: Duration) -> Watched {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return Watched { end: Err(cannot_start(command, &error)), stdout: String::new() },
    };
    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || forward(stdout, &sender));
    }
    let end = match wait(&mut child, limit) {
        Ok(Some(status)) => succeeded(command, status),
        Ok(None) => Err(format!("{} did not end within {} s", show(command), limit.as_secs())),
        Err(error) => Err(format!("cannot wait for {}: {error}", show(command))),
    };
    // Something that it left running may hold its output open for ever.
    let mut stdout = String::new();
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(2)) {
        stdout.push_str(&line);
    }
    Watched { end, stdout }
}

fn forward(from: impl Read, to: &mpsc::Sender<String>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line).into_owned();
        print!("{text}");
        let _ = std::io::stdout().flush();
        if to.send(text).is_err() {
            return;
        }
        line.clear();
    }
}

/// `None`: its time was up, and it was killed.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start {}: {error}", show(command))
}

fn succeeded(command: &Command, status: ExitStatus) -> Result {
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", show(command))) }
}
