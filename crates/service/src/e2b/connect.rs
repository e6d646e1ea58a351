//! The Connect protocol over HTTP/1.1, with JSON: messages in bodies, or, where they are streamed, in envelopes of five bytes and so
//! many more.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::failure::{CallFailure, Failure};
use crate::api::body::{self, Document};
use crate::app::{App, Asker, BODY_PATIENCE, MAX_BODY};
use crate::problem::{Code, Problem};

const STREAMED: &str = "application/connect+json";
const HEAD: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;
/// Said when nothing else is, unless the client wants it more often.
const HEARTBEAT: Duration = Duration::from_secs(50);

pub(super) type Answer = Result<Json<Value>, CallFailure>;

/// The message of a call that has one answer.
pub(super) struct Unary<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<App> for Unary<T> {
    type Rejection = CallFailure;

    async fn from_request(request: Request, app: &App) -> Result<Unary<T>, CallFailure> {
        let Document { value, .. } = Document::from_request(request, app).await?;
        Ok(Unary(value))
    }
}

/// The message of a call whose answers are streamed.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequest<App> for Asked<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Asked<T>, Failure> {
        let mut envelopes = Envelopes::of(request, app)?;
        let asked = envelopes.next().await?.ok_or_else(|| malformed("there is no message"))?;
        match envelopes.next::<Value>().await? {
            None => Ok(Asked(asked)),
            Some(_) => Err(malformed("there is more than one message").into()),
        }
    }
}

/// Messages that a client streams.
pub(super) struct Envelopes {
    app: App,
    /// Whose messages these are.
    tenant: String,
    body: Body,
    waiting: BytesMut,
}

impl Envelopes {
    fn of(request: Request, app: &App) -> Result<Envelopes, Problem> {
        let (app, tenant) = (app.clone(), Asker::of(&request).to_owned());
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        match kind {
            Some(STREAMED) => {
                Ok(Envelopes { app, tenant, body: request.into_body(), waiting: BytesMut::new() })
            }
            _ => {
                let hint = format!("send `Content-Type: {STREAMED}`");
                Err(Problem::new(Code::MediaType, "the body is not announced as a stream of JSON", hint))
            }
        }
    }

    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Problem> {
        if !self.fill(HEAD).await? {
            return Ok(None);
        }
        let flags = self.waiting[0];
        let length = (&self.waiting[1..HEAD]).get_u32() as usize;
        if flags & COMPRESSED != 0 {
            return Err(malformed("the message is compressed"));
        }
        if length > MAX_BODY {
            return Err(body::too_large(MAX_BODY));
        }
        let _room = self.app.bodies.room(&self.tenant, length as u64).await?;
        if !self.fill(HEAD + length).await? {
            return Err(malformed("the message ends early"));
        }
        let message = self.waiting.split_to(HEAD + length);
        if flags & END != 0 {
            return Ok(None);
        }
        if flags != 0 {
            return Err(malformed("the message has unknown flags"));
        }
        body::parse(&message[HEAD..]).map(Some)
    }

    /// Waits until there are so many bytes. `false`: there never were any.
    async fn fill(&mut self, length: usize) -> Result<bool, Problem> {
        while self.waiting.len() < length {
            let frame = timeout(BODY_PATIENCE, self.body.frame()).await.map_err(|_| {
                Problem::new(Code::TooSlow, "the body did not arrive in time", "send it without long pauses")
            })?;
            match frame {
                None if self.waiting.is_empty() => return Ok(false),
                None => return Err(malformed("the message ends early")),
                Some(Err(error)) => return Err(malformed(&format!("the body ended early: {error}"))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.waiting.extend_from_slice(&data);
                    }
                }
            }
        }
        Ok(true)
    }
}

impl FromRequest<App> for Envelopes {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Envelopes, Failure> {
        Ok(Envelopes::of(request, app)?)
    }
}

fn malformed(detail: &str) -> Problem {
    Problem::new(Code::Malformed, detail, "send messages as the Connect protocol says, uncompressed")
}

/// How long the client waits, and how often it wants to hear something.
pub(super) struct Patience {
    pub(super) timeout: Option<Duration>,
    pub(super) heartbeat: Duration,
}

impl FromRequestParts<App> for Patience {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Patience, Failure> {
        let timeout = number(&parts.headers, "connect-timeout-ms")?.map(Duration::from_millis);
        let heartbeat = number(&parts.headers, "keepalive-ping-interval")?;
        let heartbeat = heartbeat.filter(|seconds| *seconds > 0).map_or(HEARTBEAT, Duration::from_secs);
        Ok(Patience { timeout, heartbeat })
    }
}

fn number(headers: &HeaderMap, name: &str) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().filter(|text| text.len() <= 10).and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| malformed(&format!("`{name}` is not a number")))
}

/// What a stream says next.
pub(super) enum Said {
    Message(Value),
    Failed(CallFailure),
    Over,
}

/// Answers with everything that is said, and how it ended.
pub(super) fn answer(said: impl Stream<Item = Said> + Send + 'static) -> Response {
    let envelopes = said.map(|said| {
        Ok::<_, Infallible>(match said {
            Said::Message(message) => envelope(0, &message),
            Said::Failed(failure) => envelope(END, &json!({"error": failure.shown()})),
            Said::Over => envelope(END, &json!({})),
        })
    });
    ([(header::CONTENT_TYPE, STREAMED)], Body::from_stream(envelopes)).into_response()
}

fn envelope(flags: u8, message: &Value) -> Bytes {
    let message = message.to_string();
    let mut bytes = Vec::with_capacity(HEAD + message.len());
    bytes.push(flags);
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend(message.as_bytes());
    bytes.into()
}

/// In place of a stream that did not begin.
pub(super) fn failed(problem: Problem) -> Response {
    answer(futures_util::stream::once(async { Said::Failed(problem.into()) }))
}
