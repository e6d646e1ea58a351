//! The Docker wall beside a plain `docker run` of the same program from the same files, with an engine of our own.

use std::path::Path;
use std::process::{Command, Stdio};

use super::candidates::{self, Candidate};
use super::stage::Stage;
use super::{Order, WARM_UP, compare, load};
use crate::docker::{self, Dockerd};
use crate::shell::{self, Result, heading};

/// Containers of an engine take a hundred times as long as our own, so they take fewer turns.
const SHARE: usize = 5;
/// What the files are called in the engine's store.
const IMAGE: &str = "casemate-bench:latest";

pub(super) fn run(rounds: usize, casemate: &Path, stage: &Stage) -> Result {
    let dockerd = docker::start(&stage.place("docker"), None)?;
    import(&dockerd, stage)?;
    let rounds = (rounds / SHARE).max(1);
    heading(&format!("{rounds} rounds with the Docker Engine, with the machine's load at {} before", load()));
    let mut candidates = candidates::docker(stage, casemate, &dockerd.host(), IMAGE);
    let mut order = Order::new(candidates.len());
    for round in 0..WARM_UP + rounds {
        for &index in order.shuffled() {
            let Candidate { command, samples, .. } = &mut candidates[index];
            let took = candidates::time(command.as_mut().ok_or("every candidate here is a command")?)?;
            if round >= WARM_UP {
                samples.add(took);
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
    import.args(["import", "-", IMAGE]).env(docker::VARIABLE, dockerd.host()).stdin(files).stdout(Stdio::null());
    let imported = import.status().map_err(|error| format!("cannot start docker: {error}"))?;
    let packed = tar.wait().map_err(|error| error.to_string())?;
    match imported.success() && packed.success() {
        true => Ok(()),
        false => Err(format!("{}: {imported}", shell::show(&import))),
    }
}
