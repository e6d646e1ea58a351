use super::*;
use crate::write::{Header, Tar};

const LIMITS: Limits = Limits { bytes: 1 << 20, entries: 1000 };

/// Every member with its content, or why there is none.
fn read(bytes: &[u8]) -> Result<Vec<(Member, Vec<u8>)>, String> {
    let mut archive = Archive::new(bytes, LIMITS);
    let mut members = Vec::new();
    loop {
        let told = |error: Error| error.reason();
        let Some(member) = archive.next_member().map_err(told)? else { return Ok(members) };
        let mut content = Vec::new();
        let mut buffer = [0; 100];
        loop {
            match archive.content(&mut buffer).map_err(told)? {
                0 => break,
                n => content.extend(&buffer[..n]),
            }
        }
        members.push((member, content));
    }
}

#[track_caller]
fn refused(bytes: &[u8], words: &str) {
    let reason = read(bytes).expect_err("it was read");
    assert!(reason.contains(words), "{reason}");
}

fn path(path: &str) -> MemberPath {
    MemberPath::new(path.as_bytes()).unwrap()
}

#[test]
fn members_come_with_what_the_store_keeps() {
    let tar = Tar::new()
        .directory("./")
        .directory("./bin/")
        .file_with_mode("bin/tool", [b'x'; 700], 0o4755)
        .symlink("sbin", "/bin")
        .hard_link("bin/same", "./bin/tool")
        .file("empty", "");
    let members = read(&tar.end()).unwrap();
    let shown: Vec<_> = members.iter().map(|(m, _)| (m.path.clone(), m.kind.clone())).collect();
    assert_eq!(
        shown,
        [
            (path(""), Kind::Directory),
            (path("bin"), Kind::Directory),
            (path("bin/tool"), Kind::File { size: 700 }),
            (path("sbin"), Kind::Symlink { target: b"/bin".to_vec() }),
            (path("bin/same"), Kind::HardLink { target: path("bin/tool") }),
            (path("empty"), Kind::File { size: 0 }),
        ]
    );
    assert_eq!((members[2].0.mode, members[2].0.mtime), (0o755, 1_600_000_000));
    assert_eq!(members[2].1, [b'x'; 700]);
}

#[test]
fn long_names_come_from_extended_headers() {
    let long = "d/".repeat(100) + "name";
    for tar in [
        Tar::new().pax(&[("path", &long), ("mtime", "7.25")]).file("short", "x"),
        Tar::new().gnu_long(b'L', &long).file("short", "x"),
    ] {
        let members = read(&tar.end()).unwrap();
        assert_eq!(members[0].0.path, path(&long));
    }
    let tar = Tar::new().gnu_long(b'K', &long).symlink("a", "b").pax(&[("linkpath", "c")]).symlink("d", "e");
    let members = read(&tar.end()).unwrap();
    assert_eq!(members[0].0.kind, Kind::Symlink { target: long.into_bytes() });
    assert_eq!(members[1].0.kind, Kind::Symlink { target: b"c".to_vec() });
    let tar = Tar::new().pax(&[("size", "3")]).member(&Header::new("f", b'0'), b"abc");
    assert_eq!(read(&tar.end()).unwrap()[0].1, b"abc");
}

#[test]
fn what_leads_out_is_refused_by_name() {
    refused(&Tar::new().file("../x", "").end(), "../x: a path that leads out");
    refused(&Tar::new().file("a/../../x", "").end(), "leads out");
    refused(&Tar::new().file("/etc/passwd", "").end(), "/etc/passwd: an absolute path");
    refused(&Tar::new().pax(&[("path", "/etc/x")]).file("x", "").end(), "/etc/x: an absolute path");
    refused(&Tar::new().gnu_long(b'L', "../x").file("x", "").end(), "leads out");
    refused(&Tar::new().hard_link("x", "/etc/shadow").end(), "x: an absolute path");
    refused(&Tar::new().hard_link("x", "../shadow").end(), "x: a path that leads out");
    refused(&Tar::new().hard_link("x", ".").end(), "x: a link that leads nowhere");
    refused(&Tar::new().symlink("x", "").end(), "x: a link that leads nowhere");
    refused(&Tar::new().symlink("./", "x").end(), "without a name");
}

#[test]
fn devices_fifos_and_sparse_files_are_refused() {
    refused(&Tar::new().special("dev/sda", b'4').end(), "dev/sda: a block device");
    refused(&Tar::new().special("dev/null", b'3').end(), "dev/null: a character device");
    refused(&Tar::new().special("pipe", b'6').end(), "pipe: a FIFO");
    refused(&Tar::new().special("hole", b'S').end(), "hole: a sparse file");
    let pax = Tar::new().pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.realsize", "10000000000")]);
    refused(&pax.file("hole", "").end(), "hole: a sparse file");
    for kind in [b'D', b'M', b'V', b'N', b'Z', 0xff] {
        refused(&Tar::new().special("odd", kind).end(), "odd: a member of a kind that is not known");
    }
}

#[test]
fn an_archive_is_complete_and_ends_with_its_input() {
    let whole = Tar::new().file("a", [1; 600]).end();
    let needed = 512 + 1024 + 1024;
    for end in (0..needed).step_by(100) {
        refused(&whole[..end], "cut off");
    }
    assert!(read(&whole[..needed]).is_ok(), "what fills up the last record is not needed");
    assert!(read(&[&whole[..], &[0; 512]].concat()).is_ok());
    refused(&[&whole[..], b"x"].concat(), "goes on after its end");
    let mut lone = Tar::new().unfinished();
    lone.extend([0; 512]);
    lone.extend(Header::new("x", b'0').block());
    refused(&lone, "goes on after its end");
    refused(&[b'x'; 1024], "no tar header");
    refused(&[Tar::new().pax(&[("path", "a")]).unfinished(), vec![0; 1024]].concat(), "cut off");
}

#[test]
fn a_header_that_was_changed_is_refused() {
    let good = Tar::new().file("a", "x").end();
    for at in 0..500 {
        let mut bad = good.clone();
        bad[at] ^= 0x11;
        if bad[at] != good[at] {
            assert!(read(&bad).is_err(), "byte {at}");
        }
    }
}

#[test]
fn more_than_was_allowed_is_refused_before_it_is_read() {
    let huge = Header { size: 10_000_000_000, ..Header::new("huge", b'0') };
    refused(&Tar::new().member(&huge, b"").unfinished(), "huge: the archive holds more than 1048576 bytes");
    let two = Tar::new().file("a", vec![0; 600_000]).file("b", vec![0; 600_000]);
    refused(&two.end(), "b: the archive holds more than 1048576 bytes");
    let many = (0..1001).fold(Tar::new(), |tar, n| tar.file(&format!("{n}"), ""));
    refused(&many.end(), "more than 1000 members");
    let headers = (0..1001).fold(Tar::new(), |tar, _| tar.pax(&[("comment", "x")]));
    refused(&headers.end(), "more than 1000 members");
    let long = Header { size: MAX_EXTENSION_BYTES + 1, ..Header::new("x", b'x') };
    refused(&Tar::new().member(&long, b"").unfinished(), "extended header has");
    let link = Header { size: 5, link: b"b", ..Header::new("a", b'2') };
    refused(&Tar::new().member(&link, b"").end(), "a: a link or directory with content");
}
