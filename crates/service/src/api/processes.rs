//! Programs in a session.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use casemate_core::outcome::Cause;
use casemate_engine::session::{SessionExec, TerminalSize};
use casemate_engine::{Chunk, Stream};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::body::Document;
use super::stream;
use crate::app::{App, BODY_PATIENCE};
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Log, LogOf, Reading, Running, Said, Start};
use crate::shape::outcome::ExecutionJson;
use crate::shape::request::NewProcess;
use crate::store::Caller;
use crate::token::Scope;

type Place = Path<(String, u32)>;

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
    let size =
        |size: crate::shape::request::Terminal| TerminalSize { rows: size.rows, columns: size.columns };
    let (terminal, tag) = (asked.terminal.map(size), asked.tag.clone());
    let exec = SessionExec { request: asked.into_draft()?, stdin: stdin || terminal.is_some(), terminal };
    let running = live.start(&app, Start { exec, tag }).await?;
    if background {
        return Ok((StatusCode::CREATED, Json(described(&running))).into_response());
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
                Said::Output(Chunk { stream: Stream::Stdout, bytes }) => stdout.extend(bytes),
                Said::Output(Chunk { stream: Stream::Stderr, bytes }) => stderr.extend(bytes),
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
        let started = stream::named("started", &json!({"id": self.running.id, "pid": self.running.pid}));
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
        Said::Missed => (stream::named("missed", &json!({})), false),
        Said::Ended(executed) => (stream::named("ended", &ExecutionJson::summary(&executed)), true),
        Said::Lost => (stream::named("lost", &json!({})), true),
    }
}

pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let processes: Vec<Value> = live.processes().iter().map(|running| described(running)).collect();
    Ok(Json(json!({"processes": processes})).into_response())
}

pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Path((id, pid)): Place,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let running = app.sessions.find(&caller.tenant, &id)?.process(pid)?;
    Ok(Json(described(&running)).into_response())
}

/// What it has written and writes, as events. It goes on when the reader is gone.
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ending {
    #[serde(default)]
    end: bool,
}

/// The body, as it comes, is its standard input; with `?end=true`, all of it.
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
                    "start it with `stdin`, before it ends",
                )
            })?;
        }
    }
    if end {
        input.end();
    }
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Signal {
    signal: u8,
}

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

fn described(running: &Running) -> Value {
    let outcome = running.log.outcome().map(|executed| ExecutionJson::summary(&executed));
    json!({
        "id": running.id,
        "pid": running.pid,
        "tag": running.tag,
        "command": running.argv,
        "cwd": running.cwd,
        "terminal": running.terminal,
        "running": !running.log.is_over(),
        "outcome": outcome,
    })
}
