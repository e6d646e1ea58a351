//! The guest's output on its way out of our process, on a thread of its own: a terminal that is stopped or a pipe
//! that is full blocks this thread and nothing else, so deadlines hold and the cell is always taken down.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use casemate_engine::{Chunk, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::render::terminal::Escaper;

/// Bytes that may wait for our reader; more slows the guest down. Several times the default limit on output, so that
/// an execution seldom has to wait for a reader to be over and recorded.
const AHEAD: usize = 8 << 20;
/// After a kill, a reader that takes nothing for this long is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// What to do with the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Stream,
    /// Keep at most this many bytes of each stream.
    Collect(u64),
}

/// The output of a run that is printed as JSON.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// The thread that writes.
#[derive(Debug)]
pub(crate) struct Output {
    done: oneshot::Receiver<io::Result<Collected>>,
    progress: Arc<AtomicU64>,
    relay: JoinHandle<()>,
}

/// How long to wait for whoever reads the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    UntilRead,
    /// The caller was promised an end: a reader that does not read is given up on.
    WhileReading,
}

/// Starts the thread, within a runtime. When the output can no longer be written, `cancel` becomes true.
pub(crate) fn start(mode: Mode, cancel: watch::Sender<bool>) -> (mpsc::Sender<Chunk>, Output) {
    let (sender, mut from_engine) = mpsc::channel(1);
    let (to_thread, receiver) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(AHEAD));
    let (finished, done) = oneshot::channel();
    let progress = Arc::new(AtomicU64::new(0));
    let (counter, freed) = (Arc::clone(&progress), Arc::clone(&room));
    thread::spawn(move || {
        let written = match mode {
            Mode::Stream => stream(receiver, &freed, &counter, &cancel).map(|()| Collected::default()),
            Mode::Collect(max) => Ok(collect(receiver, &freed, max)),
        };
        let _ = finished.send(written);
    });
    // The thread may be stuck in a write. What stands between it and the engine can be taken away all the same.
    let relay = tokio::spawn(async move {
        while let Some(chunk) = from_engine.recv().await {
            let taken = room.acquire_many(weight(&chunk)).await.map(SemaphorePermit::forget);
            if taken.is_err() || to_thread.send(chunk).is_err() {
                return;
            }
        }
    });
    (sender, Output { done, progress, relay })
}

impl Output {
    /// From now on the engine's output is thrown away, so that it does not wait for our reader.
    pub(crate) fn cut_off(&self) {
        self.relay.abort();
    }

    /// Waits until everything is written; the sender must be gone by then. Returns nothing if it was given up.
    pub(crate) async fn finish(
        mut self,
        wait: Wait,
        stop: impl Future<Output = ()>,
    ) -> Option<io::Result<Collected>> {
        tokio::pin!(stop);
        let mut seen = self.progress.load(Ordering::Relaxed);
        loop {
            tokio::select! {
                biased;
                // A thread that died without an answer has nothing left to write.
                done = &mut self.done => return Some(done.unwrap_or_else(|_| Ok(Collected::default()))),
                () = &mut stop => return None,
                () = tokio::time::sleep(PATIENCE), if wait == Wait::WhileReading => {
                    let now = self.progress.load(Ordering::Relaxed);
                    if now == seen {
                        return None;
                    }
                    seen = now;
                }
            }
        }
    }
}

fn weight(chunk: &Chunk) -> u32 {
    chunk.bytes.len().min(AHEAD) as u32
}

fn collect(mut receiver: mpsc::UnboundedReceiver<Chunk>, room: &Semaphore, max: u64) -> Collected {
    let mut collected = Collected::default();
    while let Some(chunk) = receiver.blocking_recv() {
        room.add_permits(weight(&chunk) as usize);
        let Chunk { stream, bytes } = chunk;
        let kept = match stream {
            Stream::Stdout => &mut collected.stdout,
            Stream::Stderr => &mut collected.stderr,
        };
        let room = max.saturating_sub(kept.len() as u64).min(bytes.len() as u64);
        kept.extend_from_slice(&bytes[..room as usize]);
    }
    collected
}

