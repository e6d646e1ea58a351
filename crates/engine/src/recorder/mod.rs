//! The recorder: the store that keeps the evidence chain, and the only holder of the signing key.
//!
//! ```text
//! <home>/evidence/chain.jsonl   records and seals, one per line, append only; flock: exclusive to append, shared for the
//!                               instant a reader takes the length
//! <home>/keys/evidence.key      PKCS#8 PEM (or 32 raw bytes), mode 0600
//! <home>/keys/evidence.pub      PEM
//! ```
//!
//! Many processes and threads append to one store. Whoever holds the exclusive lock first brings its idea of the
//! end up to date, then writes whole lines or nothing. A writer killed halfway leaves the beginning of a line;
//! the next writer removes it. Everything else that does not end in a newline is tampering, and is left untouched.
//!
//! A record is appended at once, with a MAC; a seal, which is where the signature is, follows for all records that have
//! none yet: in the same write (`each`), within 10 ms or 256 records (`batch`), or before the process exits (`on-exit`).
//! Whoever seals, seals the records of all writers, after checking the MACs of those that it did not write itself. So what a
//! killed writer left is sealed by the next one.
//!
//! Invariants: a line is never rewritten; nothing is sealed that the key's holder did not write; a store that could not sync
//! accepts no more records; nothing is repaired that a kill cannot have caused. The store does not look for an execution
//! id that was used before in the whole chain: ids are random, and `verify` would notice.

mod chain_file;
mod error;
mod key_file;
mod lock;
mod read;
mod store;
mod sync;
mod tail;
mod writer;

use std::path::{Path, PathBuf};

pub use casemate_core::evidence::{
    Body, Durability, Event, Head, KeyOrigin, PublicKey, Record, Report, Subject, Verdict,
};
pub use error::StoreError;
pub use read::{OpenRecord, Reader, Records};
pub use store::Store;

/// Where a record went: its number and the digest of its line.
pub type Receipt = Head;

#[derive(Debug, Clone)]
struct Paths {
    evidence: PathBuf,
    chain: PathBuf,
    keys: PathBuf,
    key: PathBuf,
    public: PathBuf,
}

impl Paths {
    fn new(home: &Path) -> Paths {
        let (evidence, keys) = (home.join("evidence"), home.join("keys"));
        Paths {
            chain: evidence.join("chain.jsonl"),
            key: keys.join("evidence.key"),
            public: keys.join("evidence.pub"),
            evidence,
            keys,
        }
    }
}

#[cfg(test)]
mod tests;
