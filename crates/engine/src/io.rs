//! What goes into an execution and comes out of it besides the request: streams, files, cancellation.
//!
//! Nothing here is a host path: the caller opens what it wants to hand over.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::AsyncRead;
use tokio::sync::{mpsc, watch};

use casemate_core::evidence::hex;
pub use casemate_wire::guest::Entry;

/// The name of an execution: 128 random bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionId(String);

impl ExecutionId {
    #[allow(clippy::new_without_default, reason = "no two are equal")]
    pub fn new() -> ExecutionId {
        // The kernel's generator does not fail once it has started; a record without an id would not be written.
        ExecutionId(crate::sys::random::<16>().map_or_else(|_| String::new(), |bytes| hex(&bytes)))
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

impl std::fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

/// The attachments of one execution. The default has none: empty input, output thrown away.
#[derive(Default)]
pub struct Io {
    /// What it is to be called, if somebody has to know before it begins.
    pub id: Option<ExecutionId>,
    /// Required exactly when the request says `Stdin::Provided`.
    pub stdin: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Receives output as it comes. A slow receiver slows the payload down, never the deadline.
    pub output: Option<mpsc::Sender<Chunk>>,
    /// The image's root directory, required exactly when the request names a directory image.
    pub image: Option<OwnedFd>,
    /// Files and directories to put into the cell before it runs, parents first.
    pub inputs: Vec<Input>,
    /// Receives the paths that the request names in `files_out`.
    pub outbox: Option<Box<dyn Outbox>>,
    /// Becomes `true` when the caller wants the execution to end.
    pub cancel: Option<watch::Receiver<bool>>,
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub stream: Stream,
    pub bytes: Vec<u8>,
}

/// One file or directory on its way into the cell.
#[derive(Debug)]
pub struct Input {
    /// Absolute path in the cell, below `/work` or `/tmp`.
    pub path: String,
    pub entry: Entry,
    /// The bytes of a file.
    pub content: Option<File>,
}

/// Takes what comes out of a cell. The bytes are hostile; names are relative, without `..`.
pub trait Outbox: Send {
    /// A file or directory follows: `index` says which of the requested paths it belongs to, `path` where below
    /// it (empty for itself). A file's bytes come with [`Outbox::data`] until the next entry.
    fn entry(&mut self, index: usize, path: &str, entry: Entry) -> io::Result<()>;
    fn data(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Something that is neither a file nor a directory, or could not be read.
    fn skipped(&mut self, index: usize, path: &str, why: &str);
}
