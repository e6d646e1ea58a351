//! Watches: changes in directories, told as they happen.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use casemate_bare::io;
use casemate_wire::guest::{Change, ToHost};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath::open_beneath;
use crate::channel::Channel;
use crate::files::{MAX_DEPTH, Roots};

/// Directories that are watched at the same time, by all watches of a cell together.
const MAX_WATCHED: usize = 1024;
const FLAGS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR);
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Default)]
pub(crate) struct Watches {
    events: Option<OwnedFd>,
    /// By the kernel's number.
    watched: BTreeMap<i32, Vec<Watched>>,
}

/// A directory that somebody watches.
struct Watched {
    watch: u32,
    /// Relative to the directory that was asked for, with a slash at the end unless it is that one.
    prefix: String,
    /// To look into what is made below it.
    directory: Option<OwnedFd>,
}

impl Watches {
    pub(crate) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn add(&mut self, roots: &Roots, id: u32, path: &str, recursive: bool) -> io::Result<()> {
        let (root, rest) = roots.find(path)?;
        let directory = open_beneath(root, rest, DIRECTORY, Mode::empty())?;
        if self.events.is_none() {
            self.events = Some(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
        }
        self.follow(id, directory, String::new(), recursive)
    }

    pub(crate) fn remove(&mut self, id: u32) {
        let events = self.events.as_ref();
        self.watched.retain(|number, watched| {
            watched.retain(|watched| watched.watch != id);
            if watched.is_empty()
                && let Some(events) = events
            {
                let _ = inotify::remove_watch(events, *number);
            }
            !watched.is_empty()
        });
    }

    /// Watches a directory, and those in it.
    fn follow(&mut self, watch: u32, directory: OwnedFd, prefix: String, recursive: bool) -> io::Result<()> {
        let count: usize = self.watched.values().map(Vec::len).sum();
        let depth = prefix.bytes().filter(|byte| *byte == b'/').count();
        if count >= MAX_WATCHED || depth > MAX_DEPTH {
            return Err(Errno::NOSPC.into());
        }
        let Some(events) = &self.events else { return Ok(()) };
        // From within: its name may mean something else by now, and not every guest can see its own descriptors in /proc.
        rustix::process::fchdir(&directory)?;
        let added = inotify::add_watch(events, ".", FLAGS);
        rustix::process::chdir("/")?;
        let number = added?;
        let mut below = Vec::new();
        if recursive {
            for entry in Dir::read_from(directory.as_fd())? {
                let entry = entry?;
                if entry.file_type() == FileType::Directory
                    && let Ok(name) = entry.file_name().to_str()
                    && !matches!(name, "." | "..")
                    && let Ok(opened) = open_beneath(&directory, name, DIRECTORY, Mode::empty())
                {
                    below.push((opened, format!("{prefix}{name}/")));
                }
            }
        }
        let directory = recursive.then_some(directory);
        self.watched.entry(number).or_default().push(Watched { watch, prefix, directory });
        for (directory, prefix) in below {
            self.follow(watch, directory, prefix, recursive)?;
        }
        Ok(())
    }

    /// Tells of what has changed.
    pub(crate) fn tell(&mut self, channel: &mut Channel) {
        let Some(events) = &self.events else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(events, &mut buffer);
        let mut fresh = Vec::new();
        // As many as are in the buffer; the rest is told in the next round.
        while let Ok(event) = reader.next() {
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                let mut told: Vec<u32> =
                    self.watched.values().flatten().map(|watched| watched.watch).collect();
                told.sort_unstable();
                told.dedup();
                for watch in told {
                    channel.tell(&ToHost::ChangesLost { watch });
                }
                continue;
            }
            let Some(name) = event.file_name().and_then(|name| name.to_str().ok()) else { continue };
            let Some(watched) = self.watched.get(&event.wd()) else { continue };
            let change = match flags {
                _ if flags.contains(ReadFlags::CREATE) => Change::Created,
                _ if flags.contains(ReadFlags::DELETE) => Change::Removed,
                _ if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO) => Change::Renamed,
                _ if flags.contains(ReadFlags::ATTRIB) => Change::Attributes,
                _ if flags.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) => Change::Written,
                _ => continue,
            };
            let new =
                flags.contains(ReadFlags::ISDIR) && flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            for watched in watched {
                let path = format!("{}{name}", watched.prefix);
                if new
                    && let Some(directory) = &watched.directory
                    && let Ok(opened) = open_beneath(directory, name, DIRECTORY, Mode::empty())
                {
                    fresh.push((watched.watch, opened, format!("{path}/")));
                }
                channel.tell(&ToHost::Changed { watch: watched.watch, path, change });
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        for (watch, directory, prefix) in fresh {
            // More than can be watched: what happens there is lost, and that is said.
            if self.follow(watch, directory, prefix, true).is_err() {
                channel.tell(&ToHost::ChangesLost { watch });
            }
        }
    }
}
