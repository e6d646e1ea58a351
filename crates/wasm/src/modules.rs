//! Compiled code that is ready to be instantiated.

use std::collections::HashMap;
use std::fmt::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use casemate_wire::worker::{Grants, Maker, Mode, ModuleId, World};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{self, Component, ComponentExportIndex, FutureReader};
use wasmtime::{
    Enabled, Engine, ImportType, InstanceAllocationStrategy, InstancePre, Linker, Module,
    PoolingAllocationConfig, Precompiled,
};
use wasmtime_wasi::p2::bindings::CommandPre;

use crate::call::State;
use crate::settings;

/// Calls that can go on at a time. More than this wait for a place.
pub(crate) const MAX_INSTANCES: u32 = 256;
/// Bytes of the names of what a component may import: they go into one message.
const MAX_IMPORTS: usize = 48 << 10;
/// Linear memory that one instance can have, whatever its call's own limit is.
const MAX_MEMORY: usize = 4 << 30;
/// Table elements of one instance.
const MAX_TABLE: usize = 200_000;
/// Native stack that WASM may use. Interpreters check only their own stack in linear memory: with less than this, code that
/// recurses through them traps instead of getting an error that it can handle.
const fn max_stack(maker: Maker) -> usize {
    match maker {
        Maker::Caller => 1 << 20,
        Maker::Us => 64 << 20,
    }
}

/// What is zeroed by hand when an instance is gone, instead of being unmapped: most dirty no more than this.
const fn keep_resident(maker: Maker) -> usize {
    match maker {
        Maker::Caller => 256 << 10,
        Maker::Us => 1 << 20,
    }
}

/// Everything this worker has loaded.
#[derive(Default)]
pub(crate) struct Modules {
    engines: Engines,
    loaded: HashMap<ModuleId, Arc<Loaded>>,
}

/// One engine for each way of running code, made when it is first needed.
#[derive(Default)]
pub(crate) struct Engines(Arc<[OnceLock<Runtime>; 4]>);

struct Runtime {
    engine: Engine,
    components: component::Linker<State>,
    modules: Linker<State>,
}

pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    pub(crate) mode: Mode,
    pub(crate) entry: Entry,
    maker: Maker,
    imports: Vec<String>,
    /// The last call was over so soon that the next one need not get a turn of its own.
    pub(crate) quick: AtomicBool,
}

/// How it is called.
pub(crate) enum Entry {
    Tool { pre: component::InstancePre<State>, run: ComponentExportIndex },
    Runtime { pre: component::InstancePre<State>, run: ComponentExportIndex },
    Command(CommandPre<State>),
    Preview1(InstancePre<State>),
}

impl Modules {
    pub(crate) fn engines(&self) -> Engines {
        Engines(self.engines.0.clone())
    }

    /// Takes compiled code in, and tells what it is and what it imports.
    pub(crate) fn load(
        &mut self,
        id: ModuleId,
        mode: Mode,
        maker: Maker,
        code: OwnedFd,
    ) -> wasmtime::Result<(Result<World, String>, Vec<String>)> {
        let runtime = self.engines.get(mode, maker)?;
        let path = format!("/proc/self/fd/{}", code.as_raw_fd());
        let (entry, imports) = match Engine::detect_precompiled_file(&path)? {
            Some(Precompiled::Component) => {
                let component = load_component(&runtime.engine, &path)?;
                let kind = component.component_type();
                let imports = kind.imports(&runtime.engine).map(|(name, _)| name.to_owned()).collect();
                (runtime.component(&component), imports)
            }
            Some(Precompiled::Module) => {
                let module = load_module(&runtime.engine, &path)?;
                let name = |import: ImportType<'_>| format!("{}.{}", import.module(), import.name());
                let imports = module.imports().map(name).collect();
                (runtime.module(&module), imports)
            }
            None => wasmtime::bail!("this is not compiled code"),
        };
        let imports: Vec<String> = imports;
        if imports.iter().map(|name| name.len() + 8).sum::<usize>() > MAX_IMPORTS {
            wasmtime::bail!("the names of its imports take more than {MAX_IMPORTS} bytes");
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Ok((Err(in_short(&error)), imports)),
        };
        let world = entry.world();
        let loaded = Loaded {
            engine: runtime.engine.clone(),
            mode,
            entry,
            maker,
            imports: imports.clone(),
            quick: AtomicBool::new(false),
        };
        self.loaded.insert(id, Arc::new(loaded));
        Ok((Ok(world), imports))
    }

    pub(crate) fn unload(&mut self, id: ModuleId) {
        self.loaded.remove(&id);
    }

    pub(crate) fn get(&self, id: ModuleId) -> Option<Arc<Loaded>> {
        self.loaded.get(&id).cloned()
    }
}

impl Engines {
    /// Makes every running instance look at the clock.
    pub(crate) fn tick(&self) {
        self.0.iter().filter_map(OnceLock::get).for_each(|runtime| runtime.engine.increment_epoch());
    }

    fn get(&self, mode: Mode, maker: Maker) -> wasmtime::Result<&Runtime> {
        let slot = &self.0[match (maker, mode) {
            (Maker::Caller, Mode::Ordinary) => 0,
            (Maker::Caller, Mode::Deterministic) => 1,
            (Maker::Us, Mode::Ordinary) => 2,
            (Maker::Us, Mode::Deterministic) => 3,
        }];
        if slot.get().is_none() {
            // Only the thread that reads the line loads code, so nobody else is doing this.
            let _ = slot.set(Runtime::new(mode, maker)?);
        }
        slot.get().ok_or_else(|| wasmtime::format_err!("no engine"))
    }
}

