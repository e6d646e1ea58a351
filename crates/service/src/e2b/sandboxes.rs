//! `/sandboxes`: making, finding and ending them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use casemate_core::limits::LimitKind;
use casemate_core::outcome::Cause;
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::Failure;
use super::{Owner, VERSION};
use crate::api::body::Document;
use crate::api::sessions::{LONGEST, check_metadata, open};
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Terms};
use crate::shape::request::{Amount, NewSession};
use crate::store::now;
use crate::time::rfc3339;

/// What these stand for: the default image.
const DEFAULTS: [&str; 2] = ["base", "code-interpreter-v1"];
const HOST: &str = "host";
const TIMEOUT: u64 = 300;
const PAGE: usize = 100;
const NEXT: HeaderName = HeaderName::from_static("x-next-token");

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<u64>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    env_vars: BTreeMap<String, String>,
    #[serde(default)]
    auto_pause: bool,
    /// What would be kept of it, were it to pause by itself.
    #[serde(default, rename = "autoPauseMemory")]
    _auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Value>,
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

type Asked<T> = Result<Document<T>, Problem>;

/// `POST /v2/sandboxes`
pub(super) async fn create(
    State(app): State<App>,
    Owner(caller): Owner,
    headers: HeaderMap,
    asked: Asked<NewSandbox>,
) -> Result<Response, Failure> {
    let asked = asked?.value;
    if headers.contains_key("idempotency-key") {
        let hint = "leave the key out";
        return Err(Problem::new(Code::Invalid, "sandboxes have no idempotency keys", hint).into());
    }
    asked.check()?;
    check_metadata(&asked.metadata)?;
    let image = match asked.template.as_str() {
        template if DEFAULTS.contains(&template) => None,
        template => Some(known(&app, template)?),
    };
    // Theirs bound no output; this is the most that one program can be granted.
    let output = Amount::Whole(app.engine.cap(&caller.tenant, LimitKind::Output));
    let session = NewSession {
        image,
        env: asked.env_vars,
        limits: [("output".to_owned(), output)].into(),
        ..NewSession::default()
    };
    let ttl = ttl(asked.timeout.unwrap_or(TIMEOUT))?;
    let live =
        open(&app, &caller, session, Terms { ttl, metadata: asked.metadata, ..Terms::default() }).await?;
    Ok((StatusCode::CREATED, Json(keys(&live))).into_response())
}

impl NewSandbox {
    /// What is not there is refused, not left out.
    fn check(&self) -> Result<(), Problem> {
        let resumes = self.auto_resume.as_ref().is_some_and(|resume| resume.enabled);
        let missing = [
            (
                self.auto_pause || resumes,
                "sandboxes do not pause or resume by themselves",
                "pause them, and connect again",
            ),
            (
                self.allow_internet_access == Some(true),
                "there is no network in a cell",
                "leave allow_internet_access out",
            ),
            (self.network.is_some(), "there is no network in a cell", "leave `network` out"),
            (self.mcp.is_some(), "there are no MCP servers in a cell", "leave `mcp` out"),
            (self.iam.is_some(), "cells have no identity", "leave `iam` out"),
            (self.volume_mounts.is_some(), "there are no volumes", "put files into the sandbox"),
        ];
        match missing.into_iter().find(|(asked, ..)| *asked) {
            Some((_, detail, hint)) => Err(Problem::new(Code::Invalid, detail, hint)),
            None => Ok(()),
        }
    }
}

fn known(app: &App, template: &str) -> Result<String, Failure> {
    match app.images.find(template) {
        Ok(_) => Ok(template.to_owned()),
        Err(refusal) => Err(Problem::new(Code::NotFound, refusal.reason, refusal.hint).into()),
    }
}

