//! Machines that have booted and wait, and the clones of them.
//!
//! A template is a machine's memory, sealed, and the state of everything else. A clone maps that memory privately: what it does not
//! write to, all clones share. The machine that became a template is gone by then.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use casemate_core::outcome::Refusal;
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::machine::FromMachine;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::initramfs;
use super::kit::Kit;
use super::link::{Link, LinkError};
use super::qemu::{self, Birth, Devices, Monitor};
use super::shape::Shape;
use super::vmm::{Console, Vmm};
use crate::sys;
use crate::wall::WallError;
use crate::walls::container::Container;

/// How long a machine may take to boot. It takes two or three seconds.
const BOOT: Duration = Duration::from_secs(60);

/// What there is in a machine to run.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    /// An image, as a disk.
    Disk(BorrowedFd<'a>),
    Program(&'a [u8]),
}

impl<'a> Content<'a> {
    fn disk(self) -> Option<BorrowedFd<'a>> {
        match self {
            Content::Disk(disk) => Some(disk),
            Content::Program(_) => None,
        }
    }
}

pub(super) struct Template {
    pub(super) shape: Shape,
    pub(super) memory: OwnedFd,
    pub(super) state: OwnedFd,
    /// As QEMU introduced itself when it made this.
    pub(super) qemu: String,
}

/// Programs of ours that are in every machine.
pub(super) struct Programs<'a> {
    pub(super) machine: &'a [u8],
    pub(super) launcher: &'a [u8],
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> WallError + '_ {
    move |error| WallError::Failed(format!("{what}: {error}"))
}

/// Boots a machine, waits until it is ready, and writes it down.
pub(super) async fn make(
    container: &Container,
    kit: &Kit,
    programs: Programs<'_>,
    content: Content<'_>,
    shape: Shape,
) -> Result<Template, WallError> {
    let kernel = kit.kernel().map_err(WallError::Refused)?;
    let mut drivers = kit.drivers(casemate_wire::machine::places::DRIVERS).map_err(WallError::Refused)?;
    drivers.extend(kit.drivers(casemate_wire::machine::places::EXTRA).map_err(WallError::Refused)?);
    let archive = initramfs::archive(&initramfs::Contents {
        machine: programs.machine,
        launcher: programs.launcher,
        drivers: &drivers,
        program: match content {
            Content::Disk(_) => None,
            Content::Program(program) => Some(program),
        },
    });
    let in_memory = |name, bytes: &[u8]| sys::sealed_program(name, bytes);
    let kernel = in_memory("kernel", &kernel).map_err(failed("cannot put a kernel into memory"))?;
    let archive = in_memory("initramfs", &archive).map_err(failed("cannot put drivers into memory"))?;
    let memory = sys::plain_memory("machine", shape.memory_bytes).map_err(failed("cannot make memory"))?;
    let state = sys::plain_memory("state", 0).map_err(failed("cannot make memory"))?;
    let sockets = failed("cannot make ports");
    let (mut link, control) = Link::pair().map_err(sockets)?;
    let (_cell, their_cell) = StdStream::pair().map_err(failed("cannot make ports"))?;
    let (_line, their_line) = StdStream::pair().map_err(failed("cannot make ports"))?;
    let (ours, monitor) = StdStream::pair().map_err(failed("cannot make ports"))?;
    let devices = Devices {
        memory: memory.as_fd(),
        disk: content.disk(),
        control: control.as_fd(),
        cell: their_cell.as_fd(),
        // Whoever waits there for something must not find nobody.
        line: Some(their_line.as_fd()),
    };
    let tsc_khz = sys::tsc_khz();
    let birth =
        Birth::Boot { kernel: kernel.as_fd(), initramfs: archive.as_fd(), monitor: monitor.as_fd(), tsc_khz };
    let (command, inherited) = qemu::command(shape, devices, birth);
    let mut vmm = Vmm::start(container, shape, command, &inherited).await?;
    drop((control, their_cell, their_line, monitor));
    let listened = timeout(BOOT, ready(&mut link, &vmm.console)).await;
    let late = || {
        WallError::Failed(format!(
            "the virtual machine did not boot within {BOOT:?}: {}",
            vmm.console.last_words()
        ))
    };
    listened.map_err(|_| late())??;
    ours.set_nonblocking(true).map_err(failed("cannot talk to QEMU"))?;
    let written = async {
        let mut monitor = Monitor::open(UnixStream::from_std(ours)?).await?;
        monitor.save(state.as_fd()).await.map(|()| monitor.version)
    };
    let qemu = written.await.map_err(failed("the virtual machine cannot be written down"))?;
    // It has to let go of the memory before that can be sealed.
    vmm.finish().await?;
    vmm.console.ended().await;
    drop(vmm);
    let (memory, state) = tokio::task::spawn_blocking(move || Ok((sys::seal(memory)?, sys::seal(state)?)))
        .await
        .map_err(|error| WallError::Failed(error.to_string()))?
        .map_err(failed("cannot seal a template"))?;
    Ok(Template { shape, memory, state, qemu })
}

