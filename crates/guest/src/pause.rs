//! Everything in the cell but the guest stands still for a while. Nothing that stands still can make anything else go on.

use alloc::format;

use casemate_bare::files::{list_path, read_text};
use casemate_bare::io;
use rustix::event::Timespec;

use crate::sys;

/// How often it is looked whether all stand still, and how long is waited in between.
const LOOKS: usize = 200;
const BETWEEN: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
const EVERYTHING_ELSE: i32 = -1;

pub(crate) fn pause() -> io::Result<()> {
    // Elsewhere, that would be the whole machine.
    if !sys::is_init() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    for _ in 0..LOOKS {
        // Whoever was born while the others were stopped is stopped in the next round.
        match sys::kill(EVERYTHING_ELSE, libc::SIGSTOP) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            stopped => stopped?,
        }
        if all_stand_still() {
            return Ok(());
        }
        let _ = rustix::event::poll(&mut [], Some(&BETWEEN));
    }
    resume()?;
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

pub(crate) fn resume() -> io::Result<()> {
    if !sys::is_init() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    match sys::kill(EVERYTHING_ELSE, libc::SIGCONT) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        resumed => Ok(resumed?),
    }
}

fn all_stand_still() -> bool {
    let processes = list_path("/proc").unwrap_or_default();
    let numbers = processes.iter().filter_map(|(name, _)| name.parse::<u32>().ok());
    numbers.filter(|pid| *pid != 1).all(|pid| {
        // The state follows the name, which may contain anything, in parentheses.
        let stat = read_text(&format!("/proc/{pid}/stat")).unwrap_or_default();
        match stat.rsplit_once(") ") {
            // Who waits in the kernel stops before it does anything else; for a child that was made by vfork and has been stopped
            // before it could execute anything, that is for good.
            Some((_, rest)) => rest.starts_with(['T', 't', 'D', 'Z', 'X']),
            // Gone meanwhile.
            None => true,
        }
    })
}
