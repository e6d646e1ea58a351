//! Reads a payload's posture from outside: what `/proc` of the host says, not what anything inside claims.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use casemate_bare::files::{list_path, read_at, read_text, read_text_at};
use casemate_bare::io;
use casemate_wire::launch::{Mount, Posture, soft_limits};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open, openat, readlinkat};

/// Namespaces of interest, as named under `/proc/PID/ns`.
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// All processes below `root`, found through the kernel's own lists of children.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut queue = vec![root];
    while let Some(pid) = queue.pop() {
        let Ok(tasks) = list_path(&format!("/proc/{pid}/task")) else { continue };
        for (task, _) in tasks {
            let children = children(&format!("/proc/{pid}/task/{task}"));
            found.extend(&children);
            queue.extend(children);
        }
    }
    found
}

/// The children of a thread, given its directory.
fn children(task: &str) -> Vec<i32> {
    let list = read_text(&format!("{task}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The first payload, which is all that a guest (`init`) has started: its directory in procfs, which is its own even if its
/// number is used again.
pub(crate) fn only_child(init: i32) -> io::Result<OwnedFd> {
    match children(&format!("/proc/{init}/task/{init}"))[..] {
        [pid] => directory(&format!("/proc/{pid}")),
        ref pids => Err(io::Error::other(format!("the guest has {} children", pids.len()))),
    }
}

/// The child of a guest (`init`) that has this number in the cell, if there is one: its directory in procfs, see [`only_child`].
pub(crate) fn child_numbered(init: i32, number: u32) -> io::Result<Option<OwnedFd>> {
    for pid in children(&format!("/proc/{init}/task/{init}")) {
        // Children come and go.
        let Ok(directory) = directory(&format!("/proc/{pid}")) else { continue };
        let Ok(status) = read_text_at(directory.as_fd(), "status") else { continue };
        let inside = field(&status, "NSpid").and_then(|line| line.split_whitespace().last());
        if inside.ok_or_else(|| missing("NSpid"))?.parse() == Ok(number) {
            return Ok(Some(directory));
        }
    }
    Ok(None)
}

/// Whether the process with this directory has ended, reaped or not.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    read_text_at(process.as_fd(), "status").map_or(true, |status| is_dead(&status))
}

/// A process of a cell, by its directory in procfs.
pub(crate) struct CellProcess {
    pub(crate) directory: OwnedFd,
    words: Vec<u8>,
}

impl CellProcess {
    /// By the first word of its command line. It is its own word: for processes that have not met anything hostile yet.
    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        self.words.split(|byte| *byte == 0).next() == Some(name)
    }
}

/// Nothing if it has ended meanwhile.
pub(crate) fn process(pid: i32) -> io::Result<Option<CellProcess>> {
    let Ok(directory) = directory(&format!("/proc/{pid}")) else { return Ok(None) };
    let words = match read_at(directory.as_fd(), "cmdline") {
        Ok(words) => words,
        Err(error) if error.errno() == Some(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    // What has ended and waits to be reaped has no words, but neither have threads of the kernel, so that is not enough.
    let dead = || read_text_at(directory.as_fd(), "status").is_ok_and(|status| is_dead(&status));
    if words.is_empty() && dead() {
        return Ok(None);
    }
    Ok(Some(CellProcess { directory, words }))
}

fn is_dead(status: &str) -> bool {
    field(status, "State").is_some_and(|state| matches!(state.trim().as_bytes().first(), Some(b'Z' | b'X')))
}

fn directory(path: &str) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Which namespaces a process is in.
pub(crate) struct Namespaces([String; NAMESPACES.len()]);

impl Namespaces {
    /// Those of this process.
    pub(crate) fn own() -> io::Result<Namespaces> {
        Namespaces::of(directory("/proc/self")?.as_fd())
    }

    fn of(process: BorrowedFd<'_>) -> io::Result<Namespaces> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(process, "ns", flags, Mode::empty())?;
        let mut links = [const { String::new() }; NAMESPACES.len()];
        for (link, name) in links.iter_mut().zip(NAMESPACES) {
            *link = readlinkat(&dir, name, Vec::new())?.to_string_lossy().into_owned();
        }
        Ok(Namespaces(links))
    }
}

/// Where a payload is. Inherited when it is made, and beyond its means to change from then on, so this can be read while
/// it is still being confined.
pub(crate) struct Surroundings {
    process: OwnedFd,
    own_namespaces: Vec<String>,
    shared_namespaces: Vec<String>,
    mounts: Vec<Mount>,
    /// What its `cgroup` says.
    pub(crate) membership: String,
    oom_score_adj: i32,
}

impl Surroundings {
    /// Of the process with this directory in procfs.
    pub(crate) fn of(process: OwnedFd, host: &Namespaces) -> io::Result<Surroundings> {
        let seen = Namespaces::of(process.as_fd())?;
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        for ((name, ours), theirs) in NAMESPACES.iter().zip(&host.0).zip(&seen.0) {
            if ours == theirs { &mut shared } else { &mut own }.push((*name).to_owned());
        }
        let separate_mounts = own.iter().any(|name| name == "mnt");
        let mounts = match separate_mounts {
            true => mounts(&read_text_at(process.as_fd(), "mountinfo")?),
            false => Vec::new(),
        };
        let oom_score_adj = read_text_at(process.as_fd(), "oom_score_adj")?;
        Ok(Surroundings {
            own_namespaces: own,
            shared_namespaces: shared,
            mounts,
            membership: read_text_at(process.as_fd(), "cgroup")?,
            oom_score_adj: oom_score_adj.trim().parse().map_err(io::Error::other)?,
            process,
        })
    }
}

/// The posture of a payload that is confined now. Its cgroup limits are for the caller to add.
pub(crate) fn posture(at: Surroundings) -> io::Result<Posture> {
    let status = &read_text_at(at.process.as_fd(), "status")?;
    let number = |key: &str| field(status, key).and_then(|line| line.split_whitespace().next()?.parse().ok());
    let caps = |key: &str| {
        field(status, key)
            .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
            .ok_or_else(|| missing(key))
    };
    Ok(Posture {
        uid: number("Uid").ok_or_else(|| missing("Uid"))?,
        gid: number("Gid").ok_or_else(|| missing("Gid"))?,
        groups: field(status, "Groups").unwrap_or_default().split_whitespace().flat_map(str::parse).collect(),
        cap_effective: caps("CapEff")?,
        cap_permitted: caps("CapPrm")?,
        cap_inheritable: caps("CapInh")?,
        cap_bounding: caps("CapBnd")?,
        cap_ambient: caps("CapAmb")?,
        no_new_privs: number("NoNewPrivs").ok_or_else(|| missing("NoNewPrivs"))? == 1,
        seccomp_mode: number("Seccomp").ok_or_else(|| missing("Seccomp"))?,
        seccomp_filters: number("Seccomp_filters").unwrap_or(0),
        rlimits: soft_limits(&read_text_at(at.process.as_fd(), "limits")?),
        mounts: at.mounts,
        own_namespaces: at.own_namespaces,
        shared_namespaces: at.shared_namespaces,
        cgroup: Vec::new(),
        oom_score_adj: at.oom_score_adj,
    })
}

fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
}

fn missing(key: &str) -> io::Error {
    io::Error::other(format!("/proc/PID/status has no {key}"))
}

fn mounts(mountinfo: &str) -> Vec<Mount> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(4);
        Some(Mount {
            point: left.next()?.to_owned(),
            options: left.next()?.to_owned(),
            kind: right.split(' ').next()?.to_owned(),
        })
    };
    mountinfo.lines().filter_map(parse).collect()
}

