//! One execution in one cell: put files, let it go, listen, measure, get files, destroy.

use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, LimitHit, Refusal, Status, Usage};
use casemate_core::plan::Plan;
use casemate_core::request::{CodeSource, Language, Workload};
use casemate_wire::guest::{Exec, Executable, Inherits, Input, ToGuest, ToHost};
use casemate_wire::launch::Attached;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::evidence;
use crate::guest::{Channel, ChannelError, Event, GuestChannel};
use crate::io::{Chunk, Io};
use crate::transfer;
use crate::wall::{Begun, Cell, Control, Hold, Job, Places, WallError};
use crate::watch::{Watch, cancelled};

/// How long a cell may take from the request to a held payload. A launch takes milliseconds.
const SETUP_LIMIT: Duration = Duration::from_secs(30);

pub(crate) const EXEC: u32 = 1;
pub(crate) const STDIN: u32 = 1;
pub(crate) const STDOUT: u32 = 2;
pub(crate) const STDERR: u32 = 3;

/// What is known about an execution from outside when it is over.
#[derive(Default)]
pub(crate) struct Ran {
    pub(crate) limits_hit: Vec<LimitHit>,
    pub(crate) usage: Usage,
    pub(crate) denied: Vec<String>,
    pub(crate) stdout_truncated: bool,
    pub(crate) stderr_truncated: bool,
    pub(crate) timings: Timings,
    pub(crate) steps: Vec<(String, u32)>,
    /// The posture, as the receipt shows it.
    pub(crate) observed: Option<Value>,
    /// What cannot be read from outside, likewise.
    pub(crate) applied: Option<Value>,
    pub(crate) digests: Digests,
    /// Output that the receiver had not taken when the cell was gone.
    pub(crate) undelivered: Vec<Chunk>,
}

/// SHA-256 of what went in and came out, under the names that the receipt uses.
#[derive(Default)]
pub(crate) struct Digests(pub(crate) Vec<(String, [u8; 32])>);

impl Digests {
    pub(crate) fn add(&mut self, name: impl Into<String>, digest: Sha256) {
        self.0.push((name.into(), digest.finalize().into()));
    }
}

