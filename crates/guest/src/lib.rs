//! The guest: the first process of a cell.
//!
//! A wall gives it the channel to the engine, and nothing else that it did not need. It runs commands, moves files, reaps, and
//! reports; it puts everything it starts under the `process` wall. It is small and has one thread: one loop over
//! `poll`, no lock, no timer but the one that counts threads in gVisor. When the channel closes, it ends, and the cell with it.
//!
//! On the native walls the launcher's child becomes the guest by calling [`run`]; other walls start the program
//! `casemate-guest`, which finds out by itself what it was given ([`run_as_given`]).

#![no_std]

extern crate alloc;
#[cfg(any(feature = "weaken", test))]
extern crate std;

mod beneath;
mod channel;
mod confine;
mod files;
pub mod landlock;
mod measure;
mod pause;
mod process;
mod sys;
mod terminal;
mod tree;
mod watch;
#[cfg(feature = "weaken")]
pub mod weaken;

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use casemate_bare::process::{Disposition, dispose};
use casemate_bare::{files as small_files, io};
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::frame::{Body, MAX_PAYLOAD};
use casemate_wire::guest::{Config, Exec, FileRequest, Landlock, Privileges, ToGuest, ToHost};
use casemate_wire::gvisor::KEEP_TERMINALS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::channel::Channel;
use crate::confine::Confinement;
use crate::files::{Get, Put, Roots};
use crate::measure::Threads;
use crate::process::{Process, Wake};
use crate::sys::FileRights;
use crate::tree::List;
use crate::watch::Watches;

/// The descriptor that leads to the engine.
const CHANNEL: i32 = 3;
/// The ends of the gate, if there is one: where the first payload says that it waits, and where it waits.
const GATE: [i32; 2] = [4, 5];
/// Without waiting.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Processes and transfers of one cell at a time; the engine stays far below.
const MAX_ACTIVE: usize = 256;

struct Guest {
    channel: Channel,
    events: OwnedFd,
    setup: Option<(Confinement, Roots)>,
    processes: Vec<Process>,
    puts: Vec<Put>,
    gets: Vec<Get>,
    lists: Vec<List>,
    watches: Watches,
    gate: Option<Gate>,
    attached: Attached,
    /// Whether a payload has passed the gate, if there is one: no other runs before somebody has looked at one from outside.
    passed: bool,
    /// What came before that.
    postponed: Vec<Exec>,
    /// In a kernel that is the cell's own.
    threads: Option<Threads>,
    /// For output on its way from a pipe to the channel.
    buffer: Vec<u8>,
}

/// What the first payload waits at. Whoever built the cell looks at it from outside and lets it go: that spares a few
/// turns between the processes involved. Later ones are held by the guest, for the engine.
#[derive(Debug)]
pub struct Gate {
    /// Gets [`BORN`] when there is a payload, then `words` and [`HELD`], and is closed, when it is confined; closed without
    /// these if that failed.
    pub held: OwnedFd,
    /// What whoever built the cell has to say to itself. Sent along, so that it is woken only once.
    pub words: Vec<u8>,
    /// One byte in here lets the payload go.
    pub release: OwnedFd,
    pub birth: Birth,
}

/// How the first payload comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// As a copy of the guest, which goes on meanwhile.
    Copied,
    /// In the guest's own memory. The guest is suspended until the payload executes something, so whoever lets that go must not
    /// need the guest for it. For kernels that take milliseconds for a copy. For the first payload only: before it executes, it has
    /// the payload's id and the guest's memory, into which another process with that id might look.
    InPlace,
}

/// There is a payload, in the place where it will run. Whoever looks from outside can begin.
pub const BORN: u8 = b'b';
/// A payload is confined and waits.
pub const HELD: u8 = b'h';

/// The number of the first descriptor that is attached for the first payload: a program, then a line; or whatever that inherits.
pub const FIRST_ATTACHED: i32 = 6;

