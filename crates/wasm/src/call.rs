//! One call: a store and an instance of its own, and nothing that outlives it.

use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use casemate_wire::guest::{ProcessUsage, ToHost, WaitStatus};
use casemate_wire::worker::{Call, CallLimits, FUEL_PER_MICROSECOND, Files, Mode, Stop};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{Notify, Semaphore};
use wasmtime::component::{ComponentType, Lower, ResourceTable, ResourceTableError};
use wasmtime::{PoolConcurrencyLimitError, ResourceLimiter, Store, Trap};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use crate::determinism;
use crate::http::Gate;
use crate::line::Voice;
use crate::modules::{Entry, Loaded, Short, in_short};
use crate::streams::{Outputs, Stdin};

/// A tool's input is one text, in memory.
const MAX_TOOL_INPUT: usize = 16 << 20;
/// Directories of a cell, with the variables by which the guest has told where they really are: without namespaces that is elsewhere.
const PLACES: [(&str, &str); 2] = [("/work", "HOME"), ("/tmp", "TMPDIR")];
/// What is said about a trap.
const MAX_WORDS: usize = 16 << 10;
/// Processor time that a deterministic call may take besides what its instructions are worth.
const SLACK: Duration = Duration::from_secs(1);
/// A call that is over sooner than this runs where it is read.
const QUICK: Duration = Duration::from_micros(300);

/// What the line has to know of a call that goes on.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) id: u32,
    pub(crate) stdin: Stdin,
    pub(crate) outputs: Outputs,
    pub(crate) cancel: Arc<Notify>,
}

/// What an instance's host functions work on.
pub(crate) struct State {
    wasi: Wasi,
    meter: Meter,
}

#[allow(clippy::large_enum_variant, reason = "the large one is the usual one, and is made for every call")]
enum Wasi {
    Preview2(Preview2),
    Preview1(Box<WasiP1Ctx>),
}

struct Preview2 {
    ctx: WasiCtx,
    table: ResourceTable,
    http: WasiHttpCtx,
    gate: Gate,
}

/// Memory that a call has, and what it may have.
struct Meter {
    limit: u64,
    used: u64,
    /// What was granted last, in case that it cannot be had after all.
    last: u64,
    /// Also read when the rest of this is gone.
    peak: Arc<AtomicU64>,
    exceeded: bool,
}

/// How a call ended.
struct End {
    status: WaitStatus,
    memory_peak: u64,
    /// It wanted to have more resources open than it may.
    handles_spent: bool,
}

impl Handle {
    pub(crate) fn new(call: &Call, mode: Mode, voice: &Voice) -> Handle {
        Handle {
            id: call.id,
            stdin: Stdin::new(call.stdin, mode, voice.clone()),
            outputs: Outputs::new(
                call.id,
                [call.stdout, call.stderr],
                call.limits.output_bytes,
                voice.clone(),
            ),
            cancel: Arc::new(Notify::new()),
        }
    }
}

/// Runs a call to its end and reports it.
pub(crate) async fn run(
    call: Call,
    source: Vec<u8>,
    loaded: Arc<Loaded>,
    handle: Handle,
    voice: Voice,
    places: &Semaphore,
) {
    let began = Instant::now();
    let exec = call.id;
    let limit = match loaded.mode {
        Mode::Ordinary => Duration::from_micros(call.limits.cpu_micros),
        // Fuel is the limit there; this only ends what burns none, such as calls of the host.
        Mode::Deterministic => Duration::from_micros(call.limits.cpu_micros.saturating_mul(4)) + SLACK,
    };
    let (mut used, peak) = (Duration::ZERO, Arc::new(AtomicU64::new(0)));
    let stopped = |stop| End {
        status: WaitStatus::Stopped(stop),
        memory_peak: peak.load(Ordering::Relaxed),
        handles_spent: false,
    };
    let ended = {
        let invoked = async {
            let _place = places.acquire().await;
            let inner = Box::pin(invoke(call, source, &loaded, &handle, peak.clone()));
            Metered { inner, used: &mut used, limit }.await
        };
        tokio::select! {
            biased;
            () = handle.cancel.notified() => Ok(stopped(Stop::Cancelled)),
            ended = invoked => ended.unwrap_or_else(|OutOfTime| Ok(stopped(Stop::CpuTime))),
        }
    };
    match ended {
        Ok(End { status, memory_peak, handles_spent }) => {
            if handles_spent {
                voice.tell(&ToHost::HandlesSpent { exec });
            }
            let usage = ProcessUsage { cpu_micros: used.as_micros() as u64, max_rss_bytes: memory_peak };
            voice.tell(&ToHost::Exited { exec, status, usage, discarded: handle.outputs.discarded() });
        }
        Err(error) => voice.tell(&ToHost::CallFailed { call: exec, why: in_short(&error) }),
    }
    voice.flush();
    loaded.quick.store(began.elapsed() < QUICK, Ordering::Relaxed);
}

