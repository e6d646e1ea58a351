//! Sessions: one cell for several programs, which come and go.
//!
//! One task owns the cell ([`actor`]); everybody else talks to it. What was decided when the session was opened holds for everything in
//! it, and every program has a record of its own that points to the session's. The first program passes the gate like that of
//! any other cell; until then, only files can be put into it.

mod actor;
mod flow;
mod notes;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use casemate_core::limits::{LimitKind, Limits};
use casemate_core::outcome::{Cause, Refusal, Status};
use casemate_core::plan::Plan;
use casemate_core::request::{Request, RequestDraft, Workload};
use casemate_core::stack::{Class, Stack};
use casemate_wire::guest::FileRequest;
use tokio::sync::{mpsc, oneshot, watch};

use crate::execute::{Engine, Executed, not_recorded};
use crate::io::{Chunk, Entry};
use crate::run::{Ran, Trouble};

use actor::{Actor, Code, Command};
pub use casemate_wire::guest::{Change, FileInfo, FileKind, TerminalSize};
pub use flow::{Inflow, Outflow};

/// What is told of a cell that several programs run in. The cell lives until it is ended, its time is over, or the last of these
/// is dropped.
#[derive(Debug, Clone)]
pub struct Session(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    id: String,
    plan: Plan,
    commands: mpsc::UnboundedSender<Command>,
    ended: watch::Receiver<Option<Arc<Executed>>>,
    next_number: AtomicU32,
}

/// A program takes several numbers, for itself and its streams. None is used twice in a session.
const FIRST_NUMBER: u32 = 16;
const NUMBERS: u32 = 4;
/// What a list may have.
const MAX_LISTED: u32 = 50_000;
/// Changes that wait to be taken.
const KEPT_CHANGES: usize = 1024;

/// A program to be run in a session.
#[derive(Debug)]
pub struct SessionExec {
    pub request: RequestDraft,
    /// Somebody will write to its standard input.
    pub stdin: bool,
    pub terminal: Option<TerminalSize>,
}

/// A program that runs in a session.
#[derive(Debug)]
pub struct Process {
    /// As the record has it.
    pub id: String,
    pub control: ProcessControl,
    /// What it writes, until it has ended and everything was taken.
    pub output: Outflow<Chunk>,
    /// What came of it, once its record is closed.
    pub ended: oneshot::Receiver<Executed>,
}

/// To whom a program listens.
#[derive(Debug, Clone)]
pub struct ProcessControl {
    number: u32,
    /// As numbered in the cell.
    pub pid: u32,
    commands: mpsc::UnboundedSender<Command>,
}

/// Why something could not be done to a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// What the kernel of the cell said.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Kernel(i32),
    #[error("the session has ended")]
    Ended,
}

/// Why there is no record of a piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    #[error("no program of this session has this id")]
    UnknownProcess,
    /// Also if it has ended because this could not be recorded.
    #[error("the session has ended")]
    Ended,
}

/// A part of a file or tree on its way out of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Entry {
        path: String,
        entry: Entry,
    },
    Data(Vec<u8>),
    Skipped {
        path: String,
        why: String,
    },
    /// It stopped here.
    Failed(FileError),
}

/// Something that changed in a directory that is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// `path` is relative to the watched directory.
    Entry { path: String, change: Change },
    /// More than could be told.
    Lost,
}

impl Engine {
    /// Opens a session: decides, routes, records, builds the cell. `Err` is a refusal or failure, recorded like that of an execution.
    pub async fn open_session(&self, request: Request) -> Result<Session, Box<Executed>> {
        let request = Arc::new(request);
        let mut record = self.new_record();
        let opened = async {
            if *request.workload() != Workload::Session {
                return Err(Trouble::Failed("this is not the request of a session".into()));
            }
            let decision = self.decide(&request).map_err(Trouble::Refused)?;
            let plan = Plan::new(request.clone(), decision);
            let stored = self.image_of(&request).map_err(Trouble::Refused)?;
            let started = self.start(&plan, stored.as_ref().map(|stored| stored.dir.as_fd())).await;
            record.planned(&request, &plan, None).map_err(not_recorded)?;
            Ok((plan, started?, stored))
        }
        .await;
        let (plan, cell, stored) = match opened {
            Ok(opened) => opened,
            Err(trouble) => {
                return Err(Box::new(record.close(Some(&request), trouble.into(), Ran::default())));
            }
        };
        let id = record.id().to_owned();
        let mut actor = Actor::new(plan.clone(), cell, record, self.identifier(stored));
        if let Err(trouble) = actor.greet().await {
            return Err(Box::new(actor.give_up(&request, trouble).await));
        }
        let (commands, inbox) = mpsc::unbounded_channel();
        let (tell, ended) = watch::channel(None);
        tokio::spawn(async move {
            let executed = actor.live(inbox, &request).await;
            tell.send_replace(Some(Arc::new(executed)));
        });
        let next_number = AtomicU32::new(FIRST_NUMBER);
        Ok(Session(Arc::new(Shared { id, plan, commands, ended, next_number })))
    }
}

impl Session {
    pub fn id(&self) -> &str {
        &self.0.id
    }

    pub fn stack(&self) -> &Stack {
        self.0.plan.stack()
    }

    pub fn class(&self) -> Class {
        self.0.plan.class()
    }

    pub fn limits(&self) -> &Limits {
        self.0.plan.limits()
    }

    pub fn unbounded(&self) -> &[LimitKind] {
        self.0.plan.unbounded()
    }

    /// What came of it, once it is over.
    pub fn outcome(&self) -> Option<Arc<Executed>> {
        self.0.ended.borrow().clone()
    }

