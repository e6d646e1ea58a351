//! The server itself: whether it lives, whether it answers, and its numbers.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::document::{Asked, Crowded};
use crate::app::App;
use crate::problem::Problem;
use crate::store::Caller;
use crate::token::Scope;

/// Whether the server lives.
#[utoipa::path(
    get, path = "/healthz", operation_id = "getHealth", tag = "server", security(()),
    responses((status = 200, description = "It does", body = String, content_type = "text/plain"))
)]
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Whether the server takes requests.
#[utoipa::path(
    get, path = "/readyz", operation_id = "getReadiness", tag = "server", security(()),
    responses(
        (status = 200, description = "It does", body = String, content_type = "text/plain"),
        Crowded,
    )
)]
pub(super) async fn ready(State(app): State<App>) -> Result<&'static str, Problem> {
    app.check_open()?;
    app.state.has_tokens().map_err(|error| Problem::internal(error.to_string()))?;
    Ok("ready\n")
}

/// Numbers of the whole server, as Prometheus reads them.
///
/// The token needs the scope `metrics`.
#[utoipa::path(
    get, path = "/metrics", operation_id = "getMetrics", tag = "server",
    responses(
        (status = 200, description = "All of them", body = String, content_type = "text/plain"),
        Asked,
    )
)]
pub(super) async fn metrics(State(app): State<App>, caller: Caller) -> Result<impl IntoResponse, Problem> {
    caller.check(Scope::Metrics)?;
    let text = app.metrics.text(app.admission.load(), app.sessions.count());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}
