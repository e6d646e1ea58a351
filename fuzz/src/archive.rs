//! Archives of images, compressed or not.

use std::io::Read;

use casemate_unpack::Limits;
use casemate_unpack::expand::{Compression, expand};
use casemate_unpack::path::MemberPath;
use casemate_unpack::tar::{Archive, Kind, Member};

const LIMITS: Limits = Limits { bytes: 1 << 20, entries: 64 };

/// The first byte says how the rest is to be read, and in pieces of which size.
pub fn archive(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    match first {
        0 => drop(expand(bytes, &mut std::io::sink(), Compression::Gzip)),
        1 => drop(expand(bytes, &mut std::io::sink(), Compression::Zstd)),
        _ => {
            let whole = read(bytes);
            let pieces = read(Pieces { bytes, size: usize::from(first) });
            assert_eq!(whole, pieces, "members depend on how they arrive");
        }
    }
}

/// Each with its content.
type Members = Vec<(Member, Vec<u8>)>;

/// Every member with its content, and whether the archive ended well.
fn read(input: impl Read) -> (Members, Result<(), String>) {
    let mut archive = Archive::new(input, LIMITS);
    let mut members = Vec::new();
    let mut total = 0;
    loop {
        let member = match archive.next_member() {
            Ok(Some(member)) => member,
            Ok(None) => return (members, Ok(())),
            Err(error) => return (members, Err(error.reason())),
        };
        below_the_root(&member.path);
        assert!(member.mode <= 0o777, "a mode with more than permissions");
        let mut content = Vec::new();
        let mut buffer = [0; 1000];
        loop {
            match archive.content(&mut buffer) {
                Ok(0) => break,
                Ok(n) => content.extend(&buffer[..n]),
                Err(error) => return (members, Err(error.reason())),
            }
        }
        total += content.len() as u64;
        match &member.kind {
            Kind::File { size } => assert_eq!(*size, content.len() as u64, "another size than announced"),
            Kind::HardLink { target } => below_the_root(target),
            Kind::Directory | Kind::Symlink { .. } => {}
        }
        if !matches!(member.kind, Kind::File { .. }) {
            assert!(content.is_empty(), "content without a file");
        }
        members.push((member, content));
        assert!(total <= LIMITS.bytes && members.len() as u64 <= LIMITS.entries, "more than was allowed");
    }
}

fn below_the_root(path: &MemberPath) {
    let bytes = path.as_bytes();
    assert!(!bytes.contains(&0));
    let names = bytes.split(|byte| *byte == b'/').filter(|_| !path.is_root());
    for name in names {
        assert!(!matches!(name, b"" | b"." | b".."), "{path:?} is not below the root");
    }
}

struct Pieces<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = buffer.len().min(self.size);
        self.bytes.read(&mut buffer[..n])
    }
}
