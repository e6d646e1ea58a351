//! `cargo xtask test`: every test, as root and as a user without privileges, on a machine that has Rust and a C
//! compiler.
//!
//! Each part runs whatever became of the others; the last line counts what passed and what failed.

mod fuzz;
mod leftovers;
mod place;
mod report;
mod suites;
mod user;

use std::process::Command;
use std::time::{Duration, Instant};

use crate::docker::Dockerd;
use crate::shell::{self, Result, heading};
use crate::{docker, packages};
use leftovers::Leftovers;
use place::Place;
use report::Report;
use suites::{Built, Suite};
use user::TestUser;

/// Interpreters that run in cells (with what draws charts), what the suites start on the host (a registry and a builder of images among it), and the compilers of
/// the examples and of libFuzzer.
const PACKAGES: [&str; 12] = [
    "python3",
    "python3-matplotlib",
    "nodejs",
    "strace",
    "util-linux",
    "passwd",
    "docker-registry",
    "mmdebstrap",
    "clang",
    "lld",
    "g++",
    "openssl",
];

/// No suite takes nearly as long.
const SUITE_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Whose suites are run a second time, without privileges, and which of them only root can run, or take minutes.
const TESTKIT: &str = "casemate-testkit";
const ROOT_ONLY: [&str; 6] =
    ["clients", "service_abuse", "service_ends", "service_load", "setup", "surroundings"];

pub(crate) fn run() -> Result {
    let started = Instant::now();
    if shell::read(Command::new("id").arg("-u"))?.trim() != "0" {
        return Err(
            "`cargo xtask test` runs as root: it installs packages, creates a user without privileges \
                    and runs the tests as both"
                .into(),
        );
    }
    packages::ensure(&PACKAGES)?;
    heading("building");
    let built = suites::build()?;
    let before = Leftovers::find(&[]);
    let place = Place::new()?;
    let mut report = Report::default();
    let docker = docker::start(&place.directory("docker")?, Some(&built.runsc()));
    if let Err(error) = &docker {
        report.part("a Docker Engine", || Err(error.clone()));
    }
    // Where there should have been one, if there is none: the tests then say what they miss.
    let host = docker.as_ref().map_or_else(|_| "unix:///nowhere".to_owned(), Dockerd::host);

    for suite in &built.suites {
        let mut command = suite.as_root(&built, &place);
        report.run(&suite.title("root"), suite.table(), command.env(docker::VARIABLE, &host), SUITE_LIMIT);
    }
    let mut documentation = shell::cargo(["test", "--profile=checks", "--workspace", "--doc", "--quiet"]);
    report.run("examples in the documentation", None, &mut documentation, SUITE_LIMIT);

    let as_root = || {
        let mut command = Command::new(&built.casemate);
        place.root.enter(&mut command);
        Ok(command)
    };
    first_command("root", as_root, &mut report);

    let user = TestUser::new(&place, &built.runtimes);
    match &user {
        Ok(user) => {
            unprivileged(&built, user, &host, &mut report);
            first_command("unprivileged", || user.command(&built.casemate, &built.casemate), &mut report);
        }
        Err(error) => report.part("a user without privileges", || Err(error.clone())),
    }

    fuzz::run(&place, &mut report);

    drop(user);
    drop(docker);
    report.part("nothing is left behind", || before.compare(&[&place.root.tmp, &place.user.tmp]));

    drop(place);
    report.close(started.elapsed())
}

/// The same suites, where most of what root can do has to be refused.
fn unprivileged(built: &Built, user: &TestUser<'_>, docker: &str, report: &mut Report) {
    let twice = |suite: &&Suite| suite.package == TESTKIT && !ROOT_ONLY.contains(&suite.name.as_str());
    for suite in built.suites.iter().filter(twice) {
        let title = suite.title("unprivileged");
        match user.command(&suite.path, &built.casemate) {
            Ok(mut command) => {
                report.run(&title, suite.table(), command.env(docker::VARIABLE, docker), SUITE_LIMIT);
            }
            Err(error) => report.part(&title, || Err(error)),
        }
    }
}

/// The README's first command; then what it has recorded, and whatever else is in that home, must verify.
fn first_command(whose: &str, casemate: impl Fn() -> Result<Command>, report: &mut Report) {
    report.part(&format!("the first command ({whose})"), || {
        let said = shell::read(casemate()?.args(["run", "-c", "print('hello from inside')"]))?;
        if said == "hello from inside\n" { Ok(()) } else { Err(format!("it said {said:?}")) }
    });
    report.part(&format!("its evidence ({whose})"), || {
        shell::run(casemate()?.args(["evidence", "verify", "--all"]))
    });
}

impl Suite {
    fn title(&self, user: &str) -> String {
        format!("{} {} ({user})", self.package, self.name)
    }

    /// Suites that end with a table which is worth reading again at the very end.
    fn table(&self) -> Option<report::Table> {
        (self.name == "attacks").then_some(report::Table)
    }
}
