//! `casemate setup gvisor`: gets `runsc` from the distribution, into the home, and starts a sandbox with it.
//!
//! The distribution's own tools fetch and check the package. They work in a directory of ours, so that nothing of the
//! system changes and nobody has to be root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use casemate_engine::Ahead;

use super::apt::{Apt, Suite};
use super::place::Place;
use super::program::run;
use super::{Step, cannot};
use crate::failure::{Failure, os_words};
use crate::home;

const ELSEWHERE: &str = "get runsc from elsewhere (gVisor publishes releases) and give its path: casemate setup gvisor --from FILE";

pub(super) async fn gvisor(from: Option<&Path>, policy: Option<&Path>) -> Result<(), Failure> {
    let home = casemate_engine::default_home().join("gvisor");
    let place = Place::beneath(&home)?;
    let target = home.join("runsc");
    match from {
        Some(file) => {
            let _step = Step::begin(format!("copying {}", file.display()));
            install(file, &target)?;
        }
        None => {
            let program = fetch(&place).await?;
            install(&program, &target)?;
        }
    }
    drop(place);
    let step = Step::begin("starting a sandbox");
    let engine = home::open(policy, Ahead::Nothing, None).await?;
    let works = engine.probe_gvisor().await;
    engine.shutdown().await?;
    drop(step);
    let works = works.map_err(|refusal| {
        Failure::new(
            format!("runsc is installed ({}), but {}", target.display(), refusal.reason),
            refusal.hint,
        )
    })?;
    eprintln!("ready: casemate run --on gvisor ({works})");
    Ok(())
}

/// Whole or not at all: a cell may be about to use what is there.
fn install(program: &Path, target: &Path) -> Result<(), Failure> {
    let fresh = target.with_extension("new");
    fs::copy(program, &fresh).map_err(|error| {
        Failure::new(
            format!("cannot copy {}: {}", program.display(), os_words(error)),
            "--from takes the program runsc",
        )
    })?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))
        .and_then(|()| fs::rename(&fresh, target))
        .map_err(|error| cannot("write", target, error))
}

/// The program out of the distribution's package.
async fn fetch(place: &Place) -> Result<PathBuf, Failure> {
    let [release, backports] = suites().await?;
    // Both: what a release carries itself is not always in its backports.
    let apt = Apt::within(place, &[release, backports.clone()])?.prefer(&backports.name);
    {
        let _step = Step::begin(format!("looking for runsc in {}", backports.name));
        run(apt.command("apt-get", &["update"]), ELSEWHERE, ELSEWHERE)?;
    }
    {
        let _step = Step::begin("fetching runsc");
        run(apt.command("apt-get", &["download", "runsc"]), ELSEWHERE, ELSEWHERE)?;
    }
    let unpacked = place.path("package");
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("--extract").arg(apt.fetched(ELSEWHERE)?).arg(&unpacked);
    run(unpack, ELSEWHERE, ELSEWHERE)?;
    Ok(unpacked.join("usr/bin/runsc"))
}

/// The release of this machine, and its backports.
async fn suites() -> Result<[Suite; 2], Failure> {
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        let value = os.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    let (Some("debian"), Some(release)) = (field("ID").as_deref(), field("VERSION_CODENAME")) else {
        return Err(Failure::new("only Debian's runsc can be fetched by this command", ELSEWHERE));
    };
    let suites = Suite::of_this_machine(ELSEWHERE).await?;
    match suites.into_iter().find(|suite| suite.name == release) {
        Some(suite) => Ok([suite.clone(), suite.beside(format!("{release}-backports"))]),
        None => Err(Failure::new(
            format!("this machine has no package lists of {release}"),
            "run `apt-get update` as root first",
        )),
    }
}
