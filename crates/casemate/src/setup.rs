//! `casemate setup`: gets or builds what a wall needs.

mod apt;
mod docker;
mod gvisor;
mod microvm;
mod place;
mod program;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::outcome::Status;
use casemate_core::request::{Isolation, Language, Request, RequestDraft, Workload};
use casemate_core::stack::{Stack, Wall};
use casemate_engine::{Ahead, Engine, Io};
use sha2::{Digest, Sha256};

use crate::failure::{Failure, os_words};
use crate::files::{self, Landing};
use crate::output::{self, Mode, Wait};
use crate::progress::Step;
use crate::{exit, home};
use place::Place;
use program::run;

/// What the language runtimes are built from, besides the pinned packages.
const SOURCES: &[(&str, &[u8])] = &include!(concat!(env!("OUT_DIR"), "/runtimes.rs"));

/// One per file that has to be fetched: who fetches it, and what it is called there.
const PIP: &str = "componentize-py==0.25.1";
const NPM: [&str; 2] = ["componentize-qjs@0.4.5", "@andreiltd/componentize-qjs-binding-linux-x64-gnu@0.4.5"];

const OFFLINE: &str = "without a network, get the files listed in runtimes/pins.sha256 elsewhere and give their directory with --from";

const FREE_SPACE: &str = "free some space, or set CASEMATE_HOME to a directory of yours";

const MIB: u64 = 1 << 20;

/// What was got elsewhere, as the command line names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) from: Option<&'a Path>,
    pub(crate) kernel: Option<&'a Path>,
}

pub(crate) async fn setup(walls: &[String], given: Given<'_>, policy: Option<&Path>) -> Result<u8, Failure> {
    let Given { from, kernel } = given;
    for wall in walls {
        match wall.parse()? {
            Wall::Wasm | Wall::Gvisor | Wall::Docker | Wall::Microvm => {}
            wall @ (Wall::Process | Wall::Container) => {
                eprintln!("{wall}: nothing to set up; `casemate doctor` says whether it stands");
            }
        }
    }
    let named = |wall: Wall| walls.iter().any(|name| name == wall.as_str());
    let wanted = |wall: Wall| walls.is_empty() || named(wall);
    let takers = [Wall::Wasm, Wall::Gvisor, Wall::Microvm].into_iter().filter(|wall| wanted(*wall)).count();
    if from.is_some() && takers > 1 {
        return Err(Failure::new(
            "--from is for one wall at a time",
            "casemate setup wasm --from DIR, casemate setup gvisor --from FILE, casemate setup microvm --from DIR",
        ));
    }
    if kernel.is_some() && !named(Wall::Microvm) {
        return Err(Failure::new("--kernel is for one wall only", "casemate setup microvm --kernel FILE"));
    }
    if wanted(Wall::Wasm) {
        wasm(from, policy).await?;
    }
    if wanted(Wall::Gvisor) {
        gvisor::gvisor(from, policy).await?;
    }
    // An engine with root's rights is not installed because nothing was named.
    if named(Wall::Docker) {
        docker::docker(policy).await?;
    }
    // Last: from then on, signals are ours to handle.
    if wanted(Wall::Microvm) {
        microvm::microvm(given).await?;
    }
    Ok(exit::DONE)
}

/// Builds the interpreters for Python and JavaScript. Third parties' code takes part in it, so that happens in a cell.
async fn wasm(from: Option<&Path>, policy: Option<&Path>) -> Result<(), Failure> {
    let mut engine = home::open(policy, Ahead::Nothing, None).await?;
    let place = Place::beneath(&casemate_engine::default_home().join("wasm"))?;
    let built = build(&engine, &place, from).await;
    let installed = match built {
        Ok(()) => install(&mut engine, &place).await,
        Err(failure) => Err(failure),
    };
    engine.shutdown().await?;
    installed
}

async fn build(engine: &Engine, place: &Place, from: Option<&Path>) -> Result<(), Failure> {
    write_sources(place)?;
    let downloads = place.directory("src/downloads")?;
    match from {
        Some(directory) => {
            let _step = Step::begin(format!("copying packages from {}", directory.display()));
            copy_pinned(directory, &downloads)?;
        }
        None => fetch(&downloads)?,
    }
    check_pins(&downloads)?;
    let _step = Step::begin("building Python and JavaScript for WASM, in a cell");
    build_in_cell(engine, place).await
}

fn write_sources(place: &Place) -> Result<(), Failure> {
    for (name, bytes) in SOURCES {
        let path = place.path(&format!("src/{name}"));
        let write = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&path, bytes)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        };
        write().map_err(|error| cannot("write", &path, error))?;
    }
    Ok(())
}

