//! What each stack can do on this host, for the router.

use std::collections::BTreeSet;

use casemate_core::limits::LimitKind;
use casemate_core::outcome::Refusal;
use casemate_core::policy::DockerRuntime;
use casemate_core::request::{Language, Need};
use casemate_core::route::{Clauses, ImageKind, Profile, State, Support};
use casemate_core::stack::{Class, Stack, Wall, Weakness};
use casemate_wire::launch::{Hello, Privilege};

/// The Landlock ABI that confines signals and abstract sockets; without namespaces nothing else does.
const SCOPED_ABI: u32 = 6;

const NO_DISK_IO: &str = "disk I/O rates cannot be limited by this version; leave the limit out";

/// What decides here what a stack can do.
pub(crate) struct Here<'a> {
    pub(crate) hello: &'a Hello,
    /// Why there is no gVisor, as far as is known.
    pub(crate) gvisor: Option<Refusal>,
    /// Which of the Docker Engine's runtimes is used, and why there is no engine, as far as is known.
    pub(crate) docker: (DockerRuntime, Option<Refusal>),
    /// Why there are no virtual machines.
    pub(crate) microvm: Option<Refusal>,
    /// Those with an interpreter in WASM.
    pub(crate) languages: &'a [Language],
}

/// One profile per stack there is, usable or not, cheapest first.
pub(crate) fn profiles(here: &Here<'_>) -> Vec<Profile> {
    Stack::all().map(|stack| profile(stack, here)).collect()
}

fn profile(stack: Stack, here: &Here<'_>) -> Profile {
    let Here { hello, languages: wasm_languages, .. } = here;
    let class = match (stack.outermost(), here.docker.0) {
        (Wall::Docker, DockerRuntime::Runsc) => Class::UserspaceKernel,
        // Emulated, as all of them are here.
        (Wall::Microvm, _) => Class::SharedKernel,
        _ => stack.nominal_class(),
    };
    let cost = cost(&stack);
    let profile = Profile::new(stack.clone(), class, cost);
    match stack.walls() {
        [Wall::Container] => container(profile, hello),
        [Wall::Process] => process(profile, hello),
        [Wall::Container, Wall::Wasm] => wasm(container(profile, hello), wasm_languages),
        [Wall::Process, Wall::Wasm] => wasm(process(profile, hello), wasm_languages),
        [Wall::Gvisor] => gvisor(profile, here),
        [Wall::Gvisor, Wall::Wasm] => wasm(gvisor(profile, here), wasm_languages),
        [Wall::Docker] => docker(profile, here),
        [Wall::Microvm] | [Wall::Microvm, Wall::Container] => microvm(profile, here),
        [Wall::Microvm, Wall::Wasm] | [Wall::Microvm, Wall::Container, Wall::Wasm] => {
            wasm(microvm(profile, here), wasm_languages)
        }
        [Wall::Docker, Wall::Wasm] => profile
            .supporting(promised(&stack))
            .by_name_only()
            .missing(crate::walls::docker::NO_PROGRAM, "use container+wasm or gvisor+wasm"),
        _ => profile.supporting(promised(&stack)).missing(
            "not part of this version",
            "a later version brings it; `casemate doctor` lists what is ready",
        ),
    }
}

/// What a stack that does not exist yet is meant for, so that what it is passed over for is its absence.
fn promised(stack: &Stack) -> Clauses {
    let wasm = stack.contains(Wall::Wasm);
    let needs: &[Need] = match stack.outermost() {
        Wall::Microvm => &Need::ALL,
        Wall::Gvisor => &[Need::Ptrace, Need::Fork],
        _ => &[Need::Fork],
    };
    let native = if wasm { Support::No } else { Support::Yes };
    Clauses {
        commands: native,
        components: if wasm { Support::Yes } else { Support::No },
        languages: Language::ALL
            .into_iter()
            .filter(|language| !wasm || *language != Language::Shell)
            .collect(),
        languages_to_set_up: BTreeSet::new(),
        needs: needs.iter().copied().filter(|_| !wasm).collect(),
        images: BTreeSet::from([ImageKind::Host, ImageKind::Directory, ImageKind::Stored]),
        cwd: Support::Yes,
        files_in: Support::Yes,
        files_out: Support::Yes,
        // These need the egress broker, which no stack has yet.
        egress: Support::No,
        secrets: Support::No,
        deterministic: if wasm { Support::Yes } else { Support::No },
    }
}

