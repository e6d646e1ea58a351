//! Canonical JSON: one spelling per value, so that a digest or a signature over it is unambiguous.
//!
//! RFC 8785 (keys sorted by UTF-16 code units, no whitespace, shortest escapes) without its floating point
//! numbers: a record holds integers only. Unlike RFC 8785, integers keep all their 64 bits.

use std::cmp::Ordering;
use std::io::Write;

use serde_json::Value;
use thiserror::Error;

/// Arrays and objects may be nested this deep; the value itself counts as the first level.
pub const MAX_DEPTH: usize = 64;

#[derive(Debug, Error)]
pub enum CanonicalError {
    #[error("not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("the number {0} is not a 64-bit integer")]
    NotAnInteger(serde_json::Number),
    #[error("nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("JSON, but not in canonical form")]
    NotCanonical,
}

/// The canonical bytes of a value.
pub fn to_canonical(value: &Value) -> Result<Vec<u8>, CanonicalError> {
    let mut out = Vec::with_capacity(256);
    write_value(&mut out, value, 0)?;
    Ok(out)
}

/// Accepts canonical bytes and nothing else. Repeated keys, whitespace, other escapes, other number spellings and
/// another key order all differ from what [`to_canonical`] writes for the same value, and are rejected by that.
pub fn parse_canonical(bytes: &[u8]) -> Result<Value, CanonicalError> {
    let value = serde_json::from_slice(bytes).map_err(CanonicalError::NotJson)?;
    if to_canonical(&value)? == bytes { Ok(value) } else { Err(CanonicalError::NotCanonical) }
}

/// Appends a value that sits below `depth` enclosing arrays and objects.
pub(super) fn write_value(out: &mut Vec<u8>, value: &Value, depth: usize) -> Result<(), CanonicalError> {
    if depth >= MAX_DEPTH && (value.is_array() || value.is_object()) {
        return Err(CanonicalError::TooDeep);
    }
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => write_number(out, n),
            (None, Some(n)) => write_number(out, n),
            (None, None) => return Err(CanonicalError::NotAnInteger(n.clone())),
        },
        Value::String(s) => write_string(out, s),
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_value(out, item, depth + 1)?;
            }
            out.push(b']');
        }
        Value::Object(members) => {
            // The map's own order depends on a serde_json feature that any crate in the build may turn on.
            if members.keys().is_sorted_by(|a, b| compare_keys(a, b).is_lt()) {
                write_members(out, members.iter(), depth)?;
            } else {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by(|(a, _), (b, _)| compare_keys(a, b));
                write_members(out, members.into_iter(), depth)?;
            }
        }
    }
    Ok(())
}

pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    // Most text needs no escapes at all and is copied in one piece.
    while let Some(at) = rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            other => out.extend_from_slice(format!("\\u{other:04x}").as_bytes()),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

pub(super) fn write_number(out: &mut Vec<u8>, number: impl std::fmt::Display) {
    write!(out, "{number}").expect("a vector takes every byte");
}

fn write_members<'a>(
    out: &mut Vec<u8>,
    members: impl Iterator<Item = (&'a String, &'a Value)>,
    depth: usize,
) -> Result<(), CanonicalError> {
    out.push(b'{');
    for (i, (key, member)) in members.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_string(out, key);
        out.push(b':');
        write_value(out, member, depth + 1)?;
    }
    out.push(b'}');
    Ok(())
}

/// Order of UTF-16 code units. It differs from the order of bytes only outside ASCII.
fn compare_keys(a: &str, b: &str) -> Ordering {
    if a.is_ascii() && b.is_ascii() { a.cmp(b) } else { a.encode_utf16().cmp(b.encode_utf16()) }
}
