//! A user without privileges, for the second pass.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::place::Place;
use crate::runtimes;
use crate::shell::{self, Result};

const NAME: &str = "casemate-test";

pub(super) struct TestUser<'a> {
    place: &'a Place,
    runtimes: PathBuf,
    created: bool,
}

impl<'a> TestUser<'a> {
    /// Creates the user, unless there is one, and gives it a home and WASM runtimes of its own.
    pub(super) fn new(place: &'a Place, runtimes: &Path) -> Result<TestUser<'a>> {
        let created = !shell::quietly(Command::new("id").arg(NAME));
        if created {
            let mut add = Command::new("useradd");
            add.args(["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin"]);
            shell::run(add.arg("--home-dir").arg(&place.user.home).arg(NAME))?;
        }
        let user = TestUser { place, runtimes: place.user.home.join("runtimes"), created };
        runtimes::copy(runtimes, &user.runtimes)?;
        let id = |flag: &str| -> Result<u32> {
            let text = shell::read(Command::new("id").args([flag, NAME]))?;
            text.trim().parse().map_err(|_| format!("`id {flag} {NAME}` said {text:?}"))
        };
        let (uid, gid) = (id("-u")?, id("-g")?);
        chown(&place.user.home, Some(uid), Some(gid))
            .map_err(|error| format!("cannot give {} away: {error}", place.user.home.display()))?;
        shell::run(Command::new("chown").args(["--recursive", &format!("{uid}:{gid}")]).arg(&user.runtimes))?;
        Ok(user)
    }

    /// A command that runs `program` as this user, with nothing of root's environment.
    pub(super) fn command(&self, program: &Path, casemate: &Path) -> Result<Command> {
        let (program, casemate) = (self.readable(program)?, self.readable(casemate)?);
        let account = &self.place.user;
        let mut command = Command::new("setpriv");
        command
            .args([&format!("--reuid={NAME}"), &format!("--regid={NAME}")])
            .args(["--clear-groups", "--inh-caps=-all", "--"])
            .arg(program)
            .current_dir(&account.home)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", &account.home)
            .env("USER", NAME)
            .env("RUST_BACKTRACE", "1")
            .env("CASEMATE_BIN", casemate)
            .env(runtimes::VARIABLE, &self.runtimes);
        account.enter(&mut command);
        Ok(command)
    }

    /// A copy that this user can execute: the build output may lie in a home directory.
    fn readable(&self, program: &Path) -> Result<PathBuf> {
        let name = program.file_name().ok_or("a program has a name")?;
        let copy = self.place.directory("bin")?.join(name);
        if !copy.exists() {
            // The mode is copied too: cargo makes programs executable for everybody, whatever the directory allows.
            fs::copy(program, &copy)
                .map_err(|error| format!("cannot copy {}: {error}", program.display()))?;
        }
        Ok(copy)
    }
}

impl Drop for TestUser<'_> {
    fn drop(&mut self) {
        if self.created {
            // Says why, if a process of this user is still there.
            let _ = shell::run(Command::new("userdel").arg(NAME));
        }
    }
}
