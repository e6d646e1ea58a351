//! What went wrong, as a client hears it: RFC 9457 problem documents with a code that does not change and a hint that helps. The only
//! file that maps anything to HTTP.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use casemate_core::outcome::Refusal;
use casemate_core::request::Invalid;
use casemate_engine::images::ImageError;
use casemate_engine::session::FileError;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

/// A request that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    pub(crate) detail: String,
    pub(crate) hint: String,
    /// When it is worth trying again, in seconds.
    pub(crate) retry_after: Option<u64>,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $status:ident, $title:literal;)*) => {
        /// Everything that can go wrong. A code is a promise: it keeps its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Code { $($(#[$doc])* $name),* }

        impl Code {
            pub(crate) const ALL: &[Code] = &[$(Code::$name),*];

            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $word),* }
            }
            pub(crate) const fn status(self) -> StatusCode {
                match self { $(Code::$name => StatusCode::$status),* }
            }
            pub(crate) const fn title(self) -> &'static str {
                match self { $(Code::$name => $title),* }
            }
        }
    };
}

codes! {
    Malformed = "malformed-request", BAD_REQUEST, "The request cannot be understood";
    Invalid = "invalid-request", UNPROCESSABLE_ENTITY, "The request makes no sense";
    Unauthenticated = "unauthenticated", UNAUTHORIZED, "No valid token";
    Forbidden = "forbidden", FORBIDDEN, "The token does not allow this";
    NotFound = "not-found", NOT_FOUND, "There is no such thing";
    NoRoute = "no-such-route", NOT_FOUND, "There is no such address";
    Method = "method-not-allowed", METHOD_NOT_ALLOWED, "The address does not take this method";
    InUse = "in-use", CONFLICT, "Somebody uses it";
    Exists = "already-exists", CONFLICT, "It is there already";
    NotADirectory = "not-a-directory", CONFLICT, "Something else is where a directory should be";
    IsADirectory = "is-a-directory", CONFLICT, "A directory is where a file should be";
    /// The same key was used for another request.
    KeyReused = "idempotency-key-reused", UNPROCESSABLE_ENTITY, "The key belongs to another request";
    /// The first request with this key has no answer yet.
    InProgress = "in-progress", CONFLICT, "An earlier request with this key is still being answered";
    TooLarge = "too-large", PAYLOAD_TOO_LARGE, "There is more than is taken";
    MediaType = "unsupported-media-type", UNSUPPORTED_MEDIA_TYPE, "The content is of a kind that is not taken";
    Upgrade = "upgrade-required", UPGRADE_REQUIRED, "The address is for another protocol";
    TooSlow = "too-slow", REQUEST_TIMEOUT, "The request did not arrive in time";
    /// A wall, a limit or a clause is missing: nothing weaker is used instead.
    Refused = "refused", UNPROCESSABLE_ENTITY, "Casemate refuses to run this";
    Ended = "session-ended", GONE, "The session is over";
    Quota = "quota-exceeded", TOO_MANY_REQUESTS, "The tenant has used up what it may use";
    Busy = "busy", SERVICE_UNAVAILABLE, "There is no room at the moment";
    NoSpace = "no-space", INSUFFICIENT_STORAGE, "The disk of the session is full";
    Draining = "draining", SERVICE_UNAVAILABLE, "The server is about to stop";
    Internal = "internal", INTERNAL_SERVER_ERROR, "Something went wrong here";
}

/// What went wrong, after RFC 9457.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct Document<'a> {
    r#type: String,
    /// What its code means.
    title: &'a str,
    status: u16,
    /// What happened this time.
    detail: &'a str,
    /// For programs: it keeps its meaning.
    #[schema(schema_with = codes)]
    code: &'a str,
    /// What to do about it.
    hint: &'a str,
}

