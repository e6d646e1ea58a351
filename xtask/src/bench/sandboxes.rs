//! The walls that are built around somebody else's sandbox, beside that sandbox alone. They take a hundred times as long as the
//! others, so there are fewer rounds, and nobody but each other is compared with them.

use std::path::Path;
use std::process::{Command, Stdio};

use super::candidates::{self, Candidate};
use super::stage::Stage;
use super::{Order, compare, load};
use crate::docker::{self, Dockerd};
use crate::gvisor;
use crate::shell::{self, Result, heading};

/// One in so many rounds, but not fewer than some.
const SHARE: usize = 5;
const LEAST: usize = 20;
const WARM_UP: usize = 2;
/// What the stage's image is called in the Docker Engine's store.
const IMAGE: &str = "casemate-bench:latest";

pub(super) fn run(rounds: usize, casemate: &Path, stage: &Stage) -> Result {
    let home = gvisor::ensure(casemate)?;
    let dockerd = docker::start(&stage.home("dockerd"), None)?;
    import(&dockerd, stage)?;
    let engine = (&*dockerd.host(), IMAGE);
    let mut candidates: Vec<Candidate> = candidates::sandboxes(stage, casemate, &home, engine);
    let rounds = (rounds / SHARE).max(LEAST);
    heading(&format!("sandboxes of others: {rounds} rounds, with the machine's load at {} before", load()));
    let mut order = Order::new(candidates.len());
    for round in 0..WARM_UP + rounds {
        for &index in order.shuffled() {
            let candidate = &mut candidates[index];
            let Some(command) = &mut candidate.command else { continue };
            let took = candidates::time(command)?;
            if round >= WARM_UP {
                candidate.samples.add(took);
            }
        }
    }
    compare(&candidates);
    Ok(())
}

fn import(dockerd: &Dockerd, stage: &Stage) -> Result {
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--directory").arg(stage.image()).arg(".").stdout(Stdio::piped());
    let mut tar = tar.spawn().map_err(|error| format!("cannot start tar: {error}"))?;
    let files = tar.stdout.take().ok_or("tar has no output")?;
    let mut import = Command::new("docker");
    import
        .args(["import", "-", IMAGE])
        .env(docker::VARIABLE, dockerd.host())
        .stdin(files)
        .stdout(Stdio::null());
    let imported = import.status().map_err(|error| format!("cannot start docker: {error}"))?;
    let packed = tar.wait().map_err(|error| error.to_string())?;
    match imported.success() && packed.success() {
        true => Ok(()),
        false => Err(format!("{}: {imported}", shell::show(&import))),
    }
}
