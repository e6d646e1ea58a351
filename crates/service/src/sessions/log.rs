//! What a program has written, for those who read it now and those who come later. Bounded: as long as somebody reads, the program
//! waits for the slowest; when nobody does, the oldest part is forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use casemate_engine::session::Outflow;
use casemate_engine::{Chunk, Executed};
use tokio::sync::Notify;

/// What is kept for those who come later.
const KEPT: usize = 256 << 10;
/// How far a program may be ahead of the slowest reader.
const AHEAD: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct Log {
    inner: Mutex<Inner>,
    /// Something was written, read, or is over.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    chunks: VecDeque<Chunk>,
    /// The number of the first chunk that is still there.
    first: u64,
    bytes: usize,
    /// By reader, the number of the chunk that it reads next.
    readers: BTreeMap<u64, u64>,
    next_reader: u64,
    over: Option<Option<Arc<Executed>>>,
}

/// What a reader hears.
#[derive(Debug)]
pub(crate) enum Said {
    Output(Chunk),
    /// This much was forgotten before it came.
    Missed,
    /// It has ended like this; nothing follows.
    Ended(Arc<Executed>),
    /// What became of it is not known.
    Lost,
}

/// Somebody who reads. Dropped, nobody waits for them.
#[derive(Debug)]
pub(crate) struct Reading<L: std::ops::Deref<Target = Log>> {
    log: L,
    reader: u64,
    missed: bool,
}

impl Log {
    /// Takes what there is until nothing more comes.
    pub(crate) async fn fill(&self, mut output: Outflow<Chunk>) {
        loop {
            self.room().await;
            let Some(chunk) = output.next().await else { return };
            {
                let mut inner = self.lock();
                inner.bytes += chunk.bytes.len();
                inner.chunks.push_back(chunk);
                inner.forget();
            }
            self.changed.notify_waiters();
        }
    }

    /// Waits until the slowest reader is near enough.
    async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let inner = self.lock();
                let slowest = inner.readers.values().min().copied();
                let ahead = slowest.map_or(0, |at| {
                    let from = at.saturating_sub(inner.first) as usize;
                    inner.chunks.iter().skip(from).map(|chunk| chunk.bytes.len()).sum::<usize>()
                });
                if ahead <= AHEAD {
                    return;
                }
            }
            changed.await;
        }
    }

    pub(crate) fn end(&self, executed: Executed) {
        self.lock().over = Some(Some(Arc::new(executed)));
        self.changed.notify_waiters();
    }

    pub(crate) fn lose(&self) {
        self.lock().over = Some(None);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    pub(crate) fn outcome(&self) -> Option<Arc<Executed>> {
        self.lock().over.clone().flatten()
    }

    /// Reads from the oldest that is still there, or only what comes from now on.
    pub(crate) fn read<L: std::ops::Deref<Target = Log>>(log: L, from_the_start: bool) -> Reading<L> {
        let (reader, missed) = {
            let mut inner = log.lock();
            let reader = inner.next_reader;
            inner.next_reader += 1;
            let at = if from_the_start { inner.first } else { inner.first + inner.chunks.len() as u64 };
            inner.readers.insert(reader, at);
            (reader, from_the_start && inner.first > 0)
        };
        Reading { log, reader, missed }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Drops the oldest that nobody still has to read.
    fn forget(&mut self) {
        let needed = self.readers.values().min().copied().unwrap_or(u64::MAX);
        while self.bytes > KEPT && self.first < needed {
            let Some(oldest) = self.chunks.pop_front() else { return };
            self.bytes -= oldest.bytes.len();
            self.first += 1;
        }
    }
}

impl<L: std::ops::Deref<Target = Log>> Reading<L> {
    /// The next that is said. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Said {
        if std::mem::take(&mut self.missed) {
            return Said::Missed;
        }
        loop {
            let changed = self.log.changed.notified();
            {
                let mut inner = self.log.lock();
                let first = inner.first;
                let at = inner.readers.get(&self.reader).copied().unwrap_or(first).max(first);
                if let Some(chunk) = inner.chunks.get((at - first) as usize).cloned() {
                    inner.readers.insert(self.reader, at + 1);
                    drop(inner);
                    self.log.changed.notify_waiters();
                    return Said::Output(chunk);
                }
                match &inner.over {
                    Some(Some(executed)) => return Said::Ended(executed.clone()),
                    Some(None) => return Said::Lost,
                    None => {}
                }
            }
            changed.await;
        }
    }
}

impl<L: std::ops::Deref<Target = Log>> Drop for Reading<L> {
    fn drop(&mut self) {
        {
            let mut inner = self.log.lock();
            inner.readers.remove(&self.reader);
            inner.forget();
        }
        self.log.changed.notify_waiters();
    }
}
