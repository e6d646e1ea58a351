//! `casemate run`: one request, one cell, one receipt.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::Path;

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, Outcome, Refusal, Status};
use casemate_core::request::{GuestPath, Request, Stdin};
use casemate_core::route::ImageKind;
use casemate_engine::{Agents, Ahead, EarlyLauncher, Engine, EvidenceError, Executed, Io};
use casemate_service::shape::outcome::ExecutionJson;
use tokio::sync::watch;

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::files::{self, Landing, Remarks};
use crate::input::{self, Input};
use crate::output::{self, Collected, Mode, Output, Wait};
use crate::render::terminal;
use crate::signals::Signals;
use crate::{exit, home, request};

/// What most runs need. Another image is made when it is asked for.
const AHEAD: Ahead = Ahead::One(ImageKind::Host);

/// Starts a launcher if that is what these words are going to need: it gets ready while we find out what for. If it cannot
/// be started, the engine tries again and says why.
pub(crate) fn start_early(words: &[OsString]) -> Option<EarlyLauncher> {
    let is_run = words.get(1).is_some_and(|word| word == "run");
    is_run.then(|| EarlyLauncher::start(&Agents::embedded(), AHEAD).ok()).flatten()
}

pub(crate) async fn run(
    args: &RunArgs,
    policy: Option<&Path>,
    early: Option<EarlyLauncher>,
) -> Result<u8, Failure> {
    // Before there can be a cell: from here on a signal ends that first and us afterwards.
    let mut signals = Signals::catch()?;
    // The request is put together while the launcher gets ready.
    let (opened, prepared) = tokio::join!(home::open(policy, AHEAD, early), async { prepare(args) });
    let engine = match opened {
        Ok(engine) => engine,
        Err(failure) => return not_opened(args, failure),
    };
    let ran = match prepared {
        Ok(prepared) => execute(&engine, prepared, &mut signals).await,
        Err(refusal) => Ran::nothing(engine.refuse(refusal).await),
    };
    // Lets the thread that writes know that nothing more comes, while we are busy with the rest.
    tokio::task::yield_now().await;
    // The cell is gone and the records are on disk before anything depends on who reads our output.
    let leaving = engine.shutdown().await;
    let code = finish(ran, args, &mut signals).await?;
    leaving?;
    Ok(code)
}

/// A request with everything attached to it.
struct Prepared {
    request: Request,
    io: Io,
    remarks: Vec<String>,
    landed: Option<(Remarks, Vec<GuestPath>)>,
    output: Output,
    cancel: watch::Sender<bool>,
}

/// An execution that ended, and its output, which may still be on its way.
struct Ran {
    executed: Executed,
    output: Pending,
    remarks: Vec<String>,
}

enum Pending {
    Nothing,
    Output(Output),
    /// We were told to stop more than once: nobody waits for a reader, and nothing more is said.
    CutOff,
}

fn prepare(args: &RunArgs) -> Result<Prepared, Refusal> {
    let asked = request::build(args, input::attached())?;
    let request = asked.request;
    let gathered = files::gather(&asked.inputs, request.files_in())?;
    let landing = match request.files_out() {
        [] => None,
        guests => Some(Landing::open(guests, &asked.outputs)?),
    };
    let landed = landing.as_ref().map(|landing| (landing.remarks(), request.files_out().to_vec()));
    let mut io = Io { image: asked.image, inputs: gathered.inputs, ..Io::default() };
    if request.stdin() == Stdin::Provided {
        io.stdin = Some(Box::new(Input::default()));
    }
    if let Some(landing) = landing {
        io.outbox = Some(Box::new(landing));
    }
    let (cancel, cancelled) = watch::channel(false);
    let mode = if args.json { Mode::Collect(most_output(&request)) } else { Mode::Stream };
    let (sender, output) = output::start(mode, cancel.clone());
    io.output = Some(sender);
    io.cancel = Some(cancelled);
    Ok(Prepared { request, io, remarks: gathered.remarks, landed, output, cancel })
}

async fn execute(engine: &Engine, prepared: Prepared, signals: &mut Signals) -> Ran {
    let Prepared { request, io, mut remarks, landed, output, cancel } = prepared;
    let execution = engine.execute(request, io);
    tokio::pin!(execution);
    // However often we are told to stop, the cell is taken down and its record closed first. Whoever insists does
    // not wait for the reader of the output either.
    let mut told = 0;
    let executed = loop {
        tokio::select! {
            executed = &mut execution => break executed,
            () = signals.next() => {
                told += 1;
                let _ = cancel.send(true);
                if told > 1 {
                    output.cut_off();
                }
            }
        }
    };
    let output = if told > 1 { Pending::CutOff } else { Pending::Output(output) };
    if let (Some((landed, guests)), true) = (landed, ended_by_itself(&executed.outcome.status)) {
        remarks.extend(landed.lines(&guests));
    }
    Ran { executed, output, remarks }
}

