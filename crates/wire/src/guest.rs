//! Control messages between engine and guest. Bulk bytes travel as data frames on the streams named here.
//!
//! Streams are numbered by the engine and never reused within a cell; 0 is the control stream.

use alloc::string::String;
use alloc::vec::Vec;

pub use casemate_filter::{Ids, Network, Program, Ptrace};
use serde::{Deserialize, Serialize};

use crate::Malformed;
use crate::worker::{ModuleId, Stop, World};

/// Identifies one exec or one file transfer within a cell.
pub type Id = u32;

/// Engine → guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// First message, exactly once.
    Configure(Config),
    /// Prepare a process up to the point of `execve` and report it as [`ToHost::Held`].
    Exec(Exec),
    /// Let a held process go: its posture has been read.
    Proceed {
        exec: Id,
    },
    /// Send a signal to a process and everything in its session.
    Signal {
        exec: Id,
        signal: u8,
    },
    /// Create a file or directory; a file's bytes follow on stream `id` until its end.
    Put {
        id: Id,
        path: String,
        entry: Entry,
    },
    /// Send the file or directory tree at `path`: entries as messages, bytes on stream `id`.
    Get {
        id: Id,
        path: String,
        max_bytes: u64,
        max_entries: u32,
    },
    /// Do something to the files of the cell; answered with [`ToHost::FilesDone`] or [`ToHost::TransferFailed`].
    Files {
        id: Id,
        request: FileRequest,
    },
    /// Nothing in the cell but the guest runs any more, until it may go on; answered with [`ToHost::FilesDone`].
    Pause {
        id: Id,
    },
    Resume {
        id: Id,
    },
    /// The terminal of a process has another size.
    Resize {
        exec: Id,
        size: TerminalSize,
    },
    /// Say what there is at the moment, where it cannot be seen from outside.
    Measure,
}

/// What can be asked of the files below the writable directories, besides their content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest {
    /// What is at `path`, and below it down to `depth`, each as [`ToHost::Found`].
    List { path: String, depth: u32, max_entries: u32 },
    /// With all that are missing above it. Exactly one [`ToHost::Found`] follows if it was not there before.
    MakeDirectory { path: String },
    /// Replaces what is at `to`, as the kernel does.
    Rename { from: String, to: String },
    /// With everything below it.
    Remove { path: String },
    /// Tell of every change in a directory ([`ToHost::Changed`]), and in those below it, until [`FileRequest::Unwatch`].
    Watch { path: String, recursive: bool },
    /// Ends the watch with this number.
    Unwatch { watch: Id },
}

/// What is known about a file without opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    pub kind: FileKind,
    pub mode: u32,
    pub size: u64,
    /// Since 1970.
    pub modified_micros: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    File,
    Directory,
    Link,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Created,
    Written,
    Removed,
    /// Another name, or none here any more.
    Renamed,
    /// Its mode, owner or times.
    Attributes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// Guest → engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    Hello {
        version: u16,
    },
    /// The process `pid` (as numbered inside the cell) is confined and waits before `execve`.
    Held {
        exec: Id,
        pid: u32,
    },
    /// There is a process with this number (inside the cell). It may be held, and need not have executed anything.
    Started {
        exec: Id,
        pid: u32,
    },
    /// The process could not be started.
    ExecFailed {
        exec: Id,
        step: String,
        errno: i32,
    },
    /// The output limit is reached: what follows on both streams is read and dropped.
    OutputCut {
        exec: Id,
    },
    /// A WASM call has as many resources open as it may have, and wanted another one.
    HandlesSpent {
        exec: Id,
    },
    /// The process ended and what it had written was sent.
    Exited {
        exec: Id,
        status: WaitStatus,
        usage: ProcessUsage,
        discarded: Discarded,
    },
    PutDone {
        id: Id,
    },
    /// The next member of a tree being read; `path` is relative to the requested one, empty for itself.
    GetEntry {
        id: Id,
        path: String,
        entry: Entry,
    },
    /// A member that is neither file nor directory, or could not be read.
    GetSkipped {
        id: Id,
        path: String,
        why: String,
    },
    GetDone {
        id: Id,
    },
    TransferFailed {
        id: Id,
        step: String,
        errno: i32,
    },
    /// Something that a [`FileRequest`] asked for; `path` is relative to the requested one, empty for itself.
    Found {
        id: Id,
        path: String,
        info: FileInfo,
    },
    FilesDone {
        id: Id,
    },
    /// `path` is relative to the watched directory.
    Changed {
        watch: Id,
        path: String,
        change: Change,
    },
    /// More changed than could be told.
    ChangesLost {
        watch: Id,
    },
    Measured(Inside),
    /// A WASM worker has code, of this kind (or why it cannot be called), which wants these imports.
    Loaded {
        module: ModuleId,
        world: Result<World, String>,
        imports: Vec<String>,
    },
    LoadFailed {
        module: ModuleId,
        why: String,
    },
    /// A call could not begin.
    CallFailed {
        call: Id,
        why: String,
    },
}