/// Which of these are children of this process, or of one of each other.
pub(crate) fn children_among(pids: &[i32]) -> Vec<i32> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let parent = |pid: i32| -> Option<i32> {
        let stat = read_text(&format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let ours = |pid: &&i32| parent(**pid).is_some_and(|parent| parent == own || pids.contains(&parent));
    pids.iter().filter(ours).copied().collect()
}

/// How many threads these processes have together: what a limit on processes counts.
pub(crate) fn threads(pids: &[i32]) -> u64 {
    let count = |pid: &i32| list_path(&format!("/proc/{pid}/task")).map_or(0, |tasks| tasks.len() as u64);
    pids.iter().map(count).sum()
}

/// The largest number of descriptors that any of these processes holds.
pub(crate) fn most_open_files(pids: &[i32]) -> Option<u64> {
    let count = |pid: &i32| {
        let dir = format!("/proc/{pid}/fd");
        // Since Linux 6.2 the size of the directory is the number of descriptors.
        match rustix::fs::stat(&dir).ok()?.st_size {
            0 => list_path(&dir).ok().map(|entries| entries.len() as u64),
            count => Some(count as u64),
        }
    };
    pids.iter().filter_map(count).max()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_a_child_of_the_guest_goes_by_its_number() {
        let script = "sleep 60 & echo $!; read line";
        let mut guest = Command::new("sh");
        let guest = guest.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guest = guest.spawn().expect("a shell");
        let mut digits = String::new();
        let mut said = guest.stdout.take().expect("a pipe");
        while !digits.ends_with('\n') {
            let mut byte = [0];
            said.read_exact(&mut byte).expect("a number");
            digits.push(byte[0].into());
        }
        let child: u32 = digits.trim().parse().expect("a number");
        let (init, own) = (guest.id() as i32, std::process::id());
        let found = child_numbered(init, child).expect("it can be looked at").expect("it is there");
        assert!(!has_ended(&found));
        for stranger in [own, guest.id(), 1, 0, u32::MAX] {
            assert!(child_numbered(init, stranger).expect("it can be looked at").is_none(), "{stranger}");
        }
        crate::sys::kill(child as i32, libc::SIGKILL).expect("it is killed");
        drop(guest.stdin.take());
        guest.wait().expect("it ends");
        while !has_ended(&found) {
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
        assert!(child_numbered(init, child).expect("it can be looked at").is_none());
    }
}
