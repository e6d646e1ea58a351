//! The first process of a cell with gVisor in it.
//!
//! It writes the bundle, has `runsc` start the sandbox, and waits until that has gone well. From then on it only reaps: whoever
//! starts a sandbox has privileges in the cell, which must not meet anything that has run hostile code.

use alloc::ffi::CString;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use casemate_bare::{files, io};
use casemate_guest::FIRST_ATTACHED;
use casemate_wire::gvisor;
use rustix::fd::AsFd;
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen, move_mount,
};

use crate::interpret::Site;
use crate::recipe::Sentry;
use crate::sys;

/// Where `runsc` and the guest are once everything else is closed: behind whatever may be attached.
pub(crate) const RUNSC: i32 = FIRST_ATTACHED + 2;
pub(crate) const GUEST: i32 = RUNSC + 1;

/// What `runsc` says when it fails, and how much of it is passed on.
const COMPLAINTS: &str = "/run/complaints";
const MAX_COMPLAINT: usize = 2000;

/// A sandbox that stands.
pub(crate) struct Running(());

/// A small file system for the bundle and for what `runsc` keeps about its sandbox.
pub(crate) fn mount_state() -> io::Result<()> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", "state"), ("mode", "0755"), ("size", "1M"), ("nr_inodes", "64")] {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let state = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(move_mount(&state, "", CWD, gvisor::BUNDLE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Starts the sandbox, with the guest in it. On return it runs by itself.
pub(crate) fn start(sentry: Sentry, site: &Site<'_>) -> io::Result<Running> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let bundle = open(gvisor::SPECIFICATION_FILE, flags, Mode::from_raw_mode(0o600))?;
    io::write_all(&bundle, gvisor::specification(sentry.terminals).as_bytes())?;
    drop(bundle);
    let text = |text: String| CString::new(text).map_err(io::Error::other);
    let arguments = gvisor::arguments(sentry.platform, sentry.attached, GUEST);
    let arguments = arguments.into_iter().map(text).collect::<io::Result<Vec<_>>>()?;
    let environment = gvisor::ENVIRONMENT.map(|word| text(word.into()));
    let environment = environment.into_iter().collect::<io::Result<Vec<_>>>()?;
    // A file, and not a pipe: nobody listens while it runs, and what it starts keeps it open.
    let complaints = open(COMPLAINTS, flags, Mode::from_raw_mode(0o600))?;
    let pid = match sys::fork()? {
        Some(pid) => pid,
        None => {
            // A guest of ours would close them before its payload executes anything; this one is in another program.
            for end in [&site.report, &site.release] {
                let _ = rustix::io::fcntl_setfd(end, rustix::io::FdFlags::empty());
            }
            let failed = sys::execute_with_stderr(RUNSC, &arguments, &environment, complaints.as_fd());
            let _ = io::write_all(&complaints, failed.to_string().as_bytes());
            sys::exit_now(127)
        }
    };
    match sys::wait_for(pid)? {
        0 => Ok(Running(())),
        status => {
            let said = files::read(COMPLAINTS)?;
            // The last of what it said is what it failed for.
            let said = String::from_utf8_lossy(&said[said.len().saturating_sub(MAX_COMPLAINT)..]);
            Err(io::Error::other(format!("runsc failed (status {status:#x}): {}", said.trim())))
        }
    }
}

/// Lets go of everything and reaps what is left to it, until it is killed.
pub(crate) fn reap_for_ever(_: Running, site: Site<'_>) -> ! {
    // Nothing of this process's memory is dropped any more: its descriptors are closed by number.
    core::mem::forget(site);
    if sys::let_go_of_everything().is_err() {
        sys::exit_now(1);
    }
    loop {
        sys::reap_one();
    }
}
