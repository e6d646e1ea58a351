//! `casemate setup gvisor`: gets `runsc` from the distribution, into the home, and starts a sandbox with it.
//!
//! The distribution's own tools fetch and check the package. They work in a directory of ours, so that nothing of the
//! system changes and nobody has to be root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use casemate_engine::Ahead;

use super::{Step, cannot, run};
use crate::failure::{Failure, os_words};
use crate::home;

const ELSEWHERE: &str = "get runsc from elsewhere (gVisor publishes releases) and give its path: casemate setup gvisor --from FILE";

pub(super) async fn gvisor(from: Option<&Path>, policy: Option<&Path>) -> Result<(), Failure> {
    let home = casemate_engine::default_home().join("gvisor");
    fs::create_dir_all(&home).map_err(|error| cannot("make", &home, error))?;
    let target = home.join("runsc");
    match from {
        Some(file) => {
            let _step = Step::begin(format!("copying {}", file.display()));
            install(file, &target)?;
        }
        None => {
            let place = Place::beneath(&home)?;
            let program = fetch(&place)?;
            install(&program, &target)?;
        }
    }
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
fn fetch(place: &Place) -> Result<PathBuf, Failure> {
    let source = Source::of_this_machine()?;
    let apt = |place: &Place| {
        let mut apt = Command::new("apt-get");
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        apt.current_dir(&place.0)
            .args(["-o", &option("Dir::State", &place.path("state"))])
            .args(["-o", &option("Dir::Cache", &place.path("cache"))])
            .args(["-o", &option("Dir::Etc::SourceList", &place.path("sources.list"))])
            .args(["-o", "Dir::Etc::SourceParts=/dev/null", "-o", "APT::Sandbox::User="])
            .args(["-o", &format!("APT::Default-Release={}", source.backports())])
            .arg("--quiet=2");
        apt
    };
    for directory in ["state/lists/partial", "cache/archives/partial"] {
        let path = place.path(directory);
        fs::create_dir_all(&path).map_err(|error| cannot("make", &path, error))?;
    }
    let list = place.path("sources.list");
    fs::write(&list, source.lines()).map_err(|error| cannot("write", &list, error))?;
    {
        let _step = Step::begin(format!("looking for runsc in {}", source.backports()));
        let mut update = apt(place);
        update.arg("update");
        run(update, ELSEWHERE, ELSEWHERE)?;
    }
    {
        let _step = Step::begin("fetching runsc");
        let mut download = apt(place);
        download.args(["download", "runsc"]);
        run(download, ELSEWHERE, ELSEWHERE)?;
    }
    let packages = fs::read_dir(&place.0).map_err(|error| cannot("read", &place.0, error))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let package = packages.flatten().map(|entry| entry.path()).find(is_package);
    let Some(package) = package else { return Err(Failure::new("apt-get fetched no package", ELSEWHERE)) };
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("--extract").arg(package).arg(place.path("package"));
    run(unpack, ELSEWHERE, ELSEWHERE)?;
    Ok(place.path("package/usr/bin/runsc"))
}

/// Where this machine gets its packages from.
struct Source {
    address: String,
    release: String,
}

impl Source {
    /// As its package manager says.
    fn of_this_machine() -> Result<Source, Failure> {
        let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let field = |name: &str| {
            let value = os.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
            Some(value.trim_matches('"').to_owned())
        };
        let (Some("debian"), Some(release)) = (field("ID").as_deref(), field("VERSION_CODENAME")) else {
            return Err(Failure::new("only Debian's runsc can be fetched by this command", ELSEWHERE));
        };
        let asked = Command::new("apt-get")
            .args(["indextargets", "--format", "$(CREATED_BY) $(CODENAME) $(COMPONENT) $(REPO_URI)"])
            .output()
            .map_err(|error| Failure::new(format!("cannot run apt-get: {}", os_words(error)), ELSEWHERE))?;
        let wanted = format!("Packages {release} main ");
        let words = String::from_utf8_lossy(&asked.stdout).into_owned();
        match words.lines().find_map(|line| line.strip_prefix(&wanted)) {
            Some(address) => Ok(Source { address: address.to_owned(), release }),
            None => Err(Failure::new(
                format!("this machine has no package lists of {release}"),
                "run `apt-get update` as root first",
            )),
        }
    }

    fn backports(&self) -> String {
        format!("{}-backports", self.release)
    }

    /// Both: what a release carries itself is not always in its backports.
    fn lines(&self) -> String {
        let keyring = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
        let signed = match keyring.exists() {
            true => format!(" [signed-by={}]", keyring.display()),
            // Then those that apt trusts anyway.
            false => String::new(),
        };
        let line = |suite: &str| format!("deb{signed} {} {suite} main\n", self.address);
        line(&self.release) + &line(&self.backports())
    }
}

/// A directory of our own, removed when we leave.
struct Place(PathBuf);

impl Place {
    fn beneath(home: &Path) -> Result<Place, Failure> {
        let path = home.join(format!("setup-{}", std::process::id()));
        for entry in fs::read_dir(home).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Left by a process that was killed, perhaps one of our own number.
            let whose = name.strip_prefix("setup-").and_then(|pid| pid.parse::<u32>().ok());
            let gone = |pid: u32| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists();
            if whose.is_some_and(gone) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        fs::create_dir(&path).map_err(|error| cannot("make", &path, error))?;
        Ok(Place(path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
