//! A record on its way into the chain. Everything that does not depend on its place is written and hashed beforehand, by
//! whoever wants to append it; what is left to do while the chain is locked takes about a microsecond.

use sha2::{Digest, Sha256};

use super::statement::{Name, check_entry, write_member, write_place, write_subjects};
use super::{
    Body, Durability, Entry, EntryError, Event, Head, LinkError, MAX_LINE, MacKey, PREDICATE_TYPE,
    RECORD_START, STATEMENT_TYPE, Subject, Timestamp, push_hex,
};

/// A record that lacks its number, the digest of the line before it and its time.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Up to where the digest of the previous line belongs.
    line: Vec<u8>,
    /// Over `line`.
    hash: Sha256,
    /// What follows the place in the chain.
    rest: Vec<u8>,
    /// Where in `rest` the time belongs, which is as long as this placeholder.
    time_at: usize,
}

const TIME: &str = "0000-00-00T00:00:00.000000Z";

/// Between the statement and its MAC, and after it.
pub(super) const MAC_START: &[u8] = b",\"mac\":\"";
pub(super) const MAC_END: &[u8] = b"\"}";

impl Draft {
    pub fn new(
        event: Event,
        id: &str,
        run: &str,
        durability: Durability,
        subjects: &[Subject],
        body: &Body,
    ) -> Result<Draft, EntryError> {
        check_entry(id, run, subjects.len())?;
        let mut rest = Vec::with_capacity(512 + 160 * subjects.len());
        write_member(&mut rest, ",\"durability\":", durability.name());
        write_member(&mut rest, ",\"event\":", event.name());
        write_member(&mut rest, ",\"id\":", id);
        write_member(&mut rest, ",\"run\":", run);
        write_member(&mut rest, ",\"time\":", TIME);
        let time_at = rest.len() - TIME.len() - 1;
        rest.push(b'}');
        let named = subjects.iter().map(|subject| (Name::Artifact(&subject.name), &subject.sha256));
        write_subjects(&mut rest, PREDICATE_TYPE, named);

        let mut line = Vec::with_capacity(body.as_bytes().len() + rest.len() + 384);
        line.extend_from_slice(RECORD_START);
        write_member(&mut line, "{\"_type\":", STATEMENT_TYPE);
        line.extend_from_slice(b",\"predicate\":{\"body\":");
        line.extend_from_slice(body.as_bytes());
        line.extend_from_slice(b",\"chain\":{\"prev\":\"");
        Ok(Draft { hash: Sha256::new_with_prefix(&line), line, rest, time_at })
    }

    /// Appends the record to a chain that ends with `head`: its line, newline included, and the head after it.
    pub fn link(self, head: Head, time: Timestamp, key: &MacKey) -> Result<(Vec<u8>, Head), LinkError> {
        let (mut line, mut hash) = self.place(head.seq + 1, &head.digest, time);
        let mac = key.mac(&hash.clone().finalize().into());
        let covered = line.len();
        write_mac(&mut line, &mac);
        hash.update(&line[covered..]);
        line.push(b'\n');
        if line.len() > MAX_LINE {
            return Err(LinkError::TooLong { bytes: line.len() });
        }
        Ok((line, Head { seq: head.seq + 1, digest: hash.finalize().into() }))
    }

    /// The line up to its MAC, and the hash of that: the MAC and the line's digest both continue it.
    pub(super) fn place(self, seq: u64, prev: &[u8; 32], time: Timestamp) -> (Vec<u8>, Sha256) {
        let Draft { mut line, mut hash, mut rest, time_at } = self;
        rest[time_at..time_at + TIME.len()].copy_from_slice(&time.spelled());
        let hashed = line.len();
        write_place(&mut line, prev, seq);
        line.extend_from_slice(&rest);
        hash.update(&line[hashed..]);
        (line, hash)
    }
}

/// For an entry that was read.
impl TryFrom<&Entry> for Draft {
    type Error = EntryError;

    fn try_from(entry: &Entry) -> Result<Draft, EntryError> {
        let Entry { event, id, run, durability, subjects, body, .. } = entry;
        Draft::new(*event, id, run, *durability, subjects, &Body::new(body)?)
    }
}

pub(super) fn write_mac(line: &mut Vec<u8>, mac: &[u8; 32]) {
    line.extend_from_slice(MAC_START);
    push_hex(line, mac);
    line.extend_from_slice(MAC_END);
}