/// What came with the cell for its first payload, each to be taken once.
#[derive(Default)]
struct Attached(Vec<Option<OwnedFd>>);

impl Attached {
    fn inherited(count: usize) -> io::Result<Attached> {
        let numbers = (FIRST_ATTACHED..).take(count);
        numbers.map(|number| sys::inherited(number).map(Some)).collect::<io::Result<_>>().map(Attached)
    }

    fn take_program(&mut self) -> Option<OwnedFd> {
        self.0.first_mut()?.take()
    }

    fn take_line(&mut self) -> Option<OwnedFd> {
        self.0.get_mut(1)?.take()
    }

    fn take_all(&mut self) -> Vec<OwnedFd> {
        self.0.drain(..).flatten().collect()
    }
}

/// Serves the engine at descriptor 3 until it is gone, then ends this process. `attached` descriptors follow the gate's.
pub fn run(gate: Option<Gate>, attached: usize) -> ! {
    let channel = sys::inherited(CHANNEL).and_then(Channel::new);
    serve(channel, gate, attached)
}

/// Likewise, for a program that somebody else started: with a channel at descriptor 3, and perhaps a gate and attachments at the
/// numbers that they have everywhere; or with nothing but standard input and output, which are then the channel.
pub fn run_as_given() -> ! {
    // Taken before they are replaced.
    let streams = (!sys::is_open(CHANNEL)).then(sys::standard_streams);
    // Only where it is the first process of all: elsewhere what is mounted, and what is in /dev, is somebody else's.
    if sys::is_init() && sys::may_mount() && hide().is_err() {
        sys::exit_now(1)
    }
    if let Some(streams) = streams {
        serve(streams.and_then(|(input, output)| Channel::of(input, output)), None, 0)
    }
    let gate = match GATE.map(sys::inherited) {
        [Ok(held), Ok(release)] => Some(Gate { held, words: Vec::new(), release, birth: Birth::InPlace }),
        _ => None,
    };
    let attached = (FIRST_ATTACHED..).take_while(|&number| sys::is_open(number)).count();
    run(gate, attached)
}