fn fetch(into: &Path) -> Result<(), Failure> {
    {
        let _step = Step::begin(format!("fetching {PIP}"));
        let requirements = into.join("../python/requirements.txt");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--only-binary", ":all:", "--require-hashes", "--platform", "manylinux_2_28_x86_64"])
            .args(["--python-version", "3.11", "--implementation", "cp", "--abi", "abi3", "--dest"])
            .arg(into)
            .arg("-r")
            .arg(requirements);
        run(pip, "install it with: apt-get install python3-pip", OFFLINE)?;
    }
    let _step = Step::begin(format!("fetching {}", NPM[0]));
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent", "--ignore-scripts", "--pack-destination"]).arg(into).args(NPM);
    run(npm, "install it with: apt-get install npm", OFFLINE)
}

/// Name and digest of each file that is part of the build.
fn pins() -> impl Iterator<Item = (&'static str, &'static str)> {
    let pins = SOURCES.iter().find(|(name, _)| *name == "pins.sha256").map_or(&[][..], |(_, bytes)| bytes);
    std::str::from_utf8(pins).unwrap_or_default().lines().filter_map(|line| {
        let (digest, name) = line.split_once("  ")?;
        Some((name, digest))
    })
}

fn copy_pinned(from: &Path, into: &Path) -> Result<(), Failure> {
    let names: Vec<&str> = pins().map(|(name, _)| name).collect();
    let hint = format!("--from takes a directory with {}", names.join(", "));
    if !from.is_dir() {
        return Err(Failure::new(format!("{} is not a directory", from.display()), hint));
    }
    for (name, _) in pins() {
        let source = from.join(name);
        fs::copy(&source, into.join(name)).map_err(|error| {
            Failure::new(format!("cannot copy {}: {}", source.display(), os_words(error)), hint.clone())
        })?;
    }
    Ok(())
}

fn check_pins(directory: &Path) -> Result<(), Failure> {
    for (name, pinned) in pins() {
        let path = directory.join(name);
        let bytes = fs::read(&path).map_err(|error| cannot("read", &path, error))?;
        let found = sha256(&bytes);
        if found != pinned {
            return Err(Failure::new(
                format!("{name} is not the file that this version was made for (sha256 {found})"),
                "whoever serves it has changed it: do not use it, and tell us",
            ));
        }
    }
    Ok(())
}

async fn build_in_cell(engine: &Engine, place: &Place) -> Result<(), Failure> {
    let argv = ["sh", "/work/src/build.sh", "/work/src/downloads", "/work/out"].map(str::to_owned);
    let mut draft = RequestDraft::new(Workload::Command { argv: argv.to_vec() });
    let container = Stack::of(Wall::Container);
    let profile = engine.profiles().iter().find(|profile| *profile.stack() == container);
    draft.isolation = Isolation::Exactly(container.clone());
    draft.limits = limits(|kind| profile.is_some_and(|profile| profile.enforces(kind)));
    draft.files_in = vec!["/work/src".into()];
    draft.files_out = vec!["/work/out".into()];
    let request = Request::new(draft)?;
    let gathered = files::gather(&[place.path("src")], request.files_in())?;
    let landing = Landing::open(request.files_out(), &[place.path("out")])?;
    let (cancel, cancelled) = tokio::sync::watch::channel(false);
    let (sender, output) = output::start(Mode::Collect(MIB), cancel);
    let io = Io {
        inputs: gathered.inputs,
        outbox: Some(Box::new(landing)),
        output: Some(sender),
        cancel: Some(cancelled),
        ..Io::default()
    };
    let executed = engine.execute(request, io).await;
    let words = output.finish(Wait::UntilRead, std::future::pending()).await;
    match executed.outcome.status {
        Status::Exited { code: 0 } => Ok(()),
        Status::Refused(refusal) => Err(refusal.into()),
        status => {
            let words = words.and_then(Result::ok).map(|collected| collected.stderr).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            Err(Failure::new(
                format!("the build in the cell {}: {last}", status.describe()),
                "it needs python3 (3.9 or newer) and node (18 or newer) in /usr: apt-get install python3 nodejs",
            ))
        }
    }
}

/// The build takes 18 seconds, 570 MB and 16 tasks. Where memory cannot be limited, it is not asked for.
fn limits(enforced: impl Fn(LimitKind) -> bool) -> LimitsDraft {
    let mut limits = LimitsDraft::new()
        .with(LimitKind::WallTime, 600_000)
        .with(LimitKind::Disk, 240 * MIB)
        .with(LimitKind::Pids, 64);
    if enforced(LimitKind::Memory) {
        limits.set(LimitKind::Memory, 1024 * MIB);
    }
    limits
}

async fn install(engine: &mut Engine, place: &Place) -> Result<(), Failure> {
    for language in [Language::Python, Language::Javascript] {
        let path = place.path(&format!("out/{language}.wasm"));
        let component = fs::read(&path).map_err(|error| cannot("read", &path, error))?;
        let step = Step::begin(format!("{language}: checking"));
        engine
            .install_runtime(language, &component, |words| step.say(format!("{language}: {words}")))
            .await?;
    }
    eprintln!("ready: casemate run --on container+wasm --lang python|javascript");
    Ok(())
}

fn cannot(action: &str, path: &Path, error: std::io::Error) -> Failure {
    Failure::new(format!("cannot {action} {}: {}", path.display(), os_words(error)), FREE_SPACE)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
