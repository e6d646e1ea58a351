//! Test builds only: a launcher that leaves layers out, so that a probe can show that it notices.
//!
//! The layers are named at the end of the program's own file (`\nwithout:NAME,NAME\n`), which the test appends to
//! it. This module is compiled with the feature `weaken` alone, and `casemate` is never built with it.

use std::sync::LazyLock;

use crate::recipe::{Capabilities, Ids, Op};

static WITHOUT: LazyLock<Vec<String>> = LazyLock::new(|| {
    let program =
        std::fs::read("/proc/self/exe").or_else(|_| std::fs::read("/host/proc/self/exe")).unwrap_or_default();
    let tail = String::from_utf8_lossy(&program[program.len().saturating_sub(512)..]).into_owned();
    let names = tail.rsplit_once("\nwithout:").map(|(_, names)| names.trim_end());
    names.map(|names| names.split(',').map(str::to_owned).collect()).unwrap_or_default()
});

/// Reads the list while `/proc` is still in its usual place.
pub(crate) fn load() {
    LazyLock::force(&WITHOUT);
}

pub(crate) fn without(layer: &str) -> bool {
    WITHOUT.iter().any(|name| name == layer)
}

/// The recipe with the named layers taken out.
pub(crate) fn weaken(mut flags: i32, ops: Vec<Op>) -> (i32, Vec<Op>) {
    let namespaces = [
        ("user-namespace", libc::CLONE_NEWUSER),
        ("pid-namespace", libc::CLONE_NEWPID),
        ("ipc-namespace", libc::CLONE_NEWIPC),
        ("uts-namespace", libc::CLONE_NEWUTS),
    ];
    for (name, flag) in namespaces {
        if without(name) {
            flags &= !flag;
        }
    }
    let kept = |op: &Op| match op {
        Op::NewCgroupNamespace => !without("cgroup-namespace"),
        Op::MaskProc(_) => !without("proc-masks"),
        Op::SetHostname => !without("uts-namespace"),
        Op::NewSession => !without("session"),
        Op::NewKeyring => !without("keyring"),
        Op::HarmlessRlimits => !without("rlimits"),
        Op::KeepCapabilities(Capabilities::OfGuest | Capabilities::None | Capabilities::NoneToDrop) => {
            !without("capabilities")
        }
        Op::TakeIds(Ids::NamespaceRoot) => !without("user-namespace"),
        Op::TakeIds(Ids::HostBlock(_)) => !without("payload-ids"),
        Op::NoNewPrivileges => !without("no-new-privileges"),
        Op::BaseFilter => !without("seccomp"),
        Op::OnlyTheChannel => true,
        _ => true,
    };
    (flags, ops.into_iter().filter(kept).collect())
}
