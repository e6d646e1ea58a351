//! Landlock, by hand: three system calls. Nothing about it is best effort: the kernel refuses a rule set that it does not
//! understand as a whole, and whoever asks for one has looked up what it does understand.
#![allow(unsafe_code, reason = "system calls that take structures by address")]

use core::mem::size_of;

use casemate_bare::call::call;
use casemate_bare::io;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The newest version of Landlock that this code knows. What later ones add is not asked for: they govern what they are told to, and
/// nothing else.
pub const NEWEST_ABI: u32 = 6;

/// What can be done with files, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights(u64);

impl Rights {
    const EXECUTE: Rights = Rights(1 << 0);
    const WRITE_FILE: Rights = Rights(1 << 1);
    pub const READ_FILE: Rights = Rights(1 << 2);
    pub const READ_DIR: Rights = Rights(1 << 3);
    const REMOVE_DIR: Rights = Rights(1 << 4);
    const REMOVE_FILE: Rights = Rights(1 << 5);
    const MAKE_CHAR: Rights = Rights(1 << 6);
    const MAKE_DIR: Rights = Rights(1 << 7);
    const MAKE_REG: Rights = Rights(1 << 8);
    const MAKE_BLOCK: Rights = Rights(1 << 11);
    const MAKE_SYM: Rights = Rights(1 << 12);
    /// Links from one directory to another, from ABI 2 on.
    const REFER: Rights = Rights(1 << 13);
    const TRUNCATE: Rights = Rights(1 << 14);
    const IOCTL_DEV: Rights = Rights(1 << 15);

    /// Everything that this version of Landlock governs.
    pub fn all(abi: u32) -> Rights {
        Rights(match abi {
            0 => 0,
            1 => (1 << 13) - 1,
            2 => (1 << 14) - 1,
            3 | 4 => (1 << 15) - 1,
            _ => (1 << 16) - 1,
        })
    }

    pub fn read_and_execute() -> Rights {
        Rights::EXECUTE.or(Rights::READ_FILE).or(Rights::READ_DIR)
    }

    /// Reading, writing and making anything but devices.
    pub fn read_and_write(abi: u32) -> Rights {
        Rights(Rights::all(abi).0 & !Rights::MAKE_CHAR.or(Rights::MAKE_BLOCK).0)
    }

    /// Making and removing files, directories and links, and looking for what is there. From ABI 2 on.
    pub fn fill() -> Rights {
        let make = Rights::MAKE_DIR.or(Rights::MAKE_REG).or(Rights::MAKE_SYM).or(Rights::REFER);
        let remove = Rights::REMOVE_DIR.or(Rights::REMOVE_FILE);
        make.or(remove).or(Rights::WRITE_FILE).or(Rights::READ_DIR)
    }

    /// Shells open devices with O_TRUNC.
    pub fn device(abi: u32) -> Rights {
        Rights::READ_FILE.or(Rights::WRITE_FILE).or(Rights::TRUNCATE).and(Rights::all(abi))
    }

    /// What programs do to a terminal besides reading and writing.
    pub fn terminal(abi: u32) -> Rights {
        Rights::device(abi).or(Rights::IOCTL_DEV).and(Rights::all(abi))
    }

    /// Those that make sense for something that is not a directory.
    pub fn of_files(self) -> Rights {
        let files = Rights::EXECUTE.or(Rights::WRITE_FILE).or(Rights::READ_FILE).or(Rights::TRUNCATE);
        self.and(files.or(Rights::IOCTL_DEV))
    }

