//! `/mcp`: the Model Context Protocol over HTTP. Every tenant has a server of its own, so that a connection of somebody else's is one
//! that does not exist.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodRouter, any};
use bytes::Bytes;
use casemate_core::limits::LimitKind;
use http_body_util::Full;
use hyper::body::Body as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::body::whole;
use super::sessions::duration;
use crate::app::{App, MAX_BODY};
use crate::mcp::{Handler, Http, LONGEST_CALL, Setup, Visit, Visitors};
use crate::problem::{Code, Problem};
use crate::shape::request::{Amount, NewSession};
use crate::store::Caller;
use crate::token::{Scope, hex};

/// How long a session stays when its client does nothing, unless the address says otherwise.
const IDLE: Duration = Duration::from_secs(300);
/// Clients of one tenant that are connected at the same time.
const CONNECTED: usize = 256;
const CONNECTION: &str = "mcp-session-id";
const COOKIE: &str = "casemate-mcp";
const KEY_BYTES: usize = 16;

/// What an address may ask for: `/mcp?risk=high&memory=512M`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Asked {
    risk: Option<String>,
    kind: Option<String>,
    image: Option<String>,
    on: Option<String>,
    at_least: Option<String>,
    memory: Option<Amount>,
    disk: Option<Amount>,
    cpus: Option<Amount>,
    pids: Option<Amount>,
    /// The most that one call may take.
    timeout: Option<Amount>,
    idle_timeout: Option<Amount>,
}

#[derive(Default)]
struct Tenants(Mutex<HashMap<String, Tenant>>);

#[derive(Clone)]
struct Tenant {
    connections: Arc<LocalSessionManager>,
    service: StreamableHttpService<Handler, LocalSessionManager>,
}

pub(crate) fn route() -> MethodRouter<App> {
    let tenants = Arc::new(Tenants::default());
    any(async move |State(app): State<App>, caller: Caller, request: Request| {
        serve(&app, &tenants, &caller, request).await
    })
}

async fn serve(app: &App, tenants: &Tenants, caller: &Caller, request: Request) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    app.check_open()?;
    let (mut parts, body) = request.into_parts();
    let Query(asked) = Query::<Asked>::try_from_uri(&parts.uri).map_err(|error| {
        let hint =
            "it may ask for risk, kind, image, on, at_least, memory, disk, cpus, pids, timeout, idle_timeout";
        Problem::new(Code::Invalid, format!("the address cannot be read: {error}"), hint)
    })?;
    let setup = asked.into_setup(&caller.tenant, app)?;
    let tenant = tenants.of(&caller.tenant, app);
    let connection = parts.headers.get(CONNECTION).and_then(|id| id.to_str().ok());
    if let Some(id) = connection
        && !tenant.connections.sessions.read().await.contains_key(id)
    {
        return Err(Problem::not_found("session"));
    }
    let announced = body.size_hint().exact().unwrap_or(MAX_BODY as u64).min(MAX_BODY as u64);
    let _room = app.bodies.room(&caller.tenant, announced).await?;
    let bytes = match parts.method {
        Method::POST => whole(body, MAX_BODY).await?,
        _ => Bytes::new(),
    };
    let known = key_of(&parts.headers);
    let is_new = known.is_none();
    let key = known.map_or_else(new_key, Ok)?;
    parts.extensions.insert(Visit { setup, key: key.clone(), is_new });
    let (is_end, is_json) = (parts.method == Method::DELETE, is_json(&parts.headers));
    let response = tenant.service.handle(Request::from_parts(parts, Full::new(bytes))).await;
    let mut response = response.map(Body::new);
    if is_json && response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        let hint = "send one JSON-RPC message, as the Model Context Protocol has them";
        return Err(Problem::new(Code::Malformed, "the body is no message of the protocol", hint));
    }
    if is_end && response.status() == StatusCode::ACCEPTED {
        // It has ended, not only been heard.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    if is_new && !response.headers().contains_key(CONNECTION) {
        // Whoever has a connection needs none; to the others it is what makes them the same client the next time.
        let cookie = format!("{COOKIE}={key}; Path=/mcp; HttpOnly; SameSite=Strict");
        let cookie = HeaderValue::try_from(cookie).map_err(|error| Problem::internal(error.to_string()))?;
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}

