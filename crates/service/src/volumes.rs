//! Volumes: directories of sessions that outlive them. A volume is kept as an archive in the home, which a session gets a copy of when it is
//! opened, and which is replaced as a whole when the session ends in order or somebody asks for it. So no cell ever has a host's
//! directory in it, and what a crash leaves is the last whole state.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use casemate_core::limits::LimitKind;
use casemate_core::request::GuestPath;
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::app::App;
use crate::archive;
use crate::problem::{Code, Problem};
use crate::sessions::Live;

/// What an archive has besides the content of files.
const HEADERS: u64 = 64 << 20;
/// Of one tenant.
const MAX_VOLUMES: usize = 1024;
const MAX_NAME: usize = 63;

/// All volumes of a home.
#[derive(Debug, Clone)]
pub(crate) struct Volumes {
    dir: PathBuf,
    /// Those that a session will write back, by tenant and name.
    taken: Arc<Mutex<BTreeSet<(String, String)>>>,
}

/// Where a volume is in a session.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) name: String,
    pub(crate) path: String,
    /// Otherwise changes stay in the session.
    keep: bool,
    /// For as long as it may be written back.
    lease: Mutex<Option<Lease>>,
    /// All of it is in the session. Before that, what is there is less than what is kept.
    filled: AtomicBool,
    /// One at a time.
    saving: tokio::sync::Mutex<()>,
}

/// Leave to write a volume back. Given back when dropped.
#[derive(Debug)]
struct Lease {
    volumes: Volumes,
    tenant: String,
    name: String,
}

/// As it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) in_use: bool,
}

impl Volumes {
    pub(crate) fn of(home: &Path) -> Volumes {
        Volumes { dir: home.join("volumes"), taken: Arc::default() }
    }

    /// What a session asks for. `keep`: what it changes is kept, and nobody else may do that meanwhile.
    pub(crate) fn attach(
        &self,
        tenant: &str,
        name: &str,
        path: &str,
        keep: bool,
    ) -> Result<Attached, Problem> {
        check(name)?;
        let path = GuestPath::new(path)?.as_str().to_owned();
        let lease = keep.then(|| self.lease(tenant, name)).transpose()?;
        Ok(Attached {
            name: name.to_owned(),
            path,
            keep,
            lease: Mutex::new(lease),
            filled: AtomicBool::new(false),
            saving: Default::default(),
        })
    }

    fn lease(&self, tenant: &str, name: &str) -> Result<Lease, Problem> {
        let own = (tenant.to_owned(), name.to_owned());
        match self.lock().insert(own) {
            true => Ok(Lease { volumes: self.clone(), tenant: tenant.to_owned(), name: name.to_owned() }),
            false => Err(Problem::new(
                Code::InUse,
                format!("the volume {name} is written by another session"),
                "end that one, or attach it with \"keep\": false to work on a copy",
            )),
        }
    }

