//! The programs of a session, each from its record to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, Refusal, Status};
use casemate_core::plan::Plan;
use casemate_core::request::{Request, Stdin};
use casemate_wire::frame::ReceiveWindow;
use casemate_wire::guest::{
    Config, Discarded, Id, ProcessUsage, TerminalSize, Terminals, ToGuest, WaitStatus,
};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Actor, Feed, LAST_WORDS, Reply, SETUP_LIMIT, Started};
use crate::evidence;
use crate::execute::{Executed, not_recorded};
use crate::io::{Chunk, Stream};
use crate::meter;
use crate::record::Record;
use crate::run::{self, Ran, Trouble, killed};
use crate::session::flow::Source;
use crate::session::{Process, SessionExec};
use crate::wall::{Cell, Job};

/// Programs that run at the same time.
const MAX_EXECS: usize = 64;

/// A program from its record to its end.
pub(super) struct Running {
    pub(super) record: Record,
    pub(super) request: Arc<Request>,
    pub(super) plan: Plan,
    pub(super) ran: Ran,
    pub(super) started: Instant,
    /// How long it may take, not counting what it stood still.
    pub(super) allowance: Duration,
    pub(super) stood_still: Duration,
    pub(super) killed: Option<(Cause, Instant)>,
    /// Until it runs.
    pub(super) waiting: Option<(Reply, Process)>,
    /// It runs, whether anybody was told or not.
    pub(super) let_go: bool,
    pub(super) input: Option<Feed>,
    pub(super) outputs: [Output; 2],
    pub(super) output: Option<Source<Chunk>>,
    pub(super) received: u64,
    pub(super) cut: bool,
    pub(super) ended: oneshot::Sender<Executed>,
}

pub(super) struct Output {
    pub(super) stream: Id,
    pub(super) kind: Stream,
    pub(super) window: ReceiveWindow,
    /// Bytes that nobody has taken yet.
    pub(super) outstanding: usize,
    pub(super) digest: Sha256,
}

impl Actor {
    /// Kills what has run for too long. What does not die of that takes the session with it.
    pub(super) fn end_late_ones(&mut self) -> Result<(), Trouble> {
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

    /// Records a program, then starts it.
    pub(super) async fn exec(
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
            let_go: false,
            input: stdin.then(|| Feed { stream: number, ..Feed::default() }),
            outputs: [stream(number + 1, Stream::Stdout), stream(number + 2, Stream::Stderr)],
            output: Some(output),
            received: 0,
            cut: false,
            ended,
        };
        self.programs.insert(running.record.id().to_owned());
        self.execs.insert(number, running);
        if self.gate.is_none() {
            self.pass_the_gate(number).await?;
        }
        Ok(())
    }

    /// What an exec comes to, and its opening record. Nothing of it gets into the cell before that is written.
    #[allow(clippy::type_complexity, reason = "three things, named where they are taken apart")]
    pub(super) fn plan_exec(
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
        if let (Some(_), Job::Program { config: Config { terminals: Terminals::None, .. }, .. }) =
            (terminal, &self.cell.job)
        {
            return Err(refused(Refusal::new(
                "there are no terminals in this cell",
                "sessions on `container` and `gvisor` have some; elsewhere do without: what a program writes comes as it is",
            )));
        }
        let plan = Plan::within(&self.plan, request.clone()).map_err(refused)?;
        let request = Arc::new(request);
        let program = self.identify.program(&plan);
        let planned = record.planned(&request, &plan, program);
        planned.map_err(|error| (Some(request.clone()), not_recorded(error)))?;
        Ok((request, plan, terminal))
    }

    /// The first program of a cell is looked at from outside by whoever built it. Nothing else happens meanwhile.
    pub(super) async fn pass_the_gate(&mut self, number: Id) -> Result<(), Trouble> {
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
            self.handle(event).await?;
        }
        self.runs(number);
        Ok(())
    }

    /// A later program is looked at, too, while the guest holds it.
    pub(super) async fn let_go(&mut self, number: Id, pid: u32) -> Result<(), Trouble> {
        let look = timeout(SETUP_LIMIT, self.cell.control.look(pid)).await;
        let look = look.map_err(|_| Trouble::Failed("a program cannot be looked at".into()))??;
        let Some(observed) = evidence::observed_later(look, &self.cell.runtime) else {
            // It was killed meanwhile, which the guest is about to tell. Nobody runs in its place.
            self.cell.channel.ask(&ToGuest::Signal { exec: number, signal: libc::SIGKILL as u8 });
            return Ok(());
        };
        if let Some(exec) = self.execs.get_mut(&number) {
            exec.ran.observed = Some(observed);
            exec.ran.timings.mark("launch");
        }
        self.cell.channel.ask(&ToGuest::Proceed { exec: number });
        self.runs(number);
        Ok(())
    }

    /// It was let go. Whoever waits is told once its number is known.
    pub(super) fn runs(&mut self, number: Id) {
        let Some(exec) = self.execs.get_mut(&number) else { return };
        if !exec.let_go {
            (exec.let_go, exec.started) = (true, Instant::now());
        }
        let known = |(_, process): &mut (Reply, Process)| process.control.pid != 0;
        if let Some((reply, process)) = exec.waiting.take_if(known) {
            // Nobody knows of it, so nobody could end it.
            if reply.send(Ok(process)).is_err() {
                exec.killed = Some((Cause::Cancelled, Instant::now() + LAST_WORDS));
                self.cell.channel.ask(&ToGuest::Signal { exec: number, signal: libc::SIGKILL as u8 });
            }
        }
    }

    pub(super) fn end(
        &mut self,
        mut exec: Running,
        status: WaitStatus,
        usage: ProcessUsage,
        discarded: Discarded,
    ) {
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
}

impl Running {
    pub(super) fn deadline(&self) -> Instant {
        match self.killed {
            Some((_, patience)) => patience,
            None => self.started + self.allowance + self.stood_still,
        }
    }

    /// Closes the record, and tells whoever waits.
    pub(super) fn close(self, status: Status) {
        let Running { record, request, mut ran, waiting, input, outputs, ended, .. } = self;
        if let Some(feed) = input.filter(|feed| feed.sent > 0) {
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
