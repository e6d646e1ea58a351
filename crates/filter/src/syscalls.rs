//! The policy, as data. Whatever is not listed does not exist ([`Verdict::ABSENT`]): what the kernel adds later, what it
//! dropped long ago, and NUMA placement, without which programs run as on a machine with one node.

use crate::table::{Clause, Half, Match, Policy, Row, Rule, Verdict};

const ALLOW: Policy = Policy::Same(Rule::Always(Verdict::Allow));
const DENY: Policy = Policy::Same(Rule::Always(Verdict::DENIED));
const ABSENT: Policy = Policy::Same(Rule::Always(Verdict::ABSENT));
const TRACING: Policy = Policy::Tracing;
const NAMESPACED: Policy =
    Policy::ByNetwork { namespaced: Rule::Always(Verdict::Allow), none: Rule::Always(Verdict::DENIED) };

/// New namespaces. `CLONE_NEWTIME` is not among them: to clone its bit is part of the exit signal.
const CLONE: Policy = unless(&[none_of(0, 0x7e02_0000, &[0], Verdict::DENIED)]);

/// TIOCSTI types into the terminal, TIOCLINUX pastes into it, TIOCSETD loads line disciplines.
const IOCTL: Policy = unless(&[any_of(1, &[0x5412, 0x541c, 0x5423], Verdict::DENIED)]);

/// PR_SET_MM rewrites what /proc says about the process.
const PRCTL: Policy = unless(&[any_of(0, &[35], Verdict::DENIED)]);

/// PER_LINUX, asking, PER_LINUX32, UNAME26, both, and ADDR_NO_RANDOMIZE (sanitizers and debuggers; it weakens only
/// its caller).
const PERSONALITY: Policy =
    unless(&[none_of(0, u32::MAX, &[0, u32::MAX, 0x8, 0x2_0000, 0x2_0008, 0x4_0000], Verdict::DENIED)]);

/// Regular files, FIFOs and sockets; no devices, which includes overlayfs whiteouts.
const MKNOD: Policy = unless(&[none_of(1, S_IFMT, NO_DEVICES, Verdict::DENIED)]);
const MKNODAT: Policy = unless(&[none_of(2, S_IFMT, NO_DEVICES, Verdict::DENIED)]);
const S_IFMT: u32 = 0o170_000;
const NO_DEVICES: &[u32] = &[0, 0o100_000, 0o010_000, 0o140_000];

/// RENAME_WHITEOUT leaves a character device behind, and Landlock does not see it being made.
const RENAME: Policy = unless(&[none_of(4, 0x4, &[0], Verdict::DENIED)]);

/// Unix, IPv4 and IPv6 sockets; stream, datagram and seqpacket; TCP, UDP and ping. The other families and protocols are
/// rarely used kernel code, and many load a module when asked for.
const SOCKET: Policy = Policy::ByNetwork {
    namespaced: Rule::Unless(&[
        none_of(0, u32::MAX, &[AF_UNIX, 2, 10], NO_FAMILY),
        none_of(1, SOCK_TYPE_MASK, &[SOCK_STREAM, 2, SOCK_SEQPACKET], Verdict::DENIED),
        none_of(2, u32::MAX, &[0, 1, 6, 17, 58], Verdict::Errno(libc::EPROTONOSUPPORT)),
    ]),
    none: Rule::Always(Verdict::DENIED),
};

/// A datagram pair is not closed: either end can still `sendto` any socket that has a name. So where names are the
/// host's, only the connection-oriented kinds.
const SOCKETPAIR: Policy = Policy::ByNetwork {
    namespaced: Rule::Unless(&[none_of(0, u32::MAX, &[AF_UNIX], NO_FAMILY)]),
    none: Rule::Unless(&[
        none_of(0, u32::MAX, &[AF_UNIX], NO_FAMILY),
        none_of(1, SOCK_TYPE_MASK, &[SOCK_STREAM, SOCK_SEQPACKET], Verdict::DENIED),
    ]),
};
const AF_UNIX: u32 = 1;
const SOCK_STREAM: u32 = 1;
const SOCK_SEQPACKET: u32 = 5;
const SOCK_TYPE_MASK: u32 = 0xf;
const NO_FAMILY: Verdict = Verdict::Errno(libc::EAFNOSUPPORT);

