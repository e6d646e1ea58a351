//! `/execute` and `/contexts`: what their code interpreter speaks. Lines of JSON, as they come.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::{Sandbox, WORK, place};
use crate::api::body::Document;
use crate::api::code::chosen;
use crate::app::App;
use crate::interpreter::{Context, Contexts, Event, Language, Piece};
use crate::store::now;

/// Their names of media types; what has none is told as extra.
const FORMATS: [(&str, &str); 10] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

/// `POST /execute`. Whoever hangs up interrupts the code.
pub(super) async fn execute(
    State(app): State<App>,
    Sandbox(live): Sandbox,
    asked: Result<Document<Asked>, crate::problem::Problem>,
) -> Result<Response, Failure> {
    let Asked { code, context_id, language, env_vars } = asked?.value;
    let context = chosen(&app, &live, language.as_deref(), context_id.as_deref()).await?;
    let run = context.run(&app, &live, Piece { code, env: env_vars.unwrap_or_default(), timeout: None });
    let lines = futures_util::stream::unfold(run, |mut run| async {
        let mut line = told(run.next().await?).to_string();
        line.push('\n');
        Some((Ok::<_, Infallible>(line), run))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

fn told(event: Event) -> Value {
    match event {
        Event::Stdout(text) => json!({"type": "stdout", "text": text, "timestamp": nanoseconds()}),
        Event::Stderr(text) => json!({"type": "stderr", "text": text, "timestamp": nanoseconds()}),
        Event::Result { formats, is_main } => {
            let mut result = Map::from_iter([
                ("type".to_owned(), json!("result")),
                ("is_main_result".to_owned(), json!(is_main)),
            ]);
            let mut extra = Map::new();
            for (kind, content) in formats {
                match FORMATS.iter().find(|(known, _)| *known == kind) {
                    Some((_, name)) => result.insert((*name).to_owned(), content),
                    None => extra.insert(kind, content),
                };
            }
            if !extra.is_empty() {
                result.insert("extra".to_owned(), Value::Object(extra));
            }
            Value::Object(result)
        }
        Event::Error(failure) => {
            json!({"type": "error", "name": failure.name, "value": failure.value, "traceback": failure.traceback})
        }
        Event::Done { count, .. } => json!({"type": "number_of_executions", "execution_count": count}),
    }
}

fn nanoseconds() -> i64 {
    now().saturating_mul(1_000_000_000)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewContext {
    language: Option<String>,
    cwd: Option<String>,
}

/// `POST /contexts`
pub(super) async fn create(
    State(app): State<App>,
    Sandbox(live): Sandbox,
    asked: Result<Document<NewContext>, crate::problem::Problem>,
) -> Result<Json<Value>, Failure> {
    let NewContext { language, cwd } = asked?.value;
    let language = language.as_deref().map_or(Ok(Language::Python), str::parse)?;
    let cwd = cwd.map_or_else(|| WORK.to_owned(), |cwd| place(&cwd));
    let context = Contexts::create(&app, &live, language, Some(cwd)).await?;
    Ok(Json(described(&context)))
}

/// `GET /contexts`
pub(super) async fn list(Sandbox(live): Sandbox) -> Json<Value> {
    Json(live.contexts.list().iter().map(|context| described(context)).collect())
}

/// `DELETE /contexts/{id}`
pub(super) async fn remove(Sandbox(live): Sandbox, Path(id): Path<String>) -> Result<StatusCode, Failure> {
    live.contexts.remove(&id)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /contexts/{id}/restart`
pub(super) async fn restart(
    State(app): State<App>,
    Sandbox(live): Sandbox,
    Path(id): Path<String>,
) -> Result<StatusCode, Failure> {
    live.contexts.find(&id)?.restart(&app, &live).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn described(context: &Context) -> Value {
    json!({"id": context.id, "language": context.language.as_str(), "cwd": context.cwd})
}
