//! casemate-unpack: an archive on standard input, confined before it reads the first byte.
//!
//! ```text
//! casemate-unpack expand gzip|zstd            plain bytes on standard output
//! casemate-unpack whole|layer BYTES ENTRIES   files in the working directory, and how many entries on standard output
//! ```
//! What is wrong comes on standard error, one line, and what to do about it on another.

use std::io::{self, Write};
use std::process::ExitCode;

use casemate_unpack::Limits;
use casemate_unpack::confine::confine;
use casemate_unpack::expand::{Compression, expand};
use casemate_unpack::fault::Error;
use casemate_unpack::tar::Archive;
use casemate_unpack::tree::{Role, unpack};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

/// The archive is at fault. Anything else that goes wrong is ours, or the host's.
const REFUSED: u8 = 3;

enum Job {
    Expand(Compression),
    Unpack { role: Role, limits: Limits, root: OwnedFd },
}

fn main() -> ExitCode {
    let ended = prepare()
        .and_then(|job| work(job).map_err(|error| (exit_code(&error), error.reason(), error.hint())));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, reason, hint)) => {
            let _ = writeln!(io::stderr(), "{reason}\n{hint}");
            ExitCode::from(code)
        }
    }
}

type Told = (u8, String, String);

/// Up to the point where nothing is left that hostile bytes could use.
fn prepare() -> Result<Job, Told> {
    let ours =
        |reason: String| (1, reason, "this is a mistake in casemate, or a kernel without Landlock".into());
    casemate_bare::process::close_from(3).map_err(|error| ours(error.to_string()))?;
    let job = job().map_err(|error| ours(format!("cannot open the directory: {error}")))?;
    let job = job.ok_or_else(|| ours("casemate-unpack was started with other words than it knows".into()))?;
    rustix::process::umask(Mode::empty());
    let confined = match &job {
        Job::Expand(_) => confine(None, 0),
        Job::Unpack { limits, root, .. } => confine(Some(root.as_fd()), limits.bytes),
    };
    confined.map_err(|error| ours(error.to_string()))?;
    Ok(job)
}

fn job() -> io::Result<Option<Job>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (role, bytes, entries) = match words[..] {
        ["expand", "gzip"] => return Ok(Some(Job::Expand(Compression::Gzip))),
        ["expand", "zstd"] => return Ok(Some(Job::Expand(Compression::Zstd))),
        ["whole", bytes, entries] => (Role::Whole, bytes, entries),
        ["layer", bytes, entries] => (Role::Layer, bytes, entries),
        _ => return Ok(None),
    };
    let (Ok(bytes), Ok(entries)) = (bytes.parse(), entries.parse()) else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(".", flags, Mode::empty())?;
    Ok(Some(Job::Unpack { role, limits: Limits { bytes, entries }, root }))
}

fn work(job: Job) -> Result<(), Error> {
    let input = io::stdin().lock();
    match job {
        Job::Expand(compression) => expand(input, &mut io::stdout().lock(), compression),
        Job::Unpack { role, limits, root } => {
            let entries = unpack(Archive::new(input, limits), root, role)?;
            writeln!(io::stdout(), "{entries}").map_err(Error::Read)
        }
    }
}

fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Archive { .. } => REFUSED,
        Error::Read(_) | Error::Write { .. } => 1,
    }
}
