//! Files of a session: below `/work` and `/tmp`, and nowhere else.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use casemate_core::request::GuestPath;
use casemate_engine::Entry;
use casemate_engine::session::{Changed, FileError, FileKind, Inflow, Piece};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use super::body::Document;
use super::document::{Asked, Documented, OnFiles, Sent};
use super::extract::{Path, Query};
use super::stream;
use crate::app::{App, BODY_PATIENCE};
use crate::problem::{Code, Problem};
use crate::sessions::Live;
use crate::shape::event::{self, BareJson, ChangedJson};
use crate::shape::listed::{EntriesJson, EntryJson, MadeDirectoryJson, WrittenJson};
use crate::shape::request::mode as parse_mode;
use crate::shape::words;
use crate::store::Caller;
use crate::token::Scope;

/// Of one file on its way out.
const MAX_FILE: u64 = 1 << 34;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Named {
    /// Below `/work` or `/tmp`.
    #[param(example = "/work/data.txt")]
    pub(super) path: String,
}

pub(crate) fn session(app: &App, caller: &Caller, id: &str) -> Result<Arc<Live>, Problem> {
    caller.check(Scope::Run)?;
    app.sessions.find(&caller.tenant, id)
}

/// In its shortest spelling. The cell resolves it once more, beneath its writable directories.
pub(crate) fn path(text: &str) -> Result<String, Problem> {
    match text.trim_end_matches('/') {
        whole @ ("/work" | "/tmp") => Ok(whole.to_owned()),
        _ => Ok(GuestPath::new(text)?.as_str().to_owned()),
    }
}

/// Read a file.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/files", operation_id = "readFile", tag = "files",
    params(("id" = String, Path, description = "Of a session"), Named),
    responses((status = 200, description = "Its bytes", body = words::Bytes, content_type = "application/octet-stream"), Asked, OnFiles)
)]
pub(crate) async fn read(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Named { path: asked }): Query<Named>,
) -> Result<Response, Problem> {
    send(session(&app, &caller, &id)?, &path(&asked)?).await
}

/// Answers with the content of a file.
pub(crate) async fn send(live: Arc<Live>, path: &str) -> Result<Response, Problem> {
    let mut pieces = live.session.get(path, MAX_FILE, 1);
    let size = match pieces.next().await {
        Some(Piece::Entry { entry: Entry::File { size, .. }, .. }) => size,
        Some(Piece::Entry { entry: Entry::Directory { .. }, .. }) => {
            return Err(Problem::new(Code::IsADirectory, "this is a directory", "list it instead"));
        }
        Some(Piece::Failed(error)) => return Err(error.into()),
        Some(Piece::Data(_) | Piece::Skipped { .. }) | None => return Err(FileError::Ended.into()),
    };
    // The session stays as long as somebody reads from it.
    let bytes = futures_util::stream::unfold((pieces, live), |(mut pieces, live)| async {
        match pieces.next().await? {
            Piece::Data(bytes) => Some((Ok(Bytes::from(bytes)), (pieces, live))),
            Piece::Failed(error) => Some((Err(std::io::Error::other(error.to_string())), (pieces, live))),
            Piece::Entry { .. } | Piece::Skipped { .. } => Some((Ok(Bytes::new()), (pieces, live))),
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, size.to_string()),
        // Whoever shows it in a browser does not run it there.
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Written {
    /// Below `/work` or `/tmp`. Directories above it are made.
    #[param(example = "/work/data.txt")]
    path: String,
    /// In octal; 644 if none is named.
    #[param(example = "644", pattern = "^[0-7]{1,3}$", nullable = false)]
    mode: Option<String>,
}

/// Write a file.
#[utoipa::path(
    put, path = "/v1/sessions/{id}/files", operation_id = "writeFile", tag = "files",
    params(("id" = String, Path, description = "Of a session"), Written),
    request_body(content = words::Bytes, content_type = "application/octet-stream", description = "Its bytes"),
    responses((status = 201, description = "It is there", body = WrittenJson), Asked, Sent, OnFiles)
)]
pub(crate) async fn write(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Written { path: asked, mode }): Query<Written>,
    body: Body,
) -> Result<(StatusCode, Json<WrittenJson>), Problem> {
    let live = session(&app, &caller, &id)?;
    let mode = parse_mode(mode.as_deref())?;
    let path = path(&asked)?;
    let size = put(&live, &path, mode, body).await?;
    Ok((StatusCode::CREATED, Json(WrittenJson { path, size })))
}

