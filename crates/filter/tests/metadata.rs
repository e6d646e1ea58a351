//! What Landlock leaves to the owner of a file, and the filter of a payload that is that owner does not.
//!
//! Each trick is tried twice on a fresh file outside of the only directory that Landlock opens. Without the filter it has
//! to change the file or directory, or else it proves nothing; with the filter it must not. Any change shows in a ctime.

#![allow(unsafe_code, reason = "raw system calls are what is being tested")]

mod child;

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use casemate_filter::Program;
use child::{CELL, Ending, PROCESS, ROOTLESS, errno_of, in_child};
use libc::{EBADF, EPERM, c_long};

const CWD: u64 = libc::AT_FDCWD as u64;
const EMPTY: u64 = libc::AT_EMPTY_PATH as u64;
const NOFOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW as u64;
const SETXATTRAT: c_long = 463;
const FILE_GETATTR: c_long = 468;
const FILE_SETATTR: c_long = 469;
/// To chown: leave it.
const KEEP: u64 = u32::MAX as u64;
const ATTRIBUTE: &CStr = c"user.casemate";
const NOTHING: &CStr = c"";

/// A trick, by its errno: 0 if all of its calls succeeded.
type Trick = fn(&Names) -> i32;

/// Prepared before the fork, after which nothing may be allocated.
struct Names {
    file: CString,
    directory: CString,
}