/// Phases in the order in which they happened.
pub(crate) struct Timings {
    last: Instant,
    pub(crate) phases: Vec<(&'static str, Duration)>,
}

impl Default for Timings {
    fn default() -> Self {
        Timings { last: Instant::now(), phases: Vec::new() }
    }
}

impl Timings {
    pub(crate) fn mark(&mut self, phase: &'static str) {
        let now = Instant::now();
        self.phases.push((phase, now - self.last));
        self.last = now;
    }
}

/// The numbers of a payload and its streams.
#[derive(Clone, Copy)]
pub(crate) struct Streams {
    pub(crate) exec: u32,
    pub(crate) stdin: u32,
    pub(crate) stdout: u32,
    pub(crate) stderr: u32,
}

/// Those of the only one in a cell.
const ONLY: Streams = Streams { exec: EXEC, stdin: STDIN, stdout: STDOUT, stderr: STDERR };

/// Why an execution has no exit status.
pub(crate) enum Trouble {
    Refused(Refusal),
    Failed(String),
    /// The caller lost interest before the payload began.
    Cancelled,
}

impl From<Trouble> for Status {
    fn from(trouble: Trouble) -> Status {
        match trouble {
            Trouble::Refused(refusal) => Status::Refused(refusal),
            Trouble::Failed(reason) => Status::Failed { reason },
            Trouble::Cancelled => Status::Killed { cause: Cause::Cancelled, limit: None, peak: None },
        }
    }
}

impl From<WallError> for Trouble {
    fn from(error: WallError) -> Trouble {
        match error {
            WallError::Failed(reason) => Trouble::Failed(reason),
            WallError::Refused(refusal) => Trouble::Refused(refusal),
        }
    }
}

impl From<ChannelError> for Trouble {
    fn from(error: ChannelError) -> Trouble {
        Trouble::Failed(error.to_string())
    }
}

/// Runs `plan` in `cell`. Whatever happens, the cell is destroyed.
pub(crate) async fn run(mut cell: Cell, plan: &Plan, mut io: Io, ran: &mut Ran) -> Result<Status, Trouble> {
    let begun = begin(&mut cell, plan, &mut io, ran).await;
    let ended = match begun {
        Ok(early) => {
            let mut watch = Watch::new(plan, &mut io, ran);
            let ended = watch.follow(&mut cell, early).await;
            watch.close(&mut cell, ended).await
        }
        Err(trouble) => {
            // The counters may know better why the setup died.
            let oom = cell.control.finish().await.ok().and_then(|counters| counters.oom_kills).unwrap_or(0);
            match oom {
                0 => Err(trouble),
                _ => Ok(killed(plan, Cause::Memory, None)),
            }
        }
    };
    ran.timings.mark("finish");
    ended
}

/// Up to the point where the payload runs. Returns what it had to say meanwhile.
async fn begin(cell: &mut Cell, plan: &Plan, io: &mut Io, ran: &mut Ran) -> Result<Vec<Event>, Trouble> {
    // Out of the block, or it would share `io` across an await, and executions could not move between threads.
    let (inputs, stdin) = (std::mem::take(&mut io.inputs), io.stdin.is_some());
    let prepare = async {
        match &cell.job {
            Job::Program { .. } => begin_program(cell, plan, inputs, stdin, ran).await,
            Job::Call(_) => begin_call(cell, plan, inputs, stdin, ran).await,
        }
    };
    let mut cancel = io.cancel.clone();
    let prepared = tokio::select! {
        prepared = timeout(SETUP_LIMIT, prepare) => prepared,
        () = cancelled(&mut cancel) => return Err(Trouble::Cancelled),
    };
    match prepared {
        Ok(prepared) => prepared,
        Err(_) => Err(Trouble::Failed(format!("the cell was not ready within {SETUP_LIMIT:?}"))),
    }
}

/// The guest of a new cell gets everything that it needs to start the payload.
async fn begin_program(
    cell: &mut Cell,
    plan: &Plan,
    inputs: Vec<crate::io::Input>,
    stdin: bool,
    ran: &mut Ran,
) -> Result<Vec<Event>, Trouble> {
    configure(cell);
    let code = code_file(plan);
    if !inputs.is_empty() || code.is_some() {
        transfer::put(cell, inputs, code, &mut ran.digests).await?;
        ran.timings.mark("files in");
    }
    let (begun, early) = start(cell, plan, stdin).await?;
    ran.timings.mark("launch");
    // Written down while the payload runs.
    ran.observed = Some(evidence::observed(&begun, &cell.runtime));
    ran.steps = begun.steps;
    if let Job::Program { config, .. } = &cell.job {
        ran.applied = Some(evidence::applied(config));
    }
    Ok(early)
}

pub(crate) fn configure(cell: &mut Cell) {
    if let (Job::Program { config, .. }, Channel::Guest(channel)) = (&cell.job, &mut cell.channel) {
        channel.tell(&ToGuest::Configure(config.clone()));
    }
}

/// A worker, which is there already, gets a call.
async fn begin_call(
    cell: &mut Cell,
    plan: &Plan,
    inputs: Vec<crate::io::Input>,
    stdin: bool,
    ran: &mut Ran,
) -> Result<Vec<Event>, Trouble> {
    if !inputs.is_empty() {
        transfer::put(cell, inputs, None, &mut ran.digests).await?;
        ran.timings.mark("files in");
    }
    if let (Job::Call(call), Channel::Call(channel)) = (&cell.job, &mut cell.channel) {
        call.begin(channel, plan, stdin)?;
        ran.observed = Some(call.observed());
    }
    ran.timings.mark("launch");
    Ok(Vec::new())
}

/// Starts a program of our own, and comes back when it runs.
pub(crate) async fn start_program(cell: &mut Cell, plan: &Plan) -> Result<Begun, Trouble> {
    configure(cell);
    match timeout(SETUP_LIMIT, start(cell, plan, false)).await {
        Ok(started) => started.map(|(begun, _)| begun),
        Err(_) => Err(Trouble::Failed(format!("the cell was not ready within {SETUP_LIMIT:?}"))),
    }
}

async fn start(cell: &mut Cell, plan: &Plan, stdin: bool) -> Result<(Begun, Vec<Event>), Trouble> {
    let (Job::Program { attached, .. }, Channel::Guest(channel)) = (&cell.job, &mut cell.channel) else {
        return Err(Trouble::Failed("this cell has no guest".into()));
    };
    channel.tell(&ToGuest::Exec(exec(plan, &cell.places, *attached, stdin, ONLY)));
    channel.flush().map_err(ChannelError::from)?;
    let_go(channel, cell.control.as_mut(), &cell.hold).await
}

/// Waits until somebody has looked at the first payload of a cell and let it go. What the guest says meanwhile is kept, also that the
/// payload came to nothing afterwards.
pub(crate) async fn pass_gate(
    channel: &mut Channel,
    control: &mut dyn Control,
    hold: &Hold,
    exec: u32,
) -> Result<(Begun, Vec<Event>), Trouble> {
    let Channel::Guest(channel) = channel else {
        return Err(Trouble::Failed("this cell has no guest".into()));
    };
    channel.flush().map_err(ChannelError::from)?;
    let mut running = control.proceed();
    let mut early = Vec::new();
    loop {
        tokio::select! {
            biased;
            begun = &mut running => {
                let begun = match begun {
                    Ok(begun) => begun,
                    Err(error) => return Err(told_by_guest(channel).await.unwrap_or_else(|| error.into())),
                };
                if let Hold::Guest(_) = hold {
                    channel.tell(&ToGuest::Proceed { exec });
                    channel.flush().map_err(ChannelError::from)?;
                }
                return Ok((begun, early));
            }
            event = channel.next() => match event? {
                Event::Message(ToHost::Held { exec: of, .. }) if of == exec => {
                    if let Hold::Guest(held) = hold {
                        held.notify_one();
                    }
                }
                Event::Closed => return match timeout(LAST_EXPLANATION, &mut running).await {
                    Ok(Err(error)) => Err(error.into()),
                    _ => Err(Trouble::Failed("the guest ended before the program began".into())),
                },
                event => early.push(event),
            },
        }
    }
}

/// Waits until the payload runs, or somebody says why it does not. What a quick one sends before is kept.
async fn let_go(
    channel: &mut GuestChannel,
    control: &mut dyn Control,
    hold: &Hold,
) -> Result<(Begun, Vec<Event>), Trouble> {
    let mut running = control.proceed();
    let mut early = Vec::new();
    loop {
        tokio::select! {
            biased;
            begun = &mut running => match begun {
                Ok(begun) => {
                    if let Hold::Guest(_) = hold {
                        channel.tell(&ToGuest::Proceed { exec: EXEC });
                        channel.flush().map_err(ChannelError::from)?;
                    }
                    return Ok((begun, early));
                }
                Err(error) => return Err(told_by_guest(channel).await.unwrap_or_else(|| error.into())),
            },
            event = channel.next() => match event? {
                Event::Message(ToHost::Hello { version: casemate_wire::PROTOCOL_VERSION }) => {}
                Event::Message(ToHost::ExecFailed { step, errno, .. }) => return Err(exec_failed(&step, errno)),
                Event::Message(ToHost::Held { exec: EXEC, .. }) if let Hold::Guest(held) = hold => held.notify_one(),
                // A channel that closes says nothing; the launcher knows which step failed.
                Event::Closed => return match timeout(LAST_EXPLANATION, &mut running).await {
                    Ok(Err(error)) => Err(error.into()),
                    _ => Err(Trouble::Failed("the guest ended before the payload began".into())),
                },
                Event::Message(ToHost::Hello { .. }) => return Err(ChannelError::Order("a guest of another version").into()),
                event => early.push(event),
            },
        }
    }
}

/// How long a guest or launcher may take to say why nothing runs.
const LAST_EXPLANATION: Duration = Duration::from_secs(5);

/// A channel that closes before the payload runs says nothing; the launcher knows which step failed.
pub(crate) async fn why_closed(cell: &mut Cell, otherwise: &str) -> Trouble {
    match timeout(LAST_EXPLANATION, cell.control.proceed()).await {
        Ok(Err(error)) => error.into(),
        _ => Trouble::Failed(otherwise.into()),
    }
}

/// Why the payload did not begin, if the guest knows.
async fn told_by_guest(channel: &mut GuestChannel) -> Option<Trouble> {
    let listen = async {
        loop {
            match channel.next().await {
                Ok(Event::Message(ToHost::ExecFailed { step, errno, .. })) => {
                    return Some(exec_failed(&step, errno));
                }
                Ok(Event::Closed) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    };
    timeout(LAST_EXPLANATION, listen).await.ok().flatten()
}

/// What the guest could not start, in the caller's terms.
pub(crate) fn exec_failed(step: &str, errno: i32) -> Trouble {
    let error = std::io::Error::from_raw_os_error(errno).to_string();
    let error = error.split_once(" (os error").map_or(error.as_str(), |(words, _)| words);
    match (step, errno) {
        ("exec", libc::ENOENT) => Trouble::Refused(Refusal::new(
            "the command was not found in the cell",
            "check the spelling; the host image has what is in /usr (not /home, /root or /opt), another one what was put into it",
        )),
        ("exec", libc::EACCES | libc::ENOEXEC) => Trouble::Refused(Refusal::new(
            format!("the command cannot be executed in the cell ({error})"),
            "it must be an executable file or a script with a `#!` line, with mode bits that let everybody execute it",
        )),
        ("exec", libc::E2BIG) => Trouble::Refused(Refusal::new(
            "the arguments are too long for the kernel",
            "put the data into a file (--in) or on standard input",
        )),
        ("terminal", _) => Trouble::Refused(Refusal::new(
            format!("there are no more terminals to be had in this cell ({error})"),
            "end what uses one, or do without: what a program writes comes as it is",
        )),
        ("working directory", _) => Trouble::Refused(Refusal::new(
            format!("the working directory cannot be entered ({error})"),
            "--cwd must name a directory in the cell, e.g. /work",
        )),
        _ => Trouble::Failed(format!("the payload could not be confined: {step}: {error}")),
    }
}

pub(crate) fn exec(plan: &Plan, places: &Places, attached: Attached, stdin: bool, streams: Streams) -> Exec {
    let mut env = vec![
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("HOME".to_owned(), places.work.clone()),
        ("TMPDIR".to_owned(), places.tmp.clone()),
    ];
    for (key, value) in plan.env() {
        env.retain(|(existing, _)| existing != key);
        env.push((key.clone(), value.clone()));
    }
    Exec {
        id: streams.exec,
        program: match attached {
            Attached::Nothing | Attached::Descriptors(_) => Executable::Named,
            Attached::Program | Attached::ProgramAndLine => Executable::Attached,
        },
        argv: argv(plan, places),
        env,
        cwd: plan.cwd().map_or_else(|| places.work.clone(), |cwd| places.resolve(cwd)),
        stdin: match (attached, stdin) {
            (Attached::ProgramAndLine, _) => Input::Line,
            (_, true) => Input::Stream(streams.stdin),
            (_, false) => Input::Nothing,
        },
        stdout: streams.stdout,
        stderr: streams.stderr,
        max_output: plan.limits().get(LimitKind::Output).map_or(0, |bound| bound.value),
        terminal: None,
        announce: false,
        inherits: match attached {
            Attached::Descriptors(_) => Inherits::Attached,
            _ => Inherits::Streams,
        },
    }
}

fn argv(plan: &Plan, places: &Places) -> Vec<String> {
    match plan.workload() {
        Workload::Command { argv } => argv.clone(),
        // Never run by a guest.
        Workload::Component { args, .. } => args.clone(),
        Workload::Session => Vec::new(),
        Workload::Code { language, source, args } => {
            let (interpreter, inline) = match language {
                Language::Python => ("python3", "-c"),
                Language::Javascript => ("node", "-e"),
                Language::Shell => ("sh", "-c"),
            };
            let mut argv = vec![interpreter.to_owned()];
            match source {
                CodeSource::Inline(code) => {
                    argv.extend([inline.to_owned(), code.clone()]);
                    // A shell takes the first argument after the code as $0.
                    if *language == Language::Shell {
                        argv.push("sh".into());
                    }
                }
                CodeSource::File { name, .. } => argv.push(format!("{}/{name}", places.work)),
            }
            argv.extend(args.iter().cloned());
            argv
        }
    }
}

/// Code that comes as a file is put into the work directory under its own name.
fn code_file(plan: &Plan) -> Option<(String, Vec<u8>)> {
    match plan.workload() {
        Workload::Code { source: CodeSource::File { name, bytes }, .. } => {
            Some((format!("/work/{name}"), bytes.clone()))
        }
        _ => None,
    }
}

pub(crate) fn killed(plan: &Plan, cause: Cause, peak: Option<u64>) -> Status {
    let limit = cause.limit_kind().and_then(|kind| plan.limits().get(kind)).map(|bound| bound.value);
    Status::Killed { cause, limit, peak }
}
