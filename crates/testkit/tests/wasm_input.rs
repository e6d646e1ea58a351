//! Components and modules that make no sense, or mean harm: each is refused with a reason and a hint (or ends as it deserves), and the
//! worker that serves the tenant is the same, and well, afterwards.

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_core::request::Component;
use casemate_testkit::{
    Capability, Cause, CellBuilder, LimitKind, Ran, Rig, Stack, Status, cell, is_root, on_wasm_stacks, wasm,
};
use common::Home;

fn on_each_stack(test: impl AsyncFn(&Rig, &Stack)) {
    on_wasm_stacks(Rig::open, test);
}

async fn run(rig: &Rig, stack: &Stack, component: &Component) -> Ran {
    cell(rig, stack).component(component, &[]).run().await
}

/// Which worker a call had.
fn worker(rig: &Rig, ran: &Ran) -> String {
    rig.worker_of(&ran.outcome.id).to_string()
}

#[track_caller]
fn refused(ran: &Ran, words: &str) {
    let refusal = ran.refusal().unwrap_or_else(|| panic!("not refused: {}", ran.story()));
    assert!(refusal.reason.contains(words), "{words:?} in {:?}", refusal.reason);
    assert!(!refusal.hint.is_empty() && !refusal.reason.contains('\n'), "{refusal:?}");
}

#[test]
fn what_makes_no_sense_is_refused_and_the_worker_stays_well() {
    on_each_stack(async |rig, stack| {
        let before = worker(rig, &run(rig, stack, &wasm::nothing()).await);
        let whole = wasm::echo().bytes().to_vec();
        let truncated = wasm::from_bytes("truncated.wasm", whole[..whole.len() / 2].to_vec());
        refused(&run(rig, stack, &truncated).await, "truncated.wasm cannot be compiled");
        let bare = wasm::from_bytes("bare.wasm", b"\0asm".to_vec());
        refused(&run(rig, stack, &bare).await, "neither a WASM module nor a component");
        let version = wasm::from_bytes("future.wasm", b"\0asm\x02\0\0\0".to_vec());
        refused(&run(rig, stack, &version).await, "cannot be compiled");
        let invalid =
            wasm::from_text("invalid.wasm", "(module (func (export \"_start\") (result i32) (i64.const 1)))");
        refused(&run(rig, stack, &invalid).await, "invalid.wasm cannot be compiled");
        let worlds = [
            ("(component)", "nothing"),
            ("(module (memory (export \"memory\") 1))", "does not export _start"),
            (
                "(component (core module $m (func (export \"f\"))) (core instance $i (instantiate $m)) (func (export \"go\") (canon lift (core func $i \"f\"))))",
                "go",
            ),
        ];
        for (text, about) in worlds {
            refused(&run(rig, stack, &wasm::from_text("wrong.wasm", text)).await, about);
        }
        let trapped = run(rig, stack, &wasm::traps()).await;
        assert_eq!(trapped.outcome.status, Status::Signaled { signal: 4 }, "{}", trapped.story());
        // The start function of a module runs before anything is called.
        let eager = wasm::from_text(
            "eager.wasm",
            "(module (memory (export \"memory\") 1) (func $f unreachable) (start $f) (func (export \"_start\")))",
        );
        assert_eq!(run(rig, stack, &eager).await.outcome.status, Status::Signaled { signal: 4 });
        let after = run(rig, stack, &wasm::nothing()).await;
        assert_eq!((after.code(), worker(rig, &after)), (Some(0), before), "{}", after.story());
    });
}

#[test]
fn an_import_that_was_not_granted_is_named_before_anything_runs() {
    on_each_stack(async |rig, stack| {
        refused(&run(rig, stack, &wasm::poll()).await, "wasi_snapshot_preview1.poll_oneoff");
        refused(&run(rig, stack, &wasm::random()).await, "wasi_snapshot_preview1.random_get");
        refused(&run(rig, stack, &wasm::http()).await, "wasi:http/types@0.2.0");
        let foreign = "(module (import \"env\" \"system\" (func)) (memory (export \"memory\") 1) (func (export \"_start\")))";
        refused(&run(rig, stack, &wasm::from_text("foreign.wasm", foreign)).await, "env.system");
        let socket = "(module (import \"wasi_snapshot_preview1\" \"sock_shutdown\" (func (param i32 i32) (result i32))) (memory (export \"memory\") 1) (func (export \"_start\")))";
        refused(&run(rig, stack, &wasm::from_text("socket.wasm", socket)).await, "sock_shutdown");
        // A grant of one thing is no grant of another.
        let other = cell(rig, stack).component(&wasm::random(), &[]).grant(Capability::Clocks).run().await;
        refused(&other, "random_get");
        let granted =
            cell(rig, stack).component(&wasm::poll(), &["short"]).grant(Capability::Clocks).run().await;
        assert_eq!(granted.code(), Some(20), "{}", granted.story());
    });
}

