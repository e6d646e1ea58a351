//! One execution, written down the way one would say it.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::outcome::{LimitHit, Outcome, Refusal, Status};
use casemate_core::request::{
    Capability, CodeSource, Component, ImageRef, Invalid, Isolation, Language, Need, Request, RequestDraft,
    Risk, Stdin, Workload,
};
use casemate_core::stack::{Stack, Wall};
use casemate_engine::recorder::Receipt;
use casemate_engine::{Chunk, Engine, Entry, Executed, Input, Io, Outbox, Stream};
use tokio::sync::{mpsc, watch};

use crate::{microvm, wasm};

/// A cell on `stack`, to be described and run. The default runs nothing useful and is granted nothing.
pub fn cell<'e>(engine: &'e Engine, stack: &Stack) -> CellBuilder<'e> {
    let mut draft = RequestDraft::new(match stack.contains(Wall::Wasm) {
        true => Workload::Component { component: wasm::nothing(), args: Vec::new() },
        false => Workload::Command { argv: vec!["true".into()] },
    });
    draft.isolation = Isolation::Exactly(stack.clone());
    if stack.outermost() == Wall::Process {
        draft.risk = Risk::Low;
    }
    draft.image = microvm::image_on(stack);
    CellBuilder {
        engine,
        draft,
        io: Io::default(),
        fetched: Arc::default(),
        pause: Duration::ZERO,
        watcher: None,
    }
}

type Watcher<'e> = Box<dyn FnMut(&Chunk) + Send + 'e>;

#[must_use = "nothing happens until it is run"]
pub struct CellBuilder<'e> {
    engine: &'e Engine,
    draft: RequestDraft,
    io: Io,
    fetched: Arc<Mutex<Fetched>>,
    pause: Duration,
    watcher: Option<Watcher<'e>>,
}

/// What came of an execution.
#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    pub receipt: Option<Receipt>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub files: Fetched,
    /// From the request to the result.
    pub took: Duration,
}

/// What came out of a cell, in the order in which it came.
#[derive(Debug, Default, Clone)]
pub struct Fetched {
    pub entries: Vec<FetchedEntry>,
    /// Index of the requested path, relative path, reason.
    pub skipped: Vec<(usize, String, String)>,
}

#[derive(Debug, Clone)]
pub struct FetchedEntry {
    pub index: usize,
    pub path: String,
    pub entry: Entry,
    pub bytes: Vec<u8>,
}

impl<'e> CellBuilder<'e> {
    pub fn command<S: Into<String>>(mut self, argv: impl IntoIterator<Item = S>) -> Self {
        self.draft.workload = Workload::Command { argv: argv.into_iter().map(Into::into).collect() };
        self
    }

    /// The hostile probe with these arguments, started from the work directory.
    pub fn probe<S: Into<String>>(self, args: impl IntoIterator<Item = S>) -> Self {
        let argv = std::iter::once("./probe".to_owned()).chain(args.into_iter().map(Into::into));
        self.command(argv).file("/work/probe", 0o755, crate::PROBE)
    }

    pub fn shell(self, script: &str) -> Self {
        self.command(["sh", "-c", script])
    }

    pub fn code(mut self, language: Language, source: CodeSource, args: &[&str]) -> Self {
        let args = args.iter().map(ToString::to_string).collect();
        self.draft.workload = Workload::Code { language, source, args };
        self
    }

    /// A program that every stack can run.
    pub fn python(self, code: &str, args: &[&str]) -> Self {
        self.code(Language::Python, CodeSource::Inline(code.to_owned()), args)
    }

    /// A WASM component, or a module for WASI preview 1.
    pub fn component(mut self, component: &Component, args: &[&str]) -> Self {
        let args = args.iter().map(ToString::to_string).collect();
        self.draft.workload = Workload::Component { component: component.clone(), args };
        self
    }

    pub fn grant(mut self, capability: Capability) -> Self {
        self.draft.capabilities.push(capability);
        self
    }

