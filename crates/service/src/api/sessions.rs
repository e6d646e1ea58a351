//! `/v1/sessions`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use casemate_core::limits::LimitKind;
use casemate_core::outcome::Cause;
use casemate_core::request::Request;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::Document;
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Sessions, Terms};
use crate::shape::outcome::ExecutionJson;
use crate::shape::request::{Amount, NewSession};
use crate::store::Caller;
use crate::token::Scope;

/// How long a session lives unless somebody says otherwise, and how long it can live at all.
const TTL: Duration = Duration::from_secs(300);
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 3600);
const MAX_METADATA: usize = 64;

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
    let live = open(&app, &caller, asked, Terms { ttl, idle, metadata }).await?;
    let place = format!("/v1/sessions/{}", live.session.id());
    Ok((StatusCode::CREATED, [("location", place)], Json(described(&live))).into_response())
}

pub(crate) fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Problem> {
    let length: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if metadata.len() > MAX_METADATA || length > 16 * 1024 {
        let hint = format!("keep it below {MAX_METADATA} entries and 16 KiB");
        return Err(Problem::new(Code::Invalid, "there is too much metadata", hint));
    }
    Ok(())
}

/// The walls are asked to let it live for as long as any session may; its own time is kept here, because it can be extended.
pub(crate) async fn open(
    app: &App,
    caller: &Caller,
    asked: NewSession,
    terms: Terms,
) -> Result<std::sync::Arc<Live>, Problem> {
    let mut draft = asked.into_draft(&caller.tenant, &app.images)?;
    // The default of processor time follows from it, and need not be enforceable.
    if draft.limits.get(LimitKind::WallTime).is_none() {
        draft.limits.set(LimitKind::WallTime, LONGEST.as_millis() as u64);
    }
    Sessions::open(app, Request::new(draft)?, terms).await
}

pub(crate) fn duration(amount: &Amount) -> Result<Duration, Problem> {
    Ok(Duration::from_millis(amount.read(LimitKind::WallTime)?).min(LONGEST))
}

pub(crate) async fn list(State(app): State<App>, caller: Caller) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.list(Some(&caller.tenant));
    let sessions: Vec<Value> = live.iter().map(|live| described(live)).collect();
    Ok(Json(json!({"sessions": sessions})).into_response())
}

/// One that is over is still known, with what came of it.
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    if let Ok(live) = app.sessions.find(&caller.tenant, &id) {
        return Ok(Json(described(&live)).into_response());
    }
    app.state.flush();
    let found = app.state.find(&caller.tenant, "session", &id);
    let known = found.map_err(|error| Problem::internal(error.to_string()))?;
    let known = known.ok_or_else(|| Problem::not_found("session"))?;
    let outcome = known.summary.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let shown = json!({
        "id": known.id, "state": known.state, "created": known.created, "ended": known.ended, "outcome": outcome,
    });
    Ok(Json(shown).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Extension {
    ttl: Amount,
}

/// Its time is counted anew from now.
pub(crate) async fn extend(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<Extension>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    live.extend(duration(&asked.value.ttl)?);
    Ok(Json(described(&live)).into_response())
}

pub(crate) async fn kill(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let ended = live.session.end(Cause::Cancelled).await;
    let ended = ended.ok_or_else(|| Problem::internal("what became of the session is not known"))?;
    Ok(Json(ExecutionJson::summary(&ended)).into_response())
}

pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    live.pause().await?;
    Ok(Json(described(&live)).into_response())
}

pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    live.resume().await?;
    Ok(Json(described(&live)).into_response())
}

fn described(live: &Live) -> Value {
    let walls: Vec<&str> = live.session.stack().walls().iter().map(|wall| wall.as_str()).collect();
    let unbounded: Vec<&str> = live.session.unbounded().iter().map(|kind| kind.as_str()).collect();
    json!({
        "id": live.session.id(),
        "state": if live.is_paused() { "paused" } else { "running" },
        "stack": walls,
        "class": live.session.class().as_str(),
        "unbounded": unbounded,
        "created": live.created,
        "expires": live.expires(),
        "metadata": live.metadata,
    })
}
