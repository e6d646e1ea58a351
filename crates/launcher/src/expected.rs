//! What a payload must look like from outside before it may run.

use alloc::format;
use alloc::string::String;

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

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use casemate_filter::Ptrace;
    use casemate_wire::launch::{Image, Mount};

    fn container() -> Expected {
        let wall = Wall::Container { image: Image::Host, disk_bytes: 1, inodes: 1, ptrace: Ptrace::Denied };
        Expected::of(&wall, true)
    }

    fn mount(point: &str, options: &str) -> Mount {
        Mount { point: point.into(), kind: "tmpfs".into(), options: options.into() }
    }

    /// As a payload in a container looks.
    fn good() -> Posture {
        Posture {
            uid: 0x5000_03e8,
            gid: 0x5000_03e8,
            no_new_privs: true,
            seccomp_mode: 2,
            seccomp_filters: 1,
            own_namespaces: ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"].map(Into::into).into(),
            mounts: vec![
                mount("/", "ro,nosuid,nodev,relatime"),
                mount("/dev/null", "ro,nosuid,relatime"),
                mount("/proc", "ro,nosuid,nodev,noexec"),
                mount("/work", "rw,nosuid,nodev"),
                mount("/tmp", "rw,nosuid,nodev"),
                mount("/dev/shm", "rw,nosuid,nodev"),
            ],
            ..Posture::default()
        }
    }

    #[test]
    fn a_good_posture_passes() {
        assert_eq!(container().violation(&good()), None);
    }

    #[test]
    fn every_single_flaw_is_found() {
        type Flaw = (&'static str, fn(&mut Posture));
        let flaws: &[Flaw] = &[
            ("uid", |seen| seen.uid = 0),
            ("gid", |seen| seen.gid = 0),
            ("capabilities", |seen| seen.cap_effective = 1),
            ("capabilities", |seen| seen.cap_permitted = 1 << 21),
            ("capabilities", |seen| seen.cap_inheritable = 1),
            ("capabilities", |seen| seen.cap_ambient = 1),
            ("capabilities", |seen| seen.cap_bounding = 1 << 40),
            ("no_new_privs", |seen| seen.no_new_privs = false),
            ("seccomp", |seen| seen.seccomp_mode = 0),
            ("net namespace", |seen| seen.own_namespaces.retain(|name| name != "net")),
            ("user namespace", |seen| seen.own_namespaces.retain(|name| name != "user")),
            ("/ is mounted", |seen| seen.mounts[0].options = "rw,nosuid,nodev".into()),
            ("/proc is mounted", |seen| seen.mounts[2].options = "rw,nosuid,nodev,noexec".into()),
            ("/work is mounted", |seen| seen.mounts[3].options = "rw,nodev".into()),
            ("/tmp is mounted", |seen| seen.mounts[4].options = "rw,nosuid".into()),
            ("/usr is mounted", |seen| seen.mounts.push(mount("/usr", "rw,nosuid,nodev"))),
        ];
        for (named, spoil) in flaws {
            let mut seen = good();
            spoil(&mut seen);
            let found = container().violation(&seen).unwrap_or_else(|| panic!("{named} passed"));
            assert!(found.contains(named), "{named} is not in {found:?}");
        }
    }

    #[test]
    fn without_namespaces_only_what_can_be_asked_for_is() {
        let bare = Posture { own_namespaces: Vec::new(), mounts: Vec::new(), cap_bounding: 1, ..good() };
        assert_eq!(Expected::of(&Wall::Process, false).violation(&bare), None);
        assert!(
            Expected::of(&Wall::Process, true).violation(&bare).is_some(),
            "root can empty the bounding set"
        );
        let mut privileged = bare;
        privileged.no_new_privs = false;
        assert!(Expected::of(&Wall::Process, false).violation(&privileged).is_some());
    }
}
