//! `/v1/images`: what cells can have for a root file system. All tenants share them.

use std::io::{self, Read};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use bytes::{Buf, Bytes};
use casemate_core::image::ImageRef;
use casemate_core::limits::parse_size;
use casemate_engine::images::{
    DEFAULT_SIZE_LIMIT, ImageError, ImageInfo, Images, Import, Imported, Origin, Progress,
};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::timeout;
use utoipa::IntoParams;

use super::body::too_large;
use super::document::{Asked, Conflicting, Crowded, Named, Queried, Sent};
use super::extract::{Path, Query};
use super::page::Page;
use crate::app::{App, BODY_PATIENCE};
use crate::problem::{Code, Problem};
use crate::shape::listed::{ImageJson, ImagesJson, ImportedJson};
use crate::shape::words;
use crate::store::Caller;
use crate::token::Scope;

/// Of an archive, before it is expanded. What may be in it is limited besides.
const MAX_ARCHIVE: u64 = DEFAULT_SIZE_LIMIT;
/// How long an archive waits for one that is being taken in.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pieces of an archive that wait to be unpacked.
const PENDING: usize = 16;

/// List the images, the oldest first.
#[utoipa::path(
    get, path = "/v1/images", operation_id = "listImages", tag = "images",
    params(Page),
    responses((status = 200, description = "A part of them", body = ImagesJson), Asked, Queried)
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(page): Query<Page>,
) -> Result<Json<ImagesJson>, Problem> {
    caller.check(Scope::Run)?;
    let all = in_store(&app, Images::list).await?;
    let (part, next) = page.cut(all, |image| format!("{:016x}-{}", image.created, image.digest.hex()))?;
    Ok(Json(ImagesJson { images: part.into_iter().map(ImageJson::from).collect(), next }))
}

/// Look an image up.
#[utoipa::path(
    get, path = "/v1/images/{name}", operation_id = "getImage", tag = "images",
    params(("name" = String, Path, description = "A name, a digest, or the first 12 digits or more of one")),
    responses((status = 200, description = "What is known of it", body = ImageJson), Asked, Named)
)]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<ImageJson>, Problem> {
    caller.check(Scope::Run)?;
    let found = in_store(&app, move |images| find(images, &name)).await?;
    found.map(|image| Json(image.into())).ok_or_else(|| Problem::not_found("image"))
}

fn find(images: &Images, name: &str) -> Result<Option<ImageInfo>, ImageError> {
    let Ok(ImageRef::Stored { digest, .. }) = images.find(name) else { return Ok(None) };
    Ok(images.list()?.into_iter().find(|image| image.digest == digest))
}

/// Remove a name, and its image if that was its last; or an image with all its names.
///
/// Not while it is used. The token needs the scope `images`.
#[utoipa::path(
    delete, path = "/v1/images/{name}", operation_id = "removeImage", tag = "images",
    params(("name" = String, Path, description = "A name, a digest, or the first 12 digits or more of one")),
    responses((status = 204, description = "It is gone"), Asked, Named, Conflicting)
)]
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    caller.check(Scope::Images)?;
    let gone = in_store(&app, move |images| match find(images, &name)? {
        Some(_) => images.remove(&name).map(Some),
        None => Ok(None),
    });
    gone.await?.map(|_| StatusCode::NO_CONTENT).ok_or_else(|| Problem::not_found("image"))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Importing {
    /// What to call it. A name that stood for another image stands for this one then.
    #[param(example = "tools:1.2", nullable = false)]
    name: Option<String>,
    /// What its files may have together, such as `500M`; 8 GiB if nothing is said, and at most.
    #[param(example = "500M", nullable = false)]
    size_limit: Option<String>,
}

