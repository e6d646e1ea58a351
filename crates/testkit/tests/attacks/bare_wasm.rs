//! The negative controls of the WASM attacks: the same programs in a Wasmtime inside this process, with nothing around it and
//! none of the worker's limits. What the wall stops succeeds here; so it is the wall that stops it.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use casemate_core::request::Component as Program;
use casemate_testkit::wasm;
use tokio::io::AsyncWriteExt;
use wasmtime::component::{Component, Linker as ComponentLinker, ResourceTable};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, Linker, Module, PoolingAllocationConfig, Store,
    UpdateDeadline,
};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::bindings::Command;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use crate::row::{Finding, Judged};

/// Longer than the limit that ends it behind the wall.
const LONGER: Duration = Duration::from_millis(900);

/// Opens what Wasmtime's library then keeps open: the source of randomness.
pub(crate) fn warm_up() {
    drop(WasiCtxBuilder::new().build());
}

type Attempt = Result<Finding, String>;

pub(crate) fn endless_loop() -> Judged {
    Box::pin(async {
        let (engine, module) = compiled(Config::new().epoch_interruption(true), &wasm::endless_loop())?;
        let clock = engine.clone();
        let running = tokio::task::spawn_blocking(move || {
            let mut store = Store::new(&engine, WasiCtxBuilder::new().build_p1());
            store.set_epoch_deadline(1);
            store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Interrupt));
            let instance = linker(&engine)?.instantiate(&mut store, &module)?;
            instance.get_typed_func::<(), ()>(&mut store, "_start")?.call(&mut store, ())
        });
        tokio::time::sleep(LONGER).await;
        let still = !running.is_finished();
        // Nobody else would ever end it.
        clock.increment_epoch();
        let ended = running.await.map_err(|error| error.to_string())?;
        match still && ended.is_err() {
            true => Ok(Finding::Escaped),
            false => Err(format!("it ended by itself: {ended:?}")),
        }
    })
}

/// What the wall's compiler may have of memory and of a processor (`walls/wasm/compiler.rs`).
const COMPILER_MEMORY: u64 = 2 << 30;
const COMPILER_CPU: Duration = Duration::from_secs(60);

