//! The standard input of a machine's only program: a socket, as it would have on a host. What comes from the engine passes through here,
//! since a port carries no descriptors (`casemate_wire::machine::line`).

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use casemate_wire::machine::line::{self, HEADER, Kind, MAX_RECORD};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::failure::Failure;
use crate::ports;
use crate::sys;

/// Opens the port, and returns the program's end. Two threads carry what passes, until one side is gone.
pub(crate) fn open() -> Result<OwnedFd, Failure> {
    let port = File::from(ports::open(casemate_wire::machine::LINE_PORT)?);
    let opened = (|| {
        let (ours, theirs) = UnixStream::pair()?;
        let (port_too, ours_too) = (port.try_clone()?, ours.try_clone()?);
        std::thread::Builder::new().name("line in".into()).spawn(move || {
            let ended = inward(port, &ours);
            give_up(ended);
        })?;
        std::thread::Builder::new().name("line out".into()).spawn(move || {
            let ended = outward(ours_too, port_too);
            give_up(ended);
        })?;
        Ok::<_, io::Error>(OwnedFd::from(theirs))
    })();
    opened.map_err(Failure::at("open the line"))
}

/// Without its line, the machine is of no use.
fn give_up(ended: io::Result<()>) {
    if let Err(error) = ended {
        eprintln!("casemate-machine: the line: {error}");
        sys::power_off()
    }
}

/// From the engine to the program.
fn inward(mut port: File, socket: &UnixStream) -> io::Result<()> {
    let mut descriptors: VecDeque<OwnedFd> = VecDeque::new();
    let mut content: Option<File> = None;
    let mut record = vec![0; MAX_RECORD];
    loop {
        let mut header = [0; HEADER];
        port.read_exact(&mut header)?;
        let parsed = line::parse(header);
        let (kind, length) = parsed.ok_or_else(|| io::Error::other("there is no such record"))?;
        let bytes = &mut record[..length];
        port.read_exact(bytes)?;
        match kind {
            Kind::Content => {
                let memory = match &mut content {
                    Some(memory) => memory,
                    None => {
                        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                        content.insert(memfd_create("content", flags)?.into())
                    }
                };
                memory.write_all(bytes)?;
            }
            Kind::Descriptor => {
                let whole = content.take().ok_or_else(|| io::Error::other("a descriptor without content"))?;
                let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
                fcntl_add_seals(&whole, all)?;
                descriptors.push_back(whole.into());
            }
            Kind::Bytes => match pass(socket, bytes, descriptors.pop_front()) {
                // The program has ended, which its guest tells.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                passed => passed?,
            },
        }
    }
}

fn pass(socket: &UnixStream, mut bytes: &[u8], mut descriptor: Option<OwnedFd>) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let borrowed = descriptor.as_ref().map(|descriptor| [descriptor.as_fd()]);
        if let Some(borrowed) = &borrowed {
            control.push(SendAncillaryMessage::ScmRights(borrowed));
        }
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        drop(descriptor.take());
    }
    Ok(())
}

/// From the program to the engine, until the program is gone.
fn outward(mut socket: UnixStream, mut port: File) -> io::Result<()> {
    let mut buffer = vec![0; 32 * 1024];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => port.write_all(&buffer[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(()),
        }
    }
}
