//! A Docker Engine of our own, for tests and benchmarks: it is started when they begin and stopped when they end, and this machine's
//! own one, if there is one, is left alone.

#[path = "../../crates/testkit/src/dockerd.rs"]
#[allow(unreachable_pub, reason = "public where it comes from")]
mod dockerd;

use std::path::Path;
use std::process::Command;

pub(crate) use dockerd::Dockerd;

use crate::packages;
use crate::shell::{self, Result, heading};

/// Where tests and `casemate` look for the engine.
pub(crate) const VARIABLE: &str = "DOCKER_HOST";

/// What an engine is made of. Asked for by program: it may have come from elsewhere.
const PROGRAMS: [(&str, &[&str]); 2] = [("dockerd", &["docker.io"]), ("docker", &["docker.io"])];

/// Installs an engine if there is none, and starts one in `dir`, which is gone when it is dropped.
pub(crate) fn start(dir: &Path, runsc: Option<&Path>) -> Result<Dockerd> {
    for (program, packages) in PROGRAMS {
        if !shell::quietly(Command::new(program).arg("--version")) {
            packages::ensure(packages)?;
        }
    }
    heading("starting a Docker Engine");
    Dockerd::start(dir, runsc)
}