/// How the guest confines what it starts: the `process` wall's parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    pub version: u16,
    /// Switch to this uid and gid before `execve`; `None` where only one id is mapped.
    pub payload_id: Option<u32>,
    pub network: Network,
    pub ids: Ids,
    pub ptrace: Ptrace,
    pub filter: Filter,
    pub rlimits: Rlimits,
    pub landlock: Landlock,
    pub terminals: Terminals,
    pub privileges: Privileges,
    /// Directories below which files may be put and got.
    pub file_roots: Vec<String>,
}

/// What a payload may do besides what everybody may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privileges {
    None,
    /// Whatever its machine's root may. Only the guest of a virtual machine lets it: others do not have the code.
    All,
}

/// Whether there are terminals for payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Terminals {
    /// Those that may be seen are not the cell's.
    None,
    /// A cell has an instance of the kernel's file system for them to itself.
    Own,
}

/// Where the payload's filter comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Filter {
    /// The guest lives under it already: whoever built the cell installed it, and needs nothing that it refuses.
    Inherited,
    /// The payload gets one of its own, on top of the guest's wider one.
    Own,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimits {
    pub open_files: u64,
    /// Set only where no cgroup counts processes.
    pub processes: Option<u64>,
    /// CPU seconds of one process: a second line behind the cell's own limit.
    pub cpu_seconds: Option<u64>,
    /// Largest file; set where no quota bounds the file system.
    pub file_size: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Landlock {
    /// Directories (and files) that it opens up; everything else is closed.
    Rules(Vec<LandlockRule>),
    /// The kernel around the payload is gVisor's, which has none. What is read-only there is so because of its mounts.
    NotThere,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockRule {
    pub path: String,
    pub access: Access,
    pub presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    ReadExecute,
    Read,
    /// Everything a work directory needs, but no device or socket nodes.
    ReadWrite,
    /// Open a device for reading and writing.
    Device,
    /// Likewise, and use it as the terminal that it is.
    Terminal,
}

/// Whether a missing path is an error or simply nothing to open up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    Required,
    Optional,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub id: Id,
    pub program: Executable,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: String,
    pub stdin: Input,
    pub stdout: u32,
    pub stderr: u32,
    /// Bytes of output (both streams together) after which the rest is read and dropped.
    pub max_output: u64,
    /// All three standard streams are one terminal of this size: what it shows is sent as `stdout`.
    pub terminal: Option<TerminalSize>,
    /// Whether to say which process it became ([`ToHost::Started`]).
    pub announce: bool,
    pub inherits: Inherits,
}

/// Which descriptors a payload has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inherits {
    /// The three standard streams.
    Streams,
    /// Besides these, all that is attached to the cell, from [`FIRST_INHERITED`] on.
    Attached,
}

/// The number of the first of them. Those below are taken until the payload executes something.
pub const FIRST_INHERITED: i32 = 16;

/// What is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Executable {
    /// `argv[0]`, which is looked up in `PATH` unless it contains a slash.
    Named,
    /// The one that came with the cell.
    Attached,
}

/// What a payload reads as standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// `/dev/null`
    Nothing,
    Stream(u32),
    /// The socket that came with the cell.
    Line,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    File { mode: u32, size: u64 },
    Directory { mode: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitStatus {
    Exited(u8),
    /// For a WASM instance, the signal that a native program would have got for what it trapped on.
    Signaled(u8),
    /// By a WASM worker, at a limit of its own.
    Stopped(Stop),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    pub cpu_micros: u64,
    pub max_rss_bytes: u64,
}

/// What a guest sees of its cell. Only what it can see for itself: nothing that a payload says is in here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// Threads, besides the guest's.
    pub threads: u64,
    /// Largest number of descriptors found in one process, where that may be looked at.
    pub open_files: Option<u64>,
    /// What is in the writable file systems, each counted once.
    pub disk_bytes: u64,
    pub inodes: u64,
    /// Whether one of them has no room left. There may be several, with a part of the quota each.
    pub disk_is_full: bool,
    pub inodes_are_used_up: bool,
}

/// Output bytes that were read after the limit and thrown away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discarded {
    pub stdout: u64,
    pub stderr: u64,
}

impl Config {
    /// The filter that a payload lives under.
    pub fn program(&self) -> Program {
        Program::Payload { network: self.network, ids: self.ids, ptrace: self.ptrace }
    }
}

impl ToGuest {
    pub fn encode(&self) -> Vec<u8> {
        crate::encode(self)
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        crate::decode("engine", bytes)
    }
}

impl ToHost {
    pub fn encode(&self) -> Vec<u8> {
        crate::encode(self)
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        crate::decode("guest", bytes)
    }
}
