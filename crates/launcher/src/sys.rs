//! The system calls that `rustix` does not offer, each as thin as possible.
#![allow(unsafe_code, reason = "raw system calls of the privileged path live here")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// `libc` has it as an integer that is too narrow.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Result of [`clone3`] on the two sides of it.
pub(crate) enum Cloned {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// Forks into new namespaces (`flags`), and straight into the cgroup (v2) behind `cgroup` if there is one.
pub(crate) fn clone3(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    // SAFETY: `clone_args` is plain integers; all-zero is its documented neutral value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of this single-threaded process, as after fork(2);
    // `args` outlives the call and its size is passed along.
    match check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) })? {
        0 => Ok(Cloned::Child),
        // SAFETY: the kernel has just stored a new descriptor that nothing else owns.
        pid => Ok(Cloned::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: changes namespaces of this single-threaded process only; no memory is involved.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Applies mount attributes to `path` (with everything below it if `recursive`).
pub(crate) fn mount_setattr(
    dir: BorrowedFd<'_>,
    path: &CStr,
    recursive: bool,
    set: u64,
    clear: u64,
) -> io::Result<()> {
    let attr = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    let mut flags = libc::AT_SYMLINK_NOFOLLOW;
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH;
    }
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: `path` is NUL-terminated and `attr` outlives the call; its size is passed along.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dir.as_raw_fd(),
            path.as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result).map(drop)
}

pub(crate) fn pivot_root_here() -> io::Result<()> {
    // SAFETY: both arguments are static NUL-terminated strings.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }).map(drop)
}

/// Leaves every supplementary group, then sets real, effective and saved ids.
pub(crate) fn become_id(id: u32) -> io::Result<()> {
    // SAFETY: plain integers; the raw calls act on this single-threaded process only.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        check(libc::syscall(libc::SYS_setresgid, id, id, id))?;
        check(libc::syscall(libc::SYS_setresuid, id, id, id))?;
    }
    Ok(())
}

pub(crate) fn prctl(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: only options that take integers are passed by the callers in this crate.
    check(unsafe { libc::prctl(option, value, 0, 0, 0) }.into()).map(drop)
}

/// Every capability outside `bounding` leaves the bounding set for good, all leave the ambient set, and `permitted`
/// is what this process keeps for itself.
pub(crate) fn keep_capabilities(bounding: u64, permitted: u64) -> io::Result<()> {
    clear_ambient_capabilities()?;
    for capability in 0..64 {
        if bounding & (1 << capability) != 0 {
            continue;
        }
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Ok(()) => {}
            // The first number that this kernel does not know.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && capability > 30 => break,
            Err(error) => return Err(error),
        }
    }
    set_capabilities(permitted)
}

pub(crate) fn clear_ambient_capabilities() -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) }.into())
        .map(drop)
}

/// Permitted and effective become `set`, inheritable becomes empty.
fn set_capabilities(set: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let half = |bits: u64| Data { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    let data = [half(set), half(set >> 32)];
    // SAFETY: header and data have the layout of version 3 of capset(2) and outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from `filter`, which outlives the call.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
        .map(drop)
}

pub(crate) fn join_new_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null name asks for a new anonymous keyring.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0) }).map(drop)
}

