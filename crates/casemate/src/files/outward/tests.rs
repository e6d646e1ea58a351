use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

const FILE: Entry = Entry::File { mode: 0o6777, size: 5 };
const DIR: Entry = Entry::Directory { mode: 0o7755 };

fn landing(host: &Path) -> Landing {
    Landing::open(&[GuestPath::new("/work/out").unwrap()], &[host.to_owned()]).unwrap()
}

fn send(landing: &mut Landing, path: &str, text: &str) {
    landing.entry(0, path, Entry::File { mode: 0o644, size: text.len() as u64 }).unwrap();
    landing.data(text.as_bytes()).unwrap();
}

fn remarks(landing: Landing) -> String {
    let remarks = landing.remarks();
    drop(landing);
    remarks.lines(&[GuestPath::new("/work/out").unwrap()]).join("\n")
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A victim that nothing may touch, and a directory to write to.
fn scene() -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (victim, out) = (dir.path().join("victim"), dir.path().join("out"));
    fs::write(&victim, "precious").unwrap();
    fs::create_dir(&out).unwrap();
    (dir, victim, out)
}

#[test]
fn a_file_lands_under_the_name_that_was_given() {
    let (dir, ..) = scene();
    let host = dir.path().join("plot.png");
    let mut landing = landing(&host);
    landing.entry(0, "", FILE).unwrap();
    assert!(!host.exists(), "not before it is complete");
    landing.data(b"he").unwrap();
    landing.data(b"llo").unwrap();
    assert_eq!(fs::read_to_string(&host).unwrap(), "hello");
    assert_eq!(remarks(landing), "");
    assert_eq!(names(dir.path()), ["out", "plot.png", "victim"]);
}

#[test]
fn nothing_that_comes_out_is_setuid() {
    let (dir, _, out) = scene();
    let host = dir.path().join("file");
    let mut landing = landing(&host);
    landing.entry(0, "", FILE).unwrap();
    landing.data(b"hello").unwrap();
    let meta = fs::metadata(&host).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7000, 0);
    assert_eq!(meta.uid(), rustix::process::geteuid().as_raw());

    let mut landing = super::tests::landing(&out);
    landing.entry(0, "sub", DIR).unwrap();
    assert_eq!(fs::metadata(out.join("sub")).unwrap().permissions().mode() & 0o7000, 0);
}

#[test]
fn a_plain_file_is_replaced_and_not_written_through() {
    let (dir, ..) = scene();
    let (host, hard_link) = (dir.path().join("file"), dir.path().join("other-name"));
    fs::write(&host, "old").unwrap();
    fs::hard_link(&host, &hard_link).unwrap();
    send(&mut landing(&host), "", "new");
    assert_eq!(fs::read_to_string(&host).unwrap(), "new");
    assert_eq!(fs::read_to_string(&hard_link).unwrap(), "old");
}

#[test]
fn a_file_goes_into_a_directory_that_exists() {
    let (_dir, _, out) = scene();
    send(&mut landing(&out), "", "x");
    assert_eq!(names(&out), ["out"]);
}

#[test]
fn a_tree_is_merged_into_the_directory() {
    let (_dir, _, out) = scene();
    fs::write(out.join("kept"), "").unwrap();
    let mut landing = landing(&out);
    landing.entry(0, "", DIR).unwrap();
    landing.entry(0, "a", DIR).unwrap();
    landing.entry(0, "a/b", DIR).unwrap();
    send(&mut landing, "a/b/c", "deep");
    send(&mut landing, "empty", "");
    assert_eq!(fs::read_to_string(out.join("a/b/c")).unwrap(), "deep");
    assert_eq!(names(&out), ["a", "empty", "kept"]);
    assert_eq!(remarks(landing), "");
}

#[test]
fn a_tree_makes_its_own_directory() {
    let (dir, ..) = scene();
    let host = dir.path().join("new");
    let mut landing = landing(&host);
    landing.entry(0, "", DIR).unwrap();
    send(&mut landing, "a", "x");
    assert_eq!(names(&host), ["a"]);
}

