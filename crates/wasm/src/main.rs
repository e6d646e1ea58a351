//! casemate-wasm: runs compiled WASM for one tenant, as the payload of a cell.
//!
//! Its standard input is a socket to the engine, on which it is told what to load and what to call, in the frames that guests
//! speak. Every call gets a store and an instance of its own. There is no compiler in here, no key, and no other tenant's data;
//! who takes this process over is inside a cell with nothing in it. When the socket closes, it ends.

mod call;
mod determinism;
mod http;
mod line;
mod modules;
mod origin;
mod settings;
mod streams;
mod ticker;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::guest::ToHost;
use casemate_wire::worker::{Call, ToWorker};
use tokio::sync::Semaphore;

use crate::call::Handle;
use crate::line::{Event, Line, Voice};
use crate::modules::{MAX_INSTANCES, Modules, in_short};
use crate::ticker::Ticker;

/// Source code that is kept for calls to come.
const MAX_SOURCE: usize = 64 << 20;

fn main() -> io::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let served = runtime.block_on(async { tokio::spawn(serve()).await? });
    // What still runs is of no use to anybody.
    runtime.shutdown_background();
    served
}

/// Until the engine is gone, or speaks nonsense.
async fn serve() -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let (mut line, voice) = line::open(socket)?;
    tokio::spawn(voice.clone().send_the_rest());
    voice.tell(&ToHost::Hello { version: PROTOCOL_VERSION });
    voice.flush();
    let modules = Modules::default();
    let ticker = Ticker::start(modules.engines())?;
    let mut worker = Worker {
        modules,
        calls: Calls::default(),
        sources: HashMap::new(),
        admitted: Vec::new(),
        voice,
        ticker,
        places: Arc::new(Semaphore::new(MAX_INSTANCES as usize)),
    };
    loop {
        while let Some(event) = line.next()? {
            worker.handle(event, &mut line)?;
        }
        // Only now: what a call is given often comes together with it.
        if worker.begin_calls() {
            line.stay_awake_again();
        }
        if !line.fill().await? {
            return Ok(());
        }
    }
}

struct Worker {
    modules: Modules,
    calls: Calls,
    sources: HashMap<u32, Vec<u8>>,
    /// Calls that are about to begin; some of them were always quick.
    admitted: Vec<(bool, Run)>,
    voice: Voice,
    ticker: Ticker,
    /// For calls that go on.
    places: Arc<Semaphore>,
}

/// A call, until it has been reported.
type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Calls that go on.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<HashMap<u32, Handle>>>);

impl Worker {
    fn handle(&mut self, event: Event, line: &mut Line) -> io::Result<()> {
        match event {
            Event::Message(ToWorker::Load { module, mode, maker }) => {
                let code = line.descriptor()?;
                let answer = match self.modules.load(module, mode, maker, code) {
                    Ok((world, imports)) => ToHost::Loaded { module, world, imports },
                    Err(error) => ToHost::LoadFailed { module, why: in_short(&error) },
                };
                self.voice.tell(&answer);
                self.voice.flush();
            }
            Event::Message(ToWorker::Unload { module }) => self.modules.unload(module),
            Event::Message(ToWorker::Soon { processor }) => line.stay_awake(processor),
            Event::Message(ToWorker::Source { call, bytes }) => {
                if self.sources.values().map(Vec::len).sum::<usize>() + bytes.len() > MAX_SOURCE {
                    return Err(io::Error::other("too much source code"));
                }
                self.sources.entry(call).or_default().extend(bytes);
            }
            Event::Message(ToWorker::Call(call)) => self.admit(call),
            Event::Message(ToWorker::Cancel { call }) => {
                if let Some(handle) = self.calls.of_stream(call) {
                    handle.cancel.notify_one();
                }
            }
            // Frames for a call that has ended meanwhile are normal; a breach of flow control is not.
            Event::Data { stream, bytes } => {
                if let Some(handle) = self.calls.of_stream(stream) {
                    handle.stdin.data(&bytes).map_err(io::Error::other)?;
                }
            }
            Event::Credit { stream, bytes } => {
                if let Some(handle) = self.calls.of_stream(stream) {
                    handle.outputs.credit(stream, bytes).map_err(io::Error::other)?;
                }
            }
            Event::End { stream } => {
                if let Some(handle) = self.calls.of_stream(stream) {
                    handle.stdin.end();
                }
            }
        }
        Ok(())
    }

    fn admit(&mut self, call: Call) {
        let id = call.id;
        let source = self.sources.remove(&id).unwrap_or_default();
        let loaded = match self.modules.get(call.module) {
            Some(loaded) if loaded.may_run(call.grants) => loaded,
            found => {
                let why = if found.is_some() { "it imports what was not granted" } else { "no such module" };
                self.voice.tell(&ToHost::CallFailed { call: id, why: why.into() });
                return self.voice.flush();
            }
        };
        let handle = Handle::new(&call, loaded.mode, &self.voice);
        self.calls.add(handle.clone());
        let quick = loaded.quick.load(Ordering::Relaxed);
        let (calls, voice, places) = (self.calls.clone(), self.voice.clone(), self.places.clone());
        let running = self.ticker.begin();
        let run = Box::pin(async move {
            let run = call::run(call, source, loaded, handle, voice.clone(), &places);
            // A bug in here is the end of one call, not of all.
            if Caught(Box::pin(run)).await.is_err() {
                voice.tell(&ToHost::CallFailed { call: id, why: "the worker has a bug: it panicked".into() });
                voice.flush();
            }
            calls.remove(id);
            drop(running);
        });
        self.admitted.push((quick, run));
    }

    /// Whether all of them are over already: more of the kind may follow at once.
    fn begin_calls(&mut self) -> bool {
        let mut over = !self.admitted.is_empty();
        for (quick, mut run) in self.admitted.drain(..) {
            // What takes less time than another thread would to wake up is done at once.
            if !quick || poll_once(run.as_mut()).is_pending() {
                tokio::spawn(run);
                over = false;
            }
        }
        over
    }
}

/// A future whose panic is its result.
struct Caught<F>(Pin<Box<F>>);

impl<F: Future> Future for Caught<F> {
    type Output = std::thread::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let poll = AssertUnwindSafe(|| self.0.as_mut().poll(context));
        match catch_unwind(poll) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

fn poll_once(future: Pin<&mut (dyn Future<Output = ()> + Send)>) -> Poll<()> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

impl Calls {
    fn add(&self, handle: Handle) {
        self.lock().insert(handle.id, handle);
    }

    fn remove(&self, id: u32) {
        self.lock().remove(&id);
    }

    /// The streams of a call follow its number.
    fn of_stream(&self, stream: u32) -> Option<Handle> {
        self.lock().get(&(stream & !3)).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Handle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
