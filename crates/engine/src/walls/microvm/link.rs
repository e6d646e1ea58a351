//! The engine's end of a machine's control port. What arrives here is hostile until checked: a machine may have been taken over.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream as StdStream;

use casemate_wire::Malformed;
use casemate_wire::frame::{self, Body, Decoder, FrameError};
use casemate_wire::machine::{FromMachine, ToMachine};
use tokio::net::UnixStream;

#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the port to the machine failed: {0}")]
    Io(#[from] io::Error),
    #[error("the machine broke the protocol: {0}")]
    Frame(#[from] FrameError),
    #[error("the machine broke the protocol: {0}")]
    Message(#[from] Malformed),
    #[error("the machine broke the protocol: {0}")]
    Order(&'static str),
    #[error("the machine has hung up")]
    Closed,
}

pub(super) struct Link {
    socket: UnixStream,
    decoder: Decoder,
    outgoing: VecDeque<u8>,
}

impl Link {
    /// A link, and the machine's end of it.
    pub(super) fn pair() -> io::Result<(Link, StdStream)> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let socket = UnixStream::from_std(ours)?;
        Ok((Link { socket, decoder: Decoder::default(), outgoing: VecDeque::new() }, theirs))
    }

    /// Sends a message, as far as there is room; [`Link::next`] sends the rest.
    pub(super) fn tell(&mut self, message: &ToMachine) {
        let mut bytes = Vec::new();
        frame::encode(0, Body::Message(&message.encode()), &mut bytes);
        self.outgoing.extend(bytes);
        // What is wrong with the socket, reading will say.
        let _ = self.flush();
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.socket.try_write(self.outgoing.as_slices().0) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message. Safe to cancel: nothing is lost.
    pub(super) async fn next(&mut self) -> Result<FromMachine, LinkError> {
        loop {
            // A machine that floods us must not keep clocks from being looked at.
            tokio::task::coop::consume_budget().await;
            if let Some(frame) = self.decoder.next_frame()? {
                return match frame.body {
                    Body::Message(bytes) => Ok(FromMachine::decode(bytes)?),
                    _ => Err(LinkError::Order("something else than a message")),
                };
            }
            if self.outgoing.is_empty() {
                self.socket.readable().await?;
            } else {
                let interest = tokio::io::Interest::READABLE | tokio::io::Interest::WRITABLE;
                self.socket.ready(interest).await?;
                // To write to nobody is no news: what was said before may still be there to be read.
                if self.flush().is_err() {
                    self.outgoing.clear();
                }
            }
            match self.socket.try_read(self.decoder.space()) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(more) => self.decoder.filled(more),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(LinkError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
