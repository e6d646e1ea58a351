//! The engine's end of the line to a worker: many calls on one socket. Everything that arrives here is hostile until checked.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use casemate_wire::frame::{self, Body, Decoder, MAX_PAYLOAD, WINDOW};
use casemate_wire::guest::ToHost;
use casemate_wire::worker::{self as wire, ModuleId, ToWorker, World};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::guest::Event;
use crate::run::EXEC;
use crate::sys;

/// What may wait for a call to be taken: more than both its windows allow, and a worker that sends it is broken.
const MAX_WAITING: usize = 2 * WINDOW as usize + 8 * MAX_PAYLOAD;
/// What flow control does not count takes memory as well: an empty frame, a message. A worker has few of them to send.
const COST_OF_EVENT: usize = 1024;

/// The answer to a call that computes for no longer than this is waited for without going to sleep: to be woken up would take as
/// long again.
const SHORT: Duration = Duration::from_micros(100);
/// For how long.
const PATIENCE: Duration = Duration::from_micros(200);

/// Whether calls of a component are short, judged by its last one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace(Arc<AtomicBool>);

impl Pace {
    pub(crate) fn is_short(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn note(&self, computed: Duration) {
        self.0.store(computed < SHORT, Ordering::Relaxed);
    }
}

/// One worker's line. Shared by whoever calls.
pub(crate) struct Line {
    socket: AsyncFd<OwnedFd>,
    outgoing: Mutex<Outgoing>,
    state: Mutex<State>,
    /// The worker said hello, or is gone.
    changed: Notify,
    numbers: AtomicU32,
}

#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    /// Descriptors, with how many bytes go before them.
    descriptors: VecDeque<(usize, OwnedFd)>,
    /// Somebody waits for room in the socket.
    full: bool,
}

#[derive(Default)]
struct State {
    hello: bool,
    /// Why nothing comes any more.
    ended: Option<String>,
    calls: HashMap<u32, Waiting>,
    /// When the last call ended.
    quiet_since: Option<Instant>,
    loads: HashMap<ModuleId, oneshot::Sender<Result<Loaded, String>>>,
}

struct Waiting {
    events: mpsc::UnboundedSender<Event>,
    bytes: Arc<AtomicUsize>,
}

/// How long a worker may take to load code: it maps a file.
const LOAD: Duration = Duration::from_secs(10);

/// The worker ended before it could answer.
pub(crate) struct Gone;

/// What a worker says about code that it has.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) module: ModuleId,
    pub(crate) world: Result<World, String>,
    pub(crate) imports: Vec<String>,
}

/// One call's share of a line.
pub(crate) struct CallChannel {
    line: Arc<Line>,
    /// The call's number; its streams have the three after it.
    base: u32,
    events: mpsc::UnboundedReceiver<Event>,
    waiting: Arc<AtomicUsize>,
    ended: bool,
    /// Whether the answer is waited for without going to sleep.
    awake: bool,
    /// Set once the worker was told of the call: whose pace it is an example of.
    begun: Option<Pace>,
}

