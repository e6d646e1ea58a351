//! A wall is a way to start the guest behind something and hand back a byte channel.

use std::os::fd::BorrowedFd;
use std::pin::Pin;

use casemate_core::plan::Plan;
use casemate_wire::guest::Config;
use casemate_wire::launch::{Counters, Posture};

use crate::guest::Channel;

pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Something about the host went wrong: never the workload's fault.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WallError(pub(crate) String);

pub(crate) trait Wall: Send + Sync {
    /// Starts a new cell for one execution. The channel can be used at once; whether the guest came up, [`Control::ready`] tells.
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>>;
}

/// A live cell. Dropped at any point, it is destroyed.
pub(crate) struct Cell {
    pub(crate) channel: Channel,
    /// How the guest is to confine what it starts.
    pub(crate) config: Config,
    pub(crate) places: Places,
    pub(crate) control: Box<dyn Control>,
    /// What the posture must show, or nothing runs.
    pub(crate) expected: Expected,
}

/// What a wall can say and do about its cell from outside.
pub(crate) trait Control: Send {
    /// Waits until the guest runs; returns how long each step of the setup took.
    fn ready(&mut self) -> Later<'_, Result<Vec<(String, u32)>, WallError>>;
    /// Reads the posture of the payload that the guest numbers `pid`.
    fn inspect(&mut self, pid: u32) -> Later<'_, Result<Posture, WallError>>;
    fn measure(&mut self) -> Later<'_, Result<Counters, WallError>>;
    /// Reads the counters for the last time and kills the cell.
    fn finish(&mut self) -> Later<'_, Result<Counters, WallError>>;
}

/// Where `/work` and `/tmp` of a request really are in the cell.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) work: String,
    pub(crate) tmp: String,
}

impl Places {
    /// The cell's own path for one of the request's.
    pub(crate) fn resolve(&self, path: &str) -> String {
        for (name, place) in [("/work", &self.work), ("/tmp", &self.tmp)] {
            match path.strip_prefix(name) {
                Some("") => return place.clone(),
                Some(rest) if rest.starts_with('/') => return format!("{place}{rest}"),
                _ => {}
            }
        }
        path.to_owned()
    }
}

/// The properties that the observed posture is held against.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) namespaces: &'static [&'static str],
    /// Whether capabilities must be gone from the bounding set too.
    pub(crate) bounding: Bounding,
    /// Mount points that may be writable.
    pub(crate) writable: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bounding {
    Empty,
    /// A caller without privileges cannot shrink it; without capabilities and with no_new_privs it means nothing.
    AsInherited,
}

impl Expected {
    /// What is wrong with a posture, if anything.
    pub(crate) fn violation(&self, seen: &Posture) -> Option<String> {
        let capabilities = seen.cap_effective | seen.cap_permitted | seen.cap_inheritable | seen.cap_ambient;
        if seen.uid == 0 || seen.gid == 0 {
            return Some("the payload has the uid or gid of root".into());
        }
        if capabilities != 0 || (self.bounding == Bounding::Empty && seen.cap_bounding != 0) {
            return Some("the payload has capabilities".into());
        }
        if !seen.no_new_privs {
            return Some("no_new_privs is not set".into());
        }
        if seen.seccomp_mode != 2 {
            return Some("no seccomp filter is in force".into());
        }
        if let Some(name) =
            self.namespaces.iter().find(|name| !seen.own_namespaces.iter().any(|own| own == **name))
        {
            return Some(format!("the {name} namespace is the host's"));
        }
        let open = seen.mounts.iter().find(|mount| {
            let has = |wanted: &str| mount.options.split(',').any(|option| option == wanted);
            let device = mount.point.starts_with("/dev/") || mount.point.starts_with("/proc/");
            let writable = has("rw") && !self.writable.contains(&mount.point.as_str());
            writable || !has("nosuid") || (!has("nodev") && !device)
        });
        open.map(|mount| format!("{} is mounted {}", mount.point, mount.options))
    }
}
