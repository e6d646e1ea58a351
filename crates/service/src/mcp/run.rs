//! Tools that run a program and wait for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, Status};
use casemate_core::request::{CodeSource, Language, RequestDraft, Workload};
use casemate_engine::session::{Inflow, SessionExec};
use casemate_engine::{Chunk, Executed, Stream};
use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Answer;
use super::output::Excerpt;
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Log, LogOf, Reading, Running, Said, Start};
use crate::shape::outcome::ExecutionJson;

/// How often whoever waits hears that it still runs.
const PROGRESS: Duration = Duration::from_secs(1);
/// Of standard input, at a time.
const PIECE: usize = 64 << 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SomeCode {
    code: String,
    language: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    stdin: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    timeout: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SomeCommand {
    command: String,
    stdin: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    timeout: Option<f64>,
}

/// What is the same for both.
struct Program {
    workload: Workload,
    stdin: Option<String>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    timeout: Duration,
}

/// As `casemate run --json`, with what was left out of the output.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    execution: ExecutionJson,
    stdout_left_out: u64,
    stderr_left_out: u64,
}

/// A program that somebody waits for. If they stop waiting, it ends.
struct Awaited {
    live: Arc<Live>,
    running: Arc<Running>,
    over: bool,
}

/// What it has written so far.
#[derive(Default)]
struct Written {
    stdout: Excerpt,
    stderr: Excerpt,
}

pub(super) async fn code(
    app: &App,
    live: &Arc<Live>,
    timeouts: (Duration, Duration),
    asked: SomeCode,
    context: &RequestContext<RoleServer>,
) -> Result<Answer, Problem> {
    let SomeCode { code, language, args, stdin, env, cwd, timeout } = asked;
    let language = language.as_deref().map(str::parse).transpose()?.unwrap_or(Language::Python);
    let workload = Workload::Code { language, source: CodeSource::Inline(code), args };
    let timeout = read_timeout(timeout, timeouts)?;
    run(app, live, Program { workload, stdin, env, cwd, timeout }, context).await
}

pub(super) async fn command(
    app: &App,
    live: &Arc<Live>,
    timeouts: (Duration, Duration),
    asked: SomeCommand,
    context: &RequestContext<RoleServer>,
) -> Result<Answer, Problem> {
    let SomeCommand { command, stdin, env, cwd, timeout } = asked;
    let argv = ["sh", "-c", &command].map(str::to_owned).to_vec();
    let workload = Workload::Command { argv };
    let timeout = read_timeout(timeout, timeouts)?;
    run(app, live, Program { workload, stdin, env, cwd, timeout }, context).await
}

fn read_timeout(asked: Option<f64>, (most, usual): (Duration, Duration)) -> Result<Duration, Problem> {
    let Some(seconds) = asked else { return Ok(usual) };
    let read = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| *timeout <= most);
    read.ok_or_else(|| {
        let hint = format!("a call may take up to {} seconds", most.as_secs_f64());
        Problem::new(Code::Invalid, format!("a timeout of {seconds} seconds cannot be had"), hint)
    })
}

async fn run(
    app: &App,
    live: &Arc<Live>,
    program: Program,
    context: &RequestContext<RoleServer>,
) -> Result<Answer, Problem> {
    let Program { workload, stdin, env, cwd, timeout } = program;
    let mut request = RequestDraft::new(workload);
    request.env = env.into_iter().collect();
    request.cwd = cwd;
    let timeout_ms = LimitKind::WallTime.check(timeout.as_millis() as u64)?;
    request.limits.set(LimitKind::WallTime, timeout_ms);
    let exec = SessionExec { request, stdin: stdin.is_some(), terminal: None };
    let running = live.start(app, Start { exec, tag: None }).await?;
    let mut awaited = Awaited { live: live.clone(), running, over: false };
    if let Some(stdin) = stdin {
        tokio::spawn(feed(awaited.running.control.stdin(), stdin));
    }
    let mut reading = Log::read(LogOf(awaited.running.clone()), true);
    let (mut written, count) = (Written::default(), AtomicU64::new(0));
    let executed = tokio::select! {
        executed = collect(&mut reading, &mut written, &count) => executed?,
        () = report(context, timeout, &count) => return Err(Problem::internal("nobody reports any more")),
        () = context.ct.cancelled() => {
            awaited.running.control.kill(Cause::Cancelled);
            collect(&mut reading, &mut written, &count).await?
        }
    };
    awaited.over = true;
    told(&executed, written, awaited.running.pid)
}

/// Until it has been read, or nobody reads it.
async fn feed(input: Inflow, text: String) {
    for piece in text.as_bytes().chunks(PIECE) {
        if input.send(piece.to_vec()).await.is_err() {
            return;
        }
    }
    input.end();
}

/// Takes what it writes, however much that is, until it has ended.
async fn collect(
    reading: &mut Reading<LogOf>,
    written: &mut Written,
    count: &AtomicU64,
) -> Result<Arc<Executed>, Problem> {
    loop {
        match reading.next().await {
            Said::Output(Chunk { stream, bytes }) => {
                count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                match stream {
                    Stream::Stdout => written.stdout.push(&bytes),
                    Stream::Stderr => written.stderr.push(&bytes),
                }
            }
            Said::Missed => {}
            Said::Ended(executed) => return Ok(executed),
            Said::Lost => return Err(Problem::internal("what became of the program is not known")),
        }
    }
}