/// Writes chunks as they come. After an error the rest is received and dropped: the engine must not wait for us.
fn stream(
    mut receiver: mpsc::UnboundedReceiver<Chunk>,
    room: &Semaphore,
    progress: &AtomicU64,
    cancel: &watch::Sender<bool>,
) -> io::Result<()> {
    let mut stdout = Writer::new(io::stdout());
    let mut stderr = Writer::new(io::stderr());
    let mut result = Ok(());
    while let Some(chunk) = receiver.blocking_recv() {
        if result.is_ok() {
            result = match chunk.stream {
                Stream::Stdout => stdout.write(&chunk.bytes, progress),
                Stream::Stderr => stderr.write(&chunk.bytes, progress),
            };
            if result.is_err() {
                let _ = cancel.send(true);
            }
        }
        room.add_permits(weight(&chunk) as usize);
    }
    result?;
    stdout.finish(progress)?;
    stderr.finish(progress)
}

/// One of our two streams: exact bytes to a file or pipe, harmless text to a terminal.
struct Writer<W> {
    to: W,
    escaper: Option<Escaper>,
}

impl<W: Write + AsFd + IsTerminal> Writer<W> {
    fn new(to: W) -> Writer<W> {
        let escaper = to.is_terminal().then(Escaper::default);
        Writer { to, escaper }
    }

    fn write(&mut self, bytes: &[u8], progress: &AtomicU64) -> io::Result<()> {
        let Some(escaper) = &mut self.escaper else { return self.put(bytes, progress) };
        let mut text = String::with_capacity(bytes.len());
        escaper.escape(bytes, &mut text);
        self.put(text.as_bytes(), progress)
    }

    fn finish(&mut self, progress: &AtomicU64) -> io::Result<()> {
        let mut text = String::new();
        if let Some(escaper) = &mut self.escaper {
            escaper.finish(&mut text);
        }
        self.put(text.as_bytes(), progress)
    }

    fn put(&mut self, mut bytes: &[u8], progress: &AtomicU64) -> io::Result<()> {
        while !bytes.is_empty() {
            // Not `io::Stdout`'s own writing: its buffer would hold back what has no newline.
            match rustix::io::write(self.to.as_fd(), bytes) {
                Ok(written) => {
                    progress.fetch_add(written as u64, Ordering::Relaxed);
                    bytes = &bytes[written..];
                }
                Err(rustix::io::Errno::INTR) => {}
                // Whoever shares this stream with us may have made it non-blocking.
                Err(rustix::io::Errno::AGAIN) => wait_for(self.to.as_fd(), PollFlags::OUT),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Blocks until the stream is ready; an error shows at the next read or write.
pub(crate) fn wait_for(stream: impl AsFd, ready: PollFlags) {
    let _ = poll(&mut [PollFd::new(&stream, ready)], None);
}

/// Whether a few words can be written right now.
pub(crate) fn is_writable(stream: impl AsFd) -> bool {
    let mut stream = [PollFd::new(&stream, PollFlags::OUT)];
    poll(&mut stream, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn collected_output_is_bounded_per_stream() {
        let collected = runtime().block_on(async {
            let (sender, output) = start(Mode::Collect(4), watch::channel(false).0);
            for (stream, text) in [
                (Stream::Stdout, "abc"),
                (Stream::Stderr, "x"),
                (Stream::Stdout, "def"),
                (Stream::Stdout, "g"),
            ] {
                sender.send(Chunk { stream, bytes: text.as_bytes().to_vec() }).await.unwrap();
            }
            drop(sender);
            output.finish(Wait::UntilRead, std::future::pending()).await.unwrap().unwrap()
        });
        assert_eq!(collected, Collected { stdout: b"abcd".to_vec(), stderr: b"x".to_vec() });
    }

    #[test]
    fn an_engine_that_was_cut_off_does_not_wait() {
        runtime().block_on(async {
            let (sender, output) = start(Mode::Collect(4), watch::channel(false).0);
            output.cut_off();
            let chunk = || Chunk { stream: Stream::Stdout, bytes: vec![0; 4096] };
            while sender.send(chunk()).await.is_ok() {}
        });
    }

    #[test]
    fn a_second_signal_ends_the_waiting() {
        runtime().block_on(async {
            let (_sender, output) = start(Mode::Collect(4), watch::channel(false).0);
            assert!(output.finish(Wait::UntilRead, std::future::ready(())).await.is_none());
        });
    }
}
