//! A WASM worker that was taken over: arbitrary native code in its place. It finds itself behind the outer wall, and whatever it
//! says on its line fails only its own calls, never as the caller's fault. The attack suite runs every probe in its place, too.

use std::time::{Duration, Instant};

use casemate_testkit::{
    Bait, HOSTILE_WORKER, PROBE, Ran, Rig, Stack, Status, Wall, cell, on_wasm_stacks, wasm,
};

fn on_each_stack(test: impl AsyncFn(&Rig, &Stack)) {
    on_each_stack_with(HOSTILE_WORKER, test);
}

fn on_each_stack_with(worker: &[u8], test: impl AsyncFn(&Rig, &Stack)) {
    on_wasm_stacks(|| Rig::with_worker(worker), test);
}

/// A call of this tenant, which the worker that was taken over answers in the way that the words say.
async fn call(rig: &Rig, stack: &Stack, tenant: &str, words: &[&str]) -> Ran {
    let call = cell(rig, stack).tenant(tenant).component(&wasm::nothing(), words).timeout("5s");
    match words {
        ["probe", ..] => call.stdin(PROBE).run().await,
        _ => call.run().await,
    }
}

#[track_caller]
fn failed(ran: &Ran) {
    assert!(matches!(ran.outcome.status, Status::Failed { .. }), "{}", ran.story());
}

#[test]
fn it_finds_itself_behind_the_outer_wall() {
    on_each_stack(async |rig, stack| {
        let ran = call(rig, stack, "one", &["look"]).await;
        let out = ran.out();
        let line = |name: &str| {
            let found = out.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.unwrap_or_else(|| panic!("{name} is not in {}", ran.story())).trim().to_owned()
        };
        assert_eq!((line("shadow").as_str(), line("home").as_str()), ("no", ""));
        assert!(line("connect").starts_with("Err"), "{}", line("connect"));
        assert!(!line("env").contains("SECRET") && !line("env").contains("CARGO"), "{}", line("env"));
        let processes = line("proc").split_whitespace().filter(|name| name.parse::<u32>().is_ok()).count();
        assert!(processes <= 2, "at most the guest and itself: {}", line("proc"));
        // What it is was read from outside before its first instruction.
        let records = rig.records(&ran.outcome.id);
        let worker = records.last().expect("a record").entry.body["observed"]["worker"].clone();
        let worker = rig.records(worker.as_str().expect("the record names the worker"));
        let seen = &worker.first().expect("the worker has a record").entry.body["observed"];
        assert_ne!(seen["uid"].as_u64(), Some(0), "{seen}");
        if stack.outermost() == Wall::Gvisor {
            // There, it is the kernel that was looked at, which has what a kernel needs, in namespaces of its own.
            assert_eq!(seen["namespaces"]["host"], serde_json::json!([]), "{seen}");
        } else {
            for set in ["effective", "permitted", "inheritable", "ambient"] {
                assert_eq!(seen["capabilities"][set].as_u64(), Some(0), "{set} in {seen}");
            }
        }
        assert_eq!(
            (&seen["no_new_privs"], seen["seccomp"]["mode"].as_u64()),
            (&true.into(), Some(2)),
            "{seen}"
        );
    });
}

/// The same probes that are tried on native cells, here for what matters most.
#[test]
fn it_reaches_neither_files_nor_processes_nor_a_network() {
    let bait = Bait::lay();
    on_each_stack(async |rig, stack| {
        let (file, port, pid) = (bait.secret_file(), bait.port.to_string(), bait.pid().to_string());
        let attempts: [&[&str]; 7] = [
            &["read-host-file", &file, &bait.marker],
            &["host-loopback", &port, &bait.marker],
            &["host-pids", &pid, &bait.marker],
            &["environ-secret", &bait.secret],
            &["unshare-user"],
            &["mount"],
            &["tcp-out"],
        ];
        for attempt in attempts {
            let words = [&["probe"], attempt].concat();
            let ran = call(rig, stack, "one", &words).await;
            assert_eq!(ran.code(), Some(10), "{attempt:?} on {stack}: {}", ran.story());
        }
    });
    assert!(bait.is_untouched());
}

#[test]
fn a_worker_that_breaks_the_protocol_fails_its_calls_and_is_replaced() {
    on_each_stack(async |rig, stack| {
        for words in ["nonsense", "a-frame-too-large", "die", "speak-as-a-guest", "flood-data"] {
            let (broken, beside) = ([words], ["probe", "unshare-user"]);
            let (broken, other) =
                tokio::join!(call(rig, stack, "one", &broken), call(rig, stack, "two", &beside));
            failed(&broken);
            assert_eq!(other.code(), Some(10), "another tenant, beside {words}: {}", other.story());
            // Until it is replaced, a second at most, it may fail other calls of its tenant.
            tokio::time::sleep(Duration::from_millis(1200)).await;
            let next = call(rig, stack, "one", &[]).await;
            assert_eq!(next.code(), Some(0), "after {words}: {}", next.story());
        }
    });
}

