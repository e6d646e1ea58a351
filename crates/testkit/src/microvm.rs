//! What microVMs are made of: a kernel with its modules, and an image to run in them. They are got once, by `cargo xtask`, and every home
//! gets links to them. Templates of machines are shared, too: whoever makes one has made it for all.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use casemate_core::image::{ImageDigest, ImageRef};

use casemate_core::stack::{Stack, Wall};

use crate::rig::is_root;
use crate::runtimes::link_tree;

/// `cargo xtask test` says here where a home with them is.
const VARIABLE: &str = "CASEMATE_TEST_MICROVM";

/// What the image for tests is called in there.
const IMAGE: &str = "suite";

/// Puts all of it into a home. Whoever wants to change a file of the kernel there replaces it: what is written into it, all homes have.
pub fn give_to(home: &Path) {
    let place = place();
    link_tree(&place.join("microvm/kernel"), &home.join("microvm/kernel")).expect("links to the kernel");
    for shared in ["disks", "templates"] {
        let ours = home.join("microvm").join(shared);
        symlink(place.join("microvm").join(shared), ours).expect("a link to what was made before");
    }
    let private = |name: &str| {
        let directory = home.join(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .expect("a directory of the home");
        directory
    };
    // A copy: whoever damages a key damages only their own.
    fs::copy(place.join("keys/templates.key"), private("keys").join("templates.key")).expect("a key");
    let tree = Path::new("images/trees").join(digest().hex());
    private("images");
    private("images/trees");
    symlink(place.join(&tree), home.join(&tree)).expect("a link to the image");
}

/// From now on this home makes templates of its own, and finds none.
pub fn keep_apart(home: &Path) {
    let templates = home.join("microvm/templates");
    fs::remove_file(&templates).expect("a link to what was made before");
    fs::DirBuilder::new().mode(0o700).create(&templates).expect("a directory of the home");
}

/// What a program on this stack is looked for in, unless a test says otherwise: a machine cannot have the host's.
pub fn image_on(stack: &Stack) -> ImageRef {
    match stack.outermost() == Wall::Microvm && !stack.contains(Wall::Wasm) {
        true => image(),
        false => ImageRef::Host,
    }
}

/// The image for tests: Debian, with Python, Node.js and what shows that a machine is one.
pub fn image() -> ImageRef {
    // Others than root are refused before anybody looks for it.
    let nobodys = || format!("sha256:{}", "0".repeat(64)).parse().expect("a digest");
    let digest = if is_root() { digest() } else { nobodys() };
    ImageRef::Stored { name: IMAGE.into(), digest }
}

fn digest() -> ImageDigest {
    let names = fs::read(place().join("images/names.json")).expect("names of images");
    let names: serde_json::Value = serde_json::from_slice(&names).expect("names of images");
    let found = find(&names).unwrap_or_else(|| panic!("no image is called {IMAGE}: {names}"));
    found.parse().expect("a digest")
}

/// Wherever in the document it is.
fn find(names: &serde_json::Value) -> Option<&str> {
    match names.get(IMAGE) {
        Some(digest) => digest.as_str(),
        None => names.as_object()?.values().find_map(find),
    }
}

/// Where it is: what the variable says, or beside the build output that this program is part of.
fn place() -> PathBuf {
    let beside = || {
        let program = std::env::current_exe().expect("this program has a path");
        program.ancestors().map(|dir| dir.join("microvm-home")).find(|dir| dir.is_dir())
    };
    let place = std::env::var_os(VARIABLE).map(PathBuf::from).or_else(beside);
    place.filter(|place| place.join("microvm/templates").is_dir()).unwrap_or_else(|| {
        panic!("the kernel of microVMs is missing: run `cargo xtask runtimes` (or set {VARIABLE})")
    })
}
