//! The `process` wall: what every payload is put under between fork and exec, on every outer wall alike.

use std::io;

use casemate_wire::guest::{Access, Config, Filter, LandlockRule, Network, Presence};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::sys;

/// Parameters of the wall, prepared once per cell.
pub(crate) struct Confinement {
    payload_id: Option<u32>,
    rlimits: Vec<(libc::__rlimit_resource_t, u64)>,
    landlock: Vec<LandlockRule>,
    scoped: bool,
    /// None where the guest, and with it all that it starts, has the payload's filter already.
    filter: Option<&'static [libc::sock_filter]>,
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
            landlock: config.landlock.clone(),
            scoped: config.network == Network::None,
            filter: match config.filter {
                Filter::Inherited => None,
                Filter::Own => Some(casemate_filter::program(config.program())),
            },
        }
    }

    /// Confines the calling process for good. The filter comes last: it denies much of what precedes it.
    pub(crate) fn apply(&self) -> Result<(), Step> {
        for &(resource, value) in self.rlimits.iter().filter(|_| stands("rlimits")) {
            // A hard limit that is already lower cannot be raised, and need not be.
            let value = sys::hard_rlimit(resource).map_err(step("rlimits"))?.min(value);
            sys::set_rlimit(resource, value, value).map_err(step("rlimits"))?;
        }
        if let Some(id) = self.payload_id
            && stands("payload-ids")
        {
            sys::become_payload(id).map_err(step("drop ids and capabilities"))?;
        }
        if stands("no-new-privileges") {
            sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(step("no new privileges"))?;
        }
        if stands("landlock") {
            self.restrict_files().map_err(step("landlock"))?;
        }
        if let Some(filter) = self.filter.filter(|_| stands("seccomp")) {
            sys::install_filter(filter).map_err(step("seccomp filter"))?;
        }
        Ok(())
    }

    /// Without privileges, the launcher can read the posture only of a process that lets itself be looked at. Where
    /// the payload shares its id with the guest there are none; this process holds nothing of the guest any more.
    pub(crate) fn show_posture(&self) -> io::Result<()> {
        if self.payload_id.is_none() { sys::prctl(libc::PR_SET_DUMPABLE, 1) } else { Ok(()) }
    }

    fn restrict_files(&self) -> io::Result<()> {
        let status = self.ruleset(kernel_abi()?)?.restrict_self().map_err(io::Error::other)?;
        match status.ruleset {
            RulesetStatus::FullyEnforced => Ok(()),
            other => Err(io::Error::other(format!("only {other:?}"))),
        }
    }

    /// Everything this kernel's Landlock knows is handled, hence denied; the rules open up what the cell was given.
    fn ruleset(&self, abi: ABI) -> io::Result<RulesetCreated> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))
            .map_err(io::Error::other)?;
        if self.scoped {
            // Without namespaces of its own, a payload must not signal or reach anything outside of its domain.
            ruleset = ruleset
                .handle_access(AccessNet::from_all(ABI::V4))
                .and_then(|ruleset| ruleset.scope(Scope::from_all(ABI::V6)))
                .map_err(io::Error::other)?;
        } else if abi >= ABI::V6 {
            // Where only one id can be mapped, nothing else keeps a payload from signalling the guest.
            ruleset = ruleset.scope(Scope::Signal).map_err(io::Error::other)?;
        }
        let mut created = ruleset.create().map_err(io::Error::other)?;
        for rule in &self.landlock {
            let path = match PathFd::new(&rule.path) {
                Ok(path) => path,
                Err(_) if rule.presence == Presence::Optional => continue,
                Err(error) => return Err(io::Error::other(error)),
            };
            let mut access = rights(rule.access, abi);
            if !std::fs::metadata(&rule.path).is_ok_and(|meta| meta.is_dir()) {
                access &= AccessFs::from_file(abi);
            }
            created = created.add_rule(PathBeneath::new(path, access)).map_err(io::Error::other)?;
        }
        Ok(created)
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

fn rights(access: Access, abi: ABI) -> BitFlags<AccessFs> {
    match access {
        Access::ReadExecute => AccessFs::from_read(abi),
        Access::Read => AccessFs::ReadFile | AccessFs::ReadDir,
        Access::ReadWrite => AccessFs::from_all(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock),
        // Shells open devices with O_TRUNC.
        Access::Device => {
            (AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate) & AccessFs::from_all(abi)
        }
    }
}

/// The newest ABI that both this kernel and this code know.
fn kernel_abi() -> io::Result<ABI> {
    match sys::landlock_abi() {
        ..=0 => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        1 => Ok(ABI::V1),
        2 => Ok(ABI::V2),
        3 => Ok(ABI::V3),
        4 => Ok(ABI::V4),
        5 => Ok(ABI::V5),
        _ => Ok(ABI::V6),
    }
}