pub(crate) fn set_rlimit(resource: libc::__rlimit_resource_t, value: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` outlives the call.
    check(unsafe { libc::setrlimit(resource, &raw const limit) }.into()).map(drop)
}

/// Brings up `lo` in the current network namespace.
pub(crate) fn raise_loopback() -> io::Result<()> {
    // SAFETY: socket(2) takes integers; the new descriptor is owned by nothing else.
    let socket = unsafe {
        let fd = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).into())?;
        OwnedFd::from_raw_fd(fd as RawFd)
    };
    // SAFETY: all-zero is a valid `ifreq`; the name "lo" and the flags are set before use, and it outlives the call.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request).into()).map(drop)
    }
}

/// Puts `source` at number `target`, inheritable.
pub(crate) fn move_fd(source: RawFd, target: RawFd) -> io::Result<()> {
    // SAFETY: the caller owns both numbers; nothing else in this process uses them any more.
    unsafe {
        if source == target {
            check(libc::fcntl(target, libc::F_SETFD, 0).into())?;
        } else {
            check(libc::dup3(source, target, 0).into())?;
        }
    }
    Ok(())
}

/// Closes every descriptor from 6 on, and takes over 4 and 5, which were put there just before.
///
/// For a child that never returns: whatever its copy of the launcher's memory believes to own is gone.
pub(crate) fn close_from_six() -> io::Result<(File, File)> {
    // SAFETY: the caller gives up all of them; nothing of this process is dropped any more, so nothing is closed twice.
    check(unsafe { libc::syscall(libc::SYS_close_range, 6, u32::MAX, 0) })?;
    // SAFETY: both are open and owned by nothing else, see above.
    let (four, five) = unsafe { (File::from_raw_fd(4), File::from_raw_fd(5)) };
    for file in [&four, &five] {
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok((four, five))
}

/// Ends a child without running destructors or buffers that belong to the parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns.
    unsafe { libc::_exit(code) }
}

/// Blocks SIGCHLD and returns a descriptor that becomes readable when children change state.
pub(crate) fn child_events() -> io::Result<OwnedFd> {
    // SAFETY: the signal set is initialised by sigemptyset before use; the new descriptor has no other owner.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Ignored signals are inherited through exec, too: what a background job or `nohup` ignores must reach neither this process's
/// wait for children nor a payload. SIGPIPE stays as Rust has set it; the guest gives it back to what it starts.
pub(crate) fn default_dispositions() {
    for signal in (1..=64).filter(|&signal| signal != libc::SIGPIPE) {
        // SAFETY: SIG_DFL is a valid disposition; for KILL, STOP and those the C library keeps, the call fails.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// The signal mask is inherited through exec: a child starts with none blocked.
pub(crate) fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by sigemptyset.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()).into()).map(drop)
    }
}

/// One child that ended, if any. `__WALL` also takes traced threads, which a plain wait would leave for ever.
pub(crate) fn reap() -> Option<i32> {
    // SAFETY: no status is asked for.
    let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
    (pid > 0).then_some(pid)
}

pub(crate) fn kill_by_pidfd(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: integers and a null siginfo.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<u8>(),
            0,
        )
    };
    check(result).map(drop)
}

/// Whether the process is dead, reaped or not.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// The Landlock ABI of this kernel, 0 where there is none.
pub(crate) fn landlock_abi() -> u32 {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with a null attribute and this flag the call only returns a number.
    let abi =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION) };
    u32::try_from(abi).unwrap_or(0)
}

/// Whether this kernel takes seccomp filters.
pub(crate) fn seccomp_available() -> bool {
    const SECCOMP_GET_ACTION_AVAIL: u32 = 2;
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the call reads one u32.
    unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) == 0 }
}

/// A file of procfs or cgroupfs as text. `std` asks such files for their size, seeks, and reads in small steps.
pub(crate) fn read_text(path: &str) -> io::Result<String> {
    read_text_at(rustix::fs::CWD, path)
}

pub(crate) fn read_text_at(dir: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    use rustix::fs::{Mode, OFlags, openat};
    let fd = openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let (mut bytes, mut length) = (vec![0; 8192], 0);
    loop {
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
        match rustix::io::read(&fd, &mut bytes[length..])? {
            0 => break,
            n => length += n,
        }
    }
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// The control socket, which the engine makes our standard input.
pub(crate) fn inherited_control() -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only reads the number; it fails if the descriptor is not open.
    check(unsafe { libc::fcntl(0, libc::F_GETFD) }.into())?;
    // SAFETY: it is open (checked just now) and nothing else in this new process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(0) })
}

/// Empties the descriptor of [`child_events`].
pub(crate) fn drain_events(events: BorrowedFd<'_>) {
    let mut buffer = [0u8; 1024];
    while rustix::io::read(events, &mut buffer).is_ok_and(|n| n > 0) {}
}