/// Writes out what is left of the output, then what there is to say about the run.
async fn finish(ran: Ran, args: &RunArgs, signals: &mut Signals) -> Result<u8, Failure> {
    let Ran { executed, output, remarks } = ran;
    let status = &executed.outcome.status;
    let wait = match status {
        Status::Killed { .. } => Wait::WhileReading,
        _ => Wait::UntilRead,
    };
    let written = match output {
        Pending::Nothing => Some(Ok(Collected::default())),
        Pending::Output(output) => output.finish(wait, signals.next()).await,
        Pending::CutOff => None,
    };
    let collected = match written {
        Some(Ok(collected)) => collected,
        // A limit that ended the run is the better answer, even if the reader went away as well.
        Some(Err(e)) if e.kind() == ErrorKind::BrokenPipe && ended_by_limit(status) => Collected::default(),
        Some(Err(e)) => return Err(e.into()),
        // Nobody reads the output. Words about the run are for whoever still reads standard error.
        None => {
            if output::is_writable(std::io::stderr()) {
                explain_end(&executed);
            }
            return Ok(exit::of_status(status));
        }
    };
    terminal::remark(remarks);
    let code = match executed.evidence_error {
        None => exit::of_status(status),
        Some(_) => exit::NOT_RUN,
    };
    if args.json {
        print_json(&ExecutionJson::new(executed, (collected.stdout, collected.stderr)))?;
    } else {
        explain_end(&executed);
    }
    Ok(code)
}

/// Says what the exit code cannot. A plain exit needs no words.
fn explain_end(executed: &Executed) {
    let outcome = &executed.outcome;
    let Outcome { status, limits_hit, stdout_truncated, stderr_truncated, .. } = outcome;
    let mut remarks: Vec<String> = limits_hit.iter().map(|hit| hit.describe()).collect();
    let cut = *stdout_truncated || *stderr_truncated;
    if cut && !limits_hit.iter().any(|hit| hit.kind == LimitKind::Output) {
        remarks.push("the output was cut".to_owned());
    }
    if matches!(status, Status::Killed { .. }) {
        remarks.push(status.describe());
    }
    terminal::remark(remarks);
    match (status, &executed.evidence_error) {
        (_, Some(error)) => terminal::report(&unrecorded(outcome, error)),
        (Status::Refused(refusal), _) => terminal::report(&refusal.clone().into()),
        (Status::Failed { reason }, _) => {
            terminal::report(&Failure::Told { message: reason.clone(), hint: None });
        }
        (Status::Exited { .. } | Status::Signaled { .. } | Status::Killed { .. }, None) => {}
    }
}

fn unrecorded(outcome: &Outcome, EvidenceError { reason, hint }: &EvidenceError) -> Failure {
    let message = match outcome.stack {
        None => format!("nothing was run, because it could not be recorded: {reason}"),
        Some(_) => {
            format!("the run ended, but its record could not be written, so it is not proved: {reason}")
        }
    };
    Failure::Told { message, hint: hint.clone() }
}

/// Without an engine there is no record and no run; a program that reads JSON gets its object all the same.
fn not_opened(args: &RunArgs, failure: Failure) -> Result<u8, Failure> {
    if let (true, Failure::Told { message, .. }) = (args.json, &failure) {
        let status = Status::Failed { reason: message.clone() };
        let executed =
            Executed { outcome: Outcome::without_cell("", status), receipt: None, evidence_error: None };
        print_json(&ExecutionJson::new(executed, Default::default()))?;
    }
    Err(failure)
}

fn print_json(value: &ExecutionJson) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}

/// The engine cuts the output; this only bounds what we keep of it.
fn most_output(request: &Request) -> u64 {
    request.limits().get(LimitKind::Output).unwrap_or(LimitKind::Output.range().cap)
}

fn ended_by_limit(status: &Status) -> bool {
    matches!(status, Status::Killed { cause, .. } if *cause != Cause::Cancelled)
}

fn ended_by_itself(status: &Status) -> bool {
    matches!(status, Status::Exited { .. } | Status::Signaled { .. })
}

impl Ran {
    fn nothing(executed: Executed) -> Ran {
        Ran { executed, output: Pending::Nothing, remarks: Vec::new() }
    }
}
