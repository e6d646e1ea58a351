//! Launcher and guest, carried inside this binary.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;

use crate::sys;

/// The programs that the engine starts. One installed binary holds them all.
#[derive(Clone)]
pub struct Agents {
    launcher: Cow<'static, [u8]>,
    guest: Cow<'static, [u8]>,
}

impl Agents {
    /// Those built together with this engine.
    pub fn embedded() -> Agents {
        Agents {
            launcher: Cow::Borrowed(include_bytes!(concat!(env!("OUT_DIR"), "/casemate-launcher"))),
            guest: Cow::Borrowed(include_bytes!(concat!(env!("OUT_DIR"), "/casemate-guest"))),
        }
    }

    /// Other builds of them. Negative controls need a launcher that leaves a layer out; no interface of the
    /// `casemate` binary leads here.
    pub fn from_bytes(launcher: Vec<u8>, guest: Vec<u8>) -> Agents {
        Agents { launcher: Cow::Owned(launcher), guest: Cow::Owned(guest) }
    }

    pub(crate) fn launcher(&self) -> io::Result<OwnedFd> {
        sys::sealed_program("casemate-launcher", &self.launcher)
    }

    pub(crate) fn guest(&self) -> io::Result<OwnedFd> {
        sys::sealed_program("casemate-guest", &self.guest)
    }
}

impl std::fmt::Debug for Agents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Agents {{ launcher: {} bytes, guest: {} bytes }}", self.launcher.len(), self.guest.len())
    }
}
