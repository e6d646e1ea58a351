//! The system calls that `rustix` does not offer, each as thin as possible.
#![allow(unsafe_code, reason = "raw system calls of the guest live here")]

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr::null;

use casemate_bare::call::call;
use casemate_bare::io;
use casemate_bare::process::{Disposition, dispose, unblock_signals};
use casemate_wire::guest::{FIRST_INHERITED, ProcessUsage, WaitStatus};
use casemate_wire::launch::MAX_ATTACHED;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;

pub(crate) use casemate_bare::exit_now;
pub(crate) use casemate_bare::process::{child_events, drain_events, install_filter, kill, prctl};

/// A descriptor that whoever started this process put at `number`. It closes at exec.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD takes integers; it fails if the descriptor is not open.
    unsafe { call(libc::SYS_fcntl, [number as usize, libc::F_SETFD as usize, libc::FD_CLOEXEC as usize]) }?;
    // SAFETY: it is open (checked just now) and nothing else in this new process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether whoever started this process put something at `number`.
pub(crate) fn is_open(number: RawFd) -> bool {
    // SAFETY: F_GETFD only reads the number.
    unsafe { call(libc::SYS_fcntl, [number as usize, libc::F_GETFD as usize]) }.is_ok()
}

/// Takes standard input and output over, for other uses: at their places is nothing, like at standard error's.
pub(crate) fn standard_streams() -> io::Result<(OwnedFd, OwnedFd)> {
    let taken = |number: RawFd| -> io::Result<OwnedFd> {
        // SAFETY: takes integers; the number that it returns is used by nothing else.
        let copy = unsafe { call(libc::SYS_fcntl, [number as usize, libc::F_DUPFD_CLOEXEC as usize, 3]) }?;
        // SAFETY: open since just now.
        Ok(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
    };
    let (input, output) = (taken(0)?, taken(1)?);
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    for number in 0..3 {
        move_fd(rustix::fd::AsFd::as_fd(&null), number)?;
    }
    Ok((input, output))
}

/// Forks this single-threaded process. The child goes first if both are on the same processor: somebody waits for it, and nobody
/// for us.
pub(crate) fn fork(child: impl FnOnce() -> Infallible) -> io::Result<i32> {
    // SAFETY: the process has one thread, so the child's copy of it is consistent; without CLONE_VM it is a copy.
    let pid = unsafe { call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0]) }?;
    if pid == 0 {
        child();
    }
    // SAFETY: takes nothing.
    let _ = unsafe { call(libc::SYS_sched_yield, []) };
    Ok(pid as i32)
}

/// Runs `child` as a process in this one's memory, on a stack of its own. Comes back when it has executed something or ended; until
/// then this process is suspended, so there is still only one that touches this memory. What `child` allocates stays, and what it
/// borrows it must not drop.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fork_in_place<F: FnOnce() -> Infallible>(child: F) -> io::Result<i32> {
    /// Of which hardly anything is touched: what confines a payload is small.
    const STACK: usize = 256 * 1024;
    const GUARD: usize = 4096;

    extern "C" fn enter<F: FnOnce() -> Infallible>(child: *mut Option<F>) -> ! {
        // SAFETY: it lies on the stack of the suspended parent, which does not look at it again.
        match unsafe { (*child).take() } {
            Some(child) => match child() {},
            None => exit_now(127),
        }
    }

    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
    // SAFETY: new memory, at an address that the kernel chooses.
    let stack = unsafe { call(libc::SYS_mmap, [0, STACK, access as usize, kind as usize, usize::MAX, 0]) }?;
    // SAFETY: the lowest page of that memory, which nobody uses yet.
    unsafe { call(libc::SYS_mprotect, [stack, GUARD, libc::PROT_NONE as usize]) }?;
    let mut child = core::mem::ManuallyDrop::new(Some(child));
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let result: isize;
    // SAFETY: the child has its own stack, whose top is aligned as a call needs it, and never comes back from `enter`; the parent
    // is suspended meanwhile (CLONE_VFORK), so nothing is used by two at once. Registers are those of the parent in both.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags as usize, in("rsi") stack + STACK, in("rdx") 0, in("r10") 0, in("r8") 0,
            in("r12") &raw mut *child, in("r13") enter::<F> as extern "C" fn(*mut Option<F>) -> !,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    // The stack stays: to unmap it would take as long as all of this, and there is one such child.
    match result {
        ..0 => Err(io::Error::from_raw_os_error(-result as i32)),
        pid => Ok(pid as i32),
    }
}

