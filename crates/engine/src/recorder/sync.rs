//! Making appended records durable: at each append, in the background, or when the caller says so.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use casemate_core::evidence::Durability;

use super::StoreError;

/// Longest time between an append and the start of its sync, with [`Durability::Batch`].
const BATCH: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Syncer {
    durability: Durability,
    shared: Arc<Shared>,
    /// Started by the first append that needs it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// When the oldest record was appended that the background thread has yet to sync.
    waiting_since: Option<Instant>,
    /// After a failed sync the kernel may have dropped the data and will not say so twice: the failure stays.
    failed: Option<io::ErrorKind>,
    stopping: bool,
}

impl Syncer {
    pub(super) fn new(file: File, durability: Durability) -> Syncer {
        let shared = Shared { file, state: Mutex::default(), wake: Condvar::new() };
        Syncer { durability, shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Refuses once a sync has failed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.shared.state().failed {
            Some(kind) => Err(StoreError::SyncFailed { kind }),
            None => Ok(()),
        }
    }

    /// A record was appended: do what the durability asks for.
    pub(super) fn appended(&self) -> Result<(), StoreError> {
        match self.durability {
            Durability::OnExit => Ok(()),
            Durability::Each => self.sync(),
            Durability::Batch => {
                self.start()?;
                let mut state = self.shared.state();
                if state.waiting_since.is_none() {
                    state.waiting_since = Some(Instant::now());
                    self.shared.wake.notify_one();
                }
                Ok(())
            }
        }
    }

    /// On return everything appended so far is on the disk.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.shared.sync();
        self.check()
    }

    fn start(&self) -> Result<(), StoreError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new().name("evidence-sync".to_owned()).spawn(move || shared.run());
            *thread = Some(started.map_err(|e| self.shared.fail(&e))?);
        }
        Ok(())
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.shared.state().stopping = true;
            self.shared.wake.notify_one();
            // It ends by itself; a panic in it has been printed already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The background thread: wait for a record, let others gather for a moment, sync them all.
    fn run(&self) {
        let mut state = self.state();
        loop {
            match state.waiting_since {
                None if state.stopping => return,
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(since) if state.stopping || since.elapsed() >= BATCH => {
                    state.waiting_since = None;
                    drop(state);
                    self.sync();
                    state = self.state();
                }
                Some(since) => {
                    let left = BATCH.saturating_sub(since.elapsed());
                    state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn sync(&self) {
        if let Err(e) = self.file.sync_data() {
            self.fail(&e);
        }
    }

    fn fail(&self, error: &io::Error) -> StoreError {
        let kind = *self.state().failed.get_or_insert(error.kind());
        StoreError::SyncFailed { kind }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid after every statement, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe cannot be synced, which stands in for a disk that fails.
    fn unsyncable() -> File {
        let (reader, _) = io::pipe().unwrap();
        File::from(std::os::fd::OwnedFd::from(reader))
    }

    #[test]
    fn a_failed_sync_is_remembered() {
        let syncer = Syncer::new(unsyncable(), Durability::Each);
        assert!(syncer.check().is_ok());
        assert!(matches!(syncer.appended(), Err(StoreError::SyncFailed { .. })));
        assert!(matches!(syncer.check(), Err(StoreError::SyncFailed { .. })));
    }

    #[test]
    fn a_batch_is_synced_soon_after_its_first_record() {
        let syncer = Syncer::new(unsyncable(), Durability::Batch);
        syncer.appended().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while syncer.check().is_ok() {
            assert!(Instant::now() < deadline, "the background thread never synced");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn dropping_the_store_syncs_the_last_batch_and_stops_the_thread() {
        let syncer = Syncer::new(unsyncable(), Durability::Batch);
        let shared = Arc::clone(&syncer.shared);
        syncer.appended().unwrap();
        drop(syncer);
        assert!(shared.state().failed.is_some(), "the last sync was attempted");
        assert_eq!(Arc::strong_count(&shared), 1, "the thread is gone");
    }
}
