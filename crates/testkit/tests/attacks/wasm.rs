//! Attacks 81–92: what a component can do to its worker, its tenant and the engine. Each runs on both stacks that end in WASM, and
//! again in a bare Wasmtime, where it must succeed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use casemate_core::request::Component;
use casemate_testkit::{Capability, CellBuilder, LimitKind, Ran, Status, Traces, cell, wasm};

use crate::bare_wasm as bare;
use crate::judged::{barely_overdrawn, in_time, killed, watched};
use crate::row::Control::{self, BareEngine, Nothing, TimeToSpare};
use crate::row::On::Held;
use crate::row::{Finding, Judge, Judged, Row, Scene, Trial};

const MIB: u64 = 1 << 20;
/// What the programs in `testkit/wasm` exit with if they got what they wanted, and if they were told no.
const GOT_IT: i32 = 20;
const TOLD_NO: i32 = 10;

const fn row(attack: &'static [u16], name: &'static str, judge: Judge, control: Control) -> Row {
    Row { attacks: attack, name, trial: Trial::Wasm { judge, on: Held(control) } }
}

pub(crate) const ROWS: &[Row] = &[
    row(&[81], "endless loop (cpu-time)", loop_by_cpu_time, BareEngine(bare::endless_loop)),
    row(&[81], "endless loop (wall-time)", loop_by_the_clock, BareEngine(bare::endless_loop)),
    row(&[82], "memory.grow", memory_grow, BareEngine(bare::memory_grow)),
    row(&[83], "table.grow", table_grow, BareEngine(bare::table_grow)),
    row(&[84], "recursion", recursion, BareEngine(bare::recursion)),
    row(&[85], "compile bomb", compile_bomb, BareEngine(bare::compile_bomb)),
    row(&[86], "huge module", huge_module, Nothing("no layer: it is not even looked at")),
    row(&[87], "long poll", long_poll, TimeToSpare),
    row(&[87], "long sleep in Python", long_sleep, TimeToSpare),
    row(&[88], "random bytes without end", random, BareEngine(bare::random)),
    row(
        &[88],
        "buffers without end",
        iovec,
        Nothing("the program has no such memory; Wasmtime looks at it first"),
    ),
    row(&[89], "handle flood", handles, BareEngine(bare::handles)),
    row(
        &[90],
        "32,769 HTTP headers",
        http,
        Nothing("wasi:http is granted to nobody: who imports it is refused by name"),
    ),
    row(&[91], "dropped calls", dropped_calls, BareEngine(bare::dropped_calls)),
    row(&[92], "out of a directory", open, BareEngine(bare::open)),
];

fn hold(held: bool, ran: &Ran) -> Result<Finding, String> {
    match ran.code() {
        Some(GOT_IT) => Ok(Finding::Escaped),
        _ if held => Ok(Finding::Held),
        _ => Err(ran.story()),
    }
}

fn loop_by_cpu_time(scene: Scene) -> Judged {
    Box::pin(async move {
        let spin = wasm::endless_loop();
        let ran = watched(&scene, |cell| cell.component(&spin, &[]).cpu_time("300ms").timeout("40s")).await?;
        barely_overdrawn(&ran, Duration::from_millis(300))?;
        killed(&ran, LimitKind::CpuTime, 300)
    })
}

fn loop_by_the_clock(scene: Scene) -> Judged {
    Box::pin(async move {
        // The first one also waits for its compiler.
        cell(&scene.rig, &scene.stack).component(&wasm::endless_loop(), &[]).timeout("300ms").run().await;
        let ran = watched(&scene, |cell| cell.component(&wasm::endless_loop(), &[]).timeout("300ms")).await?;
        in_time(&ran, Duration::from_millis(300))?;
        killed(&ran, LimitKind::WallTime, 300)
    })
}

fn memory_grow(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.component(&wasm::memory_grow(), &[]).memory("64M")).await?;
        match ran.code() {
            Some(GOT_IT) => Ok(Finding::Escaped),
            _ => killed(&ran, LimitKind::Memory, 64 * MIB),
        }
    })
}

fn table_grow(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.component(&wasm::table_grow(), &[])).await?;
        hold(ran.code() == Some(TOLD_NO) || killed(&ran, LimitKind::Memory, 256 * MIB).is_ok(), &ran)
    })
}

fn recursion(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.component(&wasm::recursion(), &[])).await?;
        hold(ran.outcome.status == Status::Signaled { signal: 11 }, &ran)
    })
}

/// Elsewhere: it takes a second to make one, and others are waiting for their turn.
pub(crate) async fn bomb(seed: u32) -> Component {
    let made = tokio::task::spawn_blocking(move || wasm::compile_bomb(seed)).await;
    made.expect("a bomb can be made")
}