#[test]
fn links_planted_in_the_directory_are_never_followed() {
    let (dir, victim, out) = scene();
    symlink(&victim, out.join("file")).unwrap();
    symlink(dir.path(), out.join("sub")).unwrap();
    symlink("/no/such/place", out.join("dangling")).unwrap();
    let mut landing = landing(&out);
    landing.entry(0, "", DIR).unwrap();
    send(&mut landing, "file", "evil");
    send(&mut landing, "dangling", "evil");
    landing.entry(0, "sub", DIR).unwrap();
    send(&mut landing, "sub/victim", "evil");
    send(&mut landing, "fine", "fine");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(names(dir.path()), ["out", "victim"]);
    assert_eq!(names(&out), ["dangling", "file", "fine", "sub"]);
    assert!(out.join("file").is_symlink() && out.join("sub").is_symlink());
    let said = remarks(landing);
    assert!(said.contains("/work/out/file: a symbolic link is in the way"), "{said}");
    assert!(said.contains("/work/out/sub/victim: the directory around it was left out"), "{said}");
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[test]
fn a_link_that_appears_during_the_run_is_replaced_or_refused_but_not_followed() {
    let (dir, victim, out) = scene();
    let host = dir.path().join("file");
    let mut early = landing(&host);
    symlink(&victim, &host).unwrap();
    send(&mut early, "", "evil");
    let mut late = landing(&out);
    late.entry(0, "x", FILE).unwrap();
    symlink(&victim, out.join("x")).unwrap();
    late.data(b"hello").unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(host.is_symlink());
    assert!(!out.join("x").is_symlink());
    assert!(remarks(early).contains("symbolic link is in the way"));
}

#[test]
fn a_directory_replaced_by_a_link_during_the_run_leads_nowhere() {
    let (dir, victim, out) = scene();
    let mut landing = landing(&out);
    landing.entry(0, "sub", DIR).unwrap();
    fs::remove_dir(out.join("sub")).unwrap();
    symlink(dir.path(), out.join("sub")).unwrap();
    send(&mut landing, "sub/victim", "evil");
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
}

#[test]
fn names_that_climb_are_an_error() {
    let (_dir, victim, out) = scene();
    let mut landing = landing(&out);
    for bad in ["..", "../victim", "a/../../victim", "/etc/passwd", "a//b", ".", "a/.", "a\0", "a/"] {
        assert!(landing.entry(0, bad, FILE).is_err(), "{bad:?}");
        assert!(landing.entry(0, bad, DIR).is_err(), "{bad:?}");
    }
    assert!(landing.entry(1, "a", FILE).is_err());
    landing.skipped(7, "a", "b");
    assert!(names(&out).is_empty());
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
}

#[test]
fn an_incomplete_file_never_gets_its_name() {
    let (_dir, _, out) = scene();
    fs::write(out.join("a"), "old").unwrap();
    let mut landing = landing(&out);
    landing.entry(0, "a", FILE).unwrap();
    landing.data(b"he").unwrap();
    landing.entry(0, "b", FILE).unwrap();
    let said = remarks(landing);
    assert!(said.contains("out/a: it came out incomplete") && said.contains("out/b: it came"), "{said}");
    assert_eq!(names(&out), ["a"]);
    assert_eq!(fs::read_to_string(out.join("a")).unwrap(), "old");
}

#[test]
fn a_file_longer_than_announced_is_an_error() {
    let (_dir, _, out) = scene();
    let mut landing = landing(&out);
    landing.entry(0, "a", FILE).unwrap();
    assert!(landing.data(b"hello!").is_err());
    drop(landing);
    assert!(names(&out).is_empty());
}

#[test]
fn destinations_are_checked_before_the_run() {
    let (dir, victim, _) = scene();
    let open = |host: &Path| Landing::open(&[GuestPath::new("/work/out").unwrap()], &[host.to_owned()]);
    let missing = open(&dir.path().join("no/such/file")).unwrap_err();
    assert!(missing.hint.starts_with("mkdir -p "), "{missing:?}");
    let link = dir.path().join("link");
    symlink(&victim, &link).unwrap();
    assert!(open(&link).unwrap_err().reason.contains("a symbolic link"));
    assert!(open(Path::new("/dev/null")).unwrap_err().reason.contains("a device"));
    open(Path::new(".")).unwrap();
}

#[test]
fn what_did_not_come_out_is_said() {
    let (_dir, _, out) = scene();
    assert_eq!(remarks(landing(&out)), "--out /work/out: nothing came out");
    let mut landing = landing(&out);
    (0..100).for_each(|n| landing.skipped(0, &n.to_string(), "a symbolic link"));
    let said = remarks(landing);
    assert_eq!(said.lines().count(), MAX_REMARKS + 1);
    assert!(said.ends_with("left out 80 more"), "{said}");
}