impl Line {
    /// Listens to a worker for as long as it lives.
    pub(crate) fn open(socket: OwnedFd) -> io::Result<Arc<Line>> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let line = Arc::new(Line {
            socket: sys::watch_fd(socket, Interest::READABLE)?,
            outgoing: Mutex::default(),
            state: Mutex::default(),
            changed: Notify::new(),
            numbers: AtomicU32::new(1),
        });
        let listener = line.clone();
        tokio::spawn(async move {
            let why = match listener.listen().await {
                Ok(()) => "it closed its line".to_owned(),
                Err(error) => error.to_string(),
            };
            listener.end(why);
        });
        Ok(line)
    }

    /// Until the worker has said hello.
    pub(crate) async fn ready(&self) -> Result<(), String> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state();
                match &state.ended {
                    Some(why) => return Err(why.clone()),
                    None if state.hello => return Ok(()),
                    None => {}
                }
            }
            changed.await;
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.state().ended.is_none()
    }

    /// Why the worker is gone.
    pub(crate) fn end(&self, why: String) {
        let mut state = self.state();
        state.ended.get_or_insert(why);
        // Whoever waits notices that nothing can come any more.
        state.calls.clear();
        state.loads.clear();
        drop(state);
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.changed.notify_waiters();
    }

    /// Passes compiled code on.
    pub(crate) async fn load(
        self: &Arc<Line>,
        message: impl FnOnce(ModuleId) -> ToWorker,
        code: OwnedFd,
    ) -> Result<Result<Loaded, String>, Gone> {
        let module = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.state();
            // Nobody is left who would ever answer.
            if state.ended.is_some() {
                return Err(Gone);
            }
            state.loads.insert(module, sender);
        }
        {
            let mut outgoing = self.outgoing();
            let at = outgoing.bytes.len();
            outgoing.descriptors.push_back((at, code));
            frame::encode(0, Body::Message(&message(module).encode()), &mut outgoing.bytes);
        }
        self.flush();
        match tokio::time::timeout(LOAD, receiver).await {
            Ok(answer) => answer.map_err(|_| Gone),
            Err(_) => {
                self.end(format!("it did not load code within {LOAD:?}"));
                Err(Gone)
            }
        }
    }

    /// A place for a call. One that is `short` is announced, so that the worker wakes up while the engine is still busy with it.
    pub(crate) fn call(self: &Arc<Line>, short: bool) -> CallChannel {
        // Four numbers each, so that the control stream's is nobody's.
        let base = self.numbers.fetch_add(1, Ordering::Relaxed).wrapping_mul(4);
        let (sender, events) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut state = self.state();
        let alone = state.calls.is_empty();
        let asleep = state.quiet_since.is_none_or(|since| since.elapsed() > wire::AWAKE);
        if state.ended.is_none() {
            state.calls.insert(base, Waiting { events: sender, bytes: waiting.clone() });
        }
        drop(state);
        // With others, there is always somebody awake at both ends.
        let awake = short && alone;
        if awake && asleep {
            self.tell(&ToWorker::Soon { processor: rustix::thread::sched_getcpu() as u32 });
        }
        CallChannel { line: self.clone(), base, events, waiting, ended: false, awake, begun: None }
    }

    /// Says something that has no answer.
    pub(crate) fn tell(self: &Arc<Line>, message: &ToWorker) {
        self.post(0, Body::Message(&message.encode()));
        self.flush();
    }

    /// Whether a call is going on.
    pub(crate) fn is_busy(&self) -> bool {
        !self.state().calls.is_empty()
    }

    fn post(&self, stream: u32, body: Body<'_>) {
        frame::encode(stream, body, &mut self.outgoing().bytes);
    }

    /// Sends what the socket takes now; the rest follows when there is room.
    fn flush(self: &Arc<Line>) {
        let mut outgoing = self.outgoing();
        if outgoing.full || self.try_send(&mut outgoing) {
            return;
        }
        outgoing.full = true;
        let line = self.clone();
        tokio::spawn(async move {
            if let Err(error) = line.send_the_rest().await {
                line.end(error.to_string());
            }
        });
    }

    async fn send_the_rest(&self) -> io::Result<()> {
        let room = sys::watch_fd(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?;
        loop {
            // If it has none after all, this has to wait for a change.
            room.writable().await?.clear_ready();
            let mut outgoing = self.outgoing();
            if self.try_send(&mut outgoing) {
                outgoing.full = false;
                return Ok(());
            }
        }
    }

    /// Whether all of it went. What cannot be sent because the worker is gone went, too: the listener hears of that.
    fn try_send(&self, outgoing: &mut Outgoing) -> bool {
        let mut sent = 0;
        while sent < outgoing.bytes.len() {
            // A descriptor travels with the first byte of its message.
            let next = outgoing.descriptors.front().map(|(at, _)| *at);
            let (end, descriptor) = match next {
                Some(at) if at == sent => (outgoing.bytes.len(), outgoing.descriptors.front()),
                Some(at) => (at, None),
                None => (outgoing.bytes.len(), None),
            };
            let end = match outgoing.descriptors.get(1) {
                Some((second, _)) if descriptor.is_some() => *second,
                _ => end,
            };
            let descriptor = descriptor.map(|(_, fd)| fd.as_fd());
            match sys::send_some(self.socket.get_ref().as_fd(), &outgoing.bytes[sent..end], descriptor) {
                Ok(more) => {
                    if descriptor.is_some() {
                        outgoing.descriptors.pop_front();
                    }
                    sent += more;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    outgoing.descriptors.clear();
                    sent = outgoing.bytes.len();
                }
            }
        }
        outgoing.bytes.drain(..sent);
        for (at, _) in &mut outgoing.descriptors {
            *at -= sent;
        }
        outgoing.bytes.is_empty()
    }

    async fn listen(self: &Arc<Line>) -> io::Result<()> {
        let mut decoder = Decoder::default();
        loop {
            while let Some(frame) = decoder.next_frame().map_err(io::Error::other)? {
                let event = match frame.body {
                    Body::Message(bytes) => Event::Message(ToHost::decode(bytes).map_err(io::Error::other)?),
                    Body::Data(bytes) => Event::Data { stream: frame.stream, bytes: bytes.to_vec() },
                    Body::Credit(bytes) => Event::Credit { stream: frame.stream, bytes },
                    Body::End => Event::End { stream: frame.stream },
                };
                self.route(event)?;
                // Whoever floods us must not keep clocks and signals from being looked at.
                tokio::task::coop::consume_budget().await;
            }
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| Ok(rustix::io::read(socket, decoder.space())?)) {
                Ok(Ok(0)) => return Ok(()),
                Ok(Ok(n)) => decoder.filled(n),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    /// Hands an event to the call that it belongs to, in that call's own numbers.
    fn route(self: &Arc<Line>, event: Event) -> io::Result<()> {
        let (number, event) = match event {
            Event::Message(ToHost::Hello { version: casemate_wire::PROTOCOL_VERSION }) => {
                self.state().hello = true;
                self.changed.notify_waiters();
                return Ok(());
            }
            Event::Message(ToHost::Loaded { module, world, imports }) => {
                self.loaded(module, Ok(Loaded { module, world, imports }));
                return Ok(());
            }
            Event::Message(ToHost::LoadFailed { module, why }) => {
                self.loaded(module, Err(why));
                return Ok(());
            }
            Event::Message(ToHost::Exited { exec, status, usage, discarded }) => {
                (exec, Event::Message(ToHost::Exited { exec: EXEC, status, usage, discarded }))
            }
            Event::Message(ToHost::CallFailed { call, why }) => {
                (call, Event::Message(ToHost::CallFailed { call: EXEC, why }))
            }
            Event::Message(ToHost::OutputCut { exec }) => {
                (exec, Event::Message(ToHost::OutputCut { exec: EXEC }))
            }
            Event::Message(ToHost::HandlesSpent { exec }) => {
                (exec, Event::Message(ToHost::HandlesSpent { exec: EXEC }))
            }
            Event::Data { stream, bytes } => (stream, Event::Data { stream: stream & 3, bytes }),
            Event::Credit { stream, bytes } => (stream, Event::Credit { stream: stream & 3, bytes }),
            Event::End { stream } => (stream, Event::End { stream: stream & 3 }),
            _ => return Err(io::Error::other("the worker broke the protocol")),
        };
        let mut state = self.state();
        let number = number & !3;
        let over = matches!(event, Event::Message(ToHost::Exited { .. } | ToHost::CallFailed { .. }));
        // A call that nobody waits for any more was given up.
        let Some(call) = state.calls.get(&number) else { return Ok(()) };
        let cost = cost(&event);
        if call.bytes.fetch_add(cost, Ordering::Relaxed) + cost > MAX_WAITING {
            return Err(io::Error::other("the worker sends more than was asked for"));
        }
        let _ = call.events.send(event);
        if over {
            state.calls.remove(&number);
            state.quiet_since = Some(Instant::now());
        }
        Ok(())
    }

    fn loaded(self: &Arc<Line>, module: ModuleId, answer: Result<Loaded, String>) {
        let Some(sender) = self.state().loads.remove(&module) else { return };
        if let Err(Ok(_)) = sender.send(answer) {
            // Whoever asked for it has gone.
            self.tell(&ToWorker::Unload { module });
        }
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an event takes while it waits.
fn cost(event: &Event) -> usize {
    match event {
        Event::Data { bytes, .. } if !bytes.is_empty() => bytes.len(),
        _ => COST_OF_EVENT,
    }
}

impl CallChannel {
    /// The number under which the worker knows this call.
    pub(crate) fn number(&self) -> u32 {
        self.base
    }

    /// Tells the worker of the call, which is an example of this pace.
    pub(crate) fn begin(&mut self, call: wire::Call, pace: Pace) {
        self.tell(&ToWorker::Call(call));
        self.begun = Some(pace);
    }

    pub(crate) fn tell(&self, message: &ToWorker) {
        self.line.post(0, Body::Message(&message.encode()));
    }

    pub(crate) fn send(&self, stream: u32, body: Body<'_>) {
        self.line.post(self.base + stream, body);
    }

    pub(crate) async fn next(&mut self) -> Event {
        self.line.flush();
        self.wait_awake().await;
        let Some(event) = self.events.recv().await else { return Event::Closed };
        self.waiting.fetch_sub(cost(&event), Ordering::Relaxed);
        match &event {
            Event::Message(ToHost::Exited { usage, .. }) => {
                if let Some(pace) = &self.begun {
                    pace.note(Duration::from_micros(usage.cpu_micros));
                }
                self.ended = true;
            }
            Event::Message(ToHost::CallFailed { .. }) => self.ended = true,
            _ => {}
        }
        event
    }

    /// For a short while, while everybody else has their turn, here and on this processor.
    async fn wait_awake(&mut self) {
        if !std::mem::take(&mut self.awake) {
            return;
        }
        let began = Instant::now();
        while self.events.is_empty() && began.elapsed() < PATIENCE {
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    }

    /// Something to end the call with, for who does not have this.
    pub(crate) fn remote(&self) -> Remote {
        Remote { line: self.line.clone(), number: self.base }
    }
}

/// Ends a call.
pub(crate) struct Remote {
    line: Arc<Line>,
    number: u32,
}

impl Remote {
    /// Has the worker give the call up, unless it is over.
    pub(crate) fn cancel(&self) {
        if self.line.state().calls.contains_key(&self.number) {
            self.line.post(0, Body::Message(&ToWorker::Cancel { call: self.number }.encode()));
            self.line.flush();
        }
    }
}

/// How long a worker may take to give a call up.
const GIVE_UP: Duration = Duration::from_secs(1);

impl Drop for CallChannel {
    fn drop(&mut self) {
        if self.ended || !self.line.is_alive() {
            return;
        }
        if self.begun.is_none() {
            // The worker knows nothing of it.
            self.line.state().calls.remove(&self.base);
            return;
        }
        self.remote().cancel();
        let (line, number) = (self.line.clone(), self.base);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(GIVE_UP).await;
            if line.state().calls.contains_key(&number) {
                line.end("it did not give up a call".into());
            }
        });
    }
}
