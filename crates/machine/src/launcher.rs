//! The launcher in the machine: the same program as on a host, and the same words.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::launch::{
    Ahead, Answer, CellSpec, Hello, Image, MAX_ANSWER, MAX_DESCRIPTORS, Op, Request, RunId, Serves,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};

use crate::boot::Content;
use crate::failure::Failure;
use crate::{line, ports};

pub(crate) struct Launcher {
    socket: OwnedFd,
    #[allow(dead_code, reason = "it is never waited for: without it, this machine ends")]
    child: Child,
}

impl Launcher {
    /// Starts it, and has it make whatever the coming cell needs and does not depend on what that will be.
    pub(crate) fn start(program: OwnedFd, content: &Content) -> Result<(Launcher, Hello), Failure> {
        let started = (|| {
            let (socket, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
            command.arg0("casemate-launcher").env_clear().stdin(theirs).stdout(Stdio::null());
            let child = command.spawn()?;
            let launcher = Launcher { socket, child };
            let image = match content {
                Content::Image(_) => Image::Directory,
                Content::Program(_) => Image::Empty,
            };
            launcher.send(&Op::Serve { wall: Serves::Container, ahead: Ahead::First(image) })?;
            // There is one engine for this machine, and one cell: nobody else has to find them.
            launcher.send(&Op::Start { run: RunId([0; 16]), generation: 0 })?;
            match Answer::decode(&launcher.receive()?) {
                Ok(Answer::Hello(hello)) if hello.version == PROTOCOL_VERSION => Ok((launcher, hello)),
                _ => Err(io::Error::other("it said something else than hello")),
            }
        })();
        started.map_err(Failure::at("start the launcher"))
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn send(&self, op: &Op) -> io::Result<()> {
        self.pass(&Request { id: 0, op: op.clone() }.encode(), &[])
    }

    pub(crate) fn pass(&self, request: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(sendmsg(&self.socket, &[IoSlice::new(request)], &mut control, SendFlags::NOSIGNAL).map(drop)?)
    }

    /// The next answer. An error when the launcher is gone.
    pub(crate) fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0; MAX_ANSWER];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.socket, &mut answer[..]))? {
            0 => Err(io::Error::other("it has ended")),
            length => {
                answer.truncate(length);
                Ok(answer)
            }
        }
    }
}

/// What belongs to a cell in this machine: the channel to the engine, and what there is to run.
pub(crate) struct Belongings {
    channel: OwnedFd,
    content: Content,
    line: Option<OwnedFd>,
}

impl Belongings {
    pub(crate) fn gather(content: Content) -> Result<Belongings, Failure> {
        let channel = ports::open(casemate_wire::machine::CELL_PORT)?;
        let line = match content {
            Content::Image(_) => None,
            Content::Program(_) => Some(line::open()?),
        };
        Ok(Belongings { channel, content, line })
    }

    #[cfg(feature = "hostile")]
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// The descriptors that go with a cell, in the order in which the launcher takes them.
    pub(crate) fn of(&self, spec: &CellSpec) -> Vec<BorrowedFd<'_>> {
        let mut descriptors = vec![self.channel.as_fd()];
        match &self.content {
            Content::Image(image) => descriptors.push(image.as_fd()),
            Content::Program(program) => descriptors.push(program.as_fd()),
        }
        if spec.attached == casemate_wire::launch::Attached::ProgramAndLine {
            descriptors.extend(self.line.as_ref().map(AsFd::as_fd));
        }
        // Whether these are the right ones for such a cell, the launcher checks.
        descriptors
    }
}
