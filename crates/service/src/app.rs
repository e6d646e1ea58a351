//! What every request shares.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use casemate_engine::Engine;
use casemate_engine::images::Images;
use tokio::sync::Semaphore;

use crate::admission::Admission;
use crate::executions::Executions;
use crate::metrics::Metrics;
use crate::problem::{Code, Problem};
use crate::quota::{Ledger, Quotas, Rates};
use crate::sessions::Sessions;
use crate::shares::{Bodies, Shares};
use crate::store::{Caller, State};
use crate::token::{Scope, Token};
use crate::volumes::Volumes;

/// Of a request's body, unless its address takes more.
pub(crate) const MAX_BODY: usize = 16 << 20;
/// How long a body may take to arrive.
pub(crate) const BODY_PATIENCE: Duration = Duration::from_secs(30);

pub(crate) type App = Arc<Shared>;

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) images: Images,
    pub(crate) home: std::path::PathBuf,
    pub(crate) state: Arc<State>,
    pub(crate) admission: Admission,
    pub(crate) executions: Executions,
    pub(crate) sessions: Sessions,
    pub(crate) volumes: Volumes,
    pub(crate) bodies: Bodies,
    pub(crate) archives: Shares,
    pub(crate) sockets: Shares,
    pub(crate) metrics: Metrics,
    /// One image is taken in at a time.
    pub(crate) imports: Arc<Semaphore>,
    /// What one tenant may have at a time.
    pub(crate) cells_of_tenant: usize,
    pub(crate) quotas: Quotas,
    pub(crate) ledger: Ledger,
    pub(crate) rates: Rates,
    pub(crate) draining: tokio::sync::watch::Receiver<bool>,
}

impl Shared {
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Nothing new is begun by a server that is about to stop.
    pub(crate) fn check_open(&self) -> Result<(), Problem> {
        match self.is_draining() {
            true => {
                Err(Problem::new(Code::Draining, "the server is about to stop", "ask another one, or later")
                    .later(5))
            }
            false => Ok(()),
        }
    }
}

/// Whoever asks, once that is known. The tenant of everything that follows.
impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Caller, Problem> {
        let caller = identify(app, &parts.headers)?;
        heard(app, parts, &caller.tenant)?;
        Ok(caller)
    }
}

/// One more request of this tenant, now that it is known to be one.
pub(crate) fn heard(app: &App, parts: &Parts, tenant: &str) -> Result<(), Problem> {
    if let Some(Asker(asker)) = parts.extensions.get() {
        let _ = asker.set(tenant.to_owned());
    }
    app.rates.count(tenant, app.quotas.of(tenant))
}

pub(crate) fn identify(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    let failed = |error: crate::store::StateError| Problem::internal(error.to_string());
    match presented(headers) {
        Some(token) => {
            let caller = Token::parse(token)
                .map(|token| app.state.authenticate(&token))
                .transpose()
                .map_err(failed)?;
            caller.flatten().ok_or_else(|| {
                let hint =
                    "`casemate token ls` lists the tokens; one that has expired or was revoked is no good";
                Problem::new(Code::Unauthenticated, "the token is not valid", hint)
            })
        }
        None if app.state.has_tokens().map_err(failed)? => Err(Problem::new(
            Code::Unauthenticated,
            "no token was sent",
            "send `Authorization: Bearer TOKEN`; `casemate token create --tenant NAME` makes one",
        )),
        // Nobody has ever made a token: this is somebody's own machine. What its browser is made to send is not from there.
        None => match from_this_machine(headers) {
            true => Ok(Caller {
                tenant: casemate_core::request::LOCAL_TENANT.to_owned(),
                scopes: Scope::ALL.iter().copied().collect(),
            }),
            false => Err(Problem::new(
                Code::Forbidden,
                "a server without tokens answers only what asks for this machine by name, and no web page of another one",
                "ask for localhost or 127.0.0.1 (`Host`, and `Origin` if there is one), or make a token with `casemate token create --tenant NAME`, and send it",
            )),
        },
    }
}

fn presented(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()))
}

