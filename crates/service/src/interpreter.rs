//! Code that runs piece by piece and keeps what it defines.
//!
//! A context is an ordinary program of its session: ours (`python.py`, `javascript.js`), started like any other, with a record of its
//! own. It gets code on its standard input, one piece at a time, and what it writes is believed no more than any payload's: it is
//! bounded, parsed strictly, and concerns nobody but its own context.

mod frames;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use casemate_core::limits::LimitKind;
use casemate_core::outcome::Cause;
use casemate_core::request::{self, CodeSource, RequestDraft, Workload};
use casemate_engine::session::{ProcessControl, SessionExec};
use casemate_engine::{Chunk, Stream};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex as Turn, mpsc};
use tokio::time::{Instant, sleep_until, timeout};

use crate::app::App;
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Log, LogOf, Reading, Said, Start};
use frames::{Nonsense, Part, Splitter, Told};

/// What our programs are called in lists of programs.
pub(crate) const TAG: &str = "casemate:context";
const PYTHON: &str = include_str!("interpreter/python.py");
const JAVASCRIPT: &str = include_str!("interpreter/javascript.js");
/// Tracebacks know our program by this name.
const LOADER: &str = "import sys; exec(compile(sys.argv.pop(), '<casemate>', 'exec'))";

/// In one session.
const MAX_CONTEXTS: usize = 16;
/// Results of one piece of code.
const MAX_RESULTS: usize = 1000;
/// Events that wait for a reader. When there are more, the code waits.
const PENDING: usize = 16;
/// How long code may take to heed an interrupt.
const GRACE: Duration = Duration::from_secs(3);
/// How long a reader may take nothing before it is taken for gone.
const DAWDLING: Duration = Duration::from_secs(60);
const SIGINT: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    Javascript,
}

/// Those of one session, by id.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    known: Mutex<BTreeMap<String, Arc<Context>>>,
    /// One at a time, so that two who need the same one do not make two.
    opening: Turn<()>,
}

/// Where code runs and leaves what it defines. One piece at a time; the others wait for their turn.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) id: String,
    pub(crate) language: Language,
    pub(crate) cwd: String,
    /// It runs what names no context.
    is_default: bool,
    control: Mutex<ProcessControl>,
    line: Turn<Line>,
}

/// To and from the program of a context.
#[derive(Debug)]
struct Line {
    /// As its record has it.
    process: String,
    control: ProcessControl,
    reading: Reading<LogOf>,
    stdout: Splitter,
    stderr: Splitter,
    /// Bytes that came, of those that may come from a program.
    received: u64,
    most: u64,
}

/// What came of a piece of code that ran to its end.
struct Ran {
    count: u64,
    failed: bool,
}

/// Something to run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Piece {
    pub(crate) code: String,
    /// Set while it runs.
    pub(crate) env: BTreeMap<String, String>,
    /// After this long it is interrupted; what was defined stays.
    pub(crate) timeout: Option<Duration>,
}

/// What is heard of a piece of code.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    Stdout(String),
    Stderr(String),
    /// By media type. `is_main`: the value of the last expression.
    Result {
        formats: Map<String, Value>,
        is_main: bool,
    },
    Error(Failure),
    /// The last one, unless the context is lost. `id` is that of the record.
    Done {
        count: u64,
        id: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) traceback: String,
}

/// A piece of code that runs, or waits for its turn. Dropped, it is interrupted.
#[derive(Debug)]
pub(crate) struct Run(mpsc::Receiver<Event>);

/// Why code was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    Late(Duration),
    Unwanted,
    /// It wrote more than a program of this session may, so that nothing of it can be heard any more.
    Verbose(u64),
    Nonsense,
}

impl Language {
    pub(crate) const ALL: [Language; 2] = [Language::Python, Language::Javascript];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Javascript => "javascript",
        }
    }

    fn workload(self) -> Workload {
        let (language, code, args) = match self {
            Language::Python => (request::Language::Python, LOADER, vec![PYTHON.to_owned()]),
            Language::Javascript => (request::Language::Javascript, JAVASCRIPT, Vec::new()),
        };
        Workload::Code { language, source: CodeSource::Inline(code.to_owned()), args }
    }
}

