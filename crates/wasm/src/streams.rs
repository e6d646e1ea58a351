//! Standard streams of one call: frames of the line on one side, WASI streams on the other.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use casemate_wire::frame::{Body, MAX_PAYLOAD, OverCredit, ReceiveWindow, SendWindow, WINDOW};
use casemate_wire::guest::{Discarded, ToHost};
use casemate_wire::worker::Mode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use wasmtime_wasi::cli::{IsTerminal, StdinStream, StdoutStream};
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

use crate::line::Voice;

/// What a deterministic call is given of its input at a time. Less than a window, or it would never be there.
const BLOCK: usize = MAX_PAYLOAD;
const _: () = assert!(BLOCK <= WINDOW as usize);

/// What a call reads.
#[derive(Clone)]
pub(crate) struct Stdin(Arc<Input>);

struct Input {
    stream: u32,
    mode: Mode,
    voice: Voice,
    state: Mutex<InputState>,
    arrived: Notify,
}

#[derive(Default)]
struct InputState {
    waiting: VecDeque<u8>,
    /// How much of it may be read now.
    released: usize,
    ended: bool,
    window: ReceiveWindow,
}

/// What a call writes: both streams, which share a budget.
#[derive(Clone)]
pub(crate) struct Outputs(Arc<Shared>);

struct Shared {
    call: u32,
    voice: Voice,
    state: Mutex<OutputState>,
    credited: Notify,
}

struct OutputState {
    budget: u64,
    cut: bool,
    outputs: [Output; 2],
}

struct Output {
    stream: u32,
    window: SendWindow,
    discarded: u64,
}

/// One of them.
#[derive(Clone)]
pub(crate) struct Stdout {
    outputs: Outputs,
    index: usize,
}

impl Stdin {
    /// Without a stream there is nothing to read.
    pub(crate) fn new(stream: Option<u32>, mode: Mode, voice: Voice) -> Stdin {
        let state = InputState { ended: stream.is_none(), ..InputState::default() };
        let (stream, state) = (stream.unwrap_or(0), Mutex::new(state));
        Stdin(Arc::new(Input { stream, mode, voice, state, arrived: Notify::new() }))
    }

    pub(crate) fn data(&self, bytes: &[u8]) -> Result<(), OverCredit> {
        let mut state = self.state();
        state.window.receive(bytes.len())?;
        state.waiting.extend(bytes);
        drop(state);
        self.0.arrived.notify_waiters();
        Ok(())
    }

    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.0.arrived.notify_waiters();
    }

    /// All of it, once it has ended; `None` if it is longer than `most`.
    pub(crate) async fn read_all(&self, most: usize) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            match self.take(MAX_PAYLOAD) {
                Some(bytes) if bytes.is_empty() => self.wait().await,
                Some(bytes) if all.len() + bytes.len() > most => return None,
                Some(bytes) => all.extend_from_slice(&bytes),
                None => return Some(all),
            }
        }
    }

    /// Up to `size` bytes; none if there are none yet, `None` at the end.
    fn take(&self, size: usize) -> Option<Bytes> {
        let mut state = self.state();
        state.release(self.0.mode);
        let count = state.released.min(size);
        if count == 0 {
            return (!state.is_over() || size == 0).then(Bytes::new);
        }
        state.released -= count;
        let bytes: Bytes = state.waiting.drain(..count).collect();
        let credit = state.window.consume(count);
        drop(state);
        if let Some(credit) = credit {
            self.0.voice.send(self.0.stream, Body::Credit(credit));
            self.0.voice.flush();
        }
        Some(bytes)
    }

    async fn wait(&self) {
        let arrived = self.0.arrived.notified();
        tokio::pin!(arrived);
        // Registered before the look, so that nothing is missed in between.
        arrived.as_mut().enable();
        if !self.is_ready() {
            arrived.await;
        }
    }

    fn is_ready(&self) -> bool {
        let mut state = self.state();
        state.release(self.0.mode);
        state.released > 0 || state.is_over()
    }

    fn state(&self) -> MutexGuard<'_, InputState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InputState {
    /// In which pieces it arrives differs from run to run. Who must not notice gets it in blocks of one size.
    fn release(&mut self, mode: Mode) {
        self.released = match mode {
            Mode::Ordinary => self.waiting.len(),
            Mode::Deterministic if self.released > 0 => self.released,
            Mode::Deterministic if self.ended => self.waiting.len().min(BLOCK),
            Mode::Deterministic if self.waiting.len() >= BLOCK => BLOCK,
            Mode::Deterministic => 0,
        };
    }

    fn is_over(&self) -> bool {
        self.ended && self.waiting.is_empty()
    }
}

