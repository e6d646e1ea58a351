//! `casemate image build`: mmdebstrap makes a root file system of Debian's packages, and its tar is imported like any other.
//!
//! Mirrors, and whether an index that has expired is taken, are those of the machine's own apt. Debian's keyring signs for all of it.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use casemate_engine::images::{Images, Import, Origin};

use super::recipe::Recipe;
use super::told;
use crate::args::BuildArgs;
use crate::failure::{Failure, os_words};
use crate::progress::Step;
use crate::render::terminal::one_line;

/// Of Debian's package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Documentation and translations, which no program needs.
const LEFT_OUT: [&str; 5] = ["doc", "man", "info", "locale", "lintian"];
/// Suites that get their security updates by themselves.
const ROLLING: [&str; 3] = ["sid", "unstable", "experimental"];

pub(super) fn build(images: &Images, args: &BuildArgs) -> Result<u8, Failure> {
    let recipe = match &args.recipe {
        Some(path) => Recipe::parse(&read(path)?)?,
        None => Recipe::default_image()?,
    };
    let name = args.name.clone().or_else(|| recipe.name.clone());
    let import = Import { name, size_limit: recipe.size_limit, source: recipe.source() };
    let imported = {
        let mut step = Step::begin(format!("building Debian {} with mmdebstrap", recipe.suite));
        let (stream, making) = Making::start(&recipe)?;
        let imported = images.import(Origin::Stream(Box::new(stream)), &import, &mut step);
        // Why there was no archive says more than that there was none.
        making.failure(&recipe)?;
        imported?
    };
    told(&imported, import.name.as_deref())
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        let shown = one_line(&path.display().to_string());
        Failure::new(
            format!("cannot read {shown}: {}", os_words(error)),
            "RECIPE is a TOML file; docs/images.md has an example",
        )
    })
}

/// One run of mmdebstrap.
struct Making {
    words: JoinHandle<String>,
    failed: Arc<Mutex<bool>>,
}

/// Its archive. Ends well only if it does.
struct Stream {
    stdout: ChildStdout,
    child: Child,
    failed: Arc<Mutex<bool>>,
}

