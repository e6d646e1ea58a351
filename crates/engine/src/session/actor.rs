//! The task that owns a session's cell. Everything that comes from the guest is hostile until checked.

mod files;
mod programs;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, Status};
use casemate_core::plan::Plan;
use casemate_core::request::Request;
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::frame::{Body, MAX_PAYLOAD, SendWindow};
use casemate_wire::guest::{Entry, FileInfo, FileRequest, Id, TerminalSize, ToGuest, ToHost};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep_until, timeout};

use self::files::{Answer, Getting, Putting, Question, Watching};
use self::programs::Running;
use super::flow::{Credit, Source};
use super::notes::Transfer;
use super::{Changed, FileError, NoteError, Piece, Process, ProcessControl, SessionExec};
use crate::evidence;
use crate::execute::Executed;
use crate::guest::{ChannelError, Event};
use crate::io::Chunk;
use crate::meter::{self, Meter};
use crate::program::Identifier;
use crate::record::Record;
use crate::run::{self, Ran, Trouble, exec_failed, killed};
use crate::wall::{Begun, Cell, Job};

/// Counters are read often when a program has just begun, and rarely when nothing runs.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const BUSY_LOOK: Duration = Duration::from_millis(160);
const IDLE_LOOK: Duration = Duration::from_secs(2);
/// How long a cell may take from the request to its first program, or to answer at all.
const SETUP_LIMIT: Duration = Duration::from_secs(30);
/// How long a program may take to be gone after it was killed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A piece of code that an interpreter was given.
#[derive(Debug)]
pub(crate) struct Code {
    pub(super) process: String,
    pub(super) language: String,
    pub(super) sha256: [u8; 32],
    pub(super) bytes: u64,
    pub(super) result: String,
}

#[derive(Debug)]
pub(crate) enum Command {
    Exec {
        number: Id,
        exec: Box<SessionExec>,
        process: Box<Started>,
        reply: Reply,
    },
    Signal {
        number: Id,
        signal: u8,
    },
    Kill {
        number: Id,
        cause: Cause,
    },
    Resize {
        number: Id,
        size: TerminalSize,
    },
    /// Bytes for a program or a file.
    Input {
        number: Id,
        bytes: Vec<u8>,
        sent: oneshot::Sender<()>,
    },
    EndInput {
        number: Id,
    },
    Consumed(Credit),
    Abandoned {
        number: Id,
    },
    Put {
        number: Id,
        path: String,
        entry: Entry,
        done: Done<()>,
    },
    Get {
        number: Id,
        path: String,
        max_bytes: u64,
        max_entries: u32,
        pieces: Source<Piece>,
    },
    Files {
        number: Id,
        request: FileRequest,
        done: Done<Vec<(String, FileInfo)>>,
    },
    Watch {
        number: Id,
        path: String,
        recursive: bool,
        changes: mpsc::Sender<Changed>,
        done: Done<()>,
    },
    NoteCode {
        code: Box<Code>,
        done: oneshot::Sender<Result<String, NoteError>>,
    },
    Pause {
        number: Id,
        done: Done<()>,
    },
    Resume {
        number: Id,
        done: Done<()>,
    },
    End {
        cause: Cause,
    },
}

type Done<T> = oneshot::Sender<Result<T, FileError>>;
type Reply = oneshot::Sender<Result<Process, Box<Executed>>>;

/// Both ends of what a program that starts is told of.
#[derive(Debug)]
pub(crate) struct Started {
    pub(super) output: Source<Chunk>,
    pub(super) process: Process,
    pub(super) ended: oneshot::Sender<Executed>,
}

pub(crate) struct Actor {
    plan: Plan,
    cell: Cell,
    record: Record,
    identify: Identifier,
    meter: Meter,
    started: Instant,
    execs: BTreeMap<Id, Running>,
    puts: BTreeMap<Id, Putting>,
    gets: BTreeMap<Id, Getting>,
    questions: BTreeMap<Id, Question>,
    watches: BTreeMap<Id, Watching>,
    /// The records of all programs that were started.
    programs: HashSet<String>,
    /// The first program has passed the gate; this is what it looked like there.
    gate: Option<Begun>,
    paused: Option<Instant>,
    asked: bool,
    pace: Duration,
}

