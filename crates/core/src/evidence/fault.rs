//! What can be wrong with a chain, and the words for it: every message names the record or the seal.

use std::error::Error as StdError;
use std::fmt;

use thiserror::Error;

use super::{
    EnvelopeError, Event, Line, MAX_BATCH, MAX_LINE, RECORD_START, SEAL_START, SignatureError, StatementError,
};

/// Why a chain does not verify.
#[derive(Debug)]
pub enum ChainError {
    /// Lines are counted from 1.
    Line { number: u64, what: What, fault: Fault },
    /// The chain ends before the line that the pinned head names.
    Cut { pinned: u64, end: u64 },
}

/// What a line is, going by how it begins. A claim, for the message only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Record { id: Option<String> },
    Seal,
    Neither,
}

/// What is wrong with one line.
#[derive(Debug, Error)]
pub enum Fault {
    #[error("the line is incomplete")]
    Torn,
    #[error("the line has no newline")]
    NoNewline,
    #[error("the line is longer than {MAX_LINE} bytes")]
    TooLong,
    #[error("neither a record nor a seal")]
    Unknown,
    #[error("a record with a signature of its own, as only versions before the first release wrote it")]
    OldFormat,
    #[error("a record is a statement and its mac, and nothing else")]
    NotARecord,
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error(transparent)]
    Statement(#[from] StatementError),
    #[error("says it is line {found}; a line was removed, repeated or moved")]
    Number { found: u64 },
    #[error("does not continue the line before it")]
    Link,
    #[error("its mac is not from the holder of the signing key")]
    Mac,
    #[error("is not the record that seal {seal} names")]
    NotAsSealed { seal: u64 },
    #[error("the records it names, from {first} on, are not those since the last seal")]
    OtherRecords { first: u64 },
    #[error("comes after {MAX_BATCH} records that nobody sealed")]
    Unsealed,
    #[error("differs from the pinned head")]
    Pinned,
    #[error("{event}, but the execution already has a record")]
    NotFresh { event: Event },
    #[error("{event}, but the execution was never opened")]
    NeverOpened { event: Event },
    #[error("{event}, but the execution had ended")]
    AlreadyEnded { event: Event },
    #[error("{event} for run {found}, but it was opened by run {owner}")]
    OtherOwner { event: Event, found: String, owner: String },
}

impl What {
    pub fn of(line: &[u8]) -> What {
        if line.starts_with(RECORD_START) {
            let record = Line::parse(line).ok().and_then(Line::record);
            What::Record { id: record.map(|record| record.entry.id) }
        } else if line.starts_with(SEAL_START) {
            What::Seal
        } else {
            What::Neither
        }
    }
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainError::Line { number, what, fault } => match what {
                What::Record { id: Some(id) } => write!(f, "record {number} (id {id}): {fault}"),
                What::Record { id: None } => write!(f, "record {number}: {fault}"),
                What::Seal => write!(f, "seal {number}: {fault}"),
                What::Neither => write!(f, "line {number}: {fault}"),
            },
            ChainError::Cut { pinned, end } => {
                write!(f, "the chain was cut: pinned head is line {pinned}, the store ends at {end}")
            }
        }
    }
}

/// The fault is part of the message, so the source is what lies behind the fault.
impl StdError for ChainError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            ChainError::Line { fault, .. } => fault.source(),
            ChainError::Cut { .. } => None,
        }
    }
}
