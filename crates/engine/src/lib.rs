//! The spine: one function from request to receipt.

pub mod images;
pub mod io;
pub mod recorder;
pub mod session;

mod agents;
mod evidence;
mod execute;
mod guest;
mod home;
mod launcher;
mod meter;
mod profiles;
mod program;
mod record;
mod run;
mod secret;
mod sys;
mod transfer;
mod wall;
mod walls;
mod watch;

pub use agents::Agents;
pub use execute::{
    Ahead, Config, Durability, EarlyLauncher, Engine, EvidenceError, Executed, Explanation, Leaving,
    OpenError,
};
pub use home::{HomeError, default_home, make_home};
pub use io::{Chunk, Entry, ExecutionId, Input, Io, Outbox, Stream};