/// Writes a file, and makes the directories above it.
pub(crate) async fn put(live: &Live, path: &str, mode: u32, mut body: Body) -> Result<u64, Problem> {
    let mut writing = Writing::begin(live, path, mode).await?;
    loop {
        let slow =
            |_| Problem::new(Code::TooSlow, "the body did not arrive in time", "send it without long pauses");
        let frame = timeout(BODY_PATIENCE, body.frame()).await.map_err(slow)?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| {
            Problem::new(Code::Malformed, format!("the body ended early: {error}"), "send all of it")
        })?;
        let Ok(bytes) = frame.into_data() else { continue };
        writing.take(bytes).await?;
    }
    writing.finish().await
}

/// A file on its way in.
pub(crate) struct Writing {
    input: Inflow,
    done: oneshot::Receiver<Result<(), FileError>>,
    written: u64,
}

impl Writing {
    /// Makes the directories above it first.
    pub(crate) async fn begin(live: &Live, path: &str, mode: u32) -> Result<Writing, Problem> {
        make_parents(live, path).await?;
        let (input, done) = live.session.put(path, mode);
        Ok(Writing { input, done, written: 0 })
    }

    pub(crate) async fn take(&mut self, bytes: Bytes) -> Result<(), Problem> {
        self.written += bytes.len() as u64;
        // Whoever takes it says why they do not take more.
        if !bytes.is_empty() && self.input.send(bytes.to_vec()).await.is_err() {
            return Err((&mut self.done).await.unwrap_or(Ok(())).err().unwrap_or(FileError::Ended).into());
        }
        match self.done.try_recv() {
            Ok(Err(error)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    pub(crate) async fn finish(self) -> Result<u64, Problem> {
        self.input.end();
        self.done.await.unwrap_or(Err(FileError::Ended))?;
        Ok(self.written)
    }
}

/// Makes the directories above a file.
pub(crate) async fn make_parents(live: &Live, path: &str) -> Result<(), Problem> {
    if let Some((above, _)) = path.rsplit_once('/')
        && !matches!(above, "" | "/work" | "/tmp")
    {
        live.session.make_directory(above).await?;
    }
    Ok(())
}

/// Remove a file, or a directory with everything in it.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}/files", operation_id = "removeFile", tag = "files",
    params(("id" = String, Path, description = "Of a session"), Named),
    responses((status = 204, description = "It is gone"), Asked, OnFiles)
)]
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Named { path: asked }): Query<Named>,
) -> Result<StatusCode, Problem> {
    session(&app, &caller, &id)?.session.remove(&path(&asked)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listed {
    /// A directory.
    #[param(example = "/work")]
    path: String,
    /// How far down; 1 if nothing is said.
    #[param(nullable = false)]
    depth: Option<u32>,
}

/// List a directory.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/files/list", operation_id = "listFiles", tag = "files",
    params(("id" = String, Path, description = "Of a session"), Listed),
    responses((status = 200, description = "What is in it", body = EntriesJson), Asked, OnFiles)
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Listed { path: asked, depth }): Query<Listed>,
) -> Result<Json<EntriesJson>, Problem> {
    let place = path(&asked)?;
    let found = session(&app, &caller, &id)?.session.list(&place, depth.unwrap_or(1)).await?;
    match found.first() {
        Some((_, itself)) if itself.kind != FileKind::Directory => {
            return Err(Problem::new(
                Code::NotADirectory,
                "this is not a directory",
                "ask for its stat instead",
            ));
        }
        _ => {}
    }
    let below = found.iter().skip(1);
    let entries = below.map(|(name, info)| EntryJson::new(format!("{place}/{name}"), info)).collect();
    Ok(Json(EntriesJson { entries }))
}