/// Bytes on their way in.
#[derive(Default)]
struct Feed {
    stream: Id,
    window: SendWindow,
    digest: Sha256,
    waiting: VecDeque<(Vec<u8>, usize, oneshot::Sender<()>)>,
    ended: bool,
    /// The guest knows that it has.
    told: bool,
    sent: u64,
}

impl Actor {
    pub(super) fn new(plan: Plan, cell: Cell, record: Record, identify: Identifier) -> Actor {
        Actor {
            plan,
            cell,
            record,
            identify,
            meter: Meter::default(),
            started: Instant::now(),
            execs: BTreeMap::new(),
            puts: BTreeMap::new(),
            gets: BTreeMap::new(),
            questions: BTreeMap::new(),
            watches: BTreeMap::new(),
            programs: HashSet::new(),
            gate: None,
            paused: None,
            asked: false,
            pace: FIRST_LOOK,
        }
    }

    /// Waits for the guest. Without one, there is no session.
    pub(super) async fn greet(&mut self) -> Result<(), Trouble> {
        run::configure(&mut self.cell);
        let greeted = timeout(SETUP_LIMIT, self.cell.channel.next()).await;
        match greeted
            .map_err(|_| Trouble::Failed(format!("the cell was not ready within {SETUP_LIMIT:?}")))??
        {
            Event::Message(ToHost::Hello { version: PROTOCOL_VERSION }) => Ok(()),
            Event::Closed => {
                Err(run::why_closed(&mut self.cell, "the guest ended before the session began").await)
            }
            _ => Err(ChannelError::Order("no greeting, or one of another version").into()),
        }
    }

    /// Ends a session that never began.
    pub(super) async fn give_up(mut self, request: &Request, trouble: Trouble) -> Executed {
        let _ = self.cell.control.finish().await;
        self.record.close(Some(request), trouble.into(), Ran::default())
    }

    /// Until it is over. Whatever happens, the cell is destroyed.
    pub(super) async fn live(
        mut self,
        mut inbox: mpsc::UnboundedReceiver<Command>,
        request: &Request,
    ) -> Executed {
        let mut look = tokio::time::Instant::now() + self.pace;
        let ended = loop {
            match self.turn(&mut inbox, &mut look).await {
                Ok(None) => {}
                Ok(Some(cause)) => break Ok(cause),
                Err(trouble) => break Err(trouble),
            }
        };
        self.close(ended, request).await
    }

    /// Waits for one thing to happen, and does what has to be done then.
    async fn turn(
        &mut self,
        inbox: &mut mpsc::UnboundedReceiver<Command>,
        look: &mut tokio::time::Instant,
    ) -> Result<Option<Cause>, Trouble> {
        let lifetime = meter::limit(&self.plan, LimitKind::WallTime).unwrap_or(u64::MAX / 2);
        let end = self.started + Duration::from_millis(lifetime).min(Duration::from_secs(1 << 30));
        let next_deadline = self.next_deadline();
        tokio::select! {
            biased;
            () = sleep_until(end.into()) => return Ok(Some(Cause::WallTime)),
            () = sleep_until(next_deadline.into()) => self.end_late_ones()?,
            () = sleep_until(*look) => {
                if let Some(cause) = self.judge().await? {
                    return Ok(Some(cause));
                }
                if self.cell.gauges.need_the_guest() && !self.asked && self.gate.is_some() {
                    self.cell.channel.ask(&ToGuest::Measure);
                    self.asked = true;
                }
                self.tidy();
                let steady = if self.execs.is_empty() { IDLE_LOOK } else { BUSY_LOOK };
                self.pace = (self.pace * 2).min(steady);
                *look = tokio::time::Instant::now() + self.pace;
            }
            event = self.cell.channel.next() => {
                let event = event?;
                // What was used comes before how it ended: whoever ran out of memory was not just killed by some signal.
                if matches!(event, Event::Message(ToHost::Exited { .. }))
                    && let Some(cause) = self.judge().await?
                {
                    return Ok(Some(cause));
                }
                self.handle(event).await?
            }
            command = inbox.recv() => match command {
                Some(Command::End { cause }) => return Ok(Some(cause)),
                Some(command) => {
                    let starts = matches!(command, Command::Exec { .. });
                    self.obey(command).await?;
                    if starts {
                        self.pace = FIRST_LOOK;
                        *look = (*look).min(tokio::time::Instant::now() + self.pace);
                    }
                }
                // Nobody is left who could ask for anything.
                None => return Ok(Some(Cause::Cancelled)),
            },
        }
        Ok(None)
    }

