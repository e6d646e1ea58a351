//! From a [`CellSpec`] to the ordered list of operations that builds the cell: data, derived here and nowhere else.
//!
//! The child interprets the list from top to bottom (`interpret.rs`); the first failure ends the launch and names
//! its operation. The order matters: names and mounts first, while the child is still root of its own namespaces;
//! then everything that can only be lost; the filter last.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use casemate_filter::{Network, Program};
use casemate_wire::guest::Terminals;
use casemate_wire::launch::{Attached, CellSpec, Kernel, Platform, Wall};

/// Ids inside a cell. The guest is root of its own user namespace where a block of ids can be mapped.
pub(crate) const GUEST_ID: u32 = 0;
pub(crate) const PAYLOAD_ID: u32 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// First of all: whatever comes next is counted.
    EnterCgroups,
    /// Wait until the launcher has set the limits and mapped the ids. The mounts need neither, and are made meanwhile.
    AwaitLauncher,
    /// Leave the launcher's host uid for the cell's own.
    TakeIds(Ids),
    /// See the cell's cgroup as the root of the tree. Only after the child is in it.
    NewCgroupNamespace,
    /// Nothing mounted from here on may reach another mount namespace.
    PrivateMounts,
    /// The quota-bound tmpfs that the launcher made: every writable byte of the cell is in it.
    AttachScratch,
    BindScratch(ScratchDir),
    /// A procfs of the cell's own PID namespace, read-only as a whole where a payload sees it.
    MountProc(Procfs),
    /// The tree of groups, from the cell's own on. Only after the namespace that makes it so.
    MountGroups,
    /// Where `runsc` finds its bundle and keeps its state.
    MountState,
    /// Terminals that are the cell's own, after it has its ids: the node that makes them belongs to whoever mounts it.
    MountTerminals,
    /// Cover what tells about the host and is not bound to a namespace.
    MaskProc(Mask),
    /// CVE-2024-21626 and friends: the working directory must be the new root and nothing else.
    CheckWorkingDirectory,
    /// No controlling terminal to push input into.
    NewSession,
    /// No keyring shared with the host or another cell.
    NewKeyring,
    /// No core dumps; scheduling and locking rights stay at zero.
    HarmlessRlimits,
    /// Everything outside this set leaves the bounding set for good.
    KeepCapabilities(Capabilities),
    /// Die with the launcher. After the last change of ids, which would clear it.
    DieWithLauncher,
    NoNewPrivileges,
    /// The filter under which the guest and everything below it lives.
    Filter(Program),
    /// 0–2 on /dev/null, 3 the channel, and until the first payload runs 4 and 5, the ends of its gate, and what is attached
    /// for it. Nothing else.
    OnlyTheChannel,
    /// The child calls the guest. It does not execute another program for it: that would cost as much as the rest of
    /// the launch, and there is nothing in this process's memory that a cell must not have.
    BecomeGuest,
    /// The child starts gVisor, which starts the guest. It stays behind as the first process of the cell, with nothing in its
    /// hands, and reaps.
    BecomeKeeper(Sentry),
}

/// What gVisor is started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sentry {
    pub(crate) platform: Platform,
    pub(crate) attached: Attached,
    pub(crate) terminals: Terminals,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Procfs {
    ReadOnly,
    /// gVisor mounts another one, for itself, which the kernel allows only where this one is not restricted.
    Plain,
}

