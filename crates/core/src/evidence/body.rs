//! What a record says beyond the members that all records have, written in canonical form from the start.

use serde::Serialize;
use serde_json::Value;

use super::canonical::{write_string, write_value};
use super::{CanonicalError, EntryError, parse_canonical};

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
pub struct Members {
    bytes: Vec<u8>,
    failed: Option<CanonicalError>,
}

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
        Members { bytes, failed: None }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Fragment {
    pub fn new(value: &impl Serialize) -> Result<Fragment, EntryError> {
        let mut bytes = Vec::with_capacity(1024);
        write(&mut bytes, value).map_err(EntryError::Body)?;
        debug_assert!(in_order(&bytes), "not in order: {}", String::from_utf8_lossy(&bytes));
        Ok(Fragment(bytes))
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
    pub fn with(self, key: &str, value: &impl Serialize) -> Members {
        self.member(key, |bytes| write(bytes, value))
    }

    /// Any value, sorted as needed.
    pub fn with_value(self, key: &str, value: &Value) -> Members {
        self.member(key, |bytes| write_value(bytes, value, 3))
    }

    pub fn with_fragment(self, key: &str, Fragment(value): &Fragment) -> Members {
        self.member(key, |bytes| {
            bytes.extend_from_slice(value);
            Ok(())
        })
    }

    pub fn end(self) -> Result<Body, EntryError> {
        let Members { mut bytes, failed } = self;
        if let Some(error) = failed {
            return Err(EntryError::Body(error));
        }
        bytes.push(b'}');
        debug_assert!(in_order(&bytes), "not in order: {}", String::from_utf8_lossy(&bytes));
        Ok(Body(bytes))
    }

    fn member(
        mut self,
        key: &str,
        value: impl FnOnce(&mut Vec<u8>) -> Result<(), CanonicalError>,
    ) -> Members {
        if self.bytes.len() > 1 {
            self.bytes.push(b',');
        }
        write_string(&mut self.bytes, key);
        self.bytes.push(b':');
        if let Err(error) = value(&mut self.bytes) {
            self.failed.get_or_insert(error);
        }
        self
    }
}

/// `serde_json` writes strings and integers as canonical JSON wants them.
fn write(out: &mut Vec<u8>, value: &impl Serialize) -> Result<(), CanonicalError> {
    serde_json::to_writer(out, value).map_err(CanonicalError::NotJson)
}

fn in_order(bytes: &[u8]) -> bool {
    parse_canonical(bytes).is_ok()
}
