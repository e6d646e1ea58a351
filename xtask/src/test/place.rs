//! Where the tests keep their files: below the temporary directory, where a user without privileges can go.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::Result;

/// Gone when dropped.
pub(super) struct Place {
    dir: PathBuf,
    pub(super) root: Account,
    pub(super) user: Account,
}

/// The directories of one user.
pub(super) struct Account {
    pub(super) home: PathBuf,
    pub(super) casemate: PathBuf,
    pub(super) tmp: PathBuf,
}

impl Place {
    pub(super) fn new() -> Result<Place> {
        let dir = std::env::temp_dir().join(format!("xtask-{}", std::process::id()));
        let account = |name: &str| {
            let home = dir.join(name);
            Account { casemate: home.join("casemate"), tmp: home.join("tmp"), home }
        };
        let place = Place { root: account("root"), user: account("user"), dir };
        for account in [&place.root, &place.user] {
            // A cell of the `process` wall works in the temporary directory under a uid of its own.
            directory(&account.home, 0o755)?;
            directory(&account.tmp, 0o1777)?;
        }
        Ok(place)
    }

    /// A directory of this name that everybody can read.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        directory(&path, 0o755)?;
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Account {
    /// Lets a command keep its state here.
    pub(super) fn enter(&self, command: &mut Command) {
        command.env("CASEMATE_HOME", &self.casemate).env("TMPDIR", &self.tmp);
    }
}

fn directory(path: &Path, mode: u32) -> Result {
    let make =
        fs::create_dir_all(path).and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    make.map_err(|error| format!("cannot make {}: {error}", path.display()))
}
