//! The system calls that `rustix` does not offer, each as thin as possible.
#![allow(unsafe_code, reason = "raw system calls of the privileged path live here")]

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::{size_of, zeroed};
use core::ptr::null;
use core::time::Duration;

use casemate_bare::call::call;
use casemate_bare::io;
use casemate_bare::process::{Disposition, dispose};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

use crate::recipe::Procfs;

pub(crate) use casemate_bare::exit_now;
pub(crate) use casemate_bare::process::{
    child_events, drain_events, install_filter, kill, prctl, unblock_signals,
};

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
    let mut args: libc::clone_args = unsafe { zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of this single-threaded process, as after fork(2);
    // `args` outlives the call and its size is passed along.
    match unsafe { call(libc::SYS_clone3, [&raw mut args as usize, size_of::<libc::clone_args>()]) }? {
        0 => Ok(Cloned::Child),
        // SAFETY: the kernel has just stored a new descriptor that nothing else owns.
        pid => Ok(Cloned::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: changes namespaces of this single-threaded process only; no memory is involved.
    unsafe { call(libc::SYS_unshare, [flags as usize]) }?;
    Ok(())
}

/// The namespaces besides mounts that this process shares with whoever started it.
pub(crate) struct Shared([(OwnedFd, libc::c_int); 3]);

impl Shared {
    pub(crate) fn own() -> io::Result<Shared> {
        Ok(Shared([
            (own_namespace("/proc/self/ns/net")?, libc::CLONE_NEWNET),
            (own_namespace("/proc/self/ns/ipc")?, libc::CLONE_NEWIPC),
            (own_namespace("/proc/self/ns/uts")?, libc::CLONE_NEWUTS),
        ]))
    }

    pub(crate) fn enter(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|(namespace, kind)| enter(namespace.as_fd(), *kind))
    }
}

/// The mount namespace that this process is in.
pub(crate) fn own_mounts() -> io::Result<OwnedFd> {
    own_namespace("/proc/self/ns/mnt")
}

fn own_namespace(path: &str) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Root and working directory become the namespace's root.
pub(crate) fn enter_mounts(namespace: BorrowedFd<'_>) -> io::Result<()> {
    enter(namespace, libc::CLONE_NEWNS)
}

fn enter(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: integers only; changes a namespace of this single-threaded process.
    unsafe { call(libc::SYS_setns, [namespace.as_raw_fd() as usize, kind as usize]) }?;
    Ok(())
}

/// Mounts a procfs of this process's PID namespace.
pub(crate) fn mount_proc(place: &str, procfs: Procfs, options: &[(&str, &str)]) -> io::Result<()> {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string,
        fsmount, fsopen, move_mount,
    };
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    let read_only = match procfs {
        Procfs::ReadOnly => MountAttrFlags::MOUNT_ATTR_RDONLY,
        Procfs::Plain => MountAttrFlags::empty(),
    };
    let attributes = read_only
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    #[cfg(feature = "weaken")]
    let attributes = match crate::weaken::without("read-only") {
        true => attributes - MountAttrFlags::MOUNT_ATTR_RDONLY,
        false => attributes,
    };
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(move_mount(&mount, "", rustix::fs::CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Mounts the tree of groups as this process's namespace shows it.
pub(crate) fn mount_groups() -> io::Result<()> {
    use rustix::mount::{MountFlags, mount};
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("cgroup2", "/sys/fs/cgroup", "cgroup2", flags, None::<&CStr>)?)
}

/// Forks this single-threaded process. `None` in the child.
pub(crate) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the process has one thread, so the child's copy of it is consistent; without CLONE_VM it is a copy.
    match unsafe { call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0]) }? {
        0 => Ok(None),
        pid => Ok(Some(pid as i32)),
    }
}

