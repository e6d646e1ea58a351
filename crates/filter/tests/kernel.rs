//! The programs in the real kernel: refused calls are refused, and would not have been without the filter.

#![allow(unsafe_code, reason = "raw system calls are what is being tested")]

mod child;

use casemate_filter::Program;
use child::{CELL, CELL_TRACING, Ending, PROCESS, ROOTLESS, errno_of, in_child};
use libc::{EAFNOSUPPORT, EFAULT, ENOSYS, EPERM, EPROTONOSUPPORT, c_long};

const ALL: [&[Program]; 9] = [
    &[Program::Guest],
    &[CELL],
    &[CELL_TRACING],
    &[PROCESS],
    &[Program::Guest, CELL],
    &[Program::Guest, CELL_TRACING],
    &[Program::Guest, PROCESS],
    &[ROOTLESS],
    &[Program::Guest, ROOTLESS],
];

/// A pointer that is never mapped.
const BAD: u64 = 1;
/// Set where the kernel does not look.
const HIGH: u64 = 1 << 32;

fn call(filters: &[Program], number: c_long, arguments: [u64; 6]) -> Ending {
    in_child(filters, || errno_of(number, arguments))
}

/// Refused under every program in `under`, and answered differently by the bare kernel.
fn refused(under: &[&[Program]], errno: i32, name: &str, number: c_long, arguments: [u64; 6]) {
    assert_ne!(call(&[], number, arguments), Ending::Exited(errno), "control: {name} without a filter");
    for filters in under {
        assert_eq!(call(filters, number, arguments), Ending::Exited(errno), "{name} under {filters:?}");
    }
}

macro_rules! refused {
    ($under:expr, $errno:expr; $($name:ident($($argument:expr),*);)*) => {
        $({
            let mut arguments = [0u64; 6];
            let given: &[u64] = &[$($argument),*];
            arguments[..given.len()].copy_from_slice(given);
            refused($under, $errno, stringify!($name), libc::$name, arguments);
        })*
    };
}

#[test]
fn namespaces_other_processes_and_keys_are_refused() {
    refused! { &ALL, EPERM;
        SYS_unshare(0);
        SYS_unshare(libc::CLONE_NEWUSER as u64);
        SYS_setns(u64::MAX, 0);
        SYS_clone(libc::CLONE_NEWUSER as u64 | libc::CLONE_THREAD as u64);
        SYS_clone(libc::CLONE_NEWNS as u64 | libc::CLONE_THREAD as u64 | HIGH);
        SYS_kcmp(u64::MAX, u64::MAX, 0, 0, 0);
        SYS_process_madvise(u64::MAX, 0, 0, 0, 0);
        SYS_pidfd_getfd(u64::MAX, 0, 0);
        SYS_keyctl(0, u64::MAX, 0, 0, 0);
        SYS_add_key(BAD, BAD, 0, 0, 0);
        SYS_request_key(BAD, BAD, 0, 0);
        SYS_perf_event_open(BAD, 0, 0, 0, 0);
        SYS_name_to_handle_at(u64::MAX, BAD, BAD, BAD, 0);
        SYS_fanotify_init(u64::MAX, u64::MAX);
        SYS_open_tree(u64::MAX, BAD, 0);
        SYS_prctl(35 | HIGH, 15, BAD, 0, 0);
        SYS_personality(0x0400_0000);
        SYS_quotactl(u64::MAX, 0, 0, 0);
        SYS_syslog(999);
    }
}

/// For these the bare kernel says EPERM as well unless the caller is root, so there is a control only for root.
#[test]
fn what_needs_root_is_refused_to_root_too() {
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        panic!("this test needs root: without it the controls prove nothing");
    }
    refused! { &ALL, EPERM;
        SYS_mount(BAD, BAD, BAD, 0, 0);
        SYS_umount2(BAD, u32::MAX.into());
        SYS_pivot_root(BAD, BAD);
        SYS_chroot(BAD);
        SYS_move_mount(u64::MAX, BAD, u64::MAX, BAD, 0);
        SYS_fsopen(BAD, 0);
        SYS_fsconfig(u64::MAX, 0, 0, 0, 0);
        SYS_fsmount(u64::MAX, 0, 0);
        SYS_fspick(u64::MAX, BAD, 0);
        SYS_mount_setattr(u64::MAX, BAD, 0, BAD, 32);
        SYS_bpf(u64::MAX, 0, 0);
        SYS_userfaultfd(u64::MAX);
        SYS_open_by_handle_at(u64::MAX, BAD, 0);
        SYS_delete_module(BAD, 0);
        SYS_kexec_load(0, 0, 0, u64::MAX);
        SYS_reboot(0, 0, 0, 0);
        SYS_swapon(BAD, 0);
        SYS_swapoff(BAD);
        SYS_acct(BAD);
        SYS_sethostname(BAD, u64::MAX);
        SYS_setdomainname(BAD, u64::MAX);
        SYS_settimeofday(BAD, 0);
        SYS_clock_settime(u64::MAX, BAD);
        SYS_adjtimex(BAD);
    }
    // Null devices: char 1:3 into an unreachable path, so the control fails on the path, not on the type.
    refused! { &ALL, EPERM;
        SYS_mknodat(u64::MAX, BAD, (libc::S_IFCHR | 0o600).into(), 0x103);
        SYS_mknodat(u64::MAX, BAD, (libc::S_IFBLK | 0o600).into(), 0x103);
        SYS_mknodat(u64::MAX, BAD, u64::from(libc::S_IFCHR) | HIGH, 0);
        SYS_renameat2(u64::MAX, BAD, u64::MAX, BAD, libc::RENAME_WHITEOUT.into());
    }
    for filters in ALL {
        let fifo = [u64::MAX, BAD, (libc::S_IFIFO | 0o600).into(), 0, 0, 0];
        assert_eq!(call(filters, libc::SYS_mknodat, fifo), Ending::Exited(EFAULT));
    }
}