/// Instantiates and calls. An error is one of the worker's or of the component's shape, not of what it does.
async fn invoke(
    call: Call,
    source: Vec<u8>,
    loaded: &Loaded,
    handle: &Handle,
    peak: Arc<AtomicU64>,
) -> wasmtime::Result<End> {
    let mut store = Store::new(&loaded.engine, State::new(&call, loaded, handle, peak)?);
    store.limiter(|state| &mut state.meter);
    // Whoever runs for longer than a tick lets others have their turn, and is looked at.
    store.set_epoch_deadline(1);
    store.epoch_deadline_async_yield_and_update(1);
    if loaded.mode == Mode::Deterministic {
        store.set_fuel(call.limits.cpu_micros.saturating_mul(FUEL_PER_MICROSECOND))?;
    }
    let ended = enter(&mut store, &call, source, loaded, handle).await;
    let meter = &store.data().meter;
    let memory_peak = meter.peak.load(Ordering::Relaxed);
    let mut handles_spent = false;
    let status = match ended {
        _ if meter.exceeded => WaitStatus::Stopped(Stop::Memory),
        Ok(code) => WaitStatus::Exited(code),
        // Too many calls of components that need many memories: not its fault alone.
        Err(error) if error.is::<PoolConcurrencyLimitError>() => return Err(error),
        Err(error) => match (error.downcast_ref::<I32Exit>(), error.downcast_ref::<Trap>()) {
            (Some(I32Exit(code)), _) => WaitStatus::Exited(*code as u8),
            (None, Some(Trap::OutOfFuel)) => WaitStatus::Stopped(Stop::CpuTime),
            (None, trap) => {
                // Names in a backtrace are the component's own, and as long as it likes.
                let mut words = Short { text: String::from("wasm trap: "), most: MAX_WORDS };
                let _ = write!(words, "{error:?}");
                let mut words = words.text + "\n";
                if let Some(ResourceTableError::Full) = error.downcast_ref() {
                    handles_spent = true;
                    words += &format!("note: more than {} resources open at a time\n", call.limits.handles);
                }
                if matches!(loaded.entry, Entry::Runtime { .. }) && trap.is_some_and(is_out_of_stack) {
                    words += "note: most likely the program nests too deep: an interpreter in WASM has less stack than a native one\n";
                }
                handle.outputs.stderr().put_all(words.as_bytes()).await;
                WaitStatus::Signaled(signal(trap))
            }
        },
    };
    Ok(End { status, memory_peak, handles_spent })
}

/// Calls the entry; the exit code comes back.
async fn enter(
    store: &mut Store<State>,
    call: &Call,
    source: Vec<u8>,
    loaded: &Loaded,
    handle: &Handle,
) -> wasmtime::Result<u8> {
    match &loaded.entry {
        Entry::Tool { pre, run } => {
            let input = handle.stdin.read_all(MAX_TOOL_INPUT).await;
            let stderr = handle.outputs.stderr();
            let Some(Ok(input)) = input.map(String::from_utf8) else {
                stderr.put_all(b"a tool's input has to be UTF-8, and at most 16 MiB\n").await;
                return Ok(2);
            };
            let instance = pre.instantiate_async(&mut *store).await?;
            let run = instance.get_typed_func::<(String,), (Result<String, String>,)>(&mut *store, run)?;
            match run.call_async(&mut *store, (input,)).await?.0 {
                Ok(output) => {
                    handle.outputs.stdout().put_all(output.as_bytes()).await;
                    Ok(0)
                }
                Err(message) => {
                    stderr.put_all(message.as_bytes()).await;
                    Ok(1)
                }
            }
        }
        Entry::Runtime { pre, run } => {
            let instance = pre.instantiate_async(&mut *store).await?;
            let run = instance.get_typed_func::<(Source, Vec<String>), (u8,)>(&mut *store, run)?;
            let source = match &call.source_name {
                Some(name) => Source::File(SourceFile { name: name.clone(), bytes: source }),
                None => Source::Code(String::from_utf8(source)?),
            };
            Ok(run.call_async(&mut *store, (source, call.args.clone())).await?.0)
        }
        Entry::Command(pre) => {
            let command = pre.instantiate_async(&mut *store).await?;
            let ended = command.wasi_cli_run().call_run(&mut *store).await?;
            Ok(u8::from(ended.is_err()))
        }
        Entry::Preview1(pre) => {
            let instance = pre.instantiate_async(&mut *store).await?;
            let start = instance.get_typed_func::<(), ()>(&mut *store, "_start")?;
            start.call_async(&mut *store, ()).await?;
            Ok(0)
        }
    }
}

