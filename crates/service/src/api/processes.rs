//! Programs in a session.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use casemate_core::outcome::Cause;
use casemate_engine::session::{SessionExec, TerminalSize};
use casemate_engine::{Chunk, Stream};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::time::timeout;
use utoipa::IntoParams;

use super::body::Document;
use super::document::{Asked, Documented, InSession, Named, Queried, Sent};
use super::extract::{Path, Query};
use super::page::Page;
use super::stream;
use crate::app::{App, BODY_PATIENCE};
use crate::executions::check_collected;
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Log, LogOf, Reading, Running, Said, Start};
use crate::shape::event::{self, BareJson, StartedJson};
use crate::shape::listed::{ProcessJson, ProcessesJson};
use crate::shape::outcome::ExecutionJson;
use crate::shape::request::{NewProcess, Signal, Terminal};
use crate::shape::words;
use crate::store::Caller;
use crate::token::Scope;

/// What programs with a terminal take it for, unless somebody says otherwise: what those of today are.
const TERMINAL: &str = "xterm-256color";

type Place = Path<(String, u32)>;

/// Start a program in a session.
///
/// Answers when it has ended; with `stream`, with events as things happen; with `background`, when it has started. The first program of
/// a session is held to the session's posture before it begins. Whoever waits for a program and closes the connection ends it.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/processes", operation_id = "createProcess", tag = "processes",
    params(("id" = String, Path, description = "Of a session")),
    request_body = NewProcess,
    responses(
        (status = 200, description = "What came of it", content((ExecutionJson = "application/json"), (event::Run = "text/event-stream"))),
        (status = 201, description = "It runs in the background", body = ProcessJson),
        Asked, Documented, InSession,
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    asked: Document<NewProcess>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let asked = asked.value;
    let (streamed, background, stdin) = (asked.stream, asked.background, asked.stdin);
    if !background && !streamed && stdin {
        let hint = "start it with `background` or `stream`, and write to it then";
        return Err(Problem::new(Code::Invalid, "nobody could write to its standard input", hint));
    }
    if !background && !streamed && asked.terminal.is_some() {
        let hint = "start it with `background`, and attach to its terminal then";
        return Err(Problem::new(Code::Invalid, "nobody could sit at its terminal", hint));
    }
    let size = |Terminal { rows, columns }| TerminalSize { rows, columns };
    let (terminal, tag) = (asked.terminal.map(size), asked.tag.clone());
    let mut request = asked.into_draft()?;
    if terminal.is_some() && request.env.iter().all(|(name, _)| name != "TERM") {
        request.env.push(("TERM".to_owned(), TERMINAL.to_owned()));
    }
    let exec = SessionExec { request, stdin: stdin || terminal.is_some(), terminal };
    let running = live.start(&app, Start { exec, tag }).await?;
    if background {
        return Ok((StatusCode::CREATED, Json(ProcessJson::from(&*running))).into_response());
    }
    // Whoever waits for it is whom it runs for.
    let reading = Following::new(live, running);
    match streamed {
        true => Ok(reading.events()),
        false => reading.finish().await,
    }
}

/// A program and somebody who reads what it writes. If they go away, it ends.
struct Following {
    _live: Arc<Live>,
    running: Arc<Running>,
    reading: Reading<LogOf>,
    over: bool,
}

impl Following {
    fn new(live: Arc<Live>, running: Arc<Running>) -> Following {
        let reading = Log::read(LogOf(running.clone()), true);
        Following { _live: live, running, reading, over: false }
    }

    async fn finish(mut self) -> Result<Response, Problem> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.reading.next().await {
                Said::Output(Chunk { stream, bytes }) => {
                    check_collected(stdout.len() + stderr.len() + bytes.len())?;
                    match stream {
                        Stream::Stdout => stdout.extend(bytes),
                        Stream::Stderr => stderr.extend(bytes),
                    }
                }
                Said::Missed => {}
                Said::Ended(executed) => {
                    self.over = true;
                    let told = ExecutionJson::of(&executed, (stdout, stderr)).with_pid(self.running.pid);
                    return Ok(Json(told).into_response());
                }
                Said::Lost => return Err(Problem::internal("what became of the program is not known")),
            }
        }
    }

    fn events(self) -> Response {
        let started = stream::named(
            "started",
            &StartedJson { id: self.running.id.clone(), pid: Some(self.running.pid) },
        );
        let rest = futures_util::stream::unfold(Some(self), |following| async {
            let mut following = following?;
            let (event, over) = told(following.reading.next().await);
            following.over = over;
            Some((event, (!over).then_some(following)))
        });
        use futures_util::StreamExt;
        stream::sse(futures_util::stream::once(async { started }).chain(rest))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if !self.over {
            self.running.control.kill(Cause::Cancelled);
        }
    }
}

/// An event, and whether it is the last.
fn told(said: Said) -> (Event, bool) {
    match said {
        Said::Output(chunk) => (stream::output(&chunk), false),
        Said::Missed => (stream::named("missed", &BareJson {}), false),
        Said::Ended(executed) => (stream::named("ended", &ExecutionJson::summary(&executed)), true),
        Said::Lost => (stream::named("lost", &BareJson {}), true),
    }
}

