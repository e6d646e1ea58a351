//! The scratch file system of a cell: a tmpfs that holds every writable byte of it.

use alloc::string::ToString;

use casemate_bare::io;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, Uid, chmodat, chownat, fstatvfs, mkdirat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, fsconfig_create, fsconfig_reconfigure,
    fsconfig_set_string, fsmount, fsopen, fspick,
};

use crate::recipe::ScratchDir;

/// Inodes of the scratch file system that are ours: its root and the three directories in it.
const OWN_INODES: u64 = 1 + ScratchDir::ALL.len() as u64;

/// The quota of a scratch file system that nobody has yet: just enough to be more than none, which could not be changed.
const PROVISIONAL: Quota = Quota { bytes: 4096, inodes: 0 };

/// What a scratch file system can hold, besides what is ours in it.
pub(crate) struct Quota {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl Quota {
    fn set(&self, context: BorrowedFd<'_>) -> io::Result<()> {
        #[cfg(feature = "weaken")]
        if crate::weaken::without("scratch-quota") {
            return Ok(());
        }
        fsconfig_set_string(context, "size", self.bytes.to_string())?;
        Ok(fsconfig_set_string(context, "nr_inodes", self.inodes.saturating_add(OWN_INODES).to_string())?)
    }
}

/// A tmpfs that holds every writable byte of a cell. Detached: it has no path anywhere.
pub(crate) fn make() -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "scratch")?;
    fsconfig_set_string(&context, "mode", "0755")?;
    PROVISIONAL.set(context.as_fd())?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let scratch = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    for dir in ScratchDir::ALL {
        let (name, _) = dir.paths();
        let mode = if dir == ScratchDir::Work { 0o755 } else { 0o1777 };
        mkdirat(&scratch, name, Mode::from_raw_mode(0o700))?;
        chmodat(&scratch, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
    }
    Ok(scratch)
}

/// Makes it a cell's own. Without `owner` it is the launcher's own id that the payload has.
pub(crate) fn give(scratch: &OwnedFd, quota: Quota, owner: Option<u32>) -> io::Result<()> {
    let context = fspick(scratch, "", FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC)?;
    quota.set(context.as_fd())?;
    fsconfig_reconfigure(&context)?;
    if let Some(owner) = owner {
        let (uid, gid) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)));
        for dir in ScratchDir::ALL {
            chownat(scratch, dir.paths().0, uid, gid, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// What is in it: bytes, and inodes besides ours.
pub(crate) fn used(scratch: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = fstatvfs(scratch)?;
    let bytes = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
    Ok((bytes, (stat.f_files - stat.f_ffree).saturating_sub(OWN_INODES)))
}
