//! Follows a running payload: moves its streams, reads its counters, decides when it has to go, draws the balance.

use std::collections::VecDeque;
use std::task::Poll;
use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{Cause, Status};
use casemate_core::plan::Plan;
use casemate_wire::frame::{Body, ReceiveWindow, SendWindow};
use casemate_wire::guest::{Discarded, ProcessUsage, ToGuest, ToHost, WaitStatus};
use casemate_wire::worker::Stop;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::guest::{Channel, ChannelError, Event};
use crate::io::{Chunk, Io, Stream};
use crate::meter::{self, Meter};
use crate::run::{EXEC, Ran, STDERR, STDIN, STDOUT, Trouble, exec_failed, killed};
use crate::transfer;
use crate::wall::Cell;

/// How long a killed cell's last words are waited for.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// Counters are read often at first, when most limits are hit, then at a steady pace.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const STEADY_LOOK: Duration = Duration::from_millis(40);
/// A guest that is asked works in the payload's own time, so a short one is left alone, and others are asked less and less often.
const FIRST_QUESTION: Duration = Duration::from_millis(20);
const STEADY_QUESTION: Duration = Duration::from_millis(640);

/// How the payload's time in the cell came to an end.
pub(crate) enum Ended {
    ByItself(WaitStatus, ProcessUsage, Discarded),
    /// To be killed, for this reason.
    Limit(Cause),
    /// The cell has vanished.
    Vanished,
}

/// Follows a running payload: moves its streams, reads its counters, decides when it has to go.
pub(crate) struct Watch<'a> {
    plan: &'a Plan,
    io: &'a mut Io,
    ran: &'a mut Ran,
    started: Instant,
    meter: Meter,
    input: Input,
    outputs: [Output; 2],
    /// Output that the receiver has not taken yet; bounded by the streams' windows.
    pending: VecDeque<Chunk>,
    received: u64,
    cut: bool,
    /// The guest has a question to answer.
    asked: bool,
}

struct Input {
    window: SendWindow,
    digest: Sha256,
    open: bool,
    any: bool,
}

