//! A home for probes, gone afterwards.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use casemate_core::policy::Policy;
use casemate_engine::{Ahead, Config, Durability, Engine};

use crate::failure::{Failure, os_words};
use crate::render::terminal::one_line;

/// Followed by the number of the process whose it is.
const PREFIX: &str = "doctor-";

#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Inside the home where that is possible: it is where walls are started from, so its mount options count.
    pub(super) async fn beneath(home: &Path) -> Result<Scratch, Failure> {
        let temporary = std::env::temp_dir();
        for parent in [home, &temporary] {
            sweep(parent).await;
        }
        create(home).or_else(|_| create(&temporary)).map_err(|error| {
            Failure::new(
                format!(
                    "cannot create a directory in {}: {}",
                    one_line(&home.display().to_string()),
                    os_words(error)
                ),
                "set CASEMATE_HOME to a directory of yours",
            )
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn create(parent: &Path) -> io::Result<Scratch> {
    let mut private = fs::DirBuilder::new();
    private.mode(0o700).recursive(true).create(parent)?;
    let path = parent.join(format!("{PREFIX}{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&path).map(|()| Scratch(path))
}

/// Clears away after doctors that were killed. An engine that opens their home ends and removes what they had started, a container
/// of the Docker Engine included; then the home can go.
async fn sweep(parent: &Path) {
    for path in abandoned(parent) {
        let config = Config {
            durability: Durability::OnExit,
            ahead: Ahead::Nothing,
            ..Config::new(&path, Policy::default())
        };
        if let Ok(engine) = Engine::open(config).await {
            let _ = engine.shutdown().await.map(drop);
        }
        let _ = fs::remove_dir_all(&path);
    }
}

/// Directories of ours whose process is no more. Our own number counts as dead: we have made none yet.
fn abandoned(parent: &Path) -> Vec<PathBuf> {
    let is_dead = |pid: u32| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists();
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let dead = entries.filter(|entry| {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|pid| pid.parse().ok());
        // In a place that all can write to, others may have put something there that only looks like it.
        let is_ours = entry.metadata().is_ok_and(|found| {
            use std::os::unix::fs::MetadataExt;
            found.is_dir() && found.uid() == rustix::process::geteuid().as_raw()
        });
        is_ours && pid.is_some_and(is_dead)
    });
    dead.map(|entry| entry.path()).collect()
}
