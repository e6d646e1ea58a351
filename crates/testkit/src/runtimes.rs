//! Python and JavaScript for the WASM wall. They are made once, by `cargo xtask`, and every home gets links to them. The package that
//! makes components of Python code lies beside them.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// `cargo xtask test` says here where they are.
const VARIABLE: &str = "CASEMATE_TEST_RUNTIMES";

/// Puts both interpreters, and what was compiled of them, into a home, with the key that vouches for it.
pub fn give_to(home: &Path) {
    let place = place();
    link_tree(&place.join("wasm"), &home.join("wasm")).expect("the home takes links to the WASM runtimes");
    let keys = home.join("keys");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&keys).expect("a directory for keys");
    // A copy: whoever damages a key damages only their own.
    fs::copy(place.join("keys/wasm-cache.key"), keys.join("wasm-cache.key")).expect("the key of the cache");
}

/// The package componentize-py, for `PYTHONPATH`.
pub fn componentize_py() -> PathBuf {
    place().join("componentize-py")
}

/// Where they are: what the variable says, or beside the build output that this program is part of.
fn place() -> PathBuf {
    let beside = || {
        let program = std::env::current_exe().expect("this program has a path");
        program.ancestors().map(|dir| dir.join("wasm-runtimes")).find(|dir| dir.is_dir())
    };
    let place = std::env::var_os(VARIABLE).map(PathBuf::from).or_else(beside);
    let whole = |place: &PathBuf| {
        place.join("wasm/compiled/_runtimes").is_dir() && place.join("componentize-py").is_dir()
    };
    place.filter(whole).unwrap_or_else(|| {
        panic!("Python and JavaScript for WASM are missing: run `cargo xtask runtimes` (or set {VARIABLE})")
    })
}

pub(crate) fn link_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link_tree(&source, &target)?;
        } else if fs::hard_link(&source, &target).is_err() {
            // Another file system.
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}
