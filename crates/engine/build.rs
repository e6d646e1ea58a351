//! Builds the programs that are embedded in the engine: the launcher, which has the guest in it, the guest by itself, the first
//! process of virtual machines, the WASM worker, the WASM compiler and the unpacker of images, each as a static binary.
//!
//! They need their own flags and profiles, and must not share features with each other, so this runs its own cargo for each, in
//! its own target directory: the outer cargo holds the lock of the other one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

struct Agent {
    /// Under which it is embedded.
    name: &'static str,
    package: &'static str,
    profile: &'static str,
    features: &'static str,
    flags: &'static [&'static str],
    /// Directory, beside those of the profiles, in which it is built.
    target: &'static str,
}

/// Static, position independent, and without a C library or its entry point (see `casemate-bare`). Relocations are packed: they
/// were a tenth of the program.
const BARE: &[&str] = &[
    "-C target-feature=+crt-static",
    "-C link-arg=-nostartfiles",
    "-C link-arg=-nostdlib",
    "-C link-arg=-Wl,-z,pack-relative-relocs",
];

const STATIC: &[&str] = &["-C target-feature=+crt-static"];

const AGENTS: [Agent; 7] = [
    bare("casemate-launcher", "casemate-launcher", "bare", "agents"),
    bare("casemate-guest", "casemate-guest", "bare", "agents"),
    // For virtual machines, which have a root to give away: no host gets this one.
    bare("casemate-machine-launcher", "casemate-launcher", "bare,machine", "agents-machine"),
    Agent {
        name: "casemate-machine",
        package: "casemate-machine",
        profile: "agent",
        features: "",
        flags: STATIC,
        target: "agents-init",
    },
    worker("casemate-wasm"),
    worker("casemate-wasm-compile"),
    worker("casemate-unpack"),
];

const fn bare(
    name: &'static str,
    package: &'static str,
    features: &'static str,
    target: &'static str,
) -> Agent {
    Agent { name, package, profile: "agent", features, flags: BARE, target }
}

const fn worker(package: &'static str) -> Agent {
    Agent { name: package, package, profile: "worker", features: "", flags: STATIC, target: "agents-wasm" }
}

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let workspace = manifest.ancestors().nth(2).expect("crates/engine is two levels down");
    // Relative paths, or another checkout that uses the same target directory would be taken for this one.
    for input in ["launcher", "guest", "machine", "wire", "filter", "bare", "wasm", "wasm-compile", "unpack"]
    {
        println!("cargo:rerun-if-changed=../{input}");
    }
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    println!("cargo:rerun-if-changed=../../Cargo.toml");
    for agent in &AGENTS {
        let built = std::fs::read(build(agent, workspace, &out)).expect("cargo has just built it");
        // Part of every record that it has a part in: not to be computed at each start.
        let digest: [u8; 32] = Sha256::digest(&built).into();
        write(&out.join(agent.name), &built);
        write(&out.join(format!("{}.sha256", agent.name)), &digest);
    }
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("OUT_DIR can be written to");
}

/// Returns where the binary is.
fn build(agent: &Agent, workspace: &Path, out: &Path) -> PathBuf {
    let target = env::var("TARGET").expect("set by cargo");
    // OUT_DIR is TARGET_DIR/PROFILE/build/NAME/out: one directory beside the profiles serves all of them.
    let target_dir = out.ancestors().nth(4).expect("cargo's layout").join(agent.target);
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    cargo
        .current_dir(workspace)
        .args(["build", "--locked", "--profile", agent.profile, "--target", &target, "--target-dir"])
        .arg(&target_dir)
        .args(["--package", agent.package, "--features", agent.features])
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", agent.flags.join(" "));
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "building {} failed; the messages above say why", agent.package);
    target_dir.join(target).join(agent.profile).join(agent.package)
}
