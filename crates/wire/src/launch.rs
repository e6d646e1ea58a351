//! Requests to the launcher and its answers, one per packet of a `SOCK_SEQPACKET` socketpair.
//!
//! The whole vocabulary is closed: an engine that was taken over can ask for a cell, look at a cell of its own, end
//! it, or clear away the cells of a run that it names. There is no path, no command and no mount in here.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::Malformed;
use crate::guest::{Ptrace, Terminals};

/// Largest answer. A posture lists the mounts of a cell.
pub const MAX_ANSWER: usize = 64 * 1024;
/// Largest request: a handful of numbers.
pub const MAX_REQUEST: usize = 1024;

/// A cell of this launcher: the id of the request that launched it. Never reused.
pub type CellId = u32;

/// Ids that a cell is given as root: blocks of [`ID_BLOCK_SIZE`] host uids and gids from [`FIRST_BLOCK_ID`] on, above what
/// distributions hand out to users and below what container managers use for dynamic ranges.
pub const FIRST_BLOCK_ID: u32 = 0x5000_0000;
pub const ID_BLOCK_SIZE: u32 = 0x1_0000;
/// Number of blocks, hence of concurrent cells on one host.
pub const ID_BLOCKS: u16 = 8192;

/// First host id of a block.
pub fn block_start(block: u16) -> u32 {
    FIRST_BLOCK_ID + u32::from(block) * ID_BLOCK_SIZE
}

/// Whether every block can be given away, by what `/proc/self/uid_map` or `gid_map` says: root of a user namespace
/// may have few ids besides its own.
pub fn covers_blocks(id_map: &str) -> bool {
    let (first, end) = (u64::from(FIRST_BLOCK_ID), u64::from(block_start(ID_BLOCKS)));
    id_map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().ok());
        match (numbers.next().flatten(), numbers.nth(1).flatten()) {
            (Some(inside), Some(count)) => inside <= first && end <= inside + count,
            _ => false,
        }
    })
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub id: u32,
    pub op: Op,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// First of all, exactly once: what the launcher is for. It gets ready for that.
    Serve { wall: Serves, ahead: Ahead },
    /// Then, exactly once: who it works for. Descriptors: locks to hold for them. Answered with the hello.
    Start { run: RunId, generation: u32 },
    /// Build a cell. Descriptors: the guest's end of the channel, the image directory if `Image::Directory`, what the
    /// [`Kernel`] is made of, then what [`Attached`] says. Answered when its first payload runs, which takes [`Op::Proceed`] too, or when that has become
    /// impossible.
    Launch(CellSpec),
    /// Let the first payload of a cell go, once it waits and looks as it must from outside. Not answered: the answer to the
    /// launch tells.
    Proceed { cell: CellId },
    /// Look at a later payload, which the guest holds and says has this number in the cell.
    Look { cell: CellId, number: u32 },
    /// Read counters.
    Measure { cell: CellId },
    /// Read the counters for the last time and kill the cell. [`Answer::Gone`] follows when nothing is left.
    Finish { cell: CellId },
    /// Remove what a dead owner left behind. The engine holds that owner's lock.
    Recover { run: RunId },
}

/// Which wall a launcher serves. The container launcher lives in a mount namespace of its own, which a cell of the
/// `process` wall must not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Serves {
    Container,
    Process,
}

/// For which cells a launcher prepares what does not depend on what they will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ahead {
    /// Perhaps there will be none.
    Nothing,
    /// For one, which is about to be asked for, with its image as far as it is known: before the hello.
    First(Image),
    /// For the next one, whenever nobody waits.
    Every,
}

/// Names the owner of cells: 128 random bits, chosen by the engine at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunId(pub [u8; 16]);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl core::str::FromStr for RunId {
    type Err = BadRunId;
    fn from_str(text: &str) -> Result<Self, BadRunId> {
        let bytes = text.as_bytes();
        if bytes.len() != 32 || bytes.iter().any(|b| !matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(BadRunId);
        }
        let mut id = [0; 16];
        for (i, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| BadRunId)?;
        }
        Ok(RunId(id))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("not a run id: 32 lower-case hex digits")]