/// Two bombs of one tenant. Meanwhile its own calls go on, and another tenant's, and that one can even have something compiled.
fn compile_bomb(scene: Scene) -> Judged {
    Box::pin(async move {
        let call = |tenant: &str, component: &Component| {
            cell(&scene.rig, &scene.stack).tenant(tenant).component(component, &[]).run()
        };
        let fresh = |n: u32| {
            let text = format!(
                "(module (memory (export \"memory\") 1) (func (export \"_start\")) (func (drop (i32.const {n}))))"
            );
            wasm::from_text("fresh.wasm", &text)
        };
        for tenant in ["bomber", "other"] {
            call(tenant, &wasm::nothing()).await;
        }
        // As it is without bombs, whatever else goes on on this machine.
        let (calm_call, calm_compiler) =
            (call("other", &wasm::nothing()).await.took, call("other", &fresh(u32::MAX)).await.took);
        let began = Instant::now();
        let (first, second) = (bomb(1).await, bomb(2).await);
        // One has to wait for the other, and is given up when that one is over: its compiler must go, too.
        let (bomb, another) = (call("bomber", &first), call("bomber", &second));
        let compiled = AtomicU32::new(0);
        let bystanders = async {
            for n in 0u32.. {
                tokio::time::sleep(Duration::from_millis(200)).await;
                for tenant in ["bomber", "other"] {
                    let ran = call(tenant, &wasm::nothing()).await;
                    if ran.code() != Some(0) || ran.took > Duration::from_secs(1).max(10 * calm_call) {
                        return format!("a call of {tenant} suffered: {}", ran.story());
                    }
                }
                let ran = call("other", &fresh(n)).await;
                // Two compilers at a time, and as many processors: others may want these, too.
                if ran.code() != Some(0) || ran.took > Duration::from_secs(5).max(10 * calm_compiler) {
                    return format!("another tenant's compiler suffered: {}", ran.story());
                }
                compiled.fetch_add(1, Ordering::Relaxed);
            }
            String::new()
        };
        let bomb = tokio::select! {
            bomb = bomb => bomb,
            bomb = another => bomb,
            suffered = bystanders => return Err(suffered),
        };
        if compiled.load(Ordering::Relaxed) == 0 {
            return Err("while the bomb was compiled, nobody else's code was".into());
        }
        let told =
            bomb.refusal().is_some_and(|no| no.reason.contains("too much to compile") && !no.hint.is_empty());
        if !told || began.elapsed() > Duration::from_secs(150) {
            return Err(bomb.story());
        }
        let rest = Traces::settled(scene.rig.run_id(), Duration::from_secs(5)).await;
        match rest {
            Ok(rest) if rest.processes.iter().all(|(_, command)| !command.contains("wasm-compile")) => {
                Ok(Finding::Held)
            }
            rest => Err(format!("a compiler goes on: {rest:?}")),
        }
    })
}

fn huge_module(scene: Scene) -> Judged {
    Box::pin(async move {
        let mut bytes = wasm::nothing().bytes().to_vec();
        // A custom section of zeros, for as far as it goes.
        bytes.resize((64 << 20) + 1, 0);
        let began = Instant::now();
        match Component::new("huge.wasm", bytes) {
            Ok(_) => Err("accepted".into()),
            Err(_) if began.elapsed() > Duration::from_secs(1) => Err("refused too late".into()),
            Err(_) => {
                let ran = cell(&scene.rig, &scene.stack).run().await;
                hold(ran.code() == Some(0), &ran)
            }
        }
    })
}

/// With time to spare it comes back.
fn waits(scene: Scene, describe: fn(CellBuilder<'_>, bool) -> CellBuilder<'_>) -> Judged {
    Box::pin(async move {
        let spare = scene.time_to_spare;
        let limit = if spare { "20s" } else { "300ms" };
        // The first one also waits for its compiler.
        describe(cell(&scene.rig, &scene.stack), spare).timeout(limit).run().await;
        let ran = watched(&scene, |cell| describe(cell, spare).timeout(limit)).await?;
        if ran.code() == Some(GOT_IT) {
            return Ok(Finding::Escaped);
        }
        in_time(&ran, Duration::from_millis(300))?;
        killed(&ran, LimitKind::WallTime, 300)
    })
}

fn long_poll(scene: Scene) -> Judged {
    waits(scene, |cell, spare| {
        cell.component(&wasm::poll(), if spare { &["short"] } else { &[] }).grant(Capability::Clocks)
    })
}

fn long_sleep(scene: Scene) -> Judged {
    waits(scene, |cell, spare| {
        let seconds = if spare { "0.05" } else { "3600" };
        cell.python("import sys, time; time.sleep(float(sys.argv[1])); exit(20)", &[seconds])
    })
}

/// However much is asked for, the worker does not grow.
fn random(scene: Scene) -> Judged {
    Box::pin(async move {
        for program in [wasm::random(), wasm::random_all()] {
            let ran = watched(&scene, |cell| {
                cell.component(&program, &[]).grant(Capability::Random).memory("512M")
            })
            .await?;
            let told = matches!(ran.outcome.status, Status::Signaled { .. }) || ran.code() == Some(TOLD_NO);
            if hold(told, &ran)? == Finding::Escaped {
                return Ok(Finding::Escaped);
            }
            stays_small(&scene)?;
        }
        Ok(Finding::Held)
    })
}

fn iovec(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.component(&wasm::iovec(), &[]).stdin("x")).await?;
        stays_small(&scene)?;
        let told = matches!(ran.outcome.status, Status::Signaled { .. }) || ran.code() == Some(TOLD_NO);
        hold(told, &ran)
    })
}