    /// Reads the counters, and says whether a limit that kills was passed.
    async fn judge(&mut self) -> Result<Option<Cause>, Trouble> {
        let measured = timeout(SETUP_LIMIT, self.cell.control.measure()).await;
        let counters = measured.map_err(|_| Trouble::Failed("the cell cannot be measured".into()))??;
        Ok(self.meter.judge(&self.plan, &counters, self.cell.gauges))
    }

    fn next_deadline(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(1 << 30);
        if self.paused.is_some() {
            return far;
        }
        self.execs.values().map(Running::deadline).min().unwrap_or(far)
    }

    async fn obey(&mut self, command: Command) -> Result<(), Trouble> {
        match command {
            Command::Exec { number, exec, process, reply } => {
                self.exec(number, *exec, *process, reply).await?
            }
            Command::Signal { number, signal } => {
                // Nothing goes on while everything stands still.
                let wakes = self.paused.is_some() && i32::from(signal) == libc::SIGCONT;
                if self.execs.contains_key(&number) && !wakes {
                    self.cell.channel.ask(&ToGuest::Signal { exec: number, signal });
                }
            }
            Command::Kill { number, cause } => {
                if let Some(exec) = self.execs.get_mut(&number)
                    && exec.killed.is_none()
                {
                    exec.killed = Some((cause, Instant::now() + LAST_WORDS));
                    self.cell.channel.ask(&ToGuest::Signal { exec: number, signal: libc::SIGKILL as u8 });
                }
            }
            Command::Resize { number, size } => {
                if self.execs.contains_key(&number) {
                    self.cell.channel.ask(&ToGuest::Resize { exec: number, size });
                }
            }
            Command::Input { number, bytes, sent } => {
                // Dropped if there is nobody to take it: whoever sent it is told by that.
                if let Some(feed) = self.feed(number).filter(|feed| !feed.ended) {
                    feed.waiting.push_back((bytes, 0, sent));
                    self.pump(number);
                }
            }
            Command::EndInput { number } => {
                if let Some(feed) = self.feed(number) {
                    feed.ended = true;
                    self.pump(number);
                }
            }
            Command::Consumed(credit) => self.credit(credit),
            Command::Abandoned { number } => self.abandon(number),
            Command::Put { number, path, entry, done } => self.put(number, &path, entry, done),
            Command::Get { number, path, max_bytes, max_entries, pieces } => {
                self.get(number, &path, (max_bytes, max_entries), pieces);
            }
            Command::Files { number, request, done } => {
                let transfer = Transfer::of(&request);
                let request = self.in_place(request);
                self.ask(number, ToGuest::Files { id: number, request }, transfer, Answer::Found(done));
            }
            Command::Watch { number, path, recursive, changes, done } => {
                let request = self.in_place(FileRequest::Watch { path, recursive });
                self.watches.insert(number, Watching { changes, lost: false });
                self.ask(number, ToGuest::Files { id: number, request }, None, Answer::Nothing(done));
            }
            Command::NoteCode { code, done } => self.note_code(&code, done)?,
            Command::Pause { number, done } => {
                if !self.is_crowded() {
                    self.paused.get_or_insert_with(Instant::now);
                }
                self.ask(number, ToGuest::Pause { id: number }, None, Answer::Paused(done));
            }
            Command::Resume { number, done } => {
                self.go_on();
                self.ask(number, ToGuest::Resume { id: number }, None, Answer::Nothing(done));
            }
            Command::End { .. } => {}
        }
        Ok(())
    }

    /// The clocks of programs, too.
    fn go_on(&mut self) {
        if let Some(since) = self.paused.take() {
            for exec in self.execs.values_mut() {
                exec.stood_still += since.max(exec.started).elapsed();
            }
        }
    }

