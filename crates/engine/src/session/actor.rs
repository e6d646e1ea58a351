//! The task that owns a session's cell. Everything that comes from the guest is hostile until checked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, Refusal, Status};
use casemate_core::plan::Plan;
use casemate_core::request::{Request, Stdin};
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::frame::{Body, MAX_PAYLOAD, ReceiveWindow, SendWindow};
use casemate_wire::guest::{
    Discarded, Entry, FileInfo, FileRequest, Id, ProcessUsage, TerminalSize, ToGuest, ToHost, WaitStatus,
};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep_until, timeout};

use super::flow::{Credit, Source};
use super::{Changed, FileError, Piece, Process, ProcessControl, SessionExec};
use crate::evidence;
use crate::execute::{Executed, not_recorded};
use crate::guest::{ChannelError, Event};
use crate::io::{Chunk, Stream};
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
/// Programs that run at the same time.
const MAX_EXECS: usize = 64;
/// Transfers, questions and watches that go on at the same time.
const MAX_OTHERS: usize = 64;
/// What a list may have.
const MAX_FOUND: usize = 100_000;

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
    /// The first program has passed the gate; this is what it looked like there.
    gate: Option<Begun>,
    paused: Option<Instant>,
    asked: bool,
    pace: Duration,
}

/// A program from its record to its end.
struct Running {
    record: Record,
    request: Arc<Request>,
    plan: Plan,
    ran: Ran,
    started: Instant,
    /// How long it may take, not counting what it stood still.
    allowance: Duration,
    stood_still: Duration,
    killed: Option<(Cause, Instant)>,
    /// Until it runs.
    waiting: Option<(Reply, Process)>,
    input: Option<Feed>,
    outputs: [Output; 2],
    output: Option<Source<Chunk>>,
    received: u64,
    cut: bool,
    ended: oneshot::Sender<Executed>,
}

struct Output {
    stream: Id,
    kind: Stream,
    window: ReceiveWindow,
    /// Bytes that nobody has taken yet.
    outstanding: usize,
    digest: Sha256,
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
    any: bool,
}

struct Putting {
    feed: Feed,
    done: Done<()>,
}

struct Getting {
    pieces: Option<Source<Piece>>,
    window: ReceiveWindow,
    outstanding: usize,
    /// What is still to come of the current file.
    left: u64,
}

struct Question {
    found: Vec<(String, FileInfo)>,
    done: Answer,
}

enum Answer {
    Found(Done<Vec<(String, FileInfo)>>),
    Nothing(Done<()>),
    /// Nobody waits for it.
    Nobody,
}

