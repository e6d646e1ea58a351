//! `/v1/receipts`: the signed records of what ran.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use casemate_engine::recorder::{Reader, StoreError};

use super::document::{Asked, Named};
use super::extract::Path;
use crate::app::App;
use crate::problem::Problem;
use crate::shape::listed::VerificationJson;
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

/// Get the receipt of an execution, session or program.
///
/// The lines of the chain that are about it, and the seals that name them: what `casemate evidence export` writes. The token needs the
/// scope `receipts`.
#[utoipa::path(
    get, path = "/v1/receipts/{id}", operation_id = "getReceipt", tag = "receipts",
    params(("id" = String, Path, description = "Of an execution, session or program")),
    responses((status = 200, description = "Lines of JSON", body = String, content_type = "application/jsonl"), Asked, Named)
)]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let lines = lines(&app, &caller, &id).await?;
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], lines).into_response())
}

/// Check a receipt, and the whole chain that it is part of.
///
/// The token needs the scope `receipts`.
#[utoipa::path(
    get, path = "/v1/receipts/{id}/verify", operation_id = "verifyReceipt", tag = "receipts",
    params(("id" = String, Path, description = "Of an execution, session or program")),
    responses((status = 200, description = "Whether it holds", body = VerificationJson), Asked, Named)
)]
pub(crate) async fn verify(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<VerificationJson>, Problem> {
    lines(&app, &caller, &id).await?;
    let home = app.home.clone();
    let verified = tokio::task::spawn_blocking(move || Reader::open(&home)?.verify(None, None)).await;
    let verified = verified.map_err(|_| Problem::internal("the check was lost"))?;
    let verified = verified.map(|report| report.records).map_err(|error| error.to_string());
    let (is_verified, records, reason) = (verified.is_ok(), verified.as_ref().ok().copied(), verified.err());
    Ok(Json(VerificationJson { id, verified: is_verified, records, reason }))
}
