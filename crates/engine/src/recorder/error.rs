//! What can go wrong with the store, and what the operator can do about it.

use std::io;
use std::path::{Path, PathBuf};

use casemate_core::evidence::{ChainError, EntryError, Fault, KeyError, LinkError};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("cannot {action} {}: the file system is read-only", path.display())]
    ReadOnly { action: &'static str, path: PathBuf },
    #[error("cannot {action} {}: no space left", path.display())]
    Full { action: &'static str, path: PathBuf },
    #[error("cannot {action} {}: permission denied", path.display())]
    Denied { action: &'static str, path: PathBuf },
    #[error("cannot {action} {}: not a directory", path.display())]
    NotADirectory { action: &'static str, path: PathBuf },
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error("{} can be written by others (mode {mode:04o})", path.display())]
    DirectoryExposed { path: PathBuf, mode: u32 },
    #[error("the signing key {} can be read by others (mode {mode:04o})", path.display())]
    KeyExposed { path: PathBuf, mode: u32 },
    #[error("the key {} is not usable", path.display())]
    KeyInvalid { path: PathBuf, source: KeyError },
    #[error("the signing key {} is missing, but the chain it signed is not empty", path.display())]
    KeyMissing { path: PathBuf },
    #[error("{} does not belong to the signing key", path.display())]
    KeyMismatch { path: PathBuf },

    #[error("there is no evidence store at {}", path.display())]
    NoStore { path: PathBuf },
    #[error("the evidence in {} is damaged", path.display())]
    Corrupt { path: PathBuf, source: ChainError },
    #[error("{} was cut from {known} to {found} bytes while in use", path.display())]
    Cut { path: PathBuf, known: u64, found: u64 },
    #[error("{} was removed or replaced while in use", path.display())]
    Replaced { path: PathBuf },
    #[error("an earlier record could not be made durable ({kind}), so no more are accepted")]
    SyncFailed { kind: io::ErrorKind },

    #[error("execution {id} is already open")]
    AlreadyOpen { id: String },
    #[error("execution {id} is not open for run {run}")]
    NotOpen { id: String, run: String },
    #[error("the record cannot be written")]
    Entry(#[source] LinkError),
    #[error("cannot write the exported records")]
    Export(#[source] io::Error),
}

impl From<EntryError> for StoreError {
    fn from(error: EntryError) -> StoreError {
        StoreError::Entry(LinkError::Entry(error))
    }
}

impl StoreError {
    /// Names the failures that an operator can act on.
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> StoreError {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly { action, path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { action, path },
            io::ErrorKind::PermissionDenied => StoreError::Denied { action, path },
            io::ErrorKind::NotADirectory => StoreError::NotADirectory { action, path },
            _ => StoreError::Io { action, path, source },
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            StoreError::ReadOnly { .. } => {
                "no record, no run: set CASEMATE_HOME to a directory on a writable file system".to_owned()
            }
            StoreError::Full { path, .. } => {
                format!("free some space on the file system of {} (`df -h` shows it)", path.display())
            }
            StoreError::Denied { path, .. } => {
                format!("run as the owner of {} or set CASEMATE_HOME to a directory of yours", path.display())
            }
            StoreError::NotADirectory { path, .. } => {
                format!("a file is in the way of {}: move it or set CASEMATE_HOME elsewhere", path.display())
            }
            StoreError::DirectoryExposed { path, .. } => format!("chmod 700 {}", path.display()),
            StoreError::KeyExposed { path, .. } => {
                format!("if nobody else can have read it: chmod 600 {}", path.display())
            }
            StoreError::KeyInvalid { path, .. } | StoreError::KeyMissing { path } => {
                format!(
                    "restore {} from a backup, or move the evidence directory away to start a new chain",
                    path.display()
                )
            }
            StoreError::KeyMismatch { path } => {
                format!(
                    "restore the key pair from a backup; if only the public key is wrong, remove {}",
                    path.display()
                )
            }
            StoreError::NoStore { .. } => {
                "the first run creates it; set CASEMATE_HOME if it lives elsewhere".to_owned()
            }
            StoreError::Corrupt { source: ChainError::Line { fault: Fault::Torn, .. }, .. } => {
                "a writer was killed while writing it; the next run removes it and goes on".to_owned()
            }
            StoreError::Corrupt { path, .. }
            | StoreError::Cut { path, .. }
            | StoreError::Replaced { path } => format!(
                "keep {} as it is for inspection; `casemate evidence verify --all` lists what is wrong",
                path.display()
            ),
            StoreError::SyncFailed { .. } => "check the disk (`dmesg`), then restart".to_owned(),
            StoreError::Io { .. }
            | StoreError::AlreadyOpen { .. }
            | StoreError::NotOpen { .. }
            | StoreError::Entry(_)
            | StoreError::Export(_) => return None,
        };
        Some(hint)
    }
}
