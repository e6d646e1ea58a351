//! A wall is a way to start the guest behind something and hand back a byte channel.

use std::os::fd::BorrowedFd;
use std::pin::Pin;

use casemate_core::plan::Plan;
use casemate_wire::guest::Config;
use casemate_wire::launch::{Counters, Posture};

use crate::guest::Channel;

pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Something about the host went wrong: never the workload's fault.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WallError(pub(crate) String);

pub(crate) trait Wall: Send + Sync {
    /// Starts a new cell for one execution. The channel can be used at once; whether the guest came up, [`Control::proceed`] tells.
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>>;
}

/// A live cell. Dropped at any point, it is destroyed.
pub(crate) struct Cell {
    pub(crate) channel: Channel,
    /// How the guest is to confine what it starts.
    pub(crate) config: Config,
    pub(crate) places: Places,
    pub(crate) control: Box<dyn Control>,
}

/// A payload that was let go.
pub(crate) struct Begun {
    /// Those of the setup, with the microseconds that each took.
    pub(crate) steps: Vec<(String, u32)>,
    /// Read from outside before it ran, and found to be as it must.
    pub(crate) posture: Posture,
}

/// What a wall can say and do about its cell from outside.
pub(crate) trait Control: Send {
    /// Lets the cell's first payload go once it waits, confined, and looks from outside as it must.
    fn proceed(&mut self) -> Later<'_, Result<Begun, WallError>>;
    fn measure(&mut self) -> Later<'_, Result<Counters, WallError>>;
    /// Reads the counters for the last time and kills the cell.
    fn finish(&mut self) -> Later<'_, Result<Counters, WallError>>;
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
