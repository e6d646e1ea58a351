//! Where the launcher lives, and the namespaces that cells are copied from.
//!
//! The launcher has a mount namespace of its own with the host's tree in it, as a slave: mounts arrive, nothing goes back.
//! For every image it makes another one, a [`Template`], in which the image is the root and nothing of the host is left. To
//! start a cell it goes there, clones the cell's first process, and comes back; so a cell begins with its root in place, never
//! had the host's tree, and copies no more mounts than its image has, however many images there are.
//!
//! Rootless, all of it happens inside a user namespace where the launcher has every capability.

use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;

use casemate_bare::{files, io};
use rustix::fd::{AsFd, OwnedFd};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{chdir, getegid, geteuid};

use crate::recipe::Procfs;
use crate::sys::{self, Cloned};

/// The launcher's own mount namespace.
pub(crate) struct Home {
    namespace: OwnedFd,
    root: bool,
}

/// A mount namespace that holds nothing but an image.
#[derive(Clone)]
pub(crate) struct Template(Rc<OwnedFd>);

/// A directory that exists everywhere. What is mounted on it covers it in a namespace of ours only.
pub(crate) const MOUNT_POINT: &str = "/tmp";

impl Home {
    /// Moves this process into its own mount namespace (and user namespace, if it is not root).
    pub(crate) fn enter(root: bool) -> Result<Home, String> {
        let step = |name: &str, error: io::Error| format!("{name}: {error}");
        if !root {
            enter_user_namespace().map_err(|error| step("user namespace", error))?;
        }
        sys::unshare(libc::CLONE_NEWNS).map_err(|error| step("mount namespace", error))?;
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .map_err(|error| step("slave mounts", error.into()))?;
        user_namespaces_allowed()?;
        let namespace = sys::own_mounts().map_err(|error| step("mount namespace", error))?;
        Ok(Home { namespace, root })
    }

    /// Makes a template of what `build` mounts on [`MOUNT_POINT`], in a copy of this namespace.
    pub(crate) fn template(
        &self,
        procfs: Procfs,
        build: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Template> {
        sys::unshare(libc::CLONE_NEWNS)?;
        let made = build()
            .and_then(|()| self.show_a_procfs(procfs, &format!("{MOUNT_POINT}/proc")))
            .and_then(|()| leave_only_the_image());
        self.come_back();
        made
    }

    /// A cell may mount a procfs of its own only where it can see one already. This one is never seen again, as the cell's
    /// covers it; and whoever looked at it all the same would find none but their own processes in it, and nothing else.
    /// The cell's own cannot be less restricted than this one.
    fn show_a_procfs(&self, procfs: Procfs, place: &str) -> io::Result<()> {
        if self.root {
            return sys::mount_proc(place, procfs, &[("hidepid", "ptraceable"), ("subset", "pid")]);
        }
        // Without root, only of a PID namespace of ours. It ends with its one process.
        match sys::clone3(libc::CLONE_NEWPID as u64, None)? {
            Cloned::Child => sys::exit_now(i32::from(sys::mount_proc(place, procfs, &[]).is_err())),
            Cloned::Parent { pid, .. } => match sys::wait_for(pid)? {
                0 => Ok(()),
                _ => Err(io::Error::other("no procfs can be mounted here")),
            },
        }
    }

    /// Clones a process that has a copy of `template` for its mounts.
    pub(crate) fn clone_into<T>(&self, template: &Template, clone: impl FnOnce() -> T) -> io::Result<T> {
        sys::enter_mounts(template.0.as_fd())?;
        // The child does not return from this.
        let cloned = clone();
        self.come_back();
        Ok(cloned)
    }

    fn come_back(&self) {
        if sys::enter_mounts(self.namespace.as_fd()).is_err() {
            // Out of place, this process is of no use. The engine starts another one.
            io::complain("casemate-launcher: cannot return to its mount namespace\n");
            sys::exit_now(1);
        }
    }
}

/// The image becomes the root of this namespace, and the host's tree is detached.
fn leave_only_the_image() -> io::Result<Template> {
    let namespace = sys::own_mounts()?;
    chdir(MOUNT_POINT)?;
    sys::pivot_root_here()?;
    // The old root now lies on top of the new one; "." still means the new.
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    // Nothing may ever propagate between the host, the launcher and its cells.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(Template(Rc::new(namespace)))
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

/// Whether cells can have user namespaces of their own; the number that may be made is a setting of the host.
fn user_namespaces_allowed() -> Result<(), String> {
    let setting = files::read_text("/proc/sys/user/max_user_namespaces");
    match setting.as_deref().map(str::trim) {
        Ok("0") => Err("user.max_user_namespaces is 0".into()),
        _ => Ok(()),
    }
}
