//! `/v1/sessions/{id}/files/archive`: trees as tar archives.

use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::time::timeout;
use tokio_util::io::StreamReader;

use super::files::{Named, path, session};
use crate::app::{App, BODY_PATIENCE};
use crate::archive::{self, Unpacked};
use crate::problem::Problem;
use crate::store::Caller;

/// `GET /v1/sessions/{id}/files/archive?path=…`
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

/// `PUT /v1/sessions/{id}/files/archive?path=…`
pub(crate) async fn upload(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(Named { path: asked }): Query<Named>,
    body: Body,
) -> Result<Response, Problem> {
    let live = session(&app, &caller, &id)?;
    let place = path(&asked)?;
    let archive = StreamReader::new(Box::pin(frames(body)));
    let Unpacked { files, bytes } = archive::unpack(live, place.clone(), archive).await?;
    Ok((StatusCode::CREATED, Json(json!({"path": place, "files": files, "bytes": bytes}))).into_response())
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
