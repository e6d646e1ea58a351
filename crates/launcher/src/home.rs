//! The launcher's own root: a private mount namespace in which images are prepared once and cells are assembled.
//!
//! ```text
//! /host      the host's tree, as a slave: mounts arrive, nothing goes back
//! /images/N  prepared images: complete read-only root trees
//! /cell      empty here; in a child's namespace, the new root
//! /scratch   empty here; in a child's namespace, its quota-bound tmpfs
//! ```
//! Rootless, all of it happens inside a user namespace where the launcher has every capability.

use alloc::format;
use alloc::string::String;

use casemate_bare::{files, io};
use rustix::fs::{CWD, Mode, mkdirat};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{chdir, getegid, geteuid};

use crate::sys;

pub(crate) const IMAGES: &str = "/images";
pub(crate) const CELL: &str = "/cell";
pub(crate) const SCRATCH: &str = "/scratch";
pub(crate) const HOST: &str = "/host";

/// Where procfs of the host is found once [`enter`] has succeeded.
pub(crate) const PROC: &str = "/host/proc";

/// Moves this process into its own mount namespace (and user namespace, if it is not root).
pub(crate) fn enter(root: bool) -> Result<(), String> {
    let step = |name: &str, error: io::Error| format!("{name}: {error}");
    if !root {
        enter_user_namespace().map_err(|error| step("user namespace", error))?;
    }
    sys::unshare(libc::CLONE_NEWNS).map_err(|error| step("mount namespace", error))?;
    build_root().map_err(|error| step("private root", error))
}

/// Enters a new user namespace with all capabilities in it. The caller's ids keep their numbers, so that what is
/// read about a cell later names the ids that the host knows.
fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    sys::unshare(libc::CLONE_NEWUSER)?;
    files::write("/proc/self/setgroups", "deny")?;
    files::write("/proc/self/uid_map", &format!("{uid} {uid} 1"))?;
    files::write("/proc/self/gid_map", &format!("{gid} {gid} 1"))
}

fn build_root() -> io::Result<()> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    // Any directory that exists everywhere does: the new root covers it in this namespace only.
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("casemate", "/tmp", "tmpfs", flags, Some(c"mode=0755,size=16M,nr_inodes=64k"))?;
    chdir("/tmp")?;
    for dir in ["host", "images", "cell", "scratch"] {
        mkdirat(CWD, dir, Mode::from_raw_mode(0o755))?;
    }
    rustix::process::pivot_root(".", "host")?;
    chdir("/")?;
    // Only the host's tree stays a slave; nothing may ever propagate between the launcher and its cells.
    mount_change("/", MountPropagationFlags::PRIVATE)?;
    Ok(())
}

/// Whether cells can have user namespaces of their own; the number that may be made is a setting of the host.
pub(crate) fn user_namespaces_allowed() -> Result<(), String> {
    let setting = files::read_text(&format!("{PROC}/sys/user/max_user_namespaces"));
    match setting.as_deref().map(str::trim) {
        Ok("0") => Err("user.max_user_namespaces is 0".into()),
        _ => Ok(()),
    }
}

/// Forgets a prepared image.
pub(crate) fn drop_image(path: &str) -> io::Result<()> {
    unmount(path, UnmountFlags::DETACH)?;
    Ok(rustix::fs::rmdir(path)?)
}