pub struct BadRunId;

/// Everything the launcher needs to know about a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellSpec {
    pub wall: Wall,
    /// Block of 65,536 host ids for this cell; `None` when the launcher is not root.
    pub id_block: Option<u16>,
    pub memory_bytes: Option<u64>,
    /// Processes of the payload; the guest comes on top.
    pub pids: Option<u32>,
    /// Thousandths of a CPU.
    pub cpus: Option<u32>,
    /// Bytes per second, read and written each, on the device that holds the image.
    pub disk_io: Option<u64>,
    pub attached: Attached,
}

/// Descriptors that the cell's guest has for its first payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attached {
    Nothing,
    /// A program, so that there need be none in the image.
    Program,
    /// A program, and a socket that becomes its standard input.
    ProgramAndLine,
    /// So many for a program of the image, which has them at its own numbers ([`crate::guest::FIRST_INHERITED`]).
    Descriptors(u8),
}

/// The most that can be attached.
pub const MAX_ATTACHED: usize = 10;

impl Attached {
    /// How many descriptors that is.
    pub fn count(self) -> usize {
        match self {
            Attached::Nothing => 0,
            Attached::Program => 1,
            Attached::ProgramAndLine => 2,
            Attached::Descriptors(count) => count.into(),
        }
    }
}

/// The most descriptors that come with a request: the channel, an image, and what is attached or a kernel and what is attached to that.
pub const MAX_DESCRIPTORS: usize = 2 + MAX_ATTACHED;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wall {
    Container {
        image: Image,
        disk_bytes: u64,
        inodes: u64,
        ptrace: Ptrace,
        kernel: Kernel,
        terminals: Terminals,
    },
    Process,
    /// All of the machine that the launcher is in, for a payload that is root of it. Only the launcher of a virtual machine builds that:
    /// others do not have the code.
    Machine {
        disk_bytes: u64,
        inodes: u64,
        terminals: Terminals,
    },
}

/// Which kernel it is that a container's payload talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kernel {
    /// The host's.
    Host,
    /// gVisor's: a program in the container, and the guest and its payloads in that. Descriptors: `runsc`, and the guest.
    Gvisor(Platform),
}

/// How gVisor gets hold of its payload's system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Platform {
    Systrap,
    Ptrace,
}

impl Platform {
    /// The one to be preferred first.
    pub const ALL: [Platform; 2] = [Platform::Systrap, Platform::Ptrace];

    pub fn as_str(self) -> &'static str {
        match self {
            Platform::Systrap => "systrap",
            Platform::Ptrace => "ptrace",
        }
    }
}

impl Wall {
    /// Without namespaces, there is only the host's.
    pub fn kernel(&self) -> Kernel {
        match self {
            Wall::Container { kernel, .. } => *kernel,
            Wall::Process | Wall::Machine { .. } => Kernel::Host,
        }
    }
}

