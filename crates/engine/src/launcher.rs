//! The engine's side of the launcher: one request at a time per caller, many callers at once.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};

use casemate_wire::launch::{
    Ahead, Answer, CellId, CellSpec, Counters, Hello, MAX_ANSWER, Op, Request, RunId, Serves, Sight,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};

use crate::agents::Agents;
use crate::home::{Home, IdBlock, Scratch};
use crate::sys;
use crate::wall::Begun;

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

/// A hello is short.
const MAX_HELLO: usize = 4096;

/// Keeps a launcher for one wall: starts it when it is first needed, and another one when it has died.
pub(crate) struct Keeper {
    agents: Agents,
    home: Arc<Home>,
    serves: Serves,
    ahead: Ahead,
    /// Started before there was anything to tell it.
    spare: Mutex<Option<Waiting>>,
    current: tokio::sync::Mutex<(Option<Launcher>, u32)>,
}

/// A launcher that waits to be told whom it works for. Dropped, it ends without a word.
#[derive(Debug)]
pub(crate) struct Waiting {
    socket: OwnedFd,
    child: Reaped,
}

/// A process that ends by itself once its socket is closed, and is waited for then.
#[derive(Debug)]
struct Reaped(Option<Child>);

impl Waiting {
    /// It gets ready for its purpose at once.
    pub(crate) fn spawn(agents: &Agents, wall: Serves, ahead: Ahead) -> io::Result<Waiting> {
        let (socket, theirs) = sys::packet_pair()?;
        let purpose = Request { id: 0, op: Op::Serve { wall, ahead } };
        sys::send_packet(socket.as_fd(), &purpose.encode(), &[])?;
        let child = sys::spawn(&agents.launcher()?, theirs)?;
        Ok(Waiting { socket, child: Reaped(Some(child)) })
    }
}

impl Reaped {
    fn wait(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.wait();
        }
    }
}

/// A launcher with nothing left to do but to end. Waited for when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Leaving(#[allow(dead_code, reason = "held until it is dropped")] Option<Reaped>);

impl Drop for Reaped {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Who kills launchers faster than they clear up has to clear up after them.
const MAX_SUCCESSORS: usize = 5;

impl Keeper {
    pub(crate) fn new(agents: Agents, home: Arc<Home>, serves: Serves, ahead: Ahead) -> Keeper {
        Keeper { agents, home, serves, ahead, spare: Mutex::default(), current: Default::default() }
    }

    /// Uses a launcher that was started already, to begin with.
    pub(crate) fn with(mut self, waiting: Waiting) -> Keeper {
        self.spare = Mutex::new(Some(waiting));
        self
    }

    pub(crate) async fn launcher(&self) -> Result<Launcher, LauncherError> {
        let mut current = self.current.lock().await;
        let (launcher, generation) = &mut *current;
        if let Some(launcher) = launcher.as_ref().filter(|launcher| !launcher.is_dead()) {
            return Ok(launcher.clone());
        }
        if let Some(dead) = &launcher {
            // Perhaps it only cannot be understood any more. It ends when it hears that nobody listens.
            dead.0.hang_up();
            let mut child = Reaped(lock(&dead.0.child).0.take());
            let _ = tokio::task::spawn_blocking(move || child.wait()).await;
        }
        let begin = Op::Start { run: self.home.run, generation: *generation };
        let spare = lock(&self.spare).take();
        let waiting = match spare {
            Some(waiting) => waiting,
            None => Waiting::spawn(&self.agents, self.serves, self.ahead).map_err(LauncherError::Start)?,
        };
        *generation += 1;
        let fresh = Launcher::start(waiting, begin, &self.home.shared_locks()).await?;
        if *generation > 1 {
            // If this fails, the next one tries again, and until then the dead one's cells keep what they have.
            fresh.recover(self.home.run).await?;
        }
        if let Some(dead) = launcher.replace(fresh.clone()) {
            dead.forget_cells();
        }
        Ok(fresh)
    }