fn codes() -> Object {
    let words = Code::ALL.iter().map(|code| code.as_str());
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build()
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem { code, detail: detail.into(), hint: hint.into(), retry_after: None }
    }

    /// Like [`Problem::new`], for something that goes away.
    pub(crate) fn later(self, seconds: u64) -> Problem {
        Problem { retry_after: Some(seconds), ..self }
    }

    /// Told the same whether it belongs to somebody else or to nobody.
    pub(crate) fn not_found(what: &str) -> Problem {
        Problem::new(
            Code::NotFound,
            format!("there is no such {what}"),
            format!("list what there is, or create a {what}"),
        )
    }

    /// What a client may know of a failure that is ours.
    pub(crate) fn internal(detail: impl Into<String>) -> Problem {
        Problem::new(Code::Internal, detail, "the server's log says more")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let document = Document {
            r#type: format!("urn:casemate:problem:{}", self.code.as_str()),
            title: self.code.title(),
            status: status.as_u16(),
            detail: &self.detail,
            code: self.code.as_str(),
            hint: &self.hint,
        };
        let mut response = (status, Json(document)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"casemate\""));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<Invalid> for Problem {
    fn from(Invalid { reason, hint }: Invalid) -> Problem {
        Problem::new(Code::Invalid, reason, hint)
    }
}

impl From<Refusal> for Problem {
    fn from(Refusal { reason, hint }: Refusal) -> Problem {
        Problem::new(Code::Refused, reason, hint)
    }
}

impl From<ImageError> for Problem {
    fn from(error: ImageError) -> Problem {
        let code = match &error {
            ImageError::InUse(_) => Code::InUse,
            ImageError::Large { .. } => Code::TooLarge,
            ImageError::Host { .. } | ImageError::Unpacker(_) => Code::Internal,
            _ => Code::Invalid,
        };
        Problem::new(code, error.to_string(), error.hint())
    }
}

impl From<FileError> for Problem {
    fn from(error: FileError) -> Problem {
        const INSIDE: &str = "paths are absolute, below /work or /tmp, and follow no links";
        let FileError::Kernel(errno) = error else {
            return Problem::new(Code::Ended, "the session has ended", "create another one");
        };
        let words = error.to_string();
        let words = words.split_once(" (os error").map_or(words.as_str(), |(words, _)| words);
        use rustix::io::Errno;
        match Errno::from_raw_os_error(errno) {
            Errno::NOENT => Problem::new(Code::NotFound, "there is no such file or directory", INSIDE),
            Errno::EXIST | Errno::NOTEMPTY => {
                Problem::new(Code::Exists, words, "remove it first, or use another name")
            }
            Errno::NOTDIR => Problem::new(Code::NotADirectory, words, INSIDE),
            Errno::ISDIR => Problem::new(Code::IsADirectory, words, "directories travel as archives"),
            Errno::NOSPC | Errno::DQUOT => {
                Problem::new(Code::NoSpace, words, "remove files, or create the session with a larger disk")
            }
            Errno::FBIG => {
                Problem::new(Code::TooLarge, "there is more than is taken at once", "take it in parts")
            }
            Errno::AGAIN => {
                Problem::new(Code::Busy, "too much goes on in this session", "wait until something has ended")
                    .later(1)
            }
            Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::LOOP | Errno::ROFS | Errno::BUSY => {
                Problem::new(Code::Forbidden, format!("not allowed here: {words}"), INSIDE)
            }
            Errno::INVAL | Errno::NAMETOOLONG => Problem::new(Code::Invalid, words, INSIDE),
            Errno::OPNOTSUPP => Problem::new(
                Code::Refused,
                "this stack cannot do that",
                "use a session on container, gvisor or docker",
            ),
            _ => Problem::internal(format!("the cell said: {words}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_words_that_differ() {
        let mut words: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert!(words.iter().all(|word| word.bytes().all(|c| c.is_ascii_lowercase() || c == b'-')));
        words.sort_unstable();
        let count = words.len();
        words.dedup();
        assert_eq!(words.len(), count);
    }

    #[test]
    fn what_belongs_to_nobody_looks_like_what_belongs_to_others() {
        assert_eq!(Problem::not_found("session"), Problem::not_found("session"));
        assert_eq!(Problem::not_found("session").code.status(), StatusCode::NOT_FOUND);
    }
}
