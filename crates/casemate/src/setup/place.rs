//! A directory of our own while something is being made.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::cannot;
use crate::failure::Failure;

/// How often, and how long apart, we try to remove one: a program that was just killed may still be making a file.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Removed when we leave. If we are killed, the next one that is made there removes it.
pub(super) struct Place(PathBuf);

impl Place {
    /// In a directory, which is made if it is not there.
    pub(super) fn beneath(home: &Path) -> Result<Place, Failure> {
        // Programs that work in it are started there.
        let home = &std::path::absolute(home).map_err(|error| cannot("make", home, error))?;
        fs::create_dir_all(home).map_err(|error| cannot("make", home, error))?;
        for entry in fs::read_dir(home).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Left by a process that was killed, perhaps one of our own number.
            let whose = name.strip_prefix("setup-").and_then(|pid| pid.parse::<u32>().ok());
            let gone = |pid: u32| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists();
            if whose.is_some_and(gone) {
                remove(&entry.path());
            }
        }
        let path = home.join(format!("setup-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| cannot("make", &path, error))?;
        Ok(Place(path))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.path(name);
        fs::create_dir_all(&path).map_err(|error| cannot("make", &path, error))?;
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    for _ in 0..ATTEMPTS {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => thread::sleep(PAUSE),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_cleared_and_what_a_live_one_has_is_not() {
        let home = tempfile::tempdir().unwrap();
        let gone = home.path().join(format!("setup-{}", u32::MAX));
        let live = home.path().join("setup-1");
        let other = home.path().join("setup-notes");
        for directory in [&gone, &live, &other] {
            fs::create_dir_all(directory.join("deep")).unwrap();
        }
        let place = Place::beneath(home.path()).unwrap();
        fs::write(place.directory("a/b").unwrap().join("file"), "").unwrap();
        assert!(!gone.exists() && live.exists() && other.exists());
        let path = place.path("");
        assert!(path.exists());
        drop(place);
        assert!(!path.exists());
    }
}