impl FromStr for Language {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Language, Problem> {
        let found = Language::ALL.into_iter().find(|known| known.as_str() == text);
        found.ok_or_else(|| {
            let hint = "use python or javascript; anything else runs as a program of the session";
            Problem::new(Code::Invalid, format!("there are no contexts for {text:?}"), hint)
        })
    }
}

impl Contexts {
    /// The one for code that names none. Made when it is first needed, and anew when it is gone.
    pub(crate) async fn default_of(
        app: &App,
        live: &Arc<Live>,
        language: Language,
    ) -> Result<Arc<Context>, Problem> {
        let _turn = live.contexts.opening.lock().await;
        let is_it = |context: &&Arc<Context>| context.is_default && context.language == language;
        let found = live.contexts.lock().values().find(is_it).cloned();
        if let Some(context) = found {
            return Ok(context);
        }
        Contexts::open(app, live, language, None, true).await
    }

    pub(crate) async fn create(
        app: &App,
        live: &Arc<Live>,
        language: Language,
        cwd: Option<String>,
    ) -> Result<Arc<Context>, Problem> {
        let _turn = live.contexts.opening.lock().await;
        Contexts::open(app, live, language, cwd, false).await
    }

    async fn open(
        app: &App,
        live: &Arc<Live>,
        language: Language,
        cwd: Option<String>,
        is_default: bool,
    ) -> Result<Arc<Context>, Problem> {
        if live.contexts.lock().len() >= MAX_CONTEXTS {
            let detail = format!("there are {MAX_CONTEXTS} contexts in this session");
            return Err(Problem::new(Code::Quota, detail, "remove one of them"));
        }
        let line = Line::open(app, live, language, cwd.clone()).await?;
        let context = Arc::new(Context {
            id: random()?,
            language,
            cwd: cwd.unwrap_or_else(|| "/work".to_owned()),
            is_default,
            control: Mutex::new(line.control.clone()),
            line: Turn::new(line),
        });
        live.contexts.lock().insert(context.id.clone(), context.clone());
        Ok(context)
    }

    pub(crate) fn find(&self, id: &str) -> Result<Arc<Context>, Problem> {
        self.lock().get(id).cloned().ok_or_else(|| Problem::not_found("context"))
    }

    pub(crate) fn list(&self) -> Vec<Arc<Context>> {
        self.lock().values().cloned().collect()
    }

    /// Whether code runs in any of them. Those that only wait for code do nothing.
    pub(crate) fn are_busy(&self) -> bool {
        self.lock().values().any(|context| context.line.try_lock().is_err())
    }

