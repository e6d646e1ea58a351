//! The store as the engine sees it: one call per record.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use casemate_core::evidence::{Body, Draft, Durability, Event, Subject};
use serde_json::json;

use super::read::Scan;
use super::sync::Syncer;
use super::writer::Writer;
use super::{OpenRecord, Paths, Reader, Receipt, StoreError};

/// A store that can be appended to, from any thread. Everything a [`Reader`] does, it does too. Dropped, it seals and syncs
/// what is left.
#[derive(Debug)]
pub struct Store {
    reader: Reader,
    writer: Arc<Writer>,
    pub(super) syncer: Syncer,
}

impl Store {
    /// Opens the store under `home`, creating what is missing, and repairs what a killed writer left behind. Records that it
    /// left without a seal are sealed together with the next ones.
    pub fn open(home: &Path, durability: Durability) -> Result<Store, StoreError> {
        let paths = Paths::new(home);
        private_directory(&paths.evidence)?;
        private_directory(&paths.keys)?;
        let writer = Arc::new(Writer::open(paths.clone(), durability)?);
        let sealing = Arc::clone(&writer);
        let syncer = Syncer::new(writer.file()?, durability, move || sealing.seal());
        if writer.has_unsealed() {
            syncer.appended()?;
        }
        Ok(Store { reader: Reader::new(paths), writer, syncer })
    }

    /// Appends one record. `opened`, `refused` and `noted` are for a fresh id, `closed` and `interrupted` for an open one. An
    /// `opened` that succeeds has room set aside for its closing record of up to [`MAX_LINE`] bytes, and for the seals.
    ///
    /// [`MAX_LINE`]: casemate_core::evidence::MAX_LINE
    pub fn append(
        &self,
        event: Event,
        id: &str,
        run: &str,
        subjects: &[Subject],
        body: &Body,
    ) -> Result<Receipt, StoreError> {
        self.syncer.check()?;
        // Before anybody has to wait for it.
        let draft = self.draft(event, id, run, subjects, body)?;
        let receipt = self.writer.turn()?.append(event, id, run, draft)?;
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
        let mut turn = self.writer.turn()?;
        scan.advance(&file, turn.chain().len(), turn.chain().path())?;
        let left_open = scan.of_run(run);
        for OpenRecord { id, opened, subjects, .. } in &left_open {
            let body = json!({"opened": opened.seq, "reason": "its run ended without closing it"});
            let body = Body::new(&body)?;
            let draft = self.draft(Event::Interrupted, id, run, subjects, &body)?;
            turn.append(Event::Interrupted, id, run, draft)?;
        }
        drop(turn);
        if !left_open.is_empty() {
            self.syncer.appended()?;
        }
        Ok(left_open)
    }

    /// On return every record appended so far is sealed and on the disk.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.syncer.sync()
    }

    fn draft(
        &self,
        event: Event,
        id: &str,
        run: &str,
        subjects: &[Subject],
        body: &Body,
    ) -> Result<Draft, StoreError> {
        Ok(Draft::new(event, id, run, self.writer.durability(), subjects, body)?)
    }
}

/// A store is a reader that can also append.
impl Deref for Store {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
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
