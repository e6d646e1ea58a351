//! Python and JavaScript for the WASM wall, as `casemate setup wasm` makes them: once, for all homes of all tests. With them goes
//! componentize-py, which makes a tool of Python code.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts::{self, Artifact};
use crate::shell::{self, Result, heading};
use crate::{clients, gvisor, microvm, packages};

/// What fetches the runtimes' packages. Asked for by program: a Node from elsewhere brings npm with it.
const FETCHERS: [(&str, &[&str]); 2] =
    [("python3-pip", &["python3", "-m", "pip", "--version"]), ("npm", &["npm", "--version"])];

/// Where tests look for them (`crates/testkit/src/runtimes.rs`).
pub(crate) const VARIABLE: &str = "CASEMATE_TEST_RUNTIMES";

/// Without a network: a directory with the files that `runtimes/pins.sha256` lists.
const DOWNLOADS: &str = "CASEMATE_TEST_DOWNLOADS";

/// What a home takes over from the one in which they were made, and what is for tests.
const COMPONENTIZE: &str = "componentize-py";
const PARTS: [&str; 3] = ["wasm", "keys/wasm-cache.key", COMPONENTIZE];

/// For tests that are started by hand.
pub(crate) fn run() -> Result {
    packages::ensure(&["python3", "nodejs"])?;
    let built = artifacts::build(&["--profile=checks", "--package", "casemate", "--bins"])?;
    let casemate = Artifact::binary(&built, "casemate")?;
    let walls = [gvisor::ensure(&casemate)?, microvm::ensure(&casemate)?];
    for place in [ensure(&casemate)?, clients::ensure()?].iter().chain(&walls) {
        println!("{}", place.display());
    }
    Ok(())
}

/// A directory with them, made by this very binary or by one that would have made the same.
pub(crate) fn ensure(casemate: &Path) -> Result<PathBuf> {
    let place = shell::target_dir().join("wasm-runtimes");
    let key = key(casemate)?;
    if fs::read_to_string(place.join("key")).is_ok_and(|made| made == key) {
        return Ok(place);
    }
    if std::env::var_os(DOWNLOADS).is_none() {
        let missing =
            FETCHERS.iter().filter(|(_, words)| !shell::quietly(Command::new(words[0]).args(&words[1..])));
        packages::ensure(&missing.map(|(package, _)| *package).collect::<Vec<_>>())?;
    }
    heading("building Python and JavaScript for WASM");
    let fresh = place.with_extension("new");
    for old in [&place, &fresh] {
        let _ = fs::remove_dir_all(old);
    }
    let mut setup = Command::new(casemate);
    setup.args(["setup", "wasm"]).env("CASEMATE_HOME", &fresh);
    if let Some(downloads) = std::env::var_os(DOWNLOADS) {
        setup.arg("--from").arg(downloads);
    }
    shell::run(&mut setup)?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary",
        ":all:",
    ])
    .args(["--root-user-action", "ignore", "--require-hashes", "--target"])
    .arg(fresh.join(COMPONENTIZE))
    .arg("-r")
    .arg(shell::root().join("runtimes/python/requirements.txt"));
    if let Some(downloads) = std::env::var_os(DOWNLOADS) {
        pip.args(["--no-index", "--find-links"]).arg(downloads);
    }
    shell::run(&mut pip)?;
    // Last, and by a rename: what is there is whole.
    let made = fs::write(fresh.join("key"), key).and_then(|()| fs::rename(&fresh, &place));
    made.map_err(|error| format!("cannot keep {}: {error}", place.display()))?;
    Ok(place)
}

/// A copy for somebody who cannot read the original.
pub(crate) fn copy(from: &Path, into: &Path) -> Result {
    shell::run(Command::new("mkdir").arg("--parents").arg(into.join("keys")))?;
    for part in PARTS {
        shell::run(Command::new("cp").arg("--recursive").args([from.join(part), into.join(part)]))?;
    }
    Ok(())
}

/// Changes with whatever they are made from. Nobody gains by forging it.
fn key(casemate: &Path) -> Result<String> {
    let profile = casemate.parent().ok_or("a binary lies in a directory")?;
    let agents = profile.with_file_name("agents-wasm");
    let (root, mut files) = (shell::root(), Vec::new());
    walk(&root.join("runtimes"), &mut files)?;
    for target in fs::read_dir(&agents).map_err(|error| format!("{}: {error}", agents.display()))?.flatten() {
        let program = target.path().join("worker/casemate-wasm-compile");
        files.extend(program.exists().then_some(program));
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        let bytes = fs::read(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        // Another checkout makes the same of the same files.
        let name = file.strip_prefix(&root).or(file.strip_prefix(&agents)).unwrap_or(&file);
        hasher.write(name.as_os_str().as_encoded_bytes());
        hasher.write(&bytes);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn walk(directory: &Path, files: &mut Vec<PathBuf>) -> Result {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for entry in entries.flatten().filter(|entry| entry.file_name() != "__pycache__") {
        match entry.path() {
            path if path.is_dir() => walk(&path, files)?,
            path => files.push(path),
        }
    }
    Ok(())
}
