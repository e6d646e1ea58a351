//! The ports to the engine, by their names.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use casemate_wire::frame::{self, Body, Decoder};
use casemate_wire::machine::FromMachine;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::boot::{open_device, wait_for};
use crate::failure::Failure;

const LISTED: &str = "/sys/class/virtio-ports";

/// Opens the port of that name, once it is there.
pub(crate) fn open(name: &str) -> Result<OwnedFd, Failure> {
    let device = wait_for(name, || find(name))?;
    open_device(&device).map_err(Failure::at(format!("open the port {name}")))
}

fn find(name: &str) -> io::Result<Option<PathBuf>> {
    let listed = match fs::read_dir(LISTED) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in listed {
        let entry = entry?;
        // It may not have been given its name yet.
        let named = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        let device = Path::new("/dev").join(entry.file_name());
        if named.trim_end() == name && device.exists() {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// The machine's own port: messages, one at a time.
pub(crate) struct Port {
    device: OwnedFd,
    decoder: Decoder,
}

impl Port {
    pub(crate) fn open(name: &str) -> Result<Port, Failure> {
        let device = open(name)?;
        rustix::io::ioctl_fionbio(&device, true).map_err(Failure::at("open the port"))?;
        Ok(Port { device, decoder: Decoder::default() })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Writes all of it, however long nobody reads: without an engine there is nothing else to do.
    pub(crate) fn tell(&self, message: &FromMachine) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame::encode(0, Body::Message(&message.encode()), &mut bytes);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match rustix::io::write(&self.device, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::OUT)], None)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    #[cfg(feature = "hostile")]
    pub(crate) fn write(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match rustix::io::write(&self.device, bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    }

    /// Takes what has come.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        match rustix::io::read(&self.device, self.decoder.space()) {
            Ok(more) => self.decoder.filled(more),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The next whole message, if there is one.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.decoder.next_frame().map_err(io::Error::other)? {
            None => Ok(None),
            Some(frame) => match frame.body {
                Body::Message(bytes) => Ok(Some(bytes.to_vec())),
                _ => Err(io::Error::other("the engine sent something else than a message")),
            },
        }
    }
}
