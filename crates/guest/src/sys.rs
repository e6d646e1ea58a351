//! The system calls that `rustix` does not offer, each as thin as possible.
#![allow(unsafe_code, reason = "raw system calls of the guest live here")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use casemate_wire::guest::{ProcessUsage, WaitStatus};

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The channel to the engine, which the launcher puts at 3.
pub(crate) fn inherited_channel() -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD only reads the number; it fails if the descriptor is not open.
    check(unsafe { libc::fcntl(3, libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
    // SAFETY: it is open (checked just now) and nothing else in this new process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(3) })
}

/// Forks this single-threaded process. `None` in the child, which goes first if both are on the same processor: somebody
/// waits for it, and nobody for us.
pub(crate) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the process has one thread, so the child's copy of it is consistent.
    let pid = check(unsafe { libc::fork() }.into())?;
    if pid == 0 {
        return Ok(None);
    }
    std::thread::yield_now();
    Ok(Some(pid as i32))
}

pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: never returns.
    unsafe { libc::_exit(code) }
}

pub(crate) fn prctl(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: only options that take integers are passed by the callers in this crate.
    check(unsafe { libc::prctl(option, value, 0, 0, 0) }.into()).map(drop)
}

/// File operations are checked as the payload's from here on; capabilities for other things stay.
pub(crate) fn access_files_as(id: u32) {
    // SAFETY: integers only. The calls report the previous id, not success.
    unsafe {
        libc::setfsgid(id);
        libc::setfsuid(id);
    }
}

/// Drops the bounding set, all groups and ids to `id`; a change away from root clears every capability.
pub(crate) fn become_payload(id: u32) -> io::Result<()> {
    for capability in 0..64 {
        // Most are gone already. To ask costs little; to drop makes new credentials each time.
        // SAFETY: integers only.
        match check(unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) }.into()) {
            Ok(0) => {}
            Ok(_) => prctl(libc::PR_CAPBSET_DROP, capability)?,
            // The first number that this kernel does not know.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && capability > 30 => break,
            Err(error) => return Err(error),
        }
    }
    // SAFETY: plain integers; the raw calls act on this single-threaded process only.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        check(libc::syscall(libc::SYS_setresgid, id, id, id))?;
        check(libc::syscall(libc::SYS_setresuid, id, id, id))?;
    }
    Ok(())
}

pub(crate) fn set_rlimit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: `limit` outlives the call.
    check(unsafe { libc::setrlimit(resource, &raw const limit) }.into()).map(drop)
}

pub(crate) fn hard_rlimit(resource: libc::__rlimit_resource_t) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) }.into())?;
    Ok(limit.rlim_max)
}

pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from `filter`, which outlives the call.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
        .map(drop)
}

/// The Landlock ABI of this kernel, 0 where there is none.
pub(crate) fn landlock_abi() -> i32 {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with a null attribute and this flag the call only returns a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION) as i32 }
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

/// No signal blocked, SIGPIPE at its default again (Rust ignores it, and that survives exec).
pub(crate) fn default_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by sigemptyset; SIG_DFL is a valid disposition.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()).into())?;
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    Ok(())
}

/// One child that ended. `__WALL` also takes traced threads: without it, a payload whose second thread asked to be
/// traced would never become reapable.
pub(crate) fn reap() -> Option<(i32, WaitStatus, ProcessUsage)> {
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`; both outputs outlive the call.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(-1, &raw mut status, libc::WNOHANG | libc::__WALL, &raw mut usage), usage)
    };
    if pid <= 0 {
        return None;
    }
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    let usage = ProcessUsage {
        cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss as u64 * 1024,
    };
    let status = if libc::WIFEXITED(status) {
        WaitStatus::Exited(libc::WEXITSTATUS(status) as u8)
    } else if libc::WIFSIGNALED(status) {
        WaitStatus::Signaled(libc::WTERMSIG(status) as u8)
    } else {
        // A traced thread that stopped: nobody will continue it.
        let _ = kill(pid, libc::SIGKILL);
        return reap();
    };
    Some((pid, status, usage))
}

pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// Puts `source` at number `target`, inheritable.
pub(crate) fn move_fd(source: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: the child owns its numbers 0–2; sources are above them.
    check(unsafe { libc::dup3(source.as_raw_fd(), target, 0) }.into()).map(drop)
}

/// Closes everything beyond the standard streams but these, which move to 3, 4 and 5 and close at exec.
pub(crate) fn only_these(kept: [BorrowedFd<'_>; 3]) -> io::Result<[BorrowedFd<'static>; 3]> {
    // First out of the way of each other, and of what the guest has at these numbers.
    let mut aside = [0; 3];
    for (aside, fd) in aside.iter_mut().zip(kept) {
        // SAFETY: takes integers; the number that it returns is used by nothing else.
        *aside = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 6) }.into())? as RawFd;
    }
    for (target, aside) in (3..).zip(aside) {
        // SAFETY: this forked child gives up everything of the guest's, which is what has these numbers.
        check(unsafe { libc::dup3(aside, target, libc::O_CLOEXEC) }.into())?;
    }
    // SAFETY: nothing that this child still uses is above 5.
    check(unsafe { libc::syscall(libc::SYS_close_range, 6, u32::MAX, 0) })?;
    // SAFETY: all were opened just now and stay open until exec or exit, but for `close_early`.
    Ok(unsafe { [BorrowedFd::borrow_raw(3), BorrowedFd::borrow_raw(4), BorrowedFd::borrow_raw(5)] })
}

/// Closes a descriptor of [`only_these`] that is not used any more.
pub(crate) fn close_early(fd: BorrowedFd<'_>) {
    // SAFETY: whoever calls this does not use it again.
    unsafe { libc::close(fd.as_raw_fd()) };
}

pub(crate) fn exec(program: &CString, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: null-terminated arrays of NUL-terminated strings that live until the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Bytes waiting in a pipe.
pub(crate) fn readable_bytes(fd: BorrowedFd<'_>) -> u64 {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD stores one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    if result < 0 { 0 } else { count as u64 }
}
