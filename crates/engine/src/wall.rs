//! A wall is a way to start the guest behind something and hand back a byte channel.

use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;

use casemate_core::outcome::Refusal;
use casemate_core::plan::Plan;
use casemate_wire::guest::Config;
use casemate_wire::launch::{Attached, Counters, Posture};
use serde_json::Value;
use tokio::sync::Notify;

use crate::guest::{Channel, GuestChannel};
use crate::walls::wasm::Call;

pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why there is no cell. Never the workload's fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WallError {
    /// Something about the host went wrong.
    #[error("{0}")]
    Failed(String),
    /// This wall cannot stand here, and this is what would help.
    #[error("{}", .0.reason)]
    Refused(Refusal),
}

pub(crate) trait Wall: Send + Sync {
    /// Starts a new cell for one execution. The channel can be used at once; whether the guest came up, [`Control::proceed`] tells.
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>>;

    /// Likewise, for a program of our own: it is the only file in the cell.
    fn start_program<'a>(
        &'a self,
        plan: &'a Plan,
        program: Attachment<'a>,
    ) -> Later<'a, Result<Cell, WallError>>;
}

/// What a cell gets besides its image.
#[derive(Clone, Copy)]
pub(crate) enum Attachment<'a> {
    /// A program, and perhaps a socket that becomes its standard input.
    Program { program: BorrowedFd<'a>, line: Option<BorrowedFd<'a>> },
    /// What the first payload inherits.
    Descriptors(&'a [BorrowedFd<'a>]),
}

impl<'a> Attachment<'a> {
    pub(crate) fn kind(this: Option<Self>) -> Attached {
        match this {
            None => Attached::Nothing,
            Some(Attachment::Program { line: None, .. }) => Attached::Program,
            Some(Attachment::Program { line: Some(_), .. }) => Attached::ProgramAndLine,
            // The launcher checks how many there are, and so does the kernel.
            Some(Attachment::Descriptors(inherited)) => Attached::Descriptors(inherited.len() as u8),
        }
    }

    pub(crate) fn descriptors(self) -> impl Iterator<Item = BorrowedFd<'a>> {
        let (program, line, inherited) = match self {
            Attachment::Program { program, line } => (Some(program), line, &[][..]),
            Attachment::Descriptors(inherited) => (None, None, inherited),
        };
        program.into_iter().chain(line).chain(inherited.iter().copied())
    }
}

/// A live cell. Dropped at any point, it is destroyed.
pub(crate) struct Cell {
    pub(crate) channel: Channel,
    pub(crate) job: Job,
    pub(crate) places: Places,
    pub(crate) control: Box<dyn Control>,
    pub(crate) gauges: Gauges,
    pub(crate) hold: Hold,
    /// Whose software stands around it, where it is not only ours: for the record.
    pub(crate) runtime: Value,
}

/// Where the processes, open files and disk of a cell are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gauges {
    /// [`Control::measure`] tells all that can be told.
    Outside,
    /// Processes and open files only inside: the guest is asked, too.
    Inside,
    /// The disk likewise.
    AllInside,
}

impl Gauges {
    pub(crate) fn need_the_guest(self) -> bool {
        self != Gauges::Outside
    }
}

/// Where the first payload waits until somebody has looked at it from outside.
#[derive(Debug, Clone)]
pub(crate) enum Hold {
    /// At the gate of whoever built the cell, who opens it once told to proceed.
    Gate,
    /// In the guest's hands, which says when there is something to look at: [`Control::proceed`] is notified then, and only looks.
    /// After that, the guest is told.
    Guest(Arc<Notify>),
}

/// What a cell is for.
pub(crate) enum Job {
    /// A guest starts a program, and confines it like this.
    Program { config: Config, attached: Attached },
    /// A worker, which runs already, makes an instance.
    Call(Call),
}

impl Cell {
    /// The channel on which files travel, if this cell has any.
    pub(crate) fn files(&mut self) -> Option<(&mut GuestChannel, &Places)> {
        match (&mut self.channel, &mut self.job) {
            (Channel::Guest(channel), _) => Some((channel, &self.places)),
            (Channel::Call(_), Job::Call(call)) => Some((call.files()?, &self.places)),
            (Channel::Call(_), Job::Program { .. }) => None,
        }
    }
}

/// A payload that was let go.
pub(crate) struct Begun {
    /// Those of the setup, with the microseconds that each took.
    pub(crate) steps: Vec<(String, u32)>,
    /// Read from outside before it ran, and found to be as it must.
    pub(crate) posture: Posture,
    /// What of it this user is not shown.
    pub(crate) unseen: Vec<&'static str>,
}

/// What can be seen from outside of a later payload, which the guest holds.
pub(crate) enum Look {
    /// It is as it must be. And what of it this user is not shown.
    Good { posture: Box<Posture>, unseen: Vec<&'static str> },
    /// There is nobody of that number.
    Nobody,
    /// It is a process of another kernel.
    Hidden,
}

/// What a wall can say and do about its cell from outside.
pub(crate) trait Control: Send {
    /// Lets the cell's first payload go once it waits, confined, and looks from outside as it must.
    fn proceed(&mut self) -> Later<'_, Result<Begun, WallError>>;
    /// Looks at a later payload, which the guest holds, by the number that it says it has in the cell. An error if it is not as it
    /// must be.
    fn look(&mut self, number: u32) -> Later<'_, Result<Look, WallError>>;
    fn measure(&mut self) -> Later<'_, Result<Counters, WallError>>;
    /// Reads the counters for the last time and kills the cell.
    fn finish(&mut self) -> Later<'_, Result<Counters, WallError>>;
    /// Why a cell that has vanished did so, if that is known.
    fn epitaph(&mut self) -> Later<'_, Option<String>> {
        Box::pin(std::future::ready(None))
    }
}

/// Where `/work` and `/tmp` of a request really are in the cell.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) work: String,
    pub(crate) tmp: String,
}

impl Places {
    /// The cell's own path for one of the request's.
    pub(crate) fn resolve(&self, path: &str) -> String {
        for (name, place) in [("/work", &self.work), ("/tmp", &self.tmp)] {
            match path.strip_prefix(name) {
                Some("") => return place.clone(),
                Some(rest) if rest.starts_with('/') => return format!("{place}{rest}"),
                _ => {}
            }
        }
        path.to_owned()
    }
}