fn ttl(seconds: u64) -> Result<Duration, Problem> {
    let ttl = Duration::from_secs(seconds);
    match ttl <= LONGEST {
        true => Ok(ttl),
        false => Err(Problem::new(
            Code::Invalid,
            format!("a sandbox cannot live for {seconds} s"),
            format!("ask for at most {} s, and extend it later", LONGEST.as_secs()),
        )),
    }
}

/// What their clients need to use it.
fn keys(live: &Live) -> Value {
    json!({
        "templateID": template(live),
        "sandboxID": live.session.id(),
        "clientID": "casemate",
        "envdVersion": VERSION,
        "envdAccessToken": live.key(),
        "trafficAccessToken": live.key(),
        "domain": null,
    })
}

fn template(live: &Live) -> &str {
    match live.image.as_str() {
        HOST => DEFAULTS[0],
        image => image,
    }
}

/// `GET /sandboxes/{id}`
pub(super) async fn show(
    State(app): State<App>,
    Owner(caller): Owner,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let live = app.sessions.find(&caller.tenant, &id)?;
    let mut shown = described(&live);
    shown["envdAccessToken"] = json!(live.key());
    shown["allowInternetAccess"] = json!(false);
    Ok(Json(shown))
}

fn described(live: &Live) -> Value {
    let limit = |kind| live.session.limits().get(kind).map_or(0, |bound| bound.value);
    json!({
        "templateID": template(live),
        "sandboxID": live.session.id(),
        "clientID": "casemate",
        "startedAt": rfc3339(live.created),
        "endAt": rfc3339(live.expires()),
        "envdVersion": VERSION,
        "cpuCount": limit(LimitKind::Cpus).div_ceil(1000),
        "memoryMB": limit(LimitKind::Memory) >> 20,
        "diskSizeMB": limit(LimitKind::Disk) >> 20,
        "state": state(live),
        "metadata": live.metadata,
    })
}

fn state(live: &Live) -> &'static str {
    if live.is_paused() { "paused" } else { "running" }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Wanted {
    /// Names and values, as in an address, each encoded once more.
    metadata: Option<String>,
    state: Option<String>,
    template: Option<String>,
    order: Option<Order>,
    started_after: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    Desc,
}

/// `GET /v2/sandboxes`
pub(super) async fn list(
    State(app): State<App>,
    Owner(caller): Owner,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let Query(wanted) = wanted.map_err(|error| {
        Problem::new(Code::Invalid, error.body_text(), "docs/e2b.md lists what can be asked for")
    })?;
    if wanted.started_after.is_some() {
        let hint = "look at `started_at` of what is listed";
        return Err(Problem::new(Code::Invalid, "lists cannot be narrowed by time", hint).into());
    }
    let limit = wanted.limit.unwrap_or(PAGE);
    if !(1..=PAGE).contains(&limit) {
        let hint = format!("limit is between 1 and {PAGE}");
        return Err(Problem::new(Code::Invalid, format!("a list of {limit} cannot be had"), hint).into());
    }
    let metadata = wanted.metadata.as_deref().map(pairs).transpose()?.unwrap_or_default();
    let fits = |live: &Arc<Live>| {
        let in_state = |states: &String| states.split(',').any(|wanted| wanted == state(live));
        let of_template = |wanted: &String| {
            wanted == template(live) || (live.image == HOST && DEFAULTS.contains(&wanted.as_str()))
        };
        wanted.state.as_ref().is_none_or(in_state)
            && wanted.template.as_ref().is_none_or(of_template)
            && metadata.iter().all(|(name, value)| live.metadata.get(name) == Some(value))
    };
    let mut found = app.sessions.list(Some(&caller.tenant));
    found.retain(fits);
    if wanted.order != Some(Order::Asc) {
        found.reverse();
    }
    // What was listed last may be gone; what comes after it is still in the same order.
    if let Some(token) = &wanted.next_token {
        let at = found.iter().position(|live| live.session.id() == token);
        let at = at.ok_or_else(|| {
            Problem::new(Code::Invalid, "what was listed last is gone", "begin the list anew")
        })?;
        found.drain(..=at);
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let shown: Vec<Value> = found.iter().map(|live| described(live)).collect();
    let mut response = Json(shown).into_response();
    if let Some(last) = found.last().filter(|_| more)
        && let Ok(token) = last.session.id().parse()
    {
        response.headers_mut().insert(NEXT, token);
    }
    Ok(response)
}

/// `a=1&b=2`, where names and values were encoded before they were put together.
fn pairs(text: &str) -> Result<BTreeMap<String, String>, Problem> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text: &str| decoded(text).and_then(|once| decoded(&once));
            decode(name).zip(decode(value)).ok_or_else(|| {
                Problem::new(Code::Invalid, "the metadata cannot be read", "encode it as in an address")
            })
        })
        .collect()
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).ok()
}

