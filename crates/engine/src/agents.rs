//! The launcher, with the guest in it, carried inside this binary.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;

use crate::sys;

/// The program that the engine starts. One installed binary holds everything.
#[derive(Clone)]
pub struct Agents {
    launcher: Cow<'static, [u8]>,
}

impl Agents {
    /// Those built together with this engine.
    pub fn embedded() -> Agents {
        Agents { launcher: Cow::Borrowed(include_bytes!(concat!(env!("OUT_DIR"), "/casemate-launcher"))) }
    }

    /// A launcher that leaves a layer out on purpose, to show that a probe notices. It records the postures of its cells,
    /// but does not hold them against what they lack. No interface of the `casemate` binary leads here.
    pub fn for_negative_controls(launcher: Vec<u8>) -> Agents {
        Agents { launcher: Cow::Owned(launcher) }
    }

    pub(crate) fn launcher(&self) -> io::Result<OwnedFd> {
        sys::sealed_program("casemate-launcher", &self.launcher)
    }
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Agents {{ launcher: {} bytes }}", self.launcher.len())
    }
}