const TRICKS: &[(&str, Trick)] = &[
    ("fchmodat", |names| call(libc::SYS_fchmodat, [CWD, at(&names.file), 0o600, 0, 0, 0])),
    ("fchownat", |names| call(libc::SYS_fchownat, [CWD, at(&names.file), KEEP, gid(), 0, 0])),
    ("fchownat of the link itself", |names| {
        call(libc::SYS_fchownat, [CWD, at(&names.file), KEEP, gid(), NOFOLLOW, 0])
    }),
    ("fchownat of O_PATH", |names| {
        with(open(&names.file, libc::O_PATH), |fd| {
            call(libc::SYS_fchownat, [fd, at(NOTHING), KEEP, gid(), EMPTY, 0])
        })
    }),
    ("fchmodat below O_PATH", |names| {
        with(open(&names.directory, libc::O_PATH), |fd| {
            call(libc::SYS_fchmodat, [fd, at(c"file"), 0o600, 0, 0, 0])
        })
    }),
    ("fchmodat through /proc/self/fd", |names| {
        with(at_descriptor(&names.file, 77), |_| {
            call(libc::SYS_fchmodat, [CWD, at(c"/proc/self/fd/77"), 0o600, 0, 0, 0])
        })
    }),
    ("fchmodat of the working directory", |names| {
        with(call_for(libc::SYS_chdir, [at(&names.directory), 0, 0, 0, 0, 0]), |_| {
            call(libc::SYS_fchmodat, [CWD, at(c"."), 0o711, 0, 0, 0])
        })
    }),
    ("utimensat", |names| call(libc::SYS_utimensat, [CWD, at(&names.file), 0, 0, 0, 0])),
    ("utimensat of the link itself", |names| {
        call(libc::SYS_utimensat, [CWD, at(&names.file), 0, NOFOLLOW, 0, 0])
    }),
    ("utimensat of O_PATH", |names| {
        with(open(&names.file, libc::O_PATH), |fd| {
            call(libc::SYS_utimensat, [fd, at(NOTHING), 0, EMPTY, 0, 0])
        })
    }),
    ("utimensat, its name at a pointer of which half is null", |names| {
        let size = names.file.as_bytes_with_nul().len();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let readable = libc::PROT_READ | libc::PROT_WRITE;
        let place = std::ptr::without_provenance_mut(1 << 32);
        // SAFETY: takes only addresses that are free, here or not at all.
        let place = unsafe { libc::mmap(place, size, readable, flags, -1, 0) };
        if place as u64 != 1 << 32 {
            return 250;
        }
        // SAFETY: the mapping is new and at least that large.
        unsafe { std::ptr::copy_nonoverlapping(names.file.as_ptr(), place.cast(), size) };
        call(libc::SYS_utimensat, [CWD, place as u64, 0, 0, 0, 0])
    }),
    ("setxattr", |names| call(libc::SYS_setxattr, [at(&names.file), at(ATTRIBUTE), at(c"x"), 1, 0, 0])),
    ("lsetxattr", |names| call(libc::SYS_lsetxattr, [at(&names.file), at(ATTRIBUTE), at(c"x"), 1, 0, 0])),
    ("setxattr through /proc/self/fd", |names| {
        with(at_descriptor(&names.file, 77), |_| {
            call(libc::SYS_setxattr, [at(c"/proc/self/fd/77"), at(ATTRIBUTE), at(c"x"), 1, 0, 0])
        })
    }),
    ("removexattr", |names| call(libc::SYS_removexattr, [at(&names.file), at(c"user.there"), 0, 0, 0, 0])),
    ("lremovexattr", |names| call(libc::SYS_lremovexattr, [at(&names.file), at(c"user.there"), 0, 0, 0, 0])),
    // Neither for reading nor for writing, so Landlock lets it be opened; but it is not O_PATH.
    ("fchmod of access mode 3", |names| {
        with(open(&names.file, libc::O_ACCMODE), |fd| call(libc::SYS_fchmod, [fd, 0o600, 0, 0, 0, 0]))
    }),
    ("fchown of access mode 3", |names| {
        with(open(&names.file, libc::O_ACCMODE | libc::O_NONBLOCK), |fd| {
            call(libc::SYS_fchown, [fd, KEEP, gid(), 0, 0, 0])
        })
    }),
    ("futimens of access mode 3", |names| {
        with(open(&names.file, libc::O_ACCMODE), |fd| call(libc::SYS_utimensat, [fd, 0, 0, 0, 0, 0]))
    }),
    ("fsetxattr of access mode 3", |names| {
        with(open(&names.file, libc::O_ACCMODE), |fd| {
            call(libc::SYS_fsetxattr, [fd, at(ATTRIBUTE), at(c"x"), 1, 0, 0])
        })
    }),
    ("fchmod of access mode 3 from openat2", |names| {
        let how = [libc::O_ACCMODE as u64, 0, 0];
        let open = [CWD, at(&names.file), how.as_ptr() as u64, size_of_val(&how) as u64, 0, 0];
        with(call_for(libc::SYS_openat2, open), |fd| call(libc::SYS_fchmod, [fd, 0o600, 0, 0, 0, 0]))
    }),
    ("fchmod of access mode 3 through /proc/self/fd", |names| {
        with(at_descriptor(&names.file, 77), |_| {
            with(open(c"/proc/self/fd/77", libc::O_ACCMODE), |fd| {
                call(libc::SYS_fchmod, [fd, 0o600, 0, 0, 0, 0])
            })
        })
    }),
];