/// List the programs of a session.
///
/// Those that have ended are forgotten when there are many.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/processes", operation_id = "listProcesses", tag = "processes",
    params(("id" = String, Path, description = "Of a session"), Page),
    responses((status = 200, description = "A part of them", body = ProcessesJson), Asked, Queried, Named)
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<ProcessesJson>, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let (part, next) = page.cut(live.processes(), |running| format!("{:010}", running.pid))?;
    let processes = part.iter().map(|running| ProcessJson::from(&**running)).collect();
    Ok(Json(ProcessesJson { processes, next }))
}

/// Look a program up.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/processes/{pid}", operation_id = "getProcess", tag = "processes",
    params(("id" = String, Path, description = "Of a session"), ("pid" = u32, Path, description = "Of a program in it")),
    responses((status = 200, description = "What is known of it", body = ProcessJson), Asked, Named)
)]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path((id, pid)): Place,
) -> Result<Json<ProcessJson>, Problem> {
    caller.check(Scope::Run)?;
    let running = app.sessions.find(&caller.tenant, &id)?.process(pid)?;
    Ok(Json((&*running).into()))
}

/// Follow what a program has written and writes, as events.
///
/// It goes on when the reader is gone. `missed` comes first if the beginning was forgotten.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/processes/{pid}/output", operation_id = "followProcess", tag = "processes",
    params(("id" = String, Path, description = "Of a session"), ("pid" = u32, Path, description = "Of a program in it")),
    responses((status = 200, description = "Events, until it has ended", body = event::Run, content_type = "text/event-stream"), Asked, Named)
)]
pub(crate) async fn output(
    State(app): State<App>,
    caller: Caller,
    Path((id, pid)): Place,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let running = app.sessions.find(&caller.tenant, &id)?.process(pid)?;
    let reading = Log::read(LogOf(running), true);
    Ok(stream::sse(futures_util::stream::unfold(Some(reading), |reading| async {
        let mut reading = reading?;
        let (event, over) = told(reading.next().await);
        Some((event, (!over).then_some(reading)))
    })))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Ending {
    /// Nothing follows.
    #[serde(default)]
    #[param(required = false)]
    end: bool,
}

/// Write to a program's standard input.
///
/// The body, as it comes.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/processes/{pid}/stdin", operation_id = "writeStdin", tag = "processes",
    params(("id" = String, Path, description = "Of a session"), ("pid" = u32, Path, description = "Of a program in it"), Ending),
    request_body(content = words::Bytes, content_type = "application/octet-stream", description = "Any bytes"),
    responses((status = 204, description = "It is on its way"), Asked, Queried, Sent, InSession)
)]
pub(crate) async fn stdin(
    State(app): State<App>,
    caller: Caller,
    Path((id, pid)): Place,
    Query(Ending { end }): Query<Ending>,
    mut body: Body,
) -> Result<StatusCode, Problem> {
    caller.check(Scope::Run)?;
    let running = app.sessions.find(&caller.tenant, &id)?.process(pid)?;
    let input = running.control.stdin();
    let slow =
        |_| Problem::new(Code::TooSlow, "the body did not arrive in time", "send it without long pauses");
    while let Some(frame) = timeout(BODY_PATIENCE, body.frame()).await.map_err(slow)? {
        let frame = frame.map_err(|error| {
            Problem::new(Code::Malformed, format!("the body ended early: {error}"), "send all of it")
        })?;
        if let Ok(bytes) = frame.into_data()
            && !bytes.is_empty()
        {
            input.send(bytes.to_vec()).await.map_err(|_| {
                Problem::new(
                    Code::Ended,
                    "nobody reads its standard input",
                    "start it with `stdin`, and write before it is ended or the program is over",
                )
            })?;
        }
    }
    if end {
        input.end();
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Send a signal to a program, and to everything that it has started.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/processes/{pid}/signal", operation_id = "signalProcess", tag = "processes",
    params(("id" = String, Path, description = "Of a session"), ("pid" = u32, Path, description = "Of a program in it")),
    request_body = Signal,
    responses((status = 204, description = "It is on its way"), Asked, Documented, Named)
)]
pub(crate) async fn signal(
    State(app): State<App>,
    caller: Caller,
    Path((id, pid)): Place,
    asked: Document<Signal>,
) -> Result<StatusCode, Problem> {
    caller.check(Scope::Run)?;
    let running = app.sessions.find(&caller.tenant, &id)?.process(pid)?;
    if !(1..=64).contains(&asked.value.signal) {
        return Err(Problem::new(
            Code::Invalid,
            "there is no such signal",
            "signals have numbers from 1 to 64",
        ));
    }
    running.control.signal(asked.value.signal);
    Ok(StatusCode::NO_CONTENT)
}

/// End a program, and everything that it has started.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}/processes/{pid}", operation_id = "killProcess", tag = "processes",
    params(("id" = String, Path, description = "Of a session"), ("pid" = u32, Path, description = "Of a program in it")),
    responses((status = 202, description = "It is being ended"), Asked, Named)
)]
pub(crate) async fn kill(
    State(app): State<App>,
    caller: Caller,
    Path((id, pid)): Place,
) -> Result<StatusCode, Problem> {
    caller.check(Scope::Run)?;
    let running = app.sessions.find(&caller.tenant, &id)?.process(pid)?;
    running.control.kill(Cause::Cancelled);
    Ok(StatusCode::ACCEPTED)
}
