//! One open engine that does what it is told, line by line, so that `cargo xtask bench` can take turns between it and
//! other programs.
//!
//! ```text
//! run                 one execution of /bin/true     MICROS phase:NAME=MICROS… step:NAME=MICROS…
//! burst COUNT WIDTH   COUNT of them, WIDTH at a time  MICROS
//! host                one execution of /bin/true in the image `host`  likewise
//! call COUNT          COUNT calls of a WASM tool      likewise, a line for each, when all are over
//! code LANGUAGE       one program in WASM             likewise
//! calls COUNT WIDTH   COUNT of them, WIDTH at a time  MICROS
//! hold-code COUNT     COUNT programs in WASM that stay held
//! hold COUNT          COUNT cells that stay           held
//! release             ends them                      released
//! ```
//! The fields of an answer are separated by tabs. The argument is the directory of the image.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on fails by panicking")]

use std::fs::File;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::outcome::{Outcome, Status};
use casemate_core::policy::Policy;
use casemate_core::request::{
    CodeSource, Component, ImageRef, Isolation, Language, Request, RequestDraft, Stdin, Workload,
};
use casemate_engine::{Config, Engine, Io, default_home};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // `cargo bench` starts every benchmark; this one needs somebody to talk to.
    let Some(image) = std::env::args().nth(1).filter(|arg| !arg.starts_with('-')).map(PathBuf::from) else {
        return println!("run `cargo xtask bench` instead");
    };
    let config = Config::new(default_home(), Policy::default());
    let tool = Component::new("echo", wat::parse_str(include_str!("echo.wat")).unwrap()).unwrap();
    let bench = Arc::new(Bench { engine: Engine::open(config).await.unwrap(), image, tool });
    let mut held = Held::default();
    let mut lines = lines();
    while let Some(line) = lines.recv().await {
        let answer = match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["run"] => bench.run().await,
            ["host"] => answer(bench.host().await),
            ["burst", count, width] => bench.burst(count.parse().unwrap(), width.parse().unwrap()).await,
            ["call", count] => bench.call_in_a_row(count.parse().unwrap()).await,
            ["code", language] => answer(bench.code(language.parse().unwrap()).await),
            ["calls", count, width] => bench.calls(count.parse().unwrap(), width.parse().unwrap()).await,
            ["hold", count] => {
                held = bench.hold(count.parse().unwrap()).await;
                "held".into()
            }
            ["hold-code", count] => {
                held = bench.hold_code(count.parse().unwrap()).await;
                "held".into()
            }
            ["release"] => {
                std::mem::take(&mut held).release().await;
                "released".into()
            }
            _ => panic!("not understood: {line}"),
        };
        println!("{answer}");
    }
    let bench = Arc::into_inner(bench).expect("nothing runs any more");
    bench.engine.shutdown().await.unwrap();
}

/// Read in a thread of its own: the engine's own tasks go on while nothing is asked.
fn lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if sender.blocking_send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    receiver
}

struct Bench {
    engine: Engine,
    image: PathBuf,
    tool: Component,
}

/// Cells that stay until they are released.
#[derive(Default)]
struct Held {
    cells: JoinSet<()>,
    cancel: watch::Sender<bool>,
}

impl Bench {
    async fn run(&self) -> String {
        answer(self.execute().await)
    }

    async fn call_in_a_row(&self, count: usize) -> String {
        let mut answers = Vec::new();
        for _ in 0..count {
            answers.push(answer(self.call().await));
        }
        answers.join("\n")
    }

