//! What is promised of calls together: the same input gives the same output where that was asked for; tenants share no worker and no
//! code; one module is compiled once; and nothing is left, whatever is killed.

mod common;

use std::collections::BTreeSet;
use std::task::Poll;
use std::time::Duration;

use casemate_testkit::{Capability, Cause, Ran, Rig, Stack, Status, Traces, cell, on_wasm_stacks, wasm};
use common::leftovers::processes;
use common::{Home, Running, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

fn on_each_stack(test: impl AsyncFn(&Rig, &Stack)) {
    on_wasm_stacks(Rig::open, test);
}

fn worker(rig: &Rig, ran: &Ran) -> Value {
    assert_eq!(ran.code(), Some(0), "{}", ran.story());
    rig.worker_of(&ran.outcome.id)
}

/// Everything that usually differs from one run to the next.
const CHANCE: &str = "import datetime, os, random, sys, time, uuid, math
print(random.random(), os.urandom(8).hex(), uuid.uuid4(), time.time(), datetime.datetime.now())
print({str(n) for n in range(50)}, hash('x'), id(object()) % 64)
print(sum(math.sin(n) ** 0.5 for n in range(1, 3)), float('nan'), 0.1 + 0.2, time.monotonic() < 1)
random.shuffle(items := list(range(100))); print(items, sys.argv)";

/// Standard output, and its digest in the receipt.
fn output(home: &Home, words: &[&str]) -> (Vec<u8>, Value) {
    let (done, json) = home.run_json(words);
    assert_eq!(done.code, 0, "{json}");
    let shown = home.casemate(&["evidence", "show", json["id"].as_str().expect("an id")]).expect(0).out();
    let records: Vec<Value> = serde_json::from_str(&shown).expect("records");
    let subjects =
        records.into_iter().flat_map(|record| record["subjects"].as_array().cloned().unwrap_or_default());
    let digest =
        subjects.filter(|subject| subject["name"] == "stdout").map(|mut s| s["sha256"].take()).next();
    let digest = digest.unwrap_or_else(|| panic!("no digest of stdout in {shown}"));
    (json["stdout"].to_string().into_bytes(), digest)
}

#[test]
fn the_same_input_gives_the_same_output_in_every_process() {
    let home = Home::with_languages();
    let nan = home.write_beside("nan.wasm", wasm::nan().bytes());
    for flags in home.on_wasm() {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        for workload in [&["-c", CHANCE, "one"][..], &[&nan]] {
            let words = [&flags[..], &["--deterministic"], workload].concat();
            let (first, second) = (output(&home, &words), output(&home, &words));
            assert_eq!(first, second);
            assert_eq!(first.1.as_str().map(str::len), Some(64), "{}", first.1);
        }
    }
    // Without asking for it, it is not so: the program does look at what changes.
    let words = ["--on", "container+wasm", "-c", CHANCE, "one"];
    assert_ne!(output(&home, &words), output(&home, &words));
    home.nothing_left();
}

/// In which pieces the input arrives is nothing that a deterministic call can see.
#[test]
fn input_comes_in_the_same_pieces() {
    let home = Home::with_languages();
    let code = "import os
sizes = []
while piece := os.read(0, 1 << 20): sizes.append(len(piece))
print(sizes)";
    let words = ["--on", "container+wasm", "--deterministic", "-c", code];
    let text = "x".repeat(300_000);
    let in_pieces = |pause: Duration| {
        let mut command = home.run_command(&words);
        command.stdin(std::process::Stdio::piped());
        let mut run = Running::start(command);
        for piece in text.as_bytes().chunks(70_001) {
            run.feed(piece);
            std::thread::sleep(pause);
        }
        run.finish().expect(0).out()
    };
    assert_eq!(in_pieces(Duration::ZERO), in_pieces(Duration::from_millis(60)));
    let done = home.run(&["--on", "container+wasm", "--deterministic", "--out", "/work/x:x", "-c", "1"]);
    done.refused("a deterministic run has no files");
    home.nothing_left();
}

/// Calls of the host burn no fuel.
#[test]
fn in_deterministic_mode_the_host_does_not_work_for_ever() {
    on_each_stack(async |rig, stack| {
        let busy = "(module
          (import \"wasi_snapshot_preview1\" \"random_get\" (func $random (param i32 i32) (result i32)))
          (memory (export \"memory\") 100)
          (func (export \"_start\") (loop $again (drop (call $random (i32.const 0) (i32.const 6000000))) (br $again))))";
        let call = cell(rig, stack).component(&wasm::from_text("busy.wasm", busy), &[]);
        let call = call.grant(Capability::Random).deterministic();
        let ran = call.cpu_time("100ms").timeout("20s").run().await;
        assert!(
            matches!(ran.outcome.status, Status::Killed { cause: Cause::CpuTime, .. }),
            "{}",
            ran.story()
        );
        assert!(ran.took < Duration::from_secs(10), "{}", ran.story());
    });
}

/// There are places for 256 calls in a worker.
#[test]
fn more_calls_than_there_are_places_wait_for_one() {
    on_each_stack(async |rig, stack| {
        let call = || cell(rig, stack).component(&wasm::poll(), &["short"]).grant(Capability::Clocks);
        let mut calls: Vec<_> = (0..300).map(|_| Box::pin(call().timeout("30s").run())).collect();
        // All of them at once.
        std::future::poll_fn(|context| {
            calls.retain_mut(|call| match call.as_mut().poll(context) {
                Poll::Ready(ran) => {
                    assert_eq!(ran.code(), Some(20), "{}", ran.story());
                    false
                }
                Poll::Pending => true,
            });
            if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
}

#[test]
fn in_deterministic_mode_instructions_are_the_processor_time() {
    on_each_stack(async |rig, stack| {
        let spin = || cell(rig, stack).component(&wasm::endless_loop(), &[]).deterministic().timeout("30s");
        let ran = spin().cpu_time("100ms").run().await;
        assert!(
            matches!(ran.outcome.status, Status::Killed { cause: Cause::CpuTime, .. }),
            "{}",
            ran.story()
        );
        // Enough for the one that ends, whatever the machine does meanwhile.
        let ends = || cell(rig, stack).component(&wasm::spin(), &[]).deterministic();
        assert_eq!(ends().cpu_time("1s").run().await.code(), Some(20));
        let short = ends().cpu_time("10ms").run().await;
        assert!(
            matches!(short.outcome.status, Status::Killed { cause: Cause::CpuTime, .. }),
            "{}",
            short.story()
        );
    });
}

#[test]
fn tenants_share_neither_workers_nor_code() {
    on_each_stack(async |rig, stack| {
        let call = |tenant: &'static str| cell(rig, stack).tenant(tenant).component(&wasm::nan(), &[]).run();
        let (one, again) = (call("one").await, call("one").await);
        let two = call("two").await;
        assert_eq!(worker(rig, &one), worker(rig, &again), "a tenant keeps its worker");
        assert_ne!(worker(rig, &one), worker(rig, &two), "and another one never has it");
        let traces = Traces::of(rig.run_id());
        assert_eq!(traces.running("casemate-wasm").len(), 2, "{traces:?}");
        for tenant in ["one", "two"] {
            let directory = rig.home().join("wasm/compiled").join(tenant);
            assert_eq!(std::fs::read_dir(&directory).expect("compiled code").count(), 1, "{tenant}");
        }
        // What a call must not share, it has alone.
        let alone = cell(rig, stack).tenant("one").component(&wasm::nan(), &[]).out("/work/x").run().await;
        assert_eq!(worker(rig, &alone), Value::Null);
    });
}

/// Compilers of an engine, seen by their processes.
fn compilers(rig: &Rig) -> BTreeSet<u32> {
    Traces::of(rig.run_id()).running("casemate-wasm-compile")
}

#[test]
fn what_many_ask_for_at_once_is_compiled_once() {
    on_each_stack(async |rig, stack| {
        let component = wasm::heavy(3000, 7);
        let call = |_| cell(rig, stack).component(&component, &[]).run();
        let mut seen = BTreeSet::new();
        let watch = async {
            loop {
                seen.extend(compilers(rig));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let calls = async { tokio::join!(call(1), call(2), call(3), call(4), call(5), call(6)) };
        let ran = tokio::select! {
            () = watch => unreachable!("it watches for ever"),
            ran = calls => ran,
        };
        for ran in [&ran.0, &ran.1, &ran.2, &ran.3, &ran.4, &ran.5] {
            assert_eq!(ran.code(), Some(0), "{}", ran.story());
        }
        assert_eq!(seen.len(), 1, "compilers: {seen:?}");
    });
}

/// Whoever asked first has lost interest; the others get what they asked for.
#[test]
fn a_compilation_that_is_given_up_goes_and_can_be_asked_for_again() {
    on_each_stack(async |rig, stack| {
        let component = wasm::heavy(20_000, 8);
        let call = || cell(rig, stack).component(&component, &[]).run();
        tokio::select! {
            ran = call() => panic!("compiled too soon: {}", ran.story()),
            () = async { while compilers(rig).is_empty() { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
        }
        for _ in 0..400 {
            if compilers(rig).is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(compilers(rig).is_empty(), "the compiler goes on although nobody waits for it");
        // Whoever waited as well gets it, and who asks for it again.
        let component = wasm::heavy(3000, 9);
        let call = || cell(rig, stack).component(&component, &[]).run();
        let started = async {
            while compilers(rig).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await
            }
        };
        let waiting = call();
        let given_up = async {
            tokio::select! {
                ran = call() => panic!("compiled too soon: {}", ran.story()),
                () = started => {}
            }
        };
        let ((), waited) = tokio::join!(given_up, waiting);
        assert_eq!(waited.code(), Some(0), "{}", waited.story());
        assert_eq!(call().await.code(), Some(0));
    });
}

/// Every kind of process that a call has is gone with the `casemate` that was killed, and the next one tidies up.
#[test]
fn nothing_outlives_a_killed_casemate() {
    let home = Home::with_languages();
    let bomb = home.write_beside("bomb.wasm", wasm::compile_bomb(3).bytes());
    let wait = "import time; print('ready', flush=True); time.sleep(100)";
    for flags in home.on_wasm() {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let start = |words: &[&str]| Running::start(home.run_command(&[&flags[..], words].concat()));
        let mut call = start(&["--timeout", "200s", "-c", wait]);
        call.wait_for_output("ready");
        killed(&home, call);
        let own = format!("/work/x:{}", home.beside("x").display());
        let mut alone = start(&["--timeout", "200s", "--out", &own, "-c", wait]);
        alone.wait_for_output("ready");
        killed(&home, alone);
        let compiling = start(&[&bomb]);
        eventually("a compiler runs", Duration::from_secs(20), || payloads(&compiling) == 2);
        killed(&home, compiling);
    }
    assert_eq!(home.verify()["open"], json!([]));
}

/// How many programs run in cells of this `casemate`: its launchers' children are guests, and their children those. (A user
/// without privileges cannot even see what they are called.)
fn payloads(run: &Running) -> usize {
    let all = processes();
    let children = |parents: BTreeSet<i32>| -> BTreeSet<i32> {
        all.iter().filter(|process| parents.contains(&process.parent)).map(|process| process.pid).collect()
    };
    children(children(children([run.pid().as_raw_nonzero().get()].into()))).len()
}

fn killed(home: &Home, run: Running) {
    home.runs();
    run.signal(Signal::KILL);
    run.finish().expect(137);
    home.soon_no_process_left(&BTreeSet::new());
    home.run(&["--on", "container+wasm", "-c", "print(1)"]).expect(0);
    home.nothing_left();
}
