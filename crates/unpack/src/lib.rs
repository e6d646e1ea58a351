//! From the bytes of an archive to a tree of files, for bytes that nobody trusts.
//!
//! - [`expand`]: gzip and Zstandard to plain bytes.
//! - [`tar`]: plain bytes to members, one at a time. It does no I/O but reading, so that it can be fuzzed.
//! - [`tree`]: members to files beneath one directory, layer upon layer.
//! - [`confine`]: what the program `casemate-unpack` puts itself under before it reads anything.
//!
//! What may be in an image is decided here and nowhere else: directories, files, symbolic links, and hard links to what is there
//! already. Everything else ends the unpacking with the member's name.

pub mod confine;
pub mod expand;
pub mod fault;
pub mod path;
pub mod tar;
pub mod tree;

#[cfg(test)]
#[path = "../../testkit/src/tar.rs"]
#[allow(unreachable_pub, reason = "the suites have this file as a module of a library")]
mod write;

/// What one archive may come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In files.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}
