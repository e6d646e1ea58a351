//! Test builds only: a launcher that leaves layers out, so that a probe can show that it notices.
//!
//! The layers are named at the end of the program's own file; see the guest's module of the same name. This module is compiled with the feature `weaken` alone, and `casemate` is never built with it.

pub(crate) use casemate_guest::weaken::{load, without};

use crate::recipe::{Ids, Op};

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
