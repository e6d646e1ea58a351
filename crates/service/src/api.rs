//! The addresses of the API, and what is done at each.

mod body;
mod executions;
mod files;
mod mcp;
mod processes;
mod receipts;
mod sessions;
mod stream;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, Uri, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use serde::Deserialize;

use crate::app::{App, name_request};
use crate::problem::{Code, Problem};
use crate::store::Caller;
use crate::token::Scope;
pub(crate) use sessions::LONGEST;

/// How many a list has, unless fewer are asked for.
const PAGE: usize = 100;

pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/executions", post(executions::create).get(executions::list))
        .route("/v1/executions/{id}", get(executions::show).delete(executions::cancel))
        .route("/v1/explain", post(executions::explain))
        .route("/v1/sessions", post(sessions::create).get(sessions::list))
        .route("/v1/sessions/{id}", get(sessions::show).patch(sessions::extend).delete(sessions::kill))
        .route("/v1/sessions/{id}/pause", post(sessions::pause))
        .route("/v1/sessions/{id}/resume", post(sessions::resume))
        .route("/v1/sessions/{id}/processes", post(processes::create).get(processes::list))
        .route("/v1/sessions/{id}/processes/{pid}", get(processes::show).delete(processes::kill))
        .route("/v1/sessions/{id}/processes/{pid}/output", get(processes::output))
        .route("/v1/sessions/{id}/processes/{pid}/stdin", post(processes::stdin))
        .route("/v1/sessions/{id}/processes/{pid}/signal", post(processes::signal))
        .route("/v1/sessions/{id}/files", get(files::read).put(files::write).delete(files::remove))
        .route("/v1/sessions/{id}/files/list", get(files::list))
        .route("/v1/sessions/{id}/files/stat", get(files::stat))
        .route("/v1/sessions/{id}/files/mkdir", post(files::make_directory))
        .route("/v1/sessions/{id}/files/rename", post(files::rename))
        .route("/v1/sessions/{id}/files/watch", get(files::watch))
        .route("/v1/receipts/{id}", get(receipts::show))
        .route("/v1/receipts/{id}/verify", get(receipts::verify))
        .route("/v1/images", get(images))
        .route("/mcp", mcp::route())
        .route("/v1/tokens/self", delete(no_such_route))
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn(name_request))
        .with_state(app)
}

async fn no_such_route(uri: Uri) -> Problem {
    Problem::new(
        Code::NoRoute,
        format!("there is nothing at {}", uri.path()),
        "/openapi.json lists what there is",
    )
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not take {method}", uri.path());
    Problem::new(Code::Method, detail, "/openapi.json lists what there is")
}

async fn ready(State(app): State<App>) -> Result<&'static str, Problem> {
    app.check_open()?;
    app.state.has_tokens().map_err(|error| Problem::internal(error.to_string()))?;
    Ok("ready\n")
}

async fn metrics(State(app): State<App>, caller: Caller) -> Result<impl IntoResponse, Problem> {
    caller.check(Scope::Metrics)?;
    let text = app.metrics.text(app.admission.load(), app.sessions.count());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

async fn images(State(app): State<App>, caller: Caller) -> Result<impl IntoResponse, Problem> {
    caller.check(Scope::Run)?;
    let images = app.images.clone();
    let listed = tokio::task::spawn_blocking(move || images.list()).await;
    let listed = listed.map_err(|_| Problem::internal("the list was lost"))?;
    let listed = listed.map_err(|error| Problem::new(Code::Internal, error.to_string(), error.hint()))?;
    let shown: Vec<serde_json::Value> = listed
        .iter()
        .map(|image| {
            serde_json::json!({"digest": image.digest.to_string(), "names": image.names, "size_bytes": image.bytes})
        })
        .collect();
    Ok(axum::Json(serde_json::json!({"images": shown})))
}

/// Which part of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    cursor: Option<String>,
    limit: Option<usize>,
}

impl Page {
    /// What to look before, and how many.
    fn bounds(&self) -> Result<(i64, usize), Problem> {
        let limit = self.limit.unwrap_or(PAGE);
        if !(1..=PAGE).contains(&limit) {
            let hint = format!("limit is between 1 and {PAGE}");
            return Err(Problem::new(Code::Invalid, format!("a list of {limit} cannot be had"), hint));
        }
        let before = match &self.cursor {
            None => i64::MAX,
            Some(cursor) => {
                cursor.strip_prefix('p').and_then(|place| place.parse().ok()).ok_or_else(|| {
                    Problem::new(
                        Code::Invalid,
                        "this is not a cursor",
                        "send the `next` of the list before, as it is",
                    )
                })?
            }
        };
        Ok((before, limit))
    }

    /// Where the next part begins, if there is one.
    fn next(limit: usize, found: &[crate::store::Known]) -> Option<String> {
        found.last().filter(|_| found.len() == limit).map(|last| format!("p{}", last.place))
    }
}
