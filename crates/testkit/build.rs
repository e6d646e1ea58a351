//! Builds what the suite sends into cells and puts around them: the hostile probe and the bait (C, static), the launcher with
//! the feature `weaken`, which can leave layers out for the negative controls, and a WASM worker that was taken over.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROBE: [&str; 6] = ["main.c", "files.c", "kernel.c", "proc.c", "ipc.c", "resources.c"];
const AGENT: &str = "casemate-launcher";
const MACHINE: &str = "casemate-machine";
const HOSTILE_WORKER: &str = "casemate-hostile-worker";

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let workspace = manifest.ancestors().nth(2).expect("crates/testkit is two levels down");
    // Relative paths, or another checkout that uses the same target directory would be taken for this one.
    for input in [
        "probes",
        "bait.c",
        "hostile-worker",
        "../launcher",
        "../guest",
        "../machine",
        "../wire",
        "../filter",
        "../bare",
        "../../Cargo.lock",
        "../../Cargo.toml",
    ] {
        println!("cargo:rerun-if-changed={input}");
    }
    compile(&PROBE.map(|name| manifest.join("probes").join(name)), &out.join("probe"));
    compile(&[manifest.join("bait.c")], &out.join("bait"));
    for (package, features, name) in [
        (AGENT, &["--features", "weaken,machine"][..], "weak-launcher"),
        (MACHINE, &["--features", "hostile"], "hostile-machine"),
        (HOSTILE_WORKER, &[], "hostile-worker"),
    ] {
        let built = build_agent(workspace, &out, package, features);
        std::fs::copy(built.join(package), out.join(name)).expect("cargo has just built it");
    }
}

/// Static, because a cell may hold nothing but the program.
fn compile(sources: &[PathBuf], program: &Path) {
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-O2", "-Wall", "-Wextra", "-static", "-pthread", "-o"]).arg(program).args(sources);
    let status = cc.status().expect("a C compiler named cc is needed to build the probes");
    assert!(status.success(), "compiling {} failed; the messages above say why", program.display());
}

/// Returns the directory with the binary. Its own cargo and target directory, as in `crates/engine/build.rs`.
fn build_agent(workspace: &Path, out: &Path, package: &str, features: &[&str]) -> PathBuf {
    let target = env::var("TARGET").expect("set by cargo");
    let target_dir = out.ancestors().nth(4).expect("cargo's layout").join("agents-weak");
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    cargo
        .current_dir(workspace)
        .args(["build", "--locked", "--profile", "agent", "--target", &target, "--target-dir"])
        .arg(&target_dir)
        .args(["--package", package])
        .args(features)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "building {package} failed; the messages above say why");
    target_dir.join(target).join("agent")
}
