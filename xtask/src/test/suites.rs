//! One build for everything, and the test programs that come out of it.

use std::path::PathBuf;
use std::process::Command;

use super::TESTKIT;
use super::place::Place;
use crate::artifacts::{self, Artifact};
use crate::shell::{self, Result};
use crate::{clients, gvisor, microvm, runtimes};

pub(super) struct Built {
    /// The binary under test.
    pub(super) casemate: PathBuf,
    /// Python and JavaScript for WASM.
    pub(super) runtimes: PathBuf,
    /// A home with runsc in it.
    gvisor: PathBuf,
    /// A home with a kernel in it.
    microvm: PathBuf,
    /// A Python with clients of the service.
    clients: PathBuf,
    pub(super) suites: Vec<Suite>,
}

/// One test program.
pub(super) struct Suite {
    pub(super) package: String,
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Where cargo would run it.
    dir: PathBuf,
}

/// Binaries and tests in one go: asked for one after the other, cargo may build their dependencies twice.
pub(super) fn build() -> Result<Built> {
    let artifacts = artifacts::build(&["--profile=checks", "--workspace", "--bins", "--tests"])?;
    let casemate = Artifact::binary(&artifacts, "casemate")?;
    let tests = artifacts.into_iter().filter(|artifact| artifact.is_test);
    let mut suites = tests.map(Suite::new).collect::<Result<Vec<_>>>()?;
    // The long ones last.
    suites.sort_by_key(|suite| (suite.package == TESTKIT, suite.package.clone(), suite.name.clone()));
    let (runtimes, gvisor) = (runtimes::ensure(&casemate)?, gvisor::ensure(&casemate)?);
    let (microvm, clients) = (microvm::ensure(&casemate)?, clients::ensure()?);
    Ok(Built { casemate, runtimes, gvisor, microvm, clients, suites })
}

impl Built {
    /// For the Docker Engine, too.
    pub(super) fn runsc(&self) -> PathBuf {
        self.gvisor.join("gvisor/runsc")
    }
}

impl Suite {
    fn new(artifact: Artifact) -> Result<Suite> {
        let Artifact { manifest, name, path, .. } = artifact;
        let text = std::fs::read_to_string(&manifest)
            .map_err(|error| format!("cannot read {}: {error}", manifest.display()))?;
        let package = text.split_once("name = \"").and_then(|(_, rest)| rest.split_once('"'));
        let package = package.ok_or("a manifest names its package")?.0.to_owned();
        let dir = manifest.parent().ok_or("a manifest lies in a directory")?.to_owned();
        Ok(Suite { package, name, path, dir })
    }

    /// As `cargo test` would run it.
    pub(super) fn as_root(&self, built: &Built, place: &Place) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.dir)
            .env("CARGO_MANIFEST_DIR", &self.dir)
            .env("CASEMATE_BIN", &built.casemate)
            .env(runtimes::VARIABLE, &built.runtimes)
            .env(gvisor::VARIABLE, &built.gvisor)
            .env(microvm::VARIABLE, &built.microvm)
            .env(clients::VARIABLE, &built.clients)
            // A test run leaves the sources alone, and finds them wherever its programs were built: several clones may share them.
            .env("INSTA_UPDATE", "no")
            .env("INSTA_WORKSPACE_ROOT", shell::root());
        place.root.enter(&mut command);
        command
    }
}
