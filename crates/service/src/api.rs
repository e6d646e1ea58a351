//! The addresses of the API, and what is done at each.

mod archives;
pub(crate) mod body;
pub(crate) mod code;
mod document;
mod executions;
mod extract;
pub(crate) mod files;
mod images;
mod mcp;
mod page;
mod processes;
mod receipts;
mod server;
pub(crate) mod sessions;
mod stream;
mod terminals;
mod usage;
mod volumes;

use axum::Router;
use axum::http::{Method, Uri};
use axum::routing::{delete, get, post};

use crate::app::{App, name_request};
use crate::problem::{Code, Problem};
pub(crate) use sessions::LONGEST;

/// What is here is described in [`document`], or does not belong to this API but to one that clients bring along.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/openapi.json", get(document::openapi))
        .route("/docs", get(document::docs))
        .route("/healthz", get(server::health))
        .route("/readyz", get(server::ready))
        .route("/metrics", get(server::metrics))
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
        .route("/v1/sessions/{id}/code", post(code::run))
        .route("/v1/sessions/{id}/contexts", post(code::create).get(code::list))
        .route("/v1/sessions/{id}/contexts/{context}", delete(code::remove))
        .route("/v1/sessions/{id}/contexts/{context}/restart", post(code::restart))
        .route("/v1/sessions/{id}/files", get(files::read).put(files::write).delete(files::remove))
        .route("/v1/sessions/{id}/files/archive", get(archives::download).put(archives::upload))
        .route("/v1/sessions/{id}/files/list", get(files::list))
        .route("/v1/sessions/{id}/files/stat", get(files::stat))
        .route("/v1/sessions/{id}/files/mkdir", post(files::make_directory))
        .route("/v1/sessions/{id}/files/rename", post(files::rename))
        .route("/v1/sessions/{id}/files/watch", get(files::watch))
        .route("/v1/sessions/{id}/processes/{pid}/terminal", get(terminals::attach))
        .route("/v1/sessions/{id}/volumes/{name}", post(volumes::save))
        .route("/v1/volumes", get(volumes::list))
        .route("/v1/volumes/{name}", delete(volumes::remove))
        .route("/v1/usage", get(usage::show))
        .route("/v1/receipts/{id}", get(receipts::show))
        .route("/v1/receipts/{id}/verify", get(receipts::verify))
        .route("/v1/images", get(images::list).post(images::import))
        .route("/v1/images/{name}", get(images::show).delete(images::remove))
        .merge(crate::e2b::router())
        .route("/mcp", mcp::route())
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
