//! The terminals of a cell: an instance of devpts that belongs to its user namespace, and that nobody else has ever seen.

use casemate_bare::io;
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

/// A directory of the skeleton, which is read-only and has nothing else in it.
const PLACE: &str = "/dev/pts";

/// More than that is hardly of use to one cell, and the kernel has some thousands for all of them together.
const MOST: &str = "32";

/// Mounts them. What is in there are devices only, which can be written to all the same where the file system cannot: so it is
/// read-only, and nobody changes whose they are.
pub(crate) fn mount() -> io::Result<()> {
    let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_flag(&context, "newinstance")?;
    for (key, value) in [("source", "terminals"), ("mode", "0600"), ("ptmxmode", "0666"), ("max", MOST)] {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let terminals = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // What it covers must be what the launcher put there, and no link (CVE-2025-52565).
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = open(PLACE, flags, Mode::empty())?;
    let by_descriptors = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(&terminals, "", &place, "", by_descriptors)?)
}