    pub fn deterministic(mut self) -> Self {
        self.draft.deterministic = true;
        self
    }

    pub fn file(mut self, path: &str, mode: u32, bytes: &[u8]) -> Self {
        let entry = Entry::File { mode, size: bytes.len() as u64 };
        self.draft.files_in.push(path.to_owned());
        self.io.inputs.push(Input { path: path.to_owned(), entry, content: Some(in_memory(bytes)) });
        self
    }

    /// A directory, and what is below it: `(relative path, mode, bytes)`, or no bytes for a directory.
    pub fn tree(mut self, path: &str, mode: u32, members: &[(&str, u32, Option<&[u8]>)]) -> Self {
        self.draft.files_in.push(path.to_owned());
        self.io.inputs.push(Input { path: path.to_owned(), entry: Entry::Directory { mode }, content: None });
        for &(name, mode, bytes) in members {
            let entry = match bytes {
                Some(bytes) => Entry::File { mode, size: bytes.len() as u64 },
                None => Entry::Directory { mode },
            };
            let content = bytes.map(in_memory);
            self.io.inputs.push(Input { path: format!("{path}/{name}"), entry, content });
        }
        self
    }

    pub fn out(mut self, path: &str) -> Self {
        self.draft.files_out.push(path.to_owned());
        self.io.outbox = Some(Box::new(Collector(self.fetched.clone())));
        self
    }

    /// A root directory of the host as image.
    pub fn image(mut self, directory: &Path) -> Self {
        let root = File::open(directory).expect("the image directory can be opened");
        self.draft.image = ImageRef::Directory { label: "suite".into() };
        self.io.image = Some(OwnedFd::from(root));
        self
    }

    /// An image of the engine's own store.
    pub fn stored(mut self, image: ImageRef) -> Self {
        self.draft.image = image;
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.draft.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn cwd(mut self, path: &str) -> Self {
        self.draft.cwd = Some(path.to_owned());
        self
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.draft.stdin = Stdin::Provided;
        self.io.stdin = Some(Box::new(std::io::Cursor::new(bytes.into())));
        self
    }

    pub fn limit(mut self, kind: LimitKind, value: &str) -> Self {
        self.draft.limits.set(kind, kind.parse(value).expect("a limit"));
        self
    }

    pub fn timeout(self, value: &str) -> Self {
        self.limit(LimitKind::WallTime, value)
    }

    pub fn cpu_time(self, value: &str) -> Self {
        self.limit(LimitKind::CpuTime, value)
    }

    pub fn memory(self, value: &str) -> Self {
        self.limit(LimitKind::Memory, value)
    }

    pub fn disk(self, value: &str) -> Self {
        self.limit(LimitKind::Disk, value)
    }

    pub fn inodes(self, value: &str) -> Self {
        self.limit(LimitKind::Inodes, value)
    }

    pub fn pids(self, value: &str) -> Self {
        self.limit(LimitKind::Pids, value)
    }

    pub fn open_files(self, value: &str) -> Self {
        self.limit(LimitKind::OpenFiles, value)
    }

    pub fn max_output(self, value: &str) -> Self {
        self.limit(LimitKind::Output, value)
    }

    pub fn needs(mut self, need: Need) -> Self {
        self.draft.needs.push(need);
        self
    }

    pub fn tenant(mut self, name: &str) -> Self {
        self.draft.tenant = Some(name.to_owned());
        self
    }

    /// Anything that has no word of its own here.
    pub fn with(mut self, change: impl FnOnce(&mut RequestDraft)) -> Self {
        change(&mut self.draft);
        self
    }

    /// Waits this long after each chunk of output: a slow receiver.
    pub fn slowly(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Is shown output as it comes.
    pub fn watching(mut self, watcher: impl FnMut(&Chunk) + Send + 'e) -> Self {
        self.watcher = Some(Box::new(watcher));
        self
    }

    pub fn cancelled_by(mut self, cancel: watch::Receiver<bool>) -> Self {
        self.io.cancel = Some(cancel);
        self
    }

    /// What the request says when it is checked, without running anything.
    pub fn request(self) -> Result<Request, Invalid> {
        Request::new(self.draft)
    }

    pub async fn run(self) -> Ran {
        let CellBuilder { engine, draft, mut io, fetched, pause, mut watcher } = self;
        let request = match Request::new(draft) {
            Ok(request) => request,
            Err(invalid) => panic!("the suite wrote a senseless request: {invalid} (hint: {})", invalid.hint),
        };
        let (sender, mut receiver) = mpsc::channel(4);
        io.output = Some(sender);
        let started = Instant::now();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let listen = async {
            while let Some(chunk) = receiver.recv().await {
                if let Some(watcher) = &mut watcher {
                    watcher(&chunk);
                }
                match chunk.stream {
                    Stream::Stdout => stdout.extend(chunk.bytes),
                    Stream::Stderr => stderr.extend(chunk.bytes),
                }
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
        };
        let execute = async {
            let executed = engine.execute(request, io).await;
            (executed, started.elapsed())
        };
        let ((executed, took), ()) = tokio::join!(execute, listen);
        let Executed { outcome, receipt, evidence_error } = executed;
        assert_eq!(evidence_error, None, "the record could not be written");
        let files = std::mem::take(&mut *fetched.lock().unwrap_or_else(PoisonError::into_inner));
        Ran { outcome, receipt, stdout, stderr, files, took }
    }
}

impl std::fmt::Debug for CellBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CellBuilder").field("draft", &self.draft).finish_non_exhaustive()
    }
}

impl Ran {
    /// The exit code, if it exited.
    pub fn code(&self) -> Option<i32> {
        match self.outcome.status {
            Status::Exited { code } => Some(code),
            _ => None,
        }
    }

