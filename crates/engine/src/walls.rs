//! The walls. Each starts guests behind something; the spine does the rest.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use crate::wall::WallError;

pub(crate) mod container;
pub(crate) mod docker;
pub(crate) mod gvisor;
pub(crate) mod microvm;
mod native;
pub(crate) mod process;
pub(crate) mod wasm;

/// A program of ours in memory, put there when it is first needed.
fn made_once(
    slot: &OnceLock<OwnedFd>,
    make: impl FnOnce() -> io::Result<OwnedFd>,
) -> Result<&OwnedFd, WallError> {
    if slot.get().is_none() {
        let made = make()
            .map_err(|error| WallError::Failed(format!("cannot put a program into memory: {error}")))?;
        let _ = slot.set(made);
    }
    slot.get().ok_or_else(|| WallError::Failed("a program is missing".into()))
}
