//! Terminals: a pair of ends, one for a payload and one for us.

use casemate_bare::io;
use casemate_wire::guest::TerminalSize;
use rustix::fd::{BorrowedFd, OwnedFd};

use crate::sys;

/// What somebody at a keyboard types to say that nothing more follows.
pub(crate) const END: u8 = 4;

pub(crate) struct Terminal {
    pub(crate) outside: OwnedFd,
    pub(crate) inside: OwnedFd,
}

/// A new one, whose inside belongs to `owner`. It lives in the cell's own kernel interface for terminals, if the cell has one.
pub(crate) fn open(size: TerminalSize, owner: Option<u32>) -> io::Result<Terminal> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let outside = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty())?;
    let number = sys::unlock_terminal(&outside)?;
    let inside = rustix::fs::open(alloc::format!("/dev/pts/{number}"), flags, Mode::empty())?;
    if let Some(owner) = owner {
        let (uid, gid) = (rustix::fs::Uid::from_raw(owner), rustix::fs::Gid::from_raw(owner));
        rustix::fs::fchown(&inside, Some(uid), Some(gid))?;
    }
    resize(&outside, size)?;
    Ok(Terminal { outside, inside })
}

pub(crate) fn resize(terminal: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    sys::set_terminal_size(terminal, size.rows, size.columns)
}

/// Makes it the terminal of the calling process's session.
pub(crate) fn take(inside: BorrowedFd<'_>) -> io::Result<()> {
    sys::control_terminal(inside)
}
