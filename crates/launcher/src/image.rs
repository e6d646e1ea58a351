//! Prepared images: complete root trees, read-only, without set-uid, built once and copied by every cell.
//!
//! An image is a small skeleton (a tmpfs with directories, links and a few files) onto which the image's own
//! directories are bound. So a cell's `/tmp`, `/work`, `/proc` and `/dev` exist whatever the image looks like, and
//! no byte is written into it.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use casemate_bare::io;
use casemate_wire::image::{ETC, HOST_NAMES, MAX_NAMES, OURS};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, major, minor, mkdirat, openat, openat2,
    readlinkat, statat, symlinkat,
};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::home::{Home, MOUNT_POINT, Template};
use crate::recipe::Procfs;
use crate::sys;

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const DEVICE: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;

/// The devices of a cell with the numbers they must have: a host (or image) that has something else under such a name
/// is not one we run on (CVE-2025-31133).
const DEVICES: [(&str, (u32, u32)); 6] = [
    ("null", (1, 3)),
    ("zero", (1, 5)),
    ("full", (1, 7)),
    ("random", (1, 8)),
    ("urandom", (1, 9)),
    ("tty", (5, 0)),
];

const DEV_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    // Leads to something in cells with terminals.
    ("ptmx", "pts/ptmx"),
];

/// How many directory images stay prepared.
const KEPT: usize = 32;
/// Identity of a directory image: its inode, its change time, since its top-level names are copied, and for which kernel it is.
type Key = (u64, u64, i64, i64, Procfs);

pub(crate) struct Images {
    /// Where they are made; none if namespaces cannot be made here.
    home: Option<Home>,
    host: BTreeMap<Procfs, Template>,
    empty: BTreeMap<Procfs, Template>,
    /// With a number that tells which was made first.
    directories: BTreeMap<Key, (u64, Template)>,
    made: u64,
}

impl Images {
    pub(crate) fn new(home: Option<Home>) -> Images {
        let (host, empty, directories) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Images { home, host, empty, directories, made: 0 }
    }

    /// Lets go of what was prepared. Whoever needs it again prepares it again.
    pub(crate) fn forget(&mut self) {
        self.host.clear();
        self.empty.clear();
        self.directories.clear();
    }

    pub(crate) fn home(&self) -> io::Result<&Home> {
        self.home.as_ref().ok_or_else(|| io::Error::other("no mount namespace can be made here"))
    }

    /// The prepared `host` image.
    pub(crate) fn host(&mut self, procfs: Procfs) -> io::Result<Template> {
        if let Some(template) = self.host.get(&procfs) {
            return Ok(template.clone());
        }
        let template = self.home()?.template(procfs, || {
            let host = open_directory(CWD, "/")?;
            let tree = skeleton()?;
            for name in HOST_NAMES {
                adopt(host.as_fd(), name, tree.as_fd())?;
            }
            mkdirat(&tree, "etc", Mode::from_raw_mode(0o755))?;
            let etc = open_directory(tree.as_fd(), "etc")?;
            for (name, text) in ETC {
                write_file(etc.as_fd(), name, text.as_bytes())?;
            }
            let host_etc = open_directory(host.as_fd(), "etc")?;
            // /usr links into the alternatives; the loader cache only lists libraries.
            adopt(host_etc.as_fd(), "alternatives", etc.as_fd())?;
            copy_file(host_etc.as_fd(), "ld.so.cache", etc.as_fd())?;
            mkdirat(&tree, "var", Mode::from_raw_mode(0o755))?;
            symlinkat("../tmp", open_directory(tree.as_fd(), "var")?, "tmp")?;
            finish(tree.as_fd())
        })?;
        self.host.insert(procfs, template.clone());
        Ok(template)
    }

    /// The prepared image that has nothing in it.
    pub(crate) fn empty(&mut self, procfs: Procfs) -> io::Result<Template> {
        if let Some(template) = self.empty.get(&procfs) {
            return Ok(template.clone());
        }
        let template = self.home()?.template(procfs, || finish(skeleton()?.as_fd()))?;
        self.empty.insert(procfs, template.clone());
        Ok(template)
    }

