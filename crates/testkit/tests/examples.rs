//! The examples of `docs/wasm.md`, built as it says and run.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use casemate_testkit::runtimes::componentize_py;
use common::Home;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let output = command.current_dir(root()).output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// `wasm-tools component embed wit --world tool` and `wasm-tools component new`, which are these calls.
fn componentize(mut module: Vec<u8>) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(root().join("wit")).expect("the interface is valid");
    let world = resolve.select_world(&[package], Some("tool")).expect("there is a world `tool`");
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("embedded");
    let mut encoder =
        ComponentEncoder::default().validate(true).module(&module).expect("it fits its interface");
    encoder.encode().expect("a component")
}

fn c_tool(home: &Home) -> String {
    let core = home.beside("tool.core.wasm");
    let mut clang = Command::new("clang");
    clang.args(["--target=wasm32", "-O2", "-nostdlib", "-Wl,--no-entry", "-o"]);
    succeeds(clang.arg(&core).arg("examples/tool-c/tool.c"));
    home.write_beside("tool.wasm", componentize(std::fs::read(core).expect("what clang made")))
}

fn python_tool(home: &Home) -> String {
    let made = home.beside("format.wasm");
    let mut python = Command::new("python3");
    python.args(["-c", "import sys, componentize_py; sys.exit(componentize_py.script())"]);
    python.args([
        "-d",
        "wit",
        "-w",
        "tool",
        "componentize",
        "--stub-wasi",
        "-p",
        "examples/tool-python",
        "app",
        "-o",
    ]);
    python.env("PYTHONPATH", componentize_py()).env("PYTHONDONTWRITEBYTECODE", "1");
    succeeds(python.arg(&made));
    made.to_str().expect("UTF-8").to_owned()
}

#[test]
fn the_tool_in_c_counts() {
    let home = Home::new();
    let tool = c_tool(&home);
    for flags in home.on_wasm() {
        let words: Vec<&str> = flags.iter().map(String::as_str).chain([tool.as_str()]).collect();
        assert_eq!(home.run_with(&words, "to be\nor not\n").expect(0).out(), "2 4 13\n");
        let none = home.run_with(&words, "").expect(1);
        assert_eq!(none.err(), "there is nothing to count\n");
    }
    home.nothing_left();
}

#[test]
fn the_tool_in_python_formats() {
    let home = Home::new();
    let tool = python_tool(&home);
    for flags in home.on_wasm() {
        let words: Vec<&str> = flags.iter().map(String::as_str).chain([tool.as_str()]).collect();
        let formatted = home.run_with(&words, r#"{"b": 1, "a": [1, 2]}"#).expect(0).out();
        assert_eq!(formatted, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": 1\n}\n");
        let wrong = home.run_with(&words, "{").expect(1);
        assert!(wrong.err().starts_with("not JSON: "), "{}", wrong.err());
    }
    home.nothing_left();
}
