//! The seal: one signature over all records since the one before.

use serde::Deserialize;

use super::statement::{Name, WireChain, WireStatement, write_member, write_place, write_subjects};
use super::{
    Envelope, Fault, Head, PREDICATE_TYPE, PublicKey, STATEMENT_TYPE, SecretKey, SignatureError,
    StatementError, Subject, Timestamp, sha256,
};

pub const SEAL_TYPE: &str = "https://casemate.dev/seal/v1";

/// A seal names at most this many records, which keeps it below [`super::MAX_LINE`].
pub const MAX_BATCH: usize = 256;

/// A seal of n records takes at most n times this much, newline included.
pub const SEAL_SHARE: usize = 1024;

/// One line of a chain that is a seal. Whether its signature is good is [`Seal::verify`]'s business.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    pub seq: u64,
    pub prev: [u8; 32],
    pub digest: [u8; 32],
    pub time: Timestamp,
    /// The digests of the records directly before it, oldest first. The last one is `prev`.
    digests: Vec<[u8; 32]>,
    envelope: Envelope,
}

impl Seal {
    /// Signs what is to follow the record `head`, the last of those with these digests: the line, newline included, and the
    /// head after it.
    pub(super) fn sign(
        head: Head,
        digests: &[[u8; 32]],
        time: Timestamp,
        key: &SecretKey,
    ) -> (Vec<u8>, Head) {
        let seq = head.seq + 1;
        let mut line = Envelope::sign(payload(seq, digests, time), key).to_line();
        let head = Head { seq, digest: sha256(&line) };
        line.push(b'\n');
        (line, head)
    }

    /// Takes a line without its newline apart.
    pub(super) fn parse(line: &[u8]) -> Result<Seal, Fault> {
        let envelope = Envelope::parse(line)?;
        let (seq, prev, time, digests) = match statement(envelope.payload()) {
            Err(StatementError::Field("predicateType"))
                if WireStatement::<serde_json::Value>::parse(envelope.payload(), PREDICATE_TYPE).is_ok() =>
            {
                return Err(Fault::OldFormat);
            }
            parsed => parsed?,
        };
        Ok(Seal { seq, prev, digest: sha256(line), time, digests, envelope })
    }

    pub fn verify(&self, key: &PublicKey) -> Result<(), SignatureError> {
        self.envelope.verify(key)
    }

    /// The number of the first record that it names.
    pub fn first(&self) -> u64 {
        self.seq - self.digests.len() as u64
    }

    /// The digests of the records that it names, oldest first.
    pub fn digests(&self) -> &[[u8; 32]] {
        &self.digests
    }

    /// What the line of record `seq` must hash to, if that record is named.
    pub fn names(&self, seq: u64) -> Option<&[u8; 32]> {
        self.digests.get(usize::try_from(seq.checked_sub(self.first())?).ok()?)
    }

    /// The same line once more, without its newline.
    pub fn to_line(&self) -> Vec<u8> {
        self.envelope.to_line()
    }
}

fn payload(seq: u64, digests: &[[u8; 32]], time: Timestamp) -> Vec<u8> {
    let prev = digests.last().expect("a seal names at least one record");
    let mut out = Vec::with_capacity(512 + 128 * digests.len());
    write_member(&mut out, "{\"_type\":", STATEMENT_TYPE);
    out.extend_from_slice(b",\"predicate\":{\"chain\":{\"prev\":\"");
    write_place(&mut out, prev, seq);
    write_member(&mut out, ",\"time\":", &time.to_string());
    out.push(b'}');
    let first = seq - digests.len() as u64;
    write_subjects(&mut out, SEAL_TYPE, (first..).map(Name::Record).zip(digests));
    out
}

type Parts = (u64, [u8; 32], Timestamp, Vec<[u8; 32]>);

/// Accepts what [`payload`] writes, and only that.
fn statement(payload: &[u8]) -> Result<Parts, StatementError> {
    let field = StatementError::Field;
    let WireStatement { subject, predicate, .. } = WireStatement::<WireSeal>::parse(payload, SEAL_TYPE)?;
    let (seq, prev) = predicate.chain.place()?;
    let time = predicate.time.parse().map_err(|()| field("time"))?;
    let count = subject.len();
    if !(1..=MAX_BATCH).contains(&count) || count as u64 >= seq {
        return Err(field("number of subjects"));
    }
    let mut digests = Vec::with_capacity(count);
    for (seq, named) in (seq - count as u64..).zip(subject) {
        let Subject { name, sha256 } = named.try_into()?;
        if name != format!("record:{seq}") {
            return Err(field("subject name"));
        }
        digests.push(sha256);
    }
    if digests.last() == Some(&prev) { Ok((seq, prev, time, digests)) } else { Err(field("prev")) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSeal {
    chain: WireChain,
    time: String,
}
