//! `cargo xtask check`: what has to be in order before a push.

use crate::shell::{self, Result, cargo, heading};
use crate::test;

/// How closely dependencies are looked at. Anything less than everything has to be asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deny {
    Everything,
    /// Known vulnerabilities are left out: their list is fetched from the network.
    WithoutAdvisories,
    LeftOut,
}

pub(crate) fn run(deny: Deny) -> Result {
    heading("format");
    shell::run(&mut cargo(["fmt", "--all", "--check"]))?;
    shell::run(&mut cargo(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]))?;

    heading("lints");
    lint(&["--workspace", "--all-targets"])?;
    // The agents as the negative controls build them.
    lint(&["--package", "casemate-launcher", "--package", "casemate-guest", "--features", "weaken"])?;
    // And as `casemate` carries them: without the standard library, whose panics unwind in the other profiles.
    lint(&[
        "--package",
        "casemate-launcher",
        "--package",
        "casemate-guest",
        "--features",
        "bare",
        "--profile",
        "agent",
    ])?;
    lint(&["--manifest-path", "fuzz/Cargo.toml"])?;

    heading("dependencies");
    dependencies(deny)?;

    heading("documentation");
    let mut doc = cargo(["doc", "--workspace", "--no-deps", "--document-private-items"]);
    shell::run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;

    test::run()
}

fn lint(what: &[&str]) -> Result {
    let arguments = ["clippy", "--quiet"].iter().chain(what).chain(&["--", "-D", "warnings"]);
    shell::run(&mut cargo(arguments.copied()))
}

fn dependencies(deny: Deny) -> Result {
    if deny == Deny::LeftOut {
        println!("left out: licences, sources and advisories were NOT checked");
        return Ok(());
    }
    if !shell::quietly(&mut cargo(["deny", "--version"])) {
        return Err("cargo-deny is not installed\n\
            hint: cargo install cargo-deny --locked, or leave this check out with --without-deny"
            .into());
    }
    shell::run(&mut cargo(["deny", "check", "bans", "licenses", "sources"]))?;
    if deny == Deny::WithoutAdvisories {
        println!("left out: advisories were NOT checked");
        return Ok(());
    }
    let hint = "hint: the list of advisories comes from the network; offline, use --without-advisories";
    shell::run(&mut cargo(["deny", "check", "advisories"])).map_err(|error| format!("{error}\n{hint}"))
}
