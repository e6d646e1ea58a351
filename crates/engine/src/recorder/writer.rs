//! Appending: what happens while the chain is locked.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use casemate_core::evidence::{
    Draft, Durability, Event, MAX_BATCH, MAX_LINE, SEAL_SHARE, SecretKey, Timestamp,
};

use super::chain_file::ChainFile;
use super::key_file::{self, ChainIs};
use super::lock::Exclusive;
use super::read::Scan;
use super::{Paths, Receipt, StoreError};

#[derive(Debug)]
pub(super) struct Writer {
    key: SecretKey,
    durability: Durability,
    /// What is locked; the same open file as the chain's.
    file: File,
    paths: Paths,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    chain: ChainFile,
    /// Executions opened through this store and not yet ended, with their runs.
    open: HashMap<String, String>,
}

/// Whose turn it is: nobody else in this process or any other appends meanwhile.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    // Dropped in this order: another thread of ours must not wait for a lock that we hold.
    held: Exclusive<'a>,
    state: MutexGuard<'a, State>,
    writer: &'a Writer,
}

impl Writer {
    /// Creates what is missing, and repairs what a killed writer left behind.
    pub(super) fn open(paths: Paths, durability: Durability) -> Result<Writer, StoreError> {
        let mut chain = ChainFile::open(&paths)?;
        let file = chain.file()?;
        let key = {
            let held = Exclusive::take(&file, &paths.chain)?;
            let content = if chain.is_empty()? { ChainIs::Empty } else { ChainIs::Signed };
            let key = key_file::load_or_create(&paths, &held, content)?;
            chain.refresh(&held, &key)?;
            key
        };
        let state = Mutex::new(State { chain, open: HashMap::new() });
        Ok(Writer { key, durability, file, paths, state })
    }

    pub(super) fn durability(&self) -> Durability {
        self.durability
    }

    /// A descriptor to sync.
    pub(super) fn file(&self) -> Result<File, StoreError> {
        self.file.try_clone().map_err(|e| StoreError::io("open", &self.paths.chain, e))
    }

    /// Whether there are records that no seal names, as far as this process knows.
    pub(super) fn has_unsealed(&self) -> bool {
        self.state().chain.end().unsealed() > 0
    }

    /// Waits for everybody else, and brings what is known of the chain up to date.
    pub(super) fn turn(&self) -> Result<Turn<'_>, StoreError> {
        let mut state = self.state();
        let held = Exclusive::take(&self.file, &self.paths.chain)?;
        state.chain.refresh(&held, &self.key)?;
        Ok(Turn { held, state, writer: self })
    }

    /// Seals every record that needs it, whoever wrote it. Says whether there was one.
    pub(super) fn seal(&self) -> Result<bool, StoreError> {
        if !self.has_unsealed() {
            return Ok(false);
        }
        self.turn()?.seal()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic halfway leaves at worst an outdated length, and the next append looks at the file anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    pub(super) fn chain(&self) -> &ChainFile {
        &self.state.chain
    }

    pub(super) fn append(
        &mut self,
        event: Event,
        id: &str,
        run: &str,
        draft: Draft,
    ) -> Result<Receipt, StoreError> {
        self.admit(event, id, run)?;
        if self.state.chain.end().is_full() {
            // Somebody was killed between a record and its seal.
            self.seal()?;
        }
        let Turn { held, state, writer } = self;
        let State { chain, open } = &mut **state;
        let (mut lines, head) = chain.end().link(draft, now(), &writer.key).map_err(StoreError::Entry)?;
        reserve(chain, held, event, open.len(), lines.len())?;
        let unsealed = chain.end().unsealed() + 1;
        let mut after = None;
        if writer.durability == Durability::Each || unsealed == MAX_BATCH {
            chain.look(held)?;
            let mut end = chain.end().clone();
            end.appended(head);
            let (seal, end) = end.seal(now(), &writer.key).expect("there is a record to seal");
            lines.extend_from_slice(&seal);
            after = Some(end);
        }
        chain.append(held, &lines, |end| match after {
            Some(after) => *end = after,
            None => end.appended(head),
        })?;
        match event {
            Event::Opened => drop(open.insert(id.to_owned(), run.to_owned())),
            Event::Closed | Event::Interrupted => drop(open.remove(id)),
            Event::Refused | Event::Noted => {}
        }
        Ok(head)
    }

    fn seal(&mut self) -> Result<bool, StoreError> {
        let Turn { held, state, writer } = self;
        state.chain.look(held)?;
        let Some((line, after)) = state.chain.end().seal(now(), &writer.key) else { return Ok(false) };
        state.chain.append(held, &line, |end| *end = after)?;
        Ok(true)
    }

    /// Keeps out what would make the chain invalid.
    fn admit(&self, event: Event, id: &str, run: &str) -> Result<(), StoreError> {
        let State { chain, open } = &*self.state;
        let owner = open.get(id);
        match event {
            Event::Opened | Event::Refused | Event::Noted if owner.is_some() => {
                Err(StoreError::AlreadyOpen { id: id.to_owned() })
            }
            Event::Opened | Event::Refused | Event::Noted => Ok(()),
            Event::Closed | Event::Interrupted if owner.is_some_and(|owner| owner == run) => Ok(()),
            // Opened by someone else, if at all: only the chain knows.
            Event::Closed | Event::Interrupted => {
                let mut scan = Scan::default();
                scan.advance(&self.writer.file, chain.len(), chain.path())?;
                let not_open = || StoreError::NotOpen { id: id.to_owned(), run: run.to_owned() };
                scan.is_open(id, run).then_some(()).ok_or_else(not_open)
            }
        }
    }
}

/// Whatever is not a closing record must leave room for those to come, of other processes too, and for the seals of all of
/// them.
fn reserve(
    chain: &mut ChainFile,
    held: &Exclusive<'_>,
    event: Event,
    open: usize,
    line: usize,
) -> Result<(), StoreError> {
    let closings = match event {
        Event::Opened => open + 1,
        Event::Refused | Event::Noted => open.max(1),
        Event::Closed | Event::Interrupted => return Ok(()),
    };
    let unsealed = chain.end().unsealed() + 1;
    chain.reserve(held, (line + closings * MAX_LINE + (closings + unsealed) * SEAL_SHARE) as u64)
}

fn now() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_micros(since_1970.as_micros() as u64)
}
