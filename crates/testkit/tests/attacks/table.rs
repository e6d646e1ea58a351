//! The attacks that a probe judges itself, chapter by chapter.

use crate::row::Control::{
    AnswersDiffer, Bare, BareAsRoot, BareWithNetwork, HostRoot, Nothing, OpenImage, Without,
};
use crate::row::On::{self, Held, NotApplicable};
use crate::row::layers::*;
use crate::row::{Row, Trial};

const NO_SYSRQ: &str = "this kernel has no sysrq; core-pattern is the control of the same read-only /proc";
const NO_ALG: &str = "this kernel has no AF_ALG, and the filter answers just like that";
const NO_RESOURCE: &str = "root on this machine cannot raise limits either";
const NO_MOUNTS: &str = "no mount of its own to cover or uncover: the host's are not the payload's to see";

const fn probe(
    attacks: &'static [u16],
    args: &'static str,
    name: &'static str,
    container: On,
    process: On,
) -> Row {
    Row { attacks, name, trial: Trial::Probe { args, container, process } }
}

/// The same control on both walls.
const fn both(attacks: &'static [u16], name: &'static str, control: crate::row::Control) -> Row {
    probe(attacks, "", name, Held(control), Held(control))
}

/// Root inside is enough to escape on both walls.
const fn as_root(attacks: &'static [u16], name: &'static str) -> Row {
    both(attacks, name, Without(ROOT))
}