/// Whether the address that was asked for is a name of this machine, and no page of somebody else's asked.
fn from_this_machine(headers: &HeaderMap) -> bool {
    let is_local = |authority: &str| match authority.parse::<axum::http::uri::Authority>() {
        Ok(authority) if !authority.as_str().contains('@') => {
            let rest = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
            let host = authority.host().trim_start_matches('[').trim_end_matches(']');
            let is_loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
            (host == "localhost" || is_loopback) && (rest.is_empty() || rest.starts_with(':'))
        }
        _ => false,
    };
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    // A page of this very server is the only one that may ask: another one on this machine is somebody else's.
    let own = |origin: &str| {
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|authority| Some(authority) == host)
    };
    let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    host.is_none_or(is_local) && origin.is_none_or(own)
}

impl Caller {
    pub(crate) fn check(&self, scope: Scope) -> Result<(), Problem> {
        match self.scopes.contains(&scope) {
            true => Ok(()),
            false => Err(Problem::new(
                Code::Forbidden,
                format!("this token does not allow `{scope}`"),
                format!("make one that does: casemate token create --tenant {} --scope {scope}", self.tenant),
            )),
        }
    }
}

/// For the log: on whose behalf a request came, once that is known.
#[derive(Clone, Default)]
pub(crate) struct Asker(Arc<OnceLock<String>>);

impl Asker {
    /// Of a request whose asker is known by now.
    pub(crate) fn of(request: &Request) -> &str {
        let asker = request.extensions().get::<Asker>();
        asker.and_then(|asker| asker.0.get()).map_or("", String::as_str)
    }
}

/// Every answer names its request, so that a log line and a client's report can be brought together.
pub(crate) async fn name_request(mut request: Request, next: Next) -> Response {
    let name = request
        .headers()
        .get("x-request-id")
        .filter(|name| {
            name.len() <= 64
                && name.as_bytes().iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
        })
        .cloned();
    let name = name.or_else(|| {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok()?;
        crate::token::hex(&bytes).parse().ok()
    });
    let (asker, began) = (Asker::default(), Instant::now());
    request.extensions_mut().insert(asker.clone());
    // Not what is asked for in detail: a path may be somebody's secret, and an address has its parts in braces.
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let (method, route) = (request.method().clone(), route.unwrap_or_default());
    let name_shown = name.as_ref().and_then(|name| name.to_str().ok()).unwrap_or_default().to_owned();
    let mut response = next.run(request).await;
    tracing::info!(
        request = name_shown,
        %method,
        route,
        status = response.status().as_u16(),
        tenant = asker.0.get().map_or("", String::as_str),
        ms = began.elapsed().as_secs_f64() * 1e3,
        "answered"
    );
    if let Some(name) = name {
        response.headers_mut().insert("x-request-id", name);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
            .collect()
    }

    #[test]
    fn a_browser_is_not_this_machine() {
        for good in [
            &[("host", "127.0.0.1:7070")][..],
            &[("host", "localhost")],
            &[("host", "[::1]:80")],
            &[("host", "127.0.0.1:7070"), ("origin", "http://127.0.0.1:7070")],
            &[],
        ] {
            assert!(from_this_machine(&headers(good)), "{good:?}");
        }
        for bad in [
            &[("host", "evil.example")][..],
            &[("host", "127.0.0.1.evil.example")],
            &[("host", "localhost.evil.example:80")],
            &[("host", "127.0.0.1"), ("origin", "https://evil.example")],
            &[("host", "127.0.0.1"), ("origin", "null")],
            &[("host", "127.0.0.1:7070"), ("origin", "http://127.0.0.1:3000")],
            &[("host", "[::1].evil.example")],
            &[("host", "localhost@evil.example")],
            &[("host", "localhost"), ("origin", "file://localhost")],
            &[("host", "127.0.0.1"), ("origin", "http://127.0.0.1.evil.example")],
        ] {
            assert!(!from_this_machine(&headers(bad)), "{bad:?}");
        }
    }

    #[test]
    fn a_token_is_found_where_clients_put_it() {
        assert_eq!(presented(&headers(&[("authorization", "bearer  abc")])), Some("abc"));
        assert_eq!(presented(&headers(&[("x-api-key", "abc")])), Some("abc"));
        assert_eq!(presented(&headers(&[("authorization", "Basic abc")])), None);
        assert_eq!(presented(&headers(&[])), None);
    }
}
