//! The vocabulary of the attack table.

use std::pin::Pin;
use std::sync::Arc;

use casemate_testkit::{Bait, Layer, Rig, Stack};

/// One line of the table: one way to attack, tried on every wall.
pub(crate) struct Row {
    /// Numbers in ATTACKS.md.
    pub(crate) attacks: &'static [u16],
    /// The probe's name, or what is tried.
    pub(crate) name: &'static str,
    pub(crate) trial: Trial,
}

pub(crate) enum Trial {
    /// A probe that judges itself. Its arguments name the bait in braces, e.g. `{secret-file}`.
    Probe { args: &'static str, container: On, process: On },
    /// Judged from outside the cell.
    Judged { judge: Judge, container: On, process: On },
    /// Judged from outside the cell, on the stacks that end in WASM.
    Wasm { judge: Judge, on: On },
    /// Belongs to walls or brokers that do not exist yet.
    Later(&'static str),
    /// Nothing to run: it is settled elsewhere, and this says where.
    Settled(&'static str),
}

/// What a row means on one wall.
#[derive(Clone, Copy)]
pub(crate) enum On {
    /// The wall must hold, and the attack must succeed when this is taken away.
    Held(Control),
    NotApplicable(&'static str),
}

/// How to show that a probe would notice a missing wall.
#[derive(Clone, Copy)]
pub(crate) enum Control {
    /// Escapes in a cell without these layers.
    Without(&'static [Layer]),
    /// Escapes in a cell without these layers whose image is the host's whole root.
    HostRoot(&'static [Layer]),
    /// Escapes in a cell without these layers whose image is a directory that everybody may write to.
    OpenImage(&'static [Layer]),
    /// No layer can be taken away alone: escapes on the bare host, started from the bait's directory.
    Bare,
    /// The same, but only as root.
    BareAsRoot,
    /// Escapes on the bare host, in a network namespace with an interface, a route and listeners.
    BareWithNetwork,
    /// This kernel lacks what is attacked, so nothing can escape: without these layers the kernel answers instead of them.
    AnswersDiffer(&'static [Layer]),
    /// Escapes when the same limit is out of its reach.
    TimeToSpare,
    /// Succeeds in a bare Wasmtime, without the worker and its limits.
    BareEngine(fn() -> Judged),
    /// The very same probe, with its control, is in the row of the outer wall: here a worker that was taken over starts it.
    OfTheOuterWall,
    /// Likewise, in the row of the container: here another kernel is in it, or the same layers are somebody else's.
    OfTheContainer,
    /// Escapes in a container that the `docker` command starts, with the settings of a cell but for these layers.
    PlainDocker(&'static [Layer]),
    /// Nothing can be taken away; why.
    Nothing(&'static str),
}

/// What a trial comes to when it did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    Held,
    /// The cell did not stop it; what a control wants to see.
    Escaped,
    /// The limit cannot be enforced here, and asking for it is refused with this hint.
    Refused(String),
}

pub(crate) type Judged = Pin<Box<dyn Future<Output = Result<Finding, String>> + Send>>;
pub(crate) type Judge = fn(Scene) -> Judged;

/// Where a judged trial happens.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) rig: Arc<Rig>,
    pub(crate) stack: Stack,
    pub(crate) bait: Arc<Bait>,
    /// For [`Control::TimeToSpare`].
    pub(crate) time_to_spare: bool,
}

/// The usual sets of layers, by what is left without them.
pub(crate) mod layers {
    use casemate_testkit::Layer;

    pub(crate) const FILTER: &[Layer] = &["seccomp"];
    pub(crate) const FILES: &[Layer] = &["landlock"];
    pub(crate) const FILTER_AND_FILES: &[Layer] = &["seccomp", "landlock"];
    pub(crate) const WRITING: &[Layer] = &["read-only", "landlock"];
    /// Root of the cell's own namespaces (container), or of the host (process).
    pub(crate) const ROOT_INSIDE: &[Layer] = &["seccomp", "landlock", "capabilities", "payload-ids"];
    /// Root of the host, still behind the cell's mounts.
    pub(crate) const ROOT: &[Layer] =
        &["seccomp", "landlock", "capabilities", "payload-ids", "user-namespace"];
    pub(crate) const ROOT_WRITING: &[Layer] =
        &["seccomp", "landlock", "capabilities", "payload-ids", "user-namespace", "read-only"];
    pub(crate) const ROOT_UNMASKED: &[Layer] =
        &["seccomp", "landlock", "capabilities", "payload-ids", "user-namespace", "proc-masks"];
    pub(crate) const ROOT_AMONG_PIDS: &[Layer] =
        &["seccomp", "landlock", "capabilities", "payload-ids", "user-namespace", "pid-namespace"];
    pub(crate) const PIDS: &[Layer] = &["pid-namespace", "user-namespace"];
    pub(crate) const GAINING: &[Layer] =
        &["no-new-privileges", "seccomp", "landlock", "user-namespace", "read-only"];
    pub(crate) const NETWORK: &[Layer] = &["net-namespace"];
    pub(crate) const IPC: &[Layer] = &["ipc-namespace"];
    pub(crate) const QUEUES: &[Layer] = &["ipc-namespace", "landlock"];
    pub(crate) const IDS: &[Layer] = &["payload-ids", "landlock"];
    pub(crate) const RLIMITS: &[Layer] = &["rlimits"];
    pub(crate) const DESCRIPTORS: &[Layer] = &["descriptors"];
    pub(crate) const QUOTA: &[Layer] = &["scratch-quota"];
    pub(crate) const QUOTA_AND_RLIMITS: &[Layer] = &["scratch-quota", "rlimits"];
    pub(crate) const CGROUP_AND_RLIMITS: &[Layer] = &["cgroup-limits", "rlimits"];
    pub(crate) const CGROUP: &[Layer] = &["cgroup-limits"];
    /// A session's cell sees the host's terminals in place of its own.
    pub(crate) const TERMINALS: &[Layer] = &["terminals"];

    /// Without a user namespace, ids or cgroups of our own to assign, these cannot be taken away one by one.
    pub(crate) const NEED_ROOT: &[Layer] =
        &["capabilities", "payload-ids", "user-namespace", "cgroup-limits", "pid-namespace"];
}
