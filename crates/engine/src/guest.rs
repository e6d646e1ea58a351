//! The engine's end of the channel to a guest. Everything that arrives here is hostile until checked.

use std::io;
use std::os::fd::OwnedFd;

use casemate_wire::Malformed;
use casemate_wire::frame::{self, Body, Decoder, FrameError, OverCredit};
use casemate_wire::guest::{ToGuest, ToHost};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;
use crate::walls::wasm::CallChannel;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("the channel to the guest failed")]
    Io(#[from] io::Error),
    #[error("the guest broke the protocol: {0}")]
    Frame(#[from] FrameError),
    #[error("the guest broke the protocol: {0}")]
    Message(#[from] Malformed),
    #[error("the guest broke the protocol: {0}")]
    Credit(#[from] OverCredit),
    #[error("the guest broke the protocol: {0}")]
    Order(&'static str),
}

#[derive(Debug)]
pub(crate) enum Event {
    Message(ToHost),
    Data {
        stream: u32,
        bytes: Vec<u8>,
    },
    Credit {
        stream: u32,
        bytes: u32,
    },
    End {
        stream: u32,
    },
    /// The cell is gone.
    Closed,
}

/// What an execution's streams travel on.
pub(crate) enum Channel {
    /// A socket to a guest.
    Guest(GuestChannel),
    /// One call's share of the line to a WASM worker.
    Call(CallChannel),
}

impl Channel {
    pub(crate) fn send(&mut self, stream: u32, body: Body<'_>) {
        match self {
            Channel::Guest(channel) => channel.send(stream, body),
            Channel::Call(channel) => channel.send(stream, body),
        }
    }

    /// Queues a message for a guest; a worker has none of these.
    pub(crate) fn ask(&mut self, message: &ToGuest) {
        if let Channel::Guest(channel) = self {
            channel.tell(message);
        }
    }

    /// The next event. Safe to cancel: nothing is lost.
    pub(crate) async fn next(&mut self) -> Result<Event, ChannelError> {
        match self {
            Channel::Guest(channel) => channel.next().await,
            Channel::Call(channel) => Ok(channel.next().await),
        }
    }
}

pub(crate) struct GuestChannel {
    socket: AsyncFd<OwnedFd>,
    /// While the socket is full: another descriptor of it, to be told when it has room.
    full: Option<AsyncFd<OwnedFd>>,
    decoder: Decoder,
    outgoing: Vec<u8>,
    sent: usize,
}

impl GuestChannel {
    /// Over a socket that does not block.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<GuestChannel> {
        let socket = sys::watch_fd(socket, Interest::READABLE)?;
        Ok(GuestChannel { socket, full: None, decoder: Decoder::default(), outgoing: Vec::new(), sent: 0 })
    }

    /// Queues a message; [`GuestChannel::next`] or [`GuestChannel::flush`] writes it.
    pub(crate) fn tell(&mut self, message: &ToGuest) {
        frame::encode(0, Body::Message(&message.encode()), &mut self.outgoing);
    }

    pub(crate) fn send(&mut self, stream: u32, body: Body<'_>) {
        frame::encode(stream, body, &mut self.outgoing);
    }

    /// Writes what the socket takes now.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            let socket = self.socket.get_ref();
            match rustix::net::send(socket, &self.outgoing[self.sent..], SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => {
                    if self.full.is_none() {
                        self.full = Some(sys::watch_fd(socket.try_clone()?, Interest::WRITABLE)?);
                    }
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                // The guest is gone; reading will say so after what it had still sent.
                Err(Errno::PIPE) => self.sent = self.outgoing.len(),
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        self.full = None;
        Ok(())
    }

    /// The next event. Safe to cancel: nothing is lost.
    pub(crate) async fn next(&mut self) -> Result<Event, ChannelError> {
        loop {
            // Whoever floods us must not keep clocks and signals from being looked at.
            tokio::task::coop::consume_budget().await;
            self.flush()?;
            if let Some(frame) = self.decoder.next_frame()? {
                return Ok(match frame.body {
                    Body::Message(bytes) => Event::Message(ToHost::decode(bytes)?),
                    Body::Data(bytes) => Event::Data { stream: frame.stream, bytes: bytes.to_vec() },
                    Body::Credit(bytes) => Event::Credit { stream: frame.stream, bytes },
                    Body::End => Event::End { stream: frame.stream },
                });
            }
            let mut ready = tokio::select! {
                ready = self.socket.readable() => ready?,
                room = room(self.full.as_ref()) => {
                    room?;
                    continue;
                }
            };
            match ready.try_io(|socket| Ok(rustix::io::read(socket, self.decoder.space())?)) {
                Ok(Ok(0)) => return Ok(Event::Closed),
                Ok(Ok(n)) => self.decoder.filled(n),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Event::Closed),
                Ok(Err(error)) => return Err(error.into()),
                Err(_would_block) => {}
            }
        }
    }
}

/// Completes when a socket that was full may have room.
async fn room(full: Option<&AsyncFd<OwnedFd>>) -> io::Result<()> {
    match full {
        // If it has none after all, the next attempt to write will say so, and this has to wait for a change.
        Some(full) => full.writable().await.map(|mut ready| ready.clear_ready()),
        None => std::future::pending().await,
    }
}