    /// Ends one, and everything in it.
    pub(crate) fn remove(&self, id: &str) -> Result<(), Problem> {
        let removed = self.lock().remove(id).ok_or_else(|| Problem::not_found("context"))?;
        removed.kill();
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Context>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Runs code, as soon as it is its turn.
    pub(crate) fn run(self: &Arc<Context>, app: &App, live: &Arc<Live>, piece: Piece) -> Run {
        let (events, receiver) = mpsc::channel(PENDING);
        let (context, app, live) = (self.clone(), app.clone(), live.clone());
        tokio::spawn(async move {
            let mut line = tokio::select! {
                line = context.line.lock() => line,
                () = events.closed() => return,
            };
            let (sha256, bytes) = (Sha256::digest(&piece.code).into(), piece.code.len());
            let ran = line.run(piece, &events).await;
            let result = match &ran {
                Ok(Ran { failed: false, .. }) => "ok",
                Ok(Ran { failed: true, .. }) => "error",
                Err(_) => "lost",
            };
            let of = (line.process.as_str(), context.language.as_str());
            let noted = live.session.note_code(of.0, of.1, sha256, bytes, result).await;
            let last = match (ran, noted) {
                (Ok(Ran { count, .. }), Ok(id)) => {
                    app.state.noted(
                        &id,
                        &live.tenant,
                        "code",
                        live.session.id(),
                        app.engine.run_id(),
                        result,
                    );
                    Event::Done { count, id }
                }
                (Ok(_), Err(error)) => Event::Error(lost(None, &error.to_string())),
                (Err(failure), _) => {
                    live.contexts.lock().remove(&context.id);
                    Event::Error(failure)
                }
            };
            let _ = events.send(last).await;
        });
        Run(receiver)
    }

    /// Nothing of what was defined stays.
    pub(crate) async fn restart(self: &Arc<Context>, app: &App, live: &Arc<Live>) -> Result<(), Problem> {
        self.kill();
        let mut line = self.line.lock().await;
        *line = Line::open(app, live, self.language, Some(self.cwd.clone())).await?;
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = line.control.clone();
        // What ran in it has taken it for lost.
        live.contexts.lock().insert(self.id.clone(), self.clone());
        Ok(())
    }

    fn kill(&self) {
        self.control.lock().unwrap_or_else(PoisonError::into_inner).kill(Cause::Cancelled);
    }
}

impl Run {
    /// The next that is heard. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

impl Line {
    async fn open(
        app: &App,
        live: &Arc<Live>,
        language: Language,
        cwd: Option<String>,
    ) -> Result<Line, Problem> {
        let mut request = RequestDraft::new(language.workload());
        request.cwd = cwd;
        let exec = SessionExec { request, stdin: true, terminal: None };
        let running = live.start(app, Start { exec, tag: Some(TAG.to_owned()) }).await?;
        let mark = format!("\x1e{}", random()?);
        let control = running.control.clone();
        let line = Line {
            process: running.id.clone(),
            control: control.clone(),
            reading: Log::read(LogOf(running), true),
            stdout: Splitter::new(&mark),
            stderr: Splitter::new(&mark),
            received: 0,
            most: live.session.limits().get(LimitKind::Output).map_or(u64::MAX, |bound| bound.value),
        };
        let greeting = control.stdin().send(written(&json!({"mark": mark}))).await;
        greeting
            .map_err(|_| Problem::new(Code::Ended, "the interpreter ended at once", "look at its output"))?;
        Ok(line)
    }

    /// From the code to its end. `Err`: the context is lost, for this reason.
    async fn run(&mut self, piece: Piece, events: &mpsc::Sender<Event>) -> Result<Ran, Failure> {
        let request = written(&json!({"code": piece.code, "env": piece.env}));
        let input = self.control.stdin();
        let mut sending = std::pin::pin!(input.send(request));
        let (mut sent, mut stopped, mut results) = (false, None, 0);
        let (mut count, mut errors_came, mut failed) = (None, false, false);
        let mut deadline = piece.timeout.map(|timeout| Instant::now() + timeout);
        while count.is_none() || !errors_came {
            let said = tokio::select! {
                _ = &mut sending, if !sent => {
                    sent = true;
                    continue;
                }
                said = self.reading.next() => said,
                () = wait_until(deadline) => {
                    match (stopped, piece.timeout) {
                        (None, Some(timeout)) => self.stop(&mut stopped, &mut deadline, Stopped::Late(timeout)),
                        // It does not listen.
                        _ => {
                            self.control.kill(Cause::Cancelled);
                            deadline = None;
                        }
                    }
                    continue;
                }
                () = events.closed(), if stopped.is_none() => {
                    self.stop(&mut stopped, &mut deadline, Stopped::Unwanted);
                    continue;
                }
            };
            let Chunk { stream, bytes } = match said {
                Said::Output(chunk) => chunk,
                Said::Missed => continue,
                Said::Ended(executed) => return Err(lost(stopped, &executed.outcome.status.describe())),
                Said::Lost => return Err(lost(stopped, "nobody knows why")),
            };
            self.received += bytes.len() as u64;
            if self.received >= self.most {
                stopped = Some(Stopped::Verbose(self.most));
                self.control.kill(Cause::Cancelled);
            }
            let heard = match stream {
                Stream::Stdout => self.stdout.take(&bytes),
                Stream::Stderr => self.stderr.take(&bytes),
            };
            let Ok(heard) = heard.and_then(|parts| understand(parts, stream)) else {
                stopped = Some(Stopped::Nonsense);
                self.control.kill(Cause::Cancelled);
                continue;
            };
            for heard in heard {
                let event = match heard {
                    Heard::Done { count: counted } => {
                        count = Some(counted);
                        continue;
                    }
                    Heard::ErrorsCame => {
                        errors_came = true;
                        continue;
                    }
                    Heard::Event(Event::Result { .. }) if results >= MAX_RESULTS => continue,
                    Heard::Event(Event::Error(failure)) => Event::Error(told(stopped, failure)),
                    Heard::Event(event) => event,
                };
                failed |= matches!(event, Event::Error(_));
                results += usize::from(matches!(event, Event::Result { .. }));
                let taken = timeout(DAWDLING, events.send(event)).await;
                if !matches!(taken, Ok(Ok(()))) && stopped.is_none() {
                    self.stop(&mut stopped, &mut deadline, Stopped::Unwanted);
                }
            }
        }
        Ok(Ran { count: count.unwrap_or_default(), failed })
    }