    /// Ends the launcher: on return its cells are gone, and it is about to go itself. While they go, there is time for
    /// something else.
    pub(crate) async fn shutdown(self, mut meanwhile: impl FnMut()) -> Leaving {
        if self.current.lock().await.0.is_none() {
            return Leaving::default();
        }
        // One that died has left its cgroups to its successor, also if it turns out to be dead only now.
        for _ in 0..MAX_SUCCESSORS {
            let Ok(launcher) = self.launcher().await else { break };
            if let Some(leaving) = launcher.shutdown(&mut meanwhile).await {
                return leaving;
            }
        }
        Leaving::default()
    }
}

/// A running launcher. Dropping the last handle closes its socket, upon which it kills its cells and ends.
#[derive(Clone)]
pub(crate) struct Launcher(Arc<Shared>);

struct Shared {
    socket: Arc<AsyncFd<OwnedFd>>,
    hello: Hello,
    state: Arc<State>,
    child: Mutex<Reaped>,
    reader: tokio::task::AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl Shared {
    /// The launcher kills its cells and ends.
    fn hang_up(&self) {
        self.reader.abort();
        let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Both);
    }
}

#[derive(Default)]
struct State {
    table: Mutex<Table>,
    /// Rung whenever something has been cleared away, and when the launcher is gone.
    bell: Notify,
}

#[derive(Default)]
struct Table {
    last_id: u32,
    dead: bool,
    /// It has ended as it should, with nothing left behind.
    farewell: bool,
    waiting: HashMap<u32, oneshot::Sender<Answer>>,
    /// Cells that may still exist, with the ids that must not be reused before they are gone.
    alive: HashMap<CellId, Kept>,
    /// How many cells are gone whose files are still being removed.
    clearing: usize,
}

impl Launcher {
    /// Puts a launcher to work. It shares the descriptors in `kept`: the locks they hold last as long as it lives.
    async fn start(waiting: Waiting, begin: Op, kept: &[BorrowedFd<'_>]) -> Result<Launcher, LauncherError> {
        // In one piece as long as anything can fail: the socket has to go before its process is waited for.
        sys::send_packet(waiting.socket.as_fd(), &Request { id: 0, op: begin }.encode(), kept)
            .and_then(|()| Ok(rustix::io::ioctl_fionbio(&waiting.socket, true)?))
            .map_err(LauncherError::Start)?;
        let Waiting { socket, child } = waiting;
        let socket = Arc::new(sys::watch_fd(socket, Interest::READABLE).map_err(LauncherError::Start)?);
        let hello = match receive(&socket, &mut Vec::with_capacity(MAX_HELLO)).await {
            Some(Answer::Hello(hello)) if hello.version == casemate_wire::PROTOCOL_VERSION => hello,
            Some(_) => return Err(LauncherError::Confused),
            None => return Err(LauncherError::Died),
        };
        let state = Arc::new(State::default());
        let reader = tokio::spawn(read_answers(socket.clone(), state.clone())).abort_handle();
        Ok(Launcher(Arc::new(Shared { socket, hello, state, child: Mutex::new(child), reader })))
    }

    fn is_dead(&self) -> bool {
        lock(&self.0.state.table).dead
    }

    pub(crate) fn hello(&self) -> &Hello {
        &self.0.hello
    }

    /// Asks for a cell, which has its number at once; the answer arrives when its first payload runs.
    pub(crate) fn launch(&self, spec: CellSpec, fds: &[BorrowedFd<'_>], kept: Kept) -> Launching {
        let id = self.next_id();
        lock(&self.0.state.table).alive.insert(id, kept);
        let answer = Box::pin(self.ask_as(id, Op::Launch(spec), fds));
        Launching { cell: LiveCell { id, launcher: self.clone(), finishing: false }, answer }
    }

    pub(crate) async fn recover(&self, run: RunId) -> Result<(), LauncherError> {
        match self.ask(Op::Recover { run }, &[]).await? {
            Answer::Recovered { .. } => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Tells the launcher to end, which it does once its cells are gone: it does not wait for ever for a process that the
    /// kernel cannot end. `None`: it died before that.
    async fn shutdown(&self, meanwhile: impl FnOnce()) -> Option<Leaving> {
        let _ = rustix::net::shutdown(self.0.socket.get_ref(), rustix::net::Shutdown::Write);
        meanwhile();
        let state = &self.0.state;
        let farewell = loop {
            let bell = state.bell.notified();
            {
                let table = lock(&state.table);
                if (table.dead || table.farewell) && table.clearing == 0 {
                    break table.farewell;
                }
            }
            bell.await;
        };
        if !farewell {
            lock(&self.0.child).wait();
            return None;
        }
        self.forget_cells();
        let child = lock(&self.0.child).0.take();
        Some(Leaving(Some(Reaped(child))))
    }

    /// Drops what cells kept of which nobody will say any more that they are gone. Now, and not when the last task
    /// that knows of them happens to end.
    fn forget_cells(&self) {
        let kept = std::mem::take(&mut lock(&self.0.state.table).alive);
        drop(kept);
    }

    fn next_id(&self) -> u32 {
        let mut table = lock(&self.0.state.table);
        table.last_id = table.last_id.wrapping_add(1).max(1);
        table.last_id
    }

    fn ask(
        &self,
        op: Op,
        fds: &[BorrowedFd<'_>],
    ) -> impl Future<Output = Result<Answer, LauncherError>> + Send + use<> {
        self.ask_as(self.next_id(), op, fds)
    }

    /// Sends a request at once; the returned future waits for the answer.
    fn ask_as(
        &self,
        id: u32,
        op: Op,
        fds: &[BorrowedFd<'_>],
    ) -> impl Future<Output = Result<Answer, LauncherError>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut table = lock(&self.0.state.table);
            if !table.dead {
                table.waiting.insert(id, sender);
            }
        }
        let sent = self.send(id, op, fds);
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

    fn send(&self, id: u32, op: Op, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = sys::send_packet(self.0.socket.get_ref().as_fd(), &Request { id, op }.encode(), fds);
        if sent.is_err() {
            // The reader will notice, too, but whoever asks next must know already.
            let mut table = lock(&self.0.state.table);
            table.dead = true;
            table.waiting.clear();
        }
        sent
    }
}

/// What must outlive a cell: it is dropped when the launcher says that nothing is left of it.
#[derive(Default)]
pub(crate) struct Kept {
    #[allow(dead_code, reason = "held for its lock, released on drop")]
    pub(crate) block: Option<IdBlock>,
    pub(crate) scratch: Option<Scratch>,
}

/// A launch under way, and the cell that comes of it.
pub(crate) struct Launching {
    pub(crate) cell: LiveCell,
    answer: std::pin::Pin<Box<dyn Future<Output = Result<Answer, LauncherError>> + Send>>,
}

impl Launching {
    /// Agrees that the first payload runs, and waits until it does.
    pub(crate) async fn proceed(&mut self) -> Result<Begun, LauncherError> {
        // If this fails, the launcher is dead, and the answer will say so.
        let _ = self.cell.launcher.send(0, Op::Proceed { cell: self.cell.id }, &[]);
        match (&mut self.answer).await? {
            Answer::Running { steps, posture, .. } => Ok(Begun { steps, posture, unseen: Vec::new() }),
            other => Err(unexpected(other)),
        }
    }
}

/// A cell that was asked for. Dropped, it is killed, whatever state it is in.
pub(crate) struct LiveCell {
    id: CellId,
    launcher: Launcher,
    /// Its end has been asked for.
    finishing: bool,
}

impl LiveCell {
    pub(crate) async fn measure(&self) -> Result<Counters, LauncherError> {
        match self.launcher.ask(Op::Measure { cell: self.id }, &[]).await? {
            Answer::Measured { counters, .. } => Ok(counters),
            other => Err(unexpected(other)),
        }
    }

    pub(crate) async fn look(&self, number: u32) -> Result<Sight, LauncherError> {
        match self.launcher.ask(Op::Look { cell: self.id, number }, &[]).await? {
            Answer::Looked { sight, .. } => Ok(sight),
            other => Err(unexpected(other)),
        }
    }

    /// Reads the counters for the last time and kills the cell.
    pub(crate) async fn finish(&mut self) -> Result<Counters, LauncherError> {
        self.finishing = true;
        match self.launcher.ask(Op::Finish { cell: self.id }, &[]).await? {
            Answer::Finished { counters, .. } => Ok(counters),
            other => Err(unexpected(other)),
        }
    }
}

impl Drop for LiveCell {
    fn drop(&mut self) {
        if !self.finishing {
            // Nobody waits for the answer.
            drop(self.launcher.ask(Op::Finish { cell: self.id }, &[]));
        }
    }
}

fn unexpected(_: Answer) -> LauncherError {
    LauncherError::Confused
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while holding it; a poisoned table would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next packet; `None` when the launcher is gone.
async fn receive(socket: &AsyncFd<OwnedFd>, buffer: &mut Vec<u8>) -> Option<Answer> {
    loop {
        let mut ready = socket.readable().await.ok()?;
        buffer.clear();
        match ready.try_io(|fd| Ok(rustix::io::read(fd, rustix::buffer::spare_capacity(buffer))?)) {
            Ok(Ok(0)) | Ok(Err(_)) => return None,
            Ok(Ok(_)) => return Answer::decode(buffer).ok(),
            Err(_would_block) => {}
        }
    }
}

/// Hands answers to whoever waits for them, until the launcher is gone.
async fn read_answers(socket: Arc<AsyncFd<OwnedFd>>, state: Arc<State>) {
    let mut buffer = Vec::with_capacity(MAX_ANSWER);
    while let Some(answer) = receive(&socket, &mut buffer).await {
        let id = match &answer {
            Answer::Gone { cell } => {
                clear(*cell, &state);
                continue;
            }
            Answer::Running { id, .. }
            | Answer::Looked { id, .. }
            | Answer::Measured { id, .. }
            | Answer::Finished { id, .. }
            | Answer::Recovered { id }
            | Answer::Failed { id, .. } => *id,
            Answer::Farewell => {
                lock(&state.table).farewell = true;
                state.bell.notify_waiters();
                continue;
            }
            Answer::Hello(_) => break,
        };
        let waiting = lock(&state.table).waiting.remove(&id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer);
        }
    }
    let mut table = lock(&state.table);
    table.dead = true;
    table.waiting.clear();
    drop(table);
    state.bell.notify_waiters();
}

/// Drops what a cell kept. Removing files can take long and happens elsewhere.
fn clear(cell: CellId, state: &Arc<State>) {
    let mut table = lock(&state.table);
    // A launch that was given up has no other answer.
    table.waiting.remove(&cell);
    let Some(kept) = table.alive.remove(&cell) else { return };
    if kept.scratch.is_some() {
        table.clearing += 1;
        let state = state.clone();
        tokio::task::spawn_blocking(move || {
            drop(kept);
            lock(&state.table).clearing -= 1;
            state.bell.notify_waiters();
        });
    }
}
