//! Bodies of requests: bounded in bytes and in time.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::app::{App, Asker, BODY_PATIENCE, MAX_BODY};
use crate::problem::{Code, Problem};
use crate::shape::object::Object;
use crate::shares::Room;

/// A JSON document, which is an object, and the bytes that it came in.
pub(crate) struct Document<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
    /// Until the request is answered.
    pub(crate) room: Room,
}

/// Deeper than this, a document is an attack.
const MAX_DEPTH: usize = 64;

impl<T: DeserializeOwned> FromRequest<App> for Document<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Document<T>, Problem> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        let essence = kind.split(';').next().unwrap_or_default().trim();
        // A page of somebody else's can make a browser send other kinds without asking first.
        if !essence.eq_ignore_ascii_case("application/json") {
            let hint = "send `Content-Type: application/json`";
            return Err(Problem::new(Code::MediaType, "the body is not announced as JSON", hint));
        }
        let announced = request.body().size_hint().exact().unwrap_or(MAX_BODY as u64);
        if announced > MAX_BODY as u64 {
            return Err(too_large(MAX_BODY));
        }
        let room = app.bodies.room(Asker::of(&request), announced).await?;
        let bytes = whole(request.into_body(), MAX_BODY).await?;
        let value = parse(&bytes)?;
        Ok(Document { value, bytes, room })
    }
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if depth(bytes) > MAX_DEPTH {
        let hint = format!("nest at most {MAX_DEPTH} deep");
        return Err(Problem::new(Code::Malformed, "the JSON is nested too deeply", hint));
    }
    serde_json::from_slice(bytes).map(|Object(value)| value).map_err(|error| {
        let code = if error.is_data() { Code::Invalid } else { Code::Malformed };
        Problem::new(
            code,
            format!("the body cannot be read: {error}"),
            "/openapi.json says what it must look like",
        )
    })
}

/// How deep brackets are nested. Those in strings may count, too: they are rare, and this is a bound.
fn depth(bytes: &[u8]) -> usize {
    let (mut now, mut most, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                now += 1;
                most = most.max(now);
            }
            b']' | b'}' if !in_string => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// All of it, if it is not too much and does not take too long.
pub(crate) async fn whole(body: Body, most: usize) -> Result<Bytes, Problem> {
    // As announced: nothing of it has to be read to know that.
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    let collected = timeout(BODY_PATIENCE, Limited::new(body, most).collect()).await;
    let collected = collected.map_err(|_| {
        let hint = format!("send all of it within {BODY_PATIENCE:?}");
        Problem::new(Code::TooSlow, "the body did not arrive in time", hint)
    })?;
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(most)),
        Err(error) => {
            Err(Problem::new(Code::Malformed, format!("the body ended early: {error}"), "send all of it"))
        }
    }
}

pub(crate) fn too_large(most: usize) -> Problem {
    Problem::new(
        Code::TooLarge,
        format!("the body has more than {most} bytes"),
        "put large files into a session",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::request::{Execution, NewProcess, Signal};

    #[test]
    fn depth_is_counted_outside_of_strings() {
        assert_eq!(depth(b"{\"a\": [1, {\"b\": \"[[[[\\\"[[\"}]}"), 3);
        assert_eq!(depth("[".repeat(100_000).as_bytes()), 100_000);
    }

    #[test]
    fn deep_and_broken_documents_are_told_apart_from_wrong_ones() {
        let code = |text: &str| {
            let signal = parse::<Signal>(text.as_bytes());
            signal.map(|signal| signal.signal).map_err(|problem| problem.code)
        };
        assert_eq!(code("{\"signal\": 9}"), Ok(9));
        assert_eq!(code(&"[".repeat(65)), Err(Code::Malformed));
        assert_eq!(code("{\"signal\": 9"), Err(Code::Malformed));
        assert_eq!(code("{\"a\": 1}"), Err(Code::Invalid));
        assert_eq!(code("{\"signal\": 300}"), Err(Code::Invalid));
    }

    #[test]
    fn an_array_is_not_taken_for_an_object_whose_members_have_lost_their_names() {
        let is_taken = |text: &str| parse::<NewProcess>(text.as_bytes()).is_ok();
        assert!(is_taken("{\"terminal\": {\"rows\": 24, \"columns\": 80}}"));
        assert!(!is_taken("{\"terminal\": [24, 80]}") && !is_taken("[[\"true\"]]") && !is_taken("[]"));
        let is_taken = |text: &str| parse::<Execution>(text.as_bytes()).is_ok();
        assert!(is_taken("{\"files_in\": [{\"path\": \"/work/a\"}]}"));
        assert!(!is_taken("{\"files_in\": [[\"/work/a\", null, null, null]]}"));
    }
}
