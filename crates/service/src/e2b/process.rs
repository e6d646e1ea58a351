//! `process.Process`: programs of a sandbox, and terminals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, Status};
use casemate_core::request::{RequestDraft, Workload};
use casemate_engine::session::{SessionExec, TerminalSize};
use casemate_engine::{Chunk, Executed, Stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::connect::{Answer, Asked, Envelopes, Patience, Said, Unary, answer, failed};
use super::{Sandbox, User, place};
use crate::app::App;
use crate::interpreter;
use crate::problem::{Code, Problem};
use crate::sessions::{self, Live, Log, LogOf, Reading, Running, Start};

const SIGKILL: u8 = 9;
const SIGTERM: u8 = 15;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct NewProcess {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pty {
    size: Size,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    #[serde(default)]
    cols: u16,
    #[serde(default)]
    rows: u16,
}

/// A program, by its number or its tag.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Selector {
    Pid(u32),
    Tag(String),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Input {
    Stdin(String),
    Pty(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selected {
    process: Selector,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Empty {}

/// `Start`
pub(super) async fn start(
    axum::extract::State(app): axum::extract::State<App>,
    Sandbox(live): Sandbox,
    _: User,
    patience: Patience,
    Asked(asked): Asked<NewProcess>,
) -> Response {
    match begin(&app, &live, asked, patience.timeout).await {
        Ok(running) => Following::new(live, running, true, &patience).answer(),
        Err(problem) => failed(problem),
    }
}

async fn begin(
    app: &App,
    live: &Arc<Live>,
    asked: NewProcess,
    timeout: Option<Duration>,
) -> Result<Arc<Running>, Problem> {
    let Config { cmd, args, envs, cwd } = asked.process;
    let argv = std::iter::once(cmd).chain(args).collect();
    let mut request = RequestDraft::new(Workload::Command { argv });
    request.env = envs.into_iter().collect();
    request.cwd = cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| place(&cwd));
    let longest = live.session.limits().get(LimitKind::WallTime).map_or(u64::MAX, |bound| bound.value);
    let millis = timeout.map(|timeout| (timeout.as_millis() as u64).max(LimitKind::WallTime.range().min));
    // Longer than the session is no limit.
    if let Some(millis) = millis.filter(|millis| *millis < longest) {
        request.limits.set(LimitKind::WallTime, millis);
    }
    let terminal = asked.pty.map(|pty| pty.size.terminal());
    let stdin = asked.stdin.unwrap_or(true) || terminal.is_some();
    live.start(app, Start { exec: SessionExec { request, stdin, terminal }, tag: asked.tag }).await
}

/// `Connect`: what it writes from now on.
pub(super) async fn connect(
    Sandbox(live): Sandbox,
    patience: Patience,
    Asked(asked): Asked<Selected>,
) -> Response {
    match find(&live, &asked.process) {
        Ok(running) => Following::new(live, running, false, &patience).answer(),
        Err(problem) => failed(problem),
    }
}

/// Somebody who reads what a program writes. It goes on without them.
struct Following {
    live: Arc<Live>,
    running: Arc<Running>,
    reading: Reading<LogOf>,
    heartbeat: Duration,
    deadline: Option<Instant>,
    step: Step,
}

enum Step {
    Begin,
    Follow,
    End,
    Done,
}

impl Following {
    fn new(live: Arc<Live>, running: Arc<Running>, from_the_start: bool, patience: &Patience) -> Following {
        let reading = Log::read(LogOf(running.clone()), from_the_start);
        let deadline = patience.timeout.map(|timeout| Instant::now() + timeout);
        Following { live, running, reading, heartbeat: patience.heartbeat, deadline, step: Step::Begin }
    }

    fn answer(self) -> Response {
        answer(futures_util::stream::unfold(self, |mut following| async {
            let said = following.next().await?;
            Some((said, following))
        }))
    }

    async fn next(&mut self) -> Option<Said> {
        match self.step {
            Step::Begin => {
                self.step = Step::Follow;
                Some(event(json!({"start": {"pid": self.running.pid}})))
            }
            Step::Follow => Some(self.follow().await),
            Step::End => {
                self.step = Step::Done;
                Some(Said::Over)
            }
            Step::Done => None,
        }
    }

    async fn follow(&mut self) -> Said {
        let heartbeat = Instant::now() + self.heartbeat;
        let said = tokio::select! {
            said = self.reading.next() => said,
            () = sleep_until(heartbeat) => return event(json!({"keepalive": {}})),
            () = sleep_until(self.deadline.unwrap_or(heartbeat)), if self.deadline.is_some() => {
                self.step = Step::Done;
                return Said::Failed(late().into());
            }
        };
        match said {
            sessions::Said::Output(chunk) => event(json!({"data": self.data(&chunk)})),
            // Whoever comes later hears only what is written from then on.
            sessions::Said::Missed => event(json!({"keepalive": {}})),
            sessions::Said::Ended(executed) => match self.end(&executed) {
                Ok(end) => {
                    self.step = Step::End;
                    event(json!({"end": end}))
                }
                Err(problem) => {
                    self.step = Step::Done;
                    Said::Failed(problem.into())
                }
            },
            sessions::Said::Lost => {
                self.step = Step::Done;
                Said::Failed(Problem::internal("what became of the program is not known").into())
            }
        }
    }

    fn data(&self, chunk: &Chunk) -> Value {
        let bytes = STANDARD.encode(&chunk.bytes);
        match chunk.stream {
            _ if self.running.terminal => json!({"pty": bytes}),
            Stream::Stdout => json!({"stdout": bytes}),
            Stream::Stderr => json!({"stderr": bytes}),
        }
    }

    /// `Err`: it did not end by itself, and its client waits for something else than an exit code.
    fn end(&self, executed: &Executed) -> Result<Value, Problem> {
        let status = &executed.outcome.status;
        let words = status.describe();
        match status {
            Status::Exited { code } => {
                let mut end =
                    json!({"exitCode": code, "exited": true, "status": format!("exit status {code}")});
                if *code != 0 {
                    end["error"] = json!(format!("exit status {code}"));
                }
                Ok(end)
            }
            Status::Killed { .. } | Status::Failed { .. } if self.live.session.outcome().is_some() => Err(
                Problem::new(Code::Ended, format!("the sandbox has ended: {words}"), "create another one"),
            ),
            Status::Killed { cause: Cause::WallTime, .. } if self.deadline.is_some() => Err(late()),
            Status::Signaled { .. } | Status::Killed { .. } => {
                Ok(json!({"exitCode": -1, "exited": false, "status": words, "error": words}))
            }
            // Only now was it found that it cannot be executed.
            Status::Refused(refusal) => Err(refusal.clone().into()),
            Status::Failed { .. } => Err(Problem::internal(words)),
        }
    }
}

fn event(event: Value) -> Said {
    Said::Message(json!({"event": event}))
}

fn late() -> Problem {
    Problem::new(Code::TooSlow, "the time that was given is over", "give more, or 0 for no limit")
}

/// `List`: those that run.
pub(super) async fn list(Sandbox(live): Sandbox, _: Unary<Empty>) -> Answer {
    let running = live.processes();
    let shown = running.iter().filter(|running| is_theirs(running)).map(|running| {
        let (cmd, args) =
            running.argv.split_first().map_or(("", &[][..]), |(cmd, args)| (cmd.as_str(), args));
        let mut shown = json!({"pid": running.pid, "config": {"cmd": cmd, "args": args}});
        if let Some(cwd) = &running.cwd {
            shown["config"]["cwd"] = json!(cwd);
        }
        if let Some(tag) = &running.tag {
            shown["tag"] = json!(tag);
        }
        shown
    });
    Ok(Json(json!({"processes": shown.collect::<Vec<Value>>()})))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Updated {
    process: Selector,
    pty: Option<Pty>,
}

/// `Update`: the size of its terminal.
pub(super) async fn update(Sandbox(live): Sandbox, Unary(asked): Unary<Updated>) -> Answer {
    let running = find(&live, &asked.process)?;
    if let Some(pty) = asked.pty {
        if !running.terminal {
            let hint = "only what was started with a terminal has a size";
            return Err(Problem::new(Code::Invalid, "the program has no terminal", hint).into());
        }
        running.control.resize(pty.size.terminal());
    }
    done()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewInput {
    process: Selector,
    input: Input,
}

/// `SendInput`
pub(super) async fn send_input(Sandbox(live): Sandbox, Unary(asked): Unary<NewInput>) -> Answer {
    feed(&*find(&live, &asked.process)?, &asked.input).await?;
    done()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Streamed {
    Start(Selected),
    Data(StreamedData),
    Keepalive(Empty),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamedData {
    input: Input,
}

/// `StreamInput`: the same, in one request.
pub(super) async fn stream_input(Sandbox(live): Sandbox, mut messages: Envelopes) -> Response {
    let fed = async {
        let mut running = None;
        while let Some(message) = messages.next().await? {
            match (message, &running) {
                (Streamed::Start(Selected { process }), None) => running = Some(find(&live, &process)?),
                (Streamed::Data(StreamedData { input }), Some(running)) => feed(running, &input).await?,
                (Streamed::Keepalive(_), _) => {}
                _ => {
                    let hint = "name the program first, and once";
                    return Err(Problem::new(Code::Invalid, "the stream does not begin with `start`", hint));
                }
            }
        }
        Ok(())
    };
    match fed.await {
        Ok(()) => answer(futures_util::stream::iter([Said::Message(json!({})), Said::Over])),
        Err(problem) => failed(problem),
    }
}

async fn feed(running: &Running, input: &Input) -> Result<(), Problem> {
    let ((Input::Stdin(text), terminal) | (Input::Pty(text), terminal)) = (input, running.terminal);
    if matches!(input, Input::Pty(_)) != terminal {
        let hint = "`pty` is for programs with a terminal, `stdin` for the others";
        return Err(Problem::new(Code::Invalid, "the program takes no input of this kind", hint));
    }
    let bytes = STANDARD.decode(text);
    let bytes = bytes.map_err(|_| Problem::new(Code::Malformed, "the input is not base64", "encode it"))?;
    if bytes.is_empty() {
        return Ok(());
    }
    running.control.stdin().send(bytes).await.map_err(|_| {
        Problem::new(
            Code::Invalid,
            "nobody reads its standard input",
            "start it with `stdin=True`, before it ends",
        )
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signal {
    process: Selector,
    signal: String,
}

/// `SendSignal`
pub(super) async fn send_signal(Sandbox(live): Sandbox, Unary(asked): Unary<Signal>) -> Answer {
    let signal = match asked.signal.as_str() {
        "SIGNAL_SIGKILL" => SIGKILL,
        "SIGNAL_SIGTERM" => SIGTERM,
        other => {
            let hint = "use SIGNAL_SIGKILL or SIGNAL_SIGTERM";
            return Err(Problem::new(Code::Invalid, format!("there is no signal {other:?}"), hint).into());
        }
    };
    find(&live, &asked.process)?.control.signal(signal);
    done()
}

/// `CloseStdin`
pub(super) async fn close_stdin(Sandbox(live): Sandbox, Unary(asked): Unary<Selected>) -> Answer {
    let running = find(&live, &asked.process)?;
    if running.terminal {
        let hint = "write the end-of-file character (4) instead";
        return Err(Problem::new(Code::Invalid, "the input of a terminal cannot be closed", hint).into());
    }
    running.control.stdin().end();
    done()
}

fn done() -> Answer {
    Ok(Json(json!({})))
}

fn find(live: &Live, selector: &Selector) -> Result<Arc<Running>, Problem> {
    let is_it = |running: &Arc<Running>| match selector {
        Selector::Pid(pid) => running.pid == *pid,
        Selector::Tag(tag) => running.tag.as_deref() == Some(tag),
    };
    let found = live.processes().into_iter().find(|running| is_theirs(running) && is_it(running));
    found.ok_or_else(|| Problem::not_found("process"))
}

/// Interpreters are not what they call processes.
fn is_theirs(running: &Running) -> bool {
    !running.log.is_over() && running.tag.as_deref() != Some(interpreter::TAG)
}

impl Size {
    fn terminal(self) -> TerminalSize {
        TerminalSize { rows: self.rows, columns: self.cols }
    }
}
