//! `/v1/receipts`: the signed records of what ran.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use casemate_engine::recorder::{Reader, StoreError};
use serde_json::json;

use crate::app::App;
use crate::problem::Problem;
use crate::store::Caller;
use crate::token::Scope;

fn failed(error: &StoreError) -> Problem {
    Problem::internal(error.to_string())
}

/// Whose it is, is known here; what it says, in the chain.
async fn lines(app: &App, caller: &Caller, id: &str) -> Result<Vec<u8>, Problem> {
    caller.check(Scope::Receipts)?;
    app.state.flush().await;
    let own = app.state.is_of(&caller.tenant, id).map_err(|error| Problem::internal(error.to_string()))?;
    if !own {
        return Err(Problem::not_found("receipt"));
    }
    let (home, id) = (app.home.clone(), id.to_owned());
    let read = tokio::task::spawn_blocking(move || -> Result<Vec<u8>, StoreError> {
        let mut lines = Vec::new();
        Reader::open(&home)?.export_one(&id, &mut lines)?;
        Ok(lines)
    });
    let lines =
        read.await.map_err(|_| Problem::internal("the receipt was lost"))?.map_err(|error| failed(&error))?;
    match lines.is_empty() {
        true => Err(Problem::not_found("receipt")),
        false => Ok(lines),
    }
}

/// The lines of the chain that are about it, and the seals that name them: what `casemate evidence export` writes.
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let lines = lines(&app, &caller, &id).await?;
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], lines).into_response())
}

/// Whether the whole chain that it is part of holds.
pub(crate) async fn verify(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    lines(&app, &caller, &id).await?;
    let home = app.home.clone();
    let verified = tokio::task::spawn_blocking(move || Reader::open(&home)?.verify(None, None)).await;
    let verified = verified.map_err(|_| Problem::internal("the check was lost"))?;
    Ok(match verified {
        Ok(report) => Json(json!({"id": id, "verified": true, "records": report.records})).into_response(),
        Err(error) => Json(json!({"id": id, "verified": false, "reason": error.to_string()})).into_response(),
    })
}
