//! `casemate setup docker`: makes sure that a Docker Engine answers and can hold a cell. An engine is a service with root's rights
//! that stays: it is installed only as root, only from the distribution, and only by this very command.

use std::path::Path;
use std::process::Command;

use casemate_core::outcome::{Refusal, Status};
use casemate_core::request::{Isolation, Request, RequestDraft, Workload};
use casemate_core::route::State;
use casemate_core::stack::{Stack, Wall};
use casemate_engine::{Ahead, Io};

use super::{Step, apt};
use crate::failure::Failure;
use crate::home;

const BY_HAND: &str = "as root: apt-get install docker.io, then systemctl start docker (or: service docker start), \
                       then casemate setup docker again";

const ELSEWHERE: &str = "run `apt-get update` first, or install another engine and set DOCKER_HOST";

pub(super) async fn docker(policy: Option<&Path>) -> Result<(), Failure> {
    let first = attempt(policy).await?;
    let Err(refusal) = first else { return ready() };
    // What another engine would not help with is for people to decide.
    if !rustix::process::geteuid().is_root() || is_installed() || !apt::is_there() {
        // What says to come here has been done.
        let says_more = is_installed() && !refusal.hint.contains("casemate setup docker");
        let hint = if says_more { refusal.hint } else { BY_HAND.to_owned() };
        return Err(Failure::new(refusal.reason, hint));
    }
    apt::install("docker.io", BY_HAND, ELSEWHERE)?;
    start();
    match attempt(policy).await? {
        Ok(()) => ready(),
        Err(refusal) => Err(Failure::new(refusal.reason, refusal.hint)),
    }
}

fn ready() -> Result<(), Failure> {
    eprintln!("ready: casemate run --on docker");
    Ok(())
}

/// Loads our image, and runs a program in a container.
async fn attempt(policy: Option<&Path>) -> Result<Result<(), Refusal>, Failure> {
    let _step = Step::begin("starting a container");
    let engine = home::open(policy, Ahead::Nothing, None).await?;
    let stack = Stack::of(Wall::Docker);
    let profile = engine.profiles().iter().find(|profile| *profile.stack() == stack);
    let found = match profile.map(|profile| profile.state()) {
        Some(State::Missing { reason, hint }) => Err(Refusal::new(reason.clone(), hint.clone())),
        _ => {
            let argv = ["sh", "-c", "exit 0"].map(str::to_owned).to_vec();
            let mut draft = RequestDraft::new(Workload::Command { argv });
            draft.isolation = Isolation::Exactly(stack);
            match engine.execute(Request::new(draft)?, Io::default()).await.outcome.status {
                Status::Exited { code: 0 } => Ok(()),
                Status::Refused(refusal) => Err(refusal),
                status => Err(Refusal::new(
                    format!("a program in a container {}", status.describe()),
                    "the engine's own log says more (journalctl -u docker)",
                )),
            }
        }
    };
    engine.shutdown().await?;
    Ok(found)
}

fn is_installed() -> bool {
    let directories = ["/usr/sbin", "/usr/bin", "/usr/local/bin", "/usr/local/sbin"];
    directories.iter().any(|directory| Path::new(directory).join("dockerd").exists())
}

/// By whatever starts services here; whether that helped, the next attempt tells.
fn start() {
    for words in [["systemctl", "start", "docker"], ["service", "docker", "start"]] {
        if Command::new(words[0]).args(&words[1..]).output().is_ok_and(|output| output.status.success()) {
            return;
        }
    }
}
