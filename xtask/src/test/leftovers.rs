//! What a run must not leave on the host.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::shell::Result;

/// Teardown happens off the path of an execution, so it may lag behind.
const PATIENCE: Duration = Duration::from_secs(10);

/// Host ids that only cells have (`casemate_wire::launch`).
const CELL_IDS: std::ops::Range<u32> = 0x5000_0000..0x7000_0000;

/// Everything that a cell is made of, in words.
pub(super) struct Leftovers(BTreeSet<String>);

impl Leftovers {
    /// Looks at the host, and into these further temporary directories.
    pub(super) fn find(temporary: &[&Path]) -> Leftovers {
        let mut found = BTreeSet::new();
        processes(&mut found);
        cgroups(Path::new("/sys/fs/cgroup"), &mut found);
        mounts(&mut found);
        for dir in temporary.iter().copied().chain([Path::new("/tmp")]) {
            files(dir, |name| name.starts_with("casemate-"), &mut found);
        }
        // The file that cells' ids are locked in stays.
        files(Path::new("/run/casemate"), |name| name != "ids", &mut found);
        Leftovers(found)
    }

    /// Fails if something is there that was not there before, and stays.
    pub(super) fn compare(&self, temporary: &[&PathBuf]) -> Result {
        let temporary: Vec<&Path> = temporary.iter().map(|path| path.as_path()).collect();
        let deadline = Instant::now() + PATIENCE;
        let mut left: BTreeSet<String> = &Leftovers::find(&temporary).0 - &self.0;
        while !left.is_empty() && Instant::now() < deadline {
            sleep(Duration::from_millis(200));
            // Only what is there every time: other runs on this machine come and go.
            left = &left & &Leftovers::find(&temporary).0;
        }
        if left.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = left.iter().map(|thing| format!("  {thing}")).collect();
        Err(format!("still there after {} s:\n{}", PATIENCE.as_secs(), list.join("\n")))
    }
}

fn processes(found: &mut BTreeSet<String>) {
    for dir in entries(Path::new("/proc")) {
        let Ok(pid) = name(&dir).parse::<u32>() else { continue };
        let Ok(metadata) = fs::metadata(&dir) else { continue };
        let program = fs::read_link(dir.join("exe")).map(|exe| name(&exe)).unwrap_or_default();
        let program = program.trim_start_matches("memfd:").trim_end_matches(" (deleted)");
        let ours = ["casemate", "casemate-launcher", "casemate-guest", "casemate-unpack"].contains(&program);
        if ours || CELL_IDS.contains(&metadata.uid()) {
            found.insert(format!("process {pid} {program} of uid {}", metadata.uid()));
        }
    }
}

/// Groups of cells, and of Docker Engines that tests have started.
fn cgroups(dir: &Path, found: &mut BTreeSet<String>) {
    for group in entries(dir).into_iter().filter(|path| path.is_dir() && !path.is_symlink()) {
        if ["casemate", "docker-"].iter().any(|ours| name(&group).starts_with(ours)) {
            found.insert(format!("cgroup {}", group.display()));
        } else {
            cgroups(&group, found);
        }
    }
}

fn mounts(found: &mut BTreeSet<String>) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = ["/tmp/casemate-", "/tmp/xtask-"];
    let is_ours = |field: &str| field == "casemate" || places.iter().any(|place| field.starts_with(place));
    let ours = |line: &&str| line.split(' ').any(is_ours);
    found.extend(table.lines().filter(ours).map(|line| format!("mount {line}")));
}

fn files(dir: &Path, ours: impl Fn(&str) -> bool, found: &mut BTreeSet<String>) {
    let paths = entries(dir).into_iter().filter(|path| ours(&name(path)));
    found.extend(paths.map(|path| format!("file {}", path.display())));
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