#[test]
fn what_has_a_fallback_looks_absent() {
    refused! { &ALL, ENOSYS;
        SYS_clone3(0, 0);
        SYS_io_uring_setup(0, 0);
        SYS_io_uring_enter(u64::MAX, 0, 0, 0, 0);
        SYS_io_uring_register(u64::MAX, 0, 0, 0);
        SYS_mbind(BAD, 0, 0, 0, 0, 0);
    }
}

#[test]
fn typing_into_the_terminal_is_refused_with_any_high_bits() {
    for request in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSETD] {
        for high in [0, HIGH, 0xffff_ffff << 32] {
            refused! { &ALL, EPERM; SYS_ioctl(u64::MAX, u64::from(request as u32) | high, 0); }
        }
    }
    for filters in ALL {
        let size = [u64::MAX, libc::TIOCGWINSZ, 0, 0, 0, 0];
        assert_eq!(call(filters, libc::SYS_ioctl, size), Ending::Exited(libc::EBADF), "other requests pass");
    }
}

#[test]
fn only_common_sockets_exist_in_a_cell() {
    let cells: [&[Program]; 3] = [&[Program::Guest], &[CELL], &[Program::Guest, CELL]];
    for filters in cells {
        for family in [
            libc::AF_ALG,
            libc::AF_VSOCK,
            libc::AF_PACKET,
            libc::AF_NETLINK,
            libc::AF_BLUETOOTH,
            libc::AF_CAN,
        ] {
            for high in [0, HIGH] {
                let arguments = [family as u64 | high, libc::SOCK_RAW as u64, 0, 0, 0, 0];
                assert_eq!(
                    call(filters, libc::SYS_socket, arguments),
                    Ending::Exited(EAFNOSUPPORT),
                    "{family}"
                );
            }
        }
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
                let arguments = [family as u64, kind as u64, 0, 0, 0, 0];
                assert_eq!(call(filters, libc::SYS_socket, arguments), Ending::Exited(0), "{family} {kind}");
            }
        }
    }
    // A control for what every kernel has.
    refused! { &cells, EAFNOSUPPORT; SYS_socket(libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, 0); }
    refused! { &cells, EPERM; SYS_socket(libc::AF_INET as u64, libc::SOCK_RAW as u64, 1); }
    let sctp = [libc::AF_INET as u64, libc::SOCK_STREAM as u64, libc::IPPROTO_SCTP as u64, 0, 0, 0];
    assert_eq!(call(&[CELL], libc::SYS_socket, sctp), Ending::Exited(EPROTONOSUPPORT));
}

#[test]
fn without_namespaces_nothing_of_the_host_can_be_addressed() {
    let walls: [&[Program]; 3] = [&[PROCESS], &[ROOTLESS], &[Program::Guest, PROCESS]];
    let parent = u64::from(std::process::id());
    refused! { &walls, EPERM;
        SYS_socket(libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0);
        SYS_socket(libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0);
        SYS_socket(libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, 0);
        SYS_connect(u64::MAX, 0, 0);
        SYS_shmget(0, u64::MAX, 0);
        SYS_mq_open(BAD, 0, 0, 0);
        SYS_prlimit64(parent, libc::RLIMIT_CORE.into(), 0, 0);
        SYS_sched_setaffinity(parent, 0, BAD);
        SYS_setpriority(libc::PRIO_USER as u64, 0, 0);
        SYS_ioprio_set(1, parent, 0);
    }
    for filters in walls {
        let own_limit = [0, libc::RLIMIT_CORE.into(), 0, 0, 0, 0];
        assert_eq!(call(filters, libc::SYS_prlimit64, own_limit), Ending::Exited(0));
        let own_priority = [libc::PRIO_PROCESS as u64, 0, 19, 0, 0, 0];
        assert_eq!(call(filters, libc::SYS_setpriority, own_priority), Ending::Exited(0));
    }
}

