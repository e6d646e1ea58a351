//! Why an archive is not unpacked.

use std::fmt;
use std::io;

use crate::path::{MAX_DEPTH, MAX_NAME_BYTES, MAX_PATH_BYTES};
use crate::tar::MAX_EXTENSION_BYTES;

/// Unpacking ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{fault}")]
    Archive { member: Option<Shown>, fault: Fault },
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    /// The host's fault: its disk is full, for example.
    #[error("cannot write {member}")]
    Write {
        member: Shown,
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn archive(fault: Fault) -> Error {
        Error::Archive { member: None, fault }
    }

    pub(crate) fn at(member: &[u8], fault: Fault) -> Error {
        Error::Archive { member: Some(Shown::new(member)), fault }
    }

    /// What is wrong, in one line.
    pub fn reason(&self) -> String {
        match self {
            Error::Archive { member: Some(member), fault } => format!("{member}: {fault}"),
            Error::Archive { member: None, fault } => fault.to_string(),
            Error::Read(source) => format!("{self}: {source}"),
            Error::Write { source, .. } => format!("{self}: {source}"),
        }
    }

    /// What to do about it, in another.
    pub fn hint(&self) -> String {
        match self {
            Error::Archive { fault, .. } => fault.hint(),
            Error::Read(_) => "try again; if it happens again, the disk may be failing".into(),
            Error::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space, or set CASEMATE_HOME to a larger disk".into()
            }
            Error::Write { .. } => {
                "the images lie under CASEMATE_HOME; it must be a local disk of yours".into()
            }
        }
    }
}

/// A member's name as it can be shown: on one line, and not longer than that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown(String);

impl Shown {
    pub(crate) fn new(name: &[u8]) -> Shown {
        const MOST: usize = 200;
        let mut shown = name[..name.len().min(MOST)].escape_ascii().to_string();
        if name.len() > MOST {
            shown.push('…');
        }
        Shown(shown)
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with an archive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the archive is cut off")]
    Truncated,
    #[error("there is no tar header where one must be")]
    NotAHeader,
    #[error("the archive goes on after its end")]
    TrailingBytes,
    #[error("its header has a {0} that is no number")]
    Number(&'static str),
    #[error("its extended header makes no sense")]
    Extension,
    #[error("its extended header has {0} bytes, and {MAX_EXTENSION_BYTES} are the most")]
    LongExtension(u64),
    #[error("an absolute path")]
    Absolute,
    #[error("a path that leads out of the archive (..)")]
    Outward,
    #[error("a path without a name")]
    Nameless,
    #[error("a path with a NUL byte")]
    Nul,
    #[error("a path of {0} bytes, and {MAX_PATH_BYTES} are the most")]
    LongPath(usize),
    #[error("a name of {0} bytes in its path, and {MAX_NAME_BYTES} are the most")]
    LongName(usize),
    #[error("a path of more than {MAX_DEPTH} directories")]
    Deep,
    #[error("a sparse file")]
    Sparse,
    #[error("{0}")]
    Special(&'static str),
    #[error("a member of a kind that is not known ({0:?})")]
    UnknownKind(char),
    #[error("a link or directory with content")]
    Content,
    #[error("a link that leads nowhere: it has no target")]
    EmptyLink,
    #[error("a hard link to {0}, which is not there")]
    DanglingHardLink(String),
    #[error("a hard link to {0}, which is a directory")]
    HardLinkToDirectory(String),
    #[error("its path leads through a symbolic link")]
    ThroughLink,
    #[error("its path leads through a file")]
    ThroughFile,
    #[error("a whiteout, which only a layer of an image can have")]
    StrayWhiteout,
    #[error("a whiteout of nothing, or of a kind that is not known")]
    Whiteout,
    #[error("the archive holds more than {0} bytes in files")]
    TooManyBytes(u64),
    #[error("the archive holds more than {0} members")]
    TooManyEntries(u64),
    #[error("the {0} data cannot be expanded: {1}")]
    Compression(&'static str, String),
    #[error("a bomb: after {0} bytes it has grown more than {1}-fold")]
    Bomb(u64, u64),
}

impl Fault {
    pub fn hint(&self) -> String {
        match self {
            Fault::Truncated => "get the archive again: this copy is not complete",
            Fault::NotAHeader | Fault::TrailingBytes | Fault::Compression(..) => {
                "get the archive again, or make it anew with a current `tar`, `docker save` or `skopeo`"
            }
            Fault::Absolute | Fault::Outward => {
                "make the archive with paths relative to the image's root: tar -C ROOT -cf FILE ."
            }
            Fault::Sparse => "make the archive without --sparse",
            Fault::Special(_) => "leave /dev, FIFOs and sockets out of the archive (tar --exclude=./dev): a cell has its own /dev",
            Fault::ThroughLink | Fault::ThroughFile => {
                "no link of an archive is followed; make the archive with the real path"
            }
            Fault::TooManyBytes(_) => "make the image smaller, or allow more with --size-limit",
            Fault::TooManyEntries(_) => "make the image smaller",
            Fault::StrayWhiteout => "import the whole image (docker save, an OCI layout) and not one of its layers",
            Fault::Bomb(..) => "expand it yourself if you trust it, and import the plain tar",
            _ => "no image that casemate takes has such a member; make the archive anew without it",
        }
        .into()
    }
}
