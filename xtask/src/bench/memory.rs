//! What a live cell takes, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::driver::Driver;
use super::stage::Stage;
use crate::shell::Result;

/// Resident and proportional bytes of processes: the second counts shared pages once, divided among their users.
#[derive(Default, Clone, Copy)]
struct Footprint {
    resident: u64,
    proportional: u64,
}

/// Keeps cells alive and prints what each takes on average.
pub(super) fn report(engine: &mut Driver, stage: &Stage, count: usize) -> Result {
    engine.hold(count)?;
    let measured = measure(engine.pid(), &stage.home("engine"), count);
    engine.release()?;
    measured
}

/// Proportional bytes of everything in the cells of the engine at `home`, but for the guests.
pub(super) fn payloads(home: &Path) -> Result<u64> {
    let run = only_run(home).ok_or("the engine has registered no run")?;
    let mut groups = Vec::new();
    find_groups(Path::new("/sys/fs/cgroup"), &format!("casemate-{run}."), &mut groups);
    let cells: BTreeMap<String, Vec<u32>> =
        groups.iter().map(|group| (name(group), processes(group))).collect();
    let payloads: Vec<u32> = cells.into_values().flatten().filter(|&pid| !is_init(pid)).collect();
    Ok(sum(&payloads).proportional)
}

fn measure(engine: u32, home: &Path, count: usize) -> Result {
    let run = only_run(home).ok_or("the engine has registered no run")?;
    let mut groups = Vec::new();
    find_groups(Path::new("/sys/fs/cgroup"), &format!("casemate-{run}."), &mut groups);
    // Each hierarchy holds the same cells under the same names: any one of them names the processes.
    let cells: BTreeMap<String, Vec<u32>> =
        groups.iter().map(|group| (name(group), processes(group))).collect();
    let cells: Vec<Vec<u32>> = cells.into_values().filter(|processes| !processes.is_empty()).collect();
    if cells.len() != count {
        return Err(format!("{} of {count} cells were found in the cgroups of run {run}", cells.len()));
    }
    let (guests, payloads): (Vec<u32>, Vec<u32>) = cells.concat().into_iter().partition(|&pid| is_init(pid));
    println!("\nmemory of one of {count} live cells (resident, proportional)");
    print("guest", sum(&guests).per(count));
    print("payload: static, waiting", sum(&payloads).per(count));
    let charged: Vec<u64> = groups.iter().filter_map(|group| charge(group)).collect();
    if !charged.is_empty() {
        println!("  {:<42} {:>9}", "charged to its cgroup", kib(charged.iter().sum::<u64>() / count as u64));
    }
    print("engine, once", sum(&[engine]));
    print("launcher, once", sum(&children(engine)));
    Ok(())
}

fn print(what: &str, footprint: Footprint) {
    println!("  {what:<42} {:>9} {:>9}", kib(footprint.resident), kib(footprint.proportional));
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes / 1024)
}

fn only_run(home: &Path) -> Option<String> {
    let names = fs::read_dir(home.join("runs")).ok()?.flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).find(|name| name != "lock")
}

/// The groups whose names begin with `prefix`, in every hierarchy.
fn find_groups(dir: &Path, prefix: &str, found: &mut Vec<PathBuf>) {
    for path in directories(dir) {
        match name(&path).starts_with(prefix) {
            true => found.push(path),
            false => find_groups(&path, prefix, found),
        }
    }
}

fn processes(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Bytes charged to a live cell, if this hierarchy counts memory.
fn charge(group: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok();
    let charged = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    (!processes(group).is_empty()).then_some(charged)
}

/// Whether this is the first process of a PID namespace below ours.
fn is_init(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().last() == Some("1"))
}

fn children(pid: u32) -> Vec<u32> {
    let lists = directories(Path::new(&format!("/proc/{pid}/task")));
    let text = lists.iter().filter_map(|task| fs::read_to_string(task.join("children")).ok());
    text.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

fn sum(pids: &[u32]) -> Footprint {
    let mut total = Footprint::default();
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let field = |key: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
        };
        total.resident += field("Rss:");
        total.proportional += field("Pss:");
    }
    total
}

impl Footprint {
    fn per(self, count: usize) -> Footprint {
        let count = count as u64;
        Footprint { resident: self.resident / count, proportional: self.proportional / count }
    }
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.into_iter().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