/// The kernel that this guest is the first process of (gVisor's) shows more of it than it should, and has terminals that perhaps
/// nobody asked for. Whoever started it lets it do something about that, once.
fn hide() -> io::Result<()> {
    // Before that is covered.
    let keeps_terminals = keeps_terminals()?;
    let attributes = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Whoever started it may have been asked for a read-only one, and be deaf to that (Docker's).
    rustix::mount::mount("none", "/proc", "proc", attributes, None)?;
    rustix::mount::mount("none", "/proc/1", "tmpfs", attributes, c"mode=0,size=4096")?;
    if !keeps_terminals {
        rustix::mount::unmount("/dev/pts", UnmountFlags::DETACH)?;
    }
    remove_extra_devices()?;
    // What it was started with belongs to the host.
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for number in 0..3 {
        sys::move_fd(null.as_fd(), number)?;
    }
    sys::give_up_mounting()
}

/// Whether it was told so on its command line.
fn keeps_terminals() -> io::Result<bool> {
    let words = small_files::read("/proc/self/cmdline")?;
    Ok(words.split(|byte| *byte == 0).any(|word| word == KEEP_TERMINALS.as_bytes()))
}

fn serve(channel: io::Result<Channel>, gate: Option<Gate>, attached: usize) -> ! {
    let started = channel.and_then(|channel| Guest::start(channel, gate, attached));
    let code = match started.and_then(Guest::run) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    sys::exit_now(code)
}

/// The version of Landlock that this kernel has, 0 where there is none.
pub fn landlock_abi() -> u32 {
    landlock::abi()
}

enum Source {
    Channel,
    Children,
    Changes,
    Process(usize, Wake),
}

impl Guest {
    fn start(mut channel: Channel, gate: Option<Gate>, attached: usize) -> io::Result<Guest> {
        // Writing to nobody is an error, not the end.
        dispose(libc::SIGPIPE, Disposition::Ignore)?;
        // Nothing in the cell may look into this process, even where it has the same uid.
        sys::prctl(libc::PR_SET_DUMPABLE, 0)?;
        // Where there is no PID namespace, orphans must still end up here.
        sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)?;
        channel.tell(&ToHost::Hello { version: PROTOCOL_VERSION });
        let events = sys::child_events()?;
        Ok(Guest {
            channel,
            events,
            setup: None,
            processes: Vec::new(),
            puts: Vec::new(),
            gets: Vec::new(),
            lists: Vec::new(),
            watches: Watches::default(),
            passed: gate.is_none(),
            postponed: Vec::new(),
            threads: None,
            gate,
            attached: Attached::inherited(attached)?,
            buffer: Vec::with_capacity(MAX_PAYLOAD),
        })
    }

    /// Until the engine is gone, or speaks nonsense.
    fn run(mut self) -> io::Result<()> {
        // The first requests are usually there already: what they start goes on while we say hello.
        let mut ended = self.channel.fill().and_then(|open| if open { self.handle_frames() } else { Ok(()) });
        while ended.is_ok() {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => ended = Err(error),
            }
        }
        end_everything();
        ended
    }

    /// One round of the loop.
    fn turn(&mut self) -> io::Result<bool> {
        self.channel.flush()?;
        if let Some(threads) = &mut self.threads {
            threads.count();
        }
        let room = self.channel.has_room();
        let busy = room
            && (self.gets.iter().any(Get::can_go_on)
                || !self.lists.is_empty()
                || self.processes.iter().any(Process::drains));
        for (source, flags) in self.wait(room, busy)? {
            match source {
                Source::Channel if flags.contains(PollFlags::IN) => {
                    if !self.channel.fill()? {
                        return Ok(false);
                    }
                    self.handle_frames()?;
                }
                Source::Channel if flags.intersects(PollFlags::HUP | PollFlags::ERR) => return Ok(false),
                Source::Channel => {}
                Source::Children => sys::drain_events(&self.events),
                Source::Changes => self.watches.tell(&mut self.channel),
                Source::Process(index, wake) => {
                    self.processes[index].wake(wake, &mut self.channel, &mut self.buffer);
                }
            }
        }
        while let Some((pid, status, usage)) = sys::reap() {
            if let Some(process) = self.processes.iter_mut().find(|process| process.pid == pid) {
                process.reaped(status, usage);
            }
        }
        self.passed |= self.processes.iter().any(Process::has_passed);
        if !self.postponed.is_empty() && (self.passed || !self.processes.iter().any(Process::may_pass)) {
            for exec in core::mem::take(&mut self.postponed) {
                self.exec(exec)?;
            }
        }
        let channel = &mut self.channel;
        if room {
            self.processes.iter_mut().for_each(|process| process.drain(channel, &mut self.buffer));
        }
        self.processes.retain_mut(|process| !process.finished(channel));
        if room {
            self.gets.retain_mut(|get| !get_on(get, channel));
            self.lists.retain_mut(|list| !list_on(list, channel));
        }
        Ok(true)
    }

    fn wait(&self, room: bool, busy: bool) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.events.as_fd(), PollFlags::IN)];
        let mut sources = vec![Source::Children];
        for (fd, flags) in self.channel.wakes() {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
            sources.push(Source::Channel);
        }
        // Changes that cannot be told now are kept by the kernel, which says when it had to drop some.
        if let Some(changes) = self.watches.events().filter(|_| room) {
            fds.push(PollFd::from_borrowed_fd(changes, PollFlags::IN));
            sources.push(Source::Changes);
        }
        for (index, process) in self.processes.iter().enumerate() {
            for (fd, wake) in process.wakes(room) {
                let flags = if matches!(wake, Wake::Stdin) { PollFlags::OUT } else { PollFlags::IN };
                fds.push(PollFd::from_borrowed_fd(fd, flags));
                sources.push(Source::Process(index, wake));
            }
        }
        let patience = match &self.threads {
            _ if busy => Some(&AT_ONCE),
            Some(_) if !self.processes.is_empty() => Some(&Threads::INTERVAL),
            _ => None,
        };
        match poll(&mut fds, patience) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready =
            |(source, fd): (Source, PollFd<'_>)| (!fd.revents().is_empty()).then(|| (source, fd.revents()));
        Ok(sources.into_iter().zip(fds).filter_map(ready).collect())
    }

    fn handle_frames(&mut self) -> io::Result<()> {
        loop {
            // The payload is copied out so that handling a frame may use the channel.
            let (stream, body) = match self.channel.decoder.next_frame().map_err(io::Error::other)? {
                None => return Ok(()),
                Some(frame) => match frame.body {
                    Body::Message(bytes) => {
                        let message = ToGuest::decode(bytes).map_err(io::Error::other)?;
                        self.handle(message)?;
                        continue;
                    }
                    Body::Data(bytes) => (frame.stream, Content::Data(bytes.to_vec())),
                    Body::Credit(n) => (frame.stream, Content::Credit(n)),
                    Body::End => (frame.stream, Content::End),
                },
            };
            self.handle_stream(stream, body).map_err(io::Error::other)?;
        }
    }

    fn handle(&mut self, message: ToGuest) -> io::Result<()> {
        match message {
            ToGuest::Configure(config) => self.configure(&config)?,
            ToGuest::Exec(exec) => self.exec(exec)?,
            ToGuest::Proceed { exec } => self.with_process(exec, Process::proceed),
            ToGuest::Signal { exec, signal } => self.with_process(exec, |process| process.signal(signal)),
            ToGuest::Resize { exec, size } => {
                // gVisor's does not.
                let kernel_tells = self.threads.is_none();
                self.with_process(exec, |process| process.resize(size, kernel_tells));
            }
            ToGuest::Files { id, request } => self.handle_files(id, request),
            ToGuest::Pause { id } => self.answer(id, "pause", pause::pause()),
            ToGuest::Resume { id } => self.answer(id, "resume", pause::resume()),
            ToGuest::Measure => {
                let mut inside = measure::inside(self.roots()?.paths());
                if let Some(threads) = &self.threads {
                    inside.threads = inside.threads.max(threads.most());
                }
                self.channel.tell(&ToHost::Measured(inside));
            }
            ToGuest::Put { id, path, entry } => {
                let begun = self.roots().and_then(|roots| Put::begin(roots, id, &path, entry));
                match begun {
                    Ok(Some(put)) => self.puts.push(put),
                    Ok(None) => self.channel.tell(&ToHost::PutDone { id }),
                    Err(error) => self.fail_transfer(id, &path, &error),
                }
            }
            ToGuest::Get { id, path, max_bytes, max_entries } => {
                let Some((_, roots)) = &self.setup else {
                    return Err(io::Error::other("get before configure"));
                };
                match Get::begin(roots, id, &path, (max_bytes, max_entries), &mut self.channel) {
                    Ok(get) => self.gets.push(get),
                    Err(error) => self.fail_transfer(id, &path, &error),
                }
            }
        }
        Ok(())
    }

    /// Starts a program, or lets it wait until the first one has passed the gate.
    fn exec(&mut self, exec: Exec) -> io::Result<()> {
        let failed = |step: &str, errno| ToHost::ExecFailed { exec: exec.id, step: step.into(), errno };
        let Some((confinement, _)) = &self.setup else {
            return Err(io::Error::other("exec before configure"));
        };
        if self.processes.len() + self.postponed.len() >= MAX_ACTIVE {
            self.channel.tell(&failed("too many processes", libc::EAGAIN));
            return Ok(());
        }
        if self.gate.is_none() && !self.passed {
            match self.processes.iter().any(Process::may_pass) {
                true => self.postponed.push(exec),
                false => self.channel.tell(&failed("the gate", libc::ECANCELED)),
            }
            return Ok(());
        }
        // Before the gate is taken, which can be passed only once.
        let terminal = exec.terminal.map(|size| confinement.terminal(size));
        let terminal = match terminal.transpose() {
            Ok(terminal) => terminal,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                self.channel.tell(&failed("terminal", errno));
                return Ok(());
            }
        };
        match Process::spawn(&exec, confinement, self.gate.take(), &mut self.attached, terminal) {
            Ok(process) => {
                if exec.announce {
                    self.channel.tell(&ToHost::Started { exec: exec.id, pid: process.pid as u32 });
                }
                self.processes.push(process);
            }
            Err(step) => {
                let errno = step.error.raw_os_error().unwrap_or(libc::EIO);
                self.channel.tell(&failed(step.name, errno));
            }
        }
        Ok(())
    }

    fn handle_files(&mut self, id: u32, request: FileRequest) {
        let Some((_, roots)) = &self.setup else {
            return self.answer(id, "files", Err(io::Error::from_raw_os_error(libc::EINVAL)));
        };
        let channel = &mut self.channel;
        let done = match &request {
            FileRequest::List { path, depth, max_entries } => {
                let bounds = (*depth, *max_entries);
                if self.lists.len() >= MAX_ACTIVE {
                    Err(io::Error::from_raw_os_error(libc::EAGAIN))
                } else {
                    match List::begin(roots, id, path, bounds, channel) {
                        // Answered when all was told.
                        Ok(list) => return self.lists.push(list),
                        Err(error) => Err(error),
                    }
                }
            }
            FileRequest::MakeDirectory { path } => tree::make_directory(roots, path).map(|made| {
                if let Some(info) = made {
                    channel.tell(&ToHost::Found { id, path: "".into(), info });
                }
            }),
            FileRequest::Rename { from, to } => tree::rename(roots, from, to),
            FileRequest::Remove { path } => tree::remove(roots, path),
            FileRequest::Watch { path, recursive } => self.watches.add(roots, id, path, *recursive),
            FileRequest::Unwatch { watch } => {
                self.watches.remove(*watch);
                Ok(())
            }
        };
        self.answer(id, "files", done);
    }

    fn answer(&mut self, id: u32, step: &str, done: io::Result<()>) {
        match done {
            Ok(()) => self.channel.tell(&ToHost::FilesDone { id }),
            Err(error) => self.fail_transfer(id, step, &error),
        }
    }

    fn configure(&mut self, config: &Config) -> io::Result<()> {
        if self.setup.is_some() || config.version != PROTOCOL_VERSION {
            return Err(io::Error::other("configured twice, or for another version"));
        }
        Confinement::check(config)?;
        let mut rights = FileRights::Payload;
        if let Some(id) = config.payload_id {
            rights = sys::access_files_as(id)?;
            // For a moment, nothing would have told us of the launcher's death.
            if self.gate.as_ref().is_some_and(|gate| sys::is_abandoned(gate.release.as_fd())) {
                return Err(io::Error::other("whoever built this cell is gone"));
            }
        }
        // Where the kernel is the host's, it counts all that is on the machine; there the cell's group counts.
        let in_gvisor = config.landlock == Landlock::NotThere && config.privileges == Privileges::None;
        self.threads = in_gvisor.then(Threads::default);
        self.setup = Some((Confinement::new(config), Roots::open(&config.file_roots, rights)?));
        Ok(())
    }

    fn roots(&self) -> io::Result<&Roots> {
        self.setup
            .as_ref()
            .map(|(_, roots)| roots)
            .ok_or_else(|| io::Error::other("transfer before configure"))
    }

    fn with_process(&mut self, exec: u32, act: impl FnOnce(&mut Process)) {
        if let Some(process) = self.processes.iter_mut().find(|process| process.id == exec) {
            act(process);
        }
    }

    /// Frames for a stream that has ended meanwhile are normal and ignored; a breach of flow control is not.
    fn handle_stream(
        &mut self,
        stream: u32,
        content: Content,
    ) -> Result<(), casemate_wire::frame::OverCredit> {
        let channel = &mut self.channel;
        match content {
            Content::Data(bytes) => {
                if let Some(process) = self.processes.iter_mut().find(|process| process.owns_input(stream)) {
                    process.input(&bytes, channel)?;
                } else if let Some(at) = self.puts.iter().position(|put| put.id == stream)
                    && let Err(error) = self.puts[at].data(&bytes, channel)?
                {
                    self.puts.swap_remove(at);
                    self.fail_transfer(stream, "write", &error);
                }
            }
            Content::Credit(n) => {
                for process in &mut self.processes {
                    process.credit(stream, n)?;
                }
                if let Some(get) = self.gets.iter_mut().find(|get| get.id == stream) {
                    get.credit(n)?;
                }
            }
            Content::End => {
                if let Some(process) = self.processes.iter_mut().find(|process| process.owns_input(stream)) {
                    process.end_input(channel);
                } else if let Some(at) = self.puts.iter().position(|put| put.id == stream) {
                    self.puts.swap_remove(at);
                    channel.tell(&ToHost::PutDone { id: stream });
                }
            }
        }
        Ok(())
    }

    fn fail_transfer(&mut self, id: u32, step: &str, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        self.channel.tell(&ToHost::TransferFailed { id, step: step.into(), errno });
    }
}

