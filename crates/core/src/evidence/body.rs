//! What a record says beyond the members that all records have, written in canonical form from the start.

use serde::Serialize;
use serde_json::Value;

use super::canonical::{write_string, write_value};
use super::{EntryError, parse_canonical};

/// A JSON object in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body(Vec<u8>);

/// A JSON value in canonical form, to become a member of bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment(Vec<u8>);

/// A body that is being written, member by member, in the order of their keys.
///
/// Nothing is sorted here, nor in the types that are handed in: they declare their members in the order of their keys, and
/// hold no fractions. Debug builds insist on that. A body that gets past them makes a record that nobody accepts.
#[derive(Debug)]
pub struct Members(Vec<u8>);

impl Body {
    /// The canonical form of any object, sorted as needed.
    pub fn new(value: &Value) -> Result<Body, EntryError> {
        if !value.is_object() {
            return Err(EntryError::BodyNotAnObject);
        }
        let mut bytes = Vec::with_capacity(1024);
        // The body sits inside the statement and the predicate, hence two levels down.
        write_value(&mut bytes, value, 2).map_err(EntryError::Body)?;
        Ok(Body(bytes))
    }

    pub fn members() -> Members {
        let mut bytes = Vec::with_capacity(4096);
        bytes.push(b'{');
        Members(bytes)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Fragment {
    pub fn new(value: &impl Serialize) -> Fragment {
        let mut bytes = Vec::with_capacity(1024);
        write(&mut bytes, value);
        debug_assert!(parse_canonical(&bytes).is_ok(), "not in order: {}", String::from_utf8_lossy(&bytes));
        Fragment(bytes)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// `null`.
impl Default for Fragment {
    fn default() -> Fragment {
        Fragment(b"null".to_vec())
    }
}

impl Members {
    pub fn with(mut self, key: &str, value: &impl Serialize) -> Members {
        self.key(key);
        write(&mut self.0, value);
        self
    }

    pub fn with_fragment(mut self, key: &str, Fragment(value): &Fragment) -> Members {
        self.key(key);
        self.0.extend_from_slice(value);
        self
    }

    pub fn end(self) -> Body {
        let Members(mut bytes) = self;
        bytes.push(b'}');
        debug_assert!(parse_canonical(&bytes).is_ok(), "not in order: {}", String::from_utf8_lossy(&bytes));
        Body(bytes)
    }

    fn key(&mut self, key: &str) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        write_string(&mut self.0, key);
        self.0.push(b':');
    }
}

/// `serde_json` writes strings and integers as canonical JSON wants them.
fn write(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value)
        .expect("a type of ours has only strings for keys, and a vector takes every byte");
}
