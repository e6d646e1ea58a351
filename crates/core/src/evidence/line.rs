//! One line of a chain, taken apart.

use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use super::draft::{MAC_END, MAC_START, write_mac};
use super::{Draft, ENVELOPE_START, Entry, EntryError, Fault, Head, MacKey, Seal, Statement, unhex};

/// Longest line, newline included. The recorder reserves this much room for a closing record before it opens one.
pub const MAX_LINE: usize = 128 * 1024;

/// How every record begins.
pub const RECORD_START: &[u8] = b"{\"intoto\":";
/// How every seal begins.
pub const SEAL_START: &[u8] = ENVELOPE_START;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Record(Record),
    Seal(Seal),
}

/// A line that is a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub seq: u64,
    pub prev: [u8; 32],
    pub digest: [u8; 32],
    pub entry: Entry,
    mac: [u8; 32],
    /// The digest of everything before the MAC, which is what the MAC is of.
    covered: [u8; 32],
}

impl Line {
    /// Takes a line (newline included) apart. Only its form is checked: for signature, MAC and place in the chain, see
    /// [`Seal::verify`], [`Record::written_by`], [`Line::follows`] and [`super::Verifier`].
    pub fn parse(line: &[u8]) -> Result<Line, Fault> {
        if line.len() > MAX_LINE {
            return Err(Fault::TooLong);
        }
        let Some(line) = line.strip_suffix(b"\n") else {
            return Err(if is_torn(line) { Fault::Torn } else { Fault::NoNewline });
        };
        if line.starts_with(RECORD_START) {
            Record::parse(line).map(Line::Record)
        } else if line.starts_with(SEAL_START) {
            Seal::parse(line).map(Line::Seal)
        } else {
            Err(Fault::Unknown)
        }
    }

    /// The head of a chain that ends with this line.
    pub fn head(&self) -> Head {
        match self {
            Line::Record(record) => record.head(),
            Line::Seal(seal) => Head { seq: seal.seq, digest: seal.digest },
        }
    }

    /// Checks that this line comes directly after `head`.
    pub fn follows(&self, head: Head) -> Result<(), Fault> {
        let (seq, prev) = match self {
            Line::Record(record) => (record.seq, record.prev),
            Line::Seal(seal) => (seal.seq, seal.prev),
        };
        if seq != head.seq + 1 {
            return Err(Fault::Number { found: seq });
        }
        if prev == head.digest { Ok(()) } else { Err(Fault::Link) }
    }

    pub fn record(self) -> Option<Record> {
        match self {
            Line::Record(record) => Some(record),
            Line::Seal(_) => None,
        }
    }
}

impl Record {
    /// The head of a chain that ends with this record.
    pub fn head(&self) -> Head {
        Head { seq: self.seq, digest: self.digest }
    }

    /// Whether the holder of the key wrote it.
    pub fn written_by(&self, key: &MacKey) -> Result<(), Fault> {
        if key.verifies(&self.covered, &self.mac) { Ok(()) } else { Err(Fault::Mac) }
    }

    /// The same line once more, without its newline.
    pub fn to_line(&self) -> Result<Vec<u8>, EntryError> {
        let (mut line, _) = Draft::try_from(&self.entry)?.place(self.seq, &self.prev, self.entry.time);
        write_mac(&mut line, &self.mac);
        Ok(line)
    }

    /// Takes a line without its newline apart. It accepts what a [`Draft`] writes, and only that.
    fn parse(line: &[u8]) -> Result<Record, Fault> {
        let (covered, mac) = split_mac(line).ok_or(Fault::NotARecord)?;
        let statement = covered.strip_prefix(RECORD_START).ok_or(Fault::NotARecord)?;
        let Statement { seq, prev, entry } = Statement::parse(statement)?;
        let mut hash = Sha256::new_with_prefix(covered);
        let before = hash.clone().finalize().into();
        hash.update(&line[covered.len()..]);
        Ok(Record { seq, prev, digest: hash.finalize().into(), entry, mac, covered: before })
    }
}

/// What a record's MAC is of, and the MAC.
fn split_mac(line: &[u8]) -> Option<(&[u8], [u8; 32])> {
    let line = line.strip_suffix(MAC_END)?;
    let (covered, digits) = line.split_at_checked(line.len().checked_sub(64)?)?;
    let mac = unhex(std::str::from_utf8(digits).ok()?)?;
    Some((covered.strip_suffix(MAC_START)?, mac))
}

/// Whether bytes without a newline are the beginning of a line, as a writer killed halfway leaves it. A whole line
/// followed by anything is not.
pub fn is_torn(tail: &[u8]) -> bool {
    let begins_like = |start: &[u8]| tail.starts_with(start) || start.starts_with(tail);
    // A sign without its digits is a mistake to the parser, not an end.
    let parsed = serde_json::from_slice::<IgnoredAny>(tail.strip_suffix(b"-").unwrap_or(tail));
    let ends_too_soon = parsed.is_err_and(|e| e.is_eof());
    (begins_like(RECORD_START) || begins_like(SEAL_START)) && ends_too_soon
}
