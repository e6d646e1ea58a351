//! What the Docker Engine is asked for, and whether it says that it did that.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig, Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType,
    ResourcesUlimits,
};
use casemate_core::limits::LimitKind;
use casemate_core::plan::Plan;
use casemate_core::policy::DockerRuntime;
use serde_json::Value;

use super::layout::Layout;
use super::skeleton::GUEST;

/// Uid and gid of the payload.
pub(super) const PAYLOAD_ID: u32 = 1000;

/// Who a container belongs to: the home that it was made for, and the run.
pub(super) const HOME_LABEL: &str = "casemate.home";
pub(super) const RUN_LABEL: &str = "casemate.run";
const VERSION_LABEL: &str = "casemate.version";

/// What a sandbox of gVisor's needs besides what its payload may have, as on the `gvisor` wall.
const SENTRY_MEMORY: u64 = 64 << 20;
const SENTRY_PROCESSES: u64 = 256;
const SENTRY_EACH: u64 = 3;

/// Threads that a runtime needs until the guest runs. A payload that may have fewer gets its limit then.
const TO_START: u64 = 32;

/// What a guest needs in gVisor's kernel, as on the `gvisor` wall.
const OF_GUEST: [&str; 7] = ["CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN"];

/// Parts of procfs that no namespace covers. Those that a kernel lacks are left out by the runtime.
const MASKED: [&str; 13] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/locks",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/config.gz",
    "/proc/acpi",
    "/proc/scsi",
    "/proc/asound",
];

/// Settings that open a container up, none of which is asked for.
const NEVER: [&str; 17] = [
    "Privileged",
    "Binds",
    "Devices",
    "DeviceRequests",
    "DeviceCgroupRules",
    "PidMode",
    "UTSMode",
    "UsernsMode",
    "GroupAdd",
    "VolumesFrom",
    "Sysctls",
    "PortBindings",
    "PublishAllPorts",
    "ExtraHosts",
    "Cgroup",
    "CgroupParent",
    "Links",
];

/// The writable places, and what share of the disk and of the inodes each has, in sixteenths: no file system of the engine's can be
/// mounted in three places.
pub(super) const PLACES: [(&str, u64, &str); 3] =
    [("/work", 13, "mode=0755,uid=1000,gid=1000"), ("/tmp", 2, "mode=1777"), ("/dev/shm", 1, "mode=1777")];

const PAGE: u64 = 4096;

/// What a container has to hold to: as asked for, and as it is to be found in the kernel's files.
pub(super) struct Asked {
    pub(super) body: ContainerCreateBody,
    pub(super) memory: Option<u64>,
    pub(super) processes: Option<u64>,
    /// Largest size in bytes and largest number of inodes of each of [`PLACES`].
    pub(super) quotas: [(u64, u64); PLACES.len()],
}

impl Asked {
    /// How many processes there may be once the guest runs, if that was more than until then.
    pub(super) fn fewer_processes(&self) -> Option<i64> {
        self.processes.filter(|count| *count < TO_START).and_then(|count| i64::try_from(count).ok())
    }

    /// Microseconds of processor time in each tenth of a second.
    pub(super) fn cpu_micros(&self) -> Option<u64> {
        let nanos = self.body.host_config.as_ref()?.nano_cpus?;
        u64::try_from(nanos).ok().map(|nanos| nanos / 10_000)
    }
}

/// What else the settings depend on.
pub(super) struct Context<'a> {
    pub(super) image: &'a str,
    pub(super) layout: &'a Layout,
    pub(super) seccomp: &'a str,
    pub(super) runtime: DockerRuntime,
    pub(super) home: &'a str,
    pub(super) run: &'a str,
    /// Processors that the engine can give.
    pub(super) processors: u64,
    /// Whether the engine can keep a container from swapping. Where there is nothing to swap to, it need not.
    pub(super) swap: Swap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Swap {
    Limited,
    Absent,
}

