//! Opening the engine on this machine's state, under the operator's policy.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use casemate_core::policy::{Durability as PolicyDurability, Policy};
use casemate_engine::{Ahead, Config, Durability, EarlyLauncher, Engine};

use crate::failure::{Failure, os_words};
use crate::render::terminal::one_line;

/// A policy and where it comes from.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    pub(crate) policy: Policy,
    /// None for the built-in one.
    pub(crate) path: Option<PathBuf>,
}

pub(crate) async fn open(
    policy: Option<&Path>,
    ahead: Ahead,
    launcher: Option<EarlyLauncher>,
) -> Result<Engine, Failure> {
    let home = casemate_engine::default_home();
    let policy = PolicyFile::load(policy, &home)?.policy;
    // One process, one run: records that the policy lets wait are made durable when we leave.
    let durability = match policy.durability() {
        PolicyDurability::Batch => Durability::OnExit,
        PolicyDurability::Each => Durability::FromPolicy,
    };
    Ok(Engine::open(Config { durability, ahead, launcher, ..Config::new(home, policy) }).await?)
}

impl PolicyFile {
    /// The named file, else the one in the home, else the built-in policy.
    pub(crate) fn load(named: Option<&Path>, home: &Path) -> Result<PolicyFile, Failure> {
        let path = named.map_or_else(|| home.join("policy.toml"), Path::to_owned);
        let shown = one_line(&path.display().to_string());
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound && named.is_none() => {
                return Ok(PolicyFile { policy: Policy::default(), path: None });
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Err(Failure::new(
                    format!("there is no policy {shown}"),
                    "check the path; nothing runs without the policy that was asked for",
                ));
            }
            // A policy that cannot be read is never taken for one that is not there.
            Err(e) => {
                return Err(Failure::new(
                    format!("cannot read the policy {shown}: {}", os_words(e)),
                    "nothing runs without its policy: make the file readable, or set CASEMATE_HOME to a directory of yours",
                ));
            }
        };
        let policy = Policy::parse(&text).map_err(|error| {
            Failure::new(
                format!("{shown}: {error}"),
                "correct the policy; docs/policy.toml explains every key",
            )
        })?;
        Ok(PolicyFile { policy, path: Some(path) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_without_a_policy_has_the_built_in_one() {
        let home = tempfile::tempdir().unwrap();
        assert!(PolicyFile::load(None, home.path()).unwrap().path.is_none());
        std::fs::write(home.path().join("policy.toml"), "accept = [\"tcg\"]").unwrap();
        let file = PolicyFile::load(None, home.path()).unwrap();
        assert_ne!(file.policy, Policy::default());
        assert!(file.path.is_some());
    }

    #[test]
    fn a_policy_that_is_named_must_be_there_and_make_sense() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("p.toml");
        assert!(PolicyFile::load(Some(&path), home.path()).is_err());
        std::fs::write(&path, "\nnonsense = 1").unwrap();
        let Err(Failure::Told { message, .. }) = PolicyFile::load(Some(&path), home.path()) else { panic!() };
        assert!(message.contains("p.toml: line 2"), "{message}");
    }

    #[test]
    fn a_policy_that_cannot_be_read_is_an_error_and_not_the_default() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("policy.toml")).unwrap();
        assert!(PolicyFile::load(None, home.path()).is_err());
    }
}
