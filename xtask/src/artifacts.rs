//! What cargo has built.

use std::path::PathBuf;

use crate::shell::{self, Result, cargo};

/// What cargo says about a program that it has built.
pub(crate) struct Artifact {
    pub(crate) manifest: PathBuf,
    pub(crate) name: String,
    pub(crate) is_test: bool,
    pub(crate) path: PathBuf,
}

/// Builds, and returns every program that came of it.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<Artifact>> {
    let arguments = ["build"].iter().chain(arguments).copied();
    let messages = shell::read(cargo(arguments).arg("--message-format=json-render-diagnostics"))?;
    Ok(messages.lines().filter_map(Artifact::parse).collect())
}

impl Artifact {
    /// The binary of this name, as users get it.
    pub(crate) fn binary(artifacts: &[Artifact], name: &str) -> Result<PathBuf> {
        let found = artifacts.iter().find(|artifact| !artifact.is_test && artifact.name == name);
        Ok(found.ok_or_else(|| format!("cargo built no {name}"))?.path.clone())
    }

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