/// Whatever becomes of one, the worker goes on: another call of the same tenant is in it all the while.
#[test]
fn what_cannot_be_called_does_not_disturb_a_call_that_goes_on() {
    on_each_stack(async |rig, stack| {
        // More than a message has room for.
        let imports = |count: u32| {
            let name = "x".repeat(100);
            let imports: String = (0..count).map(|n| format!("(import \"{name}\" \"{n}\" (func))")).collect();
            let text =
                format!("(module {imports} (memory (export \"memory\") 1) (func (export \"_start\")))");
            wasm::from_text("imports.wasm", &text)
        };
        let exports: String =
            (0..2000).map(|n| format!("(export \"{}{n}\" (func $f))", "y".repeat(100))).collect();
        let exports = format!(
            "(component (core module $m (func (export \"f\"))) (core instance $i (instantiate $m)) (func $f (canon lift (core func $i \"f\"))) {exports})"
        );
        let memories = format!("(module {} (func (export \"_start\")))", "(memory 1)".repeat(60));
        let disturbing = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            refused(&run(rig, stack, &wasm::random()).await, "random_get");
            refused(&run(rig, stack, &imports(900)).await, "imports");
            refused(&run(rig, stack, &imports(30_000)).await, "imports");
            refused(&run(rig, stack, &wasm::from_text("exports.wasm", &exports)).await, "exports");
            refused(
                &run(rig, stack, &wasm::from_text("memories.wasm", &memories)).await,
                "memories.wasm cannot be",
            );
            for n in 0..70 {
                let invalid = format!("(module (func (export \"_start\") (result i32) (i64.const {n})))");
                refused(
                    &run(rig, stack, &wasm::from_text("invalid.wasm", &invalid)).await,
                    "cannot be compiled",
                );
            }
        };
        let spinning =
            cell(rig, stack).component(&wasm::endless_loop(), &[]).timeout("4s").cpu_time("10s").run();
        let (ran, ()) = tokio::join!(spinning, disturbing);
        let in_time = matches!(ran.outcome.status, Status::Killed { cause: Cause::WallTime, .. });
        assert!(in_time, "{}", ran.story());
        // What the worker had to say about it when it was given up.
        assert!(
            ran.outcome.usage.cpu.is_some_and(|cpu| cpu > Duration::from_secs(1)),
            "{:?}",
            ran.outcome.usage
        );
    });
}

#[test]
fn a_component_has_the_files_that_it_was_granted_and_no_others() {
    on_each_stack(async |rig, stack| {
        let call = |component: Component, words: &'static [&'static str]| {
            cell(rig, stack).component(&component, words)
        };
        let code = async |cell: CellBuilder<'_>| cell.run().await.code();
        // Not even an empty directory, in a worker that others share or in one of its own (for which it takes a cgroup to ask).
        if is_root() {
            assert_eq!(code(call(wasm::create(), &[]).limit(LimitKind::Cpus, "1")).await, Some(30));
        }
        assert_eq!(code(call(wasm::create(), &[])).await, Some(30));
        // What it is given it can read, and not change.
        let given = || cell(rig, stack).file("/work/given", 0o666, b"x");
        assert_eq!(code(given().component(&wasm::open(), &["given"])).await, Some(20));
        assert_eq!(code(given().component(&wasm::create(), &[])).await, Some(10));
        // Where it is to leave something, it can write.
        assert_eq!(code(call(wasm::create(), &[]).out("/work/new")).await, Some(20));
    });
}

