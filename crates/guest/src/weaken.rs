//! Test builds only: a guest that leaves layers out, so that a probe can show that it notices.
//!
//! The layers are named at the end of the program's own file (`\nwithout:NAME,NAME\n`), which the test appends to
//! it. This module is compiled with the feature `weaken` alone, and `casemate` is never built with it.

use std::borrow::ToOwned;
use std::string::String;
use std::sync::LazyLock;
use std::vec::Vec;

static WITHOUT: LazyLock<Vec<String>> = LazyLock::new(|| {
    let program = std::fs::read("/proc/self/exe").unwrap_or_default();
    let tail = String::from_utf8_lossy(&program[program.len().saturating_sub(512)..]).into_owned();
    let names = tail.rsplit_once("\nwithout:").map(|(_, names)| names.trim_end());
    names.map(|names| names.split(',').map(str::to_owned).collect()).unwrap_or_default()
});

/// Reads the list while this process may still open its own program.
pub fn load() {
    LazyLock::force(&WITHOUT);
}

pub fn without(layer: &str) -> bool {
    WITHOUT.iter().any(|name| name == layer)
}

/// Without the layer `descriptors`, one more than 0–2 survives the coming `execve`.
pub fn leave_a_descriptor() -> casemate_bare::io::Result<()> {
    if without("descriptors") {
        crate::sys::duplicate_stdin()?;
    }
    Ok(())
}
