//! What travels between the engine and a virtual machine as a whole: messages on its control port, as frames of stream 0. What a cell in
//! the machine says travels on a port of its own, in the frames that every cell has.
//!
//! The machine is behind a wall like everything else: what it says is hostile input. What the engine says is believed in there.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::Malformed;
use crate::launch::Hello;

/// The names of a machine's ports: its own, the one to the guest in its cell, and what that cell's first program may have for its
/// standard input.
pub const CONTROL_PORT: &str = "casemate.control";
pub const CELL_PORT: &str = "casemate.cell";
pub const LINE_PORT: &str = "casemate.line";

/// Words on the kernel's command line: a disk has the image, or there is a program and no image at all.
pub const WITH_IMAGE: &str = "casemate.image=disk";
pub const WITHOUT_IMAGE: &str = "casemate.image=none";

/// Where things are in the first file system of a machine.
pub mod places {
    /// The machine's first process, which is this crate's other side.
    pub const INIT: &str = "init";
    pub const LAUNCHER: &str = "launcher";
    /// The only program that is to run, if there is no image.
    pub const PROGRAM: &str = "program";
    /// What the kernel has to load before anything else works, in the order of the names.
    pub const DRIVERS: &str = "drivers";
    /// What it may want later, for workloads that have a whole system to themselves.
    pub const EXTRA: &str = "extra";
}

/// Bytes of entropy that a machine is given.
pub const ENTROPY: usize = 64;

/// Engine → machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMachine {
    /// First message, exactly once: what makes this machine another one than all that were cloned from the same template.
    Wake(Seed),
    /// A request for the launcher in the machine. The descriptors that belong to it are the machine's own.
    Launcher(Vec<u8>),
}

/// What every machine has of its own.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// 64 bytes: serde has no arrays of that length.
    pub entropy: [[u8; 32]; 2],
    /// Since 1970.
    pub nanoseconds: u64,
    pub id: [u8; 16],
}

impl core::fmt::Debug for Seed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Seed").field("nanoseconds", &self.nanoseconds).finish_non_exhaustive()
    }
}

/// Machine → engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromMachine {
    /// It has booted, and waits for [`ToMachine::Wake`].
    Ready { version: u16, hello: Hello },
    /// Everything in the seed is in force. The sample was drawn from the kernel's generator afterwards.
    Awake { id: [u8; 16], sample: [u8; 32] },
    /// What the launcher in the machine answered.
    Launcher(Vec<u8>),
    /// Nothing more will come of this machine.
    Failed { step: String, message: String },
}

impl ToMachine {
    pub fn encode(&self) -> Vec<u8> {
        crate::encode(self)
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        crate::decode("engine", bytes)
    }
}

impl FromMachine {
    pub fn encode(&self) -> Vec<u8> {
        crate::encode(self)
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        crate::decode("machine", bytes)
    }
}

/// What goes to a program on the line port of its machine. A socket would carry descriptors, too; here the content of one goes first, and
/// becomes a descriptor again in the machine. The other way there are only bytes.
///
/// ```text
///   0      1        5
///   +------+--------+----------------+
///   | kind | length | bytes (length) |
///   +------+--------+----------------+
/// ```
pub mod line {
    pub const HEADER: usize = 5;
    /// The longest record. There may be any number of them.
    pub const MAX_RECORD: usize = 256 * 1024;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Kind {
        /// As the program reads them.
        Bytes,
        /// More of the content of a descriptor.
        Content,
        /// That was all of it: the descriptor goes with the bytes that follow.
        Descriptor,
    }

    pub fn header(kind: Kind, length: usize) -> [u8; HEADER] {
        let [a, b, c, d] = (length as u32).to_le_bytes();
        [kind as u8, a, b, c, d]
    }

    /// The kind and the length of a record; `None` if there is no such record.
    pub fn parse(header: [u8; HEADER]) -> Option<(Kind, usize)> {
        let [kind, a, b, c, d] = header;
        let kind = match kind {
            0 => Kind::Bytes,
            1 => Kind::Content,
            2 => Kind::Descriptor,
            _ => return None,
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        (length <= MAX_RECORD).then_some((kind, length))
    }
}

#[cfg(test)]
mod tests {
    use super::line::{self, Kind, MAX_RECORD};

    #[test]
    fn records_are_what_they_say_and_bounded() {
        for kind in [Kind::Bytes, Kind::Content, Kind::Descriptor] {
            for length in [0, 1, 255, 256, MAX_RECORD] {
                assert_eq!(line::parse(line::header(kind, length)), Some((kind, length)));
            }
            assert_eq!(line::parse(line::header(kind, MAX_RECORD + 1)), None);
        }
        assert_eq!(line::parse([3, 0, 0, 0, 0]), None);
    }
}