    /// Asks the code to end. It has a moment to do so.
    fn stop(&self, stopped: &mut Option<Stopped>, deadline: &mut Option<Instant>, why: Stopped) {
        *stopped = Some(why);
        *deadline = Some(Instant::now() + GRACE);
        self.control.signal(SIGINT);
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

enum Heard {
    Event(Event),
    Done {
        count: u64,
    },
    /// Everything that was written to standard error so far has come.
    ErrorsCame,
}

fn understand(parts: Vec<Part>, stream: Stream) -> Result<Vec<Heard>, Nonsense> {
    let heard = |part| {
        Ok(match (part, stream) {
            (Part::Text(text), Stream::Stdout) => Heard::Event(Event::Stdout(text)),
            (Part::Text(text), Stream::Stderr) => Heard::Event(Event::Stderr(text)),
            (Part::Frame(_), Stream::Stderr) => Heard::ErrorsCame,
            (Part::Frame(frame), Stream::Stdout) => match Told::read(&frame)? {
                Told::Result { main, data } => {
                    Heard::Event(Event::Result { formats: frames::formats(data), is_main: main })
                }
                Told::Error { name, value, traceback } => {
                    Heard::Event(Event::Error(Failure { name, value, traceback }))
                }
                Told::Done { count } => Heard::Done { count },
            },
        })
    };
    parts.into_iter().map(heard).collect()
}

/// An error that we caused is called by its cause.
fn told(stopped: Option<Stopped>, failure: Failure) -> Failure {
    match stopped {
        Some(Stopped::Late(timeout)) => Failure { traceback: failure.traceback, ..late(timeout) },
        _ => failure,
    }
}

fn late(timeout: Duration) -> Failure {
    let value = format!("the code ran for longer than {timeout:?}");
    Failure { name: "Timeout".to_owned(), value, traceback: String::new() }
}

/// There is nothing left to run code in.
fn lost(stopped: Option<Stopped>, how: &str) -> Failure {
    let value = match stopped {
        Some(Stopped::Late(timeout)) => {
            let late = late(timeout);
            return Failure {
                value: format!("{} and heeded no interrupt; its context is gone", late.value),
                ..late
            };
        }
        Some(Stopped::Verbose(most)) => format!(
            "the interpreter wrote {most} bytes, which is all that a program of this session may (limit `output`)"
        ),
        Some(Stopped::Nonsense) => Nonsense.to_string(),
        Some(Stopped::Unwanted) | None => format!("the interpreter is gone: {how}"),
    };
    Failure { name: "ContextLost".to_owned(), value, traceback: String::new() }
}

fn written(line: &Value) -> Vec<u8> {
    let mut line = line.to_string().into_bytes();
    line.push(b'\n');
    line
}

fn random() -> Result<String, Problem> {
    crate::token::random().map_err(|error| Problem::internal(error.to_string()))
}
