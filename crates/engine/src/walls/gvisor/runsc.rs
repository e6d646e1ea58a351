//! The `runsc` of this machine, and what is known about it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use casemate_core::evidence::hex;
use casemate_wire::launch::Platform;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Where a distribution puts it. `casemate setup gvisor` puts it into the home, where it is looked for first.
const INSTALLED: [&str; 2] = ["/usr/bin/runsc", "/usr/local/bin/runsc"];

/// It has a line to say.
const VERSION: Duration = Duration::from_secs(5);
/// More than that is nothing that we wrote, or asked for.
const MAX_NOTES: u64 = 16 * 1024;

pub(crate) struct Runsc {
    file: File,
    path: PathBuf,
    /// Where it is kept what was found out about it.
    notes: PathBuf,
}

/// What was found out about a `runsc` on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) version: String,
    pub(crate) sha256: String,
    pub(crate) finding: Finding,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    Works(Platform),
    Fails(String),
}

/// As it lies in the home. Another program, another start of the machine: another finding.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Notes {
    program: String,
    boot: String,
    version: String,
    sha256: String,
    platform: Option<String>,
    failure: Option<String>,
}

impl Runsc {
    pub(crate) fn find(home: &Path) -> Option<Runsc> {
        let ours = home.join("gvisor/runsc");
        let mut candidates = [ours].into_iter().chain(INSTALLED.map(PathBuf::from));
        candidates.find_map(|path| {
            let file = open_file(&path).ok()?;
            Some(Runsc { file, path, notes: home.join("gvisor/probe.json") })
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was found out before, if it is still about this program and this start of the machine.
    pub(crate) fn known(&self) -> Option<Known> {
        let mut notes = Vec::new();
        open_file(&self.notes).ok()?.take(MAX_NOTES).read_to_end(&mut notes).ok()?;
        let notes: Notes = serde_json::from_slice(&notes).ok()?;
        if notes.program != self.identity().ok()? || notes.boot != boot()? {
            return None;
        }
        let finding = match (notes.platform, notes.failure) {
            (Some(name), None) => {
                Finding::Works(Platform::ALL.into_iter().find(|platform| platform.as_str() == name)?)
            }
            (None, Some(why)) => Finding::Fails(why),
            _ => return None,
        };
        Some(Known { version: notes.version, sha256: notes.sha256, finding })
    }

    /// Writes it down, if that can be done; if not, it is found out again.
    pub(crate) fn keep(&self, known: Known) -> Known {
        let _ = self.write(&known);
        known
    }

    fn write(&self, known: &Known) -> io::Result<()> {
        let (platform, failure) = match &known.finding {
            Finding::Works(platform) => (Some(platform.as_str().to_owned()), None),
            Finding::Fails(why) => (None, Some(why.clone())),
        };
        let notes = Notes {
            program: self.identity()?,
            boot: boot().ok_or(io::ErrorKind::NotFound)?,
            version: known.version.clone(),
            sha256: known.sha256.clone(),
            platform,
            failure,
        };
        let directory = self.notes.parent().ok_or(io::ErrorKind::NotFound)?;
        fs::create_dir_all(directory)?;
        // Whole or not at all: others may read it meanwhile.
        let temporary = directory.join(format!("probe.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let written = (|| {
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            serde_json::to_writer(file, &notes)?;
            fs::rename(&temporary, &self.notes)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Its version, as it says itself, and its digest.
    pub(crate) async fn identify(&self) -> io::Result<(String, String)> {
        let path = self.path.clone();
        let work = tokio::task::spawn_blocking(move || Ok((ask_version(&path)?, digest(&path)?)));
        work.await.map_err(io::Error::other)?
    }

    /// Which file it is, and in which state.
    fn identity(&self) -> io::Result<String> {
        let meta = self.file.metadata()?;
        Ok(format!(
            "{}:{}:{}:{}.{}:{}.{}",
            meta.dev(),
            meta.ino(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec()
        ))
    }
}

/// A file, and not something that has to be waited for.
fn open_file(path: &Path) -> io::Result<File> {
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn ask_version(path: &Path) -> io::Result<String> {
    let mut asked = Command::new(path);
    asked.arg("--version").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = asked.spawn()?;
    let deadline = Instant::now() + VERSION;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("it did not say its version within {VERSION:?}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_NOTES).read_to_end(&mut said)?;
    }
    let words = String::from_utf8_lossy(&said).into_owned();
    let version = words.lines().find_map(|line| line.strip_prefix("runsc version "));
    Ok(version.ok_or_else(|| io::Error::other("it does not say its version"))?.trim().to_owned())
}

fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut reader = BufReader::with_capacity(1 << 20, open_file(path)?);
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(hex(&hash.finalize()));
        }
        let length = bytes.len();
        hash.update(bytes);
        reader.consume(length);
    }
}

impl AsFd for Runsc {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn boot() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}