pub(crate) const ROWS: &[Row] = &[
    // Files and mounts
    probe(&[1], "{secret-file} {marker}", "dotdot", Held(HostRoot(&[])), Held(Without(FILES))),
    probe(&[2], "{secret-file} {marker}", "symlink", Held(HostRoot(&[])), Held(Without(FILES))),
    probe(
        &[1, 2, 8, 9],
        "{secret-file} {marker}",
        "read-host-file",
        Held(HostRoot(&[])),
        Held(Without(FILES)),
    ),
    probe(&[3], "{policy-file}", "hardlink", Held(Bare), Held(Bare)),
    probe(&[8], "{secret-file} {marker}", "cwd", Held(HostRoot(&[])), Held(Without(FILES))),
    both(&[9], "inherited-fds", Without(DESCRIPTORS)),
    both(&[10], "overwrite-exe", BareAsRoot),
    both(&[11], "remount-rw", Without(ROOT_INSIDE)),
    probe(&[12], "", "umount-mask", Held(Without(ROOT_INSIDE)), NotApplicable(NO_MOUNTS)),
    both(&[13], "setuid-binary", Without(GAINING)),
    as_root(&[14], "mknod-disk"),
    probe(&[14], "", "device-open", Held(BareAsRoot), Held(Without(ROOT))),
    as_root(&[15], "open-by-handle"),
    probe(&[11, 98], "", "write-root", Held(OpenImage(WRITING)), Held(Without(FILES))),
    probe(&[93], "probe", "tmp-leftovers", Held(HostRoot(&[])), Held(Without(FILES))),
    probe(&[108], "{policy-file}", "policy-write", Held(HostRoot(WRITING)), Held(Without(FILES))),
    // Kernel interface
    both(&[17], "unshare-user", Without(FILTER)),
    both(&[17], "unshare-all", Without(FILTER)),
    both(&[18], "clone-newns", Without(FILTER)),
    both(&[18], "clone3", Without(FILTER)),
    as_root(&[19], "setns"),
    as_root(&[20], "ptrace-parent"),
    as_root(&[20], "process-vm"),
    probe(&[20], "{guest}", "signal-guest", Held(Without(IDS)), Held(Without(FILES))),
    probe(&[20], "{guest}", "guest-fds", Held(Without(ROOT)), Held(Without(ROOT))),
    both(&[21], "ptrace-traceme-thread", Without(FILTER)),
    both(&[22], "keyctl", Without(FILTER)),
    both(&[23], "io-uring", Without(FILTER)),
    as_root(&[24], "bpf"),
    as_root(&[25], "perf"),
    both(&[26], "userfaultfd", Without(FILTER)),
    both(&[27], "tiocsti", Without(FILTER)),
    probe(&[28], "", "af-alg", Held(Nothing(NO_ALG)), Held(AnswersDiffer(FILTER))),
    both(&[28], "af-vsock", Without(FILTER)),
    as_root(&[28], "af-packet"),
    both(&[28], "af-netlink", Without(FILTER)),
    as_root(&[28], "af-others"),
    both(&[29], "x32", AnswersDiffer(FILTER)),
    both(&[29], "int80", Without(FILTER)),
    both(&[30], "modules", AnswersDiffer(FILTER)),
    both(&[30], "kexec", AnswersDiffer(FILTER)),
    as_root(&[30], "reboot"),
    as_root(&[30], "swap"),
    as_root(&[30], "clock"),
    as_root(&[30], "raw-io"),
    as_root(&[30], "hostname"),
    both(&[31], "seccomp-weaken", Without(FILTER)),
    as_root(&[32], "cgroup-mount"),
    as_root(&[33], "devices-allow"),
    both(&[34], "core-pattern", Without(ROOT_WRITING)),
    both(&[34], "core-dump", Without(RLIMITS)),
    both(&[35], "binfmt", Without(ROOT_WRITING)),
    as_root(&[11], "mount"),
    as_root(&[8], "chroot"),
    // /proc and /sys
    probe(&[36], "{bait-pid} {marker}", "host-pids", Held(Without(PIDS)), Held(Without(FILES))),
    both(&[37], "masked-proc", Without(ROOT_UNMASKED)),
    as_root(&[38], "kallsyms"),
    both(&[39], "sysrq", Nothing(NO_SYSRQ)),
    probe(&[40], "devpts {bait-directory} {home}", "mountinfo", Held(Bare), Held(Without(FILES))),
    probe(&[41], "", "sysfs", Held(Bare), Held(Without(FILES))),
    probe(&[42], "{secret}", "environ-secret", Held(Without(ROOT_AMONG_PIDS)), Held(Without(ROOT))),
    both(&[70], "prlimit", Nothing(NO_RESOURCE)),
    as_root(&[71], "nice"),
    probe(&[66], "", "oom-score", Held(AnswersDiffer(WRITING)), Held(Nothing(NO_RESOURCE))),
    // IPC and network
    probe(&[43], "{marker}", "abstract-socket", Held(Without(NETWORK)), Held(Without(FILTER_AND_FILES))),
    probe(&[44], "{socket}", "unix-socket", Held(HostRoot(&[])), Held(Without(FILTER))),
    probe(&[45], "{port} {marker}", "host-loopback", Held(Without(NETWORK)), Held(Without(FILTER_AND_FILES))),
    both(&[47], "tcp-out", BareWithNetwork),
    both(&[48], "udp-out", BareWithNetwork),
    both(&[48], "raw-icmp", BareWithNetwork),
    both(&[48], "dns-out", BareWithNetwork),
    both(&[47, 50], "metadata", BareWithNetwork),
    both(&[47], "interfaces", BareWithNetwork),
    probe(&[43], "{segment} {marker}", "shm-sysv", Held(Without(IPC)), Held(Without(FILTER))),
    probe(&[43], "/{marker}", "posix-mq", Held(Without(QUEUES)), Held(Without(FILTER_AND_FILES))),
];

/// Attacks on parts that do not exist yet, and those that are settled without a cell.
pub(crate) const REST: &[Row] = &[
    later(&[49, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64], "egress broker", "with the broker"),
    settled(
        &[65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80],
        "resources of an instance",
        "an instance has no processes, signals or sockets; conformance runs every limit on both WASM stacks",
    ),
    settled(
        &[105],
        "archives of images",
        "tests/images.rs imports one of every kind, and looks at what they leave",
    ),
    settled(&[95], "another tenant's id", "tests/service_abuse.rs tries every address that the API has"),
    later(&[96], "another tenant's secret", "with the egress broker: secrets are refused today"),
    settled(
        &[101, 104],
        "huge or deep JSON, paths that lead out",
        "tests/service.rs and service_abuse.rs, over HTTP",
    ),
    settled(&[97], "cache timing", "documented residual: SECURITY.md"),
    settled(
        &[103],
        "log injection",
        "records are canonical JSON, one per line; core's evidence tests flip and inject bytes",
    ),
];

const fn later(attacks: &'static [u16], name: &'static str, why: &'static str) -> Row {
    Row { attacks, name, trial: Trial::Later(why) }
}

const fn settled(attacks: &'static [u16], name: &'static str, where_: &'static str) -> Row {
    Row { attacks, name, trial: Trial::Settled(where_) }
}
