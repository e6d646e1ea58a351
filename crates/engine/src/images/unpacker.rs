//! Runs `casemate-unpack`: one process that expands, one that unpacks, and this one in between, which counts and hashes.
//!
//! ```text
//! input ─► [hash] ─► casemate-unpack expand ─► [hash] ─► casemate-unpack layer ─► files
//! ```
//! Both are confined before they read a byte. No digest comes from them: each is taken here, of the very bytes that go on.

use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

use casemate_core::image::ImageDigest;
use sha2::{Digest, Sha256};

use super::Progress;
use super::error::{ImageError, at};
use crate::agents;

/// What an archive is compressed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    Plain,
    Gzip,
    Zstd,
}

impl Compression {
    /// By the first bytes.
    pub(super) fn of(beginning: &[u8]) -> Result<Compression, ImageError> {
        match beginning {
            [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Compression::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Err(ImageError::Compression("xz")),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, ..] => Err(ImageError::Compression("bzip2")),
            [0x04, 0x22, 0x4d, 0x18, ..] => Err(ImageError::Compression("lz4")),
            [b'P', b'K', 3, 4, ..] => Err(ImageError::Compression("zip")),
            _ => Ok(Compression::Plain),
        }
    }
}

/// What an archive is to whoever unpacks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Whole,
    Layer,
}

/// What the archive may come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// What went through.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unpacked {
    /// As it came.
    pub(super) stored: Measured,
    /// Expanded.
    pub(super) plain: Measured,
    /// By the unpacker's own account.
    pub(super) entries: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measured {
    pub(super) digest: ImageDigest,
    pub(super) bytes: u64,
}

/// Starts unpackers.
#[derive(Debug)]
pub(super) struct Unpacker {
    program: OwnedFd,
}

impl Unpacker {
    pub(super) fn new() -> Result<Unpacker, ImageError> {
        let program = agents::unpacker().map_err(|error| ImageError::Unpacker(error.to_string()))?;
        Ok(Unpacker { program })
    }

    /// Unpacks the archive `input` into the directory `root`.
    pub(super) fn unpack(
        &self,
        input: &mut (dyn Read + Send),
        compression: Compression,
        (role, limits): (Role, Limits),
        root: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Unpacked, ImageError> {
        let role = match role {
            Role::Whole => "whole",
            Role::Layer => "layer",
        };
        let (bytes, entries) = (limits.bytes.to_string(), limits.entries.to_string());
        let mut tree = self.start(&[role, &bytes, &entries], Some(root))?;
        let printed = Words::of(tree.output());
        let word = match compression {
            Compression::Plain => {
                let passed = pass(input, tree.input(), &mut |bytes| progress.advance(bytes)).readable()?;
                tree.finish(passed.is_cut())?;
                let plain = passed.whole()?;
                return Ok(Unpacked { stored: plain, plain, entries: number(printed) });
            }
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        };
        let mut expand = self.start(&["expand", word], None)?;
        let (fed, expanded) = (expand.input(), expand.output());
        thread::scope(|scope| {
            let feeder = scope.spawn(move || pass(input, fed, &mut |_| ()));
            let passed = match expanded {
                Some(mut expanded) => pass(&mut expanded, tree.input(), &mut |bytes| progress.advance(bytes)),
                None => Passed::Cut,
            };
            // Whoever unpacks is the first to know why no more is taken, and otherwise the last.
            if passed.is_cut() {
                expand.kill();
                tree.finish(true)?;
            }
            let fed = feeder.join().unwrap_or(Passed::Cut).readable()?;
            expand.finish(fed.is_cut())?;
            tree.finish(false)?;
            Ok(Unpacked { stored: fed.whole()?, plain: passed.whole()?, entries: number(printed) })
        })
    }

    fn start(&self, words: &[&str], root: Option<&Path>) -> Result<Process, ImageError> {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()));
        command.arg0("casemate-unpack").args(words).env_clear().process_group(0);
        // Its only way to the files: it opens where it stands, and then nothing else any more.
        command.current_dir(root.unwrap_or(Path::new("/")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(at("start", Path::new("casemate-unpack")))?;
        let told = Words::of(child.stderr.take());
        Ok(Process { child, told })
    }
}

/// One unpacker at work. Dropped, it is killed.
struct Process {
    child: Child,
    told: Words,
}

/// What a process says, as far as it is listened to. The rest is taken, too, so that it never waits for us.
struct Words(JoinHandle<Vec<u8>>);

/// Of what it says, this much is listened to.
const MOST_WORDS: u64 = 4096;

impl Words {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Words {
        Words(thread::spawn(move || {
            let mut words = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.by_ref().take(MOST_WORDS).read_to_end(&mut words);
                let _ = io::copy(&mut pipe, &mut io::sink());
            }
            words
        }))
    }

    fn all(self) -> Vec<u8> {
        self.0.join().unwrap_or_default()
    }
}

impl Process {
    fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for its end. `cut` says that it must have ended badly, as it took no more.
    fn finish(&mut self, cut: bool) -> Result<(), ImageError> {
        let status = self.child.wait().map_err(at("wait for", Path::new("casemate-unpack")))?;
        let told = std::mem::replace(&mut self.told, Words::of(None::<io::Empty>)).all();
        match status.success() {
            true if cut => Err(ImageError::Unpacker("it ended too early".into())),
            true => Ok(()),
            false => Err(failure(status, &told)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// What was printed, if it is a number.
fn number(printed: Words) -> u64 {
    String::from_utf8_lossy(&printed.all()).trim().parse().unwrap_or(0)
}

/// A process that has read hostile bytes says what it likes: whoever shows it does not obey it.
fn failure(status: ExitStatus, told: &[u8]) -> ImageError {
    let mut lines = told.lines().map_while(Result::ok);
    match (status.signal(), lines.next(), lines.next()) {
        (None, Some(reason), Some(hint)) => ImageError::Archive { reason, hint },
        (None, Some(reason), None) => ImageError::Unpacker(reason),
        (None, None, _) => ImageError::Unpacker(format!("it ended with {status}")),
        (Some(signal), ..) => ImageError::Archive {
            reason: format!("unpacking it takes too much memory or time (signal {signal})"),
            hint: "it may have been made for that: do not use it".into(),
        },
    }
}

/// What became of bytes that were to be passed on.
enum Passed {
    Whole(Measured),
    /// Whoever takes them has stopped to.
    Cut,
    Unreadable(io::Error),
}

impl Passed {
    fn is_cut(&self) -> bool {
        matches!(self, Passed::Cut)
    }

    /// Where the bytes came from is heard before whoever misses the rest of them.
    fn readable(self) -> Result<Passed, ImageError> {
        match self {
            Passed::Unreadable(error) => Err(at("read", Path::new("the image"))(error)),
            passed => Ok(passed),
        }
    }

    fn whole(self) -> Result<Measured, ImageError> {
        match self.readable()? {
            Passed::Whole(measured) => Ok(measured),
            _ => Err(ImageError::Unpacker("it ended too early".into())),
        }
    }
}

fn pass(input: &mut dyn Read, output: Option<ChildStdin>, progress: &mut dyn FnMut(u64)) -> Passed {
    let Some(mut output) = output else { return Passed::Cut };
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut bytes = 0;
    loop {
        let n = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Passed::Unreadable(error),
        };
        hash.update(&buffer[..n]);
        bytes += n as u64;
        if output.write_all(&buffer[..n]).is_err() {
            return Passed::Cut;
        }
        progress(n as u64);
    }
    Passed::Whole(Measured { digest: ImageDigest(hash.finalize().into()), bytes })
}
