//! What the conformance and the attack suite have in common: an engine on a home of its own, cells that read as prose,
//! bait on the host, and a look at what an execution leaves behind.
//!
//! The suites run every test on every stack in [`stacks`]; a stack that this machine cannot raise makes them fail.
//!
//! ```no_run
//! # async fn example() {
//! use casemate_testkit::{Rig, cell, stacks};
//! let rig = Rig::open().await;
//! for stack in stacks() {
//!     let ran = cell(&rig, &stack).probe(["unshare-user"]).memory("64M").run().await;
//!     assert_eq!(ran.code(), Some(10));
//! }
//! rig.close().await;
//! # }
//! ```

mod bait;
mod cell;
pub mod docker;
pub mod dockerd;
pub mod gvisor;
pub mod image;
pub mod microvm;
mod remains;
mod rig;
pub mod runtimes;
pub mod tar;
pub mod wasm;

pub use bait::{Bait, Marked};
pub use cell::{CellBuilder, Fetched, FetchedEntry, Ran, cell};
pub use remains::Traces;
pub use rig::{Layer, Rig, is_root, on_wasm_stacks};

pub use casemate_core::limits::LimitKind;
pub use casemate_core::outcome::{Cause, Status};
pub use casemate_core::policy::DockerRuntime;
pub use casemate_core::request::{Capability, CodeSource, Language, Need, Request, Risk, Stdin};
pub use casemate_core::stack::{Stack, Wall};
pub use casemate_engine::io::{Chunk, Entry, Stream};

/// The hostile probe of `probes/`: a static program, the same in every cell.
pub static PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe"));
/// Speaks the protocol of a WASM worker, and does what its calls' arguments say.
pub static HOSTILE_WORKER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hostile-worker"));
/// The first process of a virtual machine that was taken over: with `\nhostile:WORD\n` behind it, it does what that word says.
pub static HOSTILE_MACHINE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hostile-machine"));
/// `bait.c`, a static program.
pub static BAIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bait"));

/// The stacks on which attacks are tried, as far as this user can have them. Not yet on virtual machines: conformance runs there, and
/// `tests/microvm.rs`.
pub fn stacks() -> Vec<Stack> {
    let names = ["container", "process", "gvisor", "container+wasm", "process+wasm", "gvisor+wasm"];
    let stacks = names.iter().map(|name| name.parse().expect("a stack"));
    stacks.filter(|stack| is_root() || !needs_root(stack)).collect()
}

/// A stack, and what it is made with where there is a choice.
#[derive(Debug, Clone)]
pub struct Venue {
    pub stack: Stack,
    pub docker: DockerRuntime,
}

impl std::fmt::Display for Venue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.stack.outermost(), self.docker) {
            (Wall::Docker, DockerRuntime::Runsc) => write!(f, "{} (runsc)", self.stack),
            _ => self.stack.fmt(f),
        }
    }
}

/// Everything that an attack is tried on: the stacks, and the Docker Engine with each of its runtimes, as far as this user can have
/// them.
pub fn venues() -> Vec<Venue> {
    let runtimes = if is_root() { &DockerRuntime::ALL[..] } else { &[] };
    let docker = runtimes.iter().map(|docker| Venue { stack: Stack::of(Wall::Docker), docker: *docker });
    let others = stacks().into_iter().map(|stack| Venue { stack, docker: DockerRuntime::default() });
    others.chain(docker).collect()
}

/// Whether only root can have this stack; to others it is refused, as the conformance suite shows.
pub fn needs_root(stack: &Stack) -> bool {
    matches!(stack.outermost(), Wall::Gvisor | Wall::Microvm)
}