/// Says now and then that it still runs, if the client wants to know. A client that does not listen keeps nothing from going on.
async fn report(context: &RequestContext<RoleServer>, timeout: Duration, count: &AtomicU64) {
    let Some(token) = context.meta.get_progress_token() else { return std::future::pending().await };
    let began = Instant::now();
    loop {
        tokio::time::sleep(PROGRESS).await;
        let elapsed = began.elapsed().as_secs_f64();
        let message = format!("{elapsed:.0} s, {} bytes written", count.load(Ordering::Relaxed));
        let progress = ProgressNotificationParam::new(token.clone(), elapsed)
            .with_total(timeout.as_secs_f64())
            .with_message(message);
        if context.peer.notify_progress(progress).await.is_err() {
            return std::future::pending().await;
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if !self.over {
            self.running.control.kill(Cause::Cancelled);
        }
        // It was told, or nobody asked: there is nothing to be remembered.
        self.live.forget(self.running.pid);
    }
}

fn told(executed: &Executed, written: Written, pid: u32) -> Result<Answer, Problem> {
    let Written { stdout, stderr } = written;
    let ((stdout, stdout_left_out), (stderr, stderr_left_out)) = (stdout.text(), stderr.text());
    let outcome = &executed.outcome;
    let mut lines = Vec::new();
    if !stdout.is_empty() {
        lines.push(stdout.trim_end_matches('\n').to_owned());
    }
    if !stderr.is_empty() {
        lines.push(format!("[standard error]\n{}", stderr.trim_end_matches('\n')));
    }
    if outcome.stdout_truncated || outcome.stderr_truncated {
        lines.push("[the limit of output was reached, and the rest was thrown away]".to_owned());
    }
    let others = outcome.limits_hit.iter().filter(|hit| hit.kind != LimitKind::Output);
    lines.extend(others.map(|hit| format!("[{}]", hit.describe())));
    lines.extend(outcome.denied.iter().map(|denied| format!("[denied: {denied}]")));
    if !matches!(outcome.status, Status::Exited { code: 0 }) || lines.is_empty() {
        lines.push(format!("[{}]", outcome.status.describe()));
    }
    lines.extend(hint(&outcome.status).map(|hint| format!("hint: {hint}")));
    let execution = ExecutionJson::of(executed, (stdout.into_bytes(), stderr.into_bytes())).with_pid(pid);
    let told = Told { execution, stdout_left_out, stderr_left_out };
    let structured = serde_json::to_value(told).map_err(|error| Problem::internal(error.to_string()))?;
    let failed = !matches!(outcome.status, Status::Exited { .. });
    Ok(Answer { failed, ..Answer::new(lines.join("\n"), structured) })
}

/// What a model can do about it. A program's own failure is its own to explain.
fn hint(status: &Status) -> Option<&str> {
    match status {
        Status::Exited { .. } | Status::Signaled { .. } => None,
        Status::Refused(refusal) => Some(&refusal.hint),
        Status::Failed { .. } => Some("this was not the program's fault; try again"),
        Status::Killed { cause, .. } => Some(match cause {
            Cause::Memory => {
                "do with less at a time; files count as memory, too; the session is over with all of them"
            }
            Cause::WallTime => "ask for a longer `timeout`, or do less in one call",
            Cause::CpuTime => "do with less computing; the session is over",
            Cause::Cancelled => "call again if it is still wanted",
            Cause::Egress | Cause::Policy => "the operator's policy does not allow this",
        }),
    }
}

pub(super) fn schema() -> Value {
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let count = |description: &str| json!({"type": "integer", "minimum": 0, "description": description});
    json!({
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "As the evidence knows it."},
            "session": {"type": "string"},
            "status": {
                "type": "object",
                "description": "How it ended: `exited` with a `code`, `signaled` by a `signal`, `killed` for a `cause` such as memory or \
                    wall-time, `refused` for a `reason`, or `failed`.",
                "properties": {
                    "kind": {"enum": ["exited", "signaled", "killed", "refused", "failed"]},
                    "code": {"type": "integer"},
                    "signal": {"type": "integer"},
                    "cause": {"type": "string"},
                },
                "required": ["kind"],
            },
            "stdout": {"type": "string"},
            "stderr": {"type": "string"},
            "stdout_left_out": count("Bytes between the head and the tail that are told."),
            "stderr_left_out": count("Likewise."),
            "stdout_truncated": {"type": "boolean", "description": "The limit of output was reached."},
            "stderr_truncated": {"type": "boolean"},
            "limits_hit": {"type": "array", "items": {"type": "object"}},
            "denied": texts,
            "stack": {"type": "array", "items": {"type": "string"}, "description": "The walls around it, outermost first."},
            "class": {"type": ["string", "null"]},
            "usage": {"type": "object"},
            "receipt": {"type": ["string", "null"], "description": "For `casemate evidence verify --head`."},
        },
        "required": [
            "id", "session", "status", "stdout", "stderr", "stdout_left_out", "stderr_left_out", "limits_hit", "denied", "stack", "class",
            "usage", "receipt",
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_within_what_may_be() {
        let (most, usual) = (Duration::from_secs(90), Duration::from_secs(60));
        let read = |asked| read_timeout(asked, (most, usual)).map_err(|problem| problem.code);
        assert_eq!(read(None), Ok(usual));
        assert_eq!(read(Some(1.5)), Ok(Duration::from_millis(1500)));
        assert_eq!(read(Some(90.0)), Ok(most));
        for bad in [90.1, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(read(Some(bad)), Err(Code::Invalid), "{bad}");
        }
    }
}
