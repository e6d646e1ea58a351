//! The files of a session: what goes in and comes out, what is asked and watched, and what is recorded of it.

use casemate_wire::frame::ReceiveWindow;
use casemate_wire::guest::{Entry, FileInfo, FileRequest, Id, ToGuest, ToHost};
use tokio::sync::{mpsc, oneshot};

use super::{Actor, Code, Done, Feed};
use crate::evidence::Note;
use crate::execute::not_recorded;
use crate::guest::ChannelError;
use crate::run::Trouble;
use crate::session::flow::{Credit, Source};
use crate::session::notes::{Moved, Transfer};
use crate::session::{Changed, FileError, NoteError, Piece};

/// Transfers, questions and watches that go on at the same time.
const MAX_OTHERS: usize = 64;
/// Why the record of a transfer does not say `ok`, if not for something that the cell's kernel said.
const GIVEN_UP: &str = "whoever asked for it has gone";
const ENDED: &str = "the session has ended";

pub(super) struct Putting {
    pub(super) transfer: Transfer,
    pub(super) feed: Feed,
    pub(super) done: Done<()>,
}

pub(super) struct Getting {
    pub(super) transfer: Transfer,
    pub(super) moved: Moved,
    pub(super) pieces: Option<Source<Piece>>,
    pub(super) window: ReceiveWindow,
    pub(super) outstanding: usize,
    /// What is still to come of the current file.
    pub(super) left: u64,
    /// Something of it was thrown away.
    pub(super) lost: bool,
    told: Told,
}

/// What a guest has said of files, which nobody may have taken yet: it must come to an end.
#[derive(Default)]
pub(super) struct Told {
    files: usize,
    bytes: usize,
}

/// Of one answer.
const MAX_TOLD_FILES: usize = 100_000;
const MAX_TOLD_BYTES: usize = 8 << 20;

impl Told {
    fn more(&mut self, path: &str) -> Result<(), Trouble> {
        self.files += 1;
        self.bytes += path.len();
        match self.files <= MAX_TOLD_FILES && self.bytes <= MAX_TOLD_BYTES {
            true => Ok(()),
            false => Err(ChannelError::Order("more files than were asked for").into()),
        }
    }
}

pub(super) struct Question {
    pub(super) transfer: Option<Transfer>,
    pub(super) found: Vec<(String, FileInfo)>,
    pub(super) told: Told,
    pub(super) done: Answer,
}

pub(super) enum Answer {
    Found(Done<Vec<(String, FileInfo)>>),
    Nothing(Done<()>),
    /// Everything stands still, or goes on after all.
    Paused(Done<()>),
    /// Nobody waits for it.
    Nobody,
}

pub(super) struct Watching {
    pub(super) changes: mpsc::Sender<Changed>,
    pub(super) lost: bool,
}

impl Actor {
    pub(super) fn put(&mut self, number: Id, path: &str, entry: Entry, done: Done<()>) {
        if self.is_crowded() {
            let _ = done.send(Err(FileError::Kernel(libc::EAGAIN)));
            return;
        }
        let transfer = Transfer::put(path);
        let path = self.cell.places.resolve(path);
        self.cell.channel.ask(&ToGuest::Put { id: number, path, entry });
        let feed = Feed { stream: number, ..Feed::default() };
        self.puts.insert(number, Putting { transfer, feed, done });
    }

    pub(super) fn get(
        &mut self,
        number: Id,
        path: &str,
        (max_bytes, max_entries): (u64, u32),
        pieces: Source<Piece>,
    ) {
        if self.is_crowded() {
            let failed = Piece::Failed(FileError::Kernel(libc::EAGAIN));
            let _ = pieces.send((failed, Credit { stream: number, bytes: 0 }));
            return;
        }
        let getting = Getting {
            transfer: Transfer::get(path),
            moved: Moved::default(),
            pieces: Some(pieces),
            window: ReceiveWindow::default(),
            outstanding: 0,
            left: 0,
            lost: false,
            told: Told::default(),
        };
        let path = self.cell.places.resolve(path);
        self.cell.channel.ask(&ToGuest::Get { id: number, path, max_bytes, max_entries });
        self.gets.insert(number, getting);
    }

    pub(super) fn ask(&mut self, number: Id, message: ToGuest, transfer: Option<Transfer>, done: Answer) {
        if self.is_crowded() {
            return done.fail(FileError::Kernel(libc::EAGAIN));
        }
        self.cell.channel.ask(&message);
        self.questions.insert(number, Question { transfer, found: Vec::new(), told: Told::default(), done });
    }

