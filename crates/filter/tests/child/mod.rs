//! Installing filters for real, in children only.

#![allow(dead_code, reason = "not every binary uses every helper")]
#![allow(unsafe_code, reason = "fork, seccomp(2) and raw system calls are what is being tested")]

use std::io;

use casemate_filter::{Ids, Network, Program, Ptrace};
use libc::{c_long, sock_filter};

pub(crate) const CELL: Program =
    Program::Payload { network: Network::Namespaced, ids: Ids::Own, ptrace: Ptrace::Denied };
pub(crate) const CELL_TRACING: Program =
    Program::Payload { network: Network::Namespaced, ids: Ids::Own, ptrace: Ptrace::Allowed };
/// The `process` wall, as root and without.
pub(crate) const PROCESS: Program =
    Program::Payload { network: Network::None, ids: Ids::Own, ptrace: Ptrace::Denied };
pub(crate) const ROOTLESS: Program =
    Program::Payload { network: Network::None, ids: Ids::Shared, ptrace: Ptrace::Denied };

/// What the launcher and the guest do: no_new_privs, then one filter after the other, oldest first.
pub(crate) fn install(filters: &[&[sock_filter]]) -> io::Result<()> {
    // SAFETY: this option only takes integers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    for filter in filters {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the program and its instructions outlive the call, which only reads them.
        check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) })?;
    }
    Ok(())
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exited(i32),
    Signaled(i32),
}

/// Runs `body` in a forked child under the filters; its result is the exit status. It may make system calls, but must not
/// allocate: another test's thread may hold the allocator's lock.
pub(crate) fn in_child(filters: &[Program], body: impl FnOnce() -> i32) -> Ending {
    let filters: Vec<_> = filters.iter().map(|&filter| casemate_filter::program(filter)).collect();
    // SAFETY: the child makes system calls only, and leaves through _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        let status = if install(&filters).is_ok() { body() } else { 255 };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: status is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) {
        Ending::Signaled(libc::WTERMSIG(status))
    } else {
        Ending::Exited(libc::WEXITSTATUS(status))
    }
}

/// The errno of a raw system call, or 0.
pub(crate) fn errno_of(number: c_long, arguments: [u64; 6]) -> i32 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: callers pass null or invalid pointers, which the kernel reports, or pointers to live data.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { io::Error::last_os_error().raw_os_error().unwrap_or(255) } else { 0 }
}

fn check(result: c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
