//! What launcher and guest both do to themselves and their children.
#![allow(unsafe_code, reason = "raw system calls")]

use core::mem::size_of;

use rustix::fd::{FromRawFd, OwnedFd, RawFd};

use crate::call::call;
use crate::io;

/// What the kernel takes for a set of signals.
const SIGNAL_SET: usize = size_of::<u64>();

/// An option that takes an integer.
///
/// Not for those that take an address: the callers are trusted to know.
pub fn prctl(option: libc::c_int, value: usize) -> io::Result<usize> {
    // SAFETY: by the contract above, no memory is involved.
    Ok(unsafe { call(libc::SYS_prctl, [option as usize, value, 0, 0, 0]) }?)
}

/// Sends a signal to a process, or to a group of them if the number is negative.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: integers only.
    unsafe { call(libc::SYS_kill, [pid as isize as usize, signal as usize]) }?;
    Ok(())
}

/// Puts a seccomp filter on the calling process for good.
pub fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_ptr().cast_mut() };
    let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
    // SAFETY: the kernel copies `len` instructions from `filter`, which outlives the call.
    unsafe { call(libc::SYS_seccomp, [mode, 0, &raw const program as usize]) }?;
    Ok(())
}

/// Closes every descriptor from this number on.
///
/// Not where something that is still used has one: the callers, who have just begun, are trusted to know.
pub fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: by the contract above, nobody owns what is closed.
    unsafe { call(libc::SYS_close_range, [first as usize, u32::MAX as usize, 0]) }?;
    Ok(())
}

/// Blocks SIGCHLD and returns a descriptor that becomes readable when children change state.
pub fn child_events() -> io::Result<OwnedFd> {
    let set: u64 = 1 << (libc::SIGCHLD - 1);
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
    // SAFETY: the kernel reads one set of signals; the new descriptor has no other owner.
    unsafe {
        call(libc::SYS_rt_sigprocmask, [libc::SIG_BLOCK as usize, &raw const set as usize, 0, SIGNAL_SET])?;
        let fd = call(libc::SYS_signalfd4, [usize::MAX, &raw const set as usize, SIGNAL_SET, flags])?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Empties the descriptor of [`child_events`].
pub fn drain_events(events: impl rustix::fd::AsFd) {
    let mut buffer = [0u8; 1024];
    while rustix::io::read(&events, &mut buffer).is_ok_and(|n| n > 0) {}
}

/// The signal mask is inherited by children and through exec: from here on none is blocked.
pub fn unblock_signals() -> io::Result<()> {
    let none = 0u64;
    let how = libc::SIG_SETMASK as usize;
    // SAFETY: the kernel reads one set of signals.
    unsafe { call(libc::SYS_rt_sigprocmask, [how, &raw const none as usize, 0, SIGNAL_SET]) }?;
    Ok(())
}

/// What happens when a signal comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Default,
    Ignore,
}

/// Fails for signals that cannot be handled. There are no handlers in these programs.
pub fn dispose(signal: libc::c_int, disposition: Disposition) -> io::Result<()> {
    let handler = match disposition {
        Disposition::Default => libc::SIG_DFL,
        Disposition::Ignore => libc::SIG_IGN,
    };
    // As the kernel has it: handler, flags, restorer, mask.
    let action = [handler as u64, 0, 0, 0];
    // SAFETY: the kernel reads one `sigaction` of its own kind.
    unsafe { call(libc::SYS_rt_sigaction, [signal as usize, &raw const action as usize, 0, SIGNAL_SET]) }?;
    Ok(())
}
