//! What a guest can say about its cell where nobody can look into it from outside.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;

use casemate_bare::files::list_path;
use casemate_bare::io;
use casemate_wire::guest::Inside;
use rustix::event::Timespec;
use rustix::fs::{StatVfs, stat, statvfs};

/// The writable places of a cell besides those that files go to and come from.
const SHARED_MEMORY: &str = "/dev/shm";
/// A file system whose last page stays free because nothing fits into it is full.
const PAGE: u64 = 4096;

/// How many threads there were, where nobody else counts them. A kernel that is the cell's own says so at little cost; those that are
/// looked for in `/proc` take as long as all the rest.
#[derive(Default)]
pub(crate) struct Threads {
    most: u64,
}

impl Threads {
    /// How often they are counted at least, while something runs.
    pub(crate) const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

    pub(crate) fn count(&mut self) {
        // Besides the guest's.
        let now = u64::from(rustix::system::sysinfo().procs).saturating_sub(1);
        self.most = self.most.max(now);
    }

    pub(crate) fn most(&self) -> u64 {
        self.most
    }
}

/// As of now, with the file systems behind these directories.
pub(crate) fn inside<'a>(roots: impl Iterator<Item = &'a str>) -> Inside {
    let mut seen = Inside::default();
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // A directory that changes while it is read may show a name twice.
    let names = list_path("/proc").unwrap_or_default();
    let processes: BTreeSet<i32> = names.iter().filter_map(|(name, _)| name.parse().ok()).collect();
    for pid in processes.into_iter().filter(|pid| *pid != own) {
        // One that has ended meanwhile has no threads.
        seen.threads += count(&format!("/proc/{pid}/task")).unwrap_or(0);
        seen.open_files = seen.open_files.max(count(&format!("/proc/{pid}/fd")));
    }
    for room in rooms(roots).into_values() {
        let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
        seen.disk_bytes += bytes(room.f_blocks.saturating_sub(room.f_bfree));
        // Besides the directory itself, which was there before.
        seen.inodes += room.f_files.saturating_sub(room.f_ffree).saturating_sub(1);
        seen.disk_is_full |= room.f_blocks > 0 && bytes(room.f_bfree) <= PAGE;
        seen.inodes_are_used_up |= room.f_files > 0 && room.f_ffree == 0;
    }
    seen
}

fn count(directory: &str) -> Option<u64> {
    list_path(directory).ok().map(|entries| entries.len() as u64)
}

/// Each file system once, however many of the places are in it.
fn rooms<'a>(roots: impl Iterator<Item = &'a str>) -> BTreeMap<u64, StatVfs> {
    let room = |path: &str| -> io::Result<(u64, StatVfs)> { Ok((stat(path)?.st_dev, statvfs(path)?)) };
    roots.chain([SHARED_MEMORY]).filter_map(|path| room(path).ok()).collect()
}
