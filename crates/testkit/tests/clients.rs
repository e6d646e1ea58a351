//! The service as real clients meet it: packages that we did not write, from where everybody gets them, and our own. Each file of
//! tests in `DIRECTORIES` is one test here; `cargo xtask test` has installed what they need.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Home, binary};

/// The interpreter that has the packages of `clients/requirements.txt`.
const VARIABLE: &str = "CASEMATE_TEST_CLIENTS";

macro_rules! clients {
    ($($name:ident: $path:literal;)*) => {
        $(#[test] fn $name() { run($path); })*

        /// A file of tests that nobody runs proves nothing.
        #[test]
        fn every_file_of_tests_is_run() {
            let mut found: Vec<String> = DIRECTORIES.iter().flat_map(|directory| tests_in(directory)).collect();
            let mut run: Vec<String> = vec![$($path.to_owned()),*];
            found.sort();
            run.sort();
            assert_eq!(found, run);
        }
    };
}

/// Where files of tests lie, from the root of the sources.
const DIRECTORIES: [&str; 2] = ["crates/testkit/clients", "sdk/python/tests"];

clients! {
    e2b_async: "crates/testkit/clients/test_e2b_async.py";
    e2b_code: "crates/testkit/clients/test_e2b_code.py";
    e2b_commands: "crates/testkit/clients/test_e2b_commands.py";
    e2b_files: "crates/testkit/clients/test_e2b_files.py";
    e2b_protocol: "crates/testkit/clients/test_e2b_protocol.py";
    e2b_sandboxes: "crates/testkit/clients/test_e2b_sandboxes.py";
    mcp: "crates/testkit/clients/test_mcp.py";
    native: "crates/testkit/clients/test_native.py";
    openapi: "crates/testkit/clients/test_openapi.py";
    python_archives: "sdk/python/tests/test_archive.py";
    python_awaited: "sdk/python/tests/test_async.py";
    python_client: "sdk/python/tests/test_client.py";
    python_code: "sdk/python/tests/test_code.py";
    python_local_server: "sdk/python/tests/test_local.py";
    python_openapi: "sdk/python/tests/test_openapi.py";
    python_receipts: "sdk/python/tests/test_receipts.py";
    python_sandbox: "sdk/python/tests/test_sandbox.py";
    python_signatures: "sdk/python/tests/test_ed25519.py";
    python_trees: "sdk/python/tests/test_trees.py";
    python_types: "sdk/python/tests/test_types.py";
    python_volumes: "sdk/python/tests/test_volumes.py";
    python_wire: "sdk/python/tests/test_wire.py";
}

fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    here.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into())
        .join("../..")
        .canonicalize()
        .expect("the sources")
}

fn tests_in(directory: &str) -> Vec<String> {
    let listed = std::fs::read_dir(root().join(directory)).expect("a directory of tests");
    let names = listed.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"));
    let tests = names.filter(|name| name.starts_with("test_") && name.ends_with(".py"));
    tests.map(|name| format!("{directory}/{name}")).collect()
}

#[track_caller]
fn run(path: &str) {
    let python = std::env::var_os(VARIABLE).map(PathBuf::from);
    let python = python.unwrap_or_else(|| {
        panic!("{VARIABLE} does not name a Python with the clients in it; `cargo xtask test` makes one")
    });
    let home = Home::new();
    let place = home.beside("clients");
    std::fs::create_dir(&place).expect("a place for the test");
    let done = pytest(&python, &root().join(path), &place).output().expect("python starts");
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}");
    assert!(!said.contains("skipped"), "nothing is skipped: {said}");
    home.nothing_left();
}

fn pytest(python: &Path, tests: &Path, place: &Path) -> Command {
    let mut command = Command::new(python);
    command
        .args(["-B", "-m", "pytest", "--quiet", "--no-header", "-x", "-p", "no:cacheprovider", "--basetemp"])
        .arg(place.join("tmp"))
        .arg(tests)
        .current_dir(tests.parent().expect("a directory"))
        .env("CASEMATE_BIN", binary())
        .env("CASEMATE_HOME", place.join("unused"))
        .env("HOME", place)
        .stdin(Stdio::null());
    command
}
