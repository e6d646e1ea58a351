//! Terminals: a pair of ends, one for a payload and one for us.

use alloc::format;

use casemate_bare::io;
use casemate_wire::guest::TerminalSize;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, fchown, fstat, openat};

use crate::sys;

/// What somebody at a keyboard types to say that nothing more follows.
pub(crate) const END: u8 = 4;

pub(crate) struct Terminal {
    pub(crate) outside: OwnedFd,
    pub(crate) inside: OwnedFd,
}

/// A new one among those of the cell, whose inside belongs to `owner`.
pub(crate) fn open(size: TerminalSize, owner: Option<u32>) -> io::Result<Terminal> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let all = open_at(CWD, "/dev/pts", flags)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let outside = open_at(all.as_fd(), "ptmx", flags)?;
    let number = sys::unlock_terminal(&outside)?;
    let inside = open_at(all.as_fd(), &format!("{number}"), flags)?;
    // Where the guest makes files as the payload, it is that already, and stays so.
    if let Some(owner) = owner
        && fstat(&inside)?.st_uid != owner
    {
        fchown(&inside, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
    }
    resize(&outside, size)?;
    Ok(Terminal { outside, inside })
}

fn open_at(directory: BorrowedFd<'_>, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, flags, Mode::empty())?)
}

pub(crate) fn resize(terminal: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    sys::set_terminal_size(terminal, size.rows, size.columns)
}

/// Makes it the terminal of the calling process's session.
pub(crate) fn take(inside: BorrowedFd<'_>) -> io::Result<()> {
    sys::control_terminal(inside)
}
