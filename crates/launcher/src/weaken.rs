//! Test builds only: a launcher that leaves layers out, so that a probe can show that it notices.
//!
//! The layers are named at the end of the program's own file; see the guest's module of the same name. This module is compiled with the feature `weaken` alone, and `casemate` is never built with it.

pub(crate) use casemate_guest::weaken::{load, without};

use alloc::vec::Vec;

use crate::recipe::{Ids, Op};

/// The namespaces that are made ahead, without the named ones.
pub(crate) fn ahead(flags: i32) -> i32 {
    flags
        & left(&[
            ("net-namespace", libc::CLONE_NEWNET),
            ("ipc-namespace", libc::CLONE_NEWIPC),
            ("uts-namespace", libc::CLONE_NEWUTS),
        ])
}

/// Every flag but those of layers that are to be left out.
fn left(layers: &[(&str, i32)]) -> i32 {
    layers.iter().filter(|(layer, _)| without(layer)).fold(!0, |flags, (_, flag)| flags & !flag)
}

/// The recipe with the named layers taken out.
pub(crate) fn weaken(mut flags: i32, ops: Vec<Op>) -> (i32, Vec<Op>) {
    flags &= left(&[("user-namespace", libc::CLONE_NEWUSER), ("pid-namespace", libc::CLONE_NEWPID)]);
    let kept = |op: &Op| match op {
        Op::NewCgroupNamespace => !without("cgroup-namespace"),
        Op::MaskProc(_) => !without("proc-masks"),
        // Those of the host are in the image then.
        Op::MountTerminals => !without("terminals"),
        Op::NewSession => !without("session"),
        Op::NewKeyring => !without("keyring"),
        Op::HarmlessRlimits => !without("rlimits"),
        Op::KeepCapabilities(_) => !without("capabilities"),
        Op::TakeIds(Ids::NamespaceRoot) => !without("user-namespace"),
        Op::TakeIds(Ids::HostBlock(_)) => !without("payload-ids"),
        Op::NoNewPrivileges => !without("no-new-privileges"),
        Op::Filter(_) => !without("seccomp"),
        Op::OnlyTheChannel => true,
        _ => true,
    };
    (flags, ops.into_iter().filter(kept).collect())
}
