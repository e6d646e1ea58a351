//! The control groups that the Docker Engine made for a container, read where the kernel shows them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use casemate_wire::launch::Counters;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The directories of one container, by controller; on v2 they are all the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
}

impl Groups {
    /// Of a process. `None`: it is in no group of this container, so what is known about it is not about this container.
    pub(super) fn of(pid: i32, container: &str) -> io::Result<Option<Groups>> {
        let membership = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        Ok(find(&membership, &mounts, container))
    }

    /// Kills whatever the kernel has in them. Where that is not allowed, it is left to the engine.
    pub(super) fn kill(&self) {
        let Some(dir) = self.pids.as_ref().or(self.memory.as_ref()) else { return };
        let listed = || -> Vec<Pid> {
            let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            list.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
        };
        // Held first, and looked for again: whoever has one of these numbers by now may be somebody else.
        let held: Vec<(Pid, OwnedFd)> = listed()
            .into_iter()
            .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
            .collect();
        let still = listed();
        for (_, process) in held.iter().filter(|(pid, _)| still.contains(pid)) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Limits with the values found, under the names of their files.
    pub(super) fn limits(&self) -> Vec<(String, String)> {
        let files = [
            (&self.memory, "memory.limit_in_bytes"),
            (&self.memory, "memory.memsw.limit_in_bytes"),
            (&self.memory, "memory.max"),
            (&self.memory, "memory.swap.max"),
            (&self.pids, "pids.max"),
            (&self.cpu, "cpu.cfs_quota_us"),
            (&self.cpu, "cpu.cfs_period_us"),
            (&self.cpu, "cpu.max"),
        ];
        let read = |(dir, name): (&Option<PathBuf>, &str)| {
            let text = fs::read_to_string(dir.as_ref()?.join(name)).ok()?;
            Some((name.to_owned(), text.trim().to_owned()))
        };
        files.into_iter().filter_map(read).collect()
    }

    /// `guests` are processes that are not the payload's.
    pub(super) fn counters(&self, guests: u64) -> Counters {
        let number = |dir: &Option<PathBuf>, names: &[&str]| {
            names.iter().find_map(|name| read_number(&dir.as_ref()?.join(name)))
        };
        let within = |dir: &Option<PathBuf>, name: &str, key: &str| {
            let text = fs::read_to_string(dir.as_ref()?.join(name)).ok()?;
            text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok())
        };
        let nanos = number(&self.cpuacct, &["cpuacct.usage"]);
        let pids_denied = within(&self.pids, "pids.events", "max ");
        // The peak is that of the runtime, which has more threads than most payloads; unless the limit was reached.
        let counted: &[&str] = if pids_denied.is_some_and(|times| times > 0) {
            &["pids.peak", "pids.max"]
        } else {
            &["pids.current"]
        };
        Counters {
            cpu_micros: within(&self.cpu, "cpu.stat", "usage_usec ").or(nanos.map(|nanos| nanos / 1000)),
            memory_peak_bytes: number(
                &self.memory,
                &["memory.peak", "memory.max_usage_in_bytes", "memory.current"],
            ),
            oom_kills: within(&self.memory, "memory.events", "oom_kill ")
                .or_else(|| within(&self.memory, "memory.oom_control", "oom_kill ")),
            pids_peak: number(&self.pids, counted).map(|peak| peak.saturating_sub(guests)),
            pids_denied,
            ..Counters::default()
        }
    }

    /// Those in it, as the host counts them.
    pub(super) fn processes(&self) -> io::Result<Vec<i32>> {
        let dir = self.memory.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let list = fs::read_to_string(dir.join("cgroup.procs"))?;
        Ok(list.split_whitespace().filter_map(|word| word.parse().ok()).collect())
    }

    /// Whether the groups are still there: they go with the container's last process.
    pub(super) fn exist(&self) -> bool {
        self.memory.as_ref().is_some_and(|dir| dir.exists())
    }
}

/// Removes what a runtime left that could not start the container (gVisor's does): groups of its name, with nobody in them.
pub(super) fn clear(container: &str) {
    let directories = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect()
    };
    // Of v2 the parents are here, of v1 in each hierarchy.
    for dir in directories(Path::new("/sys/fs/cgroup")) {
        let _ = fs::remove_dir(dir.join(container));
        for parent in directories(&dir) {
            let _ = fs::remove_dir(parent.join(container));
        }
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// From what `/proc/PID/cgroup` and `/proc/self/mountinfo` say.
fn find(membership: &str, mounts: &str, container: &str) -> Option<Groups> {
    let mut groups = Groups::default();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        if !path.contains(container) {
            continue;
        }
        let Some(dir) = mounted(mounts, controllers).map(|mount| mount.join(path.trim_start_matches('/')))
        else {
            continue;
        };
        let slots = [
            ("memory", &mut groups.memory),
            ("pids", &mut groups.pids),
            ("cpu", &mut groups.cpu),
            ("cpuacct", &mut groups.cpuacct),
        ];
        for (name, slot) in slots {
            // The one of v2 has those controllers that no hierarchy of v1 has.
            let has = match controllers.is_empty() {
                true => slot.is_none() && offers(&dir, name),
                false => controllers.split(',').any(|controller| controller == name),
            };
            if has {
                *slot = Some(dir.clone());
            }
        }
    }
    groups.memory.is_some().then_some(groups)
}

fn offers(dir: &Path, controller: &str) -> bool {
    fs::read_to_string(dir.join("cgroup.controllers"))
        .is_ok_and(|list| list.split_whitespace().any(|name| name == controller))
}

/// Where the hierarchy with these controllers is mounted, or that of v2.
fn mounted(mounts: &str, controllers: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
        let (root, point, kind, options) = (left.next()?, left.next()?, right.next()?, right.nth(1)?);
        let right_one = match controllers {
            "" => kind == "cgroup2",
            _ => {
                kind == "cgroup"
                    && controllers.split(',').all(|name| options.split(',').any(|one| one == name))
            }
        };
        (right_one && root == "/").then(|| super::layout::unescaped(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
25 24 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw
29 25 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 25 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 25 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids";

    #[test]
    fn each_controller_is_found_in_its_hierarchy() {
        let membership = "8:pids:/docker/abc\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/";
        let groups = find(membership, MOUNTS, "abc").expect("its groups");
        assert_eq!(groups.memory.as_deref(), Some(Path::new("/sys/fs/cgroup/memory/docker/abc")));
        assert_eq!(groups.pids.as_deref(), Some(Path::new("/sys/fs/cgroup/pids/docker/abc")));
        assert_eq!(groups.cpu, groups.cpuacct);
        assert_eq!(groups.cpu.as_deref(), Some(Path::new("/sys/fs/cgroup/cpu/docker/abc")));
    }

    #[test]
    fn a_process_of_another_container_has_none() {
        assert!(find("4:memory:/docker/def\n0::/", MOUNTS, "abc").is_none());
        assert!(find("4:memory:/\n0::/", MOUNTS, "abc").is_none());
    }
}
