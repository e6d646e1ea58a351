//! `/v1/volumes`: what outlives sessions.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::App;
use crate::problem::Problem;
use crate::store::Caller;
use crate::token::Scope;

/// `GET /v1/volumes`
pub(crate) async fn list(State(app): State<App>, caller: Caller) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let found = app.volumes.list(&caller.tenant);
    let found = found.map_err(|error| Problem::internal(format!("the volumes cannot be listed: {error}")))?;
    let volumes: Vec<Value> = found
        .iter()
        .map(|stored| json!({"name": stored.name, "bytes": stored.bytes, "in_use": stored.in_use}))
        .collect();
    Ok(Json(json!({"volumes": volumes})).into_response())
}

/// `DELETE /v1/volumes/{name}`
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    caller.check(Scope::Run)?;
    match app.volumes.remove(&caller.tenant, &name)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("volume")),
    }
}

/// `POST /v1/sessions/{id}/volumes/{name}`: keeps what it is now.
pub(crate) async fn save(
    State(app): State<App>,
    caller: Caller,
    Path((id, name)): Path<(String, String)>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let bytes = live.save(&app, &name).await?;
    Ok(Json(json!({"name": name, "bytes": bytes})).into_response())
}