    pub const fn or(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    const fn and(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
}

/// What is governed besides files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Files,
    /// No signal leaves the domain. From ABI 6 on.
    Signals,
    /// No signal and no abstract socket leaves the domain, and no TCP port is bound or connected to. From ABI 6 on.
    Everything,
}

/// Rules that nothing is under yet. What no rule allows is denied.
#[derive(Debug)]
pub struct Ruleset(OwnedFd);

/// As the kernel has them.
#[repr(C)]
struct RulesetAttributes {
    files: u64,
    ports: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: RawFd,
}

/// The version of Landlock that this kernel has, 0 where there is none.
pub fn abi() -> u32 {
    const VERSION: usize = 1;
    // SAFETY: with no attributes and this flag the call only returns a number.
    let abi = unsafe { call(libc::SYS_landlock_create_ruleset, [0, 0, VERSION]) };
    abi.map_or(0, |abi| abi as u32)
}

impl Ruleset {
    /// One that governs all that `abi` knows of files, and `scope`.
    pub fn new(abi: u32, scope: Scope) -> io::Result<Ruleset> {
        const TCP: u64 = 0b11;
        const ABSTRACT_SOCKETS: u64 = 0b01;
        const SIGNALS: u64 = 0b10;
        let (ports, scoped) = match scope {
            Scope::Files => (0, 0),
            Scope::Signals => (0, SIGNALS),
            Scope::Everything => (TCP, SIGNALS | ABSTRACT_SOCKETS),
        };
        let attributes = RulesetAttributes { files: Rights::all(abi).0, ports, scoped };
        // A kernel takes no more than it knows, and has to be told that there is no more.
        let size = if scope == Scope::Files { size_of::<u64>() } else { size_of::<RulesetAttributes>() };
        // SAFETY: the kernel reads `size` bytes of the attributes.
        let fd =
            unsafe { call(libc::SYS_landlock_create_ruleset, [&raw const attributes as usize, size, 0]) }?;
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Ruleset(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Allows `rights` to what is behind `path`, and to what is below it.
    pub fn allow(&self, path: BorrowedFd<'_>, rights: Rights) -> io::Result<()> {
        const PATH_BENEATH: usize = 1;
        let rule = PathBeneath { allowed: rights.0, parent: path.as_raw_fd() };
        let ruleset = self.0.as_fd().as_raw_fd() as usize;
        // SAFETY: the kernel reads one rule.
        unsafe { call(libc::SYS_landlock_add_rule, [ruleset, PATH_BENEATH, &raw const rule as usize, 0]) }?;
        Ok(())
    }

    /// This process, and whatever it starts, is under the rules for good.
    pub fn restrict_self(self) -> io::Result<()> {
        // SAFETY: integers only.
        unsafe { call(libc::SYS_landlock_restrict_self, [self.0.as_raw_fd() as usize, 0]) }?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_part_of(part: Rights, whole: Rights) -> bool {
        part.and(whole) == part
    }

    #[test]
    fn no_right_is_asked_for_that_a_version_does_not_know() {
        for abi in 1..=7 {
            let all = Rights::all(abi);
            for rights in [Rights::read_and_execute(), Rights::read_and_write(abi), Rights::device(abi)] {
                assert!(is_part_of(rights, all), "ABI {abi}");
                assert!(is_part_of(rights.of_files(), rights), "ABI {abi}");
            }
            let writing = Rights::read_and_write(abi);
            assert_eq!(writing.and(Rights::MAKE_CHAR.or(Rights::MAKE_BLOCK)).0, 0, "no devices, ABI {abi}");
            assert!(is_part_of(Rights::all(abi - 1), all), "versions only add");
            assert!(abi < 2 || is_part_of(Rights::fill(), all), "ABI {abi}");
        }
        assert_eq!(Rights::read_and_execute().and(Rights::WRITE_FILE).0, 0);
    }

    #[test]
    fn the_kernel_takes_the_rules_of_every_version_that_it_has() {
        let newest = abi();
        assert!(newest > 0, "these tests need Landlock");
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).expect("a root");
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).expect("a device");
        for abi in 1..=newest.min(6) {
            let scopes = [Scope::Files, Scope::Signals, Scope::Everything];
            for scope in scopes.into_iter().filter(|scope| *scope == Scope::Files || abi >= 6) {
                let rules = Ruleset::new(abi, scope).expect("a rule set");
                rules.allow(root.as_fd(), Rights::read_and_write(abi)).expect("a rule for a directory");
                rules.allow(null.as_fd(), Rights::device(abi).of_files()).expect("a rule for a file");
                assert!(rules.allow(null.as_fd(), Rights::READ_DIR).is_err(), "a file is no directory");
            }
        }
    }
}
