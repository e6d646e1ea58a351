//! Code in a session that keeps what it defines.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use casemate_core::limits::LimitKind;
use serde_json::Value;

use super::body::Document;
use super::document::{Admitted, Asked, Crowded, Documented, InSession, Named, Queried};
use super::extract::{Path, Query};
use super::page::Page;
use super::sessions::duration;
use super::stream;
use crate::app::App;
use crate::interpreter::{Context, Contexts, Event, Language, Piece, Run};
use crate::problem::{Code, Problem};
use crate::sessions::Live;
use crate::shape::code::{
    CodeEndedJson, CodeErrorJson, CodeJson, CodeOutputJson, CodeResultJson, CodeStartedJson, ContextJson,
    ContextsJson, NewCode, NewContext,
};
use crate::shape::event;
use crate::store::Caller;
use crate::token::Scope;

/// Run code that keeps what it defines.
///
/// The value of its last expression is among the results, as are figures. Whoever closes the connection interrupts it.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/code", operation_id = "runCode", tag = "code",
    params(("id" = String, Path, description = "Of a session")),
    request_body = NewCode,
    responses(
        (status = 200, description = "What came of it", content((CodeJson = "application/json"), (event::Code = "text/event-stream"))),
        Asked, Documented, InSession, Admitted,
    )
)]
pub(crate) async fn run(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<NewCode>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let asked = asked.value;
    let timeout = asked.timeout.as_ref().map(duration).transpose()?;
    let context = chosen(&app, &live, asked.language.as_deref(), asked.context.as_deref()).await?;
    let run = context.run(&app, &live, Piece { code: asked.code, env: asked.env, timeout });
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
async fn finish(context: &str, mut run: Run, most: u64) -> Result<CodeJson, Problem> {
    let mut told = CodeJson { context: context.to_owned(), ..CodeJson::default() };
    let mut length = 0;
    while let Some(event) = run.next().await {
        match event {
            Event::Stdout(text) => {
                length += text.len() as u64;
                told.stdout.push_str(&text);
            }
            Event::Stderr(text) => {
                length += text.len() as u64;
                told.stderr.push_str(&text);
            }
            Event::Result { formats, .. } => {
                length += formats.values().map(weight).sum::<u64>();
                told.results.push(formats);
            }
            Event::Error(failure) => told.error = Some(failure.into()),
            Event::Done { count, id } => (told.execution_count, told.id) = (Some(count), Some(id)),
        }
        if length > most {
            let hint = "ask for a stream, or write less";
            return Err(Problem::new(Code::TooLarge, format!("the code wrote more than {most} bytes"), hint));
        }
    }
    Ok(told)
}

/// About what a value takes, here and in the answer.
fn weight(value: &Value) -> u64 {
    const NODE: u64 = 32;
    NODE + match value {
        Value::String(text) => text.len() as u64,
        Value::Array(values) => values.iter().map(weight).sum(),
        Value::Object(members) => members.iter().map(|(name, value)| name.len() as u64 + weight(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The same, as it comes.
fn events(context: String, run: Run) -> Response {
    use futures_util::StreamExt;
    let begun =
        futures_util::stream::once(async move { stream::named("started", &CodeStartedJson { context }) });
    let rest = futures_util::stream::unfold(run, |mut run| async move {
        let event = match run.next().await? {
            Event::Stdout(data) => stream::named("stdout", &CodeOutputJson { data }),
            Event::Stderr(data) => stream::named("stderr", &CodeOutputJson { data }),
            Event::Result { formats, is_main } => {
                stream::named("result", &CodeResultJson { formats, is_main })
            }
            Event::Error(failure) => stream::named("error", &CodeErrorJson::from(failure)),
            Event::Done { count, id } => {
                stream::named("ended", &CodeEndedJson { execution_count: count, id })
            }
        };
        Some((event, run))
    });
    stream::sse(begun.chain(rest))
}

/// Make a place of its own for code.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/contexts", operation_id = "createContext", tag = "code",
    params(("id" = String, Path, description = "Of a session")),
    request_body = NewContext,
    responses((status = 201, description = "It is there", body = ContextJson), Asked, Documented, InSession, Admitted)
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<NewContext>,
) -> Result<(StatusCode, Json<ContextJson>), Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let NewContext { language, cwd } = asked.value;
    let language = language.as_deref().map_or(Ok(Language::Python), str::parse)?;
    let context = Contexts::create(&app, &live, language, cwd).await?;
    Ok((StatusCode::CREATED, Json(ContextJson::from(&*context))))
}

/// List where code runs in a session.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/contexts", operation_id = "listContexts", tag = "code",
    params(("id" = String, Path, description = "Of a session"), Page),
    responses((status = 200, description = "Contexts", body = ContextsJson), Asked, Named, Queried)
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<ContextsJson>, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let (found, next) = page.cut(live.contexts.list(), |context| context.id.clone())?;
    Ok(Json(ContextsJson { contexts: found.iter().map(|context| (&**context).into()).collect(), next }))
}

/// End a context, and everything in it.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}/contexts/{context}", operation_id = "removeContext", tag = "code",
    params(("id" = String, Path, description = "Of a session"), ("context" = String, Path, description = "Of a context in it")),
    responses((status = 204, description = "It is gone"), Asked, Named)
)]
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path((id, context)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    caller.check(Scope::Run)?;
    app.sessions.find(&caller.tenant, &id)?.contexts.remove(&context)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Begin a context anew. Nothing of what was defined stays.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/contexts/{context}/restart", operation_id = "restartContext", tag = "code",
    params(("id" = String, Path, description = "Of a session"), ("context" = String, Path, description = "Of a context in it")),
    responses((status = 200, description = "It has begun anew", body = ContextJson), Asked, InSession, Crowded)
)]
pub(crate) async fn restart(
    State(app): State<App>,
    caller: Caller,
    Path((id, context)): Path<(String, String)>,
) -> Result<Json<ContextJson>, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let context = live.contexts.find(&context)?;
    context.restart(&app, &live).await?;
    Ok(Json(ContextJson::from(&*context)))
}