struct Watching {
    changes: mpsc::Sender<Changed>,
    lost: bool,
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
                let measured = timeout(SETUP_LIMIT, self.cell.control.measure()).await;
                let counters = measured.map_err(|_| Trouble::Failed("the cell cannot be measured".into()))??;
                if let Some(cause) = self.meter.judge(&self.plan, &counters, self.cell.gauges) {
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
            event = self.cell.channel.next() => self.handle(event?)?,
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

    fn next_deadline(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(1 << 30);
        if self.paused.is_some() {
            return far;
        }
        self.execs.values().map(Running::deadline).min().unwrap_or(far)
    }

    /// Kills what has run for too long. What does not die of that takes the session with it.
    fn end_late_ones(&mut self) -> Result<(), Trouble> {
        let now = Instant::now();
        for (number, exec) in self.execs.iter_mut().filter(|(_, exec)| exec.deadline() <= now) {
            match exec.killed {
                Some(_) => return Err(Trouble::Failed("a program that was killed did not end".into())),
                None => {
                    exec.killed = Some((Cause::WallTime, now + LAST_WORDS));
                    self.cell.channel.ask(&ToGuest::Signal { exec: *number, signal: libc::SIGKILL as u8 });
                }
            }
        }
        Ok(())
    }

    async fn obey(&mut self, command: Command) -> Result<(), Trouble> {
        match command {
            Command::Exec { number, exec, process, reply } => {
                self.exec(number, *exec, *process, reply).await?
            }
            Command::Signal { number, signal } => {
                if self.execs.contains_key(&number) {
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
            Command::Put { number, path, entry, done } => {
                if self.is_crowded() {
                    let _ = done.send(Err(FileError::Kernel(libc::EAGAIN)));
                    return Ok(());
                }
                let path = self.cell.places.resolve(&path);
                self.cell.channel.ask(&ToGuest::Put { id: number, path, entry });
                let feed = Feed { stream: number, ..Feed::default() };
                self.puts.insert(number, Putting { feed, done });
            }
            Command::Get { number, path, max_bytes, max_entries, pieces } => {
                if self.is_crowded() {
                    let failed = Piece::Failed(FileError::Kernel(libc::EAGAIN));
                    let _ = pieces.send((failed, Credit { stream: number, bytes: 0 }));
                    return Ok(());
                }
                let path = self.cell.places.resolve(&path);
                self.cell.channel.ask(&ToGuest::Get { id: number, path, max_bytes, max_entries });
                let (window, pieces) = (ReceiveWindow::default(), Some(pieces));
                self.gets.insert(number, Getting { pieces, window, outstanding: 0, left: 0 });
            }
            Command::Files { number, request, done } => {
                let request = self.in_place(request);
                self.ask(number, ToGuest::Files { id: number, request }, Answer::Found(done));
            }
            Command::Watch { number, path, recursive, changes, done } => {
                let request = self.in_place(FileRequest::Watch { path, recursive });
                self.watches.insert(number, Watching { changes, lost: false });
                self.ask(number, ToGuest::Files { id: number, request }, Answer::Nothing(done));
            }
            Command::Pause { number, done } => {
                self.paused.get_or_insert_with(Instant::now);
                self.ask(number, ToGuest::Pause { id: number }, Answer::Nothing(done));
            }
            Command::Resume { number, done } => {
                if let Some(since) = self.paused.take() {
                    for exec in self.execs.values_mut() {
                        exec.stood_still += since.max(exec.started).elapsed();
                    }
                }
                self.ask(number, ToGuest::Resume { id: number }, Answer::Nothing(done));
            }
            Command::End { .. } => {}
        }
        Ok(())
    }

    fn is_crowded(&self) -> bool {
        self.puts.len() + self.gets.len() + self.questions.len() + self.watches.len() >= MAX_OTHERS
    }

    fn ask(&mut self, number: Id, message: ToGuest, done: Answer) {
        if self.is_crowded() {
            return done.fail(FileError::Kernel(libc::EAGAIN));
        }
        self.cell.channel.ask(&message);
        self.questions.insert(number, Question { found: Vec::new(), done });
    }

    /// The same, with the cell's own paths.
    fn in_place(&self, request: FileRequest) -> FileRequest {
        let place = |path: String| self.cell.places.resolve(&path);
        match request {
            FileRequest::List { path, depth, max_entries } => {
                FileRequest::List { path: place(path), depth, max_entries }
            }
            FileRequest::MakeDirectory { path } => FileRequest::MakeDirectory { path: place(path) },
            FileRequest::Rename { from, to } => FileRequest::Rename { from: place(from), to: place(to) },
            FileRequest::Remove { path } => FileRequest::Remove { path: place(path) },
            FileRequest::Watch { path, recursive } => FileRequest::Watch { path: place(path), recursive },
            FileRequest::Unwatch { watch } => FileRequest::Unwatch { watch },
        }
    }

    /// Records a program, then starts it.
    async fn exec(
        &mut self,
        number: Id,
        exec: SessionExec,
        started: Started,
        reply: Reply,
    ) -> Result<(), Trouble> {
        let mut record = self.record.within();
        let mut ran = Ran::default();
        let planned = self.plan_exec(exec, &mut record);
        let (request, plan, terminal) = match planned {
            Ok(planned) => planned,
            Err((request, trouble)) => {
                let executed = record.close(request.as_deref(), trouble.into(), ran);
                let _ = reply.send(Err(Box::new(executed)));
                return Ok(());
            }
        };
        ran.timings.mark("record");
        let Job::Program { config, attached } = &self.cell.job else {
            return Err(Trouble::Failed("this cell has no guest".into()));
        };
        ran.applied = Some(evidence::applied(config));
        let stdin = request.stdin() == Stdin::Provided;
        let streams = run::Streams { exec: number, stdin: number, stdout: number + 1, stderr: number + 2 };
        let mut message = run::exec(&plan, &self.cell.places, *attached, stdin, streams);
        (message.terminal, message.announce) = (terminal, true);
        self.cell.channel.ask(&ToGuest::Exec(message));
        let Started { output, mut process, ended } = started;
        record.id().clone_into(&mut process.id);
        let wall_time = meter::limit(&plan, LimitKind::WallTime).unwrap_or(u64::MAX / 2);
        let stream = |stream, kind| Output {
            stream,
            kind,
            window: ReceiveWindow::default(),
            outstanding: 0,
            digest: Sha256::new(),
        };
        let running = Running {
            record,
            request,
            plan,
            ran,
            started: Instant::now(),
            allowance: Duration::from_millis(wall_time).min(Duration::from_secs(1 << 30)),
            stood_still: Duration::ZERO,
            killed: None,
            waiting: Some((reply, process)),
            input: stdin.then(|| Feed { stream: number, ..Feed::default() }),
            outputs: [stream(number + 1, Stream::Stdout), stream(number + 2, Stream::Stderr)],
            output: Some(output),
            received: 0,
            cut: false,
            ended,
        };
        self.execs.insert(number, running);
        if self.gate.is_none() {
            self.pass_the_gate(number).await?;
        }
        Ok(())
    }

    /// What an exec comes to, and its opening record. Nothing of it gets into the cell before that is written.
    #[allow(clippy::type_complexity, reason = "three things, named where they are taken apart")]
    fn plan_exec(
        &self,
        exec: SessionExec,
        record: &mut Record,
    ) -> Result<(Arc<Request>, Plan, Option<TerminalSize>), (Option<Arc<Request>>, Trouble)> {
        let SessionExec { mut request, stdin, terminal } = exec;
        request.stdin = if stdin { Stdin::Provided } else { Stdin::default() };
        request.tenant = Some(self.plan.tenant().to_owned());
        request.image = self.plan.image().clone();
        let mut env = self.plan.env().to_vec();
        for (name, value) in request.env {
            env.retain(|(existing, _)| *existing != name);
            env.push((name, value));
        }
        request.env = env;
        if request.cwd.is_none() {
            request.cwd = self.plan.cwd().map(str::to_owned);
        }
        let request = Request::new(request)
            .map_err(|invalid| (None, Trouble::Refused(Refusal::new(invalid.reason, invalid.hint))))?;
        let refused = |refusal| (Some(Arc::new(request.clone())), Trouble::Refused(refusal));
        if self.execs.len() >= MAX_EXECS {
            let reason = format!("{MAX_EXECS} programs run in this session already");
            return Err(refused(Refusal::new(reason, "wait until one has ended")));
        }
        if self.paused.is_some() {
            return Err(refused(Refusal::new("the session is paused", "resume it first")));
        }
        let plan = Plan::within(&self.plan, request.clone()).map_err(refused)?;
        let request = Arc::new(request);
        let program = self.identify.program(&plan);
        let planned = record.planned(&request, &plan, program);
        planned.map_err(|error| (Some(request.clone()), not_recorded(error)))?;
        Ok((request, plan, terminal))
    }

    /// The first program of a cell is looked at from outside by whoever built it. Nothing else happens meanwhile.
    async fn pass_the_gate(&mut self, number: Id) -> Result<(), Trouble> {
        let Cell { channel, control, hold, .. } = &mut self.cell;
        let (begun, early) = timeout(SETUP_LIMIT, run::pass_gate(channel, control.as_mut(), hold, number))
            .await
            .map_err(|_| Trouble::Failed(format!("the program was not ready within {SETUP_LIMIT:?}")))??;
        if let Some(exec) = self.execs.get_mut(&number) {
            exec.ran.observed = Some(evidence::observed(&begun, &self.cell.runtime));
            exec.ran.steps.clone_from(&begun.steps);
            exec.ran.timings.mark("launch");
        }
        self.gate = Some(begun);
        for event in early {
            self.handle(event)?;
        }
        self.runs(number);
        Ok(())
    }

    /// It was let go.
    fn runs(&mut self, number: Id) {
        if let Some(exec) = self.execs.get_mut(&number)
            && let Some((reply, process)) = exec.waiting.take()
        {
            exec.started = Instant::now();
            // Nobody knows of it, so nobody could end it.
            if reply.send(Ok(process)).is_err() {
                exec.killed = Some((Cause::Cancelled, Instant::now() + LAST_WORDS));
                self.cell.channel.ask(&ToGuest::Signal { exec: number, signal: libc::SIGKILL as u8 });
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
        while let Some((bytes, at, _)) = feed.waiting.front_mut() {
            let room = feed.window.available().min(MAX_PAYLOAD);
            let rest = &bytes[*at..];
            if room == 0 && !rest.is_empty() {
                return;
            }
            let now = &rest[..rest.len().min(room)];
            if !now.is_empty() {
                feed.digest.update(now);
                feed.any = true;
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

    /// Files that nobody will send the rest of end where they are, and what nobody hears of is not watched any more.
    fn tidy(&mut self) {
        let mut given_up = Vec::new();
        for (number, put) in self.puts.iter_mut().filter(|(_, put)| put.done.is_closed()) {
            put.feed.ended = true;
            given_up.push(*number);
        }
        given_up.into_iter().for_each(|number| self.pump(number));
        let unheard = |(number, watching): (&Id, &Watching)| {
            let answered = !self.questions.contains_key(number);
            (answered && watching.changes.is_closed()).then_some(*number)
        };
        let unheard: Vec<Id> = self.watches.iter().filter_map(unheard).collect();
        unheard.into_iter().for_each(|watch| self.unwatch(watch));
    }

    /// The number of the watch serves for the question, too: its own was answered.
    fn unwatch(&mut self, watch: Id) {
        self.watches.remove(&watch);
        let request = FileRequest::Unwatch { watch };
        self.questions.insert(watch, Question { found: Vec::new(), done: Answer::Nobody });
        self.cell.channel.ask(&ToGuest::Files { id: watch, request });
    }

    fn handle(&mut self, event: Event) -> Result<(), Trouble> {
        match event {
            Event::Closed => Err(Trouble::Failed("the cell ended unexpectedly".into())),
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
            Event::Message(message) => self.hear(message),
        }
    }

    fn receive(&mut self, stream: Id, bytes: Vec<u8>) -> Result<(), Trouble> {
        let length = bytes.len();
        if let Some(get) = self.gets.get_mut(&stream) {
            get.window.receive(length).map_err(ChannelError::from)?;
            let short = ChannelError::Order("a file longer than announced");
            get.left = get.left.checked_sub(length as u64).ok_or(short)?;
            get.outstanding += length;
            let credit = Credit { stream, bytes: length };
            let taken = get.pieces.as_ref().is_some_and(|to| to.send((Piece::Data(bytes), credit)).is_ok());
            if !taken {
                self.credit(credit);
            }
            return Ok(());
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
            }
            // Confined like the first one, by the same code.
            ToHost::Held { exec, .. } if self.gate.is_some() && self.execs.contains_key(&exec) => {
                self.cell.channel.ask(&ToGuest::Proceed { exec });
                self.runs(exec);
            }
            ToHost::OutputCut { exec } => {
                if let Some(exec) = self.execs.get_mut(&exec) {
                    exec.cut = true;
                }
            }
            ToHost::Exited { exec, status, usage, discarded } => {
                // What has ended had begun, even if there was no time to say so.
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
            ToHost::PutDone { id } => {
                let put = self.puts.remove(&id).ok_or(ChannelError::Order("a file that nobody sent"))?;
                let _ = put.done.send(Ok(()));
            }
            ToHost::GetEntry { id, path, entry } => {
                let get =
                    self.gets.get_mut(&id).ok_or(ChannelError::Order("a file that nobody asked for"))?;
                crate::transfer::check_relative(&path)?;
                get.left = match entry {
                    Entry::File { size, .. } => size,
                    Entry::Directory { .. } => 0,
                };
                get.tell(id, Piece::Entry { path, entry });
            }
            ToHost::GetSkipped { id, path, why } => {
                if let Some(get) = self.gets.get_mut(&id) {
                    get.tell(id, Piece::Skipped { path, why });
                }
            }
            ToHost::GetDone { id } => drop(self.gets.remove(&id)),
            ToHost::TransferFailed { id, errno, .. } => {
                let error = FileError::Kernel(errno);
                if let Some(put) = self.puts.remove(&id) {
                    let _ = put.done.send(Err(error));
                } else if let Some(mut get) = self.gets.remove(&id) {
                    get.tell(id, Piece::Failed(error));
                } else if let Some(question) = self.questions.remove(&id) {
                    self.watches.remove(&id);
                    question.done.fail(error);
                }
            }
            ToHost::Found { id, path, info } => {
                let question =
                    self.questions.get_mut(&id).ok_or(ChannelError::Order("an answer to no question"))?;
                crate::transfer::check_relative(&path)?;
                if question.found.len() >= MAX_FOUND {
                    return Err(ChannelError::Order("more files than were asked for").into());
                }
                question.found.push((path, info));
            }
            ToHost::FilesDone { id } => {
                let question =
                    self.questions.remove(&id).ok_or(ChannelError::Order("an answer to no question"))?;
                match question.done {
                    Answer::Found(done) => drop(done.send(Ok(question.found))),
                    Answer::Nothing(done) => drop(done.send(Ok(()))),
                    Answer::Nobody => {}
                }
            }
            ToHost::Changed { watch, path, change } => {
                crate::transfer::check_relative(&path)?;
                self.tell_change(watch, Changed::Entry { path, change });
            }
            ToHost::ChangesLost { watch } => self.tell_change(watch, Changed::Lost),
            _ => return Err(ChannelError::Order("unexpected frame in a session").into()),
        }
        Ok(())
    }

    fn tell_change(&mut self, watch: Id, changed: Changed) {
        let Some(watching) = self.watches.get_mut(&watch) else { return };
        if watching.lost && watching.changes.try_send(Changed::Lost).is_ok() {
            watching.lost = false;
        }
        match watching.changes.try_send(changed) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => watching.lost = true,
            // Nobody listens any more.
            Err(mpsc::error::TrySendError::Closed(_)) => self.unwatch(watch),
        }
    }

    fn end(&mut self, mut exec: Running, status: WaitStatus, usage: ProcessUsage, discarded: Discarded) {
        exec.ran.usage.wall = Some(exec.started.elapsed());
        exec.ran.timings.mark("run");
        exec.ran.stdout_truncated = discarded.stdout > 0;
        exec.ran.stderr_truncated = discarded.stderr > 0;
        exec.received += discarded.stdout + discarded.stderr;
        exec.cut |= discarded.stdout + discarded.stderr > 0;
        exec.ran.usage.cpu = Some(Duration::from_micros(usage.cpu_micros));
        exec.ran.usage.memory_peak = Some(usage.max_rss_bytes);
        let hits = self.meter.limits_hit(&exec.plan, (exec.received, exec.cut));
        exec.ran.limits_hit = hits;
        let status = match (exec.killed, status) {
            (Some((cause, _)), _) => {
                let peak = self.meter.peak_of(cause, exec.ran.usage.wall);
                killed(&exec.plan, cause, peak)
            }
            (None, WaitStatus::Exited(code)) => Status::Exited { code: code.into() },
            (None, WaitStatus::Signaled(signal)) => Status::Signaled { signal: signal.into() },
            (None, WaitStatus::Stopped(_)) => Status::Failed { reason: "a program ended like WASM".into() },
        };
        exec.close(status);
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
        self.record.close(Some(request), status, ran)
    }
}

impl Running {
    fn deadline(&self) -> Instant {
        match self.killed {
            Some((_, patience)) => patience,
            None => self.started + self.allowance + self.stood_still,
        }
    }

    /// Closes the record, and tells whoever waits.
    fn close(self, status: Status) {
        let Running { record, request, mut ran, waiting, input, outputs, ended, .. } = self;
        if let Some(feed) = input.filter(|feed| feed.any) {
            ran.digests.add("stdin", feed.digest);
        }
        for (output, name) in outputs.into_iter().zip(["stdout", "stderr"]) {
            ran.digests.add(name, output.digest);
        }
        let executed = record.close(Some(&request), status, ran);
        match waiting {
            Some((reply, _)) => drop(reply.send(Err(Box::new(executed)))),
            None => drop(ended.send(executed)),
        }
    }
}

impl Getting {
    fn tell(&mut self, stream: Id, piece: Piece) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.send((piece, Credit { stream, bytes: 0 }));
        }
    }
}

impl Answer {
    fn fail(self, error: FileError) {
        match self {
            Answer::Found(done) => drop(done.send(Err(error))),
            Answer::Nothing(done) => drop(done.send(Err(error))),
            Answer::Nobody => {}
        }
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
