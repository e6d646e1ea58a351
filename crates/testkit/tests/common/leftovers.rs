//! What a run may leave behind: processes, control groups, mounts, files. Other people use this machine at the same time,
//! so what counts is what bears the mark of a test's own home or of a run in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Home, eventually};

const GROUPS: &str = "/sys/fs/cgroup";

impl Home {
    /// Remembers the runs that the home shows now, so that they can be looked for later.
    pub(crate) fn runs(&self) -> BTreeSet<String> {
        let mut seen = self.seen.lock().expect("no test panics here");
        seen.extend(self.live_runs());
        seen.extend(self.records().iter().filter_map(|record| Some(record["run"].as_str()?.to_owned())));
        seen.clone()
    }

    /// The directories of runs that have not been taken down.
    pub(crate) fn live_runs(&self) -> BTreeSet<String> {
        names(&self.path().join("runs")).into_iter().filter(|name| name != "lock").collect()
    }

    /// Everything that runs of this home have left on this machine, but for those of the runs in `except`.
    pub(crate) fn leftovers(&self, except: &BTreeSet<String>) -> Vec<String> {
        let runs: BTreeSet<String> = self.runs().difference(except).cloned().collect();
        let ours = |text: &str| runs.iter().any(|run| text.contains(run.as_str()));
        let mut found = Vec::new();
        let mark = self.path().display().to_string();
        for process in processes() {
            let marked = except.is_empty() && process.environment.contains(&mark);
            if marked || ours(&process.groups) || process.files().iter().any(|file| ours(file)) {
                found.push(format!("process {} ({})", process.pid, process.command));
            }
        }
        found.extend(groups().into_iter().filter(|group| ours(group)));
        found.extend(names(&std::env::temp_dir()).into_iter().filter(|name| ours(name)));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        found.extend(mounts.lines().filter(|line| line.contains(&mark) || ours(line)).map(str::to_owned));
        found.extend(self.live_runs().difference(except).map(|run| format!("runs/{run}")));
        let odd = |name: &String| name.starts_with("doctor-") || name.contains(".tmp");
        found.extend(names(&self.path()).into_iter().filter(odd));
        found
    }

    /// To be called when `casemate` has ended: then everything is gone already.
    #[track_caller]
    pub(crate) fn nothing_left(&self) {
        let found = self.leftovers(&BTreeSet::new());
        assert!(found.is_empty(), "left behind: {found:#?}");
    }

    /// After a kill nobody waits for the cells, but they go at once all the same.
    #[track_caller]
    pub(crate) fn soon_no_process_left(&self, except: &BTreeSet<String>) {
        let runs: BTreeSet<String> = self.runs().difference(except).cloned().collect();
        eventually("no process of a killed run is left", Duration::from_secs(5), || {
            !processes().iter().any(|process| {
                let files = process.files();
                let belongs = |run: &String| {
                    process.groups.contains(run) || files.iter().any(|file| file.contains(run))
                };
                runs.iter().any(belongs)
            })
        });
    }
}

/// A process as `/proc` shows it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) command: String,
    pub(crate) environment: String,
    pub(crate) groups: String,
    pub(crate) program: String,
}

impl Process {
    /// A launcher or a guest.
    pub(crate) fn is_agent(&self) -> bool {
        self.program.contains("memfd:casemate-")
    }

    /// What it has open. A launcher holds the lock of its run.
    pub(crate) fn files(&self) -> Vec<String> {
        let dir = PathBuf::from(format!("/proc/{}/fd", self.pid));
        let link = |name| fs::read_link(dir.join(name)).ok().map(|link| link.to_string_lossy().into_owned());
        names(&dir).into_iter().filter_map(link).collect()
    }
}

/// All processes that run, but this one.
pub(crate) fn processes() -> Vec<Process> {
    let pids = names(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    let own = std::process::id() as i32;
    pids.filter(|pid| *pid != own).filter_map(process).collect()
}

fn process(pid: i32) -> Option<Process> {
    let read = |file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let stat = read("stat");
    // After the name, which may hold anything: state, parent.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if fields.next()? == "Z" {
        // It has ended. When its parent was killed, the machine's init takes note of that in its own time.
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    Some(Process {
        pid,
        parent,
        command: read("cmdline"),
        environment: read("environ"),
        groups: read("cgroup"),
        program: program.to_string_lossy().into_owned(),
    })
}

/// Every control group of a cell, in every hierarchy: `/sys/fs/cgroup/memory/casemate-RUN.container.0.1`.
pub(crate) fn groups() -> Vec<String> {
    let hierarchies = names(Path::new(GROUPS)).into_iter().map(|name| PathBuf::from(GROUPS).join(name));
    let ours = |hierarchy: PathBuf| {
        let names = names(&hierarchy).into_iter().filter(|name| name.starts_with("casemate"));
        names.map(|name| hierarchy.join(name).display().to_string()).collect::<Vec<_>>()
    };
    hierarchies.chain([PathBuf::from(GROUPS)]).flat_map(ours).collect()
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
