//! Control messages between engine and WASM worker. The frames are the guest's, and so is every answer that a guest could give
//! ([`ToHost`](crate::guest::ToHost)): a call looks to the engine like any other execution.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Malformed;
use crate::guest::Id;

/// Names loaded code within a worker.
pub type ModuleId = u32;

/// Engine → worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Compiled code, in the descriptor that comes with this message. The engine answers for it: nothing in here can tell
    /// whether it is what a compiler made. Answered with `Loaded` or `LoadFailed`.
    Load { module: ModuleId, mode: Mode, maker: Maker },
    /// No call will name it any more.
    Unload { module: ModuleId },
    /// A short call follows at once, made on this processor: see [`AWAKE`].
    Soon { processor: u32 },
    /// More of the source code for a call that is yet to come.
    Source { call: Id, bytes: Vec<u8> },
    /// A new instance for one call.
    Call(Call),
    /// Give a call up. It is reported as stopped.
    Cancel { call: Id },
}

/// For how long a worker waits without going to sleep after a short call, or after one was announced: to be woken up takes as long as
/// many a call. Not where it would keep whoever makes the call from their processor.
pub const AWAKE: Duration = Duration::from_micros(100);

/// How code was compiled, and has to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    Ordinary,
    /// Nothing that it can observe differs from run to run.
    Deterministic,
}

/// Whose code it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Maker {
    Caller,
    /// An interpreter of ours, which may nest deeper.
    Us,
}

/// What a component or module offers to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum World {
    /// `casemate:tool`: a text in, a text or an error out.
    Tool,
    /// `wasi:cli/command`: arguments, streams, an exit code.
    Command,
    /// A core module for WASI preview 1 with `_start`.
    Preview1,
    /// `casemate:runtime`: an interpreter.
    Runtime,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// A multiple of 4. The call's streams are the three numbers after it.
    pub id: Id,
    pub module: ModuleId,
    /// Without the program's own name.
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// For an interpreter: what its source code is called, if it is not inline.
    pub source_name: Option<String>,
    pub stdin: Option<u32>,
    pub stdout: u32,
    pub stderr: u32,
    pub files: Files,
    /// `host:port`
    pub egress: Vec<String>,
    pub grants: Grants,
    pub limits: CallLimits,
}

/// Which directories a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Files {
    None,
    /// `/work` of the worker's cell, which no other call shares, to read.
    Read,
    /// `/work` and `/tmp` of it.
    ReadWrite,
}

/// What a call may observe of the world besides its inputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    pub clocks: bool,
    pub random: bool,
    /// Requests to elsewhere, each decided by the call's egress rules.
    pub http: bool,
}

/// What it takes to have an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It gives access to nothing by itself: streams, arguments, an environment and a file system that are empty unless something
    /// was put into them.
    Nothing,
    Clocks,
    Random,
    /// Requests to elsewhere.
    Http,
    /// Connections to elsewhere, which nobody can be granted.
    Sockets,
    /// There is no such thing here.
    Unknown,
}

impl Need {
    /// Of an import as it is named in a component, or `module.name` of a core module.
    pub fn of_import(import: &str) -> Need {
        if let Some(function) = import.strip_prefix("wasi_snapshot_preview1.") {
            return match function {
                "clock_time_get" | "clock_res_get" | "poll_oneoff" => Need::Clocks,
                "random_get" => Need::Random,
                _ if function.starts_with("sock_") => Need::Sockets,
                _ => Need::Nothing,
            };
        }
        match import.split(['/', '@']).next() {
            Some("wasi:cli" | "wasi:io" | "wasi:filesystem") => Need::Nothing,
            Some("wasi:clocks") => Need::Clocks,
            Some("wasi:random") => Need::Random,
            Some("wasi:http") => Need::Http,
            Some("wasi:sockets") => Need::Sockets,
            _ => Need::Unknown,
        }
    }
}

impl Grants {
    /// Whether everything that these imports give access to was granted.
    pub fn cover<'a>(self, mut imports: impl Iterator<Item = &'a str>) -> bool {
        imports.all(|import| match Need::of_import(import) {
            Need::Nothing => true,
            Need::Clocks => self.clocks,
            Need::Random => self.random,
            Need::Http => self.http,
            Need::Sockets | Need::Unknown => false,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLimits {
    /// Linear memories and tables together.
    pub memory_bytes: u64,
    /// Time on a processor. In deterministic mode, instructions instead: [`FUEL_PER_MICROSECOND`] each.
    pub cpu_micros: u64,
    /// Resources that a component holds at a time: streams, descriptors, pollables.
    pub handles: u32,
    /// Bytes of output (both streams together) after which the rest is dropped.
    pub output_bytes: u64,
}

/// What a microsecond is worth where instructions are counted instead.
pub const FUEL_PER_MICROSECOND: u64 = 1000;

/// A limit that made the worker stop a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    Memory,
    CpuTime,
    /// The engine wanted it to end.
    Cancelled,
}

impl ToWorker {
    pub fn encode(&self) -> Vec<u8> {
        crate::encode(self)
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        crate::decode("engine", bytes)
    }
}
