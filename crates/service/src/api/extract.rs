//! What an address names, and what stands behind its question mark. Both say with a problem document what is wrong with them.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::problem::{Code, Problem};

/// The parts of the path that are names.
pub(crate) struct Path<T>(pub(crate) T);

/// What is asked for more closely. Strict, like a body.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        let named = axum::extract::Path::from_request_parts(parts, state).await;
        // Nothing can have a name that is not one.
        named.map(|axum::extract::Path(named)| Path(named)).map_err(|_| Problem::not_found("name"))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query<T>, Problem> {
        let asked = axum::extract::Query::from_request_parts(parts, state).await;
        asked.map(|axum::extract::Query(asked)| Query(asked)).map_err(|rejection| {
            Problem::new(Code::Invalid, rejection.body_text(), "/openapi.json says what can be asked for")
        })
    }
}
