//! One build for everything, and the test programs that come out of it.

use std::path::PathBuf;
use std::process::Command;

use super::place::Place;
use crate::shell::{self, Result, cargo};

pub(super) struct Built {
    /// The binary under test.
    pub(super) casemate: PathBuf,
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
    let what = ["build", "--release", "--workspace", "--bins", "--tests"];
    let messages = shell::read(cargo(what).arg("--message-format=json-render-diagnostics"))?;
    let artifacts: Vec<Artifact> = messages.lines().filter_map(Artifact::parse).collect();
    let casemate = artifacts.iter().find(|artifact| !artifact.is_test && artifact.name == "casemate");
    let casemate = casemate.ok_or("cargo built no casemate")?.path.clone();
    let mut suites: Vec<Suite> =
        artifacts.into_iter().filter(|artifact| artifact.is_test).filter_map(Artifact::into_suite).collect();
    // The long ones last.
    suites.sort_by_key(|suite| {
        (suite.package == "casemate-testkit", suite.package.clone(), suite.name.clone())
    });
    Ok(Built { casemate, suites })
}

impl Suite {
    /// As `cargo test` would run it.
    pub(super) fn as_root(&self, built: &Built, place: &Place) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.dir)
            .env("CARGO_MANIFEST_DIR", &self.dir)
            .env("CASEMATE_BIN", &built.casemate)
            // A test run leaves the sources alone.
            .env("INSTA_UPDATE", "no");
        place.root.enter(&mut command);
        command
    }
}

/// What cargo says about a program that it has built.
struct Artifact {
    manifest: PathBuf,
    name: String,
    is_test: bool,
    path: PathBuf,
}

impl Artifact {
    /// Reads one of cargo's messages: a single line of JSON, of which a few strings matter.
    fn parse(line: &str) -> Option<Artifact> {
        let after = |key: &str| line.split_once(key).map(|(_, rest)| rest);
        let string = |key: &str| Some(after(key)?.split_once('"')?.0.to_owned());
        after("{\"reason\":\"compiler-artifact\"")?;
        Some(Artifact {
            manifest: string("\"manifest_path\":\"")?.into(),
            name: string("\"name\":\"")?,
            is_test: after("\"profile\":{")?.split_once('}')?.0.contains("\"test\":true"),
            path: string("\"executable\":\"")?.into(),
        })
    }

    fn into_suite(self) -> Option<Suite> {
        let dir = self.manifest.parent()?.to_owned();
        let package = std::fs::read_to_string(&self.manifest).ok()?;
        let package = package.split_once("name = \"")?.1.split_once('"')?.0.to_owned();
        Some(Suite { package, name: self.name, path: self.path, dir })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_read_from_cargos_message() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///w#x@0.1.0","manifest_path":"/w/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"attacks","src_path":"/w/tests/attacks.rs","test":true},"profile":{"opt_level":"3","test":true},"features":[],"filenames":["/t/attacks-1"],"executable":"/t/attacks-1","fresh":true}"#;
        let artifact = Artifact::parse(line).unwrap();
        assert_eq!(artifact.name, "attacks");
        assert!(artifact.is_test);
        assert_eq!(artifact.path, PathBuf::from("/t/attacks-1"));
        assert!(Artifact::parse(&line.replace("\"/t/attacks-1\",\"fresh", "null,\"fresh")).is_none());
    }
}
