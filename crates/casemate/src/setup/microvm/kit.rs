//! What is in the home in the end: files, and `kernel.json`, which says what they are.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::cannot;
use crate::failure::{Failure, os_words};
use crate::setup::sha256;

const RECORD: &str = "kernel.json";

/// `kernel.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) version: String,
    pub(super) source: String,
    /// Digests, by what a file is called in the kit.
    files: BTreeMap<String, String>,
}

impl Record {
    /// Whether it has a file of this very content.
    pub(super) fn has(&self, name: &str, content: &[u8]) -> bool {
        self.files.get(name).is_some_and(|digest| *digest == sha256(content))
    }
}

/// One that is being made.
pub(super) struct Kit {
    directory: PathBuf,
    record: Record,
}

impl Kit {
    /// In an empty directory.
    pub(super) fn begin(directory: PathBuf, version: String, source: String) -> Kit {
        Kit { directory, record: Record { version, source, files: BTreeMap::new() } }
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// Adds a file; the directory that it belongs to is there.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let path = self.directory.join(name);
        write(&path, content).map_err(|error| cannot("write", &path, error))?;
        self.record.files.insert(name.to_owned(), sha256(content));
        Ok(())
    }

    /// Whole or not at all, and on the disk before it can be seen. What was there is where the kit was, then.
    pub(super) fn install(self, target: &Path) -> Result<(), Failure> {
        let mut record = serde_json::to_vec_pretty(&self.record)?;
        record.push(b'\n');
        let path = self.directory.join(RECORD);
        write(&path, &record).map_err(|error| cannot("write", &path, error))?;
        sync_directories(&self.directory).map_err(|error| cannot("write", &self.directory, error))?;
        let flags = match target.symlink_metadata() {
            Ok(_) => RenameFlags::EXCHANGE,
            Err(_) => RenameFlags::NOREPLACE,
        };
        renameat_with(CWD, &self.directory, CWD, target, flags).map_err(|error| {
            Failure::new(
                format!("cannot put a new kernel into {}: {}", target.display(), os_words(error)),
                format!("remove {} and run this again", target.display()),
            )
        })?;
        let home = target.parent().unwrap_or(target);
        File::open(home).and_then(|home| home.sync_all()).map_err(|error| cannot("write", home, error))
    }
}

/// What is there, if it is what it says.
pub(super) fn installed(target: &Path) -> Option<Record> {
    let record: Record = serde_json::from_slice(&fs::read(target.join(RECORD)).ok()?).ok()?;
    let mut files = BTreeMap::new();
    digests(target, "", &mut files).ok()?;
    files.remove(RECORD);
    (files == record.files).then_some(record)
}

fn digests(directory: &Path, prefix: &str, files: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.file_type()?.is_dir() {
            true => digests(&entry.path(), &format!("{name}/"), files)?,
            false => drop(files.insert(name, sha256(&fs::read(entry.path())?))),
        }
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn sync_directories(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_directories(&entry.path())?;
        }
    }
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(home: &Path, version: &str) -> Kit {
        let directory = home.join("setup-test");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("drivers")).unwrap();
        let mut kit = Kit::begin(directory, version.into(), format!("linux-image-{version} 1-1 (Debian)"));
        kit.add("vmlinuz", b"kernel").unwrap();
        kit.add("drivers/01-b.ko", b"b").unwrap();
        kit.add("drivers/00-a.ko", b"a").unwrap();
        kit
    }

    #[test]
    fn it_is_written_with_digests_in_order() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("kernel");
        make(home.path(), "6.1.0-1-cloud-amd64").install(&target).unwrap();
        let written = fs::read_to_string(target.join(RECORD)).unwrap();
        insta::assert_snapshot!(written, @r#"
        {
          "version": "6.1.0-1-cloud-amd64",
          "source": "linux-image-6.1.0-1-cloud-amd64 1-1 (Debian)",
          "files": {
            "drivers/00-a.ko": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
            "drivers/01-b.ko": "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d",
            "vmlinuz": "6923dd1bc0460082c5d55a831908c24a282860b7f1cd6c2b79cf1bc8857c639c"
          }
        }
        "#);
        let record = installed(&target).unwrap();
        assert!(
            record.has("vmlinuz", b"kernel") && !record.has("vmlinuz", b"other") && !record.has("x", b"")
        );
    }

    #[test]
    fn a_new_one_replaces_an_old_one_whole() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("kernel");
        make(home.path(), "1").install(&target).unwrap();
        fs::write(target.join("drivers/02-c.ko"), "from before").unwrap();
        make(home.path(), "2").install(&target).unwrap();
        assert_eq!(installed(&target).unwrap().version, "2");
        assert!(!target.join("drivers/02-c.ko").exists());
    }

    #[test]
    fn what_is_not_as_it_says_is_not_installed() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("kernel");
        assert_eq!(installed(&target), None);
        let spoilers: [fn(&Path) -> io::Result<()>; 5] = [
            |target| fs::write(target.join("vmlinuz"), "other"),
            |target| fs::remove_file(target.join("drivers/00-a.ko")),
            |target| fs::write(target.join("drivers/02-c.ko"), "more"),
            |target| fs::write(target.join(RECORD), "{}"),
            |target| fs::write(target.join(RECORD), "{\"version\": \"6"),
        ];
        for spoil in spoilers {
            make(home.path(), "1").install(&target).unwrap();
            assert!(installed(&target).is_some());
            spoil(&target).unwrap();
            assert_eq!(installed(&target), None);
        }
        // And is replaced as anything else is.
        make(home.path(), "1").install(&target).unwrap();
        assert!(installed(&target).is_some());
    }
}