impl Runtime {
    fn new(mode: Mode, maker: Maker) -> wasmtime::Result<Runtime> {
        let mut config = settings::of_code(mode);
        config.max_wasm_stack(max_stack(maker)).async_stack_size(max_stack(maker) + (1 << 20));
        let mut pool = PoolingAllocationConfig::new();
        pool.total_component_instances(MAX_INSTANCES)
            .total_core_instances(MAX_INSTANCES * 16)
            .total_memories(MAX_INSTANCES * 2)
            .total_tables(MAX_INSTANCES * 8)
            .total_stacks(MAX_INSTANCES)
            .max_memory_size(MAX_MEMORY)
            .table_elements(MAX_TABLE)
            .max_tables_per_component(32)
            .max_tables_per_module(16)
            .max_core_instances_per_component(100)
            .max_component_instance_size(4 << 20)
            .max_core_instance_size(4 << 20)
            .linear_memory_keep_resident(keep_resident(maker))
            .table_keep_resident(256 << 10)
            .async_stack_keep_resident(64 << 10)
            // Only what was written to is looked for. Kernels before 6.7 cannot tell.
            .pagemap_scan(Enabled::Auto);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        let engine = Engine::new(&config)?;
        let mut components = component::Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut components)?;
        // Linked, but only run if it was granted: see `Loaded::may_run`.
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut components)?;
        components
            .instance("casemate:runtime/event-loop@0.1.0")?
            .func_wrap("pause", |store, (nanoseconds,): (u64,)| {
                Ok((FutureReader::new(store, pause(nanoseconds))?,))
            })?;
        let mut modules = Linker::new(&engine);
        wasmtime_wasi::p1::add_to_linker_async(&mut modules, State::preview1)?;
        Ok(Runtime { engine, components, modules })
    }

    fn component(&self, component: &Component) -> wasmtime::Result<Entry> {
        let pre = self.components.instantiate_pre(component)?;
        let kind = component.component_type();
        let exports: Vec<&str> = kind.exports(&self.engine).map(|(name, _)| name).collect();
        if exports.iter().any(|name| name.starts_with("wasi:cli/run@")) {
            return Ok(Entry::Command(CommandPre::new(pre)?));
        }
        // Both export a function of this name; an interpreter's has its source code and arguments as parameters.
        let parameters = match kind.get_export(&self.engine, "run").map(|export| export.ty) {
            Some(ComponentItem::ComponentFunc(function)) => Some(function.params().len()),
            _ => None,
        };
        match (component.get_export_index(None, "run"), parameters) {
            (Some(run), Some(1)) => Ok(Entry::Tool { pre, run }),
            (Some(run), Some(2)) => Ok(Entry::Runtime { pre, run }),
            _ => wasmtime::bail!(
                "it exports neither `run` of casemate:tool nor wasi:cli/run, but {}",
                if exports.is_empty() { "nothing".to_owned() } else { in_short(&exports.join(", ")) }
            ),
        }
    }

    fn module(&self, module: &Module) -> wasmtime::Result<Entry> {
        if module.get_export("_start").is_none() {
            wasmtime::bail!("the module does not export _start");
        }
        Ok(Entry::Preview1(self.modules.instantiate_pre(module)?))
    }
}

/// What a message has room for of somebody else's words.
pub(crate) fn in_short(words: &dyn std::fmt::Display) -> String {
    let mut short = Short { text: String::new(), most: 1 << 10 };
    // It fails when it is full, which is fine.
    let _ = write!(short, "{words:#}");
    short.text
}

/// Keeps the beginning of what is written.
pub(crate) struct Short {
    pub(crate) text: String,
    pub(crate) most: usize,
}

impl Write for Short {
    fn write_str(&mut self, more: &str) -> std::fmt::Result {
        let room = self.most.saturating_sub(self.text.len());
        let fitting = more.floor_char_boundary(room.min(more.len()));
        self.text.push_str(&more[..fitting]);
        if fitting < more.len() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

/// For an interpreter whose event loop has nothing to do for a while.
async fn pause(nanoseconds: u64) -> wasmtime::Result<u8> {
    match nanoseconds {
        // Not a sleep of no length: a timer would round it up to a millisecond.
        0 => tokio::task::yield_now().await,
        some => tokio::time::sleep(Duration::from_nanos(some)).await,
    }
    Ok(0)
}

impl Loaded {
    /// Whether a call with these grants may have what it imports. The engine has refused others already; this is the wall
    /// itself. Our own interpreters import more than they can use.
    pub(crate) fn may_run(&self, grants: Grants) -> bool {
        self.maker == Maker::Us || grants.cover(self.imports.iter().map(String::as_str))
    }
}

impl Entry {
    pub(crate) fn world(&self) -> World {
        match self {
            Entry::Tool { .. } => World::Tool,
            Entry::Runtime { .. } => World::Runtime,
            Entry::Command(_) => World::Command,
            Entry::Preview1(_) => World::Preview1,
        }
    }
}

#[allow(unsafe_code, reason = "the one place where compiled code is believed")]
fn load_component(engine: &Engine, path: &str) -> wasmtime::Result<Component> {
    // SAFETY: the engine passes on only what its own compiler made for this tenant, in memory that is sealed against
    // change. Were it otherwise, whoever did that would have taken over this worker, and be inside its cell.
    unsafe { Component::deserialize_file(engine, path) }
}

#[allow(unsafe_code, reason = "the one place where compiled code is believed")]
fn load_module(engine: &Engine, path: &str) -> wasmtime::Result<Module> {
    // SAFETY: as for components.
    unsafe { Module::deserialize_file(engine, path) }
}
