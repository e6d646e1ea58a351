//! What can be wrong with a chain, and the words for it: every message names the record.

use std::error::Error as StdError;
use std::fmt;

use thiserror::Error;

use super::{EnvelopeError, Event, MAX_LINE, SignatureError, StatementError};

/// Why a chain does not verify.
#[derive(Debug)]
pub enum ChainError {
    /// Records are counted from 1, one per line, so this is the line number as well.
    Record { record: u64, id: Option<String>, fault: Fault },
    /// The chain ends before the record that the pinned head names.
    Cut { pinned: u64, end: u64 },
}

/// What is wrong with one record.
#[derive(Debug, Error)]
pub enum Fault {
    #[error("the line is incomplete")]
    Torn,
    #[error("the line has no newline")]
    NoNewline,
    #[error("the line is longer than {MAX_LINE} bytes")]
    TooLong,
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error(transparent)]
    Statement(#[from] StatementError),
    #[error("says it is record {found}; a record was removed, repeated or moved")]
    Number { found: u64 },
    #[error("does not continue the record before it")]
    Link,
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

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainError::Record { record, id: Some(id), fault } => {
                write!(f, "record {record} (id {id}): {fault}")
            }
            ChainError::Record { record, id: None, fault } => write!(f, "record {record}: {fault}"),
            ChainError::Cut { pinned, end } => {
                write!(f, "the chain was cut: pinned head is record {pinned}, the store ends at {end}")
            }
        }
    }
}

/// The fault is part of the message, so the source is what lies behind the fault.
impl StdError for ChainError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            ChainError::Record { fault, .. } => fault.source(),
            ChainError::Cut { .. } => None,
        }
    }
}