impl Procfs {
    /// What cells with this kernel need.
    pub(crate) fn of(kernel: Kernel) -> Procfs {
        match kernel {
            Kernel::Host => Procfs::ReadOnly,
            Kernel::Gvisor(_) => Procfs::Plain,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Root of the cell's user namespace.
    NamespaceRoot,
    /// The launcher's own id, mapped to the payload's: one id for guest and payload.
    Mapped,
    /// A host uid outside of every user's range (`process` wall, as root).
    HostBlock(u16),
    /// The caller's own uid (`process` wall, rootless).
    Unchanged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capabilities {
    /// What the guest needs to become the payload: setuid, setgid, setpcap, kill. In its own user namespace only.
    OfGuest,
    /// What `runsc` needs to build a sandbox within the cell. In the cell's user namespace only.
    OfRunsc,
    None,
    /// What the coming change of ids needs, and clears.
    UntilIdsChange,
    /// An unprivileged caller has none, and may not shrink its bounding set.
    NoneToDrop,
}

/// Where the scratch file system as a whole is mounted, until one of its directories covers it.
pub(crate) const SCRATCH: &str = "/tmp";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScratchDir {
    Work,
    Tmp,
    Shm,
}

impl ScratchDir {
    /// The last one covers the place of the others.
    pub(crate) const ALL: [ScratchDir; 3] = [ScratchDir::Work, ScratchDir::Shm, ScratchDir::Tmp];
    /// Name within the scratch file system, and mount point in the cell.
    pub(crate) fn paths(self) -> (&'static str, &'static str) {
        match self {
            ScratchDir::Work => ("work", "/work"),
            ScratchDir::Tmp => ("tmp", SCRATCH),
            ScratchDir::Shm => ("shm", "/dev/shm"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mask {
    File(&'static str),
    Directory(&'static str),
}

/// Parts of procfs that no namespace covers. Those absent from this kernel are left out at start.
pub(crate) const PROC_MASKS: [Mask; 12] = [
    Mask::File("kcore"),
    Mask::File("keys"),
    Mask::File("key-users"),
    Mask::File("kmsg"),
    Mask::File("locks"),
    Mask::File("timer_list"),
    Mask::File("sched_debug"),
    Mask::File("latency_stats"),
    Mask::File("config.gz"),
    Mask::Directory("acpi"),
    Mask::Directory("scsi"),
    Mask::Directory("asound"),
];

/// The list of operations for `spec`. `masks` are those that exist on this kernel.
pub(crate) fn operations(spec: &CellSpec, masks: &[Mask]) -> Vec<Op> {
    let mut ops = vec![Op::EnterCgroups];
    match spec.wall {
        Wall::Container { kernel, terminals, .. } => {
            let (ids, capabilities) = match (spec.id_block, kernel) {
                (_, Kernel::Gvisor(_)) => (Ids::NamespaceRoot, Capabilities::OfRunsc),
                (Some(_), Kernel::Host) => (Ids::NamespaceRoot, Capabilities::OfGuest),
                (None, Kernel::Host) => (Ids::Mapped, Capabilities::None),
            };
            ops.extend([Op::NewCgroupNamespace, Op::PrivateMounts, Op::AttachScratch]);
            ops.extend(ScratchDir::ALL.map(Op::BindScratch));
            ops.push(Op::MountProc(Procfs::of(kernel)));
            if kernel == Kernel::Host {
                // Of the other one a payload sees nothing: it has gVisor's.
                ops.extend(masks.iter().map(|&mask| Op::MaskProc(mask)));
            }
            ops.extend([Op::CheckWorkingDirectory, Op::AwaitLauncher, Op::TakeIds(ids)]);
            match (kernel, terminals) {
                // It belongs to whoever mounts it.
                (Kernel::Gvisor(_), _) => ops.push(Op::MountState),
                (Kernel::Host, Terminals::Own) => ops.push(Op::MountTerminals),
                (Kernel::Host, Terminals::None) => {}
            }
            ops.extend([
                Op::NewSession,
                Op::NewKeyring,
                Op::HarmlessRlimits,
                Op::KeepCapabilities(capabilities),
                // The kernel ends the whole PID namespace with it. Without one, the guest has to outlive the
                // launcher for a moment to end what it started.
                Op::DieWithLauncher,
            ]);
        }
        // What it could be kept from is its own. Its root is in place already.
        Wall::Machine { .. } => ops.extend([
            Op::NewCgroupNamespace,
            Op::PrivateMounts,
            Op::MountProc(Procfs::Plain),
            Op::MountGroups,
            Op::CheckWorkingDirectory,
            Op::AwaitLauncher,
            Op::NewSession,
            Op::NewKeyring,
            Op::DieWithLauncher,
        ]),
        Wall::Process => {
            let (ids, capabilities) = match spec.id_block {
                Some(block) => (Ids::HostBlock(block), Capabilities::UntilIdsChange),
                None => (Ids::Unchanged, Capabilities::NoneToDrop),
            };
            ops.extend([
                Op::AwaitLauncher,
                Op::NewSession,
                Op::NewKeyring,
                Op::HarmlessRlimits,
                Op::KeepCapabilities(capabilities),
                Op::TakeIds(ids),
            ]);
        }
    }
    if let Wall::Machine { .. } = spec.wall {
        ops.extend([Op::OnlyTheChannel, Op::BecomeGuest]);
        return ops;
    }
    ops.push(Op::NoNewPrivileges);
    match spec.wall {
        // gVisor installs filters of its own, and they are looked at from outside. The guest in it installs ours.
        Wall::Container { kernel: Kernel::Gvisor(platform), terminals, .. } => {
            let sentry = Sentry { platform, attached: spec.attached, terminals };
            ops.extend([Op::OnlyTheChannel, Op::BecomeKeeper(sentry)]);
        }
        _ => ops.extend([Op::Filter(filter(&spec.wall)), Op::OnlyTheChannel, Op::BecomeGuest]),
    }
    ops
}

/// In a container the guest needs nothing that its payloads may not do, so they share one filter. Without namespaces the
/// guest still has files to handle, and the payload gets a narrower one on top.
fn filter(wall: &Wall) -> Program {
    match wall {
        Wall::Container { ptrace, .. } => {
            Program::Payload { network: Network::Namespaced, ids: casemate_filter::Ids::Own, ptrace: *ptrace }
        }
        // Of a machine, nobody asks.
        Wall::Process | Wall::Machine { .. } => Program::Guest,
    }
}

impl Op {
    /// As it appears in errors, timings and documentation.
    pub(crate) fn name(self) -> String {
        match self {
            Op::EnterCgroups => "enter cgroups".into(),
            Op::AwaitLauncher => "await launcher".into(),
            Op::TakeIds(_) => "take ids".into(),
            Op::NewCgroupNamespace => "new cgroup namespace".into(),
            Op::PrivateMounts => "private mounts".into(),
            Op::AttachScratch => "attach scratch".into(),
            Op::BindScratch(dir) => format!("bind {}", dir.paths().1),
            Op::MountProc(_) => "mount /proc".into(),
            Op::MountGroups => "mount /sys/fs/cgroup".into(),
            Op::MountState => "mount /run".into(),
            Op::MountTerminals => "mount /dev/pts".into(),
            Op::MaskProc(Mask::File(path) | Mask::Directory(path)) => format!("mask /proc/{path}"),
            Op::CheckWorkingDirectory => "check working directory".into(),
            Op::NewSession => "new session".into(),
            Op::NewKeyring => "new keyring".into(),
            Op::HarmlessRlimits => "rlimits".into(),
            Op::KeepCapabilities(_) => "drop capabilities".into(),
            Op::DieWithLauncher => "die with launcher".into(),
            Op::NoNewPrivileges => "no new privileges".into(),
            Op::Filter(_) => "seccomp filter".into(),
            Op::OnlyTheChannel => "close descriptors".into(),
            Op::BecomeGuest => "become guest".into(),
            Op::BecomeKeeper(_) => "start gvisor".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use casemate_filter::Ptrace;
    use casemate_wire::launch::Image;

    fn spec(wall: Wall, id_block: Option<u16>) -> CellSpec {
        CellSpec {
            wall,
            id_block,
            memory_bytes: None,
            pids: None,
            cpus: None,
            disk_io: None,
            attached: Attached::Nothing,
        }
    }

    fn container() -> Wall {
        container_with(Kernel::Host)
    }

    fn container_with(kernel: Kernel) -> Wall {
        let (disk_bytes, inodes, ptrace) = (1 << 20, 100, Ptrace::Denied);
        let terminals = Terminals::None;
        Wall::Container { image: Image::Host, disk_bytes, inodes, ptrace, kernel, terminals }
    }

    fn names(spec: &CellSpec) -> String {
        operations(spec, &PROC_MASKS[..2]).iter().map(|op| format!("{op:?}")).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_container_recipe_as_root() {
        insta::assert_snapshot!(names(&spec(container(), Some(7))));
    }

    #[test]
    fn the_container_recipe_rootless() {
        insta::assert_snapshot!(names(&spec(container(), None)));
    }

    #[test]
    fn the_gvisor_recipe_as_root() {
        insta::assert_snapshot!(names(&spec(container_with(Kernel::Gvisor(Platform::Systrap)), Some(7))));
    }

    #[test]
    fn only_who_asks_for_terminals_has_them_and_by_then_has_its_ids() {
        let with = |kernel, terminals| match container_with(kernel) {
            Wall::Container { image, disk_bytes, inodes, ptrace, kernel, .. } => {
                Wall::Container { image, disk_bytes, inodes, ptrace, kernel, terminals }
            }
            other => other,
        };
        let place = |wall, op: Op| {
            operations(&spec(wall, Some(7)), &PROC_MASKS).iter().position(|&other| other == op)
        };
        let asked = with(Kernel::Host, Terminals::Own);
        let ids = place(asked.clone(), Op::TakeIds(Ids::NamespaceRoot));
        assert!(ids.is_some() && ids < place(asked.clone(), Op::MountTerminals));
        let capabilities = Op::KeepCapabilities(Capabilities::OfGuest);
        assert!(place(asked.clone(), Op::MountTerminals) < place(asked, capabilities));
        assert_eq!(place(with(Kernel::Host, Terminals::None), Op::MountTerminals), None);
        // gVisor has its own.
        assert_eq!(place(with(Kernel::Gvisor(Platform::Systrap), Terminals::Own), Op::MountTerminals), None);
    }

    #[test]
    fn the_recipe_of_a_whole_machine() {
        let wall = Wall::Machine { disk_bytes: 1 << 20, inodes: 100, terminals: Terminals::Own };
        insta::assert_snapshot!(names(&spec(wall, Some(0))));
    }

    #[test]
    fn the_process_recipe_as_root() {
        insta::assert_snapshot!(names(&spec(Wall::Process, Some(7))));
    }

    #[test]
    fn every_recipe_ends_with_no_new_privileges_then_the_filter_then_the_guest() {
        for (wall, block) in
            [(container(), Some(1)), (container(), None), (Wall::Process, Some(1)), (Wall::Process, None)]
        {
            let spec = spec(wall, block);
            let ops = operations(&spec, &PROC_MASKS);
            let at = |wanted: Op| ops.iter().position(|&op| op == wanted).expect("part of every recipe");
            let filter = Op::Filter(filter(&spec.wall));
            assert!(at(Op::NoNewPrivileges) < at(filter));
            assert!(at(filter) < at(Op::BecomeGuest));
            assert_eq!(ops.last(), Some(&Op::BecomeGuest));
        }
    }
}