    fn feed(&mut self, number: Id) -> Option<&mut Feed> {
        match self.execs.get_mut(&number) {
            Some(exec) => exec.input.as_mut(),
            None => self.puts.get_mut(&number).map(|put| &mut put.feed),
        }
    }

    /// Sends what there is room for.
    fn pump(&mut self, number: Id) {
        let Actor { execs, puts, cell, .. } = self;
        let feed = match execs.get_mut(&number) {
            Some(exec) => exec.input.as_mut(),
            None => puts.get_mut(&number).map(|put| &mut put.feed),
        };
        let Some(feed) = feed else { return };
        while let Some((bytes, at, sent)) = feed.waiting.front_mut() {
            // Whoever sent it has gone, and with them what nobody has taken yet.
            if sent.is_closed() && *at < bytes.len() {
                feed.waiting.pop_front();
                continue;
            }
            let room = feed.window.available().min(MAX_PAYLOAD);
            let rest = &bytes[*at..];
            if room == 0 && !rest.is_empty() {
                return;
            }
            let now = &rest[..rest.len().min(room)];
            if !now.is_empty() {
                feed.digest.update(now);
                feed.sent += now.len() as u64;
                feed.window.spend(now.len());
                cell.channel.send(feed.stream, Body::Data(now));
                *at += now.len();
            }
            if *at == bytes.len()
                && let Some((_, _, sent)) = feed.waiting.pop_front()
            {
                let _ = sent.send(());
            }
        }
        if feed.ended && !feed.told {
            cell.channel.send(feed.stream, Body::End);
            feed.told = true;
        }
    }

    fn credit(&mut self, Credit { stream, bytes }: Credit) {
        let output = self.execs.values_mut().flat_map(|exec| &mut exec.outputs);
        let mut output = output.filter(|output| output.stream == stream);
        let (window, outstanding) = match (output.next(), self.gets.get_mut(&stream)) {
            (Some(output), _) => (&mut output.window, &mut output.outstanding),
            (None, Some(get)) => (&mut get.window, &mut get.outstanding),
            (None, None) => return,
        };
        let bytes = bytes.min(*outstanding);
        *outstanding -= bytes;
        if let Some(credit) = window.consume(bytes) {
            self.cell.channel.send(stream, Body::Credit(credit));
        }
    }

    /// Nobody listens any more. What comes is thrown away, and a tree or a watch is given up.
    fn abandon(&mut self, number: Id) {
        let mut credits = Vec::new();
        if let Some(exec) = self.execs.get_mut(&number) {
            exec.output = None;
            credits.extend(exec.outputs.iter().map(|output| (output.stream, output.outstanding)));
        }
        if let Some(get) = self.gets.get_mut(&number) {
            get.pieces = None;
            credits.push((number, get.outstanding));
        }
        for (stream, bytes) in credits {
            self.credit(Credit { stream, bytes });
        }
    }

    async fn handle(&mut self, event: Event) -> Result<(), Trouble> {
        match event {
            Event::Closed => {
                let why = self.cell.control.epitaph().await;
                Err(Trouble::Failed(why.unwrap_or_else(|| "the cell ended unexpectedly".into())))
            }
            Event::Data { stream, bytes } => self.receive(stream, bytes),
            Event::Credit { stream, bytes } => {
                if let Some(feed) = self.feed(stream) {
                    feed.window.refund(bytes).map_err(ChannelError::from)?;
                    self.pump(stream);
                }
                Ok(())
            }
            // The end of a stream is told by what ends it.
            Event::End { .. } => Ok(()),
            Event::Message(ToHost::Held { exec, pid })
                if self.gate.is_some() && self.execs.contains_key(&exec) =>
            {
                self.let_go(exec, pid).await
            }
            Event::Message(message) => self.hear(message),
        }
    }

