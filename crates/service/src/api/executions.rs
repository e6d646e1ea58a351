//! `/v1/executions` and `/v1/explain`.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use casemate_core::request::Request;
use sha2::{Digest, Sha256};

use super::body::Document;
use super::document::{Admitted, Asked, Conflicting, Documented, Named, Queried};
use super::extract::{Path, Query};
use super::page::Page;
use super::stream;
use crate::app::App;
use crate::executions::{self as running, Execution};
use crate::problem::{Code, Problem};
use crate::shape::event::{self, BareJson, StartedJson};
use crate::shape::listed::{ExecutionsJson, KnownJson};
use crate::shape::outcome::{ExecutionJson, ExplainJson};
use crate::shape::request::Execution as NewExecution;
use crate::store::{Caller, Claim};
use crate::token::Scope;

const KEY: &str = "idempotency-key";
const MAX_KEY: usize = 255;
/// Of an answer that may have to be given again. Of a longer one, all but the output is.
const MOST_KEPT: usize = 1 << 20;

/// Run something, in a cell of its own.
///
/// Answers when it has ended, or with events as things happen: `started`, `stdout` and `stderr`, and at last `ended` with the outcome, or
/// `lost`. Something that Casemate refuses to run has an outcome, too, since it has a receipt. Whoever closes the connection ends what
/// runs, unless they have sent a key.
#[utoipa::path(
    post, path = "/v1/executions", operation_id = "createExecution", tag = "executions",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, nullable = false,
        description = "The same request with the same key is answered with the same outcome, for a day; not with `stream`")),
    request_body = NewExecution,
    responses(
        (status = 200, description = "What came of it", content((ExecutionJson = "application/json"), (event::Run = "text/event-stream"))),
        Asked, Documented, Admitted, Conflicting,
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    asked: Document<NewExecution>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let Document { value, bytes, room: _room } = asked;
    let streamed = value.stream;
    let key = headers.get(KEY).map(|key| key.to_str().unwrap_or_default().to_owned());
    let Some(key) = key else {
        let execution = begin(&app, &caller, value).await?;
        return match streamed {
            true => Ok(events(execution)),
            false => execution.finish().await.map(|told| Json(told).into_response()),
        };
    };
    if streamed {
        let hint = "leave the key out, or do without the stream";
        return Err(Problem::new(Code::Invalid, "an answer that is streamed cannot be given again", hint));
    }
    if key.is_empty() || key.len() > MAX_KEY {
        let hint = format!("use 1 to {MAX_KEY} visible characters");
        return Err(Problem::new(Code::Invalid, "this is not an idempotency key", hint));
    }
    let said = once(app, caller, key, Sha256::digest(&bytes).into(), value).await?;
    Ok((StatusCode::OK, [("content-type", "application/json")], said).into_response())
}

async fn begin(app: &App, caller: &Caller, asked: NewExecution) -> Result<Execution, Problem> {
    let (draft, io, files) = asked.into_draft(&caller.tenant, &app.images)?;
    running::begin(app, Request::new(draft)?, io, files).await
}

/// Runs it if nobody has used this key before, and otherwise says what was said then. It goes on when the client is gone: that is what
/// the key is for.
async fn once(
    app: App,
    caller: Caller,
    key: String,
    request: [u8; 32],
    asked: NewExecution,
) -> Result<String, Problem> {
    let failed = |error: crate::store::StateError| Problem::internal(error.to_string());
    match app.state.claim(&caller.tenant, &key, &request, app.engine.run_id()).map_err(failed)? {
        Claim::Ours => {}
        Claim::Answered(answer) => return Ok(answer),
        Claim::Other => {
            return Err(Problem::new(
                Code::KeyReused,
                "this key was used for another request",
                "use a new key",
            ));
        }
        Claim::Pending => {
            let hint = "ask again when it has ended";
            return Err(
                Problem::new(Code::InProgress, "a request with this key is being answered", hint).later(1)
            );
        }
    }
    let answering = tokio::spawn(async move {
        let told = async { begin(&app, &caller, asked).await?.finish().await }.await;
        let (said, summary) = match told {
            Ok(told) => {
                let said = serde_json::to_string(&told).unwrap_or_default();
                let summary = (said.len() > MOST_KEPT).then(|| told.without_output());
                (Ok(said), summary.map(|told| serde_json::to_string(&told).unwrap_or_default()))
            }
            Err(problem) => (Err(problem), None),
        };
        // What did not begin may be tried again with the same key.
        let kept = app.state.answer(&caller.tenant, &key, summary.as_deref().or(said.as_deref().ok()));
        kept.map_err(|error| Problem::internal(error.to_string()))?;
        said
    });
    answering.await.map_err(|_| Problem::internal("the execution was lost"))?
}

