//! Reading the chain. Needs neither the signing key nor a writable store.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use casemate_core::evidence::{
    ChainError, Event, Fault, Head, KeyOrigin, Line, MAX_LINE, MacKey, PublicKey, Record, Report, Subject,
    Verifier, What, is_torn,
};

use super::key_file::load_public;
use super::lock::Shared;
use super::tail::Tail;
use super::{Paths, StoreError};

/// The chain as an auditor sees it.
#[derive(Debug, Clone)]
pub struct Reader {
    paths: Paths,
}

/// An execution that was opened and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRecord {
    pub id: String,
    pub run: String,
    pub opened: Head,
    pub subjects: Vec<Subject>,
    pub body: serde_json::Value,
}

/// The records that the chain held when the iterator was made, oldest first. It ends after the first error.
#[derive(Debug)]
pub struct Records(Parsed);

impl Reader {
    pub fn open(home: &Path) -> Result<Reader, StoreError> {
        let paths = Paths::new(home);
        match paths.chain.metadata() {
            Ok(_) => Ok(Reader { paths }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::NoStore { path: home.to_owned() })
            }
            Err(e) => Err(StoreError::io("read", &paths.chain, e)),
        }
    }

    pub(super) fn new(paths: Paths) -> Reader {
        Reader { paths }
    }

    /// Every line's form is checked; seals and order are [`Reader::verify`]'s business.
    pub fn records(&self) -> Result<Records, StoreError> {
        self.parsed().map(Records)
    }

    /// The records of one execution: one, or two once it has ended. None if it is unknown.
    pub fn find(&self, id: &str) -> Result<Vec<Record>, StoreError> {
        self.records()?.filter(|record| record.as_ref().map_or(true, |r| r.entry.id == id)).collect()
    }

    /// The records of one execution, each with the seal that names it, if there is one yet.
    pub fn find_sealed(&self, id: &str) -> Result<Vec<(Record, Option<Head>)>, StoreError> {
        let mut found: Vec<(Record, Option<Head>)> = Vec::new();
        self.visit(id, |_, line| {
            let head = line.head();
            match line {
                Line::Record(record) => found.push((record, None)),
                Line::Seal(seal) => {
                    let named = |record: &Record| seal.names(record.seq) == Some(&record.digest);
                    found.iter_mut().filter(|(record, _)| named(record)).for_each(|(_, by)| *by = Some(head));
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Copies the lines of one execution as they are, and the seals that name them: with the public key, all that it takes
    /// to check it elsewhere.
    pub fn export_one(&self, id: &str, out: &mut impl Write) -> Result<(), StoreError> {
        self.visit(id, |line, _| out.write_all(line).map_err(StoreError::Export))
    }

    /// What a run opened and never closed, oldest first.
    pub fn open_ids_of(&self, run: &str) -> Result<Vec<OpenRecord>, StoreError> {
        let mut scan = Scan::default();
        let (file, len) = self.snapshot()?;
        scan.advance(&file, len, &self.paths.chain)?;
        Ok(scan.of_run(run))
    }

    /// The end of the chain, to be kept elsewhere.
    pub fn head(&self) -> Result<Head, StoreError> {
        let (file, len) = self.snapshot()?;
        let chain = &self.paths.chain;
        let tail = Tail::read(&file, 0, len).map_err(|e| StoreError::io("read", chain, e))?;
        let parsed = tail.and_then(|tail| match tail.lines().last() {
            _ if !tail.rest().is_empty() => None,
            Some(line) => Line::parse(line).ok().map(|line| line.head()),
            None => Some(Head::GENESIS),
        });
        match parsed {
            Some(head) => Ok(head),
            None => Err(StoreError::Corrupt {
                path: chain.clone(),
                source: first_fault(&file, chain, &self.public_key()?, None)?,
            }),
        }
    }

    /// Checks every line. Without a pinned key it uses the one beside the chain, and the report says so.
    pub fn verify(&self, key: Option<PublicKey>, head: Option<Head>) -> Result<Report, StoreError> {
        let (key, origin) = match key {
            Some(key) => (key, KeyOrigin::Pinned),
            None => (self.public_key()?, KeyOrigin::Store),
        };
        let (file, len) = self.snapshot()?;
        let mut verifier = Verifier::new(key, origin, head);
        let checked = verify_lines(Lines::new(file, len), &mut verifier, &self.paths.chain)?;
        let report = checked.and_then(|()| verifier.finish());
        report.map_err(|source| StoreError::Corrupt { path: self.paths.chain.clone(), source })
    }

    /// Copies the lines as they are, and returns how many bytes that was.
    pub fn export(&self, out: &mut impl Write) -> Result<u64, StoreError> {
        let (file, len) = self.snapshot()?;
        io::copy(&mut file.take(len), out).map_err(StoreError::Export)
    }

    pub fn public_key(&self) -> Result<PublicKey, StoreError> {
        let path = &self.paths.public;
        load_public(path)?.ok_or_else(|| StoreError::io("read", path, io::ErrorKind::NotFound.into()))
    }

    pub(super) fn chain_path(&self) -> &Path {
        &self.paths.chain
    }

    /// The file and its length at a moment when no writer was in the middle of a line.
    pub(super) fn snapshot(&self) -> Result<(File, u64), StoreError> {
        let chain = &self.paths.chain;
        let file = File::open(chain).map_err(|e| StoreError::io("read", chain, e))?;
        let len = {
            let _quiet = Shared::take(&file, chain)?;
            file.metadata().map_err(|e| StoreError::io("look at", chain, e))?.len()
        };
        Ok((file, len))
    }

    fn parsed(&self) -> Result<Parsed, StoreError> {
        let (file, len) = self.snapshot()?;
        Ok(Parsed { lines: Lines::new(file, len), paths: self.paths.clone(), count: 0, ended: false })
    }

    /// Shows the records of one execution, and the seals that name them, as lines and taken apart.
    fn visit(
        &self,
        id: &str,
        mut see: impl FnMut(&[u8], Line) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut parsed = self.parsed()?;
        let mut unsealed: Vec<Head> = Vec::new();
        while let Some(line) = parsed.next() {
            let line = line?;
            let wanted = match &line {
                Line::Record(record) if record.entry.id == id => {
                    unsealed.push(record.head());
                    true
                }
                Line::Record(_) => false,
                Line::Seal(seal) => {
                    let before = unsealed.len();
                    unsealed.retain(|record| seal.names(record.seq) != Some(&record.digest));
                    unsealed.len() < before
                }
            };
            if wanted {
                see(&parsed.lines.line, line)?;
            }
        }
        Ok(())
    }
}

impl Iterator for Records {
    type Item = Result<Record, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.find_map(|line| line.map(Line::record).transpose())
    }
}

/// The lines of a chain, taken apart. It ends after the first error.
#[derive(Debug)]
struct Parsed {
    lines: Lines,
    paths: Paths,
    count: u64,
    ended: bool,
}

impl Iterator for Parsed {
    type Item = Result<Line, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let chain = &self.paths.chain;
        let item = match self.lines.next() {
            Ok(None) => None,
            Ok(Some(line)) => {
                self.count += 1;
                Some(Line::parse(line).map_err(|fault| damaged(chain, self.count, line, fault)))
            }
            Err(e) => Some(Err(StoreError::io("read", chain, e))),
        };
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Which executions are open after a stretch of the chain. It can be continued when the chain has grown.
#[derive(Debug, Default)]
pub(super) struct Scan {
    offset: u64,
    lines: u64,
    open: HashMap<String, OpenRecord>,
}

impl Scan {
    pub(super) fn advance(&mut self, file: &File, to: u64, path: &Path) -> Result<(), StoreError> {
        let read = |e| StoreError::io("read", path, e);
        let mut file = file.try_clone().map_err(read)?;
        file.seek(SeekFrom::Start(self.offset)).map_err(read)?;
        let mut lines = Lines::new(file, to - self.offset);
        while let Some(line) = lines.next().map_err(read)? {
            if !line.ends_with(b"\n") && is_torn(line) {
                // Left by a killed writer. It names nothing, and the next append removes it.
                break;
            }
            self.lines += 1;
            let parsed = Line::parse(line).map_err(|fault| damaged(path, self.lines, line, fault))?;
            self.offset += line.len() as u64;
            if let Line::Record(record) = parsed {
                self.note(record);
            }
        }
        Ok(())
    }

    pub(super) fn is_open(&self, id: &str, run: &str) -> bool {
        self.open.get(id).is_some_and(|open| open.run == run)
    }

    pub(super) fn of_run(self, run: &str) -> Vec<OpenRecord> {
        let mut of_run: Vec<_> = self.open.into_values().filter(|open| open.run == run).collect();
        of_run.sort_unstable_by_key(|open| open.opened.seq);
        of_run
    }

    fn note(&mut self, record: Record) {
        let opened = record.head();
        let entry = record.entry;
        match entry.event {
            Event::Opened => {
                let (id, run, subjects, body) = (entry.id, entry.run, entry.subjects, entry.body);
                self.open.insert(id.clone(), OpenRecord { id, run, opened, subjects, body });
            }
            Event::Closed | Event::Interrupted => drop(self.open.remove(&entry.id)),
            Event::Refused | Event::Noted => {}
        }
    }
}

/// The first thing that is wrong with a chain that is known to be damaged.
pub(super) fn first_fault(
    file: &File,
    path: &Path,
    key: &PublicKey,
    macs: Option<&MacKey>,
) -> Result<ChainError, StoreError> {
    let read = |e| StoreError::io("read", path, e);
    let mut file = file.try_clone().map_err(read)?;
    let len = file.seek(SeekFrom::End(0)).map_err(read)?;
    file.rewind().map_err(read)?;
    let mut verifier = Verifier::new(key.clone(), KeyOrigin::Store, None);
    if let Some(key) = macs {
        verifier = verifier.with_macs(key.clone());
    }
    match verify_lines(Lines::new(file, len), &mut verifier, path)?.and_then(|()| verifier.finish()) {
        Err(fault) => Ok(fault),
        Ok(_) => Err(StoreError::Replaced { path: path.to_owned() }),
    }
}

fn verify_lines(
    mut lines: Lines,
    verifier: &mut Verifier,
    path: &Path,
) -> Result<Result<(), ChainError>, StoreError> {
    while let Some(line) = lines.next().map_err(|e| StoreError::io("read", path, e))? {
        if let Err(fault) = verifier.line(line) {
            return Ok(Err(fault));
        }
    }
    Ok(Ok(()))
}

fn damaged(path: &Path, number: u64, line: &[u8], fault: Fault) -> StoreError {
    let source = ChainError::Line { number, what: What::of(line), fault };
    StoreError::Corrupt { path: path.to_owned(), source }
}

/// Lines with their newlines, from a file of which only the first `len` bytes count.
#[derive(Debug)]
struct Lines {
    reader: BufReader<io::Take<File>>,
    line: Vec<u8>,
}

impl Lines {
    fn new(file: File, len: u64) -> Lines {
        Lines { reader: BufReader::with_capacity(64 * 1024, file.take(len)), line: Vec::new() }
    }

    /// A line that is too long is returned in part, which the parser rejects.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        let mut bounded = (&mut self.reader).take(MAX_LINE as u64 + 1);
        let n = bounded.read_until(b'\n', &mut self.line)?;
        Ok((n > 0).then_some(&self.line[..]))
    }
}
