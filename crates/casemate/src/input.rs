//! Our standard input as the guest's. It is read on a thread that nobody waits for: a read from a terminal or
//! pipe may never return, and the run ends all the same.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread;

use casemate_core::request::Stdin;
use rustix::event::PollFlags;
use rustix::fs::{FileType, fstat, stat};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

use crate::output::wait_for;

const CHUNK: usize = 64 * 1024;
/// Chunks read ahead of the guest.
const AHEAD: usize = 2;

/// Whether there is input to pass on: a pipe, a file or a socket, but not a terminal and not nothing.
pub(crate) fn attached() -> Stdin {
    let Ok(stdin) = fstat(io::stdin().as_fd()) else { return Stdin::Empty };
    match FileType::from_raw_mode(stdin.st_mode) {
        FileType::Fifo | FileType::RegularFile | FileType::Socket => Stdin::Provided,
        // A device such as /dev/zero is somebody's intention; /dev/null is the usual way to say nothing.
        FileType::CharacterDevice => {
            let null = stat("/dev/null").is_ok_and(|null| null.st_rdev == stdin.st_rdev);
            let terminal = io::IsTerminal::is_terminal(&io::stdin());
            if null || terminal { Stdin::Empty } else { Stdin::Provided }
        }
        _ => Stdin::Empty,
    }
}

/// Reads only once the engine asks, so that a refused run leaves the input to whoever comes next.
#[derive(Debug, Default)]
pub(crate) struct Input {
    chunks: Option<mpsc::Receiver<io::Result<Vec<u8>>>>,
    current: Vec<u8>,
    taken: usize,
}

impl AsyncRead for Input {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let input = self.get_mut();
        if input.taken == input.current.len() {
            let chunks = input.chunks.get_or_insert_with(start);
            match ready!(chunks.poll_recv(context)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(chunk)) => (input.current, input.taken) = (chunk, 0),
            }
        }
        let rest = &input.current[input.taken..];
        let fits = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..fits]);
        input.taken += fits;
        Poll::Ready(Ok(()))
    }
}

fn start() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    thread::spawn(move || {
        let stdin = io::stdin();
        loop {
            let mut chunk = vec![0; CHUNK];
            let read = match rustix::io::read(stdin.as_fd(), &mut chunk) {
                Ok(0) => return,
                Ok(read) => {
                    chunk.truncate(read);
                    Ok(chunk)
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => {
                    wait_for(stdin.as_fd(), PollFlags::IN);
                    continue;
                }
                Err(error) => Err(error.into()),
            };
            let failed = read.is_err();
            if sender.blocking_send(read).is_err() || failed {
                return;
            }
        }
    });
    receiver
}
