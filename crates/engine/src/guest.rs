//! The engine's end of the channel to a guest. Everything that arrives here is hostile until checked.

use std::io;

use casemate_wire::Malformed;
use casemate_wire::frame::{self, Body, Decoder, FrameError, OverCredit};
use casemate_wire::guest::{ToGuest, ToHost};
use tokio::io::Interest;
use tokio::net::UnixStream;

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

pub(crate) struct Channel {
    socket: UnixStream,
    decoder: Decoder,
    outgoing: Vec<u8>,
    sent: usize,
}

impl Channel {
    pub(crate) fn new(socket: UnixStream) -> Channel {
        Channel { socket, decoder: Decoder::default(), outgoing: Vec::new(), sent: 0 }
    }

    /// Queues a message; [`Channel::next`] or [`Channel::flush`] writes it.
    pub(crate) fn tell(&mut self, message: &ToGuest) {
        frame::encode(0, Body::Message(&message.encode()), &mut self.outgoing);
    }

    pub(crate) fn send(&mut self, stream: u32, body: Body<'_>) {
        frame::encode(stream, body, &mut self.outgoing);
    }

    /// Writes what the socket takes now.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            match self.socket.try_write(&self.outgoing[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The guest is gone; reading will say so after what it had still sent.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.sent = self.outgoing.len(),
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// The next event. Safe to cancel: nothing is lost.
    pub(crate) async fn next(&mut self) -> Result<Event, ChannelError> {
        loop {
            self.flush()?;
            if let Some(frame) = self.decoder.next_frame()? {
                return Ok(match frame.body {
                    Body::Message(bytes) => Event::Message(ToHost::decode(bytes)?),
                    Body::Data(bytes) => Event::Data { stream: frame.stream, bytes: bytes.to_vec() },
                    Body::Credit(bytes) => Event::Credit { stream: frame.stream, bytes },
                    Body::End => Event::End { stream: frame.stream },
                });
            }
            let interest = match self.outgoing.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let ready = self.socket.ready(interest).await?;
            if !ready.is_readable() {
                continue;
            }
            match self.socket.try_read(self.decoder.space()) {
                Ok(0) => return Ok(Event::Closed),
                Ok(n) => self.decoder.filled(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Event::Closed),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
