//! From the kernel's first breath to a system in which cells can be built.
//!
//! The first file system cannot be pivoted away from, which every cell has to do with its root; so what is needed of it moves to
//! another one, and the memory of the rest is given back.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use casemate_wire::machine::{WITH_IMAGE, WITHOUT_IMAGE, places};
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{MountFlags, mount, mount_move};
use rustix::process::{chdir, chroot};
use rustix::system::finit_module;

use crate::failure::Failure;
use crate::sys;

/// How long devices may take to appear once their drivers are there.
const DEVICES: Duration = Duration::from_secs(10);

/// Where the root of the system is made, and what is where in it.
const ROOT: &str = "/root";
const IMAGE: &str = "/image";
const MODULES: &str = "/lib/modules";

pub(crate) struct System {
    pub(crate) content: Content,
    /// The launcher, as a file that can be executed.
    pub(crate) program: OwnedFd,
}

/// What cells are made of.
pub(crate) enum Content {
    /// The directory of an image.
    Image(OwnedFd),
    /// One program, and nothing else.
    Program(OwnedFd),
}

pub(crate) fn boot() -> Result<System, Failure> {
    mount_kernel_file_systems().map_err(Failure::at("mount the kernel's file systems"))?;
    load_drivers()?;
    let launcher = into_memory(places::LAUNCHER)?;
    let with_image = wants_image()?;
    let program = if with_image { None } else { Some(into_memory(places::PROGRAM)?) };
    change_root().map_err(Failure::at("change the root"))?;
    delegate_groups().map_err(Failure::at("set up control groups"))?;
    let content = match program {
        Some(program) => Content::Program(program),
        None => Content::Image(mount_image()?),
    };
    Ok(System { content, program: launcher })
}

fn mount_kernel_file_systems() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        fs::create_dir_all(place)?;
        mount(kind, place, kind, flags, None::<&CStr>)?;
    }
    Ok(())
}

fn load_drivers() -> Result<(), Failure> {
    load_all(&Path::new("/").join(places::DRIVERS))
}

/// For a payload that has the machine to itself: nobody in there could load them. Whoever needs what is missing will notice.
pub(crate) fn load_extra() {
    if let Err(failure) = load_all(Path::new(MODULES)) {
        eprintln!("casemate-machine: {failure}");
    }
}

fn load_all(directory: &Path) -> Result<(), Failure> {
    let listed = fs::read_dir(directory).map_err(Failure::at("list the drivers"))?;
    let mut drivers: Vec<_> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    drivers.sort();
    for driver in drivers {
        let loaded = File::open(&driver).and_then(|file| match finit_module(&file, c"", 0) {
            // Part of the kernel, or loaded already.
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        });
        loaded.map_err(Failure::at(format!("load {}", driver.display())))?;
    }
    Ok(())
}

fn wants_image() -> Result<bool, Failure> {
    let line = fs::read_to_string("/proc/cmdline").map_err(Failure::at("read the command line"))?;
    let said = |wanted: &str| line.split_whitespace().any(|word| word == wanted);
    match (said(WITH_IMAGE), said(WITHOUT_IMAGE)) {
        (true, false) => Ok(true),
        (false, true) => Ok(false),
        _ => Err(Failure::new("read the command line", "it does not say what there is to run")),
    }
}

/// A program as memory that nobody can write to, so that its file can go.
fn into_memory(name: &str) -> Result<OwnedFd, Failure> {
    let read = fs::read(Path::new("/").join(name)).and_then(|bytes| sys::sealed_program(name, &bytes));
    read.map_err(Failure::at(format!("read {name}")))
}

/// What a system's root has in it. The launcher puts together the roots of cells under `/tmp`, in namespaces of theirs.
const DIRECTORIES: [&str; 8] = ["proc", "sys", "dev", "tmp", "run", "etc", "lib/modules", "image"];

fn change_root() -> io::Result<()> {
    fs::create_dir_all(ROOT)?;
    mount("root", ROOT, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=0755,size=64M"))?;
    for directory in DIRECTORIES {
        fs::create_dir_all(Path::new(ROOT).join(directory))?;
    }
    let extra = Path::new("/").join(places::EXTRA);
    if extra.is_dir() {
        for entry in fs::read_dir(&extra)? {
            let entry = entry?;
            fs::copy(entry.path(), Path::new(ROOT).join(&MODULES[1..]).join(entry.file_name()))?;
        }
    }
    for place in ["proc", "sys", "dev"] {
        mount_move(format!("/{place}"), format!("{ROOT}/{place}"))?;
    }
    // Nobody comes back here: its memory is of use to others.
    for leftover in [places::DRIVERS, places::EXTRA] {
        let _ = fs::remove_dir_all(Path::new("/").join(leftover));
    }
    for leftover in [places::INIT, places::LAUNCHER, places::PROGRAM] {
        let _ = fs::remove_file(Path::new("/").join(leftover));
    }
    chdir(ROOT)?;
    mount_move(".", "/")?;
    chroot(".")?;
    Ok(chdir("/")?)
}

/// One tree of groups, with everything in it that can be limited.
fn delegate_groups() -> io::Result<()> {
    const TREE: &str = "/sys/fs/cgroup";
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("cgroup2", TREE, "cgroup2", flags, None::<&CStr>)?;
    for controller in ["cpu", "memory", "pids"] {
        fs::write(Path::new(TREE).join("cgroup.subtree_control"), format!("+{controller}"))?;
    }
    Ok(())
}

fn mount_image() -> Result<OwnedFd, Failure> {
    const DISK: &str = "/dev/vda";
    wait_for("the disk", || Ok(Path::new(DISK).exists().then_some(())))?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    mount(DISK, IMAGE, "erofs", flags, None::<&CStr>).map_err(Failure::at("mount the image"))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, IMAGE, flags, Mode::empty()).map_err(Failure::at("open the image"))
}

/// Asks again and again until there is something.
pub(crate) fn wait_for<T>(what: &str, mut find: impl FnMut() -> io::Result<Option<T>>) -> Result<T, Failure> {
    let deadline = Instant::now() + DEVICES;
    loop {
        match find() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => return Err(Failure::new(format!("wait for {what}"), "it did not appear")),
            Err(error) => return Err(Failure::at(format!("look for {what}"))(error)),
        }
    }
}

/// A device for reading and writing.
pub(crate) fn open_device(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}