/// Elsewhere it is a copy.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn fork_in_place(child: impl FnOnce() -> Infallible) -> io::Result<i32> {
    fork(child)
}

/// Whether this is the first process of its namespace.
pub(crate) fn is_init() -> bool {
    rustix::process::getpid() == rustix::process::Pid::INIT
}

/// File operations are checked as the payload's from here on; capabilities for other things stay.
pub(crate) fn access_files_as(id: u32) -> io::Result<FileRights> {
    let mut dies_with: libc::c_int = 0;
    let ask = libc::PR_GET_PDEATHSIG as usize;
    // SAFETY: the first call stores one int; the others take integers, and report the previous id, not success.
    let taken = unsafe {
        call(libc::SYS_prctl, [ask, &raw mut dies_with as usize, 0, 0, 0])?;
        let _ = call(libc::SYS_setfsgid, [id as usize]);
        let _ = call(libc::SYS_setfsuid, [id as usize]);
        // An id that does not exist changes nothing, and is answered with the one in force.
        call(libc::SYS_setfsuid, [usize::MAX]) == Ok(id as usize)
    };
    if !taken {
        return Ok(FileRights::Root { owner: id });
    }
    // A change of ids makes the kernel forget whom we die with, and decide anew who may look into this process.
    prctl(libc::PR_SET_PDEATHSIG, dies_with as usize)?;
    prctl(libc::PR_SET_DUMPABLE, 0)?;
    Ok(FileRights::Payload)
}

/// Whose rights the guest has over files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileRights {
    /// Those of the payload, or the only ones there are.
    Payload,
    /// Those of root of the cell, in a kernel that knows no ids for files alone (gVisor). What is made is given to its owner. To take
    /// the payload's ids as a whole would open this process to the payload.
    Root { owner: u32 },
}

/// Whether whoever holds the other end of a pipe is gone.
pub(crate) fn is_abandoned(pipe: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::from_borrowed_fd(pipe, PollFlags::IN)];
    let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled[0].revents().contains(PollFlags::HUP)
}

/// From `linux/capability.h`, which `libc` does not carry.
const SYS_ADMIN: usize = 21;

/// Whether this process may change what is mounted where.
pub(crate) fn may_mount() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

/// Neither this process nor anything that it starts may do so any more.
pub(crate) fn give_up_mounting() -> io::Result<()> {
    prctl(libc::PR_CAPBSET_DROP, SYS_ADMIN)?;
    let mut sets = rustix::thread::capabilities(None)?;
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(rustix::thread::CapabilitySet::SYS_ADMIN);
    }
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Drops the bounding set, all groups and ids to `id`; a change away from root clears every capability.
pub(crate) fn become_payload(id: u32) -> io::Result<()> {
    for capability in 0..64 {
        // Most are gone already. To ask costs little; to drop makes new credentials each time.
        match prctl(libc::PR_CAPBSET_READ, capability) {
            Ok(0) => {}
            Ok(_) => drop(prctl(libc::PR_CAPBSET_DROP, capability)?),
            // The first number that this kernel does not know.
            Err(error) if error.errno() == Some(Errno::INVAL) && capability > 30 => break,
            Err(error) => return Err(error),
        }
    }
    let id = id as usize;
    // SAFETY: plain integers; the raw calls act on this single-threaded process only.
    unsafe {
        call(libc::SYS_setgroups, [0, 0])?;
        call(libc::SYS_setresgid, [id, id, id])?;
        call(libc::SYS_setresuid, [id, id, id])?;
    }
    Ok(())
}

