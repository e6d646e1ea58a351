//! `/v1/sessions`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use casemate_core::limits::LimitKind;
use casemate_core::request::Request;

use super::body::Document;
use super::document::{Admitted, Asked, Conflicting, Documented, InSession, Named, Queried};
use super::extract::{Path, Query};
use super::page::Page;
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Sessions, Terms, as_long_as_any};
use crate::shape::listed::{AnySessionJson, SessionJson, SessionsJson};
use crate::shape::outcome::ExecutionJson;
use crate::shape::request::{Amount, Extension, NewSession, VolumeIn};
use crate::store::Caller;
use crate::token::Scope;

/// How long a session lives unless somebody says otherwise, and how long it can live at all.
const TTL: Duration = Duration::from_secs(300);
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 3600);
const MAX_METADATA: usize = 64;

/// Open a session: a cell for several programs.
#[utoipa::path(
    post, path = "/v1/sessions", operation_id = "createSession", tag = "sessions",
    request_body = NewSession,
    responses(
        (status = 201, description = "It is open", body = SessionJson, headers(("Location" = String, description = "Where it is"))),
        Asked, Documented, Admitted, Conflicting,
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    asked: Document<NewSession>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let mut asked = asked.value;
    let ttl = asked.ttl.take().map(|ttl| duration(&ttl)).transpose()?.unwrap_or(TTL);
    let idle = asked.idle_timeout.take().map(|idle| duration(&idle)).transpose()?;
    let metadata = std::mem::take(&mut asked.metadata);
    check_metadata(&metadata)?;
    let volumes = std::mem::take(&mut asked.volumes);
    let attach =
        |volume: VolumeIn| app.volumes.attach(&caller.tenant, &volume.name, &volume.path, volume.keep);
    let volumes = volumes.into_iter().map(attach).collect::<Result<Vec<_>, _>>()?;
    let live = open(&app, &caller, asked, Terms { ttl, idle, metadata, volumes }).await?;
    let place = format!("/v1/sessions/{}", live.session.id());
    Ok((StatusCode::CREATED, [("location", place)], Json(SessionJson::from(&*live))).into_response())
}

pub(crate) fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Problem> {
    let length: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if metadata.len() > MAX_METADATA || length > 16 * 1024 {
        let hint = format!("keep it below {MAX_METADATA} entries and 16 KiB");
        return Err(Problem::new(Code::Invalid, "there is too much metadata", hint));
    }
    Ok(())
}

pub(crate) async fn open(
    app: &App,
    caller: &Caller,
    asked: NewSession,
    terms: Terms,
) -> Result<std::sync::Arc<Live>, Problem> {
    let mut draft = asked.into_draft(&caller.tenant, &app.images)?;
    // The default of processor time follows from it, and need not be enforceable.
    if draft.limits.get(LimitKind::WallTime).is_none() {
        draft.limits.set(LimitKind::WallTime, as_long_as_any(app, &caller.tenant));
    }
    Sessions::open(app, Request::new(draft)?, terms).await
}

pub(crate) fn duration(amount: &Amount) -> Result<Duration, Problem> {
    Ok(Duration::from_millis(amount.read(LimitKind::WallTime)?).min(LONGEST))
}

/// List the sessions that are open, the oldest first.
#[utoipa::path(
    get, path = "/v1/sessions", operation_id = "listSessions", tag = "sessions",
    params(Page),
    responses((status = 200, description = "A part of them", body = SessionsJson), Asked, Queried)
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(page): Query<Page>,
) -> Result<Json<SessionsJson>, Problem> {
    caller.check(Scope::Run)?;
    let open = app.sessions.list(Some(&caller.tenant));
    let (part, next) = page.cut(open, |live| format!("{:016x}-{}", live.created, live.session.id()))?;
    let sessions = part.iter().map(|live| SessionJson::from(&**live)).collect();
    Ok(Json(SessionsJson { sessions, next }))
}

/// Look a session up.
///
/// One that is over is still known, with what came of it.
#[utoipa::path(
    get, path = "/v1/sessions/{id}", operation_id = "getSession", tag = "sessions",
    params(("id" = String, Path, description = "Of a session")),
    responses((status = 200, description = "What is known of it", body = AnySessionJson), Asked, Named)
)]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<AnySessionJson>, Problem> {
    caller.check(Scope::Run)?;
    if let Ok(live) = app.sessions.find(&caller.tenant, &id) {
        return Ok(Json(AnySessionJson::Open((&*live).into())));
    }
    app.state.flush().await;
    let found = app.state.find(&caller.tenant, "session", &id);
    let known = found.map_err(|error| Problem::internal(error.to_string()))?;
    let known = known.ok_or_else(|| Problem::not_found("session"))?;
    Ok(Json(AnySessionJson::Over(known.into())))
}

/// Give a session more time, or less, counted from now.
#[utoipa::path(
    patch, path = "/v1/sessions/{id}", operation_id = "extendSession", tag = "sessions",
    params(("id" = String, Path, description = "Of a session")),
    request_body = Extension,
    responses((status = 200, description = "It has that time", body = SessionJson), Asked, Documented, Named)
)]
pub(crate) async fn extend(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<Extension>,
) -> Result<Json<SessionJson>, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    live.extend(duration(&asked.value.ttl)?);
    Ok(Json((&*live).into()))
}

/// End a session, and everything in it.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", operation_id = "killSession", tag = "sessions",
    params(("id" = String, Path, description = "Of a session")),
    responses((status = 200, description = "What came of it", body = ExecutionJson), Asked, Named)
)]
pub(crate) async fn kill(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<ExecutionJson>, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let ended = live.close(&app).await?;
    Ok(Json(ExecutionJson::summary(&ended)))
}

/// Make everything in a session stand still.
///
/// Its own time goes on.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/pause", operation_id = "pauseSession", tag = "sessions",
    params(("id" = String, Path, description = "Of a session")),
    responses((status = 200, description = "It stands still", body = SessionJson), Asked, InSession)
)]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<SessionJson>, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    live.pause().await?;
    Ok(Json((&*live).into()))
}

/// Let a session go on.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/resume", operation_id = "resumeSession", tag = "sessions",
    params(("id" = String, Path, description = "Of a session")),
    responses((status = 200, description = "It goes on", body = SessionJson), Asked, InSession)
)]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<SessionJson>, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    live.resume().await?;
    Ok(Json((&*live).into()))
}