/// Take in an image.
///
/// The body is a tar, compressed or not: of a root file system, of `docker save`, or of an OCI layout. The store changes at the very end,
/// or not at all. The token needs the scope `images`.
#[utoipa::path(
    post, path = "/v1/images", operation_id = "importImage", tag = "images",
    params(Importing),
    request_body(content = words::Bytes, content_type = "application/octet-stream", description = "The archive"),
    responses(
        (status = 201, description = "It is in the store now", body = ImportedJson),
        (status = 200, description = "It was in the store already", body = ImportedJson),
        Asked, Queried, Sent, Crowded,
    )
)]
pub(crate) async fn import(
    State(app): State<App>,
    caller: Caller,
    Query(Importing { name, size_limit }): Query<Importing>,
    body: Body,
) -> Result<(StatusCode, Json<ImportedJson>), Problem> {
    caller.check(Scope::Images)?;
    let size_limit = size_limit.as_deref().map_or(Ok(DEFAULT_SIZE_LIMIT), parse_size)?;
    if size_limit > DEFAULT_SIZE_LIMIT {
        let hint = "import it on the server, with `casemate image import --size-limit`";
        return Err(Problem::new(Code::Invalid, "an image that comes like this has at most 8 GiB", hint));
    }
    let turn = timeout(PATIENCE, app.imports.clone().acquire_owned()).await.ok().and_then(Result::ok);
    let turn = turn.ok_or_else(|| {
        Problem::new(Code::Busy, "another image is being taken in", "send this one when that is done")
            .later(5)
    })?;
    let (pieces, archive) = mpsc::channel(PENDING);
    let import = Import { name, size_limit, source: "upload".into() };
    let importing = in_store(&app, move |images| {
        let _turn = turn;
        let archive = Archive { pieces: archive, piece: Bytes::new(), over: false };
        images.import(Origin::Stream(Box::new(archive)), &import, &mut Unwatched)
    });
    let (sent, imported) = tokio::join!(send(body, pieces), importing);
    // Whoever does not send all of it is told so, and not what is wrong with the rest.
    sent?;
    let Imported { digest, known, unnamed } = imported?;
    let status = if known { StatusCode::OK } else { StatusCode::CREATED };
    let unnamed = unnamed.map(|digest| digest.to_string());
    Ok((status, Json(ImportedJson { digest: digest.to_string(), known, unnamed })))
}

/// Hands on what comes, until all of it has come or nobody wants more.
async fn send(mut body: Body, pieces: mpsc::Sender<Option<Bytes>>) -> Result<(), Problem> {
    let mut left = MAX_ARCHIVE;
    let slow =
        |_| Problem::new(Code::TooSlow, "the body did not arrive in time", "send it without long pauses");
    while let Some(frame) = timeout(BODY_PATIENCE, body.frame()).await.map_err(slow)? {
        let frame = frame.map_err(|error| {
            Problem::new(Code::Malformed, format!("the body ended early: {error}"), "send all of it")
        })?;
        let Ok(bytes) = frame.into_data() else { continue };
        left = left.checked_sub(bytes.len() as u64).ok_or_else(|| too_large(MAX_ARCHIVE as usize))?;
        if pieces.send(Some(bytes)).await.is_err() {
            return Ok(());
        }
    }
    let _ = pieces.send(None).await;
    Ok(())
}

/// An archive that is still being sent.
struct Archive {
    pieces: mpsc::Receiver<Option<Bytes>>,
    piece: Bytes,
    over: bool,
}

impl Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.over {
            match self.pieces.blocking_recv() {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.over = true,
                // What was cut off may look whole.
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let taken = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..taken]);
        Ok(taken)
    }
}

/// Nobody looks on.
struct Unwatched;

impl Progress for Unwatched {
    fn begin(&mut self, _: &str, _: Option<u64>) {}
    fn advance(&mut self, _: u64) {}
}

/// The store is files, and they take their time.
async fn in_store<T: Send + 'static>(
    app: &App,
    act: impl FnOnce(&Images) -> Result<T, ImageError> + Send + 'static,
) -> Result<T, Problem> {
    let images = app.images.clone();
    let done = tokio::task::spawn_blocking(move || act(&images)).await;
    Ok(done.map_err(|_| Problem::internal("what became of the images is not known"))??)
}