/// Executes what is behind the descriptor `program`. Returns only if that fails.
pub(crate) fn execute_with_stderr(
    program: RawFd,
    argv: &[CString],
    env: &[CString],
    stderr: BorrowedFd<'_>,
) -> io::Error {
    if let Err(error) = move_fd(stderr.as_raw_fd(), 2) {
        return error;
    }
    let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
        words.iter().map(|word| word.as_ptr()).chain([null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    let (path, argv, env) = (c"".as_ptr() as usize, argv.as_ptr() as usize, env.as_ptr() as usize);
    let arguments = [program as usize, path, argv, env, libc::AT_EMPTY_PATH as usize];
    // SAFETY: null-terminated arrays of NUL-terminated strings that live until the call.
    match unsafe { call(libc::SYS_execveat, arguments) } {
        Err(error) => error.into(),
        Ok(_) => io::Error::other("exec returned"),
    }
}

/// Closes every descriptor, and gives up every capability for good.
pub(crate) fn let_go_of_everything() -> io::Result<()> {
    close_range(0, i32::MAX as usize)?;
    clear_ambient_capabilities()?;
    set_capabilities(0)
}

/// Waits until a child has ended; without children, until somebody's child has become one.
pub(crate) fn reap_one() {
    // SAFETY: no status is asked for.
    let reaped = unsafe { call(libc::SYS_wait4, [usize::MAX, 0, libc::__WALL as usize, 0]) };
    if reaped.is_err() {
        sleep(Duration::from_millis(100));
    }
}

/// Waits for one child, and returns what is left of its status: zero if all went well.
pub(crate) fn wait_for(pid: i32) -> io::Result<i32> {
    let mut status: libc::c_int = 0;
    // SAFETY: the kernel stores one int.
    unsafe { call(libc::SYS_wait4, [pid as usize, &raw mut status as usize, libc::__WALL as usize, 0]) }?;
    Ok(status)
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
    unsafe {
        call(
            libc::SYS_mount_setattr,
            [
                dir.as_raw_fd() as usize,
                path.as_ptr() as usize,
                flags as usize,
                &raw const attr as usize,
                size_of::<libc::mount_attr>(),
            ],
        )
    }?;
    Ok(())
}

pub(crate) fn pivot_root_here() -> io::Result<()> {
    // SAFETY: both arguments are static NUL-terminated strings.
    unsafe { call(libc::SYS_pivot_root, [c".".as_ptr() as usize, c".".as_ptr() as usize]) }?;
    Ok(())
}

/// Leaves every supplementary group, then sets real, effective and saved ids.
pub(crate) fn become_id(id: u32) -> io::Result<()> {
    let id = id as usize;
    // SAFETY: plain integers; the raw calls act on this single-threaded process only.
    unsafe {
        call(libc::SYS_setgroups, [0, 0])?;
        call(libc::SYS_setresgid, [id, id, id])?;
        call(libc::SYS_setresuid, [id, id, id])?;
    }
    Ok(())
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
            Ok(_) => {}
            // The first number that this kernel does not know.
            Err(error) if error.errno() == Some(Errno::INVAL) && capability > 30 => break,
            Err(error) => return Err(error),
        }
    }
    set_capabilities(permitted)
}

pub(crate) fn clear_ambient_capabilities() -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as usize).map(drop)
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
    unsafe { call(libc::SYS_capset, [&raw const header as usize, data.as_ptr() as usize]) }?;
    Ok(())
}

pub(crate) fn join_new_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: usize = 1;
    // SAFETY: a null name asks for a new anonymous keyring.
    unsafe { call(libc::SYS_keyctl, [JOIN_SESSION_KEYRING, 0]) }?;
    Ok(())
}

