//! `--out`: puts what comes out of a cell where the caller wants it, and nowhere else.
//!
//! Names and bytes are hostile, and the directory we write to may hold what somebody planted. So everything is
//! resolved beneath a directory that was opened before the run, no link is followed, a file gets its name only
//! when it is complete, and only a plain file is ever replaced. What is written belongs to the caller and has no
//! set-id bits.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use casemate_core::outcome::Refusal;
use casemate_core::request::GuestPath;
use casemate_engine::{Entry, Outbox};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::describe;
use crate::failure::os_words;
use crate::render::terminal::one_line;

/// Remarks beyond this are only counted.
const MAX_REMARKS: usize = 20;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Where the paths of one request go.
#[derive(Debug)]
pub(crate) struct Landing {
    targets: Vec<Target>,
    receiving: Receiving,
    remarks: Remarks,
    files: u64,
}

/// What there is to say about what came out. Outlives the landing, which the engine consumes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remarks(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    lines: Vec<String>,
    more: usize,
    /// Which of the requested paths were heard of at all.
    heard: Vec<bool>,
}

/// One requested path: the place of a file or directory on the host.
#[derive(Debug)]
struct Target {
    guest: String,
    parent: OwnedFd,
    name: OsString,
    /// The directory itself, once there is one.
    directory: Option<OwnedFd>,
}

#[derive(Debug)]
enum Receiving {
    Nothing,
    /// The bytes of something that was left out.
    Discarded,
    File(Partial),
}

/// A file whose bytes are still coming, under a temporary name.
#[derive(Debug)]
struct Partial {
    file: File,
    directory: OwnedFd,
    temporary: String,
    name: OsString,
    left: u64,
    shown: String,
}

impl Landing {
    /// Opens every destination, so that a run is not wasted on one that cannot be written.
    pub(crate) fn open(guests: &[GuestPath], hosts: &[PathBuf]) -> Result<Landing, Refusal> {
        let pairs = guests.iter().zip(hosts);
        let targets: Vec<Target> =
            pairs.map(|(guest, host)| Target::open(guest.as_str(), host)).collect::<Result<_, _>>()?;
        let told = Told { heard: vec![false; targets.len()], ..Told::default() };
        let remarks = Remarks(Arc::new(Mutex::new(told)));
        Ok(Landing { targets, receiving: Receiving::Nothing, remarks, files: 0 })
    }

    pub(crate) fn remarks(&self) -> Remarks {
        self.remarks.clone()
    }

    fn directory(&mut self, index: usize, path: &str, mode: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode & 0o777 | 0o700);
        let target = &mut self.targets[index];
        if path.is_empty() {
            if target.directory.is_none() {
                match make_directory(&target.parent, &target.name, mode)? {
                    Ok(directory) => target.directory = Some(directory),
                    Err(in_the_way) => {
                        let shown = target.shown(path);
                        self.remarks.left_out(&shown, &in_the_way);
                    }
                }
            }
            return Ok(());
        }
        let shown = target.shown(path);
        match self.place(index, path)? {
            Ok((parent, name)) => {
                if let Err(in_the_way) = make_directory(&parent, &name, mode)? {
                    self.remarks.left_out(&shown, &in_the_way);
                }
            }
            Err(why) => self.remarks.left_out(&shown, &why),
        }
        Ok(())
    }

    fn file(&mut self, index: usize, path: &str, mode: u32, size: u64) -> io::Result<()> {
        let shown = self.targets[index].shown(path);
        let placed =
            self.place(index, path)?.and_then(|(directory, name)| match in_the_way(&directory, &name) {
                Some(in_the_way) => Err(in_the_way),
                None => Ok((directory, name)),
            });
        self.receiving = match placed {
            Ok((directory, name)) => {
                self.files += 1;
                let temporary = format!(".casemate-{}-{}", std::process::id(), self.files);
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                // Created with its final mode, so that the caller's umask applies.
                let mode = Mode::from_raw_mode(mode & 0o777 | 0o600);
                let file = openat(&directory, temporary.as_str(), flags, mode)?;
                Receiving::File(Partial { file: file.into(), directory, temporary, name, left: size, shown })
            }
            Err(why) => {
                self.remarks.left_out(&shown, &why);
                Receiving::Discarded
            }
        };
        self.name_if_complete()
    }

    /// The directory and name for a member, or why it has none.
    fn place(&self, index: usize, path: &str) -> io::Result<Result<(OwnedFd, OsString), String>> {
        let target = &self.targets[index];
        let (directory, rest) = match (&target.directory, path) {
            (None, "") => return Ok(Ok((target.parent.try_clone()?, target.name.clone()))),
            (Some(directory), "") => (directory, target.guest.rsplit('/').next().unwrap_or_default()),
            (Some(directory), path) => (directory, path),
            (None, _) => return Ok(Err("the directory around it was left out".to_owned())),
        };
        let (above, name) = rest.rsplit_once('/').unwrap_or((".", rest));
        match openat2(directory, above, DIRECTORY, Mode::empty(), BENEATH) {
            Ok(above) => Ok(Ok((above, name.into()))),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::XDEV) => {
                Ok(Err("the directory around it was left out".to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn name_if_complete(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.receiving, Receiving::Nothing) {
            Receiving::File(partial) if partial.left == 0 => {
                let Partial { directory, temporary, name, .. } = &partial;
                // Replaces a name, whatever it is by now, and follows nothing.
                renameat(directory, temporary.as_str(), directory, name.as_os_str()).map_err(|error| {
                    let _ = unlinkat(directory, temporary.as_str(), AtFlags::empty());
                    io::Error::from(error)
                })
            }
            other => {
                self.receiving = other;
                Ok(())
            }
        }
    }

    fn abandon(&mut self) {
        if let Receiving::File(partial) = std::mem::replace(&mut self.receiving, Receiving::Nothing) {
            let _ = unlinkat(&partial.directory, partial.temporary.as_str(), AtFlags::empty());
            self.remarks.left_out(&partial.shown, "it came out incomplete");
        }
    }

    fn check(&self, index: usize, path: &str) -> io::Result<()> {
        let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        let sound = index < self.targets.len() && (path.is_empty() || path.split('/').all(plain));
        if sound { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "not a name in a cell")) }
    }
}

