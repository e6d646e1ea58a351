//! A container's payload as the host's kernel shows it, and what it must look like before it may run. What the Docker Engine says
//! that it did is one thing; this is the other.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use casemate_wire::launch::{Mount, Posture, soft_limits};

use super::groups::Groups;
use super::layout::{Bind, unescaped};
use super::settings::{Asked, PLACES};

const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
/// The user namespace is the host's, unless the engine remaps users.
const OWN: [&str; 6] = ["mnt", "pid", "net", "ipc", "uts", "cgroup"];
/// Of gVisor's kernel. What it is root of is its own user namespace.
const OWN_OF_SANDBOX: [&str; 5] = ["user", "mnt", "net", "ipc", "uts"];
/// What the process calls itself that opens the container's files for gVisor's kernel.
const GOFER: &[u8] = b"runsc-gofer\0";

/// What was seen, and what this user is not shown.
pub(super) struct Seen {
    pub(super) posture: Posture,
    pub(super) unseen: Vec<&'static str>,
    sizes: Vec<(String, String)>,
}

/// The one child of a container's first process.
pub(super) fn only_child(init: i32) -> io::Result<i32> {
    let list = fs::read_to_string(format!("/proc/{init}/task/{init}/children"))?;
    let mut pids = list.split_whitespace().filter_map(|word| word.parse().ok());
    match (pids.next(), pids.next()) {
        (Some(pid), None) => Ok(pid),
        (None, _) => Err(io::Error::other("the guest has no children")),
        (Some(_), Some(_)) => Err(io::Error::other("the guest has more than one child")),
    }
}

/// The child of a container's first process that has this number in there, and has not ended.
pub(super) fn child_numbered(init: i32, number: u32) -> Option<i32> {
    let list = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).ok()?;
    list.split_whitespace().filter_map(|word| word.parse().ok()).find(|pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let lives = !field(&status, "State").is_none_or(|state| state.trim().starts_with(['Z', 'X']));
        let inside = field(&status, "NSpid").and_then(|line| line.split_whitespace().last());
        lives && inside.is_some_and(|inside| inside.parse() == Ok(number))
    })
}

/// The one process of a container that opens its files for gVisor's kernel. By its own word: nothing hostile has run yet.
pub(super) fn gofer(groups: &Groups) -> io::Result<i32> {
    let is_it =
        |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(GOFER));
    match groups.processes()?.into_iter().filter(is_it).collect::<Vec<_>>()[..] {
        [pid] => Ok(pid),
        ref found => Err(io::Error::other(format!("there are {} of gVisor's file servers", found.len()))),
    }
}

