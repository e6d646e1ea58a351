//! Whom a filter is for, and what that depends on. All but [`Program`] travels to the guest.

use serde::{Deserialize, Serialize};

/// Whom a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// The base filter of our PID 1. Every payload inherits it beneath its own, so it allows whatever any payload may use.
    ///
    /// Where both refuse a call the kernel reports the errno of the filter installed last, the payload's.
    Guest,
    /// What the guest installs between fork and exec.
    Payload { network: Network, ids: Ids, ptrace: Ptrace },
    /// Whoever unpacks the archives of images, once its directory is open: it reads, and makes files below that. No sockets, no other
    /// process, no code that was not there from the start.
    Unpacker,
}

/// Whose network, and with it whose IPC objects and processes, the payload would meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Network {
    /// A cell with namespaces of its own: sockets reach only a loopback that leads nowhere.
    Namespaced,
    /// The `process` wall, where everything named or numbered belongs to the host. No sockets but connected pairs, no
    /// System V or POSIX IPC, no call that changes the scheduling or the limits of another process, and no inotify, which
    /// tells the names in directories that Landlock does not open.
    ///
    /// Signals are not filtered, as runtimes signal their threads by id: Landlock's signal scope has to hold those.
    None,
}

/// Whether the payload's user owns files outside of its cell that it can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ids {
    /// No: the ids are the cell's, or the mount namespace shows nothing else that can be changed.
    Own,
    /// The `process` wall without root, where the payload runs as its caller. The owner of a file may change its mode,
    /// owner, times and attributes, and Landlock does not ask about that. So these are refused by name, and remain for
    /// descriptors: those come from opening, which Landlock does govern.
    ///
    /// What is left: files of the caller below what Landlock opens for reading, and looking at metadata, by name.
    Shared,
}

/// Whether the payload may debug its own processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ptrace {
    Denied,
    Allowed,
}

impl Program {
    /// Every program that there is.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the build script and the tests"))]
    pub(crate) fn all() -> impl Iterator<Item = Program> {
        let payloads = [Network::Namespaced, Network::None].into_iter().flat_map(|network| {
            [Ids::Own, Ids::Shared].into_iter().flat_map(move |ids| {
                [Ptrace::Denied, Ptrace::Allowed].map(|ptrace| Program::Payload { network, ids, ptrace })
            })
        });
        [Program::Guest, Program::Unpacker].into_iter().chain(payloads)
    }
}
