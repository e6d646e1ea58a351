//! Wasmtime alone, in this very process: a new store, a WASI context and an instance for every call, as a worker makes them. Each line
//! that it reads is a number of calls; it says how many nanoseconds each took, when all are over.

use std::io::{BufRead, Write};
use std::time::Instant;

use wasmtime::component::{Component, InstancePre, Linker, ResourceTable};
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Result, Store};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

struct State {
    ctx: WasiCtx,
    table: ResourceTable,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.ctx, table: &mut self.table }
    }
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let pre = load()?;
    for line in std::io::stdin().lock().lines() {
        let mut answer = String::new();
        for _ in 0..line?.trim().parse()? {
            let start = Instant::now();
            runtime.block_on(call(&pre))?;
            answer += &format!("{}\n", start.elapsed().as_nanos());
        }
        std::io::stdout().lock().write_all(answer.as_bytes())?;
    }
    Ok(())
}

fn load() -> Result<InstancePre<State>> {
    let mut pool = PoolingAllocationConfig::new();
    pool.linear_memory_keep_resident(256 << 10).pagemap_scan(Enabled::Auto);
    let mut config = Config::new();
    config.epoch_interruption(true);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    let engine = Engine::new(&config)?;
    let component = Component::new(&engine, include_str!("../../../crates/engine/benches/echo.wat"))?;
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    linker.instantiate_pre(&component)
}

async fn call(pre: &InstancePre<State>) -> Result<()> {
    let state = State { ctx: WasiCtx::builder().build(), table: ResourceTable::new() };
    let mut store = Store::new(pre.engine(), state);
    store.set_epoch_deadline(1 << 40);
    let instance = pre.instantiate_async(&mut store).await?;
    let run =
        instance.get_typed_func::<(&str,), (std::result::Result<String, String>,)>(&mut store, "run")?;
    let (answer,) = run.call_async(&mut store, ("hello",)).await?;
    assert_eq!(answer.as_deref(), Ok("hello"));
    Ok(())
}