#[cfg(target_arch = "x86_64")]
const OLD_TRICKS: &[(&str, Trick)] = &[
    ("chmod", |names| call(libc::SYS_chmod, [at(&names.file), 0o600, 0, 0, 0, 0])),
    ("chown", |names| call(libc::SYS_chown, [at(&names.file), KEEP, gid(), 0, 0, 0])),
    ("lchown", |names| call(libc::SYS_lchown, [at(&names.file), KEEP, gid(), 0, 0, 0])),
    ("utime", |names| call(libc::SYS_utime, [at(&names.file), 0, 0, 0, 0, 0])),
    ("utimes", |names| call(libc::SYS_utimes, [at(&names.file), 0, 0, 0, 0, 0])),
    ("futimesat", |names| call(libc::SYS_futimesat, [CWD, at(&names.file), 0, 0, 0, 0])),
    ("fchmod of access mode 3 from open", |names| {
        let open = [at(&names.file), libc::O_ACCMODE as u64, 0, 0, 0, 0];
        with(call_for(libc::SYS_open, open), |fd| call(libc::SYS_fchmod, [fd, 0o600, 0, 0, 0, 0]))
    }),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_TRICKS: &[(&str, Trick)] = &[];

/// Not on every kernel or file system: here the control may fail.
const NEW_TRICKS: &[(&str, Trick)] = &[
    ("fchmodat2 of O_PATH", |names| {
        with(open(&names.file, libc::O_PATH), |fd| call(452, [fd, at(NOTHING), 0o600, EMPTY, 0, 0]))
    }),
    ("setxattrat below O_PATH", |names| {
        let value = [at(c"x"), 1];
        with(open(&names.directory, libc::O_PATH), |fd| {
            call(SETXATTRAT, [fd, at(c"file"), 0, at(ATTRIBUTE), value.as_ptr() as u64, 16])
        })
    }),
    ("fsetxattr of AT_FDCWD", |names| {
        with(call_for(libc::SYS_chdir, [at(&names.directory), 0, 0, 0, 0, 0]), |_| {
            call(libc::SYS_fsetxattr, [CWD, at(ATTRIBUTE), at(c"x"), 1, 0, 0])
        })
    }),
    ("file_setattr", |names| {
        let mut attributes = [0u64; 3];
        let arguments = [CWD, at(&names.file), attributes.as_mut_ptr() as u64, 24, 0, 0];
        with(call_for(FILE_GETATTR, arguments), |_| {
            attributes[0] |= 0x80; // FS_XFLAG_NODUMP
            call(FILE_SETATTR, arguments)
        })
    }),
    ("FS_IOC_SETFLAGS of access mode 3", |names| {
        with(open(&names.file, libc::O_ACCMODE), |fd| {
            let mut flags = 0u64;
            let place = &raw mut flags as u64;
            with(call_for(libc::SYS_ioctl, [fd, libc::FS_IOC_GETFLAGS, place, 0, 0, 0]), |_| {
                flags |= 0x40; // FS_NODUMP_FL
                call(libc::SYS_ioctl, [fd, libc::FS_IOC_SETFLAGS, &raw mut flags as u64, 0, 0, 0])
            })
        })
    }),
];

#[test]
fn an_owner_behind_the_process_wall_changes_nothing_outside_of_its_cell() {
    for (name, trick) in [TRICKS, OLD_TRICKS, NEW_TRICKS].into_iter().flatten() {
        let (ending, changed) = attempt(&[], *trick);
        let dispensable = NEW_TRICKS.iter().any(|(other, _)| other == name);
        if dispensable && !changed {
            println!("control: {name} is not to be had here: {ending:?}");
        } else {
            assert_eq!((ending, changed), (Ending::Exited(0), true), "control: {name} without a filter");
        }
        for filters in [&[ROOTLESS][..], &[Program::Guest, ROOTLESS]] {
            let (ending, changed) = attempt(filters, *trick);
            assert!(!changed, "{name} changed a file of the caller ({ending:?})");
            assert!(
                matches!(ending, Ending::Exited(EPERM | EBADF | libc::ENOSYS)),
                "{name} failed otherwise: {ending:?}"
            );
        }
    }
}

/// The filter alone would let these through, as they look like work on an opened file: it relies on Landlock for those.
#[test]
fn a_descriptor_that_nobody_opened_is_good_for_nothing() {
    let tricks: [(&str, Trick); 4] = [
        ("fchmod", |names| {
            with(open(&names.file, libc::O_PATH), |fd| call(libc::SYS_fchmod, [fd, 0o600, 0, 0, 0, 0]))
        }),
        ("futimens", |names| {
            with(open(&names.file, libc::O_PATH), |fd| call(libc::SYS_utimensat, [fd, 0, 0, 0, 0, 0]))
        }),
        ("fsetxattr", |names| {
            with(open(&names.file, libc::O_PATH), |fd| {
                call(libc::SYS_fsetxattr, [fd, at(ATTRIBUTE), at(c"x"), 1, 0, 0])
            })
        }),
        ("ioctl", |names| {
            with(open(&names.file, libc::O_PATH), |fd| {
                let mut flags = 0u64;
                call(libc::SYS_ioctl, [fd, libc::FS_IOC_SETFLAGS, &raw mut flags as u64, 0, 0, 0])
            })
        }),
    ];
    for (name, trick) in tricks {
        assert_eq!(attempt(&[ROOTLESS], trick), (Ending::Exited(EBADF), false), "{name} of O_PATH");
    }
    for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR] {
        let outside = Outside::new();
        let names = outside.names();
        let opened = in_child(&[], || {
            assert_zero(landlock(&outside.cell));
            open(&names.file, flags).err().unwrap_or(0)
        });
        assert_eq!(opened, Ending::Exited(libc::EACCES), "Landlock is not asked about {flags:#x}");
    }
}

