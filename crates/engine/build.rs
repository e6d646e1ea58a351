//! Builds the launcher, which has the guest in it, as a small static binary to be embedded in the engine.
//!
//! It needs its own flags (static) and profile (small), so this runs its own cargo, in its own target directory: the outer
//! cargo holds the lock of the other one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const AGENT: &str = "casemate-launcher";

/// Static, position independent, and without a C library or its entry point (see `casemate-bare`). Relocations are packed: they
/// were a tenth of the program.
const FLAGS: [&str; 4] = [
    "-C target-feature=+crt-static",
    "-C link-arg=-nostartfiles",
    "-C link-arg=-nostdlib",
    "-C link-arg=-Wl,-z,pack-relative-relocs",
];

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let workspace = manifest.ancestors().nth(2).expect("crates/engine is two levels down");
    // Relative paths, or another checkout that uses the same target directory would be taken for this one.
    for input in
        ["../launcher", "../guest", "../wire", "../filter", "../bare", "../../Cargo.lock", "../../Cargo.toml"]
    {
        println!("cargo:rerun-if-changed={input}");
    }
    let built = build(workspace, &out);
    std::fs::copy(built.join(AGENT), out.join(AGENT)).expect("cargo has just built it");
}

/// Returns the directory with the binary.
fn build(workspace: &Path, out: &Path) -> PathBuf {
    let target = env::var("TARGET").expect("set by cargo");
    // OUT_DIR is TARGET_DIR/PROFILE/build/NAME/out: one directory beside the profiles serves all of them.
    let target_dir = out.ancestors().nth(4).expect("cargo's layout").join("agents");
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    cargo
        .current_dir(workspace)
        .args(["build", "--locked", "--profile", "agent", "--target", &target, "--target-dir"])
        .arg(&target_dir)
        .args(["--package", AGENT, "--features", "bare"])
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", FLAGS.join(" "));
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "building the launcher failed; the messages above say why");
    target_dir.join(target).join("agent")
}
