//! The socket to the engine: frames in, with descriptors now and then; frames out, from any thread.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use casemate_wire::frame::{self, Body, Decoder};
use casemate_wire::guest::ToHost;
use casemate_wire::worker::{AWAKE, ToWorker};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use rustix::thread::sched_getcpu;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// Descriptors that may come in one packet of bytes.
const MAX_DESCRIPTORS: usize = 4;

/// What the engine says.
pub(crate) enum Event {
    Message(ToWorker),
    Data { stream: u32, bytes: Vec<u8> },
    Credit { stream: u32, bytes: u32 },
    End { stream: u32 },
}

/// The reading end. Whatever comes here, the engine answers for: it is read strictly all the same.
pub(crate) struct Line {
    socket: AsyncFd<OwnedFd>,
    decoder: Decoder,
    descriptors: VecDeque<OwnedFd>,
    /// Until when more is waited for without going to sleep.
    awake: Option<Instant>,
    /// The processor that the last call which was announced came from.
    caller: Option<u32>,
}

/// The writing end.
#[derive(Clone)]
pub(crate) struct Voice(Arc<Shared>);

struct Shared {
    socket: OwnedFd,
    unsent: Mutex<Vec<u8>>,
    /// The socket was full: somebody has to wait until it is not.
    full: Notify,
}

pub(crate) fn open(socket: OwnedFd) -> io::Result<(Line, Voice)> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    let shared = Shared { socket: socket.try_clone()?, unsent: Mutex::default(), full: Notify::new() };
    let socket = watch(socket, Interest::READABLE)?;
    let line = Line {
        socket,
        decoder: Decoder::for_requests(),
        descriptors: VecDeque::new(),
        awake: None,
        caller: None,
    };
    Ok((line, Voice(Arc::new(shared))))
}

/// Registers a descriptor with the runtime. Who asks for room in a socket is woken whenever its peer reads: that is asked only
/// when there is none.
#[allow(unsafe_code, reason = "the runtime wants to be promised that the descriptor stays what it is")]
fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays the same open descriptor until it is dropped, and the `AsyncFd` owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}

impl Line {
    /// The next event of those that have arrived.
    pub(crate) fn next(&mut self) -> io::Result<Option<Event>> {
        let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? else { return Ok(None) };
        let stream = frame.stream;
        Ok(Some(match frame.body {
            Body::Message(bytes) => Event::Message(ToWorker::decode(bytes).map_err(io::Error::other)?),
            Body::Data(bytes) => Event::Data { stream, bytes: bytes.to_vec() },
            Body::Credit(bytes) => Event::Credit { stream, bytes },
            Body::End => Event::End { stream },
        }))
    }

    /// The descriptor that came with the message just read.
    pub(crate) fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.descriptors.pop_front().ok_or_else(|| io::Error::other("a message without its descriptor"))
    }

    /// More is about to come, from somebody on this processor.
    pub(crate) fn stay_awake(&mut self, processor: u32) {
        self.caller = Some(processor);
        self.stay_awake_again();
    }

    /// If nobody is kept from sending more by that.
    pub(crate) fn stay_awake_again(&mut self) {
        let elsewhere = self.caller.is_some_and(|caller| caller as usize != sched_getcpu());
        self.awake = elsewhere.then(|| Instant::now() + AWAKE);
    }

    /// Waits for more to arrive; `false` when the engine is gone.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        let awake = self.awake.take();
        while awake.is_some_and(|until| Instant::now() < until) {
            match receive(&self.socket, &mut self.decoder, &mut self.descriptors) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                received => return received,
            }
        }
        loop {
            let mut ready = self.socket.readable().await?;
            let received = ready.try_io(|socket| receive(socket, &mut self.decoder, &mut self.descriptors));
            if let Ok(received) = received {
                return received;
            }
        }
    }
}

/// Whether the engine is still there.
fn receive(
    socket: &AsyncFd<OwnedFd>,
    decoder: &mut Decoder,
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(decoder.space())];
    let received =
        retry_on_intr(|| recvmsg(socket.get_ref(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC));
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    let bytes = received?.bytes;
    decoder.filled(bytes);
    Ok(bytes > 0)
}

impl Voice {
    /// Appends to what is to be sent; [`Voice::flush`] sends it.
    pub(crate) fn tell(&self, message: &ToHost) {
        frame::encode(0, Body::Message(&message.encode()), &mut self.unsent());
    }

    pub(crate) fn send(&self, stream: u32, body: Body<'_>) {
        frame::encode(stream, body, &mut self.unsent());
    }

    /// Sends what the socket takes now; the rest follows by itself.
    pub(crate) fn flush(&self) {
        if !self.try_flush() {
            self.0.full.notify_one();
        }
    }

    /// Whether all of it went.
    fn try_flush(&self) -> bool {
        let mut unsent = self.unsent();
        let mut sent = 0;
        while sent < unsent.len() {
            match send(&self.0.socket, &unsent[sent..], SendFlags::NOSIGNAL) {
                Ok(more) => sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The engine is gone, which the reading end will notice.
                Err(_) => sent = unsent.len(),
            }
        }
        unsent.drain(..sent);
        unsent.is_empty()
    }

    /// Sends what did not fit, for ever.
    pub(crate) async fn send_the_rest(self) {
        loop {
            self.0.full.notified().await;
            if self.send_when_there_is_room().await.is_err() {
                // Without this, calls would wait for an end that is never told.
                let _ = rustix::net::shutdown(&self.0.socket, rustix::net::Shutdown::Both);
                return;
            }
        }
    }

    async fn send_when_there_is_room(&self) -> io::Result<()> {
        let room = watch(self.0.socket.try_clone()?, Interest::WRITABLE)?;
        loop {
            // If it has none after all, this has to wait for a change.
            room.writable().await?.clear_ready();
            if self.try_flush() {
                return Ok(());
            }
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
