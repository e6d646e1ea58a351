//! Code in a session that keeps what it defines.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use casemate_core::limits::LimitKind;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::Document;
use super::sessions::duration;
use super::stream;
use crate::app::App;
use crate::interpreter::{Context, Contexts, Event, Failure, Language, Piece, Run};
use crate::problem::{Code, Problem};
use crate::sessions::Live;
use crate::shape::request::Amount;
use crate::store::Caller;
use crate::token::Scope;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    code: String,
    /// `python` or `javascript`; Python if neither a language nor a context is named.
    language: Option<String>,
    context: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    timeout: Option<Amount>,
    #[serde(default)]
    stream: bool,
}

/// `POST /v1/sessions/{id}/code`
pub(crate) async fn run(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<Asked>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let asked = asked.value;
    let timeout = asked.timeout.as_ref().map(duration).transpose()?;
    let context = chosen(&app, &live, asked.language.as_deref(), asked.context.as_deref()).await?;
    let run = context.run(&live, Piece { code: asked.code, env: asked.env, timeout });
    if asked.stream {
        return Ok(events(context.id.clone(), run));
    }
    let most = live.session.limits().get(LimitKind::Output).map_or(u64::MAX, |bound| bound.value);
    finish(&context.id, run, most).await.map(|told| Json(told).into_response())
}

/// Where code runs that names a language, or a context, or neither.
pub(crate) async fn chosen(
    app: &App,
    live: &Arc<Live>,
    language: Option<&str>,
    context: Option<&str>,
) -> Result<Arc<Context>, Problem> {
    match (language, context) {
        (Some(_), Some(_)) => Err(Problem::new(
            Code::Invalid,
            "both a language and a context are given",
            "a context has a language; give one of them",
        )),
        (None, Some(id)) => live.contexts.find(id),
        (language, None) => {
            let language = language.map_or(Ok(Language::Python), str::parse)?;
            Contexts::default_of(app, live, language).await
        }
    }
}

/// All that came of it, in one document.
async fn finish(context: &str, mut run: Run, most: u64) -> Result<Value, Problem> {
    let (mut stdout, mut stderr, mut results, mut failure, mut count) =
        (String::new(), String::new(), Vec::new(), None, None);
    let mut length = 0;
    while let Some(event) = run.next().await {
        match event {
            Event::Stdout(text) => {
                length += text.len() as u64;
                stdout.push_str(&text);
            }
            Event::Stderr(text) => {
                length += text.len() as u64;
                stderr.push_str(&text);
            }
            Event::Result { formats, .. } => {
                length +=
                    formats.values().map(|value| value.as_str().map_or(0, str::len) as u64).sum::<u64>();
                results.push(Value::Object(formats));
            }
            Event::Error(Failure { name, value, traceback }) => {
                failure = Some(json!({"name": name, "value": value, "traceback": traceback}));
            }
            Event::Done { count: counted } => count = Some(counted),
        }
        if length > most {
            let hint = "ask for a stream, or write less";
            return Err(Problem::new(Code::TooLarge, format!("the code wrote more than {most} bytes"), hint));
        }
    }
    Ok(json!({
        "stdout": stdout,
        "stderr": stderr,
        "results": results,
        "error": failure,
        "execution_count": count,
        "context": context,
    }))
}

/// The same, as it comes.
fn events(context: String, run: Run) -> Response {
    use futures_util::StreamExt;
    let begun =
        futures_util::stream::once(async move { stream::named("started", &json!({"context": context})) });
    let rest = futures_util::stream::unfold(run, |mut run| async move {
        let event = match run.next().await? {
            Event::Stdout(text) => stream::named("stdout", &json!({"data": text})),
            Event::Stderr(text) => stream::named("stderr", &json!({"data": text})),
            Event::Result { formats, is_main } => {
                stream::named("result", &json!({"formats": formats, "is_main": is_main}))
            }
            Event::Error(Failure { name, value, traceback }) => {
                stream::named("error", &json!({"name": name, "value": value, "traceback": traceback}))
            }
            Event::Done { count } => stream::named("ended", &json!({"execution_count": count})),
        };
        Some((event, run))
    });
    stream::sse(begun.chain(rest))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewContext {
    language: Option<String>,
    cwd: Option<String>,
}

/// `POST /v1/sessions/{id}/contexts`
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<NewContext>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let NewContext { language, cwd } = asked.value;
    let language = language.as_deref().map_or(Ok(Language::Python), str::parse)?;
    let context = Contexts::create(&app, &live, language, cwd).await?;
    Ok((StatusCode::CREATED, Json(described(&context))).into_response())
}

/// `GET /v1/sessions/{id}/contexts`
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let contexts: Vec<Value> = live.contexts.list().iter().map(|context| described(context)).collect();
    Ok(Json(json!({"contexts": contexts})).into_response())
}

/// `DELETE /v1/sessions/{id}/contexts/{context}`
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path((id, context)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    caller.check(Scope::Run)?;
    app.sessions.find(&caller.tenant, &id)?.contexts.remove(&context)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/sessions/{id}/contexts/{context}/restart`
pub(crate) async fn restart(
    State(app): State<App>,
    caller: Caller,
    Path((id, context)): Path<(String, String)>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let context = live.contexts.find(&context)?;
    context.restart(&app, &live).await?;
    Ok(Json(described(&context)).into_response())
}

fn described(context: &Context) -> Value {
    json!({"id": context.id, "language": context.language.as_str(), "cwd": context.cwd})
}
