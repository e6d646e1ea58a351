//! The host's side of the standard input of a machine's only program. Whoever talks to that has a socket, and may send descriptors
//! through it; a machine cannot be given one, so their content goes there instead (`casemate_wire::machine::line`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream as StdStream;

use casemate_wire::machine::line::{self, Kind, MAX_RECORD};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::AbortHandle;

use crate::sys;

/// What a program may be sent at once: compiled code.
const MOST_CONTENT: u64 = 1 << 30;

/// Carries what passes, until one side is gone or this is dropped.
pub(super) struct Pump {
    tasks: Vec<AbortHandle>,
    _nobody: Option<StdStream>,
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Takes the program's end of a line, and returns the machine's end of its port.
pub(super) fn open(theirs: BorrowedFd<'_>) -> io::Result<(Pump, OwnedFd)> {
    let socket = theirs.try_clone_to_owned()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    let (ours, port) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let (from_machine, to_machine) = UnixStream::from_std(ours)?.into_split();
    let answers = UnixStream::from_std(StdStream::from(socket.try_clone()?))?;
    let inward = tokio::spawn(async move {
        // Whichever side is gone, the other hears of it: both of its ends are dropped.
        let _ = inward(socket, to_machine).await;
    });
    let outward = tokio::spawn(async move {
        let _ = outward(from_machine, answers).await;
    });
    let tasks = vec![inward.abort_handle(), outward.abort_handle()];
    Ok((Pump { tasks, _nobody: None }, port.into()))
}

/// A port for a program that has no line: nothing comes, and it does not end. To a machine, a port with nobody behind it would look as if
/// it had ended.
pub(super) fn silence() -> io::Result<(Pump, OwnedFd)> {
    let (nobody, port) = StdStream::pair()?;
    Ok((Pump { tasks: Vec::new(), _nobody: Some(nobody) }, port.into()))
}

/// To the program: bytes as records, and the content of descriptors before the bytes that they came with.
async fn inward(socket: OwnedFd, mut machine: OwnedWriteHalf) -> io::Result<()> {
    let socket = sys::watch_fd(socket, Interest::READABLE)?;
    let mut buffer = vec![0; MAX_RECORD];
    loop {
        let mut ready = socket.readable().await?;
        let Ok(received) = ready.try_io(|socket| sys::receive_some(socket.as_fd(), &mut buffer)) else {
            continue;
        };
        let (length, descriptors) = received?;
        if length == 0 {
            return Ok(());
        }
        for descriptor in descriptors {
            send_content(File::from(descriptor), &mut machine).await?;
        }
        machine.write_all(&line::header(Kind::Bytes, length)).await?;
        machine.write_all(&buffer[..length]).await?;
    }
}

async fn send_content(file: File, machine: &mut OwnedWriteHalf) -> io::Result<()> {
    let length = file.metadata()?.len();
    if length > MOST_CONTENT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // It is memory of ours, which is never waited for.
    let mut piece = vec![0; MAX_RECORD];
    let mut at = 0;
    while at < length {
        let wanted = (length - at).min(MAX_RECORD as u64) as usize;
        file.read_exact_at(&mut piece[..wanted], at)?;
        machine.write_all(&line::header(Kind::Content, wanted)).await?;
        machine.write_all(&piece[..wanted]).await?;
        at += wanted as u64;
    }
    machine.write_all(&line::header(Kind::Descriptor, 0)).await
}

/// From the program: bytes, which whoever reads them holds for hostile.
async fn outward(mut machine: OwnedReadHalf, mut answers: UnixStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match machine.read(&mut buffer).await? {
            0 => return answers.shutdown().await,
            length => answers.write_all(&buffer[..length]).await?,
        }
    }
}
