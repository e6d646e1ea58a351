mod reader;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{self, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};

use super::plan::Plan;
use super::tree::{ROOT, Tree};
use super::{LIMITS, Limits, format, write, write_as_planned, write_within};
use reader::Image;

#[test]
fn the_checksum_is_that_of_castagnoli() {
    // The check value that catalogues of checksums give for these digits.
    assert_eq!(!format::crc32c(b"123456789"), 0xE306_9283);
}

#[test]
fn an_empty_directory_makes_a_whole_image() {
    let tree = Scratch::new();
    let image = tree.image();
    assert_eq!(image.inodes(), 1);
    assert_eq!(image.list(image.root()).len(), 2);
    tree.is_in(&image);
}

#[test]
fn the_bytes_of_a_small_tree_are_where_they_belong() {
    let tree = Scratch::new();
    tree.file("a", b"hello");
    tree.set_all_times(1_700_000_000);
    fs::set_permissions(tree.tree(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(tree.path("a"), Permissions::from_mode(0o640)).unwrap();
    let owner = fs::metadata(tree.path("a")).unwrap();

    let bytes = tree.bytes();
    assert_eq!(bytes.len(), 2 * 4096);
    assert!(bytes[..1024].iter().all(|&byte| byte == 0));
    let (superblock, inodes) = bytes[1024..].split_at(4096 - 1024);
    assert_eq!(superblock[..4], [0xE2, 0xE1, 0xF5, 0xE0]);
    assert_eq!(superblock[8..12], [3, 0, 0, 0]);
    assert_eq!(superblock[12..24], [12, 0, 128, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(superblock[36..40], [2, 0, 0, 0]);
    assert!(superblock[40..].iter().all(|&byte| byte == 0));

    // The root is at nid 128 with a tail of 40 bytes, so that the file is four slots later, at nid 132.
    assert_eq!(inodes[..16], [5, 0, 0, 0, 0xED, 0x41, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(inodes[44..48], [2, 0, 0, 0]);
    assert_eq!(inodes[64..76], [128, 0, 0, 0, 0, 0, 0, 0, 36, 0, 2, 0]);
    assert_eq!(inodes[76..88], [128, 0, 0, 0, 0, 0, 0, 0, 37, 0, 2, 0]);
    assert_eq!(inodes[88..100], [132, 0, 0, 0, 0, 0, 0, 0, 39, 0, 1, 0]);
    assert_eq!(&inodes[100..104], b"...a");

    let file = &inodes[128..];
    assert_eq!(file[..8], [5, 0, 0, 0, 0xA0, 0x81, 0, 0]);
    assert_eq!(file[8..24], [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(file[24..28], owner.uid().to_le_bytes());
    assert_eq!(file[28..32], owner.gid().to_le_bytes());
    assert_eq!(file[32..48], [0, 0xF1, 0x53, 0x65, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert!(file[48..64].iter().all(|&byte| byte == 0));
    assert_eq!(&file[64..69], b"hello");
    assert!(file[69..].iter().all(|&byte| byte == 0));
}

#[test]
fn files_around_the_sizes_that_matter_keep_their_bytes() {
    let tree = Scratch::new();
    for size in [0, 1, 31, 32, 33, 4031, 4032, 4033, 4095, 4096, 4097, 8128, 8129, 8192, 8193, 700_000] {
        tree.file(format!("{size}"), &Random(size + 1).bytes(size as usize));
    }
    let image = tree.image();
    tree.is_in(&image);
    let blocks = |size: &str| {
        let [_, blocks] = image.inode(image.find(image.root(), size.as_bytes()).unwrap()).taken;
        blocks.len() / 4096
    };
    assert_eq!(["0", "1", "4032", "4033", "4095", "4096", "4097"].map(blocks), [0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(["8128", "8129", "8192", "8193"].map(blocks), [1, 2, 2, 2]);
}

#[test]
fn tiny_files_take_little_more_than_their_bytes() {
    let tree = Scratch::new();
    let mut random = Random(1);
    let mut least = 0;
    for number in 0..1000 {
        let size = random.below(1000);
        tree.file(format!("{number:03}"), &random.bytes(size));
        // The inode, its tail, its entry and its name.
        least += 64 + size + 12 + 3;
    }
    let image = tree.bytes().len();
    assert!(image < least + least / 20, "{image} bytes for {least}");
}

#[test]
fn every_name_in_a_large_directory_is_found() {
    let tree = Scratch::new();
    for number in 0..5000 {
        tree.file(format!("{}{number}", "n".repeat(number % 40)), b"");
    }
    let image = tree.image();
    tree.is_in(&image);
    let entries = image.list(image.root());
    assert_eq!(entries.len(), 5002);
    for (name, nid) in &entries {
        assert_eq!(image.find(image.root(), name), Some(*nid));
        assert_eq!(image.find(image.root(), &[name, &b"\x01"[..]].concat()), None);
    }
    assert_eq!(image.find(image.root(), b"\x01"), None);
}

#[test]
fn names_may_be_of_any_length_and_of_any_bytes() {
    let tree = Scratch::new();
    for length in 1..=255 {
        tree.file("x".repeat(length), length.to_string().as_bytes());
    }
    for byte in (1..=255).filter(|&byte| byte != b'/' && byte != b'.') {
        tree.file(OsStr::from_bytes(&[byte]), &[byte]);
    }
    // These come before `.`, between it and `..`, and after both.
    for name in ["!", "-", ".\x01", ".-", "...", "..x", ".x"] {
        tree.file(name, b"");
    }
    tree.is_in(&tree.image());
}

#[test]
fn a_directory_may_fill_its_last_block_to_any_extent() {
    // `.`, `..` and 15 names of 255 bytes leave 52 bytes of the block for one more name.
    for last in [1, 19, 20, 51, 52, 53] {
        let tree = Scratch::new();
        for number in 10..25 {
            tree.file(format!("{number}{}", "x".repeat(253)), b"");
        }
        tree.file("z".repeat(last), b"");
        tree.is_in(&tree.image());
    }
}

#[test]
fn symbolic_links_are_copied_and_not_followed() {
    let outside = Scratch::new();
    outside.file("secret", b"secret");
    let tree = Scratch::new();
    for length in [1, 59, 60, 4032, 4033, 4095] {
        symlink("t".repeat(length), tree.path(length.to_string())).unwrap();
    }
    symlink(outside.tree(), tree.path("out")).unwrap();
    symlink(outside.path("secret"), tree.path("secret")).unwrap();
    symlink(".", tree.path("loop")).unwrap();
    let image = tree.image();
    assert_eq!(image.inodes(), 10);
    tree.is_in(&image);
}

#[test]
fn the_names_of_one_file_stay_names_of_one_file() {
    let tree = Scratch::new();
    tree.directory("a/b");
    tree.file("z", &[7; 5000]);
    tree.file("inside", b"also named outside of the tree");
    symlink("target", tree.path("link")).unwrap();
    for name in ["a/first", "a/b/second", "zz"] {
        fs::hard_link(tree.path("z"), tree.path(name)).unwrap();
    }
    fs::hard_link(tree.path("link"), tree.path("a/link")).unwrap();
    fs::hard_link(tree.path("inside"), tree.0.join("outside")).unwrap();
    let image = tree.image();
    let inode = |name: &[u8]| image.inode(image.find(image.root(), name).unwrap());
    assert_eq!(inode(b"z").links, 4);
    assert_eq!(inode(b"zz").at, inode(b"z").at);
    assert_eq!(inode(b"link").links, 2);
    assert_eq!(inode(b"inside").links, 1, "only names within the tree count");
    tree.is_in(&image);
}

#[test]
fn modes_owners_and_times_are_kept_but_for_the_bits_that_give_rights() {
    let tree = Scratch::new();
    for mode in [0o7777, 0o4755, 0o2755, 0o1777, 0o644, 0o400] {
        tree.file(format!("{mode:o}"), b"");
        fs::set_permissions(tree.path(format!("{mode:o}")), Permissions::from_mode(mode)).unwrap();
    }
    tree.directory("directory");
    fs::set_permissions(tree.path("directory"), Permissions::from_mode(0o7777)).unwrap();
    for seconds in [-5, 0, 1, 1 << 33] {
        tree.file(format!("at {seconds}"), b"");
        tree.set_time(format!("at {seconds}"), seconds);
    }
    let image = tree.image();
    tree.is_in(&image);
    let mode = |name: &[u8]| image.inode(image.find(image.root(), name).unwrap()).mode & 0o7777;
    assert_eq!([mode(b"7777"), mode(b"4755"), mode(b"directory")], [0o1777, 0o755, 0o1777]);

    // Not everyone who runs this may give a file away, so the owners are put in between the two walks.
    let mut scanned = tree.scan();
    scanned.inodes[ROOT].uid = 65_536;
    scanned.inodes[ROOT].gid = u32::MAX - 1;
    tree.write(&scanned).unwrap();
    let image = Image::new(fs::read(tree.image_path()).unwrap());
    let root = image.inode(image.root());
    assert_eq!((root.uid, root.gid), (65_536, u32::MAX - 1));
}

#[test]
fn pipes_and_sockets_are_left_out() {
    let tree = Scratch::new();
    tree.directory("in");
    tree.file("in/file", b"stays");
    for at in ["pipe", "in/pipe"] {
        mknodat(CWD, tree.path(at), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    }
    UnixListener::bind(tree.path("socket")).unwrap();
    let image = tree.image();
    assert_eq!(image.walk().into_keys().collect::<Vec<_>>(), [&b""[..], b"/in", b"/in/file"]);
}

#[test]
fn holes_are_zeros_in_the_image_and_take_no_room() {
    let tree = Scratch::new();
    let sparse = File::create(tree.path("sparse")).unwrap();
    sparse.set_len((64 << 20) + 3).unwrap();
    sparse.write_all_at(b"in the midst", 33 << 20).unwrap();
    File::create(tree.path("hole")).unwrap().set_len(1 << 20).unwrap();
    tree.is_in(&tree.image());
    let room = fs::metadata(tree.image_path()).unwrap().blocks() * 512;
    assert!(room < 1 << 20, "{room} bytes");
}

#[test]
fn an_image_replaces_what_the_file_held() {
    let tree = Scratch::new();
    tree.file("hole", b"");
    tree.file("file", b"content");
    File::options().write(true).open(tree.path("hole")).unwrap().set_len(100_000).unwrap();
    let clean = tree.bytes();
    fs::write(tree.image_path(), vec![0xFF; 1 << 20]).unwrap();
    let to = File::options().write(true).open(tree.image_path()).unwrap();
    assert_eq!(write(tree.opened().as_fd(), &to).unwrap(), clean.len() as u64);
    assert!(fs::read(tree.image_path()).unwrap() == clean);
}

#[test]
fn the_same_tree_makes_the_same_image_wherever_it_is() {
    let build = |order: &mut dyn Iterator<Item = u64>| {
        let tree = Scratch::new();
        for number in order {
            tree.directory(format!("{}", number % 7));
            tree.file(format!("{}/{number}", number % 7), &Random(number + 1).bytes(number as usize * 30));
        }
        symlink("6/6", tree.path("link")).unwrap();
        tree.set_all_times(1_600_000_000);
        tree
    };
    let one = build(&mut (0..300));
    let other = build(&mut (0..300).rev());
    assert!(one.bytes() == other.bytes());
    assert!(one.bytes() == one.bytes());
}

#[test]
fn random_trees_come_back_as_they_were() {
    for seed in 1..=16 {
        let tree = Scratch::new();
        let mut random = Random(seed);
        let mut directories: Vec<PathBuf> = vec![tree.tree()];
        let mut files: Vec<PathBuf> = Vec::new();
        for _ in 0..random.below(250) {
            let longest = [12, 12, 12, 255][random.below(4)];
            let length = 1 + random.below(longest);
            let name: Vec<u8> = random.bytes(length).into_iter().map(allowed_in_a_name).collect();
            let path = directories[random.below(directories.len())].join(OsStr::from_bytes(&name));
            if fs::symlink_metadata(&path).is_ok() {
                continue;
            }
            match random.below(8) {
                0 => fs::create_dir(&path).map(|()| directories.push(path)).unwrap(),
                1 => {
                    let length = 1 + random.below(4095);
                    symlink("t".repeat(length), &path).unwrap();
                }
                2 if !files.is_empty() => {
                    fs::hard_link(&files[random.below(files.len())], &path).unwrap();
                }
                _ => {
                    let near = [0, 4032, 4096, 8192, 300_000][random.below(5)];
                    let size = (near + random.below(70)).saturating_sub(35);
                    fs::write(&path, random.bytes(size)).unwrap();
                    let mode = 0o400 + random.below(0o400) as u32;
                    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                    files.push(path);
                }
            }
        }
        tree.is_in(&tree.image());
    }
}

#[test]
fn a_file_that_shrinks_is_an_error_and_no_image() {
    for (before, after) in [(100, 99), (4096, 0), (10_000, 5_000), (600_000, 599_999), (8192, 4096)] {
        let tree = Scratch::new();
        tree.directory("in");
        tree.file("in/file", &vec![1; before]);
        let scanned = tree.scan();
        tree.file("in/file", &vec![1; after]);
        let error = tree.write(&scanned).unwrap_err();
        assert_eq!(error.to_string(), "in/file: became shorter while the tree was read");
        assert!(fs::read(tree.image_path()).unwrap()[..4096].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn of_a_file_that_grows_as_much_is_taken_as_there_was() {
    for before in [0, 100, 4096, 5000] {
        let tree = Scratch::new();
        tree.file("file", &vec![1; before]);
        let scanned = tree.scan();
        tree.file("file", &vec![1; before + 50_000]);
        tree.write(&scanned).unwrap();
        let image = Image::new(fs::read(tree.image_path()).unwrap());
        assert!(image.walk()[&b"/file"[..]].content == vec![1; before]);
    }
}

#[test]
fn what_takes_the_place_of_something_else_is_not_taken_for_it() {
    type Replacement = fn(&Scratch);
    let cases: [(&str, Replacement); 6] = [
        ("in", |test| symlink(test.0.join("elsewhere"), test.path("in")).unwrap()),
        ("in", |test| fs::rename(test.0.join("elsewhere"), test.path("in")).unwrap()),
        ("in/file", |test| symlink(test.0.join("elsewhere/file"), test.path("in/file")).unwrap()),
        ("in/file", |test| fs::hard_link(test.0.join("elsewhere/file"), test.path("in/file")).unwrap()),
        ("in/file", |test| mknodat(CWD, test.path("in/file"), FileType::Fifo, Mode::RWXU, 0).unwrap()),
        ("in/link", |test| symlink("../elsewhere", test.path("in/link")).unwrap()),
    ];
    for (name, put_another) in cases {
        let test = Scratch::new();
        fs::create_dir(test.0.join("elsewhere")).unwrap();
        fs::write(test.0.join("elsewhere/file"), b"secret").unwrap();
        test.directory("in");
        test.file("in/file", b"public");
        symlink("file", test.path("in/link")).unwrap();
        let scanned = test.scan();
        // Moved and not removed, or what takes its place might get the same inode.
        fs::rename(test.path(name), test.0.join("away")).unwrap();

        let gone = test.write(&scanned).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert!(gone.to_string().starts_with(&format!("{name}: ")), "{gone}");

        put_another(&test);
        let replaced = test.write(&scanned).unwrap_err();
        assert_eq!(replaced.to_string(), format!("{name}: was replaced while the tree was read"));
        assert!(!fs::read(test.image_path()).unwrap().windows(6).any(|bytes| bytes == b"secret"));
    }
}

#[test]
fn another_filesystem_is_not_entered() {
    // Wherever this runs, /proc is mounted on the root.
    let image = Scratch::new();
    let to = File::create(image.image_path()).unwrap();
    let error = write(File::open("/").unwrap().as_fd(), &to).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::CrossesDevices);
    assert!(error.to_string().ends_with(": lies on another filesystem"), "{error}");
}

#[test]
fn a_root_that_is_no_directory_is_refused() {
    let tree = Scratch::new();
    tree.file("file", b"");
    let to = File::create(tree.image_path()).unwrap();
    let error = write(File::open(tree.path("file")).unwrap().as_fd(), &to).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn a_tree_may_be_as_deep_as_the_limit_and_no_deeper() {
    let tree = Scratch::new();
    tree.directory("d/".repeat(256));
    tree.file(format!("{}file", "d/".repeat(256)), b"at the bottom");
    tree.is_in(&tree.image());
    tree.directory("d/".repeat(257));
    let error = tree.try_write(&LIMITS).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    assert!(error.to_string().ends_with("d/d: directories are nested deeper than 256"), "{error}");
}

#[test]
fn a_tree_may_be_as_large_as_the_limits_and_no_larger() {
    let tree = Scratch::new();
    tree.directory("in");
    tree.file("in/four", &[1; 4000]);
    tree.file("in/five", &[1; 5000]);
    // Three names of 2 + 4 + 4 bytes, and an image of the superblock, two blocks of inodes and one of content.
    let exact = || Limits { names: 3, name_bytes: 10, depth: 1, bytes: 4 * 4096 };
    assert_eq!(tree.try_write(&exact()).unwrap(), 4 * 4096);
    let refused = |limits| {
        let error = tree.try_write(&limits).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        error.to_string()
    };
    assert_eq!(refused(Limits { names: 2, ..exact() }), "in: the tree has more than 2 names");
    assert_eq!(
        refused(Limits { name_bytes: 9, ..exact() }),
        "in: the names in the tree have more than 9 bytes"
    );
    assert_eq!(refused(Limits { depth: 0, ..exact() }), "in: directories are nested deeper than 0");
    assert_eq!(
        refused(Limits { bytes: 4 * 4096 - 1, ..exact() }),
        "the image would have more than 16383 bytes"
    );
    assert_eq!(
        refused(Limits { bytes: 8999, ..exact() }),
        "in/four: with this, the files of the tree have more than 8999 bytes"
    );
}

#[test]
fn a_sparse_file_of_a_tebibyte_is_refused_before_anything_is_written() {
    let tree = Scratch::new();
    File::create(tree.path("vast")).unwrap().set_len(1 << 40).unwrap();
    fs::write(tree.image_path(), b"before").unwrap();
    let to = File::options().write(true).open(tree.image_path()).unwrap();
    let error = write(tree.opened().as_fd(), &to).unwrap_err();
    assert_eq!(error.to_string(), "vast: with this, the files of the tree have more than 17179869184 bytes");
    assert_eq!(fs::read(tree.image_path()).unwrap(), b"before");
}

#[test]
fn errors_escape_what_they_show_and_do_not_grow_without_end() {
    let leaf = super::error::changed("was replaced");
    let error = super::error::under(b"\x1b[2J\xff", leaf);
    assert_eq!(error.to_string(), "\\x1b[2J\\xff: was replaced while the tree was read");
    let error = (0..256).fold(error, |error, _| super::error::under(&[0xFF; 255], error));
    assert!(error.to_string().starts_with("...\\xff") && error.to_string().len() < 5000);
}

/// A path within a tree, as bytes; that of the root is empty.
type Path = Vec<u8>;

/// All that should survive the way into an image and back.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: i64,
    links: u64,
    content: Vec<u8>,
    /// The first of the paths that lead to the same inode.
    first_name: Path,
}

/// A directory of our own with a tree to be written, and a place beside it for the image.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("erofs-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let scratch = Self(std::env::temp_dir().join(unique));
        fs::create_dir_all(scratch.tree()).unwrap();
        scratch
    }

    fn tree(&self) -> PathBuf {
        self.0.join("tree")
    }

    fn path(&self, name: impl AsRef<path::Path>) -> PathBuf {
        self.tree().join(name)
    }

    fn image_path(&self) -> PathBuf {
        self.0.join("image")
    }

    fn opened(&self) -> File {
        File::open(self.tree()).unwrap()
    }

    fn file(&self, name: impl AsRef<path::Path>, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
    }

    fn directory(&self, name: impl AsRef<path::Path>) {
        fs::create_dir_all(self.path(name)).unwrap();
    }

    fn set_time(&self, name: impl AsRef<path::Path>, seconds: i64) {
        let time = Timespec { tv_sec: seconds, tv_nsec: 999_999_999 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, self.path(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    fn set_all_times(&self, seconds: u64) {
        for path in seen_on_disk(&self.tree()).into_keys() {
            let relative = path.strip_prefix(b"/").unwrap_or(&path);
            self.set_time(OsStr::from_bytes(relative), seconds.cast_signed());
        }
    }

    fn try_write(&self, limits: &Limits) -> io::Result<u64> {
        write_within(limits, self.opened().as_fd(), &File::create(self.image_path())?)
    }

    fn bytes(&self) -> Vec<u8> {
        let written = self.try_write(&LIMITS).unwrap();
        let bytes = fs::read(self.image_path()).unwrap();
        assert_eq!(bytes.len() as u64, written);
        bytes
    }

    fn image(&self) -> Image {
        Image::new(self.bytes())
    }

    /// The first half of what the writer does, so that a test can change the tree before the second.
    fn scan(&self) -> Tree {
        Tree::scan(self.opened().as_fd(), &LIMITS).unwrap()
    }

    fn write(&self, scanned: &Tree) -> io::Result<u64> {
        let plan = Plan::new(scanned, &LIMITS)?;
        write_as_planned(self.opened().as_fd(), scanned, &plan, &File::create(self.image_path())?)
    }

    fn is_in(&self, image: &Image) {
        let (expected, found) = (seen_on_disk(&self.tree()), image.walk());
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (path, seen) in &found {
            // Not `assert_eq`: the contents would drown everything.
            assert!(*seen == expected[path], "{} differs", path.escape_ascii());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What an image of the directory should hold, found out by other means than the writer's.
fn seen_on_disk(directory: &path::Path) -> BTreeMap<Path, Seen> {
    fn visit(
        at: &path::Path,
        path: Path,
        seen: &mut BTreeMap<Path, Seen>,
        groups: &mut HashMap<u64, Vec<Path>>,
    ) {
        let metadata = fs::symlink_metadata(at).unwrap();
        let mut links = 1;
        let content = if metadata.is_symlink() {
            fs::read_link(at).unwrap().into_os_string().into_vec()
        } else if metadata.is_file() {
            fs::read(at).unwrap()
        } else {
            let mut names: Vec<_> =
                fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            for name in &names {
                visit(&at.join(name), [&path, &b"/"[..], name.as_bytes()].concat(), seen, groups);
            }
            links =
                2 + names.iter().filter(|name| fs::symlink_metadata(at.join(name)).unwrap().is_dir()).count();
            Vec::new()
        };
        groups.entry(metadata.ino()).or_default().push(path.clone());
        let entry = Seen {
            mode: metadata.mode() & !0o6000,
            uid: metadata.uid(),
            gid: metadata.gid(),
            mtime: metadata.mtime(),
            links: links as u64,
            content,
            first_name: path.clone(),
        };
        seen.insert(path, entry);
    }

    let mut seen = BTreeMap::new();
    let mut groups = HashMap::new();
    visit(directory, Vec::new(), &mut seen, &mut groups);
    for names in groups.values().filter(|names| names.len() > 1) {
        for name in names {
            let entry = seen.get_mut(name).unwrap();
            entry.links = names.len() as u64;
            entry.first_name = names[0].clone();
        }
    }
    seen
}

fn allowed_in_a_name(byte: u8) -> u8 {
    match byte {
        0 | b'/' => b'.',
        other => other,
    }
}

/// Numbers that look random and are the same in every run (xorshift64*). The seed must not be zero.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| (self.next() >> 56) as u8).collect()
    }
}
