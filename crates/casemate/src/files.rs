//! Files on their way into a cell and out of it. Host paths end here.
//!
//! Only regular files and directories travel, in either direction. A symbolic link is never followed: on the way
//! in it would take along what it points to, on the way out it would decide where we write.

mod inward;
mod outward;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use casemate_core::outcome::Refusal;
use casemate_core::request::GuestPath;
use rustix::fs::FileType;

pub(crate) use inward::gather;
pub(crate) use outward::{Landing, Remarks};

use crate::render::terminal::one_line;

/// `HOST:GUEST`. A guest path is absolute, so the last `:/` separates; a host path may hold colons.
pub(crate) fn parse_in(pair: &OsStr) -> Result<(PathBuf, String), Refusal> {
    let bytes = pair.as_bytes();
    let at = bytes.windows(2).rposition(|two| two == b":/").or(bytes.iter().rposition(|b| *b == b':'));
    split(pair, at, "--in", "HOST:GUEST, such as data.csv:/work/data.csv")
        .map(|(host, guest)| (PathBuf::from(host), guest))
        .and_then(|(host, guest)| Ok((host, utf8(guest)?)))
}

/// `GUEST:HOST`. The first colon separates.
pub(crate) fn parse_out(pair: &OsStr) -> Result<(String, PathBuf), Refusal> {
    let at = pair.as_bytes().iter().position(|b| *b == b':');
    split(pair, at, "--out", "GUEST:HOST, such as /work/plot.png:plot.png")
        .and_then(|(guest, host)| Ok((utf8(guest)?, PathBuf::from(host))))
}

/// Adds the directories between the cell's own and the paths to be copied in: they are put there too, so the
/// request names them.
pub(crate) fn add_parents(guests: &mut Vec<String>) {
    let named: Vec<GuestPath> = guests.iter().filter_map(|guest| GuestPath::new(guest).ok()).collect();
    let mut seen: BTreeSet<&str> = named.iter().map(GuestPath::as_str).collect();
    for parent in named.iter().flat_map(|guest| parents(guest.as_str())) {
        if seen.insert(parent) {
            guests.push(parent.to_owned());
        }
    }
}

/// `/work/a` and `/work/a/b` for `/work/a/b/c`.
fn parents(guest: &str) -> impl Iterator<Item = &str> {
    guest.match_indices('/').map(|(at, _)| &guest[..at]).skip(2)
}

fn split(pair: &OsStr, at: Option<usize>, flag: &str, shape: &str) -> Result<(OsString, OsString), Refusal> {
    let part = |bytes: &[u8]| Some(OsStr::from_bytes(bytes).to_owned()).filter(|part| !part.is_empty());
    let parts = at.and_then(|at| Some((part(&pair.as_bytes()[..at])?, part(&pair.as_bytes()[at + 1..])?)));
    parts.ok_or_else(|| {
        let shown = one_line(&pair.to_string_lossy());
        Refusal::new(format!("{flag} `{shown}` does not name two paths"), format!("write {flag} {shape}"))
    })
}

fn utf8(path: OsString) -> Result<String, Refusal> {
    path.into_string().map_err(|path| {
        let shown = one_line(&path.to_string_lossy());
        Refusal::new(
            format!("a path in the cell is not valid UTF-8: {shown}"),
            "use a path such as /work/input.json",
        )
    })
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "a symbolic link",
        FileType::Directory => "a directory",
        FileType::RegularFile => "a file",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths_may_hold_colons() {
        let parsed = parse_in(OsStr::new("a:b.csv:/work/x")).unwrap();
        assert_eq!(parsed, ("a:b.csv".into(), "/work/x".to_owned()));
        let parsed = parse_out(OsStr::new("/work/x:/tmp/a:b")).unwrap();
        assert_eq!(parsed, ("/work/x".to_owned(), "/tmp/a:b".into()));
    }

    #[test]
    fn directories_above_what_is_copied_in_are_named_once() {
        let mut guests =
            ["/work/a/b/c", "/work/a/d", "/tmp/x", "/work/a", "nonsense"].map(str::to_owned).to_vec();
        add_parents(&mut guests);
        assert_eq!(guests[5..], ["/work/a/b"]);
    }

    #[test]
    fn a_pair_with_a_missing_half_is_refused() {
        for bad in ["", ":", "a", "a:", ":/work/a", ":a"] {
            assert!(parse_in(OsStr::new(bad)).unwrap_err().hint.contains("HOST:GUEST"), "{bad}");
            assert!(parse_out(OsStr::new(bad)).unwrap_err().hint.contains("GUEST:HOST"), "{bad}");
        }
        // Where the guest's half is not absolute, the request says so.
        assert_eq!(parse_in(OsStr::new("a:b")).unwrap(), ("a".into(), "b".to_owned()));
        assert!(parse_out(OsStr::from_bytes(b"/work/\xff:a")).is_err());
    }
}
