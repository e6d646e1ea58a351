//! `/v1/sessions/{id}/files/archive`: trees as tar archives.

use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use http_body_util::BodyExt;
use tokio::time::timeout;
use tokio_util::io::StreamReader;

use super::document::{Asked, OnFiles, Sent};
use super::extract::{Path, Query};
use super::files::{Named, path, session};
use crate::app::{App, BODY_PATIENCE};
use crate::archive::{self, Unpacked};
use crate::problem::Problem;
use crate::shape::kept::UnpackedJson;
use crate::shape::words;
use crate::store::Caller;

/// Download a file or tree as a tar archive.
///
/// What is neither a file nor a directory is not in it, and is named in a pax comment at its beginning.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/files/archive", operation_id = "downloadArchive", tag = "files",
    params(("id" = String, Path, description = "Of a session"), Named),
    responses((status = 200, description = "The archive", body = words::Bytes, content_type = "application/x-tar"), Asked, OnFiles)
)]
pub(crate) async fn download(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Named { path: asked }): Query<Named>,
) -> Result<Response, Problem> {
    let live = session(&app, &caller, &id)?;
    let packed = archive::pack(&live, &path(&asked)?).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_DISPOSITION, "attachment"),
    ];
    Ok((headers, Body::from_stream(packed)).into_response())
}

/// Upload a tree as a tar archive.
///
/// Of files and directories, not compressed. Links, devices, absolute names and `..` end it; what came before stays.
#[utoipa::path(
    put, path = "/v1/sessions/{id}/files/archive", operation_id = "uploadArchive", tag = "files",
    params(("id" = String, Path, description = "Of a session"), Named),
    request_body(content = words::Bytes, content_type = "application/x-tar", description = "The archive"),
    responses((status = 201, description = "All of it is there", body = UnpackedJson), Asked, OnFiles, Sent)
)]
pub(crate) async fn upload(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Named { path: asked }): Query<Named>,
    body: Body,
) -> Result<(StatusCode, Json<UnpackedJson>), Problem> {
    let live = session(&app, &caller, &id)?;
    let place = path(&asked)?;
    let archive = StreamReader::new(Box::pin(frames(body)));
    let Unpacked { files, bytes } = archive::unpack(&app, live, place.clone(), archive).await?;
    Ok((StatusCode::CREATED, Json(UnpackedJson { path: place, files, bytes })))
}

/// What comes, as long as it comes.
fn frames(body: Body) -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures_util::stream::unfold(body, |mut body| async {
        let frame = match timeout(BODY_PATIENCE, body.frame()).await {
            Ok(frame) => frame?,
            Err(_) => return Some((Err(io::ErrorKind::TimedOut.into()), body)),
        };
        let bytes = frame.map(|frame| frame.into_data().unwrap_or_default()).map_err(io::Error::other);
        Some((bytes, body))
    })
}