pub(super) fn asked(plan: &Plan, context: &Context<'_>) -> Asked {
    let bound = |kind| plan.limits().get(kind).map(|bound| bound.value);
    let (own_memory, own_processes, each) = match context.runtime {
        // The guest. Its memory is too little to tell.
        DockerRuntime::Runc => (0, 1, 1),
        DockerRuntime::Runsc => (SENTRY_MEMORY, SENTRY_PROCESSES, SENTRY_EACH),
    };
    let memory = bound(LimitKind::Memory).map(|bytes| bytes.saturating_add(own_memory));
    let processes =
        bound(LimitKind::Pids).map(|count| count.saturating_mul(each).saturating_add(own_processes));
    let quotas = quotas(bound(LimitKind::Disk).unwrap_or(0), bound(LimitKind::Inodes).unwrap_or(0));
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let nano_cpus =
        bound(LimitKind::Cpus).map(|milli| number(milli.min(context.processors * 1000) * 1_000_000));
    let (user, capabilities) = match context.runtime {
        DockerRuntime::Runc => (format!("{PAYLOAD_ID}:{PAYLOAD_ID}"), None),
        // Root of gVisor's kernel, not of the host's: in there, a payload with the guest's uid could write into the guest's channel.
        // That it is gVisor's is looked at before anything runs.
        DockerRuntime::Runsc => ("0:0".to_owned(), Some(OF_GUEST.map(str::to_owned).to_vec())),
    };
    let none = || Some(String::new());
    let host_config = HostConfig {
        memory: memory.map(number),
        memory_swap: memory.map(number).filter(|_| context.swap == Swap::Limited),
        nano_cpus,
        pids_limit: processes.map(|count| number(count.max(TO_START))),
        oom_score_adj: Some(1000),
        oom_kill_disable: None,
        ulimits: Some(vec![ResourcesUlimits { name: Some("core".into()), soft: Some(0), hard: Some(0) }]),
        init: Some(false),
        // Its default would copy every frame to the disk.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: Some(HashMap::new()) }),
        network_mode: Some("none".into()),
        // Should we be gone by the time that its guest ends.
        auto_remove: Some(true),
        mounts: Some(context.layout.binds.iter().map(mount).collect()),
        cap_add: capabilities,
        cap_drop: Some(vec!["ALL".into()]),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        // Private, without a file system of the engine's.
        ipc_mode: Some("none".into()),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        security_opt: Some(vec!["no-new-privileges".into(), format!("seccomp={}", context.seccomp)]),
        tmpfs: Some(file_systems(&quotas, context.runtime)),
        runtime: Some(context.runtime.as_str().to_owned()),
        masked_paths: Some(MASKED.map(str::to_owned).to_vec()),
        // All of it: a list of dangerous files is never complete.
        readonly_paths: Some(vec!["/proc".into()]),
        ..HostConfig::default()
    };
    let labels =
        [(HOME_LABEL, context.home), (RUN_LABEL, context.run), (VERSION_LABEL, env!("CARGO_PKG_VERSION"))];
    let body = ContainerCreateBody {
        hostname: Some("cell".into()),
        domainname: none(),
        user: Some(user),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        open_stdin: Some(true),
        // When we are gone, the guest's channel ends, and the guest with it.
        stdin_once: Some(true),
        env: Some(Vec::new()),
        cmd: Some(Vec::new()),
        image: Some(context.image.to_owned()),
        working_dir: Some("/".into()),
        entrypoint: Some(vec![GUEST.into()]),
        // A network namespace that the engine does not know of: with `none` alone, it makes files for name look-ups, and mounts them.
        network_disabled: Some(true),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    };
    Asked { body, memory, processes, quotas }
}

fn mount(bind: &super::layout::Bind) -> Mount {
    Mount {
        target: Some(bind.target.clone()),
        source: Some(bind.source.clone()),
        typ: Some(MountType::BIND),
        read_only: Some(true),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

/// Never more than the limit, all together.
fn quotas(disk: u64, inodes: u64) -> [(u64, u64); PLACES.len()] {
    PLACES.map(|(_, share, _)| {
        // To the kernel, nothing at all would mean: without a limit. The directory itself takes an inode.
        let pages = (disk / 16 * share / PAGE).max(1);
        (pages * PAGE, inodes * share / 16 + 1)
    })
}

fn file_systems(quotas: &[(u64, u64); PLACES.len()], runtime: DockerRuntime) -> HashMap<String, String> {
    let places = PLACES.iter().zip(quotas).map(|((place, _, owner), (size, inodes))| {
        // Programs in the work directory can be executed, as on every wall.
        ((*place).to_owned(), format!("rw,nosuid,nodev,exec,size={size},nr_inodes={inodes},{owner}"))
    });
    let devices = match runtime {
        DockerRuntime::Runc => "ro,nosuid,noexec,dev,mode=0755,size=65536,nr_inodes=64",
        // There, nobody could write to a device in a file system that is read-only. It is root's.
        DockerRuntime::Runsc => "rw,nosuid,noexec,dev,mode=0755,size=65536,nr_inodes=64",
    };
    let fixed = [
        // In place of the engine's own, and of what it mounts in there. The devices are still made.
        ("/dev", devices),
        // Instead of the machine's sysfs, and its cgroups.
        ("/sys", "ro,nosuid,nodev,noexec,size=4096,nr_inodes=8"),
        ("/sys/fs/cgroup", "ro,nosuid,nodev,noexec,size=4096,nr_inodes=8"),
    ];
    places.chain(fixed.map(|(place, options)| (place.to_owned(), options.to_owned()))).collect()
}

/// The first setting that the engine says is another one than was asked for.
pub(super) fn difference(asked: &ContainerCreateBody, said: &ContainerInspectResponse) -> Option<String> {
    let as_json = |settings: &Option<HostConfig>| serde_json::to_value(settings).unwrap_or(Value::Null);
    let (wanted, got) = (as_json(&asked.host_config), as_json(&said.host_config));
    let settings = wanted.as_object().into_iter().flatten();
    // What is empty may be left out.
    let differs =
        |name: &str, value: &Value| got[name] != *value && !(is_nothing(value) && is_nothing(&got[name]));
    if let Some((name, _)) = settings.clone().find(|(name, value)| differs(name, value)) {
        return Some(name.clone());
    }
    let open = |name: &&&str| !is_nothing(&got[**name]) && wanted[**name].is_null();
    if let Some(name) = NEVER.iter().chain(&["CapAdd"]).find(open) {
        return Some((*name).to_owned());
    }
    let config = said.config.as_ref();
    let others = [
        ("User", config.map(|config| &config.user) != Some(&asked.user)),
        ("Entrypoint", config.map(|config| &config.entrypoint) != Some(&asked.entrypoint)),
        ("Tty", config.and_then(|config| config.tty) != Some(false)),
        ("NetworkDisabled", config.and_then(|config| config.network_disabled) != Some(true)),
    ];
    others.into_iter().find(|(_, differs)| *differs).map(|(name, _)| name.to_owned())
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(true) => false,
    }
}
