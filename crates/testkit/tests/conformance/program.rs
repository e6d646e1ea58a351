//! What runs: arguments, environment, working directory, status, languages.

use casemate_testkit::{CodeSource, Language, Rig, Stack, Status, Wall, cell, wasm};

use crate::{is_not_for, is_wasm, refused, refuses, succeeded};

pub(crate) async fn arguments_arrive_unchanged(rig: &Rig, stack: &Stack) {
    let long = "x".repeat(120_000);
    let odd = [
        "",
        " ",
        "a b",
        "'",
        "\"",
        "$HOME",
        "`id`",
        "*",
        "a\nb\t",
        "ü🦀",
        "-c",
        "--",
        "\\",
        "\u{1b}[31m",
        &long,
    ];
    let print = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))";
    let ran = cell(rig, stack).python(print, &odd).max_output("2M").run().await;
    succeeded(&ran);
    assert!(ran.out() == odd.join("\0"), "{}", ran.story());
}

pub(crate) async fn commands_are_looked_up_in_path(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "commands_are_looked_up_in_path") {
        return refuses(cell(rig, stack).command(["env", "true"]), "native commands").await;
    }
    let ran = cell(rig, stack).command(["env", "true"]).run().await;
    succeeded(&ran);
    // The first match that may be executed wins, as with execvp.
    let ran = cell(rig, stack)
        .tree("/work/first", 0o755, &[("tool", 0o644, Some(b"#!/bin/sh\necho first\n"))])
        .tree("/work/second", 0o755, &[("tool", 0o755, Some(b"#!/bin/sh\necho second\n"))])
        .env("PATH", "nowhere:first:second:/usr/bin:/bin")
        .command(["tool"])
        .run()
        .await;
    succeeded(&ran);
    assert_eq!(ran.out(), "second\n");
}

pub(crate) async fn a_command_that_cannot_run_is_refused(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "a_command_that_cannot_run_is_refused") {
        return refuses(cell(rig, stack).command(["no-such-command"]), "native commands").await;
    }
    refused(&cell(rig, stack).command(["no-such-command"]).run().await, "not found");
    refused(&cell(rig, stack).command(["/usr/bin/no-such-command"]).run().await, "not found");
    let text = cell(rig, stack).file("/work/text", 0o644, b"hello").command(["./text"]).run().await;
    refused(&text, "cannot be executed");
    refused(&cell(rig, stack).command(["/usr"]).run().await, "cannot be executed");
}

pub(crate) async fn the_environment_is_what_was_given(rig: &Rig, stack: &Stack) {
    // Python adds a variable of its own to what a native process has.
    let env =
        "import os; print(end=''.join(f'{k}={v}\\0' for k, v in os.environ.items() if k != 'LC_CTYPE'))";
    let given = || cell(rig, stack).env("GIVEN", "a=b c").env("EMPTY", "");
    let ran = given().file("/work/file", 0o644, b"").python(env, &[]).run().await;
    succeeded(&ran);
    let out = ran.out();
    assert_eq!(names(&out), ["EMPTY", "GIVEN", "HOME", "PATH", "TMPDIR"]);
    assert!(out.contains("GIVEN=a=b c\0") && out.contains("EMPTY=\0"), "{out:?}");
    if is_wasm(stack) {
        let ran = given().python(env, &[]).run().await;
        assert_eq!(names(&ran.out()), ["EMPTY", "GIVEN", "PATH"], "there are no directories to name");
    }
    let print = "import os; print(os.environ['HOME'])";
    let ran = cell(rig, stack).env("HOME", "/elsewhere").python(print, &[]).run().await;
    assert_eq!(ran.out(), "/elsewhere\n");
}

fn names(out: &str) -> Vec<&str> {
    let mut names: Vec<&str> = out.split_terminator('\0').filter_map(|pair| pair.split('=').next()).collect();
    names.sort_unstable();
    names
}