/// In a process of its own, where it can be ended: nothing else stops it from taking more than the wall's compiler gets.
pub(crate) fn compile_bomb() -> Judged {
    Box::pin(async {
        let words = |error: std::io::Error| error.to_string();
        let program = std::env::current_exe().map_err(words)?;
        let mut bare = tokio::process::Command::new(program);
        bare.arg(COMPILE).stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
        let mut bare = bare.spawn().map_err(words)?;
        let mut input = bare.stdin.take().ok_or("no pipe")?;
        input.write_all(crate::wasm::bomb(1).await.bytes()).await.map_err(words)?;
        drop(input);
        let pid = bare.id().ok_or("it has ended")?;
        loop {
            if let Some(status) = bare.try_wait().map_err(words)? {
                return Err(format!("it was compiled after all: {status}"));
            }
            let (memory, cpu) = usage(pid).ok_or("its usage cannot be read")?;
            if memory > COMPILER_MEMORY || cpu > COMPILER_CPU {
                bare.kill().await.map_err(words)?;
                return Ok(Finding::Escaped);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

/// As the only argument of this program: see [`compile_input`].
pub(crate) const COMPILE: &str = "--compile-input";

/// Compiles what comes on standard input, with nothing around it.
pub(crate) fn compile_input() {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).expect("a module");
    drop(Module::new(&Engine::default(), bytes));
}

/// Memory and processor time that a process has.
fn usage(pid: u32) -> Option<(u64, Duration)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<u64> =
        stat.rsplit_once(')')?.1.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
    let ticks = fields.get(12)? + fields.get(13)?;
    Some((fields.get(22)? * 4096, Duration::from_millis(ticks * 10)))
}

pub(crate) fn memory_grow() -> Judged {
    Box::pin(module(wasm::memory_grow(), "", None))
}

pub(crate) fn table_grow() -> Judged {
    Box::pin(module(wasm::table_grow(), "", None))
}

pub(crate) fn recursion() -> Judged {
    Box::pin(module(wasm::recursion(), "", None))
}

pub(crate) fn random() -> Judged {
    Box::pin(module(wasm::random(), "", None))
}

/// Given the whole tree, the program that opens files finds what it looks for.
pub(crate) fn open() -> Judged {
    Box::pin(module(wasm::open(), "usr/bin/env", Some(Path::new("/"))))
}

/// A module for WASI preview 1, with more stack and randomness than anybody needs.
async fn module(program: Program, argument: &'static str, directory: Option<&'static Path>) -> Attempt {
    let mut config = Config::new();
    config.max_wasm_stack(256 << 20).async_stack_size(260 << 20);
    let (engine, module) = compiled(&mut config, &program)?;
    let run = async {
        let mut context = WasiCtxBuilder::new();
        context.max_random_size(u64::MAX).args(&["program", argument]);
        if let Some(directory) = directory {
            context.preopened_dir(directory, "/", FsPerms::ReadOnly)?;
        }
        let mut store = Store::new(&engine, context.build_p1());
        let instance = linker(&engine)?.instantiate_async(&mut store, &module).await?;
        instance.get_typed_func::<(), ()>(&mut store, "_start")?.call_async(&mut store, ()).await
    };
    judge(run.await)
}

struct Unlimited(WasiCtx, ResourceTable);

impl WasiView for Unlimited {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.0, table: &mut self.1 }
    }
}

pub(crate) fn handles() -> Judged {
    Box::pin(async {
        let run: wasmtime::Result<bool> = async {
            let engine = Engine::new(&Config::new())?;
            let component = Component::new(&engine, wasm::handles().bytes())?;
            let mut linker = ComponentLinker::new(&engine);
            wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
            let mut store =
                Store::new(&engine, Unlimited(WasiCtxBuilder::new().build(), ResourceTable::new()));
            let command = Command::instantiate_async(&mut store, &component, &linker).await?;
            Ok(command.wasi_cli_run().call_run(&mut store).await?.is_ok())
        }
        .await;
        match run {
            Ok(true) => Ok(Finding::Escaped),
            other => Err(format!("{other:?}")),
        }
    })
}

/// Calls that are given up but kept: the places of their instances are never free again.
pub(crate) fn dropped_calls() -> Judged {
    const PLACES: u32 = 4;
    Box::pin(async {
        let mut pool = PoolingAllocationConfig::new();
        pool.total_core_instances(PLACES).total_memories(PLACES).total_stacks(PLACES);
        let mut config = Config::new();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        let (engine, module) = compiled(&mut config, &wasm::nothing())?;
        let linker = linker(&engine).map_err(|error| error.to_string())?;
        let mut kept = Vec::new();
        for _ in 0..PLACES {
            let mut store = Store::new(&engine, WasiCtxBuilder::new().build_p1());
            let instance = linker.instantiate_async(&mut store, &module).await;
            kept.push((instance.map_err(|error| error.to_string())?, store));
        }
        let mut store = Store::new(&engine, WasiCtxBuilder::new().build_p1());
        match linker.instantiate_async(&mut store, &module).await {
            Err(_) => Ok(Finding::Escaped),
            Ok(_) => Err("there was a place for one more".into()),
        }
    })
}

fn compiled(config: &mut Config, program: &Program) -> Result<(Engine, Module), String> {
    let engine = Engine::new(config).map_err(|error| error.to_string())?;
    let module = Module::new(&engine, program.bytes()).map_err(|error| error.to_string())?;
    Ok((engine, module))
}

fn linker(engine: &Engine) -> wasmtime::Result<Linker<WasiP1Ctx>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p1::add_to_linker_async(&mut linker, |context| context)?;
    Ok(linker)
}

/// The programs say 20 if they got what they wanted.
fn judge(ended: wasmtime::Result<()>) -> Attempt {
    match ended.as_ref().err().and_then(|error| error.downcast_ref::<I32Exit>()) {
        Some(I32Exit(20)) => Ok(Finding::Escaped),
        _ => Err(format!("{ended:?}")),
    }
}