/// Without a PID namespace these reach every process of the same user; 0 is the caller.
const SELF_BY_PID: Policy = Policy::ByNetwork {
    namespaced: Rule::Always(Verdict::Allow),
    none: Rule::Unless(&[none_of(0, u32::MAX, &[0], Verdict::DENIED)]),
};
/// Likewise, for PRIO_PROCESS and IOPRIO_WHO_PROCESS.
const SELF_PRIORITY: Policy = Policy::ByNetwork {
    namespaced: Rule::Always(Verdict::Allow),
    none: Rule::Unless(&[
        none_of(0, u32::MAX, &[0], Verdict::DENIED),
        none_of(1, u32::MAX, &[0], Verdict::DENIED),
    ]),
};
const SELF_IOPRIO: Policy = Policy::ByNetwork {
    namespaced: Rule::Always(Verdict::Allow),
    none: Rule::Unless(&[
        none_of(0, u32::MAX, &[1], Verdict::DENIED),
        none_of(1, u32::MAX, &[0], Verdict::DENIED),
    ]),
};

/// Changes to what the owner of a file may change, by its name or by a descriptor that nobody had to open (`O_PATH` with
/// an empty name).
const OWNED: Policy = shared(Rule::Always(Verdict::DENIED));

/// The same changes by descriptor. `fsetxattr` takes `AT_FDCWD` for one (seen on 6.18), and Landlock lets a process enter
/// any directory.
const OWNED_OPEN: Policy = shared(Rule::Unless(&[none_of(0, 1 << 31, &[0], Verdict::Errno(libc::EBADF))]));

/// futimens is this with no name and no flags. The name is a pointer, so both halves count.
const UTIMENSAT: Policy = shared(Rule::Unless(&[
    none_of(1, u32::MAX, &[0], Verdict::DENIED),
    Clause { half: Half::High, ..none_of(1, u32::MAX, &[0], Verdict::DENIED) },
    none_of(3, u32::MAX, &[0], Verdict::DENIED),
]));

/// The fourth access mode opens for neither reading nor writing, so that Landlock has nothing to ask; but unlike with
/// `O_PATH` all of the above works on the result.
const OPEN: Policy = shared(Rule::Unless(&[none_of(1, O_ACCMODE, &[0, 1, 2], Verdict::DENIED)]));
const OPENAT: Policy = shared(Rule::Unless(&[none_of(2, O_ACCMODE, &[0, 1, 2], Verdict::DENIED)]));
const O_ACCMODE: u32 = 3;
/// Hides the mode behind a pointer; callers fall back to openat.
const OPENAT2: Policy = shared(Rule::Always(Verdict::ABSENT));