/// Everything that is not data, as fast as it can, for as long as it may.
#[test]
fn a_flood_does_not_fill_the_engine() {
    on_each_stack(async |rig, stack| {
        for words in ["flood-messages", "flood-ends", "flood-nothing", "flood-loaded", "flood-data"] {
            let before = resident();
            let flooded = async {
                let began = Instant::now();
                // A receiver that takes its time, while more and more arrives.
                let ran = cell(rig, stack)
                    .tenant("one")
                    .component(&wasm::nothing(), &[words])
                    .timeout("1500ms")
                    .slowly(Duration::from_millis(50))
                    .run()
                    .await;
                assert!(began.elapsed() < Duration::from_secs(5), "{words}: {}", ran.story());
                ran
            };
            let others = async {
                for _ in 0..5 {
                    tokio::time::sleep(Duration::from_millis(150)).await;
                    let other = call(rig, stack, "two", &[]).await;
                    assert_eq!(other.code(), Some(0), "beside {words}: {}", other.story());
                    assert!(other.took < Duration::from_secs(1), "beside {words}: {:?}", other.took);
                }
            };
            let (ran, ()) = tokio::join!(flooded, others);
            // It never says that it is done: its time runs out, unless it broke the rules before.
            assert!(ran.code().is_none(), "{words}: {}", ran.story());
            let grown = resident().saturating_sub(before);
            assert!(grown < 96 << 20, "{words}: the engine grew by {} MiB", grown >> 20);
            // It has a second to give up the call; then it is replaced.
            tokio::time::sleep(Duration::from_millis(1200)).await;
            assert_eq!(call(rig, stack, "one", &[]).await.code(), Some(0), "after {words}");
        }
    });
}

#[test]
fn answers_that_nobody_asked_for_reach_nobody() {
    on_each_stack(async |rig, stack| {
        let quiet = async {
            let ran = cell(rig, stack)
                .tenant("two")
                .component(&wasm::nothing(), &["silence"])
                .timeout("700ms")
                .run()
                .await;
            assert!(matches!(ran.outcome.status, Status::Killed { .. }), "forged: {}", ran.story());
            assert!(ran.stdout.is_empty(), "forged: {}", ran.story());
        };
        let forging = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let ran = call(rig, stack, "one", &["answer-others"]).await;
            assert_eq!((ran.code(), ran.stdout.len()), (Some(7), 0), "{}", ran.story());
        };
        tokio::join!(quiet, forging);
        let twice = call(rig, stack, "one", &["answer-twice"]).await;
        assert_eq!((twice.code(), twice.stdout.len()), (Some(7), 0), "{}", twice.story());
    });
}

/// What a worker says about usage is its word; it must not break the sums.
#[test]
fn absurd_numbers_do_no_harm() {
    on_each_stack(async |rig, stack| {
        let ran = call(rig, stack, "one", &["lie-about-usage"]).await;
        assert!(
            ran.code() == Some(7) || matches!(ran.outcome.status, Status::Failed { .. }),
            "{}",
            ran.story()
        );
        assert_eq!(call(rig, stack, "one", &[]).await.code(), Some(0));
    });
}

#[test]
fn a_worker_that_never_answers_costs_only_the_time_of_its_calls() {
    on_each_stack(async |rig, stack| {
        let began = Instant::now();
        let ran = cell(rig, stack).component(&wasm::nothing(), &["silence"]).timeout("300ms").run().await;
        assert!(matches!(ran.outcome.status, Status::Killed { .. }), "{}", ran.story());
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(1500)).await;
        // It did not give the call up, so it was replaced.
        assert_eq!(cell(rig, stack).component(&wasm::nothing(), &[]).run().await.code(), Some(0));
    });
}

#[test]
fn a_worker_that_never_says_that_it_has_loaded_is_replaced() {
    on_each_stack(async |rig, stack| {
        let ran = cell(rig, stack).component(&wasm::nothing(), &[]).deterministic().run().await;
        failed(&ran);
        assert!(ran.took < Duration::from_secs(15), "{}", ran.story());
        assert_eq!(call(rig, stack, "one", &[]).await.code(), Some(0));
    });
}

/// A program that is no worker at all.
#[test]
fn a_worker_that_ends_at_once_fails_the_call_and_says_so() {
    on_each_stack_with(PROBE, async |rig, stack| {
        let ran = call(rig, stack, "one", &[]).await;
        failed(&ran);
        assert!(ran.story().contains("the WASM worker"), "{}", ran.story());
    });
}

/// Memory that this process has now.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}