struct Output {
    stream: u32,
    kind: Stream,
    window: ReceiveWindow,
    digest: Sha256,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(plan: &'a Plan, io: &'a mut Io, ran: &'a mut Ran) -> Watch<'a> {
        let output =
            |stream, kind| Output { stream, kind, window: ReceiveWindow::default(), digest: Sha256::new() };
        let open = io.stdin.is_some();
        Watch {
            plan,
            io,
            ran,
            started: Instant::now(),
            meter: Meter::default(),
            input: Input { window: SendWindow::default(), digest: Sha256::new(), open, any: open },
            outputs: [output(STDOUT, Stream::Stdout), output(STDERR, Stream::Stderr)],
            pending: VecDeque::new(),
            received: 0,
            cut: false,
            asked: false,
        }
    }

    fn limit(&self, kind: LimitKind) -> Option<u64> {
        meter::limit(self.plan, kind)
    }

    /// Until the payload ends or has to be ended. `early` is what it has sent already.
    pub(crate) async fn follow(&mut self, cell: &mut Cell, early: Vec<Event>) -> Result<Ended, Trouble> {
        for event in early {
            if let Some(ended) = self.handle(event)? {
                return Ok(ended);
            }
        }
        let wall_time = Duration::from_millis(self.limit(LimitKind::WallTime).unwrap_or(u64::MAX / 2));
        let deadline =
            tokio::time::Instant::from_std(self.started) + wall_time.min(Duration::from_secs(1 << 30));
        let mut pace = FIRST_LOOK;
        let mut look = tokio::time::Instant::now() + pace;
        let mut question = FIRST_QUESTION;
        let mut next_question = tokio::time::Instant::now() + question;
        if cell.gauges.need_the_guest() {
            // The payload itself, before anybody has counted.
            self.meter.peaks.pids_peak = Some(1);
        }
        let mut cancel = self.io.cancel.take();
        let mut stdin = self.io.stdin.take();
        let output = self.io.output.clone();
        let mut chunk = vec![0; if stdin.is_some() { 32 * 1024 } else { 0 }];
        // What is there already is sent together with what asked for it.
        while self.input.open
            && let room @ 1.. = self.input.window.available().min(chunk.len())
            && let Some(read) = at_once(read_some(&mut stdin, &mut chunk[..room])).await
        {
            self.feed(read, &chunk, &mut cell.channel);
        }
        loop {
            let room = self.input.window.available().min(chunk.len());
            let listening = !self.pending.is_empty();
            tokio::select! {
                biased;
                () = sleep_until(deadline) => return Ok(Ended::Limit(Cause::WallTime)),
                () = cancelled(&mut cancel) => return Ok(Ended::Limit(Cause::Cancelled)),
                // Paced, so that it keeps nobody else waiting; what comes on the channel is not.
                () = sleep_until(look) => {
                    // One question at a time: with much to count, an answer takes a while.
                    if cell.gauges.need_the_guest() && !self.asked && look >= next_question {
                        cell.channel.ask(&ToGuest::Measure);
                        self.asked = true;
                        question = (question * 2).min(STEADY_QUESTION);
                        next_question = look + question;
                    }
                    let Ok(counters) = timeout_at(deadline, cell.control.measure()).await else { continue };
                    let counters = counters?;
                    if let Some(cause) = self.meter.judge(self.plan, &counters, cell.gauges) {
                        return Ok(Ended::Limit(cause));
                    }
                    pace = (pace * 2).min(STEADY_LOOK);
                    look = tokio::time::Instant::now() + pace;
                }
                event = cell.channel.next() => {
                    if let Some(ended) = self.handle(event?)? {
                        return Ok(ended);
                    }
                }
                permit = reserve(output.as_ref()), if listening => self.deliver(permit, &mut cell.channel),
                read = read_some(&mut stdin, &mut chunk[..room]), if self.input.open && room > 0 => {
                    self.feed(read, &chunk, &mut cell.channel);
                }
            }
        }
    }

    fn handle(&mut self, event: Event) -> Result<Option<Ended>, Trouble> {
        match event {
            Event::Data { stream, bytes } => self.receive(stream, bytes)?,
            Event::Credit { stream: STDIN, bytes } => {
                self.input.window.refund(bytes).map_err(ChannelError::from)?
            }
            // Said while its payload was let go already.
            Event::Message(ToHost::Hello { version: casemate_wire::PROTOCOL_VERSION }) => {}
            Event::Message(ToHost::Measured(inside)) => {
                self.asked = false;
                self.meter.look_inside(&inside);
            }
            // A stream that the payload closed; its end is told by the exit.
            Event::End { stream: STDOUT | STDERR } => {}
            Event::Message(ToHost::OutputCut { exec: EXEC }) => self.cut = true,
            Event::Message(ToHost::HandlesSpent { exec: EXEC }) => {
                self.meter.peaks.open_files = self.limit(LimitKind::OpenFiles);
            }
            Event::Message(ToHost::Exited { exec: EXEC, status, usage, discarded }) => {
                return Ok(Some(Ended::ByItself(status, usage, discarded)));
            }
            Event::Message(ToHost::ExecFailed { exec: EXEC, step, errno }) => {
                return Err(exec_failed(&step, errno));
            }
            Event::Message(ToHost::CallFailed { call: EXEC, why }) => {
                return Err(Trouble::Failed(format!("the call could not be made: {why}")));
            }
            Event::Closed => return Ok(Some(Ended::Vanished)),
            _ => return Err(ChannelError::Order("unexpected frame from a running payload").into()),
        }
        Ok(None)
    }

    fn receive(&mut self, stream: u32, bytes: Vec<u8>) -> Result<(), Trouble> {
        let limit = self.plan.limits().get(LimitKind::Output).map_or(0, |bound| bound.value);
        let Some(output) = self.outputs.iter_mut().find(|output| output.stream == stream) else {
            return Err(ChannelError::Order("data on a stream that does not exist").into());
        };
        output.window.receive(bytes.len()).map_err(ChannelError::from)?;
        self.received += bytes.len() as u64;
        if self.received > limit {
            return Err(ChannelError::Order("more output than the limit allows").into());
        }
        output.digest.update(&bytes);
        self.pending.push_back(Chunk { stream: output.kind, bytes });
        Ok(())
    }

    /// Hands the oldest pending chunk over; only then may the payload send more.
    fn deliver(&mut self, permit: Permit<'_>, channel: &mut Channel) {
        let Some(chunk) = self.pending.pop_front() else { return };
        let (kind, length) = (chunk.stream, chunk.bytes.len());
        if let Permit::Listener(permit) = permit {
            permit.send(chunk);
        }
        if let Some(output) = self.outputs.iter_mut().find(|output| output.kind == kind)
            && let Some(credit) = output.window.consume(length)
        {
            channel.send(output.stream, Body::Credit(credit));
        }
    }

    fn feed(&mut self, read: std::io::Result<usize>, chunk: &[u8], channel: &mut Channel) {
        match read {
            Ok(n) if n > 0 => {
                self.input.digest.update(&chunk[..n]);
                self.input.window.spend(n);
                channel.send(STDIN, Body::Data(&chunk[..n]));
            }
            // A source that fails is a source that ends.
            _ => {
                self.input.open = false;
                channel.send(STDIN, Body::End);
            }
        }
    }

    /// Ends the cell and draws the balance.
    pub(crate) async fn close(
        mut self,
        cell: &mut Cell,
        ended: Result<Ended, Trouble>,
    ) -> Result<Status, Trouble> {
        self.ran.usage.wall = Some(self.started.elapsed());
        self.ran.timings.mark("run");
        if cell.gauges.need_the_guest() && matches!(&ended, Ok(Ended::ByItself(..))) {
            self.last_look(&mut cell.channel).await;
        }
        let outgoing = match &ended {
            Ok(Ended::ByItself(..)) => transfer::get(cell, self.plan, self.io, self.ran).await,
            _ => Ok(()),
        };
        let epitaph = match &ended {
            Ok(Ended::Vanished) => cell.control.epitaph().await,
            _ => None,
        };
        let counters = cell.control.finish().await;
        if let Ok(Ended::Limit(_)) = &ended {
            self.last_words(&mut cell.channel).await;
        }
        // Delivered once the record is closed: a slow receiver must not keep it open.
        self.ran.undelivered = std::mem::take(&mut self.pending).into();
        let counters = counters?;
        let verdict = self.meter.judge(self.plan, &counters, cell.gauges);
        let status = match ended? {
            Ended::Limit(cause) => killed(self.plan, cause, self.peak_of(cause)),
            _ if self.meter.ran_out_of_memory() => {
                killed(self.plan, Cause::Memory, self.peak_of(Cause::Memory))
            }
            Ended::ByItself(status, usage, discarded) => {
                self.ran.stdout_truncated = discarded.stdout > 0;
                self.ran.stderr_truncated = discarded.stderr > 0;
                self.received += discarded.stdout + discarded.stderr;
                self.cut |= discarded.stdout + discarded.stderr > 0;
                self.ran.usage.cpu = Some(Duration::from_micros(usage.cpu_micros));
                self.ran.usage.memory_peak = Some(usage.max_rss_bytes);
                match (verdict, status) {
                    // It ended just as the limit was passed.
                    (Some(cause @ (Cause::CpuTime | Cause::Memory)), _) => {
                        killed(self.plan, cause, self.peak_of(cause))
                    }
                    (_, WaitStatus::Exited(code)) => Status::Exited { code: code.into() },
                    (_, WaitStatus::Signaled(signal)) => Status::Signaled { signal: signal.into() },
                    (_, WaitStatus::Stopped(stop)) => {
                        let (cause, peak) = match stop {
                            Stop::Memory => (Cause::Memory, Some(usage.max_rss_bytes)),
                            Stop::CpuTime => (Cause::CpuTime, Some(usage.cpu_micros / 1000)),
                            Stop::Cancelled => (Cause::Cancelled, None),
                        };
                        killed(self.plan, cause, peak)
                    }
                }
            }
            Ended::Vanished => {
                let why = epitaph.unwrap_or_else(|| "the cell ended unexpectedly".into());
                return Err(Trouble::Failed(why));
            }
        };
        if matches!(status, Status::Killed { .. }) && self.cut {
            (self.ran.stdout_truncated, self.ran.stderr_truncated) = (true, true);
        }
        self.balance();
        outgoing?;
        Ok(status)
    }

    fn peak_of(&self, cause: Cause) -> Option<u64> {
        self.meter.peak_of(cause, self.ran.usage.wall)
    }

    /// Usage and the limits that made calls fail.
    fn balance(&mut self) {
        self.meter.fill(&mut self.ran.usage);
        self.ran.limits_hit.extend(self.meter.limits_hit(self.plan, (self.received, self.cut)));
        if self.input.any {
            self.ran.digests.add("stdin", std::mem::take(&mut self.input.digest));
        }
        for (output, name) in self.outputs.iter_mut().zip(["stdout", "stderr"]) {
            self.ran.digests.add(name, std::mem::take(&mut output.digest));
        }
    }

    /// What is left when the payload has ended: what it did to the disk, for one.
    async fn last_look(&mut self, channel: &mut Channel) {
        channel.ask(&ToGuest::Measure);
        let listen = async {
            while let Ok(event) = channel.next().await {
                match event {
                    Event::Message(ToHost::Measured(inside)) => return self.meter.look_inside(&inside),
                    Event::Closed => return,
                    _ => {}
                }
            }
        };
        let _ = timeout(LAST_WORDS, listen).await;
    }

    /// What a killed cell had sent before it died.
    async fn last_words(&mut self, channel: &mut Channel) {
        let listen = async {
            while let Ok(event) = channel.next().await {
                match event {
                    Event::Data { stream, bytes } => match self.receive(stream, bytes) {
                        Ok(()) => {}
                        Err(_) => break,
                    },
                    Event::Message(ToHost::OutputCut { .. }) => self.cut = true,
                    Event::Message(ToHost::Exited { usage, .. }) => {
                        self.ran.usage.cpu = Some(Duration::from_micros(usage.cpu_micros));
                        self.ran.usage.memory_peak = Some(usage.max_rss_bytes);
                        break;
                    }
                    Event::Closed => break,
                    _ => {}
                }
            }
        };
        let _ = timeout(LAST_WORDS, listen).await;
    }
}

enum Permit<'a> {
    Listener(tokio::sync::mpsc::Permit<'a, Chunk>),
    /// Nobody listens, or nobody does any more.
    Nobody,
}

async fn reserve(output: Option<&tokio::sync::mpsc::Sender<Chunk>>) -> Permit<'_> {
    match output {
        Some(sender) => sender.reserve().await.map_or(Permit::Nobody, Permit::Listener),
        None => Permit::Nobody,
    }
}

/// The result of `future` if it has one now.
async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}

async fn read_some(
    stdin: &mut Option<Box<dyn tokio::io::AsyncRead + Send + Unpin>>,
    space: &mut [u8],
) -> std::io::Result<usize> {
    match stdin {
        Some(stdin) => stdin.read(space).await,
        None => Ok(0),
    }
}

/// Completes when the caller wants the execution to end.
pub(crate) async fn cancelled(cancel: &mut Option<tokio::sync::watch::Receiver<bool>>) {
    if let Some(receiver) = cancel
        && receiver.wait_for(|wanted| *wanted).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