/// Lowers both limits on a resource to `value`. A hard limit that is already lower cannot be raised, and need not be.
pub(crate) fn lower_rlimit(resource: u32, value: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let resource = resource as usize;
    // SAFETY: the kernel stores or reads one `rlimit` of this process.
    unsafe {
        call(libc::SYS_prlimit64, [0, resource, 0, &raw mut limit as usize])?;
        let value = limit.rlim_max.min(value);
        (limit.rlim_cur, limit.rlim_max) = (value, value);
        call(libc::SYS_prlimit64, [0, resource, &raw const limit as usize, 0])?;
    }
    Ok(())
}

/// No signal blocked, SIGPIPE at its default again: it is ignored here, and that survives exec.
pub(crate) fn default_signals() -> io::Result<()> {
    unblock_signals()?;
    dispose(libc::SIGPIPE, Disposition::Default)
}

/// One child that ended. `__WALL` also takes traced threads: without it, a payload whose second thread asked to be
/// traced would never become reapable.
pub(crate) fn reap() -> Option<(i32, WaitStatus, ProcessUsage)> {
    let mut status: libc::c_int = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let flags = (libc::WNOHANG | libc::__WALL) as usize;
    // SAFETY: both outputs outlive the call; all-zero is a valid `rusage`, whether it is filled or not.
    let (pid, usage) = unsafe {
        let pid =
            call(libc::SYS_wait4, [usize::MAX, &raw mut status as usize, flags, usage.as_mut_ptr() as usize]);
        (pid.unwrap_or(0) as i32, usage.assume_init())
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

/// Puts `source` at number `target`, inheritable.
pub(crate) fn move_fd(source: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: the child owns its numbers 0–2; sources are above them.
    unsafe { call(libc::SYS_dup3, [source.as_raw_fd() as usize, target as usize, 0]) }?;
    Ok(())
}

/// One more descriptor than there should be. Never closed: it is meant to be inherited.
#[cfg(feature = "weaken")]
pub(crate) fn duplicate_stdin() -> io::Result<()> {
    // SAFETY: takes an integer.
    unsafe { call(libc::SYS_dup, [0]) }?;
    Ok(())
}

/// Closes everything beyond the standard streams but these: what is `kept` moves to 3, 4 and so on, and closes at exec; what is
/// `inherited` moves to [`FIRST_INHERITED`] and so on, and does not.
pub(crate) fn only_these<const N: usize>(
    kept: [BorrowedFd<'_>; N],
    inherited: &[BorrowedFd<'_>],
) -> io::Result<[BorrowedFd<'static>; N]> {
    const { assert!(3 + N <= FIRST_INHERITED as usize) };
    let first = FIRST_INHERITED as usize;
    // First out of the way of each other, and of what the guest has at these numbers.
    let out_of_the_way = if inherited.is_empty() { 3 + N } else { first + MAX_ATTACHED };
    let aside = |fd: &BorrowedFd<'_>| {
        let arguments = [fd.as_raw_fd() as usize, libc::F_DUPFD_CLOEXEC as usize, out_of_the_way];
        // SAFETY: takes integers; the number that it returns is used by nothing else.
        unsafe { call(libc::SYS_fcntl, arguments) }
    };
    let mut kept_aside = [0; N];
    for (place, fd) in kept_aside.iter_mut().zip(&kept) {
        *place = aside(fd)?;
    }
    let mut inherited_aside = [0; MAX_ATTACHED];
    for (place, fd) in inherited_aside.iter_mut().zip(inherited) {
        *place = aside(fd)?;
    }
    for (target, source) in (3..).zip(kept_aside) {
        // SAFETY: this forked child gives up everything of the guest's, which is what has these numbers.
        unsafe { call(libc::SYS_dup3, [source, target, libc::O_CLOEXEC as usize]) }?;
    }
    for (target, source) in (first..).zip(inherited_aside).take(inherited.len()) {
        // SAFETY: likewise.
        unsafe { call(libc::SYS_dup3, [source, target, 0]) }?;
    }
    if !inherited.is_empty() {
        // SAFETY: nothing that this child still uses is between them.
        unsafe { call(libc::SYS_close_range, [3 + N, first - 1, 0]) }?;
    }
    let rest = if inherited.is_empty() { 3 + N } else { first + inherited.len() };
    // SAFETY: nothing that this child still uses is above them.
    // gVisor takes the last number for a signed one.
    unsafe { call(libc::SYS_close_range, [rest, i32::MAX as usize, 0]) }?;
    // SAFETY: all were opened just now and stay open until exec or exit, but for `close_early`.
    Ok(core::array::from_fn(|index| unsafe { BorrowedFd::borrow_raw(3 + index as RawFd) }))
}

/// Closes a descriptor of [`only_these`] that is not used any more.
pub(crate) fn close_early(fd: BorrowedFd<'_>) {
    // SAFETY: whoever calls this does not use it again.
    let _ = unsafe { call(libc::SYS_close, [fd.as_raw_fd() as usize]) };
}

/// Returns only if that fails.
pub(crate) fn exec(program: &CString, argv: &[CString], env: &[CString]) -> io::Error {
    exec_at(libc::AT_FDCWD, program, argv, env, 0)
}

/// Executes what a descriptor stands for. Returns only if that fails.
pub(crate) fn exec_descriptor(program: BorrowedFd<'_>, argv: &[CString], env: &[CString]) -> io::Error {
    exec_at(program.as_raw_fd(), c"", argv, env, libc::AT_EMPTY_PATH)
}

fn exec_at(directory: RawFd, path: &CStr, argv: &[CString], env: &[CString], flags: i32) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    let (path, argv, env) = (path.as_ptr() as usize, argv.as_ptr() as usize, env.as_ptr() as usize);
    let arguments = [directory as usize, path, argv, env, flags as usize];
    // SAFETY: null-terminated arrays of NUL-terminated strings that live until the call.
    match unsafe { call(libc::SYS_execveat, arguments) } {
        Err(error) => error.into(),
        Ok(_) => io::Error::other("exec returned"),
    }
}

/// Makes the inside of a new terminal usable, and says which one it is.
pub(crate) fn unlock_terminal(outside: &OwnedFd) -> io::Result<u32> {
    let (locked, mut number): (libc::c_int, libc::c_uint) = (0, 0);
    let fd = outside.as_raw_fd() as usize;
    // SAFETY: the first call reads one int, the second stores one.
    unsafe {
        call(libc::SYS_ioctl, [fd, libc::TIOCSPTLCK as usize, &raw const locked as usize])?;
        call(libc::SYS_ioctl, [fd, libc::TIOCGPTN as usize, &raw mut number as usize])?;
    }
    Ok(number)
}

pub(crate) fn set_terminal_size(outside: &OwnedFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let arguments = [outside.as_raw_fd() as usize, libc::TIOCSWINSZ as usize, &raw const size as usize];
    // SAFETY: TIOCSWINSZ reads one `winsize`.
    unsafe { call(libc::SYS_ioctl, arguments) }?;
    Ok(())
}

/// Makes a terminal that of the calling process's session, which it leads.
pub(crate) fn control_terminal(inside: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an integer.
    unsafe { call(libc::SYS_ioctl, [inside.as_raw_fd() as usize, libc::TIOCSCTTY as usize, 0]) }?;
    Ok(())
}

/// Bytes waiting in a pipe.
pub(crate) fn readable_bytes(fd: BorrowedFd<'_>) -> u64 {
    let mut count: libc::c_int = 0;
    let arguments = [fd.as_raw_fd() as usize, libc::FIONREAD as usize, &raw mut count as usize];
    // SAFETY: FIONREAD stores one int.
    let result = unsafe { call(libc::SYS_ioctl, arguments) };
    if result.is_err() { 0 } else { count as u64 }
}
