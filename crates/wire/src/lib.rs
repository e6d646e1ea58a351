//! What travels between the engine, the launcher and the guest.
//!
//! Two channels, two rules of trust:
//! - [`frame`] and [`guest`]: engine ↔ guest. The guest sits next to hostile code, so whatever it sends is hostile
//!   input: every frame is bounded, parsed strictly, and more data than was credited is an error.
//! - [`launch`]: engine ↔ launcher. The launcher is privileged, so whatever the *engine* sends is hostile input
//!   there: a closed set of requests made of enums, numbers and file descriptors, without paths or operations.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod frame;
pub mod guest;
pub mod gvisor;
pub mod image;
pub mod launch;
pub mod machine;
pub mod worker;

use alloc::vec::Vec;

/// Version of both protocols. Engine, launcher and guest are built and shipped as one binary, so there is exactly
/// one; a guest from another build (an old image in a VM) is refused at its hello.
pub const PROTOCOL_VERSION: u16 = 1;

/// A message could not be read.
#[derive(Debug, thiserror::Error)]
#[error("malformed {what} message")]
pub struct Malformed {
    what: &'static str,
    #[source]
    source: postcard::Error,
}

/// Decodes one message and rejects trailing bytes: two readings of the same bytes must not exist.
pub(crate) fn decode<'a, T: serde::Deserialize<'a>>(
    what: &'static str,
    bytes: &'a [u8],
) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(Malformed { what, source: postcard::Error::SerdeDeCustom }),
        Err(source) => Err(Malformed { what, source }),
    }
}

/// Encoding into memory fails only for types that postcard cannot represent; none of ours is such a type.
pub(crate) fn encode<T: serde::Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).unwrap_or_default()
}
