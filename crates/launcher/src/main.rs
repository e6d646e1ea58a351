//! casemate-launcher: the only privileged code of Casemate.
//!
//! A small, static, single-threaded process that stays alive and builds cells on request. It takes a closed
//! vocabulary (`casemate_wire::launch`) over a socketpair, derives the steps itself, and answers. It never parses a
//! path, a command or anything that comes out of a cell. When the engine's end of the socket closes, it kills every cell, removes
//! what they left, and ends.
//!
//! Its standard input is the control socket. The descriptors that come with `Start` are held for the sake of their locks.

#![no_std]
#![cfg_attr(feature = "bare", no_main)]

extern crate alloc;
#[cfg(not(feature = "bare"))]
extern crate std;

mod cells;
mod cgroup;
mod expected;
mod home;
mod image;
mod inspect;
mod interpret;
mod keeper;
mod recipe;
mod report;
mod scratch;
mod sys;
mod terminals;
#[cfg(feature = "weaken")]
mod weaken;

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::time::Duration;

use casemate_bare::{Moment, files, io};
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::launch::{
    Ahead, Answer, CellId, Hello, Image, MAX_DESCRIPTORS, MAX_REQUEST, Op, Privilege, Request, Serves,
    covers_blocks,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};

use crate::cells::{Cells, Failure};
use crate::cgroup::{Kill, Owner};
use crate::home::Home;
use crate::image::Images;

/// How long the last cells may take to go away once the engine is gone.
const LAST_SWEEP: Duration = Duration::from_secs(10);

/// When to build ahead: once whoever acts on our last answer has the processors to themselves. The engine was found
/// waiting for the very processor on which the launcher made its next network namespace.
struct Pace {
    ahead: Ahead,
    last_launch: Option<Moment>,
    /// The launches come one after the other: the next is due before any rest would be over.
    busy: bool,
    due: Option<Moment>,
}

impl Pace {
    const REST: Duration = Duration::from_millis(2);
    const BREATH: Duration = Duration::from_micros(120);

    fn asked(&mut self, op: &Op) {
        if matches!(op, Op::Launch(_)) {
            let now = Moment::now();
            self.busy = self.last_launch.is_some_and(|last| now.since(last) < 5 * Self::REST);
            self.last_launch = Some(now);
        }
    }

    fn answered(&mut self, answer: &Answer) {
        // Once a payload runs or has ended, nobody waits for us.
        if self.ahead == Ahead::Every && matches!(answer, Answer::Running { .. } | Answer::Finished { .. }) {
            self.due = Some(Moment::now() + if self.busy { Self::BREATH } else { Self::REST });
        }
    }

    fn left(&self) -> Option<Duration> {
        self.due.map(|due| due.since(Moment::now()))
    }
}

/// Which wall this launcher serves. The container launcher lives in a mount namespace of its own, which a
/// cell of the `process` wall, having no namespaces, must not see.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Container,
    Process,
}

#[cfg(feature = "bare")]
casemate_bare::program!(run);

#[cfg(not(feature = "bare"))]
fn main() {
    std::process::exit(run())
}

fn run() -> i32 {
    match serve() {
        Ok(()) => 0,
        Err(error) => {
            io::complain(&alloc::format!("casemate-launcher: {error}\n"));
            1
        }
    }
}

