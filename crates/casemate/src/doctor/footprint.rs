//! What cells take of this machine, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};

/// What the Docker Engine starts for each container; it is nobody's child.
const SHIM: &str = "containerd-shim";

/// The processes of this machine at one moment.
#[derive(Debug)]
pub(super) struct Processes(BTreeMap<u32, Process>);

#[derive(Debug, PartialEq)]
struct Process {
    name: String,
    parent: u32,
}

impl Processes {
    pub(super) fn now() -> Processes {
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        Processes(numbers.filter_map(|pid| Some((pid, Process::read(&pid.to_string())?))).collect())
    }

    /// Bytes of those that are new since then and belong to cells of ours: pages that several share are divided among them.
    pub(super) fn new_memory(&self, then: &Processes) -> u64 {
        self.ours(then, std::process::id()).map(memory).sum()
    }

    /// Those that came after `then` and descend from `root`, or from a shim that came after it, too.
    fn ours<'a>(&'a self, then: &'a Processes, root: u32) -> impl Iterator<Item = u32> + 'a {
        let is_new = |pid: u32| !then.0.contains_key(&pid);
        self.0.keys().copied().filter(move |&pid| is_new(pid) && self.descends(pid, root, &is_new))
    }

    fn descends(&self, pid: u32, root: u32, is_new: &impl Fn(u32) -> bool) -> bool {
        let mut at = pid;
        // As deep as no tree is: numbers are used again, so what was read one by one may hold a circle.
        for _ in 0..64 {
            let Some(process) = self.0.get(&at) else { return false };
            if process.parent == root || (is_new(at) && process.name.starts_with(SHIM)) {
                return true;
            }
            at = process.parent;
        }
        false
    }
}

impl Process {
    fn read(pid: &str) -> Option<Process> {
        Process::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `number (name) state parent …`; the name may hold anything.
    fn parse(stat: &str) -> Option<Process> {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        Some(Process { name: name.to_owned(), parent: rest.split_whitespace().nth(1)?.parse().ok()? })
    }
}

/// Where shared pages cannot be told from others, all of them count.
fn memory(pid: u32) -> u64 {
    let shared = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    let resident = || {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    };
    match shared {
        Some(kib) => kib * 1024,
        None => resident().unwrap_or(0) * page_size() as u64,
    }
}

/// Processor time of everything on this machine.
pub(super) fn machine_cpu() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy(&text).map_or(Duration::ZERO, |ticks| {
        Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
    })
}

/// user, nice, system, (idle, iowait,) irq, softirq
fn busy(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let fields: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    [0, 1, 2, 5, 6].iter().map(|&at| fields.get(at).copied()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, parent: u32) -> Process {
        Process { name: name.to_owned(), parent }
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a) R (b) S 3 7 7 0 -1 4194560 100 0 0 0 11 12 13 14 20 0 1 0 5 6 7";
        assert_eq!(Process::parse(stat), Some(Process { name: "a) R (b".into(), parent: 3 }));
        for broken in ["", "7 (a", "7 (a) S", "7 (a) S x"] {
            assert_eq!(Process::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn idle_time_is_not_spent() {
        assert_eq!(busy("cpu  1 2 3 400 500 6 7 8 0 0\ncpu0 1"), Some(19));
        assert_eq!(busy("nonsense"), None);
    }

    #[test]
    fn only_what_is_new_and_ours_counts() {
        let then =
            Processes([(1, process("init", 0)), (10, process("us", 1)), (11, process("old", 10))].into());
        let now = [
            (1, process("init", 0)),
            (10, process("us", 1)),
            (11, process("old", 10)),
            (20, process("launcher", 10)),
            (21, process("payload", 20)),
            (30, process("containerd-shim", 1)),
            (31, process("sh", 30)),
            (40, process("stranger", 1)),
            (50, process("circle", 51)),
            (51, process("circle", 50)),
        ];
        let now = Processes(now.into());
        assert_eq!(now.ours(&then, 10).collect::<Vec<_>>(), [20, 21, 30, 31]);
    }

    #[test]
    fn this_machine_can_be_measured() {
        assert!(Processes::now().0.contains_key(&std::process::id()));
        assert!(memory(std::process::id()) > 100_000);
        let before = machine_cpu();
        // It does something: we wait for it.
        while machine_cpu() == before {}
    }
}
