//! The end of the chain's file, read backwards as far as the last seal.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use casemate_core::evidence::{MAX_BATCH, MAX_LINE, SEAL_START};

/// What stands between a place where a line begins and the end of the file.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    /// Where the last seal begins; if there is none, where the first line does.
    begin: usize,
    /// Behind the last newline.
    end: usize,
}

/// No more than this lies behind the last seal, but for damage.
const FURTHEST: u64 = (MAX_BATCH as u64 + 2) * MAX_LINE as u64;

impl Tail {
    /// Reads backwards from `to`, as far as needed and never past `from`, where a line begins. `None` if there is no seal
    /// where one has to be.
    pub(super) fn read(file: &File, from: u64, to: u64) -> io::Result<Option<Tail>> {
        let mut size = 16 * 1024;
        loop {
            let start = to.saturating_sub(size).max(from);
            let mut bytes = vec![0; (to - start) as usize];
            file.read_exact_at(&mut bytes, start)?;
            let tail = Tail::within(bytes, start == from);
            if tail.is_some() || start == from || size > FURTHEST {
                return Ok(tail);
            }
            size *= 8;
        }
    }

    /// Complete lines, newlines included: the last seal, if there is one, and what follows it.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes[self.begin..self.end].split_inclusive(|byte| *byte == b'\n')
    }

    /// What follows the last newline.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.end..]
    }

    /// `None` if the bytes do not reach back to a seal.
    fn within(bytes: Vec<u8>, begins_with_a_line: bool) -> Option<Tail> {
        let end = newline(&bytes).map_or(0, |at| at + 1);
        let mut line = end;
        while line > 0 {
            let begin = newline(&bytes[..line - 1]).map_or(0, |at| at + 1);
            if bytes[begin..line].starts_with(SEAL_START) && (begin > 0 || begins_with_a_line) {
                return Some(Tail { bytes, begin, end });
            }
            line = begin;
        }
        begins_with_a_line.then_some(Tail { bytes, begin: 0, end })
    }
}

fn newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().rposition(|byte| *byte == b'\n')
}
