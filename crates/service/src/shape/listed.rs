//! What there is: executions, sessions, programs, files, images, receipts. These shapes are a contract: fields may be added, none
//! changes.

use std::collections::BTreeMap;

use casemate_engine::images::ImageInfo;
use casemate_engine::session::{FileInfo, FileKind};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::outcome::{ExecutionJson, walls};
use super::words;
use crate::sessions::{Live, Running};
use crate::store::Known;

/// An execution, or a session that is over. What it wrote is not kept.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Execution)]
pub(crate) struct KnownJson {
    id: String,
    /// How it ended; `running` if it has not, and `interrupted` if its server has gone away before it did.
    #[schema(value_type = words::State)]
    state: String,
    /// Seconds since 1970, like all times.
    created: i64,
    #[schema(required = true)]
    ended: Option<i64>,
    /// What came of it, once it has ended.
    #[schema(value_type = Option<ExecutionJson>, required = true)]
    outcome: Option<Value>,
}

/// Executions, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Executions)]
pub(crate) struct ExecutionsJson {
    pub(crate) executions: Vec<KnownJson>,
    /// The `cursor` of the next part, if there is one.
    #[schema(required = true)]
    pub(crate) next: Option<String>,
}

/// A session that is open.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionJson {
    id: String,
    state: SessionState,
    #[schema(value_type = Vec<words::Wall>)]
    stack: Vec<&'static str>,
    #[schema(value_type = words::Class)]
    class: &'static str,
    #[schema(value_type = Vec<words::LimitKind>)]
    unbounded: Vec<&'static str>,
    created: i64,
    expires: i64,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SessionState {
    Running,
    Paused,
}

/// A session, open or over.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = AnySession)]
pub(crate) enum AnySessionJson {
    Open(SessionJson),
    Over(KnownJson),
}

/// Sessions that are open, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sessions)]
pub(crate) struct SessionsJson {
    pub(crate) sessions: Vec<SessionJson>,
    #[schema(required = true)]
    pub(crate) next: Option<String>,
}

/// A program in a session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Process)]
pub(crate) struct ProcessJson {
    /// As its receipt has it.
    id: String,
    pid: u32,
    #[schema(required = true)]
    tag: Option<String>,
    command: Vec<String>,
    #[schema(required = true)]
    cwd: Option<String>,
    terminal: bool,
    running: bool,
    #[schema(required = true)]
    outcome: Option<ExecutionJson>,
}

/// Programs of a session, in the order in which they were started.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Processes)]
pub(crate) struct ProcessesJson {
    pub(crate) processes: Vec<ProcessJson>,
    #[schema(required = true)]
    pub(crate) next: Option<String>,
}

/// A file, directory or link of a session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Entry)]
pub(crate) struct EntryJson {
    path: String,
    kind: EntryKind,
    size: u64,
    /// In octal.
    mode: String,
    /// Microseconds since 1970.
    modified_us: i64,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EntryKind {
    File,
    Directory,
    Link,
    Other,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Entries)]
pub(crate) struct EntriesJson {
    pub(crate) entries: Vec<EntryJson>,
}

/// A file that was written.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Written)]
pub(crate) struct WrittenJson {
    pub(crate) path: String,
    pub(crate) size: u64,
}

/// A directory that is there now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MadeDirectory)]
pub(crate) struct MadeDirectoryJson {
    pub(crate) path: String,
    /// It was not there before.
    pub(crate) created: bool,
}

/// An image of the store.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Image)]
pub(crate) struct ImageJson {
    digest: String,
    names: Vec<String>,
    created: u64,
    /// Of its files.
    size_bytes: u64,
    entries: u64,
    format: String,
    /// Where it comes from, for people.
    source: String,
}

/// Images, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Images)]
pub(crate) struct ImagesJson {
    pub(crate) images: Vec<ImageJson>,
    #[schema(required = true)]
    pub(crate) next: Option<String>,
}

/// What became of an archive.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ImportedImage)]
pub(crate) struct ImportedJson {
    pub(crate) digest: String,
    /// It was in the store already.
    pub(crate) known: bool,
    /// What the name stood for before, if that has no other name now.
    #[schema(required = true)]
    pub(crate) unnamed: Option<String>,
}

/// Whether the chain holds that a receipt is part of.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verification)]
pub(crate) struct VerificationJson {
    pub(crate) id: String,
    pub(crate) verified: bool,
    /// Of the whole chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) records: Option<u64>,
    /// Why it does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) reason: Option<String>,
}

impl From<Known> for KnownJson {
    fn from(Known { id, created, ended, state, summary, .. }: Known) -> KnownJson {
        let outcome = summary.and_then(|text| serde_json::from_str(&text).ok());
        KnownJson { id, state, created, ended, outcome }
    }
}

impl From<&Live> for SessionJson {
    fn from(live: &Live) -> SessionJson {
        SessionJson {
            id: live.session.id().to_owned(),
            state: if live.is_paused() { SessionState::Paused } else { SessionState::Running },
            stack: walls(live.session.stack()),
            class: live.session.class().as_str(),
            unbounded: live.session.unbounded().iter().map(|kind| kind.as_str()).collect(),
            created: live.created,
            expires: live.expires(),
            metadata: live.metadata.clone(),
        }
    }
}

impl From<&Running> for ProcessJson {
    fn from(running: &Running) -> ProcessJson {
        ProcessJson {
            id: running.id.clone(),
            pid: running.pid,
            tag: running.tag.clone(),
            command: running.argv.clone(),
            cwd: running.cwd.clone(),
            terminal: running.terminal,
            running: !running.log.is_over(),
            outcome: running.log.outcome().map(|executed| ExecutionJson::summary(&executed)),
        }
    }
}

impl EntryJson {
    pub(crate) fn new(path: String, info: &FileInfo) -> EntryJson {
        let kind = match info.kind {
            FileKind::File => EntryKind::File,
            FileKind::Directory => EntryKind::Directory,
            FileKind::Link => EntryKind::Link,
            FileKind::Other => EntryKind::Other,
        };
        let mode = format!("{:o}", info.mode);
        EntryJson { path, kind, size: info.size, mode, modified_us: info.modified_micros }
    }
}

impl From<ImageInfo> for ImageJson {
    fn from(ImageInfo { digest, names, created, bytes, entries, format, source }: ImageInfo) -> ImageJson {
        ImageJson { digest: digest.to_string(), names, created, size_bytes: bytes, entries, format, source }
    }
}