impl Making {
    fn start(recipe: &Recipe) -> Result<(Stream, Making), Failure> {
        let mut child = command(recipe)?.spawn().map_err(|error| {
            let hint = "install it with: apt-get install mmdebstrap";
            match error.kind() {
                ErrorKind::NotFound => Failure::new("mmdebstrap is not installed", hint),
                _ => Failure::new(format!("cannot run mmdebstrap: {}", os_words(error)), hint),
            }
        })?;
        let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(Failure::new("mmdebstrap has no output", "try again"));
        };
        let words = thread::spawn(move || {
            let mut words = Vec::new();
            let _ = stderr.read_to_end(&mut words);
            String::from_utf8_lossy(&words).into_owned()
        });
        let failed = Arc::new(Mutex::new(false));
        Ok((Stream { stdout, child, failed: failed.clone() }, Making { words, failed }))
    }

    fn failure(self, recipe: &Recipe) -> Result<(), Failure> {
        let words = self.words.join().unwrap_or_default();
        match *self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            true => Err(explain(&words, recipe)),
            false => Ok(()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.stdout.read(buffer)?;
        if n == 0 && !self.child.wait()?.success() {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = true;
            return Err(io::Error::other("mmdebstrap failed"));
        }
        Ok(n)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Nothing is read any more: it would wait for that, or write for nobody.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(recipe: &Recipe) -> Result<Command, Failure> {
    if !Path::new(KEYRING).exists() {
        return Err(Failure::new(
            "Debian's keys are not installed",
            "install them with: apt-get install debian-archive-keyring",
        ));
    }
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--variant=minbase", "--format=tar", "--skip=output/dev"]);
    for left_out in LEFT_OUT {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{left_out}/*"));
    }
    if !recipe.packages.is_empty() {
        command.arg(format!("--include={}", recipe.packages.join(",")));
    }
    // Said to apt for the machine itself; what mmdebstrap runs would not know.
    if apt_config("Acquire::Check-Valid-Until").is_some_and(|value| value == "false") {
        command.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
    }
    command.args([recipe.suite.as_str(), "-"]);
    let Mirrors { archive, security } = Mirrors::of_this_machine()?;
    command.arg(format!("deb [signed-by={KEYRING}] {archive} {} main", recipe.suite));
    if let Some(security) = security.filter(|_| !ROLLING.contains(&recipe.suite.as_str())) {
        command.arg(format!("deb [signed-by={KEYRING}] {security} {}-security main", recipe.suite));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Where this machine gets Debian from.
#[derive(Debug, PartialEq, Eq)]
struct Mirrors {
    archive: String,
    security: Option<String>,
}

impl Mirrors {
    fn of_this_machine() -> Result<Mirrors, Failure> {
        let output = Command::new("apt-get")
            .args(["indextargets", "--format", "$(ORIGIN)\t$(LABEL)\t$(REPO_URI)", "Created-By: Packages"])
            .output();
        let listed = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        Mirrors::read(&listed.unwrap_or_default()).ok_or_else(|| {
            Failure::new(
                "this machine's apt knows no mirror of Debian",
                "images are built on Debian, after `apt-get update`; elsewhere, import or pull one",
            )
        })
    }

    fn read(listed: &str) -> Option<Mirrors> {
        let find = |wanted: &str| {
            let fields = listed.lines().filter_map(|line| {
                let mut fields = line.split('\t');
                Some((fields.next()?, fields.next()?, fields.next()?))
            });
            let mut ours = fields.filter(|(origin, label, _)| *origin == "Debian" && *label == wanted);
            // One word, and no option of a source.
            ours.find(|(.., uri)| !uri.is_empty() && !uri.contains([' ', '[', ']']))
                .map(|(.., uri)| uri.to_owned())
        };
        Some(Mirrors { archive: find("Debian")?, security: find("Debian-Security") })
    }
}

fn apt_config(key: &str) -> Option<String> {
    let output = Command::new("apt-config").args(["dump", "--format", "%v%n", key]).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What mmdebstrap and apt mean, as far as something can be done about it.
fn explain(words: &str, recipe: &Recipe) -> Failure {
    let error = words.lines().find(|line| line.starts_with("E: ")).map(|line| &line[3..]);
    let last = || words.lines().rfind(|line| !line.trim().is_empty());
    let reason = format!("mmdebstrap failed: {}", error.or_else(last).unwrap_or("it did not say why"));
    let suite = &recipe.suite;
    let hint = if words.contains("NO_PUBKEY") || words.contains("is not signed") {
        format!(
            "this machine's keys are too old for {suite}: apt-get install debian-archive-keyring, or get it from a newer Debian"
        )
    } else if words.contains("is expired") {
        "the mirror is behind: wait, or take another in this machine's apt sources".to_owned()
    } else if words.contains("does not have a Release file") || words.contains("404") {
        format!("is {suite} a suite that this machine's mirror has?")
    } else if words.contains("Unable to locate package") {
        format!("is every package of the recipe in {suite}?")
    } else if words.contains("newuidmap") || words.contains("/etc/subuid") || words.contains("unshare") {
        "build it as root, or install uidmap and have ids in /etc/subuid".to_owned()
    } else {
        "the mirror of this machine's apt must be reachable; mmdebstrap says more when it is run by hand"
            .to_owned()
    };
    Failure::new(reason, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_those_of_debian_alone() {
        let listed = "Node Source\tx\thttps://node.example/\nDebian\tDebian\thttp://a.example/debian/\n\
            Debian\tDebian-Security\thttp://s.example/\nDebian Backports\tDebian Backports\thttp://b.example/\n";
        let mirrors = Mirrors::read(listed).unwrap();
        assert_eq!(mirrors.archive, "http://a.example/debian/");
        assert_eq!(mirrors.security.as_deref(), Some("http://s.example/"));
        assert_eq!(Mirrors::read("Ubuntu\tUbuntu\thttp://u.example/\n"), None);
        assert_eq!(Mirrors::read("Debian\tDebian\t[trusted=yes] x\n"), None);
        assert_eq!(Mirrors::read(""), None);
    }

    #[test]
    fn what_can_be_helped_is_helped() {
        let recipe = Recipe::default_image().unwrap();
        for (words, hint) in [
            ("E: The repository is not signed.\nW: NO_PUBKEY 123", "debian-archive-keyring"),
            ("E: Release file for x is expired (invalid since 12d)", "the mirror is behind"),
            ("E: Unable to locate package nodejs25", "every package"),
            ("something else", "by hand"),
            ("", "by hand"),
        ] {
            let Failure::Told { message, hint: Some(told) } = explain(words, &recipe) else { panic!() };
            assert!(told.contains(hint), "{words}: {message} {told}");
        }
    }
}
