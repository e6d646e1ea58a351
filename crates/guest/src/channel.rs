//! The guest's end of the channel: frames in, frames out, never blocking.

use alloc::vec::Vec;

use casemate_bare::io;
use casemate_wire::frame::{self, Body, Decoder};
use casemate_wire::guest::ToHost;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Outgoing bytes beyond which the guest stops reading pipes and files.
const ENOUGH_QUEUED: usize = 512 * 1024;

pub(crate) struct Channel {
    input: OwnedFd,
    output: OwnedFd,
    pub(crate) decoder: Decoder,
    outgoing: Vec<u8>,
    sent: usize,
}

impl Channel {
    /// Over a socket.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Channel> {
        let output = rustix::io::fcntl_dupfd_cloexec(&socket, 0)?;
        Channel::of(socket, output)
    }

    /// Over a pipe for each direction.
    pub(crate) fn of(input: OwnedFd, output: OwnedFd) -> io::Result<Channel> {
        for file in [&input, &output] {
            let flags = rustix::fs::fcntl_getfl(file)?;
            rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::NONBLOCK)?;
        }
        Ok(Channel { input, output, decoder: Decoder::for_requests(), outgoing: Vec::new(), sent: 0 })
    }

    pub(crate) fn tell(&mut self, message: &ToHost) {
        frame::encode(0, Body::Message(&message.encode()), &mut self.outgoing);
    }

    pub(crate) fn send(&mut self, stream: u32, body: Body<'_>) {
        frame::encode(stream, body, &mut self.outgoing);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.outgoing.len() - self.sent < ENOUGH_QUEUED
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Writes what the other side takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.wants_to_write() {
            match rustix::io::write(&self.output, &self.outgoing[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// What to wait for: something to read, and room to write if there is something to be written.
    pub(crate) fn wakes(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let output = self.wants_to_write().then(|| (self.output.as_fd(), PollFlags::OUT));
        [(self.input.as_fd(), PollFlags::IN)].into_iter().chain(output)
    }

    /// Reads what has come. `false` once the engine is gone.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        match rustix::io::read(&self.input, self.decoder.space()) {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.decoder.filled(n);
                Ok(true)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
