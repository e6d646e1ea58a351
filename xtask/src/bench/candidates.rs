//! What is compared.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::samples::Samples;
use super::stage::Stage;
use crate::shell::{self, Result};

pub(super) struct Candidate {
    pub(super) name: &'static str,
    /// What it runs.
    pub(super) program: &'static str,
    /// `None`: the engine, in its own process.
    pub(super) command: Option<Command>,
    pub(super) samples: Samples,
    /// Which candidate runs the same program bare.
    pub(super) bare: usize,
    pub(super) target: Option<Target>,
}

/// How many times longer than another candidate one may take.
pub(super) struct Target {
    pub(super) most: f64,
    pub(super) against: usize,
}

const PYTHON: &str = "/usr/bin/python3";
const CODE: [&str; 2] = ["-c", "print(1)"];

/// In the order in which they take their turns; those that run the same program stand together, the bare one first.
pub(super) fn all(stage: &Stage, casemate: &Path) -> Vec<Candidate> {
    let mut list = List::default();
    let casemate = |subcommand: &str| {
        let mut command = Command::new(casemate);
        command.arg(subcommand).env("CASEMATE_HOME", stage.home("cli"));
        command
    };

    let bare = list.bare("static true", Command::new(stage.program()));
    list.add("bubblewrap", bubblewrap(&[Bind(&stage.program(), "/true")], &["/true"]));
    list.add("runc", runc(stage));
    let mut run = casemate("run");
    run.arg("--image").arg(stage.image()).args(["--", "/bin/true"]);
    list.add("casemate run --image DIR -- /bin/true", run);
    list.engine("Engine::execute, cold").target(4.0, bare);

    list.bare("/usr/bin/true", Command::new("/usr/bin/true"));
    let other = list.add("bubblewrap", bubblewrap(&[], &["true"]));
    let mut run = casemate("run");
    run.args(["--", "true"]);
    list.add("casemate run -- true", run);
    list.last().target(2.0, other);
    let mut explain = casemate("explain");
    explain.args(["--", "true"]);
    list.add("casemate explain -- true (runs nothing)", explain);

    let mut python = Command::new(PYTHON);
    python.args(CODE);
    let bare = list.bare("/usr/bin/python3 -c 'print(1)'", python);
    list.add("bubblewrap", bubblewrap(&[], &[PYTHON, CODE[0], CODE[1]]));
    let mut run = casemate("run");
    run.args(["--lang", "python"]).args(CODE);
    list.add("casemate run --lang python -c 'print(1)'", run);
    list.last().target(1.6, bare);
    list.0
}

/// Walls around sandboxes of others. `home` has `runsc` in it; the Docker Engine at `host` has the stage's image, as `image`.
pub(super) fn sandboxes(
    stage: &Stage,
    casemate: &Path,
    home: &Path,
    (host, image): (&str, &str),
) -> Vec<Candidate> {
    let mut list = List::default();
    list.bare("static true, in gVisor", Command::new(stage.program()));
    let alone = |groups: &[&str]| {
        let mut alone = Command::new(home.join("gvisor/runsc"));
        alone.arg(format!("--root={}", stage.home("runsc").display())).arg("--network=none").args(groups);
        alone.args(["run", "--bundle"]).arg(stage.bundle()).arg(format!("bench-{}", std::process::id()));
        alone
    };
    // Without cgroups nothing bounds it, so it is no match; but it shows what they cost.
    list.add("runsc --ignore-cgroups run", alone(&["--ignore-cgroups"]));
    let alone = list.add("runsc run", alone(&[]));
    let mut run = Command::new(casemate);
    run.args(["run", "--on", "gvisor", "--image"]).arg(stage.image()).args(["--", "/bin/true"]);
    run.env("CASEMATE_HOME", home);
    list.add("casemate run --on gvisor -- /bin/true", run);
    list.last().target(1.15, alone);

    list.bare("static true, in Docker", Command::new(stage.program()));
    let mut plain = Command::new("docker");
    plain.args(["run", "--rm", "--network", "none", image, "/bin/true"]).env(crate::docker::VARIABLE, host);
    let plain = list.add("docker run --rm --network none", plain);
    let mut run = Command::new(casemate);
    run.args(["run", "--on", "docker", "--image"]).arg(stage.image()).args(["--", "/bin/true"]);
    run.env("CASEMATE_HOME", stage.home("docker")).env(crate::docker::VARIABLE, host);
    list.add("casemate run --on docker -- /bin/true", run);
    list.last().target(1.15, plain);
    list.0
}

/// Runs it once, with nothing to read and nobody to read it.
pub(super) fn time(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status();
    let took = start.elapsed();
    match status {
        Ok(status) if status.success() => Ok(took),
        Ok(status) => Err(format!("{}: {status}", shell::show(command))),
        Err(error) => Err(format!("cannot start {}: {error}", shell::show(command))),
    }
}

#[derive(Default)]
struct List(Vec<Candidate>);

impl List {
    fn bare(&mut self, program: &'static str, command: Command) -> usize {
        let bare = self.0.len();
        self.push(Candidate {
            name: "bare",
            program,
            command: Some(command),
            samples: Samples::default(),
            bare,
            target: None,
        })
    }

    /// Another way to run what the last bare candidate runs.
    fn add(&mut self, name: &'static str, command: Command) -> usize {
        let (program, bare) = (self.last().program, self.last().bare);
        let (samples, target) = (Samples::default(), None);
        self.push(Candidate { name, program, command: Some(command), samples, bare, target })
    }

    fn engine(&mut self, name: &'static str) -> &mut Candidate {
        let (program, bare) = (self.last().program, self.last().bare);
        let (samples, target) = (Samples::default(), None);
        self.push(Candidate { name, program, command: None, samples, bare, target });
        self.last()
    }

    fn push(&mut self, candidate: Candidate) -> usize {
        self.0.push(candidate);
        self.0.len() - 1
    }

    fn last(&mut self) -> &mut Candidate {
        self.0.last_mut().expect("a bare candidate comes first")
    }
}

impl Candidate {
    fn target(&mut self, most: f64, against: usize) {
        self.target = Some(Target { most, against });
    }
}

struct Bind<'a>(&'a Path, &'a str);

/// The host's `/usr` read-only in namespaces of its own: the nearest to a cell that bubblewrap has.
fn bubblewrap(binds: &[Bind<'_>], program: &[&str]) -> Command {
    let mut command = Command::new("bwrap");
    command
        .args(["--unshare-all", "--ro-bind", "/usr", "/usr"])
        .args(["--symlink", "usr/lib64", "/lib64", "--symlink", "usr/lib", "/lib"])
        .args(["--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    for Bind(from, to) in binds {
        command.arg("--ro-bind").arg(from).arg(to);
    }
    command.args(["--die-with-parent", "--"]).args(program);
    command
}

fn runc(stage: &Stage) -> Command {
    let mut command = Command::new("runc");
    command.args(["run", "--bundle"]).arg(stage.bundle()).arg(format!("bench-{}", std::process::id()));
    command
}