    /// The prepared image for the directory behind `fd`.
    pub(crate) fn directory(&mut self, fd: BorrowedFd<'_>, procfs: Procfs) -> io::Result<Template> {
        let key = key(fd, procfs)?;
        if let Some((_, template)) = self.directories.get(&key) {
            return Ok(template.clone());
        }
        // Another state of the same directory is of no use to anybody, and the oldest make room for new ones.
        let outdated =
            |other: &Key| (other.0, other.1) == (key.0, key.1) && (other.2, other.3) != (key.2, key.3);
        self.directories.retain(|other, _| !outdated(other));
        while self.directories.len() >= KEPT {
            let Some(oldest) = self.directories.iter().min_by_key(|(_, (made, _))| *made) else { break };
            let oldest = *oldest.0;
            self.directories.remove(&oldest);
        }
        let template = self.home()?.template(procfs, || {
            // Before anything covers the way to it.
            let source = reopen_here(fd)?;
            let tree = skeleton()?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            for (count, entry) in Dir::new(openat(&source, ".", flags, Mode::empty())?)?.enumerate() {
                let entry = entry?;
                if count > MAX_NAMES {
                    return Err(io::Error::other(format!(
                        "the image has more than {MAX_NAMES} names at its top"
                    )));
                }
                let name = entry
                    .file_name()
                    .to_str()
                    .map_err(|_| io::Error::other("a name in the image is not UTF-8"))?;
                if !matches!(name, "." | "..") && !OURS.contains(&name) {
                    adopt(source.as_fd(), name, tree.as_fd())?;
                }
            }
            finish(tree.as_fd())
        })?;
        self.made += 1;
        self.directories.insert(key, (self.made, template.clone()));
        Ok(template)
    }
}

#[cfg(feature = "machine")]
impl Images {
    /// A root that can be written to, with everything in it that the machine has: an image below, and what is written in `scratch`.
    /// Made for one cell.
    pub(crate) fn whole_machine(
        &mut self,
        image: Option<BorrowedFd<'_>>,
        scratch: &OwnedFd,
    ) -> io::Result<Template> {
        let image = image.ok_or_else(|| io::Error::other("a machine without an image"))?;
        self.home()?.template(Procfs::Plain, || machine_root(image, scratch.as_fd()))
    }
}

#[cfg(not(feature = "machine"))]
impl Images {
    /// Nobody gets here: such a cell was refused.
    pub(crate) fn whole_machine(
        &mut self,
        _image: Option<BorrowedFd<'_>>,
        _scratch: &OwnedFd,
    ) -> io::Result<Template> {
        Err(io::Error::other("this launcher has no machine to give away"))
    }
}