/// What it writes, as it comes, then what came of it.
fn events(execution: Execution) -> Response {
    enum Step {
        Begin(Execution),
        Follow(Execution),
        Done,
    }
    stream::sse(futures_util::stream::unfold(Step::Begin(execution), |step| async move {
        match step {
            Step::Begin(execution) => {
                let id = execution.named().await.to_owned();
                let event = stream::named("started", &StartedJson { id, pid: None });
                Some((event, Step::Follow(execution)))
            }
            Step::Follow(mut execution) => match execution.output.recv().await {
                Some(chunk) => Some((stream::output(&chunk), Step::Follow(execution))),
                None => {
                    let event = match (&mut execution.ended).await {
                        Ok(executed) => {
                            let told = ExecutionJson::summary(&executed).with_files(execution.files());
                            stream::named("ended", &told)
                        }
                        Err(_) => stream::named("lost", &BareJson {}),
                    };
                    Some((event, Step::Done))
                }
            },
            Step::Done => None,
        }
    }))
}

/// Look an execution up.
#[utoipa::path(
    get, path = "/v1/executions/{id}", operation_id = "getExecution", tag = "executions",
    params(("id" = String, Path, description = "Of an execution")),
    responses((status = 200, description = "What is known of it", body = KnownJson), Asked, Named)
)]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<KnownJson>, Problem> {
    caller.check(Scope::Run)?;
    app.state.flush().await;
    let found = app.state.find(&caller.tenant, "execution", &id);
    let found = found.map_err(|error| Problem::internal(error.to_string()))?;
    let known = found.ok_or_else(|| Problem::not_found("execution"))?;
    Ok(Json(known.into()))
}

/// List executions, the newest first.
#[utoipa::path(
    get, path = "/v1/executions", operation_id = "listExecutions", tag = "executions",
    params(Page),
    responses((status = 200, description = "A part of them", body = ExecutionsJson), Asked, Queried)
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(page): Query<Page>,
) -> Result<Json<ExecutionsJson>, Problem> {
    caller.check(Scope::Run)?;
    let (before, limit) = page.bounds()?;
    app.state.flush().await;
    let found = app.state.list(&caller.tenant, "execution", before, limit);
    let found = found.map_err(|error| Problem::internal(error.to_string()))?;
    let next = page.next(&found);
    let executions = found.into_iter().map(KnownJson::from).collect();
    Ok(Json(ExecutionsJson { executions, next }))
}

/// End an execution.
#[utoipa::path(
    delete, path = "/v1/executions/{id}", operation_id = "cancelExecution", tag = "executions",
    params(("id" = String, Path, description = "Of an execution")),
    responses(
        (status = 202, description = "It is being ended"),
        (status = 204, description = "It has ended meanwhile"),
        Asked, Named,
    )
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    caller.check(Scope::Run)?;
    if app.executions.cancel(&caller.tenant, &id) {
        return Ok(StatusCode::ACCEPTED);
    }
    app.state.flush().await;
    let found = app.state.find(&caller.tenant, "execution", &id);
    match found.map_err(|error| Problem::internal(error.to_string()))? {
        // It has ended meanwhile, which is what was wanted.
        Some(_) => Ok(StatusCode::NO_CONTENT),
        None => Err(Problem::not_found("execution")),
    }
}

/// Say what would run where, and why; run nothing.
#[utoipa::path(
    post, path = "/v1/explain", operation_id = "explain", tag = "executions",
    request_body = NewExecution,
    responses((status = 200, description = "How it would be run", body = ExplainJson), Asked, Documented)
)]
pub(crate) async fn explain(
    State(app): State<App>,
    caller: Caller,
    asked: Document<NewExecution>,
) -> Result<Json<ExplainJson>, Problem> {
    caller.check(Scope::Run)?;
    let (draft, ..) = asked.value.into_draft(&caller.tenant, &app.images)?;
    let explanation = app.engine.explain(&Request::new(draft)?)?;
    Ok(Json(ExplainJson::new(explanation)))
}