/// Until the machine says so, or something went wrong.
async fn ready(link: &mut Link, console: &Console) -> Result<(), WallError> {
    let said = tokio::select! {
        said = link.next() => said,
        () = console.ended() => Err(LinkError::Closed),
    };
    match said {
        Ok(FromMachine::Ready { version: PROTOCOL_VERSION, hello }) => match hello.container {
            Ok(())
                if hello.cgroups.memory && hello.cgroups.pids && hello.landlock_abi > 0 && hello.seccomp =>
            {
                Ok(())
            }
            Ok(()) => Err(unfit(&format!(
                "control groups: {:?}, Landlock ABI {}",
                hello.cgroups.missing, hello.landlock_abi
            ))),
            Err(why) => Err(unfit(&why)),
        },
        Ok(FromMachine::Failed { step, message }) => Err(unfit(&format!("{step}: {message}"))),
        Ok(_) => Err(WallError::Failed("the virtual machine spoke out of turn".into())),
        Err(LinkError::Closed) => Err(unfit(&console.epitaph().await)),
        Err(error) => Err(WallError::Failed(error.to_string())),
    }
}

fn unfit(why: &str) -> WallError {
    WallError::Refused(Refusal::new(
        format!("the kernel for virtual machines cannot be used: {why}"),
        "`casemate setup microvm` installs one that is known to work",
    ))
}

/// The host's ends of a clone's ports, and QEMU.
pub(super) struct Clone {
    pub(super) vmm: Vmm,
    pub(super) link: Link,
    /// Nobody listens to it any more, but without it QEMU would miss it.
    pub(super) monitor: StdStream,
}

/// A machine's ends of its ports.
pub(super) struct Ports<'a> {
    pub(super) cell: BorrowedFd<'a>,
    pub(super) line: Option<BorrowedFd<'a>>,
}

/// Starts a machine from a template.
pub(super) async fn clone(
    container: &Container,
    template: &Template,
    content: Content<'_>,
    ports: Ports<'_>,
) -> Result<Clone, WallError> {
    let (link, control) = Link::pair().map_err(failed("cannot make ports"))?;
    let state = qemu::reopened(&template.state).map_err(failed("cannot open a template"))?;
    let (mut monitor, theirs) = StdStream::pair().map_err(failed("cannot make ports"))?;
    // There is room for a few lines before anybody reads them.
    monitor.write_all(qemu::beginning().as_bytes()).map_err(failed("cannot talk to QEMU"))?;
    let devices = Devices {
        memory: template.memory.as_fd(),
        disk: content.disk(),
        control: control.as_fd(),
        cell: ports.cell,
        line: ports.line,
    };
    let (command, inherited) = qemu::command(
        template.shape,
        devices,
        Birth::Clone { state: state.as_fd(), monitor: theirs.as_fd() },
    );
    let vmm = Vmm::start(container, template.shape, command, &inherited).await?;
    Ok(Clone { vmm, link, monitor })
}
