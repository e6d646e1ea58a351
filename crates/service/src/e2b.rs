//! What the clients of E2B speak, so that they work as they are (`docs/e2b.md`). A sandbox is a session; a key of the API is a token.
//!
//! There are two halves, as there are there: [`sandboxes`] makes and ends them, for whoever has a token, and the others serve what is
//! inside one, for whoever has the key of that sandbox. Nothing here runs anything by itself.

mod code;
mod connect;
mod failure;
mod files;
mod filesystem;
mod multipart;
mod process;
mod sandboxes;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{any, delete, get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_core::request::GuestPath;

use crate::app::{self, App};
use crate::problem::{Code, Problem};
use crate::sessions::Live;
use crate::store::Caller;
use failure::Failure;

/// What their clients look at to see what a sandbox can do.
const VERSION: &str = "0.6.4";
/// The directory that relative paths start from, there and here.
const HOME: &str = "/home/user";
const WORK: &str = "/work";
const USER: &str = "user";

pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/v2/sandboxes", post(sandboxes::create).get(sandboxes::list))
        .route("/sandboxes/{id}", get(sandboxes::show).delete(sandboxes::kill))
        .route("/sandboxes/{id}/timeout", post(sandboxes::set_timeout))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/sandboxes/{id}/{*rest}", any(unsupported))
        .route("/sandboxes", any(unsupported))
        .route("/snapshots", any(unsupported))
        .route("/templates", any(unsupported))
        .route("/templates/{*rest}", any(unsupported))
        .route("/v2/templates", any(unsupported))
        .route("/v2/templates/{*rest}", any(unsupported))
        .route("/v3/templates", any(unsupported))
        .route("/volumes", any(unsupported))
        .route("/volumes/{*rest}", any(unsupported))
        .route("/secrets", any(unsupported))
        .route("/secrets/{*rest}", any(unsupported))
        .route("/health", get(health))
        .route("/files", get(files::read).post(files::write))
        .route("/process.Process/List", post(process::list))
        .route("/process.Process/Start", post(process::start))
        .route("/process.Process/Connect", post(process::connect))
        .route("/process.Process/Update", post(process::update))
        .route("/process.Process/StreamInput", post(process::stream_input))
        .route("/process.Process/SendInput", post(process::send_input))
        .route("/process.Process/SendSignal", post(process::send_signal))
        .route("/process.Process/CloseStdin", post(process::close_stdin))
        .route("/filesystem.Filesystem/Stat", post(filesystem::stat))
        .route("/filesystem.Filesystem/MakeDir", post(filesystem::make_directory))
        .route("/filesystem.Filesystem/Move", post(filesystem::rename))
        .route("/filesystem.Filesystem/ListDir", post(filesystem::list))
        .route("/filesystem.Filesystem/Remove", post(filesystem::remove))
        .route("/filesystem.Filesystem/WatchDir", post(filesystem::watch))
        .route("/filesystem.Filesystem/CreateWatcher", post(filesystem::create_watcher))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(filesystem::watcher_events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(filesystem::remove_watcher))
        .route("/execute", post(code::execute))
        .route("/contexts", get(code::list).post(code::create))
        .route("/contexts/{id}", delete(code::remove))
        .route("/contexts/{id}/restart", post(code::restart))
}

/// Clear words for what their clients can ask for and we do not have.
async fn unsupported(method: axum::http::Method, uri: axum::http::Uri) -> Failure {
    let detail = format!("{method} {} is not supported", uri.path());
    Failure::with_status(
        StatusCode::NOT_IMPLEMENTED,
        Problem::new(Code::NoRoute, detail, "docs/e2b.md lists what is"),
    )
}

async fn health(_: Sandbox) -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Whoever makes and ends sandboxes.
struct Owner(Caller);

impl FromRequestParts<App> for Owner {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Owner, Failure> {
        // Their clients always send a key. Where nobody ever made one, it says nothing, and the machine decides.
        let keyless = without_key(app, &parts.headers)?;
        let caller = app::identify(app, keyless.as_ref().unwrap_or(&parts.headers))?;
        app::heard(app, parts, &caller.tenant)?;
        caller.check(crate::token::Scope::Run)?;
        Ok(Owner(caller))
    }
}

