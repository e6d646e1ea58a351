//! What an engine has on this host right now: processes, cgroups, mounts, descriptors, files. Only what carries the
//! engine's own run id counts, since other engines may be at work.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything that carries one run id. Compare two of them to see what an execution left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traces {
    /// Launchers, with the number of descriptors each has.
    pub launchers: Vec<(u32, usize)>,
    /// Processes of cells, with their command lines.
    pub processes: Vec<(u32, String)>,
    /// Directories of cells in the cgroup trees: how many in each. One may be made ahead for the next cell, so names differ.
    pub groups: Vec<(PathBuf, usize)>,
    /// Containers of the Docker Engine.
    pub containers: Vec<String>,
    /// Mount points in the launchers' view.
    pub mounts: Vec<String>,
    /// Scratch directories of cells.
    pub files: Vec<PathBuf>,
}

impl Traces {
    pub fn of(run: &str) -> Traces {
        let all: Vec<Process> = processes();
        let containers = crate::docker::containers(&format!("casemate.run={run}"));
        let contained = |process: &Process| {
            containers.iter().any(|container| process.places.contains(container.as_str()))
        };
        let mut launchers: Vec<&Process> = all.iter().filter(|process| is_launcher(process, run)).collect();
        launchers.sort_by_key(|launcher| launcher.pid);
        let mut cells: Vec<(u32, String)> = all
            .iter()
            .filter(|process| !is_launcher(process, run))
            .filter(|process| belongs(process, run, &all, &launchers) || contained(process))
            .map(|process| (process.pid, process.command.clone()))
            .collect();
        cells.sort();
        let mut mounts: Vec<String> =
            launchers.iter().flat_map(|launcher| mount_points(launcher.pid)).collect();
        mounts.sort();
        Traces {
            launchers: launchers.iter().map(|launcher| (launcher.pid, descriptors(launcher.pid))).collect(),
            processes: cells,
            containers: containers.clone(),
            groups: groups(run),
            mounts,
            files: below(&std::env::temp_dir().join(format!("casemate-{run}"))),
        }
    }

    /// Those in which this program of ours runs: by its name, or where another kernel runs it, by the file that that was given.
    pub fn running(&self, program: &str) -> BTreeSet<u32> {
        let file = format!("/memfd:{program} (deleted)");
        let given = |pid: u32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|link| link == Path::new(&file))
        };
        let runs = |(pid, command): &&(u32, String)| match command.starts_with("runsc-sandbox") {
            true => given(*pid),
            false => command.split(' ').next() == Some(program),
        };
        self.processes.iter().filter(runs).map(|(pid, _)| *pid).collect()
    }

    /// Whether the engine is gone without a trace.
    pub fn is_clear(&self) -> bool {
        self.launchers.is_empty()
            && self.processes.is_empty()
            && self.containers.is_empty()
            && self.groups.is_empty()
            && self.files.is_empty()
    }

    /// The house once it has come to rest: no cell lives, and two looks agree.
    pub async fn at_rest(run: &str, within: Duration) -> Result<Traces, Traces> {
        let deadline = Instant::now() + within;
        let mut last = Traces::of(run);
        loop {
            tokio::time::sleep(Duration::from_millis(25)).await;
            let now = Traces::of(run);
            let nobody = now.processes.is_empty() && now.containers.is_empty();
            if now == last && nobody && now.files.is_empty() {
                return Ok(now);
            }
            if Instant::now() > deadline {
                return Err(now);
            }
            last = now;
        }
    }

    /// The house once two looks agree, whoever lives in it: a WASM worker stays between calls.
    pub async fn settled(run: &str, within: Duration) -> Result<Traces, Traces> {
        let deadline = Instant::now() + within;
        let mut last = Traces::of(run);
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = Traces::of(run);
            if now == last {
                return Ok(now);
            }
            if Instant::now() > deadline {
                return Err(now);
            }
            last = now;
        }
    }

    /// Waits until `run` looks like this again; the last look otherwise.
    pub async fn returns_to(&self, run: &str, within: Duration) -> Result<(), Traces> {
        let deadline = Instant::now() + within;
        loop {
            let now = Traces::of(run);
            if now == *self {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(now);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

struct Process {
    pid: u32,
    parent: u32,
    command: String,
    /// Executable, working directory and cgroups: where the run id shows up.
    places: String,
}

fn processes() -> Vec<Process> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let of = |file: &str| format!("/proc/{pid}/{file}");
        let stat = fs::read_to_string(of("stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        // The state comes first, and says nothing: a worker sleeps now and runs then.
        let parent = fields.nth(1)?.parse().ok()?;
        let command = fs::read(of("cmdline")).unwrap_or_default();
        let link = |file: &str| fs::read_link(of(file)).map(|path| path.display().to_string());
        let cgroup = fs::read_to_string(of("cgroup")).unwrap_or_default();
        Some(Process {
            pid,
            parent,
            command: String::from_utf8_lossy(&command).replace('\0', " "),
            places: [link("exe").unwrap_or_default(), link("cwd").unwrap_or_default(), cgroup].join("\n"),
        })
    })
    .collect()
}

/// A child of ours that shares the lock of this run.
fn is_launcher(process: &Process, run: &str) -> bool {
    process.parent == std::process::id()
        && process.command.contains("casemate-launcher")
        && links(process.pid).any(|link| link.to_string_lossy().contains(run))
}

/// What the descriptors of a process lead to.
fn links(pid: u32) -> impl Iterator<Item = PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| fs::read_link(entry.path()).ok())
}

fn belongs(process: &Process, run: &str, all: &[Process], launchers: &[&Process]) -> bool {
    if process.places.contains(run) {
        return true;
    }
    let mut parent = process.parent;
    while parent > 1 {
        if launchers.iter().any(|launcher| launcher.pid == parent) {
            return true;
        }
        parent = all.iter().find(|other| other.pid == parent).map_or(0, |other| other.parent);
    }
    false
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Without the host's own tree, which changes for reasons of its own.
fn mount_points(pid: u32) -> Vec<String> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    if namespace(&pid.to_string()) == namespace("self") {
        return Vec::new();
    }
    let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    // Nor what the Docker Engine mounts for whoever uses it.
    let engines = crate::docker::place();
    let others = |point: &&str| {
        point.starts_with("/host")
            || engines.as_ref().is_some_and(|place| Path::new(point).starts_with(place))
    };
    points.filter(|point| !others(point)).map(str::to_owned).collect()
}

/// How many `casemate-RUN…` there are in each hierarchy, wherever it is mounted. One is that of the next cell.
fn groups(run: &str) -> Vec<(PathBuf, usize)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let hierarchies = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup").then(|| left.split(' ').nth(4))?
    });
    let ours = |own: &Path| {
        let name = own.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.strip_prefix("casemate-").is_some_and(|name| name.starts_with(run))
    };
    let mut found: Vec<(PathBuf, usize)> = hierarchies
        .map(|mount| (PathBuf::from(mount), below(Path::new(mount)).iter().filter(|own| ours(own)).count()))
        .filter(|(_, count)| *count > 0)
        .collect();
    found.sort();
    found
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}