pub(crate) fn set_rlimit(resource: u32, value: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` outlives the call.
    unsafe { call(libc::SYS_prlimit64, [0, resource as usize, &raw const limit as usize, 0]) }?;
    Ok(())
}

/// Brings up `lo` in the current network namespace.
pub(crate) fn raise_loopback() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all-zero is a valid `ifreq`; the name "lo" and the flags are set before use, and it outlives the call.
    unsafe {
        let mut request: libc::ifreq = zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let arguments = [socket.as_raw_fd() as usize, libc::SIOCSIFFLAGS as usize, &raw mut request as usize];
        call(libc::SYS_ioctl, arguments)?;
    }
    Ok(())
}

/// Puts `source` at number `target`, inheritable.
pub(crate) fn move_fd(source: RawFd, target: RawFd) -> io::Result<()> {
    // SAFETY: the caller owns both numbers; nothing else in this process uses them any more.
    unsafe {
        if source == target {
            call(libc::SYS_fcntl, [target as usize, libc::F_SETFD as usize, 0])?;
        } else {
            call(libc::SYS_dup3, [source as usize, target as usize, 0])?;
        }
    }
    Ok(())
}

/// Closes the descriptors from `first` to `last`, if there are any.
///
/// For a child that never returns: whatever its copy of the launcher's memory believes to own is gone.
pub(crate) fn close_range(first: usize, last: usize) -> io::Result<()> {
    if first <= last {
        // SAFETY: the caller gives up all of them; nothing of this process is dropped any more, so nothing is closed twice.
        unsafe { call(libc::SYS_close_range, [first, last, 0]) }?;
    }
    Ok(())
}

/// Closes every descriptor from `first` on, and takes over 4 and 5, which were put there just before.
///
/// For a child that never returns: whatever its copy of the launcher's memory believes to own is gone.
pub(crate) fn close_all_from(first: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    close_range(first, i32::MAX as usize)?;
    // SAFETY: both are open and owned by nothing else, see above.
    let (four, five) = unsafe { (OwnedFd::from_raw_fd(4), OwnedFd::from_raw_fd(5)) };
    for file in [&four, &five] {
        rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok((four, five))
}

/// Does nothing for a while.
pub(crate) fn sleep(duration: Duration) {
    use rustix::event::{Timespec, poll};
    let timeout = Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() };
    // Woken early by a signal, it is over early.
    let _ = poll(&mut [], Some(&timeout));
}

/// Ignored signals are inherited through exec, too: what a background job or `nohup` ignores must reach neither this process's
/// wait for children nor a payload.
pub(crate) fn default_dispositions() {
    for signal in 1..=64 {
        // KILL and STOP have no other.
        let _ = dispose(signal, Disposition::Default);
    }
    // Writing to nobody is an error, not the end. The guest gives this one back to what it starts.
    let _ = dispose(libc::SIGPIPE, Disposition::Ignore);
}

/// One child that ended, if any. `__WALL` also takes traced threads, which a plain wait would leave for ever.
pub(crate) fn reap() -> Option<i32> {
    let flags = (libc::WNOHANG | libc::__WALL) as usize;
    // SAFETY: no status is asked for.
    let pid = unsafe { call(libc::SYS_wait4, [usize::MAX, 0, flags, 0]) }.unwrap_or(0) as i32;
    (pid > 0).then_some(pid)
}

/// Whether there are children that have not been reaped, dead or alive.
pub(crate) fn has_children() -> bool {
    let (flags, no_wait) = ((libc::WNOHANG | libc::__WALL | libc::WEXITED) as usize, libc::WNOWAIT as usize);
    // SAFETY: no information is asked for.
    let found = unsafe { call(libc::SYS_waitid, [libc::P_ALL as usize, 0, 0, flags | no_wait, 0]) };
    found != Err(Errno::CHILD)
}

pub(crate) fn kill_by_pidfd(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let arguments = [pidfd.as_raw_fd() as usize, libc::SIGKILL as usize, 0, 0];
    // SAFETY: integers and a null siginfo.
    unsafe { call(libc::SYS_pidfd_send_signal, arguments) }?;
    Ok(())
}

/// Whether the process is dead, reaped or not, or will be soon.
pub(crate) fn ends_within(pidfd: BorrowedFd<'_>, patience: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let patience = Timespec { tv_sec: 0, tv_nsec: patience.subsec_nanos().into() };
    poll(&mut polled, Some(&patience)).is_ok_and(|ready| ready > 0)
}

/// As many descriptors as this process may ask for.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If that is not to be, there are as many as there were.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Whether this kernel takes seccomp filters.
pub(crate) fn seccomp_available() -> bool {
    const GET_ACTION_AVAIL: usize = 2;
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the call reads one u32.
    unsafe { call(libc::SYS_seccomp, [GET_ACTION_AVAIL, 0, &raw const action as usize]) }.is_ok()
}

/// The control socket, which the engine makes our standard input.
pub(crate) fn inherited_control() -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only reads the number; it fails if the descriptor is not open.
    unsafe { call(libc::SYS_fcntl, [0, libc::F_GETFD as usize]) }?;
    // SAFETY: it is open (checked just now) and nothing else in this new process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(0) })
}
