//! gVisor's `runsc`, as `casemate setup gvisor` gets it: once, for all homes of all tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Result, heading};

/// Where tests look for a home with it (`crates/testkit/src/gvisor.rs`).
pub(crate) const VARIABLE: &str = "CASEMATE_TEST_GVISOR";

/// A home with a `runsc` that works, as was seen since this machine was started.
pub(crate) fn ensure(casemate: &Path) -> Result<PathBuf> {
    let home = shell::target_dir().join("gvisor-home");
    let run = |words: &[&str]| shell::run(Command::new(casemate).args(words).env("CASEMATE_HOME", &home));
    if !home.join("gvisor/runsc").exists() {
        heading("getting runsc");
        run(&["setup", "gvisor"])?;
    }
    run(&["run", "--on", "gvisor", "--", "true"])?;
    Ok(home)
}