#[cfg(feature = "machine")]
fn machine_root(image: BorrowedFd<'_>, scratch: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::mount::{MountFlags, mount};
    /// Where the scratch file system is while the root is put together. Out of the cell's sight then.
    const SCRATCH: &str = "/run";
    let image = reopen_here(image)?;
    let by_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(scratch, "", CWD, SCRATCH, by_descriptor)?;
    for name in ["upper", "overlay"] {
        mkdirat(scratch, name, Mode::from_raw_mode(0o755))?;
    }
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let lower = format!("/proc/self/fd/{}", image.as_raw_fd());
    let (upper, work) = (format!("{SCRATCH}/upper"), format!("{SCRATCH}/overlay"));
    for (key, value) in [("source", "root"), ("lowerdir", &lower), ("upperdir", &upper), ("workdir", &work)] {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    for name in OURS {
        match mkdirat(&root, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Before the way to them is covered.
    let ours = |name: &str| {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(scratch, name, flags)
    };
    let (tmp, work, shm) = (ours("tmp")?, ours("work")?, ours("shm")?);
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let dev = open_tree(CWD, "/dev", flags)?;
    for name in ["shm", "pts"] {
        match mkdirat(&dev, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    move_mount(&root, "", CWD, MOUNT_POINT, by_descriptor)?;
    for (tree, place) in [(&dev, "dev"), (&tmp, "tmp"), (&work, "work"), (&shm, "dev/shm")] {
        move_mount(tree, "", CWD, format!("{MOUNT_POINT}/{place}"), by_descriptor)?;
    }
    let none = MountFlags::empty();
    mount("run", format!("{MOUNT_POINT}/run"), "tmpfs", none, Some(c"mode=0755,size=16M"))?;
    mount("sysfs", format!("{MOUNT_POINT}/sys"), "sysfs", none, None::<&core::ffi::CStr>)?;
    let terminals = Some(c"newinstance,mode=0620,ptmxmode=0666");
    Ok(mount("terminals", format!("{MOUNT_POINT}/dev/pts"), "devpts", none, terminals)?)
}

fn key(directory: BorrowedFd<'_>, procfs: Procfs) -> io::Result<Key> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec as i64, procfs))
}

/// Last, so that the skeleton could be filled: its own mount becomes read-only too.
fn finish(tree: BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(feature = "weaken")]
    if crate::weaken::without("read-only") {
        return Ok(());
    }
    sys::mount_setattr(tree, c"", false, READ_ONLY, 0)
}

/// The parts that every cell has, as a mounted tmpfs.
fn skeleton() -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", "image"), ("mode", "0755"), ("size", "4M"), ("nr_inodes", "4096")] {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    let host_dev = open_directory(CWD, "/dev")?;
    let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    move_mount(&tree, "", CWD, MOUNT_POINT, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    for dir in ["proc", "dev", "dev/shm", "dev/pts", "tmp", "work", "run"] {
        mkdirat(&tree, dir, Mode::from_raw_mode(0o755))?;
    }
    let dev = open_directory(tree.as_fd(), "dev")?;
    for (name, numbers) in DEVICES {
        bind_device(host_dev.as_fd(), name, numbers, dev.as_fd())?;
    }
    #[cfg(feature = "weaken")]
    if crate::weaken::without("terminals") {
        bind(host_dev.as_fd(), "pts", dev.as_fd(), DEVICE)?;
    }
    for (name, target) in DEV_LINKS {
        symlinkat(target, &dev, name)?;
    }
    Ok(tree)
}

/// Takes over one name of an image's directory: a link as a link, a directory or file as a read-only bind.
fn adopt(from: BorrowedFd<'_>, name: &str, into: BorrowedFd<'_>) -> io::Result<()> {
    let stat = match statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Ok(symlinkat(readlinkat(from, name, Vec::new())?, into, name)?),
        FileType::Directory => {
            mkdirat(into, name, Mode::from_raw_mode(0o755))?;
            bind(from, name, into, READ_ONLY)
        }
        FileType::RegularFile => {
            write_file(into, name, b"")?;
            bind(from, name, into, READ_ONLY)
        }
        // Devices, sockets and pipes of an image's top level are not for a cell.
        _ => Ok(()),
    }
}

fn bind_device(
    from: BorrowedFd<'_>,
    name: &str,
    (maj, min): (u32, u32),
    into: BorrowedFd<'_>,
) -> io::Result<()> {
    let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_it = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == (maj, min);
    if !is_it {
        return Err(io::Error::other(format!("/dev/{name} of the host is not the device {maj}:{min}")));
    }
    write_file(into, name, b"")?;
    bind(from, name, into, DEVICE)
}

fn bind(from: BorrowedFd<'_>, name: &str, into: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    #[cfg(feature = "weaken")]
    let attributes = if crate::weaken::without("read-only") { 0 } else { attributes };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(from, name, flags)?;
    sys::mount_setattr(tree.as_fd(), c"", true, attributes, 0)?;
    Ok(move_mount(&tree, "", into, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Finds the directory that the engine opened in *its* mount namespace again in ours, and makes sure that it is the same one:
/// a mount can only be cloned within its own namespace, and a path alone could have been swapped meanwhile.
fn reopen_here(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let link = readlinkat(CWD, format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
    let host = open_directory(CWD, "/")?;
    let here = openat2(
        &host,
        &*link,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?;
    let (theirs, ours) = (fstat(fd)?, fstat(&here)?);
    if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino) {
        return Err(io::Error::other("the image directory was moved or replaced during the launch"));
    }
    Ok(here)
}

fn open_directory(at: BorrowedFd<'_>, path: &str) -> io::Result<OwnedFd> {
    Ok(openat(
        at,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )?)
}

fn write_file(at: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
    io::write_all(&new_file(at, name)?, bytes)
}

/// Copies a file, if there is one of that name.
fn copy_file(from: BorrowedFd<'_>, name: &str, into: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let source = match openat(from, name, flags, Mode::empty()) {
        Ok(source) => source,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let copy = new_file(into, name)?;
    // Within the kernel: what is in it is of no interest here.
    while rustix::fs::sendfile(&copy, &source, None, 1 << 20)? > 0 {}
    Ok(())
}

fn new_file(at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(openat(at, name, flags, Mode::from_raw_mode(0o644))?)
}
