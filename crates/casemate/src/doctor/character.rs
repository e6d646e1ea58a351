//! What a stack is, in the words of somebody who has to choose one.

use casemate_core::limits::LimitKind;
use casemate_core::request::{Language, Need};
use casemate_core::route::{ImageKind, Profile, Support};
use casemate_core::stack::{Class, Wall};
use serde::Serialize;

/// Everything but the figures.
#[derive(Debug, Serialize)]
pub(super) struct Character {
    /// What an attacker has to break first, and then.
    pub(super) isolates: String,
    pub(super) runs: String,
    pub(super) network: &'static str,
    pub(super) files: String,
    /// Whether it offers what a request may need of a kernel.
    pub(super) kernel: Vec<(&'static str, bool)>,
    /// Limits that it holds a payload to, and those that it cannot.
    pub(super) limits: Vec<&'static str>,
    pub(super) limits_not_enforced: Vec<&'static str>,
}

/// What not every kernel gives.
const FEATURES: [Need; 4] = [Need::Ptrace, Need::Bpf, Need::NestedContainers, Need::FullLinux];

impl Character {
    pub(super) fn of(profile: &Profile) -> Character {
        let names = |enforced: bool| {
            let kinds = LimitKind::ALL.into_iter().filter(|kind| profile.enforces(*kind) == enforced);
            kinds.map(LimitKind::as_str).collect()
        };
        Character {
            isolates: isolates(profile),
            runs: runs(profile),
            network: network(profile),
            files: files(profile),
            kernel: FEATURES.map(|need| (need.as_str(), profile.clauses().needs.contains(&need))).to_vec(),
            limits: names(true),
            limits_not_enforced: names(false),
        }
    }
}

fn isolates(profile: &Profile) -> String {
    let stack = profile.stack();
    let outer = match (stack.outermost(), profile.class()) {
        (Wall::Process, _) => {
            "files by Landlock, system calls by a filter; process ids and the machine's name are the host's"
        }
        (Wall::Docker, Class::UserspaceKernel) => {
            "everything that a container does, by the Docker Engine; system calls are gVisor's to answer"
        }
        (Wall::Docker, _) => {
            "files, processes, users, network, devices, by the Docker Engine; the kernel is the host's, behind a filter"
        }
        (Wall::Gvisor, _) => {
            "everything that a container does, and the host's kernel: system calls are gVisor's to answer"
        }
        (Wall::Microvm, _) => "a machine of its own: kernel, memory, devices",
        (Wall::Container | Wall::Wasm, _) => {
            "files, processes, users, network, devices; the kernel is the host's, behind a filter"
        }
    };
    match stack.contains(Wall::Wasm) {
        true => format!(
            "memory and every call, by WASM, which makes no system call of the payload's; behind it: {outer}"
        ),
        false => outer.to_owned(),
    }
}

fn runs(profile: &Profile) -> String {
    let clauses = profile.clauses();
    let list = |languages: &mut dyn Iterator<Item = &Language>| {
        languages.map(|language| language.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut words = Vec::new();
    if clauses.commands == Support::Yes {
        let images = match clauses.images.contains(&ImageKind::Stored) {
            true => "programs of the host's /usr or of an image",
            false => "programs of the host's /usr",
        };
        words.push(images.to_owned());
    }
    if clauses.components == Support::Yes {
        words.push("WASM components".to_owned());
    }
    if !clauses.languages.is_empty() {
        words.push(list(&mut clauses.languages.iter()));
    }
    if !clauses.languages_to_set_up.is_empty() {
        words.push(format!("{} after `casemate setup wasm`", list(&mut clauses.languages_to_set_up.iter())));
    }
    words.join("; ")
}

fn network(profile: &Profile) -> &'static str {
    match (profile.clauses().egress, profile.stack().contains(Wall::Wasm), profile.stack().outermost()) {
        (Support::Yes, ..) => "none but what is granted, by host and port",
        (Support::No, true, _) => "none: there is nothing to call",
        (Support::No, false, Wall::Process) => "none: no socket can be made; grants are refused",
        (Support::No, false, _) => "none: a loopback that leads nowhere; grants are refused",
    }
}

fn files(profile: &Profile) -> String {
    let bounds = [(LimitKind::Disk, "bytes"), (LimitKind::Inodes, "inodes")];
    let bounds: Vec<&str> =
        bounds.iter().filter(|(kind, _)| profile.enforces(*kind)).map(|(_, name)| *name).collect();
    let bounded = match bounds[..] {
        [] => "without a quota".to_owned(),
        _ => format!("bounded in {}", bounds.join(" and ")),
    };
    format!("read-only root; --in and --out copy what is named; /work and /tmp {bounded}")
}