/// Relative cost of a launch: what is measured today, and for later walls what their engines are known to take.
fn cost(stack: &Stack) -> u32 {
    let outer = match stack.outermost() {
        Wall::Process => 10,
        Wall::Container | Wall::Wasm => 20,
        Wall::Gvisor => 300,
        Wall::Docker => 600,
        Wall::Microvm => 900,
    };
    // An instance in a running worker costs less than a cell, but its worker needs one.
    outer + stack.walls().len() as u32 - 1
}

/// Of walls that run the programs of an image.
fn native_clauses() -> Clauses {
    Clauses {
        commands: Support::Yes,
        languages: Language::ALL.into_iter().collect(),
        needs: BTreeSet::from([Need::Ptrace, Need::Fork]),
        images: BTreeSet::from([ImageKind::Host, ImageKind::Directory, ImageKind::Stored]),
        cwd: Support::Yes,
        files_in: Support::Yes,
        files_out: Support::Yes,
        ..Clauses::default()
    }
}

fn container(profile: Profile, hello: &Hello) -> Profile {
    // Missing or not, it is the wall for this: what it is passed over for is its absence.
    let profile = profile.supporting(native_clauses());
    if let Some(profile) = without_means(&profile, hello, 1) {
        return profile;
    }
    if let Err(reason) = &hello.container {
        let hint = "unprivileged user namespaces must be allowed (sysctl kernel.unprivileged_userns_clone=1 or \
                    user.max_user_namespaces > 0), or run casemate as root";
        return profile.missing(format!("no namespaces can be made here ({})", without_number(reason)), hint);
    }
    let always = [
        LimitKind::WallTime,
        LimitKind::Output,
        LimitKind::OpenFiles,
        LimitKind::Disk,
        LimitKind::Inodes,
        LimitKind::Pids,
    ];
    with_cgroups(profile.enforcing(always), hello)
}

/// A container with another kernel in it, which counts processes itself.
fn gvisor(profile: Profile, here: &Here<'_>) -> Profile {
    let profile = container(profile, here.hello);
    match (profile.state(), &here.gvisor) {
        // There, a payload with the guest's id could end it, or speak in its name.
        (State::Ready, _) if here.hello.privilege == Privilege::Rootless => profile
            .missing("without root only one id can be mapped, and gVisor needs two", "run casemate as root"),
        (State::Ready, Some(refusal)) => profile.missing(refusal.reason.clone(), refusal.hint.clone()),
        _ => profile,
    }
}

/// The Docker Engine limits whatever it is asked to, or the run is refused when it says that it cannot.
fn docker(profile: Profile, here: &Here<'_>) -> Profile {
    let (runtime, missing) = &here.docker;
    let profile = profile.by_name_only().supporting(native_clauses());
    let landlock = match runtime {
        DockerRuntime::Runc => 1,
        // gVisor's kernel has none.
        DockerRuntime::Runsc => 0,
    };
    if let Some(profile) = without_means(&profile, here.hello, landlock) {
        return profile;
    }
    if let Some(refusal) = missing {
        return profile.missing(refusal.reason.clone(), refusal.hint.clone());
    }
    let profile = profile.enforcing([
        LimitKind::WallTime,
        LimitKind::CpuTime,
        LimitKind::Cpus,
        LimitKind::Memory,
        LimitKind::Disk,
        LimitKind::Pids,
        LimitKind::OpenFiles,
        LimitKind::Output,
    ]);
    let profile = profile.unenforced_hint(LimitKind::DiskIo, NO_DISK_IO);
    match runtime {
        DockerRuntime::Runc => profile.enforcing([LimitKind::Inodes]),
        DockerRuntime::Runsc => profile.unenforced_hint(
            LimitKind::Inodes,
            "gVisor does not count the inodes of file systems that the Docker Engine makes in it; use --on gvisor, or runc",
        ),
    }
}

/// A container in a machine whose kernel enforces everything, and which is in a container itself.
fn microvm(profile: Profile, here: &Here<'_>) -> Profile {
    let mut clauses = Clauses { images: BTreeSet::from([ImageKind::Stored]), ..native_clauses() };
    if profile.stack().walls() == [Wall::Microvm] {
        // Nothing stands within it that these would have to relax.
        clauses.needs = Need::ALL.into_iter().collect();
    }
    let profile = container(profile, here.hello).supporting(clauses).weakened(Weakness::Tcg);
    let profile = profile
        .enforcing([LimitKind::Memory, LimitKind::Pids, LimitKind::CpuTime, LimitKind::Cpus])
        .unenforced_hint(LimitKind::DiskIo, NO_DISK_IO);
    match (profile.state(), &here.microvm) {
        (State::Ready, _) if here.hello.privilege == Privilege::Rootless => profile.missing(
            "without root nothing bounds what a virtual machine takes from the host",
            "run casemate as root",
        ),
        (State::Ready, Some(refusal)) => profile.missing(refusal.reason.clone(), refusal.hint.clone()),
        _ => profile,
    }
}