    /// Waits until it is over and its record closed.
    pub async fn ended(&self) -> Option<Arc<Executed>> {
        let mut ended = self.0.ended.clone();
        ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone())
    }

    /// Ends it, for this reason. Everything in it is killed.
    pub async fn end(&self, cause: Cause) -> Option<Arc<Executed>> {
        self.send(Command::End { cause });
        self.ended().await
    }

    /// Starts a program. `Err` is a refusal or failure, which is recorded, too.
    pub async fn exec(&self, exec: SessionExec) -> Result<Process, Box<Executed>> {
        let number = self.number();
        let process = Box::new(Process::starting(number, self.0.commands.clone()));
        let (reply, answer) = oneshot::channel();
        self.send(Command::Exec { number, exec: Box::new(exec), process, reply });
        answer.await.unwrap_or_else(|_| Err(Box::new(self.gone())))
    }

    /// Puts a file in, whose bytes come from the returned flow. Its parents must be there.
    pub fn put(&self, path: &str, mode: u32) -> (Inflow, oneshot::Receiver<Result<(), FileError>>) {
        let (done, answer) = oneshot::channel();
        let number = self.number();
        let entry = Entry::File { mode, size: u64::MAX };
        self.send(Command::Put { number, path: path.to_owned(), entry, done });
        (Inflow { number, commands: self.0.commands.clone() }, answer)
    }

    /// Gets a file, or a directory with everything in it.
    pub fn get(&self, path: &str, max_bytes: u64, max_entries: u32) -> Outflow<Piece> {
        let number = self.number();
        let (pieces, outflow) = Outflow::new(number, self.0.commands.clone());
        self.send(Command::Get { number, path: path.to_owned(), max_bytes, max_entries, pieces });
        outflow
    }

    /// What is at `path`, first itself, then what is below it down to `depth`, by path relative to it.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<(String, FileInfo)>, FileError> {
        self.files(FileRequest::List { path: path.to_owned(), depth, max_entries: MAX_LISTED }).await
    }

    /// Makes a directory, and what is missing above it. `false`: it was there.
    pub async fn make_directory(&self, path: &str) -> Result<bool, FileError> {
        let made = self.files(FileRequest::MakeDirectory { path: path.to_owned() }).await?;
        Ok(!made.is_empty())
    }

    pub async fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        self.files(FileRequest::Rename { from: from.to_owned(), to: to.to_owned() }).await.map(drop)
    }

    pub async fn remove(&self, path: &str) -> Result<(), FileError> {
        self.files(FileRequest::Remove { path: path.to_owned() }).await.map(drop)
    }

    /// Tells of changes in a directory until the receiver is dropped.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<mpsc::Receiver<Changed>, FileError> {
        let (changes, receiver) = mpsc::channel(KEPT_CHANGES);
        let (done, answer) = oneshot::channel();
        let (number, path) = (self.number(), path.to_owned());
        self.send(Command::Watch { number, path, recursive, changes, done });
        answer.await.unwrap_or(Err(FileError::Ended)).map(|()| receiver)
    }

    /// Records a piece of code that an interpreter was given, which is the program with the id `process_id`, and what came of it
    /// (`ok`, `error`, `killed`). Returns the id of the record.
    pub async fn note_code(
        &self,
        process_id: &str,
        language: &str,
        code_sha256: [u8; 32],
        code_bytes: usize,
        result: &str,
    ) -> Result<String, NoteError> {
        let (done, answer) = oneshot::channel();
        let code = Box::new(Code {
            process: process_id.to_owned(),
            language: language.to_owned(),
            sha256: code_sha256,
            bytes: code_bytes as u64,
            result: result.to_owned(),
        });
        self.send(Command::NoteCode { code, done });
        answer.await.unwrap_or(Err(NoteError::Ended))
    }

    /// Everything in it stands still, and the clocks of its programs with it. Its own time goes on.
    pub async fn pause(&self) -> Result<(), FileError> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Pause { number: self.number(), done });
        answer.await.unwrap_or(Err(FileError::Ended))
    }

    pub async fn resume(&self) -> Result<(), FileError> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Resume { number: self.number(), done });
        answer.await.unwrap_or(Err(FileError::Ended))
    }

    async fn files(&self, request: FileRequest) -> Result<Vec<(String, FileInfo)>, FileError> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Files { number: self.number(), request, done });
        answer.await.unwrap_or(Err(FileError::Ended))
    }

    fn number(&self) -> u32 {
        self.0.next_number.fetch_add(NUMBERS, Ordering::Relaxed)
    }

    /// Whoever waits for an answer is told if there is nobody who could give one.
    fn send(&self, command: Command) {
        let _ = self.0.commands.send(command);
    }

    fn gone(&self) -> Executed {
        let refusal = Refusal::new("the session has ended", "create another one");
        Executed {
            outcome: casemate_core::outcome::Outcome::without_cell("", Status::Refused(refusal)),
            receipt: None,
            evidence_error: None,
        }
    }
}

impl ProcessControl {
    /// Where its standard input comes from, if it was asked for.
    pub fn stdin(&self) -> Inflow {
        Inflow { number: self.number, commands: self.commands.clone() }
    }

    /// To it and everything in its session.
    pub fn signal(&self, signal: u8) {
        let _ = self.commands.send(Command::Signal { number: self.number, signal });
    }

    /// Ends it as if its time were over, for this reason.
    pub fn kill(&self, cause: Cause) {
        let _ = self.commands.send(Command::Kill { number: self.number, cause });
    }

    pub fn resize(&self, size: TerminalSize) {
        let _ = self.commands.send(Command::Resize { number: self.number, size });
    }
}
