//! What one record says: an in-toto v1 statement with the predicate of Casemate's evidence.

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use super::canonical::{write_number, write_string};
use super::{CanonicalError, Timestamp, parse_canonical, push_hex, unhex};

pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
pub const PREDICATE_TYPE: &str = "https://casemate.dev/evidence/v1";

/// Longest execution or run id.
const MAX_ID: usize = 128;

/// The moments of an execution that leave a record, and what happens within a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// Written before launch.
    Opened,
    /// Written before the result is acknowledged.
    Closed,
    /// Turned away before it was opened.
    Refused,
    /// Closed by a later process, because the one that opened it is gone.
    Interrupted,
    /// Something small in a session that was over when it was recorded: it has this record, and an id of its own.
    Noted,
}

/// When records are sealed and reach the disk. Each record says under which promise it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Before the process exits.
    OnExit,
    /// Within milliseconds, many records at a time.
    Batch,
    /// Before the append returns.
    Each,
}

/// An artifact that a statement is about. The digest is SHA-256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub name: String,
    pub sha256: [u8; 32],
}

/// What the writer of a record decided; its place in the chain stands beside it in [`Statement`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub event: Event,
    /// The execution.
    pub id: String,
    /// The process run that owns the execution.
    pub run: String,
    pub time: Timestamp,
    pub durability: Durability,
    /// At least one: in-toto has no statement about nothing.
    pub subjects: Vec<Subject>,
    /// A JSON object.
    pub body: Value,
}

/// An entry and its place in the chain, as it was read. [`super::Draft`] writes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub seq: u64,
    /// Digest of the previous line; zeros before the first.
    pub prev: [u8; 32],
    pub entry: Entry,
}

