//! The chain: each record carries its number and the digest of the line before it.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{
    ChainError, Entry, EntryError, Envelope, Event, Fault, LINE_START, PublicKey, SecretKey, Statement, hex,
    sha256, unhex,
};

/// Longest line, newline included. The recorder reserves this much room for a closing entry before it opens one.
pub const MAX_LINE: usize = 128 * 1024;

/// The end of a chain, to be kept elsewhere: a record number and the digest of that record's line (without its
/// newline). Printed and parsed as `seq:hex`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub seq: u64,
    pub digest: [u8; 32],
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a head (a record number, a colon and 64 hexadecimal digits)")]
pub struct HeadError(String);

#[derive(Debug, Error)]
pub enum LinkError {
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error("the record takes {bytes} bytes, the limit is {MAX_LINE}")]
    TooLong { bytes: usize },
}

/// One line of a chain, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub seq: u64,
    pub prev: [u8; 32],
    pub digest: [u8; 32],
    pub entry: Entry,
}

/// Where the verifying key came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrigin {
    /// From the caller.
    Pinned,
    /// From next to the chain: whoever replaced the chain could have replaced the key.
    Store,
}

/// How much a successful verification proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Key and head were pinned: up to that record nothing was changed, added or cut.
    Anchored { record: u64 },
    /// The chain agrees with itself; a cut tail or a wholly new chain would too.
    Unanchored,
}

/// What a verified chain holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub records: u64,
    pub executions: u64,
    /// Executions that were opened and not closed, in the order of opening.
    pub open: Vec<String>,
    pub head: Head,
    pub verdict: Verdict,
}

/// Checks a chain line by line.
#[derive(Debug)]
pub struct Verifier {
    key: PublicKey,
    origin: KeyOrigin,
    pin: Option<Head>,
    head: Head,
    executions: HashMap<String, State>,
}

#[derive(Debug)]
enum State {
    Open { run: String, seq: u64 },
    Ended,
}

/// Signs an entry onto the end of a chain: the line to append, newline included, and the head after it.
pub fn link(head: Head, entry: Entry, key: &SecretKey) -> Result<(Vec<u8>, Head), LinkError> {
    let statement = Statement { seq: head.seq + 1, prev: head.digest, entry };
    let mut line = Envelope::sign(statement.to_payload()?, key).to_line();
    let head = Head { seq: statement.seq, digest: sha256(&line) };
    line.push(b'\n');
    if line.len() > MAX_LINE {
        return Err(LinkError::TooLong { bytes: line.len() });
    }
    Ok((line, head))
}

/// Whether bytes without a newline are the beginning of a line, as a writer killed halfway leaves it. A whole line
/// followed by anything is not.
pub fn is_torn(tail: &[u8]) -> bool {
    let begins_like_a_line = tail.starts_with(LINE_START) || LINE_START.starts_with(tail);
    let ends_too_soon = serde_json::from_slice::<serde::de::IgnoredAny>(tail).is_err_and(|e| e.is_eof());
    begins_like_a_line && ends_too_soon
}

impl Head {
    /// The head of an empty chain. The first record has number 1.
    pub const GENESIS: Head = Head { seq: 0, digest: [0; 32] };
}

impl Record {
    /// Takes a line (newline included) apart. With a key its signature is checked too; its place in the chain
    /// is not: see [`Record::follows`] and [`Verifier`].
    pub fn parse(line: &[u8], key: Option<&PublicKey>) -> Result<Record, Fault> {
        if line.len() > MAX_LINE {
            return Err(Fault::TooLong);
        }
        let Some(line) = line.strip_suffix(b"\n") else {
            return Err(if is_torn(line) { Fault::Torn } else { Fault::NoNewline });
        };
        let envelope = Envelope::parse(line)?;
        if let Some(key) = key {
            envelope.verify(key)?;
        }
        let Statement { seq, prev, entry } = Statement::parse(envelope.payload())?;
        Ok(Record { seq, prev, digest: sha256(line), entry })
    }