/// The reason why a datagram pair counts as a socket: it can write to a name it was never connected to.
#[test]
fn a_socket_pair_does_not_reach_a_socket_of_the_host() {
    let directory = std::env::temp_dir().join(format!("casemate-filter-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("host.sock");
    let host = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_encoded_bytes()) {
        *to = *from as libc::c_char;
    }
    let send = |kind: i32| {
        let mut pair = [0i32; 2];
        match errno_of(
            libc::SYS_socketpair,
            [libc::AF_UNIX as u64, kind as u64, 0, pair.as_mut_ptr() as u64, 0, 0],
        ) {
            0 => {}
            errno => return errno,
        }
        let size = size_of_val(&address) as u64;
        let text = b"hello".as_ptr() as u64;
        errno_of(libc::SYS_sendto, [pair[0] as u64, text, 5, 0, &raw const address as u64, size])
    };
    assert_eq!(in_child(&[], || send(libc::SOCK_DGRAM)), Ending::Exited(0), "control: it does get through");
    assert_eq!(in_child(&[PROCESS], || send(libc::SOCK_DGRAM)), Ending::Exited(EPERM));
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
        // Either refused, or the name is ignored and the bytes go to the other end.
        in_child(&[PROCESS], || send(kind | libc::SOCK_CLOEXEC));
    }
    host.set_nonblocking(true).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(host.recv(&mut buffer).unwrap(), 5, "the control's message");
    assert!(host.recv(&mut buffer).is_err(), "and no other");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn tracing_is_for_those_who_were_granted_it() {
    let denied: [&[Program]; 3] = [&[CELL], &[PROCESS], &[Program::Guest, CELL]];
    refused! { &denied, EPERM;
        SYS_ptrace(libc::PTRACE_TRACEME as u64, 0, 0, 0);
        SYS_process_vm_readv(u64::MAX, 0, 0, 0, 0, 0);
        SYS_process_vm_writev(u64::MAX, 0, 0, 0, 0, 0);
    }
    for filters in [&[CELL_TRACING][..], &[Program::Guest, CELL_TRACING]] {
        let traceme = [libc::PTRACE_TRACEME as u64, 0, 0, 0, 0, 0];
        assert_eq!(call(filters, libc::SYS_ptrace, traceme), Ending::Exited(0));
    }
}

#[test]
fn a_further_filter_cannot_take_back_a_refusal() {
    for filters in ALL {
        let ending = in_child(filters, || {
            let allow = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
            let program = libc::sock_fprog { len: 1, filter: (&raw const allow).cast_mut() };
            let own = [libc::SECCOMP_SET_MODE_FILTER.into(), 0, &raw const program as u64, 0, 0, 0];
            assert_zero(errno_of(libc::SYS_seccomp, own));
            errno_of(libc::SYS_unshare, [0; 6])
        });
        assert_eq!(ending, Ending::Exited(EPERM));
    }
}

/// Without a panic, which would allocate in the child.
fn assert_zero(errno: i32) {
    if errno != 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(254) };
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn other_abis_are_killed() {
    let x32 = |number: u64| move || errno_of((0x4000_0000 | number) as c_long, [0; 6]);
    assert!(matches!(in_child(&[], x32(39)), Ending::Exited(0 | ENOSYS)), "control: x32 getpid");
    assert_eq!(in_child(&[], compat_getpid), Ending::Exited(0), "control: int 0x80 works on this kernel");
    for filters in ALL {
        for number in [0, 39, 272, 512, 1000] {
            assert_eq!(in_child(filters, x32(number)), Ending::Signaled(libc::SIGSYS), "x32 {number}");
        }
        assert_eq!(in_child(filters, compat_getpid), Ending::Signaled(libc::SIGSYS), "int 0x80");
        assert_eq!(call(filters, -1, [0; 6]), Ending::Exited(ENOSYS), "-1 is not x32");
    }
}

/// getpid through the 32-bit gate; 0 if it answers with our pid.
#[cfg(target_arch = "x86_64")]
fn compat_getpid() -> i32 {
    let pid: u64;
    // SAFETY: getpid (20 to the 32-bit ABI) touches no memory; the gate may clobber r8 to r11.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") 20u64 => pid,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    // SAFETY: reads an id.
    i32::from(pid != unsafe { libc::getpid() } as u64)
}