    fn receive(&mut self, stream: Id, bytes: Vec<u8>) -> Result<(), Trouble> {
        let length = bytes.len();
        if self.gets.contains_key(&stream) {
            return self.receive_file(stream, bytes);
        }
        let number = self.execs.iter().find_map(|(number, exec)| {
            exec.outputs.iter().any(|output| output.stream == stream).then_some(*number)
        });
        let exec = number.and_then(|number| self.execs.get_mut(&number));
        let exec = exec.ok_or(ChannelError::Order("data on a stream that does not exist"))?;
        let limit = exec.plan.limits().get(LimitKind::Output).map_or(0, |bound| bound.value);
        exec.received += length as u64;
        if exec.received > limit {
            return Err(ChannelError::Order("more output than the limit allows").into());
        }
        let Some(output) = exec.outputs.iter_mut().find(|output| output.stream == stream) else {
            return Ok(());
        };
        output.window.receive(length).map_err(ChannelError::from)?;
        output.outstanding += length;
        output.digest.update(&bytes);
        let (chunk, credit) = (Chunk { stream: output.kind, bytes }, Credit { stream, bytes: length });
        let taken = exec.output.as_ref().is_some_and(|output| output.send((chunk, credit)).is_ok());
        if !taken {
            self.credit(credit);
        }
        Ok(())
    }

    fn hear(&mut self, message: ToHost) -> Result<(), Trouble> {
        match message {
            ToHost::Measured(inside) => {
                self.asked = false;
                self.meter.look_inside(&inside);
            }
            ToHost::Started { exec, pid } => {
                if let Some(Running { waiting: Some((_, process)), .. }) = self.execs.get_mut(&exec) {
                    process.control.pid = pid;
                }
                if self.execs.get(&exec).is_some_and(|exec| exec.let_go) {
                    self.runs(exec);
                }
            }
            ToHost::OutputCut { exec } => {
                if let Some(exec) = self.execs.get_mut(&exec) {
                    exec.cut = true;
                }
            }
            ToHost::Exited { exec, status, usage, discarded } => {
                // The first program of a session can be over before it is known that it was let go.
                self.runs(exec);
                let ended =
                    self.execs.remove(&exec).ok_or(ChannelError::Order("an end without a beginning"))?;
                self.end(ended, status, usage, discarded);
            }
            ToHost::ExecFailed { exec, step, errno } => {
                let failed = self.execs.remove(&exec);
                let failed = failed.ok_or(ChannelError::Order("a failure without a beginning"))?;
                failed.close(exec_failed(&step, errno).into());
            }
            other => self.hear_of_files(other)?,
        }
        Ok(())
    }

    /// Kills the cell, and closes every record that is still open.
    async fn close(mut self, ended: Result<Cause, Trouble>, request: &Request) -> Executed {
        let mut ran = Ran::default();
        ran.usage.wall = Some(self.started.elapsed());
        let counters = self.cell.control.finish().await;
        if let Ok(counters) = &counters {
            self.meter.judge(&self.plan, counters, self.cell.gauges);
        }
        let status = match ended {
            // An OOM kill may look like a guest that vanished.
            Err(_) if self.meter.ran_out_of_memory() => {
                killed(&self.plan, Cause::Memory, self.meter.peak_of(Cause::Memory, None))
            }
            Err(trouble) => trouble.into(),
            Ok(cause) => killed(&self.plan, cause, self.meter.peak_of(cause, ran.usage.wall)),
        };
        self.meter.fill(&mut ran.usage);
        ran.limits_hit = self.meter.limits_hit(&self.plan, (0, false));
        if let Some(begun) = &self.gate {
            ran.observed = Some(evidence::observed(begun, &self.cell.runtime));
        }
        if let Job::Program { config, .. } = &self.cell.job {
            ran.applied = Some(evidence::applied(config));
        }
        for mut exec in std::mem::take(&mut self.execs).into_values() {
            exec.ran.usage.wall = Some(exec.started.elapsed());
            let cause = match &status {
                Status::Killed { cause, limit, peak } => {
                    Status::Killed { cause: *cause, limit: *limit, peak: *peak }
                }
                _ => Status::Failed { reason: "its session failed".into() },
            };
            exec.close(cause);
        }
        self.note_unfinished();
        self.record.close(Some(request), status, ran)
    }
}

impl Process {
    pub(super) fn starting(number: Id, commands: mpsc::UnboundedSender<Command>) -> Started {
        let (output, taken) = super::Outflow::new(number, commands.clone());
        let (ended, told) = oneshot::channel();
        let control = ProcessControl { number, pid: 0, commands };
        let process = Process { id: String::new(), control, output: taken, ended: told };
        Started { output, process, ended }
    }
}
