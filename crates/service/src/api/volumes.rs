//! `/v1/volumes`: what outlives sessions.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::document::{Admitted, Asked, Conflicting, InSession, Named, Queried};
use super::extract::{Path, Query};
use super::page::Page;
use crate::app::App;
use crate::problem::Problem;
use crate::shape::kept::{SavedJson, VolumeJson, VolumesJson};
use crate::store::Caller;
use crate::token::Scope;

/// List volumes.
#[utoipa::path(
    get, path = "/v1/volumes", operation_id = "listVolumes", tag = "volumes", params(Page),
    responses((status = 200, description = "Volumes, by name", body = VolumesJson), Asked, Queried)
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(page): Query<Page>,
) -> Result<Json<VolumesJson>, Problem> {
    caller.check(Scope::Run)?;
    let found = app.volumes.list(&caller.tenant);
    let found = found.map_err(|error| Problem::internal(format!("the volumes cannot be listed: {error}")))?;
    let (found, next) = page.cut(found, |stored| stored.name.clone())?;
    Ok(Json(VolumesJson { volumes: found.into_iter().map(VolumeJson::from).collect(), next }))
}

/// Remove a volume.
#[utoipa::path(
    delete, path = "/v1/volumes/{name}", operation_id = "removeVolume", tag = "volumes",
    params(("name" = String, Path, description = "Of a volume")),
    responses((status = 204, description = "It is gone"), Asked, Named, Queried, Conflicting)
)]
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

/// Keep a volume of a session as it is now.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/volumes/{name}", operation_id = "saveVolume", tag = "volumes",
    params(("id" = String, Path, description = "Of a session"), ("name" = String, Path, description = "Of one of its volumes")),
    responses((status = 200, description = "It is kept", body = SavedJson), Asked, InSession, Queried, Admitted)
)]
pub(crate) async fn save(
    State(app): State<App>,
    caller: Caller,
    Path((id, name)): Path<(String, String)>,
) -> Result<Json<SavedJson>, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let bytes = live.save(&app, &name).await?;
    Ok(Json(SavedJson { name, bytes }))
}
