//! Clients of the service that others wrote, for the tests that run them: installed once, in a place of their own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::packages;
use crate::shell::{self, Result, heading};

/// Where tests look for a Python that has them (`crates/testkit/tests/clients.rs`).
pub(crate) const VARIABLE: &str = "CASEMATE_TEST_CLIENTS";

/// The distribution's own, so that what is installed beside it stays usable.
const PYTHON: &str = "/usr/bin/python3";

/// The interpreter of an environment with everything in `requirements.txt`.
pub(crate) fn ensure() -> Result<PathBuf> {
    let wanted = shell::root().join("crates/testkit/clients/requirements.txt");
    let text = fs::read_to_string(&wanted).map_err(|error| format!("{}: {error}", wanted.display()))?;
    let place = shell::target_dir().join("clients");
    let (python, made) = (place.join("bin/python"), place.join("requirements.txt"));
    if fs::read_to_string(&made).is_ok_and(|made| made == text) {
        return Ok(python);
    }
    packages::ensure(&["python3-venv"])?;
    heading("installing clients of the service");
    let _ = fs::remove_dir_all(&place);
    shell::run(Command::new(PYTHON).args(["-m", "venv"]).arg(&place))?;
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
        "-r",
    ]);
    shell::run(pip.arg(&wanted))?;
    // Last: what is marked as made is whole.
    fs::write(&made, text).map_err(|error| format!("{}: {error}", made.display()))?;
    Ok(python)
}
