//! Our other programs, carried inside this binary: the launcher, with the guest in it; the guest by itself, for walls that have to
//! start one; the first process of virtual machines; the WASM worker and its compiler; the unpacker of images.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;

use sha2::{Digest, Sha256};

use crate::sys;

/// The programs that the engine starts. One installed binary holds everything.
#[derive(Clone)]
pub struct Agents {
    launcher: Cow<'static, [u8]>,
    /// The one for virtual machines.
    machine_launcher: Cow<'static, [u8]>,
    machine: Cow<'static, [u8]>,
    worker: Cow<'static, [u8]>,
}

const LAUNCHER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-launcher"));
const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-guest"));
const WORKER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-wasm"));
const MACHINE_LAUNCHER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-machine-launcher"));
const MACHINE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-machine"));
const UNPACKER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-unpack"));
const COMPILER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-wasm-compile"));

/// SHA-256 of what is embedded.
pub(crate) const WORKER_DIGEST: &[u8; 32] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-wasm.sha256"));
pub(crate) const COMPILER_DIGEST: &[u8; 32] =
    include_bytes!(concat!(env!("OUT_DIR"), "/casemate-wasm-compile.sha256"));

const MACHINE_DIGEST: &[u8; 32] = include_bytes!(concat!(env!("OUT_DIR"), "/casemate-machine.sha256"));
const MACHINE_LAUNCHER_DIGEST: &[u8; 32] =
    include_bytes!(concat!(env!("OUT_DIR"), "/casemate-machine-launcher.sha256"));

impl Agents {
    /// Those built together with this engine.
    pub fn embedded() -> Agents {
        Agents {
            launcher: Cow::Borrowed(LAUNCHER),
            machine_launcher: Cow::Borrowed(MACHINE_LAUNCHER),
            machine: Cow::Borrowed(MACHINE),
            worker: Cow::Borrowed(WORKER),
        }
    }

    /// A launcher that leaves a layer out on purpose, to show that a probe notices. It records the postures of its cells,
    /// but does not hold them against what they lack. No interface of the `casemate` binary leads here.
    pub fn for_negative_controls(launcher: Vec<u8>) -> Agents {
        let machine_launcher = Cow::Owned(launcher.clone());
        Agents { launcher: Cow::Owned(launcher), machine_launcher, ..Agents::embedded() }
    }

    /// Virtual machines that were taken over: this program is the first process in them. No interface of the `casemate` binary leads
    /// here.
    pub fn for_hostile_machine(machine: Vec<u8>) -> Agents {
        Agents { machine: Cow::Owned(machine), ..Agents::embedded() }
    }

    /// A WASM worker that was taken over: this program runs in its place, behind the walls that a worker has. No interface of
    /// the `casemate` binary leads here.
    pub fn for_hostile_worker(worker: Vec<u8>) -> Agents {
        Agents { worker: Cow::Owned(worker), ..Agents::embedded() }
    }

    pub(crate) fn launcher(&self) -> io::Result<OwnedFd> {
        sys::sealed_program("casemate-launcher", &self.launcher)
    }

    /// Open for reading only: gVisor wants it so.
    pub(crate) fn guest(&self) -> io::Result<OwnedFd> {
        sys::reopened_for_reading(&sys::sealed_program("casemate-guest", GUEST)?)
    }

    /// The same, for an image.
    pub(crate) fn guest_program(&self) -> &'static [u8] {
        GUEST
    }

    /// The first process of a virtual machine.
    pub(crate) fn machine_program(&self) -> &[u8] {
        &self.machine
    }

    /// The launcher in there.
    pub(crate) fn machine_launcher(&self) -> &[u8] {
        &self.machine_launcher
    }

    /// Of both.
    pub(crate) fn machine_digest(&self) -> [u8; 32] {
        let launcher = match &self.machine_launcher {
            Cow::Borrowed(_) => *MACHINE_LAUNCHER_DIGEST,
            Cow::Owned(other) => Sha256::digest(other).into(),
        };
        let machine = match &self.machine {
            Cow::Borrowed(_) => *MACHINE_DIGEST,
            Cow::Owned(other) => Sha256::digest(other).into(),
        };
        Sha256::new().chain_update(machine).chain_update(launcher).finalize().into()
    }

    pub(crate) fn worker(&self) -> io::Result<OwnedFd> {
        sys::sealed_program("casemate-wasm", &self.worker)
    }

    pub(crate) fn compiler(&self) -> io::Result<OwnedFd> {
        sys::sealed_program("casemate-wasm-compile", COMPILER)
    }
}

/// Images are taken in without an engine.
pub(crate) fn unpacker() -> io::Result<OwnedFd> {
    sys::sealed_program("casemate-unpack", UNPACKER)
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Agents {{ launcher: {} bytes }}", self.launcher.len())
    }
}