/// Say what there is at a path.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/files/stat", operation_id = "statFile", tag = "files",
    params(("id" = String, Path, description = "Of a session"), Named),
    responses((status = 200, description = "What there is", body = EntryJson), Asked, OnFiles)
)]
pub(crate) async fn stat(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Named { path: asked }): Query<Named>,
) -> Result<Json<EntryJson>, Problem> {
    let place = path(&asked)?;
    let found = session(&app, &caller, &id)?.session.list(&place, 0).await?;
    let (_, info) = found.first().ok_or(FileError::Ended)?;
    Ok(Json(EntryJson::new(place, info)))
}

/// A directory to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDirectory {
    #[schema(example = "/work/some/where")]
    path: String,
}

/// Make a directory, and what is missing above it.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/files/mkdir", operation_id = "makeDirectory", tag = "files",
    params(("id" = String, Path, description = "Of a session")),
    request_body = NewDirectory,
    responses(
        (status = 201, description = "It was made", body = MadeDirectoryJson),
        (status = 200, description = "It was there", body = MadeDirectoryJson),
        Asked, Documented, OnFiles,
    )
)]
pub(crate) async fn make_directory(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<NewDirectory>,
) -> Result<(StatusCode, Json<MadeDirectoryJson>), Problem> {
    let path = path(&asked.value.path)?;
    let created = session(&app, &caller, &id)?.session.make_directory(&path).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(MadeDirectoryJson { path, created })))
}

/// Another path for a file or directory.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Renaming {
    #[schema(example = "/work/data.txt")]
    from: String,
    /// Whatever is there is replaced, but for a directory with something in it.
    #[schema(example = "/work/other.txt")]
    to: String,
}

/// Give a file or directory another path.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/files/rename", operation_id = "renameFile", tag = "files",
    params(("id" = String, Path, description = "Of a session")),
    request_body = Renaming,
    responses((status = 204, description = "It is there"), Asked, Documented, OnFiles)
)]
pub(crate) async fn rename(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<Renaming>,
) -> Result<StatusCode, Problem> {
    let Renaming { from, to } = asked.value;
    session(&app, &caller, &id)?.session.rename(&path(&from)?, &path(&to)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Watched {
    /// A directory.
    #[param(example = "/work")]
    path: String,
    /// And those below it.
    #[serde(default)]
    #[param(required = false)]
    recursive: bool,
}

/// Follow what changes in a directory, as events.
///
/// `watching` when it has begun, then `changed`, and `missed` if there were more changes than could be told.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/files/watch", operation_id = "watchFiles", tag = "files",
    params(("id" = String, Path, description = "Of a session"), Watched),
    responses((status = 200, description = "Events, until the session or the connection ends", body = event::Watch, content_type = "text/event-stream"), Asked, OnFiles)
)]
pub(crate) async fn watch(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Watched { path: asked, recursive }): Query<Watched>,
) -> Result<Response, Problem> {
    let place = path(&asked)?;
    let changes = session(&app, &caller, &id)?.session.watch(&place, recursive).await?;
    let begun = futures_util::stream::once(async { stream::named("watching", &BareJson {}) });
    let changes = futures_util::stream::unfold(changes, move |mut changes| async move {
        let changed = changes.recv().await?;
        let event = match changed {
            Changed::Entry { path, change } => stream::named("changed", &ChangedJson::new(path, change)),
            Changed::Lost => stream::named("missed", &BareJson {}),
        };
        Some((event, changes))
    });
    use futures_util::StreamExt;
    Ok(stream::sse(begun.chain(changes)))
}
