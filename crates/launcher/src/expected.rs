//! What a payload must look like from outside before it may run.

use casemate_wire::launch::{Posture, Wall};

/// The properties that the observed posture is held against.
pub(crate) struct Expected {
    namespaces: &'static [&'static str],
    /// Whether capabilities must be gone from the bounding set too.
    bounding: Bounding,
    /// Mount points that may be writable.
    writable: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bounding {
    Empty,
    /// A caller without privileges cannot shrink it; without capabilities and with no_new_privs it means nothing.
    AsInherited,
}

impl Expected {
    pub(crate) fn of(wall: &Wall, root: bool) -> Expected {
        match wall {
            Wall::Container { .. } => Expected {
                namespaces: &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"],
                bounding: Bounding::Empty,
                writable: &["/work", "/tmp", "/dev/shm"],
            },
            Wall::Process => Expected {
                namespaces: &[],
                bounding: if root { Bounding::Empty } else { Bounding::AsInherited },
                writable: &[],
            },
        }
    }

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
