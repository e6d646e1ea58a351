//! Lists the sources of the language runtimes, so that `casemate setup wasm` has them wherever it is installed.

use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let root = manifest.join("../../runtimes");
    println!("cargo:rerun-if-changed=../../runtimes");
    let mut files = Vec::new();
    for part in ["build.sh", "pins.sha256", "wit", "python", "javascript"] {
        walk(&root, Path::new(part), &mut files);
    }
    files.sort();
    // Relative to the crate, or another checkout that uses the same target directory would look for them in this one.
    let mut table = String::from("[\n");
    for file in files {
        let path = format!("/../../runtimes/{file}");
        writeln!(
            table,
            "    ({file:?}, include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {path:?})).as_slice()),"
        )
        .expect("in memory");
    }
    table.push_str("]\n");
    std::fs::write(out.join("runtimes.rs"), table).expect("OUT_DIR can be written to");
}

fn walk(root: &Path, part: &Path, files: &mut Vec<String>) {
    let path = root.join(part);
    if !path.is_dir() {
        return files.push(part.to_str().expect("plain names").to_owned());
    }
    for entry in path.read_dir().expect("a directory") {
        let name = entry.expect("readable").file_name();
        if name != "__pycache__" {
            walk(root, &part.join(name), files);
        }
    }
}
