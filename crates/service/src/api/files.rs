//! Files of a session: below `/work` and `/tmp`, and nowhere else.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use casemate_core::request::GuestPath;
use casemate_engine::Entry;
use casemate_engine::session::{Change, Changed, FileError, FileInfo, FileKind, Inflow, Piece};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::body::Document;
use super::stream;
use crate::app::{App, BODY_PATIENCE};
use crate::problem::{Code, Problem};
use crate::sessions::Live;
use crate::store::Caller;
use crate::token::Scope;

/// Of one file on its way out.
const MAX_FILE: u64 = 1 << 34;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    path: String,
}

fn session(app: &App, caller: &Caller, id: &str) -> Result<Arc<Live>, Problem> {
    caller.check(Scope::Run)?;
    app.sessions.find(&caller.tenant, id)
}

/// In its shortest spelling. The cell resolves it once more, beneath its writable directories.
fn path(text: &str) -> Result<String, Problem> {
    match text.trim_end_matches('/') {
        whole @ ("/work" | "/tmp") => Ok(whole.to_owned()),
        _ => Ok(GuestPath::new(text)?.as_str().to_owned()),
    }
}

/// `GET /v1/sessions/{id}/files?path=…`
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    path: String,
    /// In octal, as everybody writes it.
    mode: Option<String>,
}

/// `PUT /v1/sessions/{id}/files?path=…`
pub(crate) async fn write(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Written { path: asked, mode }): Query<Written>,
    body: Body,
) -> Result<Response, Problem> {
    let live = session(&app, &caller, &id)?;
    let mode = mode.map_or(Ok(0o644), |mode| {
        u32::from_str_radix(&mode, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| {
            Problem::new(Code::Invalid, "this is not a mode", "write it in octal, such as 644")
        })
    })?;
    let place = path(&asked)?;
    let written = put(&live, &place, mode, body).await?;
    Ok((StatusCode::CREATED, Json(json!({"path": place, "size": written}))).into_response())
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

/// `DELETE /v1/sessions/{id}/files?path=…`
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Named { path: asked }): Query<Named>,
) -> Result<StatusCode, Problem> {
    session(&app, &caller, &id)?.session.remove(&path(&asked)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    path: String,
    depth: Option<u32>,
}

/// `GET /v1/sessions/{id}/files/list?path=…&depth=…`
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Listed { path: asked, depth }): Query<Listed>,
) -> Result<Response, Problem> {
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
    let entries: Vec<Value> =
        found.iter().skip(1).map(|(name, info)| described(&format!("{place}/{name}"), info)).collect();
    Ok(Json(json!({"entries": entries})).into_response())
}

/// `GET /v1/sessions/{id}/files/stat?path=…`
pub(crate) async fn stat(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Named { path: asked }): Query<Named>,
) -> Result<Response, Problem> {
    let place = path(&asked)?;
    let found = session(&app, &caller, &id)?.session.list(&place, 0).await?;
    let (_, info) = found.first().ok_or(FileError::Ended)?;
    Ok(Json(described(&place, info)).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDirectory {
    path: String,
}

/// `POST /v1/sessions/{id}/files/mkdir`
pub(crate) async fn make_directory(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<NewDirectory>,
) -> Result<Response, Problem> {
    let place = path(&asked.value.path)?;
    let made = session(&app, &caller, &id)?.session.make_directory(&place).await?;
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(json!({"path": place, "created": made}))).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Renaming {
    from: String,
    to: String,
}

/// `POST /v1/sessions/{id}/files/rename`
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Watched {
    path: String,
    #[serde(default)]
    recursive: bool,
}

/// `GET /v1/sessions/{id}/files/watch?path=…`: changes, as events.
pub(crate) async fn watch(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Watched { path: asked, recursive }): Query<Watched>,
) -> Result<Response, Problem> {
    let place = path(&asked)?;
    let changes = session(&app, &caller, &id)?.session.watch(&place, recursive).await?;
    let begun = futures_util::stream::once(async { stream::named("watching", &json!({})) });
    let changes = futures_util::stream::unfold(changes, move |mut changes| async move {
        let changed = changes.recv().await?;
        let event = match changed {
            Changed::Entry { path, change } => {
                stream::named("changed", &json!({"path": path, "change": word(change)}))
            }
            Changed::Lost => stream::named("missed", &json!({})),
        };
        Some((event, changes))
    });
    use futures_util::StreamExt;
    Ok(stream::sse(begun.chain(changes)))
}

const fn word(change: Change) -> &'static str {
    match change {
        Change::Created => "created",
        Change::Written => "written",
        Change::Removed => "removed",
        Change::Renamed => "renamed",
        Change::Attributes => "attributes",
    }
}

fn described(path: &str, info: &FileInfo) -> Value {
    let kind = match info.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "link",
        FileKind::Other => "other",
    };
    json!({
        "path": path,
        "kind": kind,
        "size": info.size,
        "mode": format!("{:o}", info.mode),
        "modified_us": info.modified_micros,
    })
}
