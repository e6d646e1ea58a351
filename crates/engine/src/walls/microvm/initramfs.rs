//! The first file system of a machine: an archive that its kernel unpacks into memory.
//!
//! Each member is a header of numbers in hexadecimal, a name and the content, each padded to four bytes (the "newc" form of cpio).

use casemate_wire::machine::places;

/// What a machine boots from, besides its kernel.
pub(super) struct Contents<'a> {
    pub(super) machine: &'a [u8],
    pub(super) launcher: &'a [u8],
    /// Ready to be put into the archive: paths and files.
    pub(super) drivers: &'a [(String, Vec<u8>)],
    /// The only program, if there is no image.
    pub(super) program: Option<&'a [u8]>,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const CONSOLE: u32 = 0o020_600;
/// Of the console.
const CONSOLE_NUMBER: (u32, u32) = (5, 1);

pub(super) fn archive(contents: &Contents<'_>) -> Vec<u8> {
    let mut archive = Archive::default();
    for directory in ["dev", "proc", "sys", "root", places::DRIVERS, places::EXTRA] {
        archive.add(directory, DIRECTORY, (0, 0), &[]);
    }
    // Before there are any others, the kernel wants this one, for the first process.
    archive.add("dev/console", CONSOLE, CONSOLE_NUMBER, &[]);
    archive.add(places::INIT, PROGRAM, (0, 0), contents.machine);
    archive.add(places::LAUNCHER, PROGRAM, (0, 0), contents.launcher);
    for (path, bytes) in contents.drivers {
        archive.add(path, FILE, (0, 0), bytes);
    }
    if let Some(program) = contents.program {
        archive.add(places::PROGRAM, PROGRAM, (0, 0), program);
    }
    archive.add("TRAILER!!!", 0, (0, 0), &[]);
    archive.bytes
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    members: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.members += 1;
        let length = content.len() as u32;
        // Inode, mode, uid, gid, links, time, length, device of the file (2), device that it is (2), length of the name, sum.
        let fields = [self.members, mode, 0, 0, 1, 0, length, 0, 0, major, minor, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, modes and contents, read back.
    fn members(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut found) = (0, Vec::new());
        loop {
            let field = |index: usize| {
                let text = std::str::from_utf8(&archive[at + 6 + 8 * index..][..8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&archive[at..at + 6], b"070701");
            let (mode, length, name) = (field(1), field(6) as usize, field(11) as usize);
            let begin = (at + 110 + name).next_multiple_of(4);
            let name = String::from_utf8(archive[at + 110..][..name - 1].to_vec()).unwrap();
            if name == "TRAILER!!!" {
                return found;
            }
            found.push((name, mode, archive[begin..begin + length].to_vec()));
            at = (begin + length).next_multiple_of(4);
        }
    }

    #[test]
    fn everything_is_in_it_under_its_name() {
        let drivers = [("drivers/00-a.ko".to_owned(), b"driver".to_vec())];
        let contents =
            Contents { machine: b"machine", launcher: b"launch", drivers: &drivers, program: Some(b"p") };
        let found = members(&archive(&contents));
        let get = |wanted: &str| found.iter().find(|(name, ..)| name == wanted).map(|(_, m, c)| (*m, &c[..]));
        assert_eq!(get("init"), Some((PROGRAM, &b"machine"[..])));
        assert_eq!(get("launcher"), Some((PROGRAM, &b"launch"[..])));
        assert_eq!(get("drivers/00-a.ko"), Some((FILE, &b"driver"[..])));
        assert_eq!(get("program"), Some((PROGRAM, &b"p"[..])));
        assert_eq!(get("dev/console"), Some((CONSOLE, &b""[..])));
        let without = archive(&Contents { program: None, ..contents });
        assert!(members(&without).iter().all(|(name, ..)| name != "program"));
    }
}