pub(crate) async fn the_work_directory_is_what_was_asked(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "the_work_directory_is_what_was_asked") {
        refuses(cell(rig, stack).cwd("/tmp"), "working directory").await;
        let here = "import os; assert os.getcwd() == os.environ['HOME'] == '/work'; open('here', 'w')";
        return succeeded(&cell(rig, stack).out("/work/here").python(here, &[]).run().await);
    }
    let here = "test \"$PWD\" = \"$HOME\" && touch here";
    succeeded(&cell(rig, stack).shell(here).run().await);
    let there = "test \"$PWD\" = \"$TMPDIR\" && touch there";
    succeeded(&cell(rig, stack).cwd("/tmp").shell(there).run().await);
    let below = "test \"$PWD\" = \"$HOME/a/b\"";
    let members = &[("b", 0o755, None)];
    succeeded(&cell(rig, stack).tree("/work/a", 0o755, members).cwd("/work/a/b").shell(below).run().await);
    let ran = cell(rig, stack).cwd("/usr/bin").command(["pwd"]).run().await;
    assert_eq!(ran.out(), "/usr/bin\n");
    refused(&cell(rig, stack).cwd("/work/missing").run().await, "working directory");
    refused(
        &cell(rig, stack).file("/work/file", 0o644, b"").cwd("/work/file").run().await,
        "working directory",
    );
}

pub(crate) async fn every_exit_code_is_reported(rig: &Rig, stack: &Stack) {
    // A machine for each takes its time.
    let step = if stack.outermost() == Wall::Microvm { 51 } else { 1 };
    for code in (0..=255).step_by(step) {
        let ran = cell(rig, stack).python(&format!("raise SystemExit({code})"), &[]).run().await;
        assert_eq!(ran.code(), Some(code), "{}", ran.story());
    }
}

pub(crate) async fn signals_are_reported(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "signals_are_reported") {
        refuses(cell(rig, stack).shell("kill -9 $$"), "native commands").await;
        for (args, signal) in [(&[][..], 4), (&["x"], 8), (&["x", "x"], 11), (&["x", "x", "x"], 11)] {
            let ran = cell(rig, stack).component(&wasm::traps(), args).run().await;
            assert_eq!(ran.outcome.status, Status::Signaled { signal }, "{}", ran.story());
            assert!(ran.err().contains("wasm trap: "), "{}", ran.story());
        }
        return assert_eq!(cell(rig, stack).python("exit(137)", &[]).run().await.code(), Some(137));
    }
    for signal in [1, 2, 3, 6, 9, 10, 11, 13, 15, 31] {
        let ran = cell(rig, stack).shell(&format!("kill -{signal} $$; sleep 5")).run().await;
        assert_eq!(ran.outcome.status, Status::Signaled { signal }, "{}", ran.story());
    }
    // A shell's 137 is an exit code, and stays one.
    assert_eq!(cell(rig, stack).shell("exit 137").run().await.code(), Some(137));
}

pub(crate) async fn code_runs_in_every_language(rig: &Rig, stack: &Stack) {
    let programs = [
        (Language::Python, "main.py", "import sys; print('|'.join(sys.argv[1:]))"),
        (Language::Javascript, "main.js", "console.log(process.argv.slice(FIRST).join('|'))"),
        (Language::Shell, "main.sh", "IFS='|'; echo \"$*\""),
    ];
    for (language, name, code) in programs {
        if language == Language::Shell && is_wasm(stack) {
            let code = CodeSource::Inline(code.to_owned());
            refuses(cell(rig, stack).code(language, code, &[]), "cannot run shell").await;
            continue;
        }
        for inline in [true, false] {
            // Node counts a script's own name among the arguments, but not that of inline code.
            let code = code.replace("FIRST", if inline { "1" } else { "2" });
            let source = match inline {
                true => CodeSource::Inline(code),
                false => CodeSource::File { name: name.into(), bytes: code.into_bytes() },
            };
            // Node reserves address space and memory at start.
            let run = cell(rig, stack).code(language, source, &["one", "two words", "$three"]).run();
            let ran = run.await;
            succeeded(&ran);
            assert_eq!(ran.out(), "one|two words|$three\n", "{language}, inline: {inline}");
        }
    }
    let latin1 = CodeSource::File {
        name: "latin1.py".into(),
        bytes: b"# coding: latin-1\nprint(len('\xe4\xf6'))".to_vec(),
    };
    assert_eq!(cell(rig, stack).code(Language::Python, latin1, &[]).run().await.out(), "2\n");
}
