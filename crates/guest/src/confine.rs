//! The `process` wall: what every payload is put under between fork and exec, on every outer wall alike.

use alloc::vec;
use alloc::vec::Vec;

use casemate_bare::io;
use casemate_wire::guest::{
    Access, Config, Filter, Landlock, LandlockRule, Network, Presence, Privileges, TerminalSize, Terminals,
};
use rustix::fd::AsFd;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};

use crate::landlock::{self, Rights, Ruleset, Scope};
use crate::sys;
use crate::terminal::{self, Terminal};

/// Parameters of the wall, prepared once per cell.
pub(crate) struct Confinement {
    payload_id: Option<u32>,
    rlimits: Vec<(u32, u64)>,
    /// None in a kernel that has no Landlock.
    landlock: Option<Vec<LandlockRule>>,
    scoped: bool,
    /// None where the guest, and with it all that it starts, has the payload's filter already.
    filter: Option<&'static [libc::sock_filter]>,
    terminals: Terminals,
    #[cfg(feature = "machine")]
    privileges: Privileges,
}

/// A step of the confinement that failed.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) error: io::Error,
}

pub(crate) fn step(name: &'static str) -> impl FnOnce(io::Error) -> Step {
    move |error| Step { name, error }
}

impl Confinement {
    /// Refuses what this guest cannot give.
    pub(crate) fn check(config: &Config) -> io::Result<()> {
        match config.privileges {
            Privileges::None => Ok(()),
            Privileges::All if cfg!(feature = "machine") => Ok(()),
            Privileges::All => Err(io::Error::other("nobody is root here")),
        }
    }

    pub(crate) fn new(config: &Config) -> Confinement {
        let limits = &config.rlimits;
        let optional = [
            (libc::RLIMIT_NPROC, limits.processes),
            (libc::RLIMIT_CPU, limits.cpu_seconds),
            (libc::RLIMIT_FSIZE, limits.file_size),
        ];
        let mut rlimits = vec![(libc::RLIMIT_CORE, 0), (libc::RLIMIT_NOFILE, limits.open_files)];
        rlimits.extend(optional.into_iter().filter_map(|(resource, value)| Some((resource, value?))));
        Confinement {
            payload_id: config.payload_id,
            rlimits,
            landlock: match &config.landlock {
                Landlock::Rules(rules) => Some(rules.clone()),
                Landlock::NotThere => None,
            },
            scoped: config.network == Network::None,
            filter: match config.filter {
                Filter::Inherited => None,
                Filter::Own => Some(casemate_filter::program(config.program())),
            },
            terminals: config.terminals,
            #[cfg(feature = "machine")]
            privileges: config.privileges,
        }
    }

    /// A terminal for a payload, if there are any in this cell.
    pub(crate) fn terminal(&self, size: TerminalSize) -> io::Result<Terminal> {
        match self.terminals {
            Terminals::Own => terminal::open(size, self.payload_id),
            Terminals::None => Err(io::Error::from_raw_os_error(libc::ENOTTY)),
        }
    }

    /// Confines the calling process for good. The filter comes last: it denies much of what precedes it.
    pub(crate) fn apply(&self) -> Result<(), Step> {
        for &(resource, value) in self.rlimits.iter().filter(|_| stands("rlimits")) {
            sys::lower_rlimit(resource, value).map_err(step("rlimits"))?;
        }
        if let Some(id) = self.payload_id
            && stands("payload-ids")
        {
            sys::become_payload(id).map_err(step("drop ids and capabilities"))?;
        }
        if stands("no-new-privileges") && !self.has_the_machine() {
            sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(step("no new privileges"))?;
        }
        if let Some(rules) = self.landlock.as_ref().filter(|_| stands("landlock")) {
            self.restrict_files(rules).map_err(step("landlock"))?;
        }
        if let Some(filter) = self.filter.filter(|_| stands("seccomp")) {
            sys::install_filter(filter).map_err(step("seccomp filter"))?;
        }
        Ok(())
    }

    /// Whether the payload may be whoever it wants to be: what is around it is its own.
    #[cfg(feature = "machine")]
    fn has_the_machine(&self) -> bool {
        self.privileges == Privileges::All
    }

    #[cfg(not(feature = "machine"))]
    const fn has_the_machine(&self) -> bool {
        false
    }

    /// Without privileges, the launcher can read the posture only of a process that lets itself be looked at. Where
    /// the payload shares its id with the guest there are none; this process holds nothing of the guest any more.
    pub(crate) fn show_posture(&self) -> io::Result<()> {
        if self.payload_id.is_none() { sys::prctl(libc::PR_SET_DUMPABLE, 1).map(drop) } else { Ok(()) }
    }

    /// Everything this kernel's Landlock knows is governed, hence denied; the rules open up what the cell was given.
    fn restrict_files(&self, rules: &[LandlockRule]) -> io::Result<()> {
        let abi = match landlock::abi() {
            0 => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            abi => abi.min(landlock::NEWEST_ABI),
        };
        let scope = match self.scoped {
            // Without namespaces of its own, a payload must not signal or reach anything outside of its domain. Where Landlock
            // cannot see to that, this fails.
            true => Scope::Everything,
            // Where only one id can be mapped, nothing else keeps a payload from signalling the guest. Elsewhere payloads of one
            // cell may signal each other: they are of one mind.
            false if abi >= 6 && self.payload_id.is_none() => Scope::Signals,
            false => Scope::Files,
        };
        let ruleset = Ruleset::new(abi, scope)?;
        for rule in rules {
            let path = match open(rule.path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(path) => path,
                Err(_) if rule.presence == Presence::Optional => continue,
                Err(error) => return Err(error.into()),
            };
            let mut rights = rights(rule.access, abi);
            if FileType::from_raw_mode(fstat(&path)?.st_mode) != FileType::Directory {
                rights = rights.of_files();
            }
            ruleset.allow(path.as_fd(), rights)?;
        }
        ruleset.restrict_self()
    }
}

/// Whether a layer is part of this build: always, but for the negative controls.
#[cfg(not(feature = "weaken"))]
const fn stands(_layer: &str) -> bool {
    true
}

#[cfg(feature = "weaken")]
fn stands(layer: &str) -> bool {
    !crate::weaken::without(layer)
}

fn rights(access: Access, abi: u32) -> Rights {
    match access {
        Access::ReadExecute => Rights::read_and_execute(),
        Access::Read => Rights::READ_FILE.or(Rights::READ_DIR),
        Access::ReadWrite => Rights::read_and_write(abi),
        Access::Device => Rights::device(abi),
        Access::Terminal => Rights::terminal(abi),
    }
}