#[test]
fn what_was_opened_can_still_be_changed() {
    let outside = Outside::new();
    let file = name(&outside.cell.join("new"));
    let directory = name(&outside.cell);
    let work = || {
        assert_zero(landlock(&outside.cell));
        let Ok(fd) = open(&file, libc::O_CREAT | libc::O_RDWR) else { return 251 };
        assert_zero(call(libc::SYS_fchmod, [fd, 0o755, 0, 0, 0, 0]));
        assert_zero(call(libc::SYS_fchown, [fd, KEEP, gid(), 0, 0, 0]));
        let epoch = [0u64; 4];
        assert_zero(call(libc::SYS_utimensat, [fd, 0, epoch.as_ptr() as u64, 0, 0, 0]));
        assert_zero(call(libc::SYS_fsetxattr, [fd, at(ATTRIBUTE), at(c"x"), 1, 0, 0]));
        assert_zero(call(libc::SYS_fremovexattr, [fd, at(ATTRIBUTE), 0, 0, 0, 0]));
        with(open(&directory, libc::O_DIRECTORY), |fd| call(libc::SYS_fchmod, [fd, 0o700, 0, 0, 0, 0]))
    };
    for filters in [&[ROOTLESS][..], &[Program::Guest, ROOTLESS]] {
        assert_eq!(in_child(filters, work), Ending::Exited(0));
        let seen = outside.cell.join("new").metadata().unwrap();
        assert_eq!((seen.mode() & 0o777, seen.mtime()), (0o755, 0));
    }
}

#[test]
fn names_in_closed_directories_are_not_told() {
    let outside = Outside::new();
    let names = outside.names();
    let watch = |init: c_long| {
        assert_zero(landlock(&outside.cell));
        with(call_for(init, [0; 6]), |fd| {
            let created = u64::from(libc::IN_CREATE);
            call(libc::SYS_inotify_add_watch, [fd, at(&names.directory), created, 0, 0, 0])
        })
    };
    let watch_given = |fd: u64| call(libc::SYS_inotify_add_watch, [fd, at(&names.directory), 0, 0, 0, 0]);
    for filters in [&[][..], &[CELL], &[Program::Guest, CELL]] {
        let ending = in_child(filters, || watch(libc::SYS_inotify_init1));
        assert_eq!(ending, Ending::Exited(0), "control: Landlock does not mind under {filters:?}");
    }
    assert_ne!(in_child(&[], || watch_given(u64::MAX)), Ending::Exited(EPERM), "control: no descriptor");
    for filters in [&[PROCESS][..], &[ROOTLESS], &[Program::Guest, PROCESS], &[Program::Guest, ROOTLESS]] {
        assert_eq!(in_child(filters, || watch(libc::SYS_inotify_init1)), Ending::Exited(EPERM));
        assert_eq!(in_child(filters, || watch_given(u64::MAX)), Ending::Exited(EPERM));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(in_child(filters, || watch(libc::SYS_inotify_init)), Ending::Exited(EPERM));
    }
}

/// How it ended, and whether anything outside of the cell is different.
fn attempt(filters: &[Program], trick: Trick) -> (Ending, bool) {
    let outside = Outside::new();
    let names = outside.names();
    let before = outside.changed_at();
    // More than the clock that files are stamped with needs to tick.
    std::thread::sleep(Duration::from_millis(20));
    let ending = in_child(filters, || {
        assert_zero(landlock(&outside.cell));
        trick(&names)
    });
    (ending, outside.changed_at() != before)
}

