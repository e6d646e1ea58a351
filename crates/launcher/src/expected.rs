//! What a payload must look like from outside before it may run.

use alloc::format;
use alloc::string::String;

use casemate_wire::guest::Terminals;
use casemate_wire::launch::{Kernel, Mount, Posture, Wall};

/// The properties that the observed posture is held against.
pub(crate) struct Expected {
    namespaces: &'static [&'static str],
    capabilities: Capabilities,
    mounts: Mounts,
    /// Those of this kernel that are mounted where it is.
    terminals: Terminals,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Capabilities {
    /// None at all, and none to be had.
    None,
    /// None. A caller without privileges cannot shrink the bounding set; without capabilities and with no_new_privs it means nothing.
    NoneButBounding,
    /// Those of a user namespace that is not the host's.
    OfItsNamespace,
    /// All that there are, and whatever it makes of them: it is root of its machine.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mounts {
    /// Mount points that may be writable.
    Writable(&'static [&'static str]),
    /// Nothing is writable. gVisor's kernel has an empty file system of its own making.
    ReadOnly,
    /// Those of the cell, from where gVisor's kernel gets its files.
    OfTheCell,
}

/// All that the kernel has.
const NAMESPACES: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

impl Expected {
    pub(crate) fn of(wall: &Wall, root: bool) -> Expected {
        match wall {
            Wall::Container { kernel: Kernel::Host, terminals, .. } => Expected {
                namespaces: NAMESPACES,
                capabilities: Capabilities::None,
                mounts: Mounts::Writable(&["/work", "/tmp", "/dev/shm"]),
                terminals: *terminals,
            },
            Wall::Container { kernel: Kernel::Gvisor(_), .. } => Expected {
                namespaces: NAMESPACES,
                capabilities: Capabilities::OfItsNamespace,
                mounts: Mounts::ReadOnly,
                terminals: Terminals::None,
            },
            Wall::Machine { terminals, .. } => Expected {
                namespaces: &["mnt", "pid", "net", "ipc", "uts", "cgroup"],
                capabilities: Capabilities::All,
                mounts: Mounts::OfTheCell,
                terminals: *terminals,
            },
            Wall::Process => Expected {
                namespaces: &[],
                capabilities: if root { Capabilities::None } else { Capabilities::NoneButBounding },
                mounts: Mounts::Writable(&[]),
                terminals: Terminals::None,
            },
        }
    }

    /// Of the processes that gVisor's kernel uses.
    pub(crate) fn of_helper() -> Expected {
        Expected {
            namespaces: NAMESPACES,
            capabilities: Capabilities::OfItsNamespace,
            mounts: Mounts::OfTheCell,
            terminals: Terminals::None,
        }
    }

    fn shared_namespace(&self, seen: &Posture) -> Option<String> {
        let is_own = |name: &&&str| seen.own_namespaces.iter().any(|own| own == **name);
        let shared = self.namespaces.iter().find(|name| !is_own(name))?;
        Some(format!("the {shared} namespace is the host's"))
    }

    /// What is wrong with a posture, if anything.
    pub(crate) fn violation(&self, seen: &Posture) -> Option<String> {
        let capabilities = seen.cap_effective | seen.cap_permitted | seen.cap_inheritable | seen.cap_ambient;
        if self.capabilities == Capabilities::All {
            return self.shared_namespace(seen);
        }
        if seen.uid == 0 || seen.gid == 0 {
            return Some("the payload has the uid or gid of root".into());
        }
        let too_many = match self.capabilities {
            Capabilities::None => capabilities | seen.cap_bounding,
            Capabilities::NoneButBounding => capabilities,
            Capabilities::OfItsNamespace | Capabilities::All => 0,
        };
        if too_many != 0 {
            return Some("the payload has capabilities".into());
        }
        if !seen.no_new_privs {
            return Some("no_new_privs is not set".into());
        }
        if seen.seccomp_mode != 2 {
            return Some("no seccomp filter is in force".into());
        }
        if let Some(shared) = self.shared_namespace(seen) {
            return Some(shared);
        }
        let mut terminals = seen.mounts.iter().filter(|mount| mount.kind == "devpts");
        let as_asked = match (self.terminals, terminals.next(), terminals.next()) {
            (Terminals::None, None, _) => true,
            (Terminals::Own, Some(mount), None) => mount.point == "/dev/pts" && has(mount, "noexec"),
            _ => false,
        };
        if !as_asked {
            return Some("there are other terminals than those of the cell".into());
        }
        let open = seen.mounts.iter().find(|mount| {
            let has = |wanted: &str| has(mount, wanted);
            match self.mounts {
                Mounts::Writable(places) => {
                    let device = mount.point.starts_with("/dev/") || mount.point.starts_with("/proc/");
                    let writable = has("rw") && !places.contains(&mount.point.as_str());
                    writable || !has("nosuid") || (!has("nodev") && !device)
                }
                Mounts::ReadOnly => has("rw"),
                Mounts::OfTheCell => false,
            }
        });
        open.map(|mount| format!("{} is mounted {}", mount.point, mount.options))
    }
}