    async fn calls(self: &Arc<Self>, count: usize, width: usize) -> String {
        let start = Instant::now();
        let left = Arc::new(AtomicUsize::new(count));
        let mut tasks = JoinSet::new();
        for _ in 0..width {
            let (bench, left) = (self.clone(), left.clone());
            tasks.spawn(async move {
                while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                    bench.call().await;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        start.elapsed().as_micros().to_string()
    }

    /// One call of a tool that returns its input.
    async fn call(&self) -> (Duration, Outcome) {
        let start = Instant::now();
        let component = self.tool.clone();
        let mut draft = RequestDraft::new(Workload::Component { component, args: Vec::new() });
        draft.stdin = Stdin::Provided;
        let (sender, mut output) = mpsc::channel(4);
        let io = Io { stdin: Some(Box::new(&b"hello"[..])), output: Some(sender), ..Io::default() };
        let done = self.engine.execute(Request::new(draft).unwrap(), io).await;
        let took = start.elapsed();
        assert_eq!(done.outcome.status, Status::Exited { code: 0 });
        assert_eq!(output.try_recv().unwrap().bytes, b"hello");
        (took, done.outcome)
    }

    async fn burst(self: &Arc<Self>, count: usize, width: usize) -> String {
        let permits = Arc::new(Semaphore::new(width));
        let mut tasks = JoinSet::new();
        let start = Instant::now();
        for _ in 0..count {
            let permit = permits.clone().acquire_owned().await;
            let bench = self.clone();
            tasks.spawn(async move {
                let _permit = permit;
                bench.execute().await;
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        start.elapsed().as_micros().to_string()
    }

    /// Runs `/bin/true` in a new cell.
    async fn execute(&self) -> (Duration, Outcome) {
        let start = Instant::now();
        let io = Io { image: Some(open(&self.image)), ..Io::default() };
        let done = self.engine.execute(request("/bin/true", LimitsDraft::new()), io).await;
        let took = start.elapsed();
        assert_eq!(done.outcome.status, Status::Exited { code: 0 });
        (took, done.outcome)
    }

    /// The same in the image that needs no preparation, with somebody who waits for output.
    async fn host(&self) -> (Duration, Outcome) {
        let start = Instant::now();
        let draft = RequestDraft::new(Workload::Command { argv: vec!["/bin/true".into()] });
        let (sender, mut output) = mpsc::channel(16);
        let io = Io { output: Some(sender), ..Io::default() };
        let done = self.engine.execute(Request::new(draft).unwrap(), io).await;
        let took = start.elapsed();
        assert_eq!(done.outcome.status, Status::Exited { code: 0 });
        assert!(output.recv().await.is_none());
        (took, done.outcome)
    }

    /// Prints 1, in an interpreter compiled to WASM.
    async fn code(&self, language: Language) -> (Duration, Outcome) {
        let start = Instant::now();
        let code = if language == Language::Python { "print(1)" } else { "console.log(1)" };
        let source = CodeSource::Inline(code.into());
        let mut draft = RequestDraft::new(Workload::Code { language, source, args: Vec::new() });
        draft.isolation = Isolation::Exactly("container+wasm".parse().unwrap());
        let (sender, mut output) = mpsc::channel(4);
        let io = Io { output: Some(sender), ..Io::default() };
        let done = self.engine.execute(Request::new(draft).unwrap(), io).await;
        let took = start.elapsed();
        assert_eq!(done.outcome.status, Status::Exited { code: 0 });
        assert_eq!(output.try_recv().unwrap().bytes, b"1\n");
        (took, done.outcome)
    }

    /// Returns when all of them run.
    async fn hold(self: &Arc<Self>, count: usize) -> Held {
        let mut held = Held::default();
        let (sender, mut output) = mpsc::channel(count);
        for _ in 0..count {
            let (bench, sender, cancel) = (self.clone(), sender.clone(), held.cancel.subscribe());
            held.cells.spawn(async move {
                let mut limits = LimitsDraft::new();
                limits.set(LimitKind::WallTime, 60_000);
                let image = Some(open(&bench.image));
                let io = Io { image, output: Some(sender), cancel: Some(cancel), ..Io::default() };
                bench.engine.execute(request("/bin/hold", limits), io).await;
            });
        }
        for _ in 0..count {
            output.recv().await.expect("a held cell says so");
        }
        held
    }
}

impl Bench {
    /// Returns when all of them run.
    async fn hold_code(self: &Arc<Self>, count: usize) -> Held {
        let mut held = Held::default();
        let (sender, mut output) = mpsc::channel(count);
        for _ in 0..count {
            let (bench, sender, cancel) = (self.clone(), sender.clone(), held.cancel.subscribe());
            held.cells.spawn(async move {
                let code = "import time; print(1, flush=True); time.sleep(60)";
                let source = CodeSource::Inline(code.into());
                let language = Language::Python;
                let mut draft = RequestDraft::new(Workload::Code { language, source, args: Vec::new() });
                draft.isolation = Isolation::Exactly("container+wasm".parse().unwrap());
                draft.limits.set(LimitKind::WallTime, 60_000);
                let io = Io { output: Some(sender), cancel: Some(cancel), ..Io::default() };
                bench.engine.execute(Request::new(draft).unwrap(), io).await;
            });
        }
        for _ in 0..count {
            output.recv().await.expect("a held program says so");
        }
        held
    }
}

impl Held {
    async fn release(mut self) {
        self.cancel.send_replace(true);
        while let Some(done) = self.cells.join_next().await {
            done.unwrap();
        }
    }
}

fn answer((took, outcome): (Duration, Outcome)) -> String {
    let mut fields = vec![took.as_micros().to_string()];
    let phases = outcome.timings.iter();
    fields.extend(phases.map(|(name, took)| format!("phase:{name}={}", took.as_micros())));
    fields.extend(outcome.steps.iter().map(|(name, micros)| format!("step:{name}={micros}")));
    fields.join("\t")
}

fn open(image: &Path) -> std::os::fd::OwnedFd {
    File::open(image).unwrap().into()
}

fn request(program: &str, limits: LimitsDraft) -> Request {
    let mut draft = RequestDraft::new(Workload::Command { argv: vec![program.into()] });
    draft.image = ImageRef::Directory { label: "bench".into() };
    draft.limits = limits;
    Request::new(draft).unwrap()
}
