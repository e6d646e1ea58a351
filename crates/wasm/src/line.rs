//! The socket to the engine: frames in, with descriptors now and then; frames out, from any thread.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use casemate_wire::frame::{self, Body, Decoder};
use casemate_wire::guest::ToHost;
use casemate_wire::worker::ToWorker;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use tokio::io::Interest;
use tokio::net::UnixStream;
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
    socket: Arc<UnixStream>,
    decoder: Decoder,
    descriptors: VecDeque<OwnedFd>,
}

/// The writing end.
#[derive(Clone)]
pub(crate) struct Voice(Arc<Shared>);

struct Shared {
    socket: Arc<UnixStream>,
    unsent: Mutex<Vec<u8>>,
    /// The socket was full: somebody has to wait until it is not.
    full: Notify,
}

pub(crate) fn open(socket: OwnedFd) -> io::Result<(Line, Voice)> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let socket = Arc::new(UnixStream::from_std(socket)?);
    let shared = Shared { socket: socket.clone(), unsent: Mutex::default(), full: Notify::new() };
    let line = Line { socket, decoder: Decoder::for_requests(), descriptors: VecDeque::new() };
    Ok((line, Voice(Arc::new(shared))))
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

    /// Waits for more to arrive; `false` when the engine is gone.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        loop {
            self.socket.readable().await?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(self.decoder.space())];
            let received = self.socket.try_io(Interest::READABLE, || {
                Ok(recvmsg(self.socket.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes)
            });
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    self.descriptors.extend(passed);
                }
            }
            match received {
                Ok(bytes) => {
                    self.decoder.filled(bytes);
                    return Ok(bytes > 0);
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
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
            match send(&*self.0.socket, &unsent[sent..], SendFlags::NOSIGNAL) {
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
            // Tried through the socket, so that it knows when it is full again.
            loop {
                if self.0.socket.writable().await.is_err() {
                    return;
                }
                let tried = self.0.socket.try_io(Interest::WRITABLE, || match self.try_flush() {
                    true => Ok(()),
                    false => Err(ErrorKind::WouldBlock.into()),
                });
                if tried.is_ok() {
                    break;
                }
            }
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
