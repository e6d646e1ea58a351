//! Sealing appended records and making them durable: at each append, in the background, or when the caller says so.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use casemate_core::evidence::Durability;

use super::StoreError;

/// How long records gather in the background, with [`Durability::Batch`]: seal and sync begin within 10 ms of an append,
/// and whoever wakes up for it takes a moment.
const GATHER: Duration = Duration::from_millis(8);

#[derive(Debug)]
pub(super) struct Syncer {
    durability: Durability,
    shared: Arc<Shared>,
    /// Started by the first append that needs it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Seals what needs it, and says whether there was anything.
type Seal = Box<dyn Fn() -> Result<bool, StoreError> + Send + Sync>;

struct Shared {
    file: File,
    seal: Seal,
    /// After a failed sync the kernel may have dropped the data and will not say so twice: the failure stays.
    failed: OnceLock<io::ErrorKind>,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// When the oldest record was appended that has yet to be sealed and synced.
    waiting_since: Option<Instant>,
    stopping: bool,
}

impl Syncer {
    pub(super) fn new(
        file: File,
        durability: Durability,
        seal: impl Fn() -> Result<bool, StoreError> + Send + Sync + 'static,
    ) -> Syncer {
        let shared = Shared {
            file,
            seal: Box::new(seal),
            failed: OnceLock::new(),
            state: Mutex::default(),
            wake: Condvar::new(),
        };
        Syncer { durability, shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Refuses once a sync has failed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.shared.failed.get() {
            Some(kind) => Err(StoreError::SyncFailed { kind: *kind }),
            None => Ok(()),
        }
    }

    /// A record was appended: do what the durability asks for.
    pub(super) fn appended(&self) -> Result<(), StoreError> {
        if self.durability == Durability::Each {
            return self.sync();
        }
        let mut state = self.shared.state();
        if state.waiting_since.is_none() {
            state.waiting_since = Some(Instant::now());
            drop(state);
            if self.durability == Durability::Batch {
                self.start()?;
                self.shared.wake.notify_one();
            }
        }
        Ok(())
    }

    /// On return everything appended so far is sealed and on the disk.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let sealed = self.shared.settle();
        self.check()?;
        sealed.map(drop)
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

/// What is left is sealed and synced. Whatever cannot be is the next writer's to seal.
impl Drop for Syncer {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.shared.state().stopping = true;
            self.shared.wake.notify_one();
            // It ends by itself; a panic in it has been printed already.
            let _ = thread.join();
        }
        let waiting = self.shared.state().waiting_since.is_some();
        if waiting {
            let _ = self.shared.settle();
        }
    }
}

impl Shared {
    /// The background thread: wait for a record, let others gather for a moment, seal and sync them all.
    fn run(&self) {
        let mut state = self.state();
        while !state.stopping {
            match state.waiting_since {
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(since) if since.elapsed() >= GATHER => {
                    drop(state);
                    // Why it cannot be sealed, the next append finds out as well, and has somebody to tell.
                    let _ = self.settle();
                    state = self.state();
                }
                Some(since) => {
                    let left = GATHER.saturating_sub(since.elapsed());
                    state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Seals, then syncs, even if sealing failed: what was appended is worth keeping.
    fn settle(&self) -> Result<bool, StoreError> {
        // Whatever is appended from here on has to wait for the next time.
        self.state().waiting_since = None;
        let sealed = (self.seal)();
        if let Err(e) = self.file.sync_data() {
            self.fail(&e);
        }
        sealed
    }

    fn fail(&self, error: &io::Error) -> StoreError {
        StoreError::SyncFailed { kind: *self.failed.get_or_init(|| error.kind()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid after every statement, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("file", &self.file)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
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
        let syncer = Syncer::new(unsyncable(), Durability::Each, || Ok(false));
        assert!(syncer.check().is_ok());
        assert!(matches!(syncer.appended(), Err(StoreError::SyncFailed { .. })));
        assert!(matches!(syncer.check(), Err(StoreError::SyncFailed { .. })));
    }

    #[test]
    fn a_batch_is_synced_soon_after_its_first_record() {
        let syncer = Syncer::new(unsyncable(), Durability::Batch, || Ok(false));
        syncer.appended().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while syncer.check().is_ok() {
            assert!(Instant::now() < deadline, "the background thread never synced");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn dropping_the_store_seals_and_syncs_what_is_left_and_stops_the_thread() {
        for durability in [Durability::OnExit, Durability::Batch] {
            let sealed = Arc::new(OnceLock::new());
            let seal = Arc::clone(&sealed);
            let syncer = Syncer::new(unsyncable(), durability, move || Ok(seal.set(()).is_ok()));
            let shared = Arc::clone(&syncer.shared);
            syncer.appended().unwrap();
            drop(syncer);
            assert!(sealed.get().is_some() && shared.failed.get().is_some(), "both were attempted");
            assert_eq!(Arc::strong_count(&shared), 1, "the thread is gone");
        }
    }

    #[test]
    fn a_store_without_records_of_its_own_leaves_the_disk_alone() {
        let syncer = Syncer::new(unsyncable(), Durability::OnExit, || unreachable!("nothing to seal"));
        let shared = Arc::clone(&syncer.shared);
        drop(syncer);
        assert!(shared.failed.get().is_none());
    }

    #[test]
    fn what_cannot_be_sealed_is_synced_all_the_same() {
        let full = || Err(StoreError::Full { action: "append to", path: "chain".into() });
        let syncer = Syncer::new(tempfile::tempfile().unwrap(), Durability::Each, full);
        assert!(matches!(syncer.sync(), Err(StoreError::Full { .. })));
        syncer.check().expect("a full disk is no reason to give up for good");
    }
}