    /// Checks that this record comes directly after `head`.
    pub fn follows(&self, head: Head) -> Result<(), Fault> {
        if self.seq != head.seq + 1 {
            return Err(Fault::Number { found: self.seq });
        }
        if self.prev == head.digest { Ok(()) } else { Err(Fault::Link) }
    }

    /// The head of a chain that ends with this record.
    pub fn head(&self) -> Head {
        Head { seq: self.seq, digest: self.digest }
    }
}

impl Verifier {
    pub fn new(key: PublicKey, origin: KeyOrigin, pin: Option<Head>) -> Verifier {
        Verifier { key, origin, pin, head: Head::GENESIS, executions: HashMap::new() }
    }

    /// Takes the next line, newline included.
    pub fn line(&mut self, line: &[u8]) -> Result<Record, ChainError> {
        let record = self.head.seq + 1;
        let checked = Record::parse(line, Some(&self.key)).and_then(|parsed| {
            self.place(&parsed)?;
            Ok(parsed)
        });
        let parsed = checked.map_err(|fault| {
            // A claim for the message only: the line was just found wanting.
            let id = Record::parse(line, None).ok().map(|parsed| parsed.entry.id);
            ChainError::Record { record, id, fault }
        })?;
        self.head = parsed.head();
        Ok(parsed)
    }

    /// The end of the chain has been reached.
    pub fn finish(self) -> Result<Report, ChainError> {
        if let Some(pin) = self.pin.filter(|pin| pin.seq > self.head.seq) {
            return Err(ChainError::Cut { pinned: pin.seq, end: self.head.seq });
        }
        let executions = self.executions.len() as u64;
        let still_open = |(id, state)| match state {
            State::Open { seq, .. } => Some((seq, id)),
            State::Ended => None,
        };
        let mut open: Vec<(u64, String)> = self.executions.into_iter().filter_map(still_open).collect();
        open.sort_unstable();
        Ok(Report {
            records: self.head.seq,
            executions,
            open: open.into_iter().map(|(_, id)| id).collect(),
            head: self.head,
            verdict: match (self.origin, self.pin) {
                (KeyOrigin::Pinned, Some(pin)) => Verdict::Anchored { record: pin.seq },
                _ => Verdict::Unanchored,
            },
        })
    }

    /// Checks a signed record against everything before it.
    fn place(&mut self, record: &Record) -> Result<(), Fault> {
        record.follows(self.head)?;
        if self.pin.is_some_and(|pin| pin.seq == record.seq && pin.digest != record.digest) {
            return Err(Fault::Pinned);
        }
        let Entry { event, id, run, .. } = &record.entry;
        let (event, seq) = (*event, record.seq);
        let next = match (event, self.executions.get(id)) {
            (Event::Opened, None) => State::Open { run: run.clone(), seq },
            (Event::Refused, None) => State::Ended,
            (Event::Opened | Event::Refused, Some(_)) => return Err(Fault::NotFresh { event }),
            (Event::Closed | Event::Interrupted, None) => return Err(Fault::NeverOpened { event }),
            (Event::Closed | Event::Interrupted, Some(State::Ended)) => {
                return Err(Fault::AlreadyEnded { event });
            }
            (Event::Closed | Event::Interrupted, Some(State::Open { run: owner, .. })) if owner != run => {
                return Err(Fault::OtherOwner { event, found: run.clone(), owner: owner.clone() });
            }
            (Event::Closed | Event::Interrupted, Some(State::Open { .. })) => State::Ended,
        };
        self.executions.insert(id.clone(), next);
        Ok(())
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, hex(&self.digest))
    }
}

impl FromStr for Head {
    type Err = HeadError;

    fn from_str(text: &str) -> Result<Head, HeadError> {
        let parse = || {
            let (seq, digest) = text.split_once(':')?;
            let head = Head { seq: seq.parse().ok()?, digest: unhex(digest)? };
            // One spelling only, and one head before the first record.
            let sound = head.to_string() == text && (head.seq > 0 || head == Head::GENESIS);
            sound.then_some(head)
        };
        parse().ok_or_else(|| HeadError(text.to_owned()))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Anchored { record } => write!(f, "anchored at record {record}"),
            Verdict::Unanchored => f.write_str("consistent, unanchored"),
        }
    }
}
