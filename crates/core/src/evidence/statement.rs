//! What one record says: an in-toto v1 statement with the predicate of Casemate's evidence.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::canonical::{write_string, write_value};
use super::{CanonicalError, Timestamp, hex, parse_canonical, unhex};

pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
pub const PREDICATE_TYPE: &str = "https://casemate.dev/evidence/v1";

/// Longest execution or run id.
const MAX_ID: usize = 128;

/// The moments of an execution that leave a record.
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
}

/// When records reach the disk. Each record says under which promise it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Before the process exits.
    OnExit,
    /// Within milliseconds, many records at a time.
    Batch,
    /// Before the append returns.
    Each,
}

/// An artifact that a record is about. The digest is SHA-256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub name: String,
    pub sha256: [u8; 32],
}

/// What the writer of a record decides; its place in the chain is added by [`super::link`].
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

/// An entry and its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub seq: u64,
    /// Digest of the previous line; zeros before the first record.
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
    #[error("the payload is not an in-toto statement with Casemate's predicate")]
    Shape(#[source] serde_json::Error),
    #[error("the statement's {0} is not valid")]
    Field(&'static str),
    #[error("the statement is not valid")]
    Entry(#[source] EntryError),
}

impl Statement {
    /// The canonical bytes. Keys are written in their sorted order by hand, which spares the hot path a copy of
    /// the body; the tests hold the result against [`parse_canonical`].
    pub fn to_payload(&self) -> Result<Vec<u8>, EntryError> {
        let entry = &self.entry;
        entry.check()?;
        let mut out = Vec::with_capacity(2048);
        member(&mut out, "{\"_type\":", STATEMENT_TYPE);
        out.extend_from_slice(b",\"predicate\":{\"body\":");
        // The body sits inside the statement and the predicate, hence two levels down.
        write_value(&mut out, &entry.body, 2).map_err(EntryError::Body)?;
        member(&mut out, ",\"chain\":{\"prev\":", &hex(&self.prev));
        out.extend_from_slice(format!(",\"seq\":{}}}", self.seq).as_bytes());
        member(&mut out, ",\"durability\":", entry.durability.name());
        member(&mut out, ",\"event\":", entry.event.name());
        member(&mut out, ",\"id\":", &entry.id);
        member(&mut out, ",\"run\":", &entry.run);
        member(&mut out, ",\"time\":", &entry.time.to_string());
        member(&mut out, "},\"predicateType\":", PREDICATE_TYPE);
        out.extend_from_slice(b",\"subject\":");
        let mut separator = "[";
        for subject in &entry.subjects {
            out.extend_from_slice(separator.as_bytes());
            member(&mut out, "{\"digest\":{\"sha256\":", &hex(&subject.sha256));
            member(&mut out, "},\"name\":", &subject.name);
            out.push(b'}');
            separator = ",";
        }
        out.extend_from_slice(b"]}");
        Ok(out)
    }

    /// Accepts what [`Statement::to_payload`] writes, and only that.
    pub fn parse(payload: &[u8]) -> Result<Statement, StatementError> {
        let value = parse_canonical(payload).map_err(StatementError::NotCanonical)?;
        let wire: WireStatement = serde_json::from_value(value).map_err(StatementError::Shape)?;
        let field = StatementError::Field;
        if wire.statement_type != STATEMENT_TYPE {
            return Err(field("_type"));
        }
        if wire.predicate_type != PREDICATE_TYPE {
            return Err(field("predicateType"));
        }
        // The last number is left out so that a next one always exists.
        if !(1..u64::MAX).contains(&wire.predicate.chain.seq) {
            return Err(field("seq"));
        }
        let WirePredicate { chain, event, id, run, time, durability, body } = wire.predicate;
        let entry = Entry {
            event: Event::from_name(&event).ok_or(field("event"))?,
            id,
            run,
            time: time.parse().map_err(|()| field("time"))?,
            durability: Durability::from_name(&durability).ok_or(field("durability"))?,
            subjects: wire.subject.into_iter().map(Subject::try_from).collect::<Result<_, _>>()?,
            body,
        };
        entry.check().map_err(StatementError::Entry)?;
        Ok(Statement { seq: chain.seq, prev: unhex(&chain.prev).ok_or(field("prev"))?, entry })
    }
}

impl Entry {
    fn check(&self) -> Result<(), EntryError> {
        for (what, value) in [("execution id", &self.id), ("run id", &self.run)] {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
            if value.is_empty() || value.len() > MAX_ID || !value.bytes().all(allowed) {
                return Err(EntryError::Id { what, value: value.clone() });
            }
        }
        if self.subjects.is_empty() {
            return Err(EntryError::NoSubject);
        }
        if self.body.is_object() { Ok(()) } else { Err(EntryError::BodyNotAnObject) }
    }
}

impl Event {
    const ALL: [Event; 4] = [Event::Opened, Event::Closed, Event::Refused, Event::Interrupted];

    pub fn name(self) -> &'static str {
        match self {
            Event::Opened => "opened",
            Event::Closed => "closed",
            Event::Refused => "refused",
            Event::Interrupted => "interrupted",
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

fn member(out: &mut Vec<u8>, key: &str, text: &str) {
    out.extend_from_slice(key.as_bytes());
    write_string(out, text);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireStatement {
    #[serde(rename = "_type")]
    statement_type: String,
    subject: Vec<WireSubject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: WirePredicate,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSubject {
    name: String,
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
struct WireChain {
    seq: u64,
    prev: String,
}

impl TryFrom<WireSubject> for Subject {
    type Error = StatementError;

    fn try_from(wire: WireSubject) -> Result<Subject, StatementError> {
        let sha256 = unhex(&wire.digest.sha256).ok_or(StatementError::Field("subject digest"))?;
        Ok(Subject { name: wire.name, sha256 })
    }
}