    /// The same, with the cell's own paths.
    pub(super) fn in_place(&self, request: FileRequest) -> FileRequest {
        let place = |path: String| self.cell.places.resolve(&path);
        match request {
            FileRequest::List { path, depth, max_entries } => {
                FileRequest::List { path: place(path), depth, max_entries }
            }
            FileRequest::MakeDirectory { path } => FileRequest::MakeDirectory { path: place(path) },
            FileRequest::Rename { from, to } => FileRequest::Rename { from: place(from), to: place(to) },
            FileRequest::Remove { path } => FileRequest::Remove { path: place(path) },
            FileRequest::Watch { path, recursive } => FileRequest::Watch { path: place(path), recursive },
            FileRequest::Unwatch { watch } => FileRequest::Unwatch { watch },
        }
    }

    /// A part of a file that is being read.
    pub(super) fn receive_file(&mut self, stream: Id, bytes: Vec<u8>) -> Result<(), Trouble> {
        let Some(get) = self.gets.get_mut(&stream) else { return Ok(()) };
        get.window.receive(bytes.len()).map_err(ChannelError::from)?;
        let short = ChannelError::Order("a file longer than announced");
        get.left = get.left.checked_sub(bytes.len() as u64).ok_or(short)?;
        get.outstanding += bytes.len();
        get.moved.bytes(&bytes);
        let credit = Credit { stream, bytes: bytes.len() };
        let taken = get.pieces.as_ref().is_some_and(|to| to.send((Piece::Data(bytes), credit)).is_ok());
        if !taken {
            get.lost = true;
            self.credit(credit);
        }
        Ok(())
    }

    /// What a guest says about files, and nothing else.
    pub(super) fn hear_of_files(&mut self, message: ToHost) -> Result<(), Trouble> {
        match message {
            ToHost::PutDone { id } => {
                let put = self.puts.remove(&id).ok_or(ChannelError::Order("a file that nobody sent"))?;
                let (moved, transfer, done) = put.end();
                self.note(&transfer, Some(moved), Ok(()))?;
                let _ = done.send(Ok(()));
            }
            ToHost::GetEntry { id, path, entry } => {
                let get =
                    self.gets.get_mut(&id).ok_or(ChannelError::Order("a file that nobody asked for"))?;
                crate::transfer::check_relative(&path)?;
                get.told.more(&path)?;
                get.left = match entry {
                    Entry::File { size, .. } => {
                        get.moved.file(get.transfer.name_of(&path));
                        size
                    }
                    Entry::Directory { .. } => 0,
                };
                get.tell(id, Piece::Entry { path, entry });
            }
            ToHost::GetSkipped { id, path, why } => {
                if let Some(get) = self.gets.get_mut(&id) {
                    get.told.more(&path)?;
                    get.tell(id, Piece::Skipped { path, why });
                }
            }
            ToHost::GetDone { id } => {
                let get = self.gets.remove(&id).ok_or(ChannelError::Order("an end that nobody waits for"))?;
                let result = if get.lost { Err(GIVEN_UP) } else { Ok(()) };
                // Before whoever asked sees the end.
                self.note(&get.transfer, Some(get.moved), result)?;
            }
            ToHost::TransferFailed { id, errno, .. } => {
                let error = FileError::Kernel(errno);
                let why = error.to_string();
                if let Some(put) = self.puts.remove(&id) {
                    let (moved, transfer, done) = put.end();
                    self.note(&transfer, Some(moved), Err(&why))?;
                    let _ = done.send(Err(error));
                } else if let Some(mut get) = self.gets.remove(&id) {
                    self.note(&get.transfer, Some(std::mem::take(&mut get.moved)), Err(&why))?;
                    get.tell(id, Piece::Failed(error));
                } else if let Some(question) = self.questions.remove(&id) {
                    self.watches.remove(&id);
                    if matches!(question.done, Answer::Paused(_)) {
                        self.go_on();
                    }
                    if let Some(transfer) = &question.transfer {
                        self.note(transfer, None, Err(&why))?;
                    }
                    question.done.fail(error);
                }
            }
            ToHost::Found { id, path, info } => {
                let question =
                    self.questions.get_mut(&id).ok_or(ChannelError::Order("an answer to no question"))?;
                crate::transfer::check_relative(&path)?;
                question.told.more(&path)?;
                question.found.push((path, info));
            }
            ToHost::FilesDone { id } => {
                let question =
                    self.questions.remove(&id).ok_or(ChannelError::Order("an answer to no question"))?;
                if let Some(transfer) = &question.transfer {
                    self.note(transfer, None, Ok(()))?;
                }
                match question.done {
                    Answer::Found(done) => drop(done.send(Ok(question.found))),
                    Answer::Nothing(done) | Answer::Paused(done) => drop(done.send(Ok(()))),
                    Answer::Nobody => {}
                }
            }
            ToHost::Changed { watch, path, change } => {
                crate::transfer::check_relative(&path)?;
                self.tell_change(watch, Changed::Entry { path, change });
            }
            ToHost::ChangesLost { watch } => self.tell_change(watch, Changed::Lost),
            _ => return Err(ChannelError::Order("unexpected frame in a session").into()),
        }
        Ok(())
    }

