//! Evidence: what one record says, how it is signed, and how records form a chain that verifies offline.
//!
//! ```text
//! Entry ──► Statement (in-toto v1, canonical JSON) ──► Envelope (DSSE, ed25519) ──► one line of chain.jsonl
//!            seq, prev = sha256 of the previous line ◄───────────── Head ◄────────────── sha256 of the line
//! ```
//!
//! Every byte of a line is fixed by what it says: the statement and the envelope have exactly one accepted
//! spelling, so no byte can change without the line being rejected. Nothing here reads a file, a clock or a key
//! store; the engine's recorder does.

mod canonical;
mod chain;
mod dsse;
mod fault;
mod key;
mod statement;
mod time;

pub use canonical::{CanonicalError, MAX_DEPTH, parse_canonical, to_canonical};
pub use chain::{
    Head, HeadError, KeyOrigin, LinkError, MAX_LINE, Record, Report, Verdict, Verifier, is_torn, link,
};
pub use dsse::{Envelope, EnvelopeError, LINE_START, PAYLOAD_TYPE, SignatureError, pae};
pub use fault::{ChainError, Fault};
pub use key::{KeyError, PublicKey, SecretKey};
pub use statement::{
    Durability, Entry, EntryError, Event, PREDICATE_TYPE, STATEMENT_TYPE, Statement, StatementError, Subject,
};
pub use time::Timestamp;

/// Lowercase hexadecimal, the only spelling of a digest in a record.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)] as char, DIGITS[usize::from(b & 15)] as char])
        .collect()
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