/// A name is repeated for every frame of a backtrace.
#[test]
fn long_names_do_not_become_long_stories() {
    on_each_stack(async |rig, stack| {
        let recursive = |length: usize| {
            let name = "n".repeat(length);
            let text = format!(
                "(module (memory (export \"memory\") 1) (func $f (@name \"{name}\") (export \"_start\") (call $f)))"
            );
            wasm::from_text("name.wasm", &text)
        };
        refused(&run(rig, stack, &recursive(1 << 20)).await, "a name of 1048576 bytes");
        let ran = run(rig, stack, &recursive(10_000)).await;
        assert_eq!(ran.outcome.status, Status::Signaled { signal: 11 }, "{}", ran.story());
        assert!(ran.stderr.len() < 20_000, "{} bytes", ran.stderr.len());
    });
}

#[test]
fn memory_is_counted_as_it_is_had() {
    on_each_stack(async |rig, stack| {
        // Beyond its own maximum it gets no more, and is told so; nothing of that counts.
        let modest = wasm::from_text(
            "modest.wasm",
            "(module (memory (export \"memory\") 1 2) (func (export \"_start\") (local $n i32)
              (loop $again
                (if (i32.ne (memory.grow (i32.const 1000)) (i32.const -1)) (then unreachable))
                (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 100))))
              (if (i32.eq (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))))",
        );
        let ran = cell(rig, stack).component(&modest, &[]).memory("16M").run().await;
        assert_eq!((ran.code(), ran.outcome.usage.memory_peak), (Some(0), Some(2 << 16)), "{}", ran.story());
        // Who is stopped for something else had it all the same.
        let greedy = wasm::from_text(
            "greedy.wasm",
            "(module (memory (export \"memory\") 100) (func (export \"_start\") (loop $again (br $again))))",
        );
        let ran = cell(rig, stack).component(&greedy, &[]).cpu_time("200ms").run().await;
        assert!(
            matches!(ran.outcome.status, Status::Killed { cause: Cause::CpuTime, .. }),
            "{}",
            ran.story()
        );
        assert_eq!(ran.outcome.usage.memory_peak, Some(100 << 16), "{}", ran.story());
    });
}

/// Sections that mean nothing may hold anything.
#[test]
fn hostile_custom_sections_do_no_harm() {
    on_each_stack(async |rig, stack| {
        let module = |sections: &[(&str, &[u8])]| {
            let mut bytes = wasm::nothing().bytes().to_vec();
            for (name, content) in sections {
                let body = [&[name.len() as u8], name.as_bytes(), content].concat();
                bytes.push(0);
                let mut length = body.len();
                while length >= 0x80 {
                    bytes.push((length & 0x7f) as u8 | 0x80);
                    length >>= 7;
                }
                bytes.push(length as u8);
                bytes.extend(body);
            }
            wasm::from_bytes("sections.wasm", bytes)
        };
        let names = [1u8, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0xff];
        let many = vec![("name", &names[..]); 20_000];
        let large = vec![0xa5u8; 16 << 20];
        for component in [
            module(&[("name", &names), ("producers", &[0xff; 64]), ("dylink.0", &[0xff; 64])]),
            module(&[
                (".debug_info", &[0xff; 4096]),
                (".debug_line", &[1; 4096]),
                ("sourceMappingURL", b"file:///etc/shadow"),
            ]),
            module(&[
                ("component-type:x", &[0; 100]),
                ("casemate", b"trust me"),
                (".wasmtime.engine", &[0; 100]),
            ]),
            module(&many),
            module(&[("padding", &large)]),
        ] {
            let ran = run(rig, stack, &component).await;
            assert_eq!(ran.code(), Some(0), "{}", ran.story());
        }
        let mut beyond = wasm::nothing().bytes().to_vec();
        beyond.extend([0, 0xff, 0xff, 0xff, 0x7f, 4, b'n', b'a', b'm', b'e']);
        refused(&run(rig, stack, &wasm::from_bytes("beyond.wasm", beyond)).await, "cannot be compiled");
    });
}