/// The most that a worker has ever had of memory.
fn stays_small(scene: &Scene) -> Result<(), String> {
    let traces = Traces::of(scene.rig.run_id());
    let workers = traces.processes.iter().filter(|(_, command)| command.contains("casemate-wasm"));
    for (pid, _) in workers {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        let peak: u64 = peak.ok_or("the worker's memory cannot be read")?;
        if peak > 400 << 10 {
            return Err(format!("the worker had {peak} kB"));
        }
    }
    Ok(())
}

fn handles(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.component(&wasm::handles(), &[])).await?;
        stays_small(&scene)?;
        match &ran.outcome.status {
            Status::Exited { code: 0 } => Ok(Finding::Escaped),
            status => {
                let named = ran.outcome.limits_hit.iter().any(|hit| hit.kind == LimitKind::OpenFiles);
                hold(named && *status == Status::Signaled { signal: 6 }, &ran)
            }
        }
    })
}

fn http(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.component(&wasm::http(), &[])).await?;
        let named = ran.refusal().is_some_and(|no| no.reason.contains("wasi:http/types@0.2.0"));
        hold(named && ran.refusal().is_some_and(|no| !no.hint.is_empty()), &ran)
    })
}

/// More calls are given up in the middle than there are places for instances: each gave its place back, and the worker is
/// still the same.
fn dropped_calls(scene: Scene) -> Judged {
    Box::pin(async move {
        let call =
            || cell(&scene.rig, &scene.stack).component(&wasm::poll(), &[]).grant(Capability::Clocks).run();
        let harmless = cell(&scene.rig, &scene.stack).run().await;
        let worker = |ran: &Ran| {
            let records = scene.rig.records(&ran.outcome.id);
            records.last().map(|record| record.entry.body["observed"]["worker"].clone())
        };
        let before = worker(&harmless);
        for _ in 0..20 {
            let batch = futures_of(16, call);
            if tokio::time::timeout(Duration::from_millis(100), batch).await.is_ok() {
                return Err("they ended by themselves".into());
            }
        }
        let after = cell(&scene.rig, &scene.stack).run().await;
        let same = before.is_some() && worker(&after) == before;
        hold(same && after.code() == Some(0) && after.took < Duration::from_secs(1), &after)
    })
}

/// Several of them at once, all of which end when this is dropped.
async fn futures_of<F: Future>(count: usize, make: impl Fn() -> F) {
    let mut futures: Vec<_> = (0..count).map(|_| Box::pin(make())).collect();
    std::future::poll_fn(|context| {
        let pending = futures
            .iter_mut()
            .map(|future| future.as_mut().poll(context).is_pending())
            .filter(|still| *still);
        if pending.count() == count { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
}

fn open(scene: Scene) -> Judged {
    Box::pin(async move {
        let open = |path: &'static str| {
            watched(&scene, move |cell| {
                cell.file("/work/inside", 0o644, b"x").component(&wasm::open(), &[path])
            })
        };
        let inside = open("inside").await?;
        if inside.code() != Some(GOT_IT) {
            return Err(format!("not even its own file opens: {}", inside.story()));
        }
        // What is outside of its directories in the worker's own cell, let alone elsewhere.
        for path in [
            "../usr/bin/env",
            "/usr/bin/env",
            "../../../../usr/bin/env",
            "./x/../../usr/bin/env",
            "/proc/self/status",
            "../tmp",
            "/work/inside",
        ] {
            let ran = open(path).await?;
            if ran.code() != Some(TOLD_NO) {
                return hold(false, &ran);
            }
        }
        let links = "import os
for n, target in enumerate(['/usr/bin/env', '../usr/bin/env', '..', '/', '../../proc/self/status', 'loop4']):
    try:
        os.symlink(target, f'link{n}')
    except OSError: continue
    for path in f'link{n}', f'link{n}/usr/bin/env', f'/work/link{n}', f'/tmp/../work/link{n}/etc/passwd':
        try: open(path); exit(20)
        except OSError: pass
for attempt in (lambda: os.rename('inside', '../out'), lambda: os.link('/usr/bin/env', 'env'), lambda: os.mkdir('/new'), lambda: os.listdir('..'), lambda: os.listdir('/')):
    try: attempt(); exit(20)
    except OSError: pass
exit(10)";
        let ran = watched(&scene, |cell| cell.file("/work/inside", 0o644, b"x").python(links, &[])).await?;
        hold(ran.code() == Some(TOLD_NO), &ran)
    })
}
