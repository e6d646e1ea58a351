//! The recorder: the store that keeps the evidence chain, and the only holder of the signing key.
//!
//! ```text
//! <home>/evidence/chain.jsonl   one signed record per line, append only
//! <home>/evidence/lock          flock: exclusive to append, shared for the instant a reader takes the length
//! <home>/keys/evidence.key      PKCS#8 PEM (or 32 raw bytes), mode 0600
//! <home>/keys/evidence.pub      PEM
//! ```
//!
//! Many processes and threads append to one store. Whoever holds the exclusive lock first brings its idea of the
//! end up to date, then writes one whole line or nothing. A writer killed halfway leaves the beginning of a line;
//! the next writer removes it. Everything else that does not end in a newline is tampering, and is left untouched.
//!
//! Invariants: a record is never rewritten; a store that could not sync accepts no more records; nothing is
//! repaired that a kill cannot have caused. The store does not look for an execution id that was used before in
//! the whole chain: ids are random, and `verify` would notice.

mod chain_file;
mod error;
mod key_file;
mod lock;
mod read;
mod store;
mod sync;

use std::path::{Path, PathBuf};

pub use casemate_core::evidence::{
    Durability, Event, Head, KeyOrigin, PublicKey, Record, Report, Subject, Verdict,
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
    lock: PathBuf,
    keys: PathBuf,
    key: PathBuf,
    public: PathBuf,
}

impl Paths {
    fn new(home: &Path) -> Paths {
        let (evidence, keys) = (home.join("evidence"), home.join("keys"));
        Paths {
            chain: evidence.join("chain.jsonl"),
            lock: evidence.join("lock"),
            key: keys.join("evidence.key"),
            public: keys.join("evidence.pub"),
            evidence,
            keys,
        }
    }
}

#[cfg(test)]
mod tests;