/// Compiled code of this tenant in the home, of which there must be one file.
fn cached(home: &Path, tenant: &str) -> PathBuf {
    let directory = home.join("wasm/compiled").join(tenant);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&directory).expect("compiled code").flatten().map(|entry| entry.path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// One process compiles and keeps; each of the next ones finds something else than what was kept, and must not load it.
#[test]
fn compiled_code_with_one_byte_changed_is_compiled_anew() {
    let home = Home::new();
    let program = home.write_beside("nan.wasm", wasm::nan().bytes());
    let words = ["--on", "container+wasm", &program];
    let said = home.run(&words).expect(0).stdout;
    let path = cached(&home.path(), "local");
    let kept = std::fs::read(&path).expect("compiled code");
    let damage = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = kept.clone();
        change(&mut bytes);
        // Another file in its place: what is there may be open elsewhere.
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(home.run(&words).expect(0).stdout, said);
        assert!(
            std::fs::read(cached(&home.path(), "local")).expect("compiled code") == kept,
            "not compiled anew"
        );
    };
    let length = kept.len();
    for at in [0, 1, 31, 32, 33, 40, length / 3, length / 2, length - 4096, length - 1] {
        damage(&|bytes| bytes[at] ^= 1 << (at % 8));
    }
    damage(&|bytes| bytes.truncate(length - 1));
    damage(&|bytes| bytes.truncate(16));
    damage(&Vec::clear);
    damage(&|bytes| bytes.push(0));
    // What another tenant had compiled is not this one's, although it was made by the same compiler with the same key.
    home.run(&[&words[..2], &["--tenant", "other"], &words[2..]].concat()).expect(0);
    let other = std::fs::read(cached(&home.path(), "other")).expect("compiled code");
    assert!(other[32..] == kept[32..] && other[..32] != kept[..32], "the same code, but vouched for apart");
    damage(&|bytes| bytes.clone_from(&other));
    // Without the key, nothing that is there counts.
    std::fs::remove_file(home.path().join("keys/wasm-cache.key")).expect("removed");
    assert_eq!(home.run(&words).expect(0).stdout, said);
    assert!(std::fs::read(cached(&home.path(), "local")).expect("compiled code")[..32] != kept[..32]);
    home.nothing_left();
}

#[test]
fn compiled_code_is_not_taken_for_a_module() {
    let home = Home::new();
    let program = home.write_beside("nothing.wasm", wasm::nothing().bytes());
    home.run(&["--on", "container+wasm", &program]).expect(0);
    let kept = std::fs::read(cached(&home.path(), "local")).expect("compiled code");
    let compiled = home.write_beside("compiled.wasm", &kept[32..]);
    home.run(&["--on", "container+wasm", &compiled]).refused("is not WASM");
    // Not even with the beginning of a module.
    let disguised = home.write_beside("disguised.wasm", [b"\0asm\x01\0\0\0", &kept[32..]].concat());
    home.run(&["--on", "container+wasm", &disguised]).refused("cannot be compiled");
    home.nothing_left();
}

#[test]
fn a_gigabyte_is_refused_before_it_is_read() {
    let home = Home::new();
    let path = home.beside("huge.wasm");
    std::fs::write(&path, b"\0asm\x01\0\0\0").expect("written");
    File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 30)).expect("a sparse file");
    for flags in home.on_wasm() {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let done = home.run(&[&flags[..], &[path.to_str().expect("UTF-8")]].concat());
        done.refused("huge.wasm");
        assert!(done.took < Duration::from_secs(2), "{:?}", done.took);
    }
    home.nothing_left();
}

#[test]
fn what_is_refused_says_so_on_the_command_line() {
    let home = Home::new();
    let text = home.write_beside("text.wasm", "(module)");
    home.run(&["--on", "container+wasm", &text]).refused("is not WASM");
    let poll = home.write_beside("poll.wasm", wasm::poll().bytes());
    let done = home.run(&["--on", "container+wasm", &poll]);
    assert!(done.refused("poll_oneoff").err().contains("--grant clocks"), "{}", done.err());
    home.run(&["--on", "container+wasm", "--grant", "clocks", &poll, "short"]).expect(20);
    home.run(&["--grant", "clocks", "--", "true"]).refused("clocks");
    home.run(&["--grant", "everything", &poll]).refused("everything");
    home.run(&["--on", "container+wasm", "--", "true"]).refused("native commands");
    home.run(&["--on", "container", &poll]).refused("cannot run WASM components");
    home.run(&["--on", "container+wasm", "--lang", "python", "-c", "1"]).refused("python");
    let traps = home.write_beside("traps.wasm", wasm::traps().bytes());
    let done = home.run(&["--on", "container+wasm", &traps]).expect(132);
    assert!(done.err().contains("unreachable"), "{}", done.err());
    home.nothing_left();
    assert_eq!(home.verify()["open"], serde_json::json!([]));
}