impl Kernel {
    /// How many descriptors come with it.
    pub fn descriptors(self) -> usize {
        match self {
            Kernel::Host => 0,
            Kernel::Gvisor(_) => 2,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Image {
    /// The host's `/usr`, with a synthesised `/etc`.
    Host,
    /// The directory passed as second descriptor.
    Directory,
    /// No file at all, besides `/dev`, `/proc` and the places to write to.
    Empty,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Hello(Hello),
    /// The first payload of a cell was looked at and let go. `steps` are those of the setup, with microseconds.
    Running {
        id: u32,
        steps: Vec<(String, u32)>,
        posture: Posture,
    },
    Looked {
        id: u32,
        sight: Sight,
    },
    Measured {
        id: u32,
        counters: Counters,
    },
    Finished {
        id: u32,
        counters: Counters,
    },
    Recovered {
        id: u32,
    },
    /// A request failed. After a failed launch, too, [`Answer::Gone`] follows when nothing is left.
    Failed {
        id: u32,
        step: String,
        message: String,
    },
    /// A cell is completely gone: processes, mounts, cgroups.
    Gone {
        cell: CellId,
    },
    /// The engine has hung up and every cell is gone. The last word.
    Farewell,
}

/// What this launcher can do on this host, found out at start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u16,
    pub privilege: Privilege,
    /// Why no namespaces can be made, if so.
    pub container: Result<(), String>,
    pub landlock_abi: u32,
    pub seccomp: bool,
    pub cgroups: Cgroups,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privilege {
    Root,
    Rootless,
}

/// Which controllers this launcher can create groups in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroups {
    pub layout: String,
    pub memory: bool,
    pub pids: bool,
    pub cpu: bool,
    pub cpu_usage: bool,
    pub io: bool,
    /// One write ends every process of a cell.
    pub kill: bool,
    /// Why there is none, for the hint.
    pub missing: Option<String>,
}

/// Figures of one cell, read from outside: totals, and the highest values that the kernel remembers or that were there
/// just now. `None`: not measurable here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub cpu_micros: Option<u64>,
    pub memory_peak_bytes: Option<u64>,
    pub oom_kills: Option<u64>,
    pub pids_peak: Option<u64>,
    /// Times that a fork failed at the limit.
    pub pids_denied: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub inodes: Option<u64>,
    /// Largest number of descriptors found in one process of the cell.
    pub open_files: Option<u64>,
}

/// What `/proc` and the cgroup say about the payload before `execve`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posture {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub cap_effective: u64,
    pub cap_permitted: u64,
    pub cap_inheritable: u64,
    pub cap_bounding: u64,
    pub cap_ambient: u64,
    pub no_new_privs: bool,
    pub seccomp_mode: u32,
    pub seccomp_filters: u32,
    /// Namespaces that are not the host's, by name.
    pub own_namespaces: Vec<String>,
    pub shared_namespaces: Vec<String>,
    pub mounts: Vec<Mount>,
    pub rlimits: Vec<(String, String)>,
    /// Cgroup files with the values found in them.
    pub cgroup: Vec<(String, String)>,
    pub oom_score_adj: i32,
}

/// What can be seen of a payload that is held by a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sight {
    /// As it must be.
    Good(Box<Posture>),
    /// The guest has no child of that number, or none any more.
    Nobody,
    /// It is a process of another kernel.
    Hidden,
}

/// The soft limits of the resources that matter, out of `/proc/PID/limits`.
pub fn soft_limits(text: &str) -> Vec<(String, String)> {
    const SHOWN: [&str; 5] =
        ["Max core file size", "Max open files", "Max processes", "Max cpu time", "Max file size"];
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some((name.trim_start_matches("Max ").into(), line.split_whitespace().next()?.into()))
    };
    SHOWN.iter().filter_map(|name| value(name)).collect()
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub point: String,
    pub kind: String,
    pub options: String,
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        crate::encode(self)
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        crate::decode("launch request", bytes)
    }
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        crate::encode(self)
    }
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        crate::decode("launcher", bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_can_be_given_away_by_the_hosts_root_only() {
        assert!(covers_blocks("         0          0 4294967295\n"));
        assert!(covers_blocks("0 100000 1\n1 200000 4294967294\n"));
        assert!(!covers_blocks("         0          0          1\n"));
        assert!(!covers_blocks("0 100000 65536\n"));
        assert!(!covers_blocks(
            "0 0 1610612736\n".replace("1610612736", &FIRST_BLOCK_ID.to_string()).as_str()
        ));
        assert!(!covers_blocks(""));
        assert!(!covers_blocks("0 0 x\n"));
    }
}
