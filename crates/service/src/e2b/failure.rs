//! How a problem is told to clients of E2B: the only place that knows their codes.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::problem::{Code, Problem};

/// As the answer to an ordinary request: `{"code": 404, "message": "…"}`.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    problem: Problem,
}

/// As the answer to a call of the Connect protocol: `{"code": "not_found", "message": "…"}`.
#[derive(Debug)]
pub(super) struct CallFailure(pub(super) Problem);

impl Failure {
    pub(super) fn with_status(status: StatusCode, problem: Problem) -> Failure {
        Failure { status, problem }
    }
}

/// Their clients tell by these words that it is gone.
pub(super) fn no_sandbox(id: &str) -> Failure {
    let detail = format!("the sandbox {id:?} was not found");
    Failure::with_status(StatusCode::BAD_GATEWAY, Problem::new(Code::NotFound, detail, "create another one"))
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        let status = match problem.code {
            // Theirs knows only one kind of request that cannot be served.
            Code::Malformed
            | Code::Invalid
            | Code::Refused
            | Code::MediaType
            | Code::NotADirectory
            | Code::IsADirectory => StatusCode::BAD_REQUEST,
            Code::Ended => StatusCode::BAD_GATEWAY,
            code => code.status(),
        };
        Failure { status, problem }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Failure { status, problem } = self;
        let shown = json!({"code": status.as_u16(), "message": message(&problem)});
        let mut response = (status, Json(shown)).into_response();
        if let Some(seconds) = problem.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<Problem> for CallFailure {
    fn from(problem: Problem) -> CallFailure {
        CallFailure(problem)
    }
}

impl CallFailure {
    pub(super) fn shown(&self) -> Value {
        json!({"code": word(self.0.code), "message": message(&self.0)})
    }
}

impl IntoResponse for CallFailure {
    fn into_response(self) -> Response {
        let status = match word(self.0.code) {
            "invalid_argument" => StatusCode::BAD_REQUEST,
            "unauthenticated" => StatusCode::UNAUTHORIZED,
            "permission_denied" => StatusCode::FORBIDDEN,
            "not_found" => StatusCode::NOT_FOUND,
            "already_exists" | "aborted" => StatusCode::CONFLICT,
            "resource_exhausted" => StatusCode::TOO_MANY_REQUESTS,
            "unimplemented" => StatusCode::NOT_IMPLEMENTED,
            "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "deadline_exceeded" => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = (status, Json(self.shown())).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

const fn word(code: Code) -> &'static str {
    match code {
        Code::Malformed
        | Code::Invalid
        | Code::MediaType
        | Code::Refused
        | Code::NotADirectory
        | Code::IsADirectory => "invalid_argument",
        Code::Unauthenticated => "unauthenticated",
        Code::Forbidden => "permission_denied",
        Code::NotFound | Code::NoRoute => "not_found",
        Code::Method | Code::Upgrade => "unimplemented",
        Code::Exists => "already_exists",
        Code::KeyReused | Code::InProgress | Code::InUse => "aborted",
        Code::TooLarge | Code::Quota | Code::NoSpace => "resource_exhausted",
        Code::TooSlow => "deadline_exceeded",
        Code::Ended | Code::Busy | Code::Draining => "unavailable",
        Code::Internal => "internal",
    }
}

fn message(problem: &Problem) -> String {
    format!("{}; hint: {}", problem.detail, problem.hint)
}
