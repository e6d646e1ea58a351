//! The store as the engine sees it: one call per record.

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use casemate_core::evidence::{Durability, Entry, Event, MAX_LINE, SecretKey, Subject, Timestamp, link};
use serde_json::{Value, json};

use super::chain_file::ChainFile;
use super::key_file::{self, ChainIs};
use super::lock::{Exclusive, LockFile};
use super::read::Scan;
use super::sync::Syncer;
use super::{OpenRecord, Paths, Reader, Receipt, StoreError};

/// A store that can be appended to, from any thread. Everything a [`Reader`] does, it does too.
#[derive(Debug)]
pub struct Store {
    reader: Reader,
    key: SecretKey,
    durability: Durability,
    lock: LockFile,
    state: Mutex<State>,
    pub(super) syncer: Syncer,
}

#[derive(Debug)]
struct State {
    chain: ChainFile,
    /// Executions opened through this store and not yet ended, with their runs.
    open: HashMap<String, String>,
}

impl Store {
    /// Opens the store under `home`, creating what is missing, and repairs what a killed writer left behind.
    pub fn open(home: &Path, durability: Durability) -> Result<Store, StoreError> {
        let paths = Paths::new(home);
        private_directory(&paths.evidence)?;
        private_directory(&paths.keys)?;
        let lock = LockFile::create(&paths.lock)?;
        let (key, chain) = {
            let held = lock.exclusive()?;
            let mut chain = ChainFile::open(&paths, &held)?;
            let content = if chain.is_empty()? { ChainIs::Empty } else { ChainIs::Signed };
            let key = key_file::load_or_create(&paths, &held, content)?;
            chain.refresh(&held, key.public())?;
            (key, chain)
        };
        let file = chain.file().try_clone().map_err(|e| StoreError::io("open", chain.path(), e))?;
        Ok(Store {
            reader: Reader::new(paths),
            key,
            durability,
            lock,
            state: Mutex::new(State { chain, open: HashMap::new() }),
            syncer: Syncer::new(file, durability),
        })
    }

    /// Signs and appends one record. `opened` and `refused` are for a fresh id, `closed` and `interrupted` for an
    /// open one. An `opened` that succeeds has room set aside for its closing record of up to [`MAX_LINE`] bytes.
    pub fn append(
        &self,
        event: Event,
        id: &str,
        run: &str,
        subjects: Vec<Subject>,
        body: Value,
    ) -> Result<Receipt, StoreError> {
        self.syncer.check()?;
        let receipt = {
            let mut state = self.state();
            let held = self.lock.exclusive()?;
            state.chain.refresh(&held, self.key.public())?;
            state.admit(event, id, run)?;
            self.write(&mut state, &held, self.entry(event, id, run, subjects, body))?
        };
        // Outside the locks, so that others append while the disk works, and one sync serves them all.
        self.syncer.appended()?;
        Ok(receipt)
    }

    /// Closes what a run that is gone left open, and returns it. The caller holds that run's lock.
    pub fn close_interrupted(&self, run: &str) -> Result<Vec<OpenRecord>, StoreError> {
        self.syncer.check()?;
        // The long scan happens without the lock; what was appended meanwhile is read with it.
        let mut scan = Scan::default();
        let (file, len) = self.reader.snapshot()?;
        scan.advance(&file, len, self.reader.chain_path())?;
        let mut state = self.state();
        let held = self.lock.exclusive()?;
        state.chain.refresh(&held, self.key.public())?;
        scan.advance(&file, state.chain.len(), state.chain.path())?;
        let left_open = scan.of_run(run);
        for open in &left_open {
            let body = json!({"opened": open.opened.seq, "reason": "its run ended without closing it"});
            let entry = self.entry(Event::Interrupted, &open.id, run, open.subjects.clone(), body);
            self.write(&mut state, &held, entry)?;
        }
        drop(held);
        drop(state);
        if !left_open.is_empty() {
            self.syncer.appended()?;
        }
        Ok(left_open)
    }

    /// On return every record appended so far is on the disk.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.syncer.sync()
    }

    fn write(&self, state: &mut State, held: &Exclusive<'_>, entry: Entry) -> Result<Receipt, StoreError> {
        let (event, id, run) = (entry.event, entry.id.clone(), entry.run.clone());
        let (line, head) = link(state.chain.head(), entry, &self.key).map_err(StoreError::Entry)?;
        // Whatever is not a closing record must leave room for those to come, of other processes too.
        let closings = match event {
            Event::Opened => state.open.len() + 1,
            Event::Refused => state.open.len().max(1),
            Event::Closed | Event::Interrupted => 0,
        };
        if closings > 0 {
            state.chain.reserve(held, (line.len() + closings * MAX_LINE) as u64)?;
        }
        state.chain.append(held, &line, head)?;
        match event {
            Event::Opened => drop(state.open.insert(id, run)),
            Event::Closed | Event::Interrupted => drop(state.open.remove(&id)),
            Event::Refused => {}
        }
        Ok(head)
    }

    fn entry(&self, event: Event, id: &str, run: &str, subjects: Vec<Subject>, body: Value) -> Entry {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Entry {
            event,
            id: id.to_owned(),
            run: run.to_owned(),
            time: Timestamp::from_unix_micros(since_1970.as_micros() as u64),
            durability: self.durability,
            subjects,
            body,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic halfway leaves at worst an outdated length, and the next append looks at the file anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store is a reader that can also append.
impl Deref for Store {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl State {
    /// Keeps out what would make the chain invalid.
    fn admit(&self, event: Event, id: &str, run: &str) -> Result<(), StoreError> {
        let owner = self.open.get(id);
        match event {
            Event::Opened | Event::Refused if owner.is_some() => {
                Err(StoreError::AlreadyOpen { id: id.to_owned() })
            }
            Event::Opened | Event::Refused => Ok(()),
            Event::Closed | Event::Interrupted if owner.is_some_and(|owner| owner == run) => Ok(()),
            // Opened by someone else, if at all: only the chain knows.
            Event::Closed | Event::Interrupted => {
                let mut scan = Scan::default();
                scan.advance(self.chain.file(), self.chain.len(), self.chain.path())?;
                let not_open = || StoreError::NotOpen { id: id.to_owned(), run: run.to_owned() };
                scan.is_open(id, run).then_some(()).ok_or_else(not_open)
            }
        }
    }
}

fn private_directory(path: &Path) -> Result<(), StoreError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => StoreError::NotADirectory { action: "create", path: path.to_owned() },
        _ => StoreError::io("create", path, e),
    })?;
    let mode = path.metadata().map_err(|e| StoreError::io("look at", path, e))?.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(StoreError::DirectoryExposed { path: path.to_owned(), mode });
    }
    Ok(())
}