fn has(mount: &Mount, wanted: &str) -> bool {
    mount.options.split(',').any(|option| option == wanted)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use casemate_filter::Ptrace;
    use casemate_wire::launch::{Image, Platform};

    fn container() -> Expected {
        with(Kernel::Host)
    }

    fn with(kernel: Kernel) -> Expected {
        with_terminals(kernel, Terminals::None)
    }

    fn with_terminals(kernel: Kernel, terminals: Terminals) -> Expected {
        let (image, ptrace) = (Image::Host, Ptrace::Denied);
        Expected::of(&Wall::Container { image, disk_bytes: 1, inodes: 1, ptrace, kernel, terminals }, true)
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
    fn terminals_are_those_that_were_asked_for() {
        let seen = |mounts: &[(&str, &str)]| {
            let mut seen = good();
            let terminals =
                |&(point, options): &(&str, &str)| Mount { kind: "devpts".into(), ..mount(point, options) };
            seen.mounts.extend(mounts.iter().map(terminals));
            seen
        };
        let own = ("/dev/pts", "ro,nosuid,noexec,relatime");
        let asked = with_terminals(Kernel::Host, Terminals::Own);
        assert_eq!(asked.violation(&seen(&[own])), None);
        for other in [
            &[][..],
            &[own, own],
            &[("/dev/pts", "ro,nosuid")],
            &[("/dev/pts", "rw,nosuid,noexec")],
            &[("/dev/pts", "ro,noexec")],
            &[("/work/pts", "ro,nosuid,nodev,noexec")],
        ] {
            assert!(asked.violation(&seen(other)).is_some(), "{other:?}");
        }
        assert!(container().violation(&seen(&[own])).is_some(), "nobody asked for them");
    }

    #[test]
    fn a_sandbox_has_capabilities_of_its_own_namespace_and_nothing_to_write_to() {
        let sandbox = || Posture {
            cap_effective: 0x801ff,
            cap_bounding: 0x801ff,
            mounts: vec![mount("/", "ro,relatime")],
            ..good()
        };
        let expected = with(Kernel::Gvisor(Platform::Systrap));
        assert_eq!(expected.violation(&sandbox()), None);
        let writable = Posture { mounts: vec![mount("/", "rw,relatime")], ..sandbox() };
        assert!(expected.violation(&writable).is_some_and(|why| why.contains("/ is mounted")));
        let shared = |name: &str| Posture {
            own_namespaces: sandbox().own_namespaces.into_iter().filter(|own| own != name).collect(),
            ..sandbox()
        };
        for expected in [expected, Expected::of_helper()] {
            assert!(expected.violation(&shared("user")).is_some(), "its capabilities would be the host's");
            assert!(expected.violation(&shared("net")).is_some());
            assert!(expected.violation(&Posture { seccomp_mode: 0, ..sandbox() }).is_some());
            assert!(expected.violation(&Posture { no_new_privs: false, ..sandbox() }).is_some());
            assert!(expected.violation(&Posture { uid: 0, ..sandbox() }).is_some());
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