/// In order of subject; numbers are x86_64, then aarch64. Attacks are numbered as in the attack matrix.
pub(crate) const TABLE: &[Row] = &[
    // Reading, writing and waiting on descriptors.
    row("read", 0, 63, ALLOW),
    row("write", 1, 64, ALLOW),
    x86("open", 2, OPEN),
    row("close", 3, 57, ALLOW),
    row("lseek", 8, 62, ALLOW),
    row("pread64", 17, 67, ALLOW),
    row("pwrite64", 18, 68, ALLOW),
    row("readv", 19, 65, ALLOW),
    row("writev", 20, 66, ALLOW),
    row("preadv", 295, 69, ALLOW),
    row("pwritev", 296, 70, ALLOW),
    row("preadv2", 327, 286, ALLOW),
    row("pwritev2", 328, 287, ALLOW),
    row("openat", 257, 56, OPENAT),
    new("openat2", 437, OPENAT2),
    x86("creat", 85, ALLOW),
    new("close_range", 436, ALLOW),
    row("dup", 32, 23, ALLOW),
    x86("dup2", 33, ALLOW),
    row("dup3", 292, 24, ALLOW),
    row("fcntl", 72, 25, ALLOW),
    row("flock", 73, 32, ALLOW),
    x86("pipe", 22, ALLOW),
    row("pipe2", 293, 59, ALLOW),
    x86("poll", 7, ALLOW),
    row("ppoll", 271, 73, ALLOW),
    x86("select", 23, ALLOW),
    row("pselect6", 270, 72, ALLOW),
    row("sendfile", 40, 71, ALLOW),
    row("splice", 275, 76, ALLOW),
    row("tee", 276, 77, ALLOW),
    row("vmsplice", 278, 75, ALLOW),
    row("copy_file_range", 326, 285, ALLOW),
    x86("epoll_create", 213, ALLOW),
    row("epoll_create1", 291, 20, ALLOW),
    row("epoll_ctl", 233, 21, ALLOW),
    x86("epoll_wait", 232, ALLOW),
    row("epoll_pwait", 281, 22, ALLOW),
    new("epoll_pwait2", 441, ALLOW),
    x86("eventfd", 284, ALLOW),
    row("eventfd2", 290, 19, ALLOW),
    x86("signalfd", 282, ALLOW),
    row("signalfd4", 289, 74, ALLOW),
    x86("inotify_init", 253, NAMESPACED),
    row("inotify_init1", 294, 26, NAMESPACED),
    row("inotify_add_watch", 254, 27, NAMESPACED),
    row("inotify_rm_watch", 255, 28, ALLOW),
    row("fsync", 74, 82, ALLOW),
    row("fdatasync", 75, 83, ALLOW),
    row("sync", 162, 81, ALLOW),
    row("syncfs", 306, 267, ALLOW),
    row("sync_file_range", 277, 84, ALLOW),
    row("readahead", 187, 213, ALLOW),
    row("fadvise64", 221, 223, ALLOW),
    row("fallocate", 285, 47, ALLOW),
    row("truncate", 76, 45, ALLOW),
    row("ftruncate", 77, 46, ALLOW),
    new("cachestat", 451, ALLOW),
    row("io_setup", 206, 0, ALLOW),
    row("io_destroy", 207, 1, ALLOW),
    row("io_submit", 209, 2, ALLOW),
    row("io_cancel", 210, 3, ALLOW),
    row("io_getevents", 208, 4, ALLOW),
    row("io_pgetevents", 333, 292, ALLOW),
    row("ioctl", 16, 29, IOCTL),
    // The file tree. Which files these reach is for the mount namespace and Landlock to say; Landlock is not asked about
    // metadata.
    x86("stat", 4, ALLOW),
    row("fstat", 5, 80, ALLOW),
    x86("lstat", 6, ALLOW),
    row("newfstatat", 262, 79, ALLOW),
    row("statx", 332, 291, ALLOW),
    row("statfs", 137, 43, ALLOW),
    row("fstatfs", 138, 44, ALLOW),
    x86("access", 21, ALLOW),
    row("faccessat", 269, 48, ALLOW),
    new("faccessat2", 439, ALLOW),
    x86("getdents", 78, ALLOW),
    row("getdents64", 217, 61, ALLOW),
    row("getcwd", 79, 17, ALLOW),
    row("chdir", 80, 49, ALLOW),
    row("fchdir", 81, 50, ALLOW),
    x86("rename", 82, ALLOW),
    row("renameat", 264, 38, ALLOW),
    x86("mkdir", 83, ALLOW),
    row("mkdirat", 258, 34, ALLOW),
    x86("rmdir", 84, ALLOW),
    x86("link", 86, ALLOW),
    row("linkat", 265, 37, ALLOW),
    x86("unlink", 87, ALLOW),
    row("unlinkat", 263, 35, ALLOW),
    x86("symlink", 88, ALLOW),
    row("symlinkat", 266, 36, ALLOW),
    x86("readlink", 89, ALLOW),
    row("readlinkat", 267, 78, ALLOW),
    x86("chmod", 90, OWNED),
    row("fchmod", 91, 52, OWNED_OPEN),
    row("fchmodat", 268, 53, OWNED),
    new("fchmodat2", 452, OWNED),
    x86("chown", 92, OWNED),
    row("fchown", 93, 55, OWNED_OPEN),
    x86("lchown", 94, OWNED),
    row("fchownat", 260, 54, OWNED),
    row("umask", 95, 166, ALLOW),
    x86("utime", 132, OWNED),
    x86("utimes", 235, OWNED),
    row("utimensat", 280, 88, UTIMENSAT),
    x86("futimesat", 261, OWNED),
    row("getxattr", 191, 8, ALLOW),
    row("lgetxattr", 192, 9, ALLOW),
    row("fgetxattr", 193, 10, ALLOW),
    new("getxattrat", 464, ALLOW),
    row("setxattr", 188, 5, OWNED),
    row("lsetxattr", 189, 6, OWNED),
    row("fsetxattr", 190, 7, OWNED_OPEN),
    new("setxattrat", 463, OWNED),
    row("listxattr", 194, 11, ALLOW),
    row("llistxattr", 195, 12, ALLOW),
    row("flistxattr", 196, 13, ALLOW),
    new("listxattrat", 465, ALLOW),
    row("removexattr", 197, 14, OWNED),
    row("lremovexattr", 198, 15, OWNED),
    row("fremovexattr", 199, 16, OWNED_OPEN),
    new("removexattrat", 466, OWNED),
    new("file_getattr", 468, ALLOW),
    new("file_setattr", 469, OWNED),
    row("renameat2", 316, 276, RENAME),
    x86("mknod", 133, MKNOD),
    row("mknodat", 259, 33, MKNODAT),
    // Memory.
    row("mmap", 9, 222, ALLOW),
    row("mprotect", 10, 226, ALLOW),
    row("munmap", 11, 215, ALLOW),
    row("mremap", 25, 216, ALLOW),
    row("msync", 26, 227, ALLOW),
    row("mincore", 27, 232, ALLOW),
    row("madvise", 28, 233, ALLOW),
    row("brk", 12, 214, ALLOW),
    row("mlock", 149, 228, ALLOW),
    row("mlock2", 325, 284, ALLOW),
    row("munlock", 150, 229, ALLOW),
    row("mlockall", 151, 230, ALLOW),
    row("munlockall", 152, 231, ALLOW),
    row("remap_file_pages", 216, 234, ALLOW),
    row("memfd_create", 319, 279, ALLOW),
    new("mseal", 462, ALLOW),
    new("map_shadow_stack", 453, ALLOW),
    row("pkey_alloc", 330, 289, ALLOW),
    row("pkey_free", 331, 290, ALLOW),
    row("pkey_mprotect", 329, 288, ALLOW),
    row("membarrier", 324, 283, ALLOW),
    // Processes and threads. clone3 hides its flags behind a pointer; libc falls back to clone, whose flags are checked.
    row("clone", 56, 220, CLONE),
    new("clone3", 435, ABSENT),
    x86("fork", 57, ALLOW),
    x86("vfork", 58, ALLOW),
    row("execve", 59, 221, ALLOW),
    row("execveat", 322, 281, ALLOW),
    row("exit", 60, 93, ALLOW),
    row("exit_group", 231, 94, ALLOW),
    row("wait4", 61, 260, ALLOW),
    row("waitid", 247, 95, ALLOW),
    row("set_tid_address", 218, 96, ALLOW),
    row("futex", 202, 98, ALLOW),
    new("futex_waitv", 449, ALLOW),
    new("futex_wake", 454, ALLOW),
    new("futex_wait", 455, ALLOW),
    new("futex_requeue", 456, ALLOW),
    row("set_robust_list", 273, 99, ALLOW),
    row("get_robust_list", 274, 100, ALLOW),
    row("rseq", 334, 293, ALLOW),
    row("restart_syscall", 219, 128, ALLOW),
    x86("arch_prctl", 158, ALLOW),
    row("getpid", 39, 172, ALLOW),
    row("getppid", 110, 173, ALLOW),
    row("gettid", 186, 178, ALLOW),
    row("getpgid", 121, 155, ALLOW),
    row("setpgid", 109, 154, ALLOW),
    x86("getpgrp", 111, ALLOW),
    row("getsid", 124, 156, ALLOW),
    row("setsid", 112, 157, ALLOW),
    new("pidfd_open", 434, ALLOW),
    new("pidfd_send_signal", 424, ALLOW),
    new("process_mrelease", 448, ALLOW),
    row("prctl", 157, 167, PRCTL),
    row("personality", 135, 92, PERSONALITY),
    // Signals.
    row("kill", 62, 129, ALLOW),
    row("tkill", 200, 130, ALLOW),
    row("tgkill", 234, 131, ALLOW),
    row("rt_sigqueueinfo", 129, 138, ALLOW),
    row("rt_tgsigqueueinfo", 297, 240, ALLOW),
    row("rt_sigaction", 13, 134, ALLOW),
    row("rt_sigprocmask", 14, 135, ALLOW),
    row("rt_sigpending", 127, 136, ALLOW),
    row("rt_sigsuspend", 130, 133, ALLOW),
    row("rt_sigtimedwait", 128, 137, ALLOW),
    row("rt_sigreturn", 15, 139, ALLOW),
    row("sigaltstack", 131, 132, ALLOW),
    x86("pause", 34, ALLOW),
    // Identity, and giving up rights. None of these gains anything without a capability.
    row("getuid", 102, 174, ALLOW),
    row("geteuid", 107, 175, ALLOW),
    row("getgid", 104, 176, ALLOW),
    row("getegid", 108, 177, ALLOW),
    row("getresuid", 118, 148, ALLOW),
    row("getresgid", 120, 150, ALLOW),
    row("getgroups", 115, 158, ALLOW),
    row("setuid", 105, 146, ALLOW),
    row("setgid", 106, 144, ALLOW),
    row("setreuid", 113, 145, ALLOW),
    row("setregid", 114, 143, ALLOW),
    row("setresuid", 117, 147, ALLOW),
    row("setresgid", 119, 149, ALLOW),
    row("setgroups", 116, 159, ALLOW),
    row("setfsuid", 122, 151, ALLOW),
    row("setfsgid", 123, 152, ALLOW),
    row("capget", 125, 90, ALLOW),
    row("capset", 126, 91, ALLOW),
    row("seccomp", 317, 277, ALLOW),
    new("landlock_create_ruleset", 444, ALLOW),
    new("landlock_add_rule", 445, ALLOW),
    new("landlock_restrict_self", 446, ALLOW),
    // Scheduling and limits. Those that take a process id must not reach the host's processes.
    row("sched_yield", 24, 124, ALLOW),
    row("sched_getaffinity", 204, 123, ALLOW),
    row("sched_getparam", 143, 121, ALLOW),
    row("sched_getscheduler", 145, 120, ALLOW),
    row("sched_getattr", 315, 275, ALLOW),
    row("sched_get_priority_max", 146, 125, ALLOW),
    row("sched_get_priority_min", 147, 126, ALLOW),
    row("sched_rr_get_interval", 148, 127, ALLOW),
    row("getpriority", 140, 141, ALLOW),
    row("ioprio_get", 252, 31, ALLOW),
    row("getcpu", 309, 168, ALLOW),
    row("sched_setaffinity", 203, 122, SELF_BY_PID),
    row("sched_setparam", 142, 118, SELF_BY_PID),
    row("sched_setscheduler", 144, 119, SELF_BY_PID),
    row("sched_setattr", 314, 274, SELF_BY_PID),
    row("prlimit64", 302, 261, SELF_BY_PID),
    row("setpriority", 141, 140, SELF_PRIORITY),
    row("ioprio_set", 251, 30, SELF_IOPRIO),
    row("getrlimit", 97, 163, ALLOW),
    row("setrlimit", 160, 164, ALLOW),
    row("getrusage", 98, 165, ALLOW),
    // Time and the machine.
    x86("time", 201, ALLOW),
    row("gettimeofday", 96, 169, ALLOW),
    row("clock_gettime", 228, 113, ALLOW),
    row("clock_getres", 229, 114, ALLOW),
    row("clock_nanosleep", 230, 115, ALLOW),
    row("nanosleep", 35, 101, ALLOW),
    row("times", 100, 153, ALLOW),
    x86("alarm", 37, ALLOW),
    row("getitimer", 36, 102, ALLOW),
    row("setitimer", 38, 103, ALLOW),
    row("timer_create", 222, 107, ALLOW),
    row("timer_settime", 223, 110, ALLOW),
    row("timer_gettime", 224, 108, ALLOW),
    row("timer_getoverrun", 225, 109, ALLOW),
    row("timer_delete", 226, 111, ALLOW),
    row("timerfd_create", 283, 85, ALLOW),
    row("timerfd_settime", 286, 86, ALLOW),
    row("timerfd_gettime", 287, 87, ALLOW),
    row("uname", 63, 160, ALLOW),
    row("sysinfo", 99, 179, ALLOW),
    row("getrandom", 318, 278, ALLOW),
    // Sockets. Inside a cell there is only a loopback that leads nowhere; without a network namespace there is the host.
    row("socket", 41, 198, SOCKET),
    row("socketpair", 53, 199, SOCKETPAIR),
    row("connect", 42, 203, NAMESPACED),
    row("bind", 49, 200, NAMESPACED),
    row("listen", 50, 201, NAMESPACED),
    row("accept", 43, 202, NAMESPACED),
    row("accept4", 288, 242, NAMESPACED),
    row("sendto", 44, 206, ALLOW),
    row("sendmsg", 46, 211, ALLOW),
    row("sendmmsg", 307, 269, ALLOW),
    row("recvfrom", 45, 207, ALLOW),
    row("recvmsg", 47, 212, ALLOW),
    row("recvmmsg", 299, 243, ALLOW),
    row("shutdown", 48, 210, ALLOW),
    row("getsockname", 51, 204, ALLOW),
    row("getpeername", 52, 205, ALLOW),
    row("getsockopt", 55, 209, ALLOW),
    row("setsockopt", 54, 208, ALLOW),
    // System V and POSIX IPC: named objects of the whole IPC namespace, so only where that namespace is the cell's.
    row("shmget", 29, 194, NAMESPACED),
    row("shmat", 30, 196, NAMESPACED),
    row("shmdt", 67, 197, NAMESPACED),
    row("shmctl", 31, 195, NAMESPACED),
    row("semget", 64, 190, NAMESPACED),
    row("semop", 65, 193, NAMESPACED),
    row("semtimedop", 220, 192, NAMESPACED),
    row("semctl", 66, 191, NAMESPACED),
    row("msgget", 68, 186, NAMESPACED),
    row("msgsnd", 69, 189, NAMESPACED),
    row("msgrcv", 70, 188, NAMESPACED),
    row("msgctl", 71, 187, NAMESPACED),
    row("mq_open", 240, 180, NAMESPACED),
    row("mq_unlink", 241, 181, NAMESPACED),
    row("mq_timedsend", 242, 182, NAMESPACED),
    row("mq_timedreceive", 243, 183, NAMESPACED),
    row("mq_notify", 244, 184, NAMESPACED),
    row("mq_getsetattr", 245, 185, NAMESPACED),
    // Looking into other processes.
    row("ptrace", 101, 117, TRACING),
    row("process_vm_readv", 310, 270, TRACING),
    row("process_vm_writev", 311, 271, TRACING),
    row("kcmp", 312, 272, DENY),
    new("process_madvise", 440, DENY),
    new("pidfd_getfd", 438, DENY),
    // Namespaces and mounts (attacks 11, 12, 17 and 19).
    row("unshare", 272, 97, DENY),
    row("setns", 308, 268, DENY),
    row("mount", 165, 40, DENY),
    row("umount2", 166, 39, DENY),
    row("pivot_root", 155, 41, DENY),
    row("chroot", 161, 51, DENY),
    new("move_mount", 429, DENY),
    new("open_tree", 428, DENY),
    new("open_tree_attr", 467, DENY),
    new("fsopen", 430, DENY),
    new("fsconfig", 431, DENY),
    new("fsmount", 432, DENY),
    new("fspick", 433, DENY),
    new("mount_setattr", 442, DENY),
    new("statmount", 457, DENY),
    new("listmount", 458, DENY),
    // Large kernel interfaces with a long history of holes (15, 22 to 26).
    new("io_uring_setup", 425, ABSENT),
    new("io_uring_enter", 426, ABSENT),
    new("io_uring_register", 427, ABSENT),
    new("memfd_secret", 447, ABSENT),
    row("bpf", 321, 280, DENY),
    row("perf_event_open", 298, 241, DENY),
    row("userfaultfd", 323, 282, DENY),
    row("keyctl", 250, 219, DENY),
    row("add_key", 248, 217, DENY),
    row("request_key", 249, 218, DENY),
    row("open_by_handle_at", 304, 265, DENY),
    row("name_to_handle_at", 303, 264, DENY),
    row("fanotify_init", 300, 262, DENY),
    row("fanotify_mark", 301, 263, DENY),
    row("lookup_dcookie", 212, 18, DENY),
    x86("modify_ldt", 154, DENY),
    // The machine as a whole (30). adjtimex can also just read, but what it sets is behind a pointer.
    row("init_module", 175, 105, DENY),
    row("finit_module", 313, 273, DENY),
    row("delete_module", 176, 106, DENY),
    row("kexec_load", 246, 104, DENY),
    row("kexec_file_load", 320, 294, DENY),
    row("reboot", 169, 142, DENY),
    row("swapon", 167, 224, DENY),
    row("swapoff", 168, 225, DENY),
    row("acct", 163, 89, DENY),
    row("quotactl", 179, 60, DENY),
    new("quotactl_fd", 443, DENY),
    row("nfsservctl", 180, 42, DENY),
    x86("iopl", 172, DENY),
    x86("ioperm", 173, DENY),
    row("settimeofday", 164, 170, DENY),
    row("clock_settime", 227, 112, DENY),
    row("adjtimex", 159, 171, DENY),
    row("clock_adjtime", 305, 266, DENY),
    row("sethostname", 170, 161, DENY),
    row("setdomainname", 171, 162, DENY),
    row("syslog", 103, 116, DENY),
    row("vhangup", 153, 58, DENY),
];

