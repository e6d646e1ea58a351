//! Bytes between a session's task and whoever they are for. Bounded by the windows of the streams that they travel on: what was not
//! taken yet is not credited, and without credit the guest sends nothing.

use tokio::sync::{mpsc, oneshot};

use super::FileError;
use super::actor::Command;

/// What comes out of a session. Dropped, the rest is thrown away.
#[derive(Debug)]
pub struct Outflow<T> {
    items: mpsc::UnboundedReceiver<(T, Credit)>,
    number: u32,
    commands: mpsc::UnboundedSender<Command>,
}

/// What may be sent in return for something that was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Credit {
    pub(super) stream: u32,
    pub(super) bytes: usize,
}

pub(super) type Source<T> = mpsc::UnboundedSender<(T, Credit)>;

impl<T> Outflow<T> {
    pub(super) fn new(number: u32, commands: mpsc::UnboundedSender<Command>) -> (Source<T>, Outflow<T>) {
        let (source, items) = mpsc::unbounded_channel();
        (source, Outflow { items, number, commands })
    }

    /// The next one; `None` when nothing more comes. Safe to cancel.
    pub async fn next(&mut self) -> Option<T> {
        let (item, credit) = self.items.recv().await?;
        if credit.bytes > 0 {
            let _ = self.commands.send(Command::Consumed(credit));
        }
        Some(item)
    }
}

impl<T> Drop for Outflow<T> {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Abandoned { number: self.number });
    }
}

/// What waits at the session's task at a time.
const PIECE: usize = 64 << 10;

/// What goes into a session: the content of a file, or the standard input of a program.
#[derive(Debug, Clone)]
pub struct Inflow {
    pub(super) number: u32,
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl Inflow {
    /// Comes back when there is room for more. An error: nobody takes it any more. Given up, what was not taken yet is forgotten.
    pub async fn send(&self, bytes: Vec<u8>) -> Result<(), FileError> {
        for piece in bytes.chunks(PIECE) {
            let (sent, answer) = oneshot::channel();
            let input = Command::Input { number: self.number, bytes: piece.to_vec(), sent };
            let _ = self.commands.send(input);
            answer.await.map_err(|_| FileError::Ended)?;
        }
        Ok(())
    }

    /// Nothing more follows.
    pub fn end(&self) {
        let _ = self.commands.send(Command::EndInput { number: self.number });
    }
}
