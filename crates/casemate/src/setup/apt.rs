//! Debian's package manager: as it is, to install something on this machine, and in directories of ours, to look for packages and get
//! them without changing anything of the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::place::Place;
use super::program::{read, run};
use super::{FREE_SPACE, Step, cannot};
use crate::failure::Failure;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What lists and what apt makes of them take at most, in MiB. Where they do not fit, apt waits for ever.
const ROOM: u64 = 128;

/// Whether there is one.
pub(super) fn is_there() -> bool {
    Path::new("/usr/bin/apt-get").exists()
}

/// Installs a package on this machine, as root.
pub(super) fn install(package: &str, by_hand: &str, otherwise: &str) -> Result<(), Failure> {
    let apt = |words: &[&str]| {
        let mut apt = Command::new("apt-get");
        // Updates that come by themselves hold the lock for a while.
        apt.args(["--quiet=2", "--yes", "-o", "DPkg::Lock::Timeout=300"]).args(words);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        run(apt, by_hand, otherwise)
    };
    let step = Step::begin(format!("installing {package} from the distribution"));
    let install = || apt(&["--no-install-recommends", "install", package]);
    if install().is_ok() {
        return Ok(());
    }
    // A fresh machine has no package lists, and old ones name what is no longer there.
    step.say("getting the distribution's package lists".to_owned());
    apt(&["update"])?;
    step.say(format!("installing {package} from the distribution"));
    install()
}

/// Where this machine gets Debian's packages from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suite {
    address: String,
    pub(super) name: String,
}

impl Suite {
    /// All that its package manager has lists of. Third parties' sources are left out.
    pub(super) async fn of_this_machine(elsewhere: &str) -> Result<Vec<Suite>, Failure> {
        let mut ask = Command::new("apt-get");
        ask.args(["indextargets", "--format"])
            .arg("$(CREATED_BY) $(ORIGIN) $(COMPONENT) $(ARCHITECTURE) $(CODENAME) $(REPO_URI)");
        let suites = Suite::listed(&String::from_utf8_lossy(&read(ask, elsewhere, elsewhere).await?));
        if suites.is_empty() {
            return Err(Failure::new(
                "this machine has no package lists of Debian",
                format!("on Debian, run `apt-get update` as root first; elsewhere, {elsewhere}"),
            ));
        }
        Ok(suites)
    }

    fn listed(targets: &str) -> Vec<Suite> {
        let mut suites = Vec::new();
        for target in targets.lines() {
            let Some(source) = target.strip_prefix("Packages Debian main amd64 ") else { continue };
            let Some((name, address)) = source.split_once(' ') else { continue };
            let suite = Suite { address: address.to_owned(), name: name.to_owned() };
            if !suites.contains(&suite) {
                suites.push(suite);
            }
        }
        suites
    }

    /// Another one, from the same place.
    pub(super) fn beside(&self, name: String) -> Suite {
        Suite { address: self.address.clone(), name }
    }

    /// As in a list of sources.
    fn line(&self) -> String {
        let signed = match Path::new(KEYRING).exists() {
            true => format!(" [signed-by={KEYRING}]"),
            // Then those that apt trusts anyway.
            false => String::new(),
        };
        format!("deb{signed} {} {} main\n", self.address, self.name)
    }
}

/// A package manager that has nothing but a directory of ours.
pub(super) struct Apt<'a> {
    place: &'a Place,
    options: Vec<String>,
}

impl<'a> Apt<'a> {
    /// Knows these suites, but has not looked into them yet.
    pub(super) fn within(place: &'a Place, suites: &[Suite]) -> Result<Apt<'a>, Failure> {
        let path = place.path("");
        let free = rustix::fs::statvfs(&path).map(|disk| (disk.f_bavail * disk.f_frsize) >> 20);
        if let Ok(free) = free
            && free < ROOM
        {
            return Err(Failure::new(
                format!(
                    "only {free} MiB are free in {}, and package lists take up to {ROOM}",
                    path.display()
                ),
                FREE_SPACE,
            ));
        }
        for directory in ["state/lists/partial", "cache/archives/partial"] {
            place.directory(directory)?;
        }
        let list = place.path("sources.list");
        let lines: String = suites.iter().map(Suite::line).collect();
        fs::write(&list, lines).map_err(|error| cannot("write", &list, error))?;
        let set = |name: &str, value: &Path| format!("{name}={}", value.display());
        let options = vec![
            set("Dir::State", &place.path("state")),
            set("Dir::Cache", &place.path("cache")),
            set("Dir::Etc::SourceList", &list),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            // Half of the lists may have an older package, which would be taken for the newest.
            "APT::Update::Error-Mode=any".to_owned(),
        ];
        Ok(Apt { place, options })
    }

    pub(super) fn prefer(mut self, suite: &str) -> Apt<'a> {
        self.options.push(format!("APT::Default-Release={suite}"));
        self
    }

    /// `apt-get` or `apt-cache`, which leaves in our directory what it gets.
    pub(super) fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.place.path(""));
        for option in &self.options {
            command.args(["-o", option]);
        }
        command.arg("--quiet=2").args(words);
        command
    }

    /// The package that it has downloaded.
    pub(super) fn fetched(&self, elsewhere: &str) -> Result<PathBuf, Failure> {
        let directory = self.place.path("");
        let entries = fs::read_dir(&directory).map_err(|error| cannot("read", &directory, error))?;
        let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
        let package = entries.flatten().map(|entry| entry.path()).find(is_package);
        package.ok_or_else(|| Failure::new("apt-get fetched no package", elsewhere))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_own_suites_are_found_among_all_sources() {
        let targets = "Packages Debian main amd64 bookworm mirror://first/\n\
                       DEP-11 Debian main amd64 bookworm mirror://first/\n\
                       Packages Debian main arm64 bookworm mirror://first/\n\
                       Packages Debian contrib amd64 bookworm mirror://first/\n\
                       Packages Somebody main amd64 bookworm mirror://other/\n\
                       Packages Debian main amd64 bookworm-security mirror://second/\n\
                       Packages Debian main amd64 bookworm mirror://first/\n";
        let suite = |name: &str, address: &str| Suite { address: address.into(), name: name.into() };
        let expected = [suite("bookworm", "mirror://first/"), suite("bookworm-security", "mirror://second/")];
        assert_eq!(Suite::listed(targets), expected);
        let line = expected[0].beside("bookworm-backports".into()).line();
        assert!(line.ends_with(" mirror://first/ bookworm-backports main\n"), "{line}");
        assert_eq!(Suite::listed(""), []);
    }
}