/// All that an unpacker does after it has confined itself. Nothing in it waits for anybody but whoever feeds it: one that was taken over
/// cannot keep the engine waiting without using up its processor time.
pub(crate) const UNPACKER: &[(&str, Rule)] = &[
    ("read", Rule::Always(Verdict::Allow)),
    ("write", Rule::Always(Verdict::Allow)),
    ("writev", Rule::Always(Verdict::Allow)),
    ("close", Rule::Always(Verdict::Allow)),
    ("lseek", Rule::Always(Verdict::Allow)),
    ("openat", Rule::Always(Verdict::Allow)),
    ("openat2", Rule::Always(Verdict::Allow)),
    ("fstat", Rule::Always(Verdict::Allow)),
    ("newfstatat", Rule::Always(Verdict::Allow)),
    ("statx", Rule::Always(Verdict::Allow)),
    ("getdents64", Rule::Always(Verdict::Allow)),
    ("mkdirat", Rule::Always(Verdict::Allow)),
    ("linkat", Rule::Always(Verdict::Allow)),
    ("symlinkat", Rule::Always(Verdict::Allow)),
    ("unlinkat", Rule::Always(Verdict::Allow)),
    ("utimensat", Rule::Always(Verdict::Allow)),
    // Memory for data.
    ("mmap", Rule::Unless(&[none_of(2, PROT_EXEC, &[0], Verdict::DENIED)])),
    ("munmap", Rule::Always(Verdict::Allow)),
    ("mremap", Rule::Always(Verdict::Allow)),
    ("madvise", Rule::Always(Verdict::Allow)),
    ("brk", Rule::Always(Verdict::Allow)),
    // What a runtime does on its way out.
    ("rt_sigaction", Rule::Always(Verdict::Allow)),
    ("rt_sigprocmask", Rule::Always(Verdict::Allow)),
    ("rt_sigreturn", Rule::Always(Verdict::Allow)),
    ("restart_syscall", Rule::Always(Verdict::Allow)),
    ("sigaltstack", Rule::Always(Verdict::Allow)),
    ("exit", Rule::Always(Verdict::Allow)),
    ("exit_group", Rule::Always(Verdict::Allow)),
];
const PROT_EXEC: u32 = 4;