/// `source` of `casemate:runtime`.
#[derive(ComponentType, Lower)]
#[component(variant)]
enum Source {
    #[component(name = "code")]
    Code(String),
    #[component(name = "file")]
    File(SourceFile),
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct SourceFile {
    name: String,
    bytes: Vec<u8>,
}

/// An interpreter's own stack lies at the beginning of its memory: whoever uses it up gets beyond the memory.
fn is_out_of_stack(trap: &Trap) -> bool {
    matches!(trap, Trap::StackOverflow | Trap::MemoryOutOfBounds)
}

/// The signal that a native program would have got.
fn signal(trap: Option<&Trap>) -> u8 {
    const SIGILL: u8 = 4;
    const SIGABRT: u8 = 6;
    const SIGFPE: u8 = 8;
    const SIGSEGV: u8 = 11;
    match trap {
        Some(Trap::StackOverflow | Trap::MemoryOutOfBounds | Trap::TableOutOfBounds) => SIGSEGV,
        Some(Trap::IntegerOverflow | Trap::IntegerDivisionByZero | Trap::BadConversionToInteger) => SIGFPE,
        Some(Trap::UnreachableCodeReached | Trap::IndirectCallToNull | Trap::BadSignature) => SIGILL,
        _ => SIGABRT,
    }
}

impl State {
    fn new(call: &Call, loaded: &Loaded, handle: &Handle, peak: Arc<AtomicU64>) -> wasmtime::Result<State> {
        let mut builder = WasiCtxBuilder::new();
        builder.stdin(handle.stdin.clone()).stdout(handle.outputs.stdout()).stderr(handle.outputs.stderr());
        builder.envs(&call.env).allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false);
        // The program's own name comes first, for those that look.
        builder.arg("program").args(&call.args);
        let (places, access) = match call.files {
            Files::None => (&[][..], FsPerms::ReadOnly),
            Files::Read => (&PLACES[..1], FsPerms::ReadOnly),
            Files::ReadWrite => (&PLACES[..], FsPerms::ReadWrite),
        };
        for (place, variable) in places {
            let really = std::env::var(variable).unwrap_or_else(|_| (*place).to_owned());
            builder.preopened_dir(really, *place, access)?;
            builder.initial_cwd("/work");
        }
        if loaded.mode == Mode::Deterministic {
            determinism::apply(&mut builder);
        }
        let CallLimits { memory_bytes, handles, .. } = call.limits;
        let wasi = match loaded.entry {
            Entry::Preview1(_) => Wasi::Preview1(Box::new(builder.build_p1())),
            _ => {
                let mut table = ResourceTable::new();
                table.set_max_capacity(handles as usize);
                let (http, gate) = (WasiHttpCtx::new(), Gate::new(call.egress.clone()));
                Wasi::Preview2(Preview2 { ctx: builder.build(), table, http, gate })
            }
        };
        Ok(State { wasi, meter: Meter { limit: memory_bytes, used: 0, last: 0, peak, exceeded: false } })
    }

    /// Where the functions of preview 1 find their state.
    pub(crate) fn preview1(&mut self) -> &mut WasiP1Ctx {
        match &mut self.wasi {
            Wasi::Preview1(ctx) => ctx,
            Wasi::Preview2(_) => unreachable!("only modules for preview 1 are linked with this"),
        }
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        match &mut self.wasi {
            Wasi::Preview2(Preview2 { ctx, table, .. }) => WasiCtxView { ctx, table },
            Wasi::Preview1(_) => unreachable!("only components are linked with this"),
        }
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        match &mut self.wasi {
            Wasi::Preview2(Preview2 { table, http, gate, .. }) => {
                WasiHttpCtxView { ctx: http, table, hooks: gate }
            }
            Wasi::Preview1(_) => unreachable!("only components are linked with this"),
        }
    }
}

impl Meter {
    /// A call that wants more than it may have is over: that is what happens on every other wall.
    fn grow(&mut self, by: u64) -> wasmtime::Result<bool> {
        let wanted = self.used.saturating_add(by);
        if wanted > self.limit {
            self.exceeded = true;
            // It reached for all of it, and more.
            self.peak.store(self.limit, Ordering::Relaxed);
            wasmtime::bail!("the memory limit is exceeded");
        }
        (self.used, self.last) = (wanted, by);
        self.peak.fetch_max(wanted, Ordering::Relaxed);
        Ok(true)
    }

    fn give_back(&mut self) {
        self.used -= std::mem::take(&mut self.last);
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        most: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // Beyond what it said itself it may not go; there it is told so, as anywhere.
        if most.is_some_and(|most| desired > most) {
            Ok(false)
        } else {
            self.grow((desired - current) as u64)
        }
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.give_back();
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        most: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // An element is a pointer, and its bookkeeping another one.
        let wanted = 16 * (desired - current) as u64;
        if most.is_some_and(|most| desired > most) { Ok(false) } else { self.grow(wanted) }
    }

    fn table_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.give_back();
        Ok(())
    }
}

/// Measures the processor time of a future, and gives it up at a limit.
struct Metered<'a, F: ?Sized> {
    inner: Pin<Box<F>>,
    used: &'a mut Duration,
    limit: Duration,
}

struct OutOfTime;

impl<F: Future + ?Sized> Future for Metered<'_, F> {
    type Output = Result<F::Output, OutOfTime>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let before = thread_time();
        let polled = self.inner.as_mut().poll(context);
        *self.used += thread_time().saturating_sub(before);
        match polled {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if *self.used > self.limit => Poll::Ready(Err(OutOfTime)),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