/// `DELETE /sandboxes/{id}`
pub(super) async fn kill(
    State(app): State<App>,
    Owner(caller): Owner,
    Path(id): Path<String>,
) -> Result<StatusCode, Failure> {
    let live = app.sessions.find(&caller.tenant, &id)?;
    live.session.end(Cause::Cancelled).await;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewTimeout {
    timeout: u64,
}

/// `POST /sandboxes/{id}/timeout`: from now on.
pub(super) async fn set_timeout(
    State(app): State<App>,
    Owner(caller): Owner,
    Path(id): Path<String>,
    asked: Asked<NewTimeout>,
) -> Result<StatusCode, Failure> {
    let live = app.sessions.find(&caller.tenant, &id)?;
    live.extend(ttl(asked?.value.timeout)?);
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Pausing {
    memory: Option<bool>,
    /// Whoever cannot be asked cannot be paused, so this is always required.
    #[serde(rename = "requireHealthyGuest")]
    _require_healthy_guest: Option<bool>,
}

/// `POST /sandboxes/{id}/pause`
pub(super) async fn pause(
    State(app): State<App>,
    Owner(caller): Owner,
    Path(id): Path<String>,
    asked: Asked<Pausing>,
) -> Result<StatusCode, Failure> {
    let live = app.sessions.find(&caller.tenant, &id)?;
    if asked?.value.memory == Some(false) {
        let hint = "pause it with its memory";
        return Err(Problem::new(Code::Invalid, "a sandbox is not kept without its memory", hint).into());
    }
    if live.is_paused() {
        let hint = "connect to it to let it go on";
        return Err(Failure::with_status(
            StatusCode::CONFLICT,
            Problem::new(Code::Exists, "it is paused already", hint),
        ));
    }
    live.pause().await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Connecting {
    timeout: Option<u64>,
    memory: Option<bool>,
}

/// `POST /v2/sandboxes/{id}/connect`: lets it go on if it is paused. Its time may become longer, never shorter.
pub(super) async fn connect(
    State(app): State<App>,
    Owner(caller): Owner,
    Path(id): Path<String>,
    asked: Asked<Connecting>,
) -> Result<Json<Value>, Failure> {
    let live = app.sessions.find(&caller.tenant, &id)?;
    let Connecting { timeout, memory } = asked?.value;
    if memory == Some(false) {
        let hint = "connect with on_resume=\"restore\"";
        return Err(Problem::new(Code::Invalid, "a sandbox cannot be started again", hint).into());
    }
    let ttl = ttl(timeout.unwrap_or(TIMEOUT))?;
    if live.is_paused() {
        live.resume().await?;
    }
    if now() + ttl.as_secs() as i64 > live.expires() {
        live.extend(ttl);
    }
    Ok(Json(keys(&live)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_decoded_twice() {
        let read = pairs("a%2520b=1%252B1&c=").expect("it can be read");
        assert_eq!(read, [("a b", "1+1"), ("c", "")].map(|(a, b)| (a.to_owned(), b.to_owned())).into());
        assert!(pairs("a=%f").is_err());
        assert!(pairs("a=%ff%fe").is_err());
    }
}
