//! From ready to the end: one loop over the engine and the launcher.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::launch::{Op, Request, Wall};
use casemate_wire::machine::{FromMachine, ToMachine};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::boot::{self, Content};
use crate::failure::Failure;
use crate::launcher::{Belongings, Launcher};
use crate::ports::Port;
use crate::wake;

/// Serves the engine until something fails, which it is told.
pub(crate) fn serve(mut port: Port, content: Content, program: OwnedFd) -> Failure {
    let Err(failure) = serve_until(&mut port, content, program);
    let (step, message) = (failure.step.clone(), failure.error.to_string());
    let _ = port.tell(&FromMachine::Failed { step, message });
    failure
}

fn serve_until(port: &mut Port, content: Content, program: OwnedFd) -> Result<Infallible, Failure> {
    let (launcher, hello) = Launcher::start(program, &content)?;
    let belongings = Belongings::gather(content)?;
    port.tell(&FromMachine::Ready { version: PROTOCOL_VERSION, hello })
        .map_err(Failure::at("say that it is ready"))?;
    let mut awake = false;
    loop {
        let (asked, answered) =
            wait(port, &launcher).map_err(Failure::at("wait for the engine and the launcher"))?;
        if answered {
            let answer = launcher.receive().map_err(Failure::at("listen to the launcher"))?;
            port.tell(&FromMachine::Launcher(answer)).map_err(Failure::at("pass an answer on"))?;
        }
        if !asked {
            continue;
        }
        port.fill().map_err(Failure::at("listen to the engine"))?;
        while let Some(message) = port.next().map_err(Failure::at("listen to the engine"))? {
            let malformed = |error| Failure::at("understand the engine")(io::Error::other(error));
            match ToMachine::decode(&message).map_err(malformed)? {
                ToMachine::Wake(_) if awake => return Err(Failure::new("wake", "it is awake")),
                ToMachine::Wake(seed) => {
                    #[cfg(feature = "hostile")]
                    crate::hostile::instead_of_waking(port, &seed);
                    let sample = wake::wake(&seed)?;
                    awake = true;
                    port.tell(&FromMachine::Awake { id: seed.id, sample })
                        .map_err(Failure::at("say that it is awake"))?;
                }
                // A template must not begin anything: its clones would all have begun the same.
                ToMachine::Launcher(_) if !awake => return Err(Failure::new("launch", "it is not awake")),
                ToMachine::Launcher(request) => {
                    #[cfg(feature = "hostile")]
                    crate::hostile::instead_of_launching(port, &belongings, &request);
                    let descriptors = match Request::decode(&request).map_err(malformed)?.op {
                        Op::Launch(spec) => {
                            if matches!(spec.wall, Wall::Machine { .. }) {
                                boot::load_extra();
                            }
                            belongings.of(&spec)
                        }
                        _ => Vec::new(),
                    };
                    launcher.pass(&request, &descriptors).map_err(Failure::at("pass a request on"))?;
                }
            }
        }
    }
}

/// Whether the engine and the launcher have something to say.
fn wait(port: &Port, launcher: &Launcher) -> io::Result<(bool, bool)> {
    let mut polled = [
        PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(launcher.as_fd(), PollFlags::IN),
    ];
    match poll(&mut polled, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let (engine, launcher) = (polled[0].revents(), polled[1].revents());
    if engine.contains(PollFlags::HUP) && !engine.contains(PollFlags::IN) && launcher.is_empty() {
        // Nobody is at the other end, which the kernel says again and again.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((engine.contains(PollFlags::IN), !launcher.is_empty()))
}
