//! What the machine's distribution provides.

use std::process::Command;

use crate::shell::{self, Result};

/// Installs those that are missing, from whatever sources the machine has.
pub(crate) fn ensure(packages: &[&str]) -> Result {
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    shell::heading(&format!("installing {}", missing.join(", ")));
    let hint = |error| format!("{error}\nhint: these are needed: {}", missing.join(" "));
    shell::run(apt().arg("update")).map_err(hint)?;
    shell::run(apt().args(["install", "--yes", "--no-install-recommends"]).args(&missing)).map_err(hint)
}

fn installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${db:Status-Status}", package]);
    query.output().is_ok_and(|output| output.stdout == b"installed")
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet=2").env("DEBIAN_FRONTEND", "noninteractive");
    command
}
