//! gVisor's `runsc`. It is got once, by `cargo xtask`, and every home gets a link to it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// `cargo xtask test` says here where a home with it is.
const VARIABLE: &str = "CASEMATE_TEST_GVISOR";

/// Puts a link into a home, and what is known about it: the same file on the same machine.
pub fn give_to(home: &Path) {
    let (place, ours) = (place(), home.join("gvisor"));
    fs::create_dir_all(&ours).expect("a directory of the home");
    symlink(place.join("runsc"), ours.join("runsc")).expect("a link to runsc");
    fs::copy(place.join("probe.json"), ours.join("probe.json")).expect("what is known about it");
}

/// Where it is: what the variable says, or beside the build output that this program is part of.
fn place() -> PathBuf {
    let beside = || {
        let program = std::env::current_exe().expect("this program has a path");
        program.ancestors().map(|dir| dir.join("gvisor-home/gvisor")).find(|dir| dir.is_dir())
    };
    let place = std::env::var_os(VARIABLE).map(|home| PathBuf::from(home).join("gvisor")).or_else(beside);
    place
        .filter(|place| place.join("probe.json").is_file())
        .unwrap_or_else(|| panic!("runsc is missing: run `cargo xtask runtimes` (or set {VARIABLE})"))
}
