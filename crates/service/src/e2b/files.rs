//! `/files`: contents of files of a sandbox.

use axum::Json;
use axum::body::Body;
use axum::extract::Query;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::Failure;
use super::multipart::Form;
use super::{Sandbox, check_user, file};
use crate::api::files::{Writing, send};
use crate::problem::{Code, Problem};
use crate::sessions::Live;

const MODE: u32 = 0o644;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    path: Option<String>,
    #[serde(default)]
    username: String,
}

/// `GET /files?path=…`
pub(super) async fn read(Sandbox(live): Sandbox, Query(asked): Query<Asked>) -> Result<Response, Failure> {
    check_user(&asked.username)?;
    let path = file(&asked.path.ok_or_else(nameless)?)?;
    Ok(send(live, &path).await?)
}

/// `POST /files?path=…`: one file as it is, or several as a form.
pub(super) async fn write(
    Sandbox(live): Sandbox,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    check_user(&asked.username)?;
    check_headers(&headers)?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind == "application/octet-stream" {
        let path = file(&asked.path.ok_or_else(nameless)?)?;
        crate::api::files::put(&live, &path, MODE, body).await?;
        return Ok(Json(json!([written(&path)])));
    }
    let form = Form::new(kind, body).ok_or_else(|| {
        let hint = "send `application/octet-stream` or `multipart/form-data`";
        Problem::new(Code::MediaType, "the content is of another kind", hint)
    })?;
    Ok(Json(Value::Array(write_all(&live, form, asked.path.as_deref()).await?)))
}

async fn write_all(live: &Live, mut form: Form, path: Option<&str>) -> Result<Vec<Value>, Problem> {
    let mut files = Vec::new();
    while let Some(name) = form.next().await? {
        // A single file may be named in the address.
        let path = file(path.unwrap_or(&name))?;
        let mut writing = Writing::begin(live, &path, MODE).await?;
        while let Some(bytes) = form.data().await? {
            writing.take(bytes).await?;
        }
        writing.finish().await?;
        files.push(written(&path));
    }
    Ok(files)
}

fn check_headers(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Problem::new(Code::MediaType, "the content is compressed", "send it with gzip=False"));
    }
    if headers.keys().any(|name| name.as_str().starts_with("x-metadata-")) {
        let hint = "keep it in a file of its own";
        return Err(Problem::new(Code::Invalid, "files have no metadata here", hint));
    }
    Ok(())
}

fn nameless() -> Problem {
    Problem::new(Code::Invalid, "no file is named", "add ?path=")
}

fn written(path: &str) -> Value {
    json!({"name": path.rsplit('/').next().unwrap_or_default(), "type": "file", "path": path})
}