fn without_key(app: &App, headers: &HeaderMap) -> Result<Option<HeaderMap>, Problem> {
    if app.state.has_tokens().map_err(|error| Problem::internal(error.to_string()))? {
        return Ok(None);
    }
    let mut headers = headers.clone();
    headers.remove("x-api-key");
    headers.remove(header::AUTHORIZATION);
    Ok(Some(headers))
}

/// The sandbox that a request is for, whose key it has shown.
struct Sandbox(Arc<Live>);

impl FromRequestParts<App> for Sandbox {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Sandbox, Failure> {
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let id = text("e2b-sandbox-id").ok_or_else(|| {
            let hint = "send `E2b-Sandbox-Id` and `X-Access-Token`; addresses without them are not supported";
            Problem::new(Code::Malformed, "no sandbox is named", hint)
        })?;
        // Some calls of their clients show the one, some the other. Both are the key of the session.
        let key = text("x-access-token").or_else(|| text("e2b-traffic-access-token")).unwrap_or_default();
        match app.sessions.find_by_key(id, key) {
            Ok(live) => {
                app::heard(app, parts, &live.tenant)?;
                Ok(Sandbox(live))
            }
            Err(problem) if problem.code == Code::NotFound => Err(failure::no_sandbox(id)),
            Err(problem) => Err(problem.into()),
        }
    }
}

/// The user that a request runs as. There is one.
struct User;

impl FromRequestParts<App> for User {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<User, Failure> {
        let Some(value) = parts.headers.get(header::AUTHORIZATION) else { return Ok(User) };
        let name = value.to_str().ok().and_then(|value| {
            let encoded = value.strip_prefix("Basic ")?;
            let decoded = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
            decoded.split_once(':').map(|(name, _)| name.to_owned())
        });
        check_user(name.as_deref().unwrap_or("?")).map_err(Failure::from).map(|()| User)
    }
}

fn check_user(name: &str) -> Result<(), Problem> {
    match name {
        "" | USER => Ok(()),
        _ => Err(Problem::new(
            Code::Invalid,
            format!("there is no user {name:?} in a cell"),
            "leave the user out: everything runs as the one that there is",
        )),
    }
}

/// Where something is in the cell.
fn place(path: &str) -> String {
    let below_home = path.strip_prefix(HOME).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let below_home =
        below_home.or_else(|| path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')));
    let whole = match below_home {
        Some(rest) => format!("{WORK}{rest}"),
        None if path.starts_with('/') => path.to_owned(),
        None => format!("{WORK}/{path}"),
    };
    let parts = whole.split('/').filter(|part| !matches!(*part, "" | "."));
    format!("/{}", parts.collect::<Vec<&str>>().join("/"))
}

/// The same for a file, which is where files may be.
fn file(path: &str) -> Result<String, Problem> {
    let place = place(path);
    match place.as_str() {
        "/work" | "/tmp" => Ok(place),
        _ => Ok(GuestPath::new(&place)?.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_home_is_our_work() {
        for (path, expected) in [
            ("a.txt", "/work/a.txt"),
            ("", "/work"),
            (".", "/work"),
            ("./a//b/", "/work/a/b"),
            ("/home/user", "/work"),
            ("/home/user/a", "/work/a"),
            ("/home/username/a", "/home/username/a"),
            ("~/a", "/work/a"),
            ("~a", "/work/~a"),
            ("/tmp/a", "/tmp/a"),
        ] {
            assert_eq!(place(path), expected, "{path}");
        }
    }

    #[test]
    fn files_are_where_files_may_be() {
        for good in ["", "/", "a/b/", "/home/user/", "/tmp"] {
            assert_eq!(file(good).is_ok(), good != "/", "{good}");
        }
        for bad in ["/etc/passwd", "../etc/passwd", "/work/../etc", "/home/user/../../etc", "/tmp/..", "a\0b"]
        {
            assert!(file(bad).is_err(), "{bad}");
        }
    }
}
