//! Evidence: what one record says, how records form a chain, and how a seal proves many of them at once, offline.
//!
//! ```text
//! Entry ──► Statement (in-toto v1, canonical JSON) + MAC ──► a record, one line of chain.jsonl ──┐ sha256 of the line
//!            seq, prev = sha256 of the line before ◄──────────────── Head ◄───────────────────────┤
//! up to 256 of them ──► Statement that names them ──► Envelope (DSSE, ed25519) ──► a seal, one line ┘
//! ```
//!
//! Every byte of a line is fixed by what it says: statements, records and envelopes have exactly one accepted spelling,
//! so no byte can change without the line being rejected. Nothing here reads a file, a clock or a key store; the engine's
//! recorder does.

mod body;
mod canonical;
mod chain;
mod draft;
mod dsse;
mod fault;
mod key;
mod line;
mod seal;
mod statement;
mod time;
mod verify;

pub use body::{Body, Fragment, Members};
pub use canonical::{CanonicalError, MAX_DEPTH, parse_canonical, to_canonical};
pub use chain::{End, Head, HeadError, LinkError};
pub use draft::Draft;
pub use dsse::{ENVELOPE_START, Envelope, EnvelopeError, PAYLOAD_TYPE, SignatureError, pae};
pub use fault::{ChainError, Fault, What};
pub use key::{KeyError, MacKey, PublicKey, SecretKey};
pub use line::{Line, MAX_LINE, RECORD_START, Record, SEAL_START, is_torn};
pub use seal::{MAX_BATCH, SEAL_SHARE, SEAL_TYPE, Seal};
pub use statement::{
    Durability, Entry, EntryError, Event, PREDICATE_TYPE, STATEMENT_TYPE, Statement, StatementError, Subject,
};
pub use time::Timestamp;
pub use verify::{KeyOrigin, Report, Verdict, Verifier};

/// Lowercase hexadecimal, the only spelling of a digest in a record.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = Vec::with_capacity(2 * bytes.len());
    push_hex(&mut digits, bytes);
    String::from_utf8(digits).expect("digits are ASCII")
}

fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    for (pair, byte) in out[start..].chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// The 32 bytes spelled by 64 lowercase hexadecimal digits, or nothing.
pub fn unhex(text: &str) -> Option<[u8; 32]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests;