pub(super) fn look(pid: i32, groups: &Groups) -> io::Result<Seen> {
    let of = |file: &str| format!("/proc/{pid}/{file}");
    let status = fs::read_to_string(of("status"))?;
    let number = |key: &str| field(&status, key)?.split_whitespace().next()?.parse::<u32>().ok();
    let known = |key: &str| number(key).ok_or_else(|| missing(key));
    let set = |key: &str| {
        field(&status, key)
            .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
            .ok_or_else(|| missing(key))
    };
    let mut unseen = Vec::new();
    let (mut own, mut shared) = (Vec::new(), Vec::new());
    match namespaces(pid) {
        Ok(seen) => {
            for (name, theirs) in NAMESPACES.into_iter().zip(seen) {
                let ours = fs::read_link(format!("/proc/self/ns/{name}"))?;
                if ours == theirs { &mut shared } else { &mut own }.push(name.to_owned());
            }
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => unseen.push("namespaces"),
        Err(error) => return Err(error),
    }
    let table = match fs::read_to_string(of("mountinfo")) {
        Ok(text) => mounts(&text),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unseen.push("mounts");
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let posture = Posture {
        uid: known("Uid")?,
        gid: known("Gid")?,
        groups: field(&status, "Groups")
            .unwrap_or_default()
            .split_whitespace()
            .flat_map(str::parse)
            .collect(),
        cap_effective: set("CapEff")?,
        cap_permitted: set("CapPrm")?,
        cap_inheritable: set("CapInh")?,
        cap_bounding: set("CapBnd")?,
        cap_ambient: set("CapAmb")?,
        no_new_privs: known("NoNewPrivs")? == 1,
        seccomp_mode: known("Seccomp")?,
        seccomp_filters: number("Seccomp_filters").unwrap_or(0),
        own_namespaces: own,
        shared_namespaces: shared,
        rlimits: soft_limits(&fs::read_to_string(of("limits")).unwrap_or_default()),
        cgroup: groups.limits(),
        oom_score_adj: fs::read_to_string(of("oom_score_adj"))?.trim().parse().map_err(io::Error::other)?,
        mounts: table.iter().map(|entry| entry.mount.clone()).collect(),
    };
    let sizes = table.into_iter().map(|entry| (entry.mount.point, entry.file_system)).collect();
    Ok(Seen { posture, unseen, sizes })
}

impl Seen {
    /// What is wrong with a payload on the host's kernel, if anything.
    pub(super) fn violation(&self, asked: &Asked) -> Option<String> {
        let seen = &self.posture;
        let capabilities = seen.cap_effective
            | seen.cap_permitted
            | seen.cap_inheritable
            | seen.cap_bounding
            | seen.cap_ambient;
        if seen.uid == 0 || seen.gid == 0 {
            return Some("the payload has the uid or gid of root".into());
        }
        if capabilities != 0 {
            return Some("the payload has capabilities".into());
        }
        if !seen.no_new_privs {
            return Some("no_new_privs is not set".into());
        }
        // The engine's, and the guest's on top.
        if seen.seccomp_mode != 2 || seen.seccomp_filters < 2 {
            return Some("a seccomp filter is missing".into());
        }
        self.shared_namespace(&OWN).or_else(|| self.open_mount(asked)).or_else(|| self.loose_limit(asked))
    }

    /// What is wrong with the process that is gVisor's kernel for a payload.
    pub(super) fn sandbox_violation(&self, asked: &Asked) -> Option<String> {
        let seen = &self.posture;
        if seen.seccomp_mode != 2 {
            return Some("gVisor's kernel has no seccomp filter".into());
        }
        if !seen.no_new_privs {
            return Some("no_new_privs is not set".into());
        }
        // It has an empty file system of its own making, and no other.
        let open = seen.mounts.iter().find(|mount| !mount.options.split(',').any(|option| option == "ro"));
        let open =
            || open.map(|mount| format!("gVisor's kernel has {} mounted {}", mount.point, mount.options));
        self.shared_namespace(&OWN_OF_SANDBOX).or_else(open).or_else(|| self.loose_limit(asked))
    }

    fn shared_namespace(&self, own: &[&str]) -> Option<String> {
        let shared =
            own.iter().find(|name| self.posture.shared_namespaces.iter().any(|shared| shared == *name));
        shared.map(|name| format!("the {name} namespace is the host's"))
    }

    fn open_mount(&self, asked: &Asked) -> Option<String> {
        if self.unseen.contains(&"mounts") {
            return None;
        }
        for mount in &self.posture.mounts {
            let has = |wanted: &str| mount.options.split(',').any(|option| option == wanted);
            let writable = PLACES.iter().any(|(place, ..)| *place == mount.point);
            let right =
                if writable { mount.kind == "tmpfs" && has("nosuid") && has("nodev") } else { has("ro") };
            if !right {
                return Some(format!("{} is mounted {}", mount.point, mount.options));
            }
        }
        PLACES.iter().zip(asked.quotas).find_map(|((place, ..), (bytes, inodes))| {
            let found =
                self.sizes.iter().rfind(|(point, _)| point == place).map(|(_, options)| options.as_str());
            let option = |key: &str| found?.split(',').find_map(|option| option.strip_prefix(key));
            let size = option("size=").and_then(|text| text.strip_suffix('k')?.parse::<u64>().ok());
            let count = option("nr_inodes=").and_then(|text| text.parse::<u64>().ok());
            let bounded =
                size.is_some_and(|kib| kib * 1024 <= bytes) && count.is_some_and(|count| count <= inodes);
            (!bounded).then(|| format!("{place} has no such quota as was asked for"))
        })
    }

    /// Microseconds of processor time in each tenth of a second.
    fn processor_quota(&self) -> Option<u64> {
        let value = |wanted: &str| {
            self.posture.cgroup.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
        };
        let (quota, period) = match (value("cpu.max"), value("cpu.cfs_quota_us")) {
            (Some(both), _) => both.split_once(' ')?,
            (None, Some(quota)) => (quota, value("cpu.cfs_period_us")?),
            (None, None) => return None,
        };
        let (quota, period) =
            (quota.parse::<u64>().ok()?, period.parse::<u64>().ok().filter(|period| *period > 0)?);
        Some(quota * 100_000 / period)
    }

    fn loose_limit(&self, asked: &Asked) -> Option<String> {
        let limit = |names: &[&str]| {
            let (_, value) = self.posture.cgroup.iter().find(|(name, _)| names.contains(&name.as_str()))?;
            value.parse::<u64>().ok()
        };
        let limits = [
            ("memory", asked.memory, limit(&["memory.max", "memory.limit_in_bytes"])),
            ("processes", asked.processes, limit(&["pids.max"])),
            ("processors", asked.cpu_micros(), self.processor_quota()),
        ];
        limits.into_iter().find_map(|(what, wanted, found)| {
            let wanted = wanted?;
            (found.is_none_or(|found| found > wanted)).then(|| format!("the limit on {what} is not in force"))
        })
    }
}

/// Whether what is bound in a container is what was meant: the engine was told paths, and what they lead to can change.
pub(super) fn check_binds(root: &Path, binds: &[Bind]) -> Result<(), String> {
    for bind in binds {
        let place = root.join(bind.place.trim_start_matches('/'));
        let found = fs::symlink_metadata(&place).map(|found| (found.dev(), found.ino()));
        match found {
            Ok(found) if found == bind.identity => {}
            Ok(_) => {
                return Err(format!("the image changed during the launch: {} is something else", bind.place));
            }
            Err(error) => return Err(format!("{} of the image is not there: {error}", bind.place)),
        }
    }
    Ok(())
}

fn namespaces(pid: i32) -> io::Result<Vec<PathBuf>> {
    NAMESPACES.iter().map(|name| fs::read_link(format!("/proc/{pid}/ns/{name}"))).collect()
}

fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
}

fn missing(key: &str) -> io::Error {
    io::Error::other(format!("/proc/PID/status has no {key}"))
}

struct Entry {
    id: u32,
    parent: u32,
    mount: Mount,
    file_system: String,
}

/// The mounts that can be seen: what another one covers is out of reach, since nobody in there can take a mount away.
fn mounts(table: &str) -> Vec<Entry> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let (mut left, mut right) = (left.split(' '), right.split(' '));
        let (id, parent) = (left.next()?.parse().ok()?, left.next()?.parse().ok()?);
        let mut left = left.skip(2);
        let point = unescaped(left.next()?).to_string_lossy().into_owned();
        let (options, kind) = (left.next()?.to_owned(), right.next()?.to_owned());
        let file_system = right.nth(1).unwrap_or_default().to_owned();
        Some(Entry { id, parent, mount: Mount { point, kind, options }, file_system })
    };
    let all: Vec<Entry> = table.lines().filter_map(parse).collect();
    // Of several that are mounted on one mount, the one with the shorter path came last: what is beneath it would be on it otherwise.
    let hidden_by_sibling = |entry: &Entry| {
        let covers = |other: &Entry| {
            other.parent == entry.parent
                && other.id != entry.id
                && Path::new(&entry.mount.point).starts_with(&other.mount.point)
        };
        all.iter().any(covers)
    };
    let reachable = |entry: &Entry| {
        let mut at = entry;
        // No deeper than there are mounts.
        for _ in 0..all.len() {
            if hidden_by_sibling(at) {
                return false;
            }
            match all.iter().find(|other| other.id == at.parent) {
                Some(parent) => at = parent,
                None => return true,
            }
        }
        false
    };
    let covered = |entry: &Entry| {
        all.iter().any(|other| other.parent == entry.id && other.mount.point == entry.mount.point)
    };
    let seen: Vec<bool> = all.iter().map(|entry| reachable(entry) && !covered(entry)).collect();
    all.into_iter().zip(seen).filter_map(|(entry, seen)| seen.then_some(entry)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covered_mounts_do_not_count() {
        let table = "\
72 48 0:39 / / ro,relatime - overlay overlay rw
73 72 0:42 / /proc rw,nosuid - proc proc rw
74 72 0:43 / /sys ro - sysfs sysfs ro
75 74 0:44 / /sys/fs/cgroup rw - tmpfs tmpfs rw
76 72 0:45 / /work rw,nosuid,nodev - tmpfs tmpfs rw,size=16k,nr_inodes=5
49 73 0:42 / /proc ro,nosuid - proc proc rw
50 74 0:48 / /sys ro - tmpfs tmpfs ro
51 49 0:49 / /proc/acpi ro - tmpfs tmpfs ro";
        let seen: Vec<u32> = mounts(table).iter().map(|entry| entry.id).collect();
        assert_eq!(seen, [72, 76, 49, 50, 51]);
    }

    #[test]
    fn what_is_covered_covers_nothing_itself() {
        let table = "\
1 0 0:1 / / ro - overlay overlay ro
10 1 0:2 / /sys ro - sysfs sysfs ro
11 10 0:3 / /sys/fs/cgroup ro - tmpfs tmpfs ro
12 10 0:4 / /sys ro - tmpfs tmpfs ro
13 12 0:5 / /sys/fs/cgroup rw - tmpfs tmpfs rw
20 1 0:6 / /etc/hostname ro - ext4 disk rw
21 1 0:7 / /etc ro - ext4 disk rw
22 21 0:8 / /etc/hostname rw - ext4 disk rw";
        let seen: Vec<u32> = mounts(table).iter().map(|entry| entry.id).collect();
        assert_eq!(seen, [1, 12, 13, 21, 22]);
    }
}