    pub fn refusal(&self) -> Option<&Refusal> {
        match &self.outcome.status {
            Status::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn hit(&self, kind: LimitKind) -> Option<LimitHit> {
        self.outcome.limits_hit.iter().copied().find(|hit| hit.kind == kind)
    }

    /// How long it took until the payload ran.
    pub fn before_the_payload(&self) -> Duration {
        let phases = self.outcome.timings.iter().take_while(|(phase, _)| *phase != "run");
        phases.map(|(_, took)| *took).sum()
    }

    /// How it ended and what it wrote, for the message of a failed test.
    pub fn story(&self) -> String {
        let tail = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned();
            text.escape_debug().to_string().replace("\\n", "\n      ")
        };
        let hits: Vec<String> = self.outcome.limits_hit.iter().map(LimitHit::describe).collect();
        format!(
            "{} after {:?}, limits hit {hits:?}, denied {:?}\n      out: {}\n      err: {}",
            self.outcome.status.describe(),
            self.took,
            self.outcome.denied,
            tail(&self.stdout),
            tail(&self.stderr)
        )
    }
}

/// A file that exists nowhere but in memory.
fn in_memory(bytes: &[u8]) -> File {
    let fd = rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::CLOEXEC).expect("memory for a file");
    let mut file = File::from(fd);
    file.write_all(bytes).and_then(|()| file.rewind()).expect("memory for a file");
    file
}

struct Collector(Arc<Mutex<Fetched>>);

impl Outbox for Collector {
    fn entry(&mut self, index: usize, path: &str, entry: Entry) -> std::io::Result<()> {
        let mut fetched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fetched.entries.push(FetchedEntry { index, path: path.to_owned(), entry, bytes: Vec::new() });
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut fetched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = fetched.entries.last_mut().ok_or_else(|| std::io::Error::other("bytes without a file"))?;
        last.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn skipped(&mut self, index: usize, path: &str, why: &str) {
        let mut fetched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fetched.skipped.push((index, path.to_owned(), why.to_owned()));
    }
}
