//! What an unpacker gives up before it reads the first byte.

use std::io;

use casemate_bare::process::install_filter;
use casemate_filter::Program;
use casemate_guest::landlock::{self, Rights, Ruleset, Scope};
use rustix::fd::BorrowedFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// An image of the largest size takes a minute or two. Whatever goes on for this long will not end.
const MAX_CPU_SECONDS: u64 = 10 * 60;
/// What a layer has brought is remembered, and a Zstandard window is kept.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// One for each level of a tree that is removed, and a few more.
const MAX_OPEN_FILES: u64 = 256;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot confine the unpacker: {step}: {source}")]
pub struct Unconfined {
    step: &'static str,
    source: io::Error,
}

/// Confines this process for good: nothing but its standard streams, and what is below `directory`, if there is one.
pub fn confine(directory: Option<BorrowedFd<'_>>, max_file: u64) -> Result<(), Unconfined> {
    let step = |step| move |source: io::Error| Unconfined { step, source };
    limits(directory.map_or(0, |_| max_file)).map_err(step("limits"))?;
    drop_capabilities().map_err(step("capabilities"))?;
    set_no_new_privs(true).map_err(io::Error::from).map_err(step("no new privileges"))?;
    landlock(directory).map_err(step("Landlock"))?;
    // Last: it denies most of the above.
    let filter = casemate_filter::program(Program::Unpacker);
    install_filter(filter).map_err(os_error).map_err(step("seccomp filter"))
}

fn limits(max_file: u64) -> io::Result<()> {
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Cpu, MAX_CPU_SECONDS),
        (Resource::As, MAX_ADDRESS_SPACE),
        (Resource::Fsize, max_file),
        (Resource::Nofile, MAX_OPEN_FILES),
        (Resource::Nproc, 0),
    ] {
        // A hard limit that is already lower cannot be raised, and need not be.
        let most = getrlimit(resource).maximum.map_or(most, |hard| hard.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// All of them, so that not even root's own files that are closed to everybody open up.
fn drop_capabilities() -> io::Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // Unprivileged, there is nothing to remove, and no right to; beyond the last, nothing to ask for.
        if rustix::process::geteuid().is_root() && capability_is_in_bounding_set(capability) == Ok(true) {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

fn landlock(directory: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let abi = match landlock::abi() {
        // Without it, hard links between directories cannot be allowed.
        0 | 1 => return Err(io::Error::other("the kernel has none, or an old one; Linux 5.19 is needed")),
        abi => abi.min(landlock::NEWEST_ABI),
    };
    let scope = if abi >= 6 { Scope::Everything } else { Scope::Files };
    let ruleset = Ruleset::new(abi, scope).map_err(os_error)?;
    if let Some(directory) = directory {
        ruleset.allow(directory, Rights::fill()).map_err(os_error)?;
    }
    ruleset.restrict_self().map_err(os_error)
}

fn os_error(error: casemate_bare::io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(error.to_string()),
    }
}
