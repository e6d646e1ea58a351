//! Errors that say where in the tree they arose.

use std::error::Error;
use std::{fmt, io};

/// No more than this of a path is shown: it is the tree's own text, and can have tens of thousands of bytes.
const SHOWN: usize = 1024;

#[derive(Debug)]
struct Located {
    path: Vec<u8>,
    cause: io::Error,
}

/// Puts `name` in front of the path at which `error` arose. Each level of the walk adds the name that it stands on.
pub(super) fn under(name: &[u8], error: io::Error) -> io::Error {
    let kind = error.kind();
    let located = match error.downcast::<Located>() {
        Ok(Located { path, cause }) => Located { path: [name, b"/", &path].concat(), cause },
        Err(cause) => Located { path: name.to_vec(), cause },
    };
    io::Error::new(kind, located)
}

/// The tree is not what it was when the walk first saw it.
pub(super) fn changed(how: &str) -> io::Error {
    io::Error::other(format!("{how} while the tree was read"))
}

/// The tree, or something in it, is too large.
pub(super) fn beyond(limit: String) -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, limit)
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.path.len().saturating_sub(SHOWN);
        let mark = if cut > 0 { "..." } else { "" };
        // Escaped: a name may hold anything, such as what moves a terminal's cursor.
        write!(f, "{mark}{}: {}", self.path[cut..].escape_ascii(), self.cause)
    }
}

impl Error for Located {}
