use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::Limits;
use crate::write::{Header, Tar};

/// A root to unpack into, and a place beside it that must stay as it is.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::write(dir.path().join("outside"), "untouched").unwrap();
        Place(dir)
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join("root").join(name)
    }

    fn unpack(&self, tar: Tar, role: Role) -> Result<u64, String> {
        let root = OwnedFd::from(fs::File::open(self.at("")).unwrap());
        let bytes = tar.end();
        let archive = Archive::new(&bytes[..], Limits { bytes: 1 << 20, entries: 1000 });
        // Processes of tests have the usual one.
        rustix::process::umask(Mode::empty());
        let unpacked = unpack(archive, root, role).map_err(|error| error.reason());
        assert_eq!(fs::read_to_string(self.0.path().join("outside")).unwrap(), "untouched");
        unpacked
    }

    #[track_caller]
    fn whole(&self, tar: Tar) {
        self.unpack(tar, Role::Whole).unwrap();
    }

    #[track_caller]
    fn layer(&self, tar: Tar) {
        self.unpack(tar, Role::Layer).unwrap();
    }

    #[track_caller]
    fn refused(&self, tar: Tar, words: &str) {
        let reason = self.unpack(tar, Role::Whole).expect_err("it was unpacked");
        assert!(reason.contains(words), "{reason}");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::symlink_metadata(self.at(name)).unwrap().permissions().mode() & 0o7777
    }
}

#[test]
fn files_directories_and_links_are_made() {
    let place = Place::new();
    place.whole(
        Tar::new()
            .directory("etc")
            .file("etc/motd", "hello")
            .file("usr/lib/deep/file", "made with its directories")
            .symlink("motd", "/etc/motd")
            .hard_link("same", "etc/motd"),
    );
    assert_eq!(place.read("etc/motd"), "hello");
    assert_eq!(place.read("usr/lib/deep/file"), "made with its directories");
    assert_eq!(fs::read_link(place.at("motd")).unwrap(), Path::new("/etc/motd"));
    let (a, b) = (fs::metadata(place.at("same")).unwrap(), fs::metadata(place.at("etc/motd")).unwrap());
    assert_eq!(a.ino(), b.ino());
    for name in ["etc", "etc/motd", "motd"] {
        assert_eq!(fs::symlink_metadata(place.at(name)).unwrap().mtime(), 1_600_000_000, "{name}");
    }
}

#[test]
fn modes_are_readable_for_all_and_set_no_ids() {
    let place = Place::new();
    let tar = Tar::new()
        .file_with_mode("su", "", 0o4755)
        .file_with_mode("secret", "", 0o600)
        .file_with_mode("script", "", 0o500)
        .file_with_mode("open", "", 0o666)
        .file_with_mode("nothing", "", 0);
    place.whole(tar.member(&Header { mode: 0o1777, ..Header::new("tmp", b'5') }, b""));
    let modes = ["su", "secret", "script", "open", "nothing", "tmp"].map(|name| place.mode(name));
    assert_eq!(modes, [0o755, 0o644, 0o555, 0o644, 0o444, 0o755]);
}

#[test]
fn no_link_of_an_archive_is_followed() {
    for target in ["..", "../outside", "/", "/etc", "real", "."] {
        let place = Place::new();
        let tar = Tar::new().directory("real").symlink("link", target);
        place.refused(tar.clone().file("link/x", "through"), "link/x: its path leads through");
        let place = Place::new();
        place.refused(tar.clone().directory("link/x/y"), "leads through");
        let place = Place::new();
        place.refused(tar.clone().file("file", "").hard_link("link/x", "file"), "leads through");
        let place = Place::new();
        place.refused(tar.clone().hard_link("x", "link/outside"), "leads through");
    }
    let place = Place::new();
    place.refused(Tar::new().file("file", "").file("file/x", ""), "file/x: its path leads through a file");
}

#[test]
fn what_has_the_name_is_replaced_and_not_written_to() {
    let place = Place::new();
    symlink("../outside", place.at("planted")).unwrap();
    place.whole(
        Tar::new()
            .symlink("link", "../outside")
            .file("link", "a file now")
            .file("planted", "a file now")
            .file("first", "one")
            .hard_link("second", "first")
            .file("second", "two")
            .directory("was/deep/directory")
            .file("was", "a file now")
            .file("then", "")
            .directory("then")
            .file("then/x", "below"),
    );
    assert_eq!((place.read("link"), place.read("planted")), ("a file now".into(), "a file now".into()));
    assert_eq!((place.read("first"), place.read("second")), ("one".into(), "two".into()));
    assert_eq!((place.read("was"), place.read("then/x")), ("a file now".into(), "below".into()));
}

#[test]
fn a_hard_link_leads_to_a_file_that_is_there() {
    let place = Place::new();
    place.refused(Tar::new().hard_link("a", "nothing"), "a: a hard link to nothing, which is not there");
    place.refused(Tar::new().hard_link("a", "no/where"), "a: a hard link to no/where, which is not there");
    place.refused(Tar::new().file("a", "").hard_link("a", "a"), "a: a hard link to a");
    place.refused(Tar::new().directory("d").hard_link("a", "d"), "a: a hard link to d, which is a directory");
}

#[test]
fn whiteouts_hide_what_layers_below_have_brought() {
    let place = Place::new();
    let below = Tar::new()
        .file("a", "below")
        .file("d/old", "")
        .file("d/sub/old", "")
        .file("o/old", "")
        .file("keep", "");
    place.layer(below);
    place.layer(
        Tar::new()
            .file(".wh.a", "")
            .file("d/new", "new")
            .file("d/.wh.sub", "")
            .file("o/new", "new")
            // An opaque directory hides what is below, wherever in the layer that is said.
            .file("o/.wh..wh..opq", "")
            .file(".wh.never-there", "")
            .file("no/where/.wh.x", ""),
    );
    for gone in ["a", "d/sub", "o/old", ".wh.a", "o/.wh..wh..opq", "no"] {
        assert!(!place.at(gone).exists(), "{gone}");
    }
    for there in ["keep", "d/old", "d/new", "o/new"] {
        assert!(place.at(there).exists(), "{there}");
    }
}

#[test]
fn a_whiteout_does_not_hide_what_its_own_layer_brings() {
    let place = Place::new();
    place.layer(Tar::new().file("d/old", "").file("f", "below"));
    place.layer(Tar::new().file("d/new", "").file(".wh.d", "").file("f", "above").file(".wh.f", ""));
    assert!(place.at("d/new").exists() && !place.at("d/old").exists());
    assert_eq!(place.read("f"), "above");
    place.layer(Tar::new().directory("d").file(".wh..wh..opq", ""));
    assert!(place.at("d").exists() && !place.at("d/new").exists() && !place.at("f").exists());
}

#[test]
fn odd_whiteouts_are_refused() {
    for name in [".wh.", ".wh..", ".wh...", "d/.wh..", ".wh..wh.plnk", ".wh..wh..opq.x"] {
        let place = Place::new();
        place.layer(Tar::new().file("d/f", ""));
        let reason = place.unpack(Tar::new().file(name, ""), Role::Layer).unwrap_err();
        assert!(reason.contains("whiteout"), "{name}: {reason}");
        assert!(place.at("d/f").exists(), "{name}");
    }
    let place = Place::new();
    place.layer(Tar::new().symlink("l", "..").file("l2", ""));
    let reason = place.unpack(Tar::new().file("l/.wh.outside", ""), Role::Layer).unwrap_err();
    assert!(reason.contains("leads through"), "{reason}");
    place.refused(Tar::new().file(".wh.x", ""), "only a layer");
}