const fn row(name: &'static str, x86_64: u32, aarch64: u32, policy: Policy) -> Row {
    Row { name, x86_64: Some(x86_64), aarch64: Some(aarch64), policy }
}

/// A call that newer architectures have only in its `*at` or otherwise general form.
const fn x86(name: &'static str, x86_64: u32, policy: Policy) -> Row {
    Row { name, x86_64: Some(x86_64), aarch64: None, policy }
}

/// A call from after the numbers were unified.
const fn new(name: &'static str, number: u32, policy: Policy) -> Row {
    row(name, number, number, policy)
}

const fn unless(clauses: &'static [Clause]) -> Policy {
    Policy::Same(Rule::Unless(clauses))
}

/// Allowed, but for a payload that shares its user.
const fn shared(rule: Rule) -> Policy {
    Policy::ByIds { own: Rule::Always(Verdict::Allow), shared: rule }
}

const fn any_of(argument: u8, values: &'static [u32], verdict: Verdict) -> Clause {
    Clause { argument, half: Half::Low, mask: u32::MAX, when: Match::AnyOf, values, verdict }
}

const fn none_of(argument: u8, mask: u32, values: &'static [u32], verdict: Verdict) -> Clause {
    Clause { argument, half: Half::Low, mask, when: Match::NoneOf, values, verdict }
}