fn process(profile: Profile, hello: &Hello) -> Profile {
    let clauses = Clauses {
        commands: Support::Yes,
        languages: Language::ALL.into_iter().collect(),
        needs: BTreeSet::from([Need::Fork]),
        images: BTreeSet::from([ImageKind::Host]),
        cwd: Support::Yes,
        files_in: Support::Yes,
        files_out: Support::Yes,
        ..Clauses::default()
    };
    let profile = profile.supporting(clauses);
    if let Some(profile) = without_means(&profile, hello, SCOPED_ABI) {
        return profile;
    }
    let no_quota = "the process wall has no file system of its own; use --on container";
    let profile = profile
        .enforcing([LimitKind::WallTime, LimitKind::Output, LimitKind::OpenFiles])
        .unenforced_hint(LimitKind::Disk, no_quota)
        .unenforced_hint(LimitKind::Inodes, no_quota);
    with_cgroups(profile, hello)
}

/// With a worker inside, the outer wall runs nothing else, and whatever it enforces still holds. The worker bounds what a
/// cgroup would have to bound otherwise, and a component cannot start processes at all.
fn wasm(outer: Profile, languages: &[Language]) -> Profile {
    let missing = crate::walls::wasm::LANGUAGES.into_iter().filter(|language| !languages.contains(language));
    let clauses = Clauses {
        components: Support::Yes,
        languages: languages.iter().copied().collect(),
        languages_to_set_up: missing.collect(),
        images: BTreeSet::from([ImageKind::Host]),
        files_in: Support::Yes,
        files_out: Support::Yes,
        deterministic: Support::Yes,
        ..Clauses::default()
    };
    outer.supporting(clauses).enforcing([LimitKind::Memory, LimitKind::CpuTime, LimitKind::Pids])
}

/// The wall as missing, if there is none of what both native walls are made of.
fn without_means(profile: &Profile, hello: &Hello, abi: u32) -> Option<Profile> {
    if hello.privilege == Privilege::Rootless && rustix::process::geteuid().is_root() {
        return Some(profile.clone().missing(
            "root of this user namespace has no other id to give to a payload",
            "run casemate as another user, or as root of the host",
        ));
    }
    if !hello.seccomp {
        return Some(
            profile
                .clone()
                .missing("this kernel has no seccomp filters", "use a kernel with CONFIG_SECCOMP_FILTER"),
        );
    }
    if hello.landlock_abi < abi {
        let reason = match hello.landlock_abi {
            0 => "this kernel has no Landlock, or it is not enabled".to_owned(),
            found => format!("this kernel's Landlock is ABI {found}, and ABI {abi} is needed"),
        };
        return Some(profile.clone().missing(
            reason,
            format!("use Linux {} or newer, with `landlock` in the lsm= list", kernel_with(abi)),
        ));
    }
    None
}

/// What the system said, for people.
fn without_number(words: &str) -> &str {
    words.split_once(" (os error").map_or(words, |(words, _)| words)
}

/// The first kernel with this Landlock ABI, of those asked for here.
fn kernel_with(abi: u32) -> &'static str {
    if abi >= SCOPED_ABI { "6.12" } else { "5.13" }
}

fn with_cgroups(profile: Profile, hello: &Hello) -> Profile {
    let cgroups = &hello.cgroups;
    let hint = match (hello.privilege, &cgroups.missing) {
        (Privilege::Rootless, _) => {
            "run casemate as root, or with a delegated cgroup (systemd-run --user --scope -p Delegate=yes)"
                .to_owned()
        }
        (Privilege::Root, Some(missing)) => {
            format!(
                "mount cgroups with this controller where casemate can write ({})",
                without_number(missing)
            )
        }
        (Privilege::Root, None) => "this host's cgroups lack the controller".to_owned(),
    };
    let controlled = [
        (LimitKind::Memory, cgroups.memory),
        (LimitKind::Pids, cgroups.pids),
        (LimitKind::CpuTime, cgroups.cpu_usage),
        (LimitKind::Cpus, cgroups.cpu),
        (LimitKind::DiskIo, cgroups.io),
    ];
    controlled.into_iter().fold(profile, |profile, (kind, usable)| match usable {
        true => profile.enforcing([kind]),
        false if kind == LimitKind::DiskIo => profile.unenforced_hint(kind, NO_DISK_IO),
        false => profile.unenforced_hint(kind, hint.clone()),
    })
}
