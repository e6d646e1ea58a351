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
mod remains;
mod rig;
pub mod runtimes;
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
/// `bait.c`, a static program.
pub static BAIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bait"));

/// The stacks under test.
pub fn stacks() -> Vec<Stack> {
    let names = ["container", "process", "container+wasm", "process+wasm"];
    names.iter().map(|name| name.parse().expect("a stack")).collect()
}