/// Why an entry cannot become a record.
#[derive(Debug, Error)]
pub enum EntryError {
    #[error("{what} {value:?} is not 1 to {MAX_ID} letters, digits or any of . _ : -")]
    Id { what: &'static str, value: String },
    #[error("a record needs at least one subject")]
    NoSubject,
    #[error("the body is not a JSON object")]
    BodyNotAnObject,
    #[error("the body has no canonical form")]
    Body(#[source] CanonicalError),
}

/// Why a payload is not a statement of ours.
#[derive(Debug, Error)]
pub enum StatementError {
    #[error("the statement is not canonical JSON")]
    NotCanonical(#[source] CanonicalError),
    #[error("the statement is not one of Casemate's")]
    Shape(#[source] serde_json::Error),
    #[error("the statement's {0} is not valid")]
    Field(&'static str),
    #[error("the statement is not valid")]
    Entry(#[source] EntryError),
}

impl Statement {
    /// Accepts what a [`super::Draft`] writes, and only that.
    pub fn parse(payload: &[u8]) -> Result<Statement, StatementError> {
        let field = StatementError::Field;
        let WireStatement { subject, predicate, .. } = WireStatement::parse(payload, PREDICATE_TYPE)?;
        let WirePredicate { chain, event, id, run, time, durability, body } = predicate;
        let (seq, prev) = chain.place()?;
        if !body.is_object() {
            return Err(StatementError::Entry(EntryError::BodyNotAnObject));
        }
        check_entry(&id, &run, subject.len()).map_err(StatementError::Entry)?;
        let entry = Entry {
            event: Event::from_name(&event).ok_or(field("event"))?,
            id,
            run,
            time: time.parse().map_err(|()| field("time"))?,
            durability: Durability::from_name(&durability).ok_or(field("durability"))?,
            subjects: subject.into_iter().map(Subject::try_from).collect::<Result<_, _>>()?,
            body,
        };
        Ok(Statement { seq, prev, entry })
    }
}

/// What holds for every record, read or written.
pub(super) fn check_entry(id: &str, run: &str, subjects: usize) -> Result<(), EntryError> {
    for (what, value) in [("execution id", id), ("run id", run)] {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
        if value.is_empty() || value.len() > MAX_ID || !value.bytes().all(allowed) {
            return Err(EntryError::Id { what, value: value.to_owned() });
        }
    }
    if subjects == 0 { Err(EntryError::NoSubject) } else { Ok(()) }
}

impl Event {
    const ALL: [Event; 5] = [Event::Opened, Event::Closed, Event::Refused, Event::Interrupted, Event::Noted];

    pub fn name(self) -> &'static str {
        match self {
            Event::Opened => "opened",
            Event::Closed => "closed",
            Event::Refused => "refused",
            Event::Interrupted => "interrupted",
            Event::Noted => "noted",
        }
    }

    fn from_name(name: &str) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.name() == name)
    }
}

impl Durability {
    const ALL: [Durability; 3] = [Durability::OnExit, Durability::Batch, Durability::Each];

    pub fn name(self) -> &'static str {
        match self {
            Durability::OnExit => "on-exit",
            Durability::Batch => "batch",
            Durability::Each => "each",
        }
    }

    fn from_name(name: &str) -> Option<Durability> {
        Durability::ALL.into_iter().find(|durability| durability.name() == name)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// Statements are written by hand, with their keys in sorted order: that spares the hot path a tree of values. The tests
// hold the result against `parse_canonical`.

pub(super) fn write_member(out: &mut Vec<u8>, key: &str, text: &str) {
    out.extend_from_slice(key.as_bytes());
    write_string(out, text);
}

/// What comes between the previous line's digest and whatever follows the place in the chain.
pub(super) fn write_place(out: &mut Vec<u8>, prev: &[u8; 32], seq: u64) {
    push_hex(out, prev);
    out.extend_from_slice(b"\",\"seq\":");
    write_number(out, seq);
    out.push(b'}');
}

/// What a statement is about.
pub(super) enum Name<'a> {
    Artifact(&'a str),
    Record(u64),
}

/// The last two members of a statement and its end.
pub(super) fn write_subjects<'a>(
    out: &mut Vec<u8>,
    predicate_type: &str,
    subjects: impl Iterator<Item = (Name<'a>, &'a [u8; 32])>,
) {
    write_member(out, ",\"predicateType\":", predicate_type);
    out.extend_from_slice(b",\"subject\":");
    let mut separator = b'[';
    for (name, sha256) in subjects {
        out.push(separator);
        out.extend_from_slice(b"{\"digest\":{\"sha256\":\"");
        push_hex(out, sha256);
        match name {
            Name::Artifact(name) => write_member(out, "\"},\"name\":", name),
            Name::Record(seq) => {
                out.extend_from_slice(b"\"},\"name\":\"record:");
                write_number(out, seq);
                out.push(b'"');
            }
        }
        out.push(b'}');
        separator = b',';
    }
    out.extend_from_slice(b"]}");
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WireStatement<P> {
    #[serde(rename = "_type")]
    _type: String,
    pub(super) subject: Vec<WireSubject>,
    #[serde(rename = "predicateType")]
    _predicate_type: String,
    pub(super) predicate: P,
}

impl<P: DeserializeOwned> WireStatement<P> {
    /// The types come first: they say what the rest has to look like.
    pub(super) fn parse(payload: &[u8], predicate_type: &str) -> Result<WireStatement<P>, StatementError> {
        let value = parse_canonical(payload).map_err(StatementError::NotCanonical)?;
        if value["_type"] != STATEMENT_TYPE {
            return Err(StatementError::Field("_type"));
        }
        if value["predicateType"] != predicate_type {
            return Err(StatementError::Field("predicateType"));
        }
        serde_json::from_value(value).map_err(StatementError::Shape)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WireSubject {
    pub(super) name: String,
    digest: WireDigest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireDigest {
    sha256: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WirePredicate {
    chain: WireChain,
    event: String,
    id: String,
    run: String,
    time: String,
    durability: String,
    body: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WireChain {
    seq: u64,
    prev: String,
}

impl WireChain {
    pub(super) fn place(&self) -> Result<(u64, [u8; 32]), StatementError> {
        // The last number is left out so that a next one always exists.
        if !(1..u64::MAX).contains(&self.seq) {
            return Err(StatementError::Field("seq"));
        }
        Ok((self.seq, unhex(&self.prev).ok_or(StatementError::Field("prev"))?))
    }
}

impl TryFrom<WireSubject> for Subject {
    type Error = StatementError;

    fn try_from(wire: WireSubject) -> Result<Subject, StatementError> {
        let sha256 = unhex(&wire.digest.sha256).ok_or(StatementError::Field("subject digest"))?;
        Ok(Subject { name: wire.name, sha256 })
    }
}
