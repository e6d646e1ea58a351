//! The fuzz targets, for a short bounded time.
//!
//! Coverage instrumentation is a pass of the compiler's backend, so this needs neither cargo-fuzz nor a nightly
//! toolchain. Longer sessions, with the address sanitizer: `cargo +nightly fuzz run TARGET`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::place::Place;
use super::report::Report;
use crate::shell::{self, Result};

const TARGETS: [&str; 4] = ["frame", "policy", "evidence", "archive"];
const SECONDS_EACH: u64 = 8;
/// The largest input that is tried: more than one frame.
const MAX_BYTES: u32 = 70_000;

const INSTRUMENTATION: [&str; 6] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

pub(super) fn run(place: &Place, report: &mut Report) {
    let mut programs = Err("they were not built".to_owned());
    report.part("building the fuzz targets", || {
        programs = build();
        programs.as_ref().map(drop).map_err(Clone::clone)
    });
    for target in TARGETS {
        let title = format!("fuzz target {target}, {SECONDS_EACH} s");
        report.part(&title, || fuzz(programs.as_ref()?, target, place));
    }
}

/// Returns the directory with the programs.
fn build() -> Result<PathBuf> {
    let version = shell::read(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc has no host")?;
    let target_dir = shell::target_dir().join("fuzz");
    let mut cargo = shell::cargo(["build", "--quiet", "--locked", "--release", "--bins"]);
    // With a named target the flags are kept away from build scripts.
    cargo.args(["--manifest-path", "fuzz/Cargo.toml", "--target", host, "--target-dir"]).arg(&target_dir);
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", INSTRUMENTATION.join(" "));
    shell::run(&mut cargo)?;
    Ok(target_dir.join(host).join("release"))
}

/// libFuzzer says a lot: it is shown only when an input breaks the target.
fn fuzz(programs: &Path, target: &str, place: &Place) -> Result {
    let corpus = place.directory(&format!("corpus-{target}"))?;
    // What breaks a target is kept beside the build output, since the place is removed.
    let artifacts = shell::target_dir().join("fuzz").join("artifacts").join(target);
    std::fs::create_dir_all(&artifacts).map_err(|error| format!("{}: {error}", artifacts.display()))?;
    let mut command = Command::new(programs.join(target));
    command
        .arg(format!("-max_total_time={SECONDS_EACH}"))
        .arg(format!("-max_len={MAX_BYTES}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-verbosity=0", "-print_final_stats=1", "-timeout=5", "-rss_limit_mb=1024"])
        .arg(corpus)
        .arg(shell::root().join("fuzz/seeds").join(target));
    let output =
        command.output().map_err(|error| format!("cannot start {}: {error}", shell::show(&command)))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        print!("{said}");
        return Err(format!("{}; the input is in {}", output.status, artifacts.display()));
    }
    let figure = |key: &str| said.lines().find_map(|line| line.strip_prefix(key)).map_or("?", str::trim);
    let (tried, new) = (figure("stat::number_of_executed_units:"), figure("stat::new_units_added:"));
    println!("{tried} inputs, {new} of which reached something new");
    Ok(())
}
