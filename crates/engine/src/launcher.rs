//! The engine's side of the launcher: one request at a time per caller, many callers at once.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};

use casemate_wire::launch::{Answer, CellId, CellSpec, Counters, Hello, MAX_PACKET, Op, Posture, Request, RunId};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};

use crate::agents::Agents;
use crate::home::IdBlock;
use crate::sys;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LauncherError {
    #[error("cannot start the launcher")]
    Start(#[source] io::Error),
    #[error("the launcher has died")]
    Died,
    #[error("{step}: {message}")]
    Step { step: String, message: String },
    #[error("the launcher answered something else than was asked")]
    Confused,
}

/// Which wall a launcher serves; see its `Mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    Container,
    Process,
}

/// A running launcher. Dropping the last handle closes its socket, upon which it kills its cells and ends.
#[derive(Clone)]
pub(crate) struct Launcher(Arc<Shared>);

struct Shared {
    socket: Arc<AsyncFd<OwnedFd>>,
    hello: Hello,
    state: Arc<State>,
    child: Mutex<Child>,
    reader: tokio::task::AbortHandle,
}

#[derive(Default)]
struct State {
    table: Mutex<Table>,
    /// Rung whenever a cell is gone.
    bell: Notify,
}

#[derive(Default)]
struct Table {
    last_id: u32,
    dead: bool,
    waiting: HashMap<u32, oneshot::Sender<Answer>>,
    /// Cells that may still exist, with the ids that must not be reused before they are gone.
    alive: HashMap<CellId, Option<IdBlock>>,
}

impl Launcher {
    /// Starts a launcher. It shares the descriptors in `kept`: the locks they hold last as long as it lives.
    pub(crate) async fn start(
        agents: &Agents,
        run: RunId,
        serves: Serves,
        kept: &[BorrowedFd<'_>],
    ) -> Result<Launcher, LauncherError> {
        let start = || -> io::Result<(OwnedFd, Child)> {
            let (ours, theirs) = sys::packet_pair()?;
            let (program, guest) = (agents.launcher()?, agents.guest()?);
            let mode = match serves {
                Serves::Container => "container",
                Serves::Process => "process",
            };
            let mut passed = vec![theirs.as_fd(), guest.as_fd()];
            passed.extend(kept);
            let child = sys::spawn(&program, &[&run.to_string(), mode], &passed)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            Ok((ours, child))
        };
        let (socket, child) = start().map_err(LauncherError::Start)?;
        let socket = Arc::new(AsyncFd::new(socket).map_err(LauncherError::Start)?);
        let hello = match receive(&socket).await {
            Some(Answer::Hello(hello)) if hello.version == casemate_wire::PROTOCOL_VERSION => hello,
            Some(_) => return Err(LauncherError::Confused),
            None => return Err(LauncherError::Died),
        };
        let state = Arc::new(State::default());
        let reader = tokio::spawn(read_answers(socket.clone(), state.clone())).abort_handle();
        Ok(Launcher(Arc::new(Shared { socket, hello, state, child: Mutex::new(child), reader })))
    }

    pub(crate) fn hello(&self) -> &Hello {
        &self.0.hello
    }

    /// Asks for a cell. The answer arrives when its guest runs.
    pub(crate) fn launch(&self, spec: CellSpec, fds: &[BorrowedFd<'_>], block: Option<IdBlock>) -> Launching {
        Launching { launcher: self.clone(), answer: self.ask(Op::Launch(spec), fds), block }
    }

    pub(crate) async fn inspect(&self, cell: CellId, pid: u32) -> Result<Posture, LauncherError> {
        match self.ask(Op::Inspect { cell, pid }, &[]).await? {
            Answer::Inspected { posture, .. } => Ok(posture),
            other => Err(unexpected(other)),
        }
    }

    pub(crate) async fn measure(&self, cell: CellId) -> Result<Counters, LauncherError> {
        match self.ask(Op::Measure { cell }, &[]).await? {
            Answer::Measured { counters, .. } => Ok(counters),
            other => Err(unexpected(other)),
        }
    }

    /// Reads the counters for the last time and kills the cell.
    pub(crate) async fn finish(&self, cell: CellId) -> Result<Counters, LauncherError> {
        match self.ask(Op::Finish { cell }, &[]).await? {
            Answer::Finished { counters, .. } => Ok(counters),
            other => Err(unexpected(other)),
        }
    }

    /// For a caller that cannot wait: the cell is killed, the answer nobody's.
    pub(crate) fn abandon(&self, cell: CellId) {
        drop(self.ask(Op::Finish { cell }, &[]));
    }

    pub(crate) async fn recover(&self, run: RunId) -> Result<(), LauncherError> {
        match self.ask(Op::Recover { run }, &[]).await? {
            Answer::Recovered { .. } => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Waits until no cell is left, then until the launcher itself has ended.
    pub(crate) async fn shutdown(self) {
        loop {
            let bell = self.0.state.bell.notified();
            {
                let table = lock(&self.0.state.table);
                if table.alive.is_empty() || table.dead {
                    break;
                }
            }
            bell.await;
        }
        self.0.reader.abort();
        let _ = rustix::net::shutdown(self.0.socket.get_ref(), rustix::net::Shutdown::Both);
        let _ = lock(&self.0.child).wait();
    }

    /// Sends a request at once; the returned future waits for the answer.
    fn ask(&self, op: Op, fds: &[BorrowedFd<'_>]) -> impl Future<Output = Result<Answer, LauncherError>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let packet = {
            let mut table = lock(&self.0.state.table);
            table.last_id = table.last_id.wrapping_add(1).max(1);
            let id = table.last_id;
            if !table.dead {
                table.waiting.insert(id, sender);
            }
            Request { id, op }.encode()
        };
        let sent = sys::send_packet(self.0.socket.get_ref().as_fd(), &packet, fds);
        async move {
            // The launcher answers faster than anybody can ask: a full socket means that it is stuck or dead.
            sent.map_err(|_| LauncherError::Died)?;
            match receiver.await {
                Ok(Answer::Failed { step, message, .. }) => Err(LauncherError::Step { step, message }),
                Ok(answer) => Ok(answer),
                Err(_) => Err(LauncherError::Died),
            }
        }
    }
}

/// A launch under way. Dropping it before the answer still kills the cell once it is there.
pub(crate) struct Launching {
    launcher: Launcher,
    answer: std::pin::Pin<Box<dyn Future<Output = Result<Answer, LauncherError>> + Send>>,
    block: Option<IdBlock>,
}

fn unexpected(_: Answer) -> LauncherError {
    LauncherError::Confused
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while holding it; a poisoned table would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next packet; `None` when the launcher is gone.
async fn receive(socket: &AsyncFd<OwnedFd>) -> Option<Answer> {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let mut ready = socket.readable().await.ok()?;
        let read = ready.try_io(|fd| Ok(rustix::io::read(fd, &mut buffer)?));
        match read {
            Ok(Ok(0)) | Ok(Err(_)) => return None,
            Ok(Ok(n)) => return Answer::decode(&buffer[..n]).ok(),
            Err(_would_block) => {}
        }
    }
}