fn serve() -> io::Result<()> {
    #[cfg(feature = "weaken")]
    weaken::load();
    sys::default_dispositions();
    let control = sys::inherited_control()?;
    let Some((mode, ahead)) = receive_purpose(control.as_fd())? else { return Ok(()) };
    let events = sys::child_events()?;
    // Orphans of a cell without a PID namespace come to us, not to the host's init.
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)?;
    let root = rustix::process::geteuid().is_root() && owns_id_blocks()?;
    let host = inspect::Namespaces::own()?;
    let kill = match mode {
        Mode::Container => Kill::Otherwise,
        Mode::Process => Kill::ByGroup,
    };
    let tree = cgroup::Tree::open(root, kill);
    // A cell takes a few descriptors each.
    sys::raise_descriptor_limit();
    let own = sys::Shared::own().ok();
    let (home, container) = match mode {
        Mode::Container => match Home::enter(root) {
            Ok(home) => (Some(home), Ok(())),
            Err(reason) => (None, Err(reason)),
        },
        Mode::Process => (None, Err("this launcher serves the process wall".into())),
    };
    let hello = Hello {
        version: PROTOCOL_VERSION,
        privilege: if root { Privilege::Root } else { Privilege::Rootless },
        container,
        landlock_abi: casemate_guest::landlock_abi(),
        seccomp: sys::seccomp_available(),
        cgroups: tree.describe(),
    };
    let mut cells = Cells::new(mode, root, tree, host, own, Images::new(home));
    // Whatever cannot be made ahead is tried again by the launch that needs it, which reports the reason.
    if let Ahead::First(image) = ahead {
        let _ = cells.build_ahead();
        if image == Image::Host {
            let _ = cells.prepare_host_image();
        }
    }
    let Some((owner, _locks)) = receive_start(control.as_fd(), mode)? else { return Ok(()) };
    cells.tree.belong_to(owner);
    let served = answer(control.as_fd(), &Answer::Hello(hello)).and_then(|()| {
        // While the engine makes up its mind.
        if ahead != Ahead::Nothing {
            let _ = cells.build_ahead();
        }
        run_loop(&mut cells, ahead, control.as_fd(), events.as_fd())
    });
    cells.doom_all();
    let deadline = Moment::now() + LAST_SWEEP;
    loop {
        cells.sweep();
        // Without a PID namespace, what a cell has started may come to us after the cell is gone. It is not left to others.
        if (cells.is_empty() && !sys::has_children()) || Moment::now() > deadline {
            break;
        }
        let _ = wait(&[(events.as_fd(), ())], Some(Duration::from_millis(2)));
    }
    let farewell = cells.is_empty() && answer(control.as_fd(), &Answer::Farewell).is_ok();
    if farewell && served.is_ok() {
        // The kernel closes everything at once, and somebody waits.
        sys::exit_now(0);
    }
    match served {
        // Gone in the middle of a sentence: it was killed, and nobody is left to be told.
        Err(error) if matches!(error.errno(), Some(Errno::PIPE | Errno::CONNRESET)) => Ok(()),
        served => served,
    }
}

/// Root of a user namespace with a few ids is no more than another user to us.
fn owns_id_blocks() -> io::Result<bool> {
    let covered = |map: &str| Ok::<_, io::Error>(covers_blocks(&files::read_text(map)?));
    Ok(covered("/proc/self/uid_map")? && covered("/proc/self/gid_map")?)
}

/// Serves until the engine closes its end.
fn run_loop(
    cells: &mut Cells,
    ahead: Ahead,
    control: BorrowedFd<'_>,
    events: BorrowedFd<'_>,
) -> io::Result<()> {
    enum Source {
        Control,
        Children,
        Report(CellId),
    }
    let mut pace = Pace { ahead, last_launch: None, busy: false, due: None };
    loop {
        let mut sources = vec![(control, Source::Control), (events, Source::Children)];
        sources.extend(cells.reports().map(|(cell, fd)| (fd, Source::Report(cell))));
        // A group can be busy for a moment after its last process was reaped.
        let sweep_again = cells.any_dying().then_some(Duration::from_millis(2));
        let ready = wait(&sources, sweep_again.into_iter().chain(pace.left()).min())?;
        let nobody_asks = ready.is_empty();
        let (mut asked, mut reports) = (false, Vec::new());
        for index in ready {
            match sources[index].1 {
                Source::Control => asked = true,
                Source::Children => sys::drain_events(events),
                Source::Report(cell) => reports.push(cell),
            }
        }
        drop(sources);
        if nobody_asks && pace.left() == Some(Duration::ZERO) {
            pace.due = None;
            let _ = cells.build_ahead();
        }
        for cell in reports {
            if let Some(message) = cells.read_report(cell) {
                pace.answered(&message);
                answer(control, &message)?;
                // There will be no other: what is left of its image goes while it runs, and not when somebody waits.
                if matches!(ahead, Ahead::First(_)) {
                    cells.forget_images();
                }
            }
        }
        if asked {
            match receive(control)? {
                Some((request, fds)) => {
                    pace.asked(&request.op);
                    for message in handle(cells, request, &fds) {
                        pace.answered(&message);
                        answer(control, &message)?;
                    }
                }
                None => return Ok(()),
            }
        }
        for cell in cells.sweep() {
            answer(control, &Answer::Gone { cell })?;
        }
    }
}