/// Devices that gVisor's kernel has besides those of a cell. It makes them up itself, but nobody was granted any.
const EXTRA_DEVICES: [&str; 2] = ["/dev/fuse", "/dev/net/tun"];

fn remove_extra_devices() -> io::Result<()> {
    for device in EXTRA_DEVICES {
        match rustix::fs::unlink(device) {
            Ok(()) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

enum Content {
    Data(Vec<u8>),
    Credit(u32),
    End,
}

/// Sends a little more of a tree; `true` when it is over.
fn get_on(get: &mut Get, channel: &mut Channel) -> bool {
    if !get.can_go_on() {
        return false;
    }
    let id = get.id;
    match get.go_on(channel) {
        Ok(false) => false,
        Ok(true) => {
            channel.tell(&ToHost::GetDone { id });
            true
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            channel.tell(&ToHost::TransferFailed { id, step: "read".into(), errno });
            true
        }
    }
}

/// Tells of one more file; `true` when it is over.
fn list_on(list: &mut List, channel: &mut Channel) -> bool {
    let id = list.id;
    match list.go_on(channel) {
        Ok(false) => return false,
        Ok(true) => channel.tell(&ToHost::FilesDone { id }),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            channel.tell(&ToHost::TransferFailed { id, step: "list".into(), errno });
        }
    }
    true
}

/// As PID 1, ending is enough: the kernel takes the rest. Elsewhere everything below has to be stopped, then killed.
fn end_everything() {
    if sys::is_init() {
        return;
    }
    let descendants = || {
        let (mut found, mut queue) = (Vec::new(), vec!["self".to_string()]);
        while let Some(pid) = queue.pop() {
            let Ok(tasks) = small_files::list_path(&format!("/proc/{pid}/task")) else { continue };
            for (task, _) in tasks {
                let children = small_files::read_text(&format!("/proc/{pid}/task/{task}/children"));
                for child in children.unwrap_or_default().split_whitespace() {
                    found.extend(child.parse::<i32>());
                    queue.push(child.to_string());
                }
            }
        }
        found
    };
    let mut stopped = BTreeSet::new();
    for _ in 0..100 {
        let fresh: Vec<i32> = descendants().into_iter().filter(|pid| stopped.insert(*pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            let _ = sys::kill(pid, libc::SIGSTOP);
        }
    }
    for pid in descendants() {
        let _ = sys::kill(pid, libc::SIGKILL);
    }
}