/// Only what looks like one of ours.
fn key_of(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, key) = pairs.find(|(name, _)| *name == COOKIE)?;
    let is_ours = key.len() == 2 * KEY_BYTES && key.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    is_ours.then(|| key.to_owned())
}

fn new_key() -> Result<String, Problem> {
    let mut bytes = [0; KEY_BYTES];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Problem::internal(format!("no randomness: {error}")))?;
    Ok(hex(&bytes))
}

impl Asked {
    fn into_setup(self, tenant: &str, app: &App) -> Result<Setup, Problem> {
        let limits = [
            (LimitKind::WallTime, self.timeout),
            (LimitKind::Memory, self.memory),
            (LimitKind::Disk, self.disk),
            (LimitKind::Cpus, self.cpus),
            (LimitKind::Pids, self.pids),
        ];
        let limits = limits.into_iter().filter_map(|(kind, amount)| Some((kind.name().to_owned(), amount?)));
        let asked = NewSession {
            risk: self.risk,
            kind: self.kind,
            image: self.image,
            on: self.on,
            at_least: self.at_least,
            limits: limits.collect::<BTreeMap<_, _>>(),
            ..NewSession::default()
        };
        let draft = asked.into_draft(tenant, &app.images)?;
        let idle = self.idle_timeout.map(|idle| duration(&idle)).transpose()?.unwrap_or(IDLE);
        Ok(Setup::new(draft, Some(idle))?)
    }
}

impl Tenants {
    fn of(&self, name: &str, app: &App) -> Tenant {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.entry(name.to_owned()).or_insert_with(|| Tenant::new(app)).clone()
    }
}

impl Tenant {
    fn new(app: &App) -> Tenant {
        let mut connections = LocalSessionManager::default();
        // A client that is gone without a word is not waited for longer than any call may take.
        connections.session_config.keep_alive = Some(LONGEST_CALL + Duration::from_secs(300));
        let connections = Arc::new(connections);
        let stop = CancellationToken::new();
        let config = StreamableHttpServerConfig::default()
            // Who may ask was decided before: by a token, or by where the request comes from.
            .disable_allowed_hosts()
            .with_max_request_body_bytes(MAX_BODY)
            // Events without data, for clients that come back to what they have missed: nothing is kept for them, and older ones take
            // such an event for a broken message.
            .with_sse_retry(None)
            .with_cancellation_token(stop.clone());
        let http =
            Http { visitors: Arc::new(Visitors::default()), places: Arc::new(Semaphore::new(CONNECTED)) };
        let weak = Arc::downgrade(app);
        let handler = move || Ok(Handler::over_http(weak.clone(), http.clone()));
        let mut draining = app.draining.clone();
        tokio::spawn(async move {
            let _ = draining.wait_for(|draining| *draining).await;
            stop.cancel();
        });
        Tenant { service: StreamableHttpService::new(handler, connections.clone(), config), connections }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_known_by_our_cookie_and_no_other() {
        let key = "0123456789abcdef0123456789abcdef";
        let read = |cookies: &str| {
            let value = HeaderValue::from_str(cookies).expect("a value");
            key_of(&HeaderMap::from_iter([(header::COOKIE, value)]))
        };
        assert_eq!(read(&format!("a=b; {COOKIE}={key}; c=d")).as_deref(), Some(key));
        for bad in [
            String::new(),
            format!("x{COOKIE}={key}"),
            format!("{COOKIE}={key}0"),
            format!("{COOKIE}=../{key}"),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }
}