/// The answers to a request; a launch that has begun is answered later.
fn handle(cells: &mut Cells, request: Request, fds: &[OwnedFd]) -> Vec<Answer> {
    let Request { id, op } = request;
    let failed = |Failure { step, message }| Answer::Failed { id, step, message };
    let done = match op {
        Op::Serve { .. } | Op::Start { .. } => {
            Err(Failure { step: "check request".into(), message: "started already".into() })
        }
        Op::Launch(spec) => {
            return match cells.launch(id, &spec, fds) {
                Ok(()) => Vec::new(),
                // There is another cell of this number, and it is not gone.
                Err(failure) if cells.exists(id) => vec![failed(failure)],
                Err(failure) => vec![failed(failure), Answer::Gone { cell: id }],
            };
        }
        Op::Proceed { cell } => return cells.proceed(cell).into_iter().collect(),
        Op::Look { cell, number } => {
            cells.look_at_held(cell, number).map(|sight| Answer::Looked { id, sight })
        }
        Op::Measure { cell } => cells.measure(cell).map(|counters| Answer::Measured { id, counters }),
        Op::Finish { cell } => {
            let counters = cells.balance(cell);
            // Before the answer: whoever gets it may take our processor, and dying takes longer than to read on.
            cells.doom(cell);
            counters.map(|counters| Answer::Finished { id, counters })
        }
        Op::Recover { run } => match cells.tree.recover(run) {
            Ok(()) => Ok(Answer::Recovered { id }),
            Err(error) => Err(Failure { step: "recover".into(), message: error.to_string() }),
        },
    };
    vec![done.unwrap_or_else(failed)]
}

/// Indices of the descriptors that are readable or closed; empty after `patience`.
fn wait<T>(sources: &[(BorrowedFd<'_>, T)], patience: Option<Duration>) -> io::Result<Vec<usize>> {
    let mut polled: Vec<PollFd<'_>> =
        sources.iter().map(|(fd, _)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = patience.map(|p| Timespec { tv_sec: 0, tv_nsec: i64::from(p.subsec_nanos()) });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(polled.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect())
}

fn answer(control: BorrowedFd<'_>, answer: &Answer) -> io::Result<()> {
    send(control, &answer.encode(), SendFlags::NOSIGNAL).map(drop).map_err(io::Error::from)
}

/// What we are for; `None` if the engine changed its mind. Not on the command line, which a cell could read from its first process.
fn receive_purpose(control: BorrowedFd<'_>) -> io::Result<Option<(Mode, Ahead)>> {
    let Some((request, _)) = receive(control)? else { return Ok(None) };
    match request.op {
        Op::Serve { wall: Serves::Container, ahead } => Ok(Some((Mode::Container, ahead))),
        Op::Serve { wall: Serves::Process, ahead } => Ok(Some((Mode::Process, ahead))),
        _ => Err(io::Error::other("another request came first")),
    }
}

/// Who we work for, with descriptors that are never looked at: they are locked as long as this process has them.
fn receive_start(control: BorrowedFd<'_>, mode: Mode) -> io::Result<Option<(Owner, Vec<OwnedFd>)>> {
    let Some((request, locks)) = receive(control)? else { return Ok(None) };
    let Op::Start { run, generation } = request.op else {
        return Err(io::Error::other("another request came before the start"));
    };
    let wall = match mode {
        Mode::Container => "container",
        Mode::Process => "process",
    };
    Ok(Some((Owner { run, wall, generation }, locks)))
}

/// The next request with its descriptors; `None` when the engine is gone.
fn receive(control: BorrowedFd<'_>) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
    let mut buffer = [0; MAX_REQUEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control_data = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let received = recvmsg(control, &mut parts, &mut control_data, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control_data.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let request = Request::decode(&buffer[..received.bytes]).map_err(io::Error::other)?;
    Ok(Some((request, fds)))
}