/// A file of ours in a directory of ours, and beside it the cell. All are gone when the test is.
struct Outside {
    base: PathBuf,
    cell: PathBuf,
}

impl Outside {
    fn new() -> Outside {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let base = std::env::temp_dir().join(format!("casemate-metadata-{}-{number}", std::process::id()));
        let outside = Outside { cell: base.join("cell"), base };
        std::fs::create_dir_all(outside.base.join("outside")).expect("a scratch directory");
        std::fs::create_dir_all(&outside.cell).expect("a scratch directory");
        std::fs::write(outside.base.join("outside/file"), "kept").expect("a file");
        let names = outside.names();
        let there = [at(&names.file), at(c"user.there"), at(c"x"), 1, 0, 0];
        assert_eq!(call(libc::SYS_setxattr, there), 0, "the temporary directory takes attributes");
        outside
    }

    fn names(&self) -> Names {
        let directory = self.base.join("outside");
        Names { file: name(&directory.join("file")), directory: name(&directory) }
    }

    fn changed_at(&self) -> [(i64, i64); 2] {
        ["outside", "outside/file"].map(|path| {
            let seen = self.base.join(path).symlink_metadata().expect("still there");
            (seen.ctime(), seen.ctime_nsec())
        })
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// As the guest does it: everything that this kernel's Landlock knows is closed, but for one directory. An errno, or 0.
fn landlock(open_to: &Path) -> i32 {
    #[repr(C, packed)]
    struct PathBeneath {
        access: u64,
        parent: i32,
    }
    let mut path = [0u8; 256];
    path[..open_to.as_os_str().len()].copy_from_slice(open_to.as_os_str().as_bytes());
    let create = libc::SYS_landlock_create_ruleset;
    let Ok(abi) = call_for(create, [0, 0, 1, 0, 0, 0]) else { return 252 };
    let rights: u64 = match abi {
        0..3 => return 252,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    };
    let attributes = [rights];
    let Ok(ruleset) = call_for(create, [attributes.as_ptr() as u64, 8, 0, 0, 0, 0]) else { return 252 };
    let parent = call_for(libc::SYS_openat, [CWD, path.as_ptr() as u64, libc::O_PATH as u64, 0, 0, 0]);
    let Ok(parent) = parent else { return 253 };
    let rule = PathBeneath { access: rights, parent: parent as i32 };
    let added = call(libc::SYS_landlock_add_rule, [ruleset, 1, &raw const rule as u64, 0, 0, 0]);
    if added != 0 { added } else { call(libc::SYS_landlock_restrict_self, [ruleset, 0, 0, 0, 0, 0]) }
}

fn call(number: c_long, arguments: [u64; 6]) -> i32 {
    errno_of(number, arguments)
}

/// What it returned, or its errno.
fn call_for(number: c_long, [a, b, c, d, e, f]: [u64; 6]) -> Result<u64, i32> {
    // SAFETY: callers pass pointers to live data of the size the call expects.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(255)),
        result => Ok(result as u64),
    }
}

fn open(path: &CStr, flags: i32) -> Result<u64, i32> {
    call_for(libc::SYS_openat, [CWD, at(path), flags as u64, 0o644, 0, 0])
}

/// Opened with `O_PATH` under a number that is known in advance.
fn at_descriptor(path: &CStr, number: u64) -> Result<u64, i32> {
    call_for(libc::SYS_dup3, [open(path, libc::O_PATH)?, number, 0, 0, 0, 0])
}

fn with(value: Result<u64, i32>, next: impl FnOnce(u64) -> i32) -> i32 {
    value.map_or_else(|errno| errno, next)
}

fn at(text: &CStr) -> u64 {
    text.as_ptr() as u64
}

fn name(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero in a path")
}

fn gid() -> u64 {
    // SAFETY: reads an id.
    unsafe { libc::getegid() }.into()
}

/// Without a panic, which would allocate in the child.
fn assert_zero(errno: i32) {
    if errno != 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(254) };
    }
}