impl Outputs {
    pub(crate) fn new(call: u32, streams: [u32; 2], budget: u64, voice: Voice) -> Outputs {
        let outputs = streams.map(|stream| Output { stream, window: SendWindow::default(), discarded: 0 });
        let state = Mutex::new(OutputState { budget, cut: false, outputs });
        Outputs(Arc::new(Shared { call, voice, state, credited: Notify::new() }))
    }

    pub(crate) fn stdout(&self) -> Stdout {
        Stdout { outputs: self.clone(), index: 0 }
    }

    pub(crate) fn stderr(&self) -> Stdout {
        Stdout { outputs: self.clone(), index: 1 }
    }

    pub(crate) fn discarded(&self) -> Discarded {
        let state = self.state();
        Discarded { stdout: state.outputs[0].discarded, stderr: state.outputs[1].discarded }
    }

    pub(crate) fn credit(&self, stream: u32, bytes: u32) -> Result<(), OverCredit> {
        let mut state = self.state();
        if let Some(output) = state.outputs.iter_mut().find(|output| output.stream == stream) {
            output.window.refund(bytes)?;
        }
        drop(state);
        self.0.credited.notify_waiters();
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, OutputState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stdout {
    /// How much may be written now.
    fn room(&self) -> usize {
        let state = self.outputs.state();
        match state.budget {
            // Over the limit everything is taken, and dropped: the call goes on, as it would into a pipe that is read on.
            0 => MAX_PAYLOAD,
            _ => state.outputs[self.index].window.available().min(MAX_PAYLOAD),
        }
    }

    /// Takes as much as there is room for.
    fn put(&self, bytes: &[u8]) -> usize {
        let shared = &self.outputs.0;
        let mut state = self.outputs.state();
        let OutputState { budget, cut, outputs } = &mut *state;
        let output = &mut outputs[self.index];
        let within = bytes.len().min(usize::try_from(*budget).unwrap_or(usize::MAX));
        let kept = within.min(output.window.available()).min(MAX_PAYLOAD);
        if kept > 0 {
            output.window.spend(kept);
            *budget -= kept as u64;
            shared.voice.send(output.stream, Body::Data(&bytes[..kept]));
        }
        if *budget > 0 || kept == bytes.len() {
            return kept;
        }
        output.discarded += (bytes.len() - kept) as u64;
        if !std::mem::replace(cut, true) {
            shared.voice.tell(&ToHost::OutputCut { exec: shared.call });
        }
        bytes.len()
    }

    /// Writes all of it, at the pace at which it is read.
    pub(crate) async fn put_all(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.put(bytes) {
                0 => self.wait().await,
                taken => bytes = &bytes[taken..],
            }
        }
    }

    async fn wait(&self) {
        let credited = self.outputs.0.credited.notified();
        tokio::pin!(credited);
        credited.as_mut().enable();
        if self.room() == 0 {
            self.outputs.0.voice.flush();
            credited.await;
        }
    }
}

impl IsTerminal for Stdin {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdinStream for Stdin {
    fn async_stream(&self) -> Box<dyn AsyncRead + Send + Sync> {
        // Only asked for by interfaces that this worker does not link.
        Box::new(tokio::io::empty())
    }

    fn p2_stream(&self) -> Box<dyn InputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for Stdin {
    async fn ready(&mut self) {
        self.wait().await;
    }
}

impl InputStream for Stdin {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        // Whatever is asked for, no more than this is made at a time.
        self.take(size.min(MAX_PAYLOAD)).ok_or(StreamError::Closed)
    }
}

impl IsTerminal for Stdout {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Stdout {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for Stdout {
    async fn ready(&mut self) {
        self.wait().await;
    }
}

impl OutputStream for Stdout {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        match self.put(&bytes) {
            taken if taken == bytes.len() => Ok(()),
            _ => Err(StreamError::trap("more was written than there was room for")),
        }
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.outputs.0.voice.flush();
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(self.room())
    }
}

/// For interfaces that want one; see [`Stdin::async_stream`].
impl AsyncWrite for Stdout {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(self.put(bytes)))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