impl Outbox for Landing {
    fn entry(&mut self, index: usize, path: &str, entry: Entry) -> io::Result<()> {
        self.abandon();
        self.check(index, path)?;
        self.remarks.heard(index);
        match entry {
            Entry::Directory { mode } => self.directory(index, path, mode),
            Entry::File { mode, size } => self.file(index, path, mode, size),
        }
    }

    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.receiving {
            Receiving::Discarded => Ok(()),
            Receiving::File(partial) => {
                let left = partial.left.checked_sub(bytes.len() as u64);
                partial.left = left.ok_or_else(|| io::Error::other("a file is longer than announced"))?;
                partial.file.write_all(bytes)?;
                self.name_if_complete()
            }
            Receiving::Nothing if bytes.is_empty() => Ok(()),
            Receiving::Nothing => Err(io::Error::new(io::ErrorKind::InvalidData, "bytes of no file")),
        }
    }

    fn skipped(&mut self, index: usize, path: &str, why: &str) {
        self.abandon();
        self.remarks.heard(index);
        let guest = self.targets.get(index).map(|target| target.shown(path)).unwrap_or_default();
        self.remarks.left_out(&guest, why);
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Remarks {
    /// Everything worth saying, `produced` being the paths that were asked for.
    pub(crate) fn lines(&self, guests: &[GuestPath]) -> Vec<String> {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = told.lines.clone();
        if told.more > 0 {
            lines.push(format!("--out left out {} more", told.more));
        }
        let unheard = guests.iter().zip(&told.heard).filter(|(_, heard)| !**heard);
        lines.extend(unheard.map(|(guest, _)| format!("--out {guest}: nothing came out")));
        lines
    }

    fn heard(&self, index: usize) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(heard) = told.heard.get_mut(index) {
            *heard = true;
        }
    }

    fn left_out(&self, guest: &str, why: &str) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.lines.len() < MAX_REMARKS {
            told.lines.push(format!("--out left out {guest}: {why}"));
        } else {
            told.more += 1;
        }
    }
}

impl Target {
    fn open(guest: &str, host: &Path) -> Result<Target, Refusal> {
        let cannot = |path: &Path, error: Errno, hint: String| {
            Refusal::new(format!("cannot write to {}: {}", shown(path), os_words(error)), hint)
        };
        let open = |path: &Path, flags| openat(CWD, path, DIRECTORY | flags, Mode::empty());
        let parent = match host.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // `.`, `..` and `/` have no name of their own; they are directories.
        let Some(name) = host.file_name() else {
            let hint = || "--out takes GUEST:HOST".to_owned();
            let directory = open(host, OFlags::empty()).map_err(|error| cannot(host, error, hint()))?;
            let parent = directory.try_clone().map_err(|_| cannot(host, Errno::MFILE, hint()))?;
            let name = OsString::new();
            return Ok(Target { guest: guest.to_owned(), parent, name, directory: Some(directory) });
        };
        let above = open(parent, OFlags::empty())
            .map_err(|error| cannot(host, error, format!("mkdir -p {}", shown(parent))))?;
        let directory = match statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => None,
            Err(error) => return Err(cannot(host, error, "--out takes GUEST:HOST".to_owned())),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => None,
                FileType::Directory => Some(
                    openat(&above, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
                        .map_err(|error| cannot(host, error, "choose another HOST".to_owned()))?,
                ),
                other => {
                    return Err(Refusal::new(
                        format!("{} is {} and is not written to", shown(host), describe(other)),
                        "name a file, a directory or something that does not exist yet",
                    ));
                }
            },
        };
        Ok(Target { guest: guest.to_owned(), parent: above, name: name.to_owned(), directory })
    }

    /// How a member is called in remarks.
    fn shown(&self, path: &str) -> String {
        if path.is_empty() { self.guest.clone() } else { format!("{}/{path}", self.guest) }
    }
}

/// What keeps a file from taking this name, if anything does.
fn in_the_way(directory: &OwnedFd, name: &OsStr) -> Option<String> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        other => Some(format!("{} is in the way", describe(other))),
    }
}

/// Creates or finds a directory, without following a link to one. The inner error says what is in the way.
fn make_directory(parent: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<Result<OwnedFd, String>> {
    match mkdirat(parent, name, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    match openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(directory) => Ok(Ok(directory)),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let kind = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
            Ok(Err(format!("{} is in the way", describe(FileType::from_raw_mode(kind)))))
        }
        Err(error) => Err(error.into()),
    }
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

#[cfg(test)]
mod tests;