    /// Files that nobody will send the rest of end where they are, and what nobody hears of is not watched any more.
    pub(super) fn tidy(&mut self) {
        let mut given_up = Vec::new();
        for (number, put) in self.puts.iter_mut().filter(|(_, put)| put.done.is_closed()) {
            put.feed.ended = true;
            given_up.push(*number);
        }
        given_up.into_iter().for_each(|number| self.pump(number));
        let unheard = |(number, watching): (&Id, &Watching)| {
            let answered = !self.questions.contains_key(number);
            (answered && watching.changes.is_closed()).then_some(*number)
        };
        let unheard: Vec<Id> = self.watches.iter().filter_map(unheard).collect();
        unheard.into_iter().for_each(|watch| self.unwatch(watch));
    }

    /// The number of the watch serves for the question, too: its own was answered.
    fn unwatch(&mut self, watch: Id) {
        self.watches.remove(&watch);
        let request = FileRequest::Unwatch { watch };
        self.questions.insert(
            watch,
            Question { transfer: None, found: Vec::new(), told: Told::default(), done: Answer::Nobody },
        );
        self.cell.channel.ask(&ToGuest::Files { id: watch, request });
    }

    fn tell_change(&mut self, watch: Id, changed: Changed) {
        let Some(watching) = self.watches.get_mut(&watch) else { return };
        if watching.lost && watching.changes.try_send(Changed::Lost).is_ok() {
            watching.lost = false;
        }
        match watching.changes.try_send(changed) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => watching.lost = true,
            // Nobody listens any more.
            Err(mpsc::error::TrySendError::Closed(_)) => self.unwatch(watch),
        }
    }

    pub(super) fn note_code(
        &self,
        code: &Code,
        done: oneshot::Sender<Result<String, NoteError>>,
    ) -> Result<(), Trouble> {
        let Code { process, language, sha256, bytes, result } = code;
        if !self.programs.contains(process) {
            let _ = done.send(Err(NoteError::UnknownProcess));
            return Ok(());
        }
        let (tenant, bytes, sha256) = (self.plan.tenant(), *bytes, *sha256);
        let noted = self.record.note(&Note::Code { tenant, process, language, bytes, sha256, result });
        let id = noted.map_err(not_recorded)?;
        let _ = done.send(Ok(id));
        Ok(())
    }

    /// What was going on when the session ended. If that cannot be recorded, nor can the end.
    pub(super) fn note_unfinished(&mut self) {
        for put in std::mem::take(&mut self.puts).into_values() {
            let (moved, transfer, _) = put.end();
            let _ = self.note(&transfer, Some(moved), Err(ENDED));
        }
        for get in std::mem::take(&mut self.gets).into_values() {
            let _ = self.note(&get.transfer, Some(get.moved), Err(ENDED));
        }
        for question in std::mem::take(&mut self.questions).into_values() {
            if let Some(transfer) = &question.transfer {
                let _ = self.note(transfer, None, Err(ENDED));
            }
        }
    }

    /// Nobody is told that something was done before that is recorded. What cannot be recorded ends the session.
    fn note(
        &self,
        transfer: &Transfer,
        moved: Option<Moved>,
        result: Result<(), &str>,
    ) -> Result<(), Trouble> {
        transfer.record(&self.record, self.plan.tenant(), moved, result).map_err(not_recorded)
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.puts.len() + self.gets.len() + self.questions.len() + self.watches.len() >= MAX_OTHERS
    }
}

impl Putting {
    fn end(self) -> (Moved, Transfer, Done<()>) {
        let Putting { transfer, feed, done } = self;
        (Moved::whole(&transfer.name_of(""), feed.sent, feed.digest), transfer, done)
    }
}

impl Getting {
    fn tell(&mut self, stream: Id, piece: Piece) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.send((piece, Credit { stream, bytes: 0 }));
        }
    }
}

impl Answer {
    fn fail(self, error: FileError) {
        match self {
            Answer::Found(done) => drop(done.send(Err(error))),
            Answer::Nothing(done) | Answer::Paused(done) => drop(done.send(Err(error))),
            Answer::Nobody => {}
        }
    }
}
