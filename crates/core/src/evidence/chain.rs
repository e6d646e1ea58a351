//! The chain: each line carries its number and the digest of the line before it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{
    Draft, EntryError, Fault, Line, MAX_BATCH, MAX_LINE, PublicKey, Seal, SecretKey, Timestamp, hex, unhex,
};

/// A place in a chain, to be kept elsewhere: the number of a line and its digest (without the newline). Printed and parsed as
/// `seq:hex`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub seq: u64,
    pub digest: [u8; 32],
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a head (a line number, a colon and 64 hexadecimal digits)")]
pub struct HeadError(String);

#[derive(Debug, Error)]
pub enum LinkError {
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error("the record takes {bytes} bytes, the limit is {MAX_LINE}")]
    TooLong { bytes: usize },
}

/// The end of a chain as whoever continues it has to know it: its head, and the records that no seal names yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct End {
    head: Head,
    /// Digests, oldest first; the last one is the head's.
    unsealed: Vec<[u8; 32]>,
}

impl End {
    pub fn head(&self) -> Head {
        self.head
    }

    /// How many records no seal names yet.
    pub fn unsealed(&self) -> usize {
        self.unsealed.len()
    }

    /// Whether a seal has to come before the next record.
    pub fn is_full(&self) -> bool {
        self.unsealed.len() >= MAX_BATCH
    }

    /// The line that puts a record here, and the head to pass on to [`End::appended`] once it is written.
    pub fn link(&self, draft: Draft, time: Timestamp, key: &SecretKey) -> Result<(Vec<u8>, Head), LinkError> {
        draft.link(self.head, time, key.mac())
    }

    /// A record was written here.
    pub fn appended(&mut self, head: Head) {
        self.head = head;
        self.unsealed.push(head.digest);
    }

    /// The line that seals the records that need it, and the end after it. Nothing if none do.
    pub fn seal(&self, time: Timestamp, key: &SecretKey) -> Option<(Vec<u8>, End)> {
        if self.unsealed.is_empty() {
            return None;
        }
        let (line, head) = Seal::sign(self.head, &self.unsealed, time, key);
        Some((line, End { head, unsealed: Vec::new() }))
    }

    /// Goes on past a line (newline included) that somebody else wrote. Only what the key's holder wrote is accepted: these
    /// records may be sealed next.
    pub fn follow(&mut self, line: &[u8], key: &SecretKey) -> Result<(), Fault> {
        let line = Line::parse(line)?;
        line.follows(self.head)?;
        match &line {
            Line::Record(_) if self.is_full() => return Err(Fault::Unsealed),
            Line::Record(record) => {
                record.written_by(key.mac())?;
                self.unsealed.push(record.digest);
            }
            Line::Seal(seal) => {
                seal.verify(key.public())?;
                if seal.digests() != self.unsealed {
                    return Err(Fault::OtherRecords { first: seal.first() });
                }
                self.unsealed.clear();
            }
        }
        self.head = line.head();
        Ok(())
    }

    /// Goes on at a seal further down: the signature vouches for what lies in between.
    pub fn resume(&mut self, line: &[u8], key: &PublicKey) -> Result<(), Fault> {
        let line = Line::parse(line)?;
        let Line::Seal(seal) = &line else { return Err(Fault::Unknown) };
        seal.verify(key)?;
        if seal.seq <= self.head.seq {
            return Err(Fault::Number { found: seal.seq });
        }
        // What is known of its records must be what it says of them.
        let last_seal = self.head.seq - self.unsealed.len() as u64;
        let differs = |(seq, known)| seal.names(seq).is_some_and(|named| named != known);
        if (last_seal + 1..).zip(&self.unsealed).any(differs) {
            return Err(Fault::OtherRecords { first: seal.first() });
        }
        *self = End { head: line.head(), unsealed: Vec::new() };
        Ok(())
    }
}

impl Head {
    /// The head of an empty chain. The first line has number 1.
    pub const GENESIS: Head = Head { seq: 0, digest: [0; 32] };
}

impl Default for Head {
    fn default() -> Head {
        Head::GENESIS
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
            // One spelling only, and one head before the first line.
            let sound = head.to_string() == text && (head.seq > 0 || head == Head::GENESIS);
            sound.then_some(head)
        };
        parse().ok_or_else(|| HeadError(text.to_owned()))
    }
}