    pub(crate) fn list(&self, tenant: &str) -> io::Result<Vec<Stored>> {
        let entries = match fs::read_dir(self.dir.join(tenant)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let file = entry.file_name();
            let Some(name) = file.to_str().and_then(|file| file.strip_suffix(".tar")) else { continue };
            let in_use = self.lock().contains(&(tenant.to_owned(), name.to_owned()));
            found.push(Stored { name: name.to_owned(), bytes: entry.metadata()?.len(), in_use });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// What a tenant's volumes take.
    pub(crate) fn bytes(&self, tenant: &str) -> u64 {
        self.list(tenant).map_or(u64::MAX, |found| found.iter().map(|stored| stored.bytes).sum())
    }

    /// `false`: there was none.
    pub(crate) fn remove(&self, tenant: &str, name: &str) -> Result<bool, Problem> {
        check(name)?;
        // Nobody writes it back meanwhile.
        let _lease = self.lease(tenant, name)?;
        match fs::remove_file(self.place(tenant, name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("removed", &error)),
        }
    }

    /// What a server that was killed has left half written.
    pub(crate) fn sweep(&self) {
        let tenants = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let files = tenants.flat_map(|tenant| fs::read_dir(tenant.path()).into_iter().flatten().flatten());
        for file in files.filter(|file| file.path().extension().is_some_and(|kind| kind == "new")) {
            let _ = fs::remove_file(file.path());
        }
    }

    fn place(&self, tenant: &str, name: &str) -> PathBuf {
        self.dir.join(tenant).join(format!("{name}.tar"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<(String, String)>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attached {
    pub(crate) fn is_kept(&self) -> bool {
        self.keep
    }

    /// Its session has ended: somebody else may have it now, whoever still remembers this one.
    pub(crate) fn release(&self) {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Puts a copy of it into its session. A new one is an empty directory.
    pub(crate) async fn fill(&self, app: &App, live: &Arc<Live>) -> Result<(), Problem> {
        match tokio::fs::File::open(app.volumes.place(&live.tenant, &self.name)).await {
            Ok(archive) => {
                archive::unpack(app, live.clone(), self.path.clone(), archive).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                live.session.make_directory(&self.path).await?;
            }
            Err(error) => return Err(failed("read", &error)),
        }
        self.filled.store(true, Ordering::Release);
        Ok(())
    }

    /// Keeps what it is now, unless it is a copy. All of it or nothing: of `most` bytes that all volumes of the tenant may take.
    pub(crate) async fn save(&self, volumes: &Volumes, live: &Arc<Live>, most: u64) -> Result<u64, Problem> {
        if !self.keep {
            let hint = "it was attached with \"keep\": false";
            return Err(Problem::new(Code::Invalid, format!("the volume {} is a copy", self.name), hint));
        }
        let _turn = self.saving.lock().await;
        if !self.filled.load(Ordering::Acquire) {
            let hint = "wait until the session is open";
            return Err(Problem::new(Code::Busy, "the volume is still on its way in", hint).later(1));
        }
        let stored = volumes.list(&live.tenant).map_err(|error| failed("listed", &error))?;
        let others: u64 =
            stored.iter().filter(|other| other.name != self.name).map(|other| other.bytes).sum();
        if stored.len() >= MAX_VOLUMES && stored.iter().all(|other| other.name != self.name) {
            let reason = format!("the tenant has {MAX_VOLUMES} volumes already");
            return Err(Problem::new(Code::Quota, reason, "remove some that nobody needs"));
        }
        let place = volumes.place(&live.tenant, &self.name);
        let fresh = Unfinished(place.with_extension("new"));
        // Holes are nothing in a cell, but zeros in an archive.
        let disk = live.session.limits().get(LimitKind::Disk).map_or(u64::MAX, |bound| bound.value);
        let most = most.saturating_sub(others).min(disk.saturating_add(HEADERS));
        let bytes = self.write(live, &fresh.0, most).await?;
        tokio::fs::rename(&fresh.0, &place).await.map_err(|error| failed("kept", &error))?;
        Ok(bytes)
    }

    async fn write(&self, live: &Arc<Live>, fresh: &Path, most: u64) -> Result<u64, Problem> {
        let unwritten = |error: io::Error| failed("written", &error);
        if let Some(above) = fresh.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(above).map_err(unwritten)?;
        }
        let mut options = fs::OpenOptions::new();
        let file =
            options.write(true).create(true).truncate(true).mode(0o600).open(fresh).map_err(unwritten)?;
        let mut file = tokio::io::BufWriter::new(tokio::fs::File::from_std(file));
        let mut pieces = std::pin::pin!(archive::pack(live, &self.path).await?);
        let mut bytes = 0;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| {
                Problem::new(
                    Code::Ended,
                    format!("the volume could not be read: {error}"),
                    "it is as it was saved before",
                )
            })?;
            bytes += piece.len() as u64;
            if bytes > most {
                let hint = "remove files or volumes; `disk` in service.toml is the quota";
                return Err(Problem::new(Code::Quota, "the tenant's volumes take more than they may", hint));
            }
            file.write_all(&piece).await.map_err(unwritten)?;
        }
        file.flush().await.map_err(unwritten)?;
        file.get_ref().sync_all().await.map_err(unwritten)?;
        Ok(bytes)
    }
}

/// A file that is not a volume yet. Gone when dropped.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let own = (std::mem::take(&mut self.tenant), std::mem::take(&mut self.name));
        self.volumes.lock().remove(&own);
    }
}

/// A name becomes a file's.
fn check(name: &str) -> Result<(), Problem> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    let begins_well = name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    match begins_well && name.len() <= MAX_NAME && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(Problem::new(
            Code::Invalid,
            "this is not a name of a volume",
            format!(
                "use up to {MAX_NAME} of a-z, 0-9, dots, dashes and underscores, beginning with a letter or digit"
            ),
        )),
    }
}

fn failed(what: &str, error: &io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::StorageFull => Problem::new(
            Code::NoSpace,
            format!("the volume could not be {what}: the server's disk is full"),
            "free some space; the volume is as it was saved before",
        ),
        _ => Problem::internal(format!("the volume could not be {what}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_session_at_a_time_writes_a_volume() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let volumes = Volumes::of(home.path());
        let first = volumes.attach("a", "data", "/work/data", true).expect("nobody has it");
        let again = volumes.attach("a", "data", "/work/data", true).expect_err("it is taken");
        assert_eq!(again.code, Code::InUse);
        assert!(volumes.attach("a", "data", "/work/data", false).is_ok(), "a copy can always be had");
        assert!(volumes.attach("b", "data", "/work/data", true).is_ok(), "others have their own");
        drop(first);
        volumes.attach("a", "data", "/work/data", true).expect("it was given back");
    }

    #[test]
    fn a_name_cannot_lead_anywhere() {
        for bad in ["", ".", "..", "../x", "a/b", "A", "a b", "-a", "é", &"x".repeat(64), "a\0"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "0", "data.v1", "a-b_c"] {
            assert!(check(good).is_ok(), "{good:?}");
        }
    }
}
