//! One payload process: prepared, held, let go, listened to, reaped.
//!
//! ```text
//! spawn ──> Preparing ──(confined)──> Held ──proceed──> Running ──(reaped)──> draining ──> reported
//!               ├──(confined, at a gate: let go from outside)──> Running
//!               └──(a step failed)──> reported as failed
//! ```
//! What a process says of itself until it executes something, on a pipe that closes then:
//! ```text
//! HELD (unless it waits at a gate) ──> PASSED ──> FAILED, errno, step
//!                └─────────────────────────────────^
//! ```

use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::convert::Infallible;

use casemate_bare::io;
use casemate_wire::frame::{Body, MAX_PAYLOAD, OverCredit, ReceiveWindow, SendWindow};
use casemate_wire::guest::{
    Discarded, Exec, Executable, Inherits, Input, ProcessUsage, TerminalSize, ToHost, WaitStatus,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::channel::Channel;
use crate::confine::{Confinement, Step, step};
use crate::sys;
use crate::terminal::{self, Terminal};
use crate::{Attached, BORN, Birth, Gate, HELD};

/// It was let go.
const PASSED: u8 = b'p';
/// It never comes to run what it was meant to; why, follows.
const FAILED: u8 = b'f';

pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) pid: i32,
    phase: Phase,
    /// Somebody has looked at it from outside, and let it go.
    passed: bool,
    /// What it was to be sent before that.
    waiting_signals: Vec<u8>,
    /// It never came to run what it was meant to, which was told.
    failed: bool,
    terminal: Option<OwnedFd>,
    stdin: Option<Feed>,
    outputs: [Output; 2],
    /// Output bytes that may still be passed on.
    budget: u64,
    cut: bool,
    ended: Option<(WaitStatus, ProcessUsage)>,
}

enum Phase {
    /// `report` says when the process is confined, or which step failed; `hold` lets it go. At a gate, there is none.
    Preparing {
        report: OwnedFd,
        hold: Option<OwnedFd>,
        held: bool,
    },
    Running,
}

struct Feed {
    stream: u32,
    pipe: Option<OwnedFd>,
    waiting: Vec<u8>,
    ended: bool,
    window: ReceiveWindow,
    terminal: bool,
}

struct Output {
    stream: u32,
    pipe: Option<OwnedFd>,
    window: SendWindow,
    discarded: u64,
    /// Once the process has ended: what was in the pipe at that moment, and nothing that an orphan writes later.
    remaining: Option<u64>,
    /// A terminal cannot tell how much it has: it is read until it has nothing more.
    terminal: bool,
}

/// What a process wants to be woken for.
#[derive(Clone, Copy)]
pub(crate) enum Wake {
    Report,
    Stdin,
    Output(usize),
}

impl Process {
    /// Forks a process and confines it; before it executes anything it waits at the gate, or else for
    /// [`Process::proceed`].
    pub(crate) fn spawn(
        exec: &Exec,
        confinement: &Confinement,
        gate: Option<Gate>,
        attached: &mut Attached,
        terminal: Option<Terminal>,
    ) -> Result<Process, Step> {
        let pipes = || pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from).map_err(step("pipe"));
        let (out_read, out_write) = pipes()?;
        let (err_read, err_write) = pipes()?;
        let (report_read, report_write) = pipes()?;
        let birth = gate.as_ref().map_or(Birth::Copied, |gate| gate.birth);
        let (gate, mut words, hold_read, hold_write) = match gate {
            Some(Gate { held, words, release, .. }) => (Some(held), words, release, None),
            None => pipes().map(|(read, write)| (None, Vec::new(), read, Some(write)))?,
        };
        words.push(HELD);
        let missing = |what| Step { name: what, error: io::Error::from_raw_os_error(libc::ENOENT) };
        let program = match exec.program {
            Executable::Named => None,
            Executable::Attached => Some(attached.take_program().ok_or(missing("attached program"))?),
        };
        let (in_read, in_write) = match exec.stdin {
            Input::Stream(_) => pipes().map(|(read, write)| (read, Some(write)))?,
            Input::Line => (attached.take_line().ok_or(missing("attached line"))?, None),
            Input::Nothing => {
                let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                (null.map_err(|e| Step { name: "open /dev/null", error: e.into() })?, None)
            }
        };
        let inherited = match exec.inherits {
            Inherits::Streams => Vec::new(),
            Inherits::Attached => attached.take_all(),
        };
        // Only borrows: in a child that shares this memory, whatever it dropped would be gone here, too.
        let become_payload = || -> Infallible {
            let stdio = match &terminal {
                Some(Terminal { inside, .. }) => [inside.as_fd(); 3],
                None => [in_read.as_fd(), out_write.as_fd(), err_write.as_fd()],
            };
            let mut report = report_write.as_fd();
            let hold = Hold {
                tell: gate.as_ref().map_or(report, AsFd::as_fd),
                greeting: if gate.is_some() { &[BORN] } else { &[] },
                words: &words,
                wait: hold_read.as_fd(),
            };
            let program = program.as_ref().map(AsFd::as_fd);
            let inherited: Vec<_> = inherited.iter().map(AsFd::as_fd).collect();
            let given = Given { program, inherited: &inherited };
            let failed = child(exec, given, confinement, stdio, &mut report, hold);
            let errno = failed.error.raw_os_error().unwrap_or(libc::EIO);
            let mut words = vec![FAILED];
            words.extend(errno.to_le_bytes());
            words.extend(failed.name.as_bytes());
            if failed.error.raw_os_error().is_none() {
                words.extend(format!(": {}", failed.error).as_bytes());
            }
            let _ = rustix::io::write(report, &words);
            sys::exit_now(127)
        };
        let pid = match birth {
            Birth::Copied => sys::fork(become_payload),
            Birth::InPlace => sys::fork_in_place(become_payload),
        };
        let pid = pid.map_err(step("fork"))?;
        for fd in [out_read.as_fd(), err_read.as_fd(), report_read.as_fd()] {
            rustix::io::ioctl_fionbio(fd, true).map_err(|e| Step { name: "pipe", error: e.into() })?;
        }
        if let Some(fd) = &in_write {
            rustix::io::ioctl_fionbio(fd, true).map_err(|e| Step { name: "pipe", error: e.into() })?;
        }
        let output = |stream, pipe, terminal| Output {
            stream,
            pipe: Some(pipe),
            window: SendWindow::default(),
            discarded: 0,
            remaining: None,
            terminal,
        };
        // A terminal is written to and read from at its one other end.
        let (in_write, out_read, terminal) = match terminal {
            None => (in_write, out_read, None),
            Some(Terminal { outside, .. }) => {
                let nonblocking = rustix::io::ioctl_fionbio(&outside, true);
                nonblocking.map_err(|e| Step { name: "terminal", error: e.into() })?;
                let again = || rustix::io::fcntl_dupfd_cloexec(&outside, 0);
                let copies = again().and_then(|input| Ok((input, again()?)));
                let (input, output) = copies.map_err(|e| Step { name: "terminal", error: e.into() })?;
                (Some(input), output, Some(outside))
            }
        };
        let on_terminal = terminal.is_some();
        Ok(Process {
            id: exec.id,
            pid,
            phase: Phase::Preparing { report: report_read, hold: hold_write, held: false },
            stdin: match (exec.stdin, in_write) {
                (Input::Stream(stream), Some(pipe)) => Some(Feed {
                    stream,
                    pipe: Some(pipe),
                    waiting: Vec::new(),
                    ended: false,
                    window: ReceiveWindow::default(),
                    terminal: on_terminal,
                }),
                _ => None,
            },
            outputs: [output(exec.stdout, out_read, on_terminal), output(exec.stderr, err_read, false)],
            budget: exec.max_output,
            passed: false,
            waiting_signals: Vec::new(),
            failed: false,
            terminal,
            cut: false,
            ended: None,
        })
    }

    /// Whether it was looked at from outside, and let go. What became of it afterwards is another question.
    pub(crate) fn has_passed(&self) -> bool {
        self.passed
    }

    /// Whether it still may be let go.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.phase, Phase::Preparing { .. })
    }

    /// Where the kernel does not tell those on the terminal, we do as well as we can.
    pub(crate) fn resize(&mut self, size: TerminalSize, kernel_tells: bool) {
        if let Some(terminal) = &self.terminal {
            // A terminal that has no size of its own any more is one that nobody uses.
            let resized = terminal::resize(terminal, size);
            if resized.is_ok() && !kernel_tells {
                self.signal(libc::SIGWINCH as u8);
            }
        }
    }

    pub(crate) fn proceed(&mut self) {
        if let Phase::Preparing { hold: Some(hold), held: true, .. } = &self.phase {
            let _ = rustix::io::write(hold, &[1]);
        }
    }

    /// To everything in the payload's session; no process can leave it for one of ours.
    ///
    /// At the gate it has to wait: whoever is killed there takes the gate along, through which nobody else can go then. The engine sends
    /// nothing before the gate was opened, but what waits there may not have noticed yet.
    pub(crate) fn signal(&mut self, signal: u8) {
        if matches!(self.phase, Phase::Preparing { hold: None, .. }) && !self.passed {
            self.waiting_signals.push(signal);
        } else {
            self.send(signal);
        }
    }

    fn send(&self, signal: u8) {
        if self.ended.is_none() {
            let _ = sys::kill(-self.pid, i32::from(signal));
        }
    }

    /// What to poll for, given whether the channel has room for more output.
    pub(crate) fn wakes(&self, room: bool) -> Vec<(BorrowedFd<'_>, Wake)> {
        let mut wakes = Vec::new();
        if let Phase::Preparing { report, .. } = &self.phase {
            wakes.push((report.as_fd(), Wake::Report));
        }
        if let Some(input) = &self.stdin
            && let Some(pipe) = &input.pipe
            && !input.waiting.is_empty()
        {
            wakes.push((pipe.as_fd(), Wake::Stdin));
        }
        for (index, output) in self.outputs.iter().enumerate() {
            if let Some(pipe) = &output.pipe
                && (self.budget == 0 || (room && output.window.available() > 0))
            {
                wakes.push((pipe.as_fd(), Wake::Output(index)));
            }
        }
        wakes
    }

    /// `buffer` is empty and has room for [`MAX_PAYLOAD`] bytes.
    pub(crate) fn wake(&mut self, wake: Wake, channel: &mut Channel, buffer: &mut Vec<u8>) {
        match wake {
            Wake::Report => self.read_report(channel),
            Wake::Stdin => self.feed(channel),
            Wake::Output(index) => self.listen(index, channel, buffer),
        }
    }

    /// The process was reaped. What it wrote before is still in the pipes.
    pub(crate) fn reaped(&mut self, status: WaitStatus, usage: ProcessUsage) {
        self.ended = Some((status, usage));
        self.stdin = None;
        for output in &mut self.outputs {
            output.remaining = output.pipe.as_ref().map(|pipe| match output.terminal {
                true => u64::MAX,
                false => sys::readable_bytes(pipe.as_fd()),
            });
        }
    }

    /// Whether it has ended and its terminal may have more to show. Others on it may keep it open, so it is read until there is
    /// nothing; then we let go of it, and the kernel hangs up on them.
    pub(crate) fn drains(&self) -> bool {
        let [screen, _] = &self.outputs;
        screen.terminal && screen.remaining.is_some() && self.takes(screen)
    }

    fn takes(&self, output: &Output) -> bool {
        output.pipe.is_some() && (self.budget == 0 || output.window.available() > 0)
    }

    pub(crate) fn drain(&mut self, channel: &mut Channel, buffer: &mut Vec<u8>) {
        if self.drains() {
            self.listen(0, channel, buffer);
        }
    }

    /// Reports the end once everything was sent. `true`: this process can be forgotten.
    pub(crate) fn finished(&mut self, channel: &mut Channel) -> bool {
        // A failed start is reported by its own message; wait for that.
        if matches!(self.phase, Phase::Preparing { .. }) {
            return false;
        }
        let Some((status, usage)) = self.ended else { return false };
        if self.failed {
            return true;
        }
        for output in &mut self.outputs {
            if output.remaining == Some(0) {
                output.close(channel);
            }
        }
        if self.outputs.iter().any(|output| output.pipe.is_some()) {
            return false;
        }
        let [out, err] = &self.outputs;
        let discarded = Discarded { stdout: out.discarded, stderr: err.discarded };
        channel.tell(&ToHost::Exited { exec: self.id, status, usage, discarded });
        true
    }

    pub(crate) fn owns_input(&self, stream: u32) -> bool {
        self.stdin.as_ref().is_some_and(|input| input.stream == stream)
    }

    /// Bytes for standard input have arrived.
    pub(crate) fn input(&mut self, bytes: &[u8], channel: &mut Channel) -> Result<(), OverCredit> {
        if let Some(input) = &mut self.stdin {
            input.window.receive(bytes.len())?;
            input.waiting.extend_from_slice(bytes);
        }
        self.feed(channel);
        Ok(())
    }

    pub(crate) fn end_input(&mut self, channel: &mut Channel) {
        if let Some(input) = &mut self.stdin {
            input.ended = true;
        }
        self.feed(channel);
    }

    pub(crate) fn credit(&mut self, stream: u32, bytes: u32) -> Result<(), OverCredit> {
        match self.outputs.iter_mut().find(|output| output.stream == stream) {
            Some(output) => output.window.refund(bytes),
            None => Ok(()),
        }
    }

    fn read_report(&mut self, channel: &mut Channel) {
        let Phase::Preparing { report, held, .. } = &mut self.phase else { return };
        let mut buffer = [0; 512];
        let mut said = match rustix::io::read(&*report, &mut buffer) {
            Ok(n) if n > 0 => &buffer[..n],
            Err(Errno::AGAIN | Errno::INTR) => return,
            // Closed by exec, or by its death.
            _ => {
                self.phase = Phase::Running;
                return;
            }
        };
        while let [word, rest @ ..] = said {
            match *word {
                HELD if !*held => {
                    *held = true;
                    channel.tell(&ToHost::Held { exec: self.id, pid: self.pid as u32 });
                }
                PASSED => self.passed = true,
                FAILED if let [a, b, c, d, step @ ..] = rest => {
                    let errno = i32::from_le_bytes([*a, *b, *c, *d]);
                    let step = String::from_utf8_lossy(step).into_owned();
                    channel.tell(&ToHost::ExecFailed { exec: self.id, step, errno });
                    (self.phase, self.failed) = (Phase::Running, true);
                    return;
                }
                _ => {}
            }
            said = rest;
        }
        if self.passed {
            for signal in core::mem::take(&mut self.waiting_signals) {
                self.send(signal);
            }
        }
    }

    fn feed(&mut self, channel: &mut Channel) {
        let Some(input) = &mut self.stdin else { return };
        while let Some(pipe) = &input.pipe
            && !input.waiting.is_empty()
        {
            match rustix::io::write(pipe, &input.waiting) {
                Ok(n) => {
                    input.waiting.drain(..n);
                    if let Some(credit) = input.window.consume(n) {
                        channel.send(input.stream, Body::Credit(credit));
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // Nobody reads any more; the rest is dropped, as a shell's pipe would.
                Err(_) => {
                    input.pipe = None;
                    input.waiting.clear();
                }
            }
        }
        if input.pipe.is_none() {
            input.waiting.clear();
        }
        if input.ended {
            // A terminal stays open. Whoever reads from it is told as somebody at a keyboard would.
            match (&input.pipe, input.terminal) {
                (Some(terminal), true) => drop(rustix::io::write(terminal, &[terminal::END])),
                _ => input.pipe = None,
            }
            input.ended = false;
        }
    }

    fn listen(&mut self, index: usize, channel: &mut Channel, buffer: &mut Vec<u8>) {
        let output = &mut self.outputs[index];
        let Some(pipe) = &output.pipe else { return };
        let mut wanted = MAX_PAYLOAD;
        if self.budget > 0 {
            wanted = wanted.min(output.window.available());
        }
        if let Some(remaining) = output.remaining {
            wanted = wanted.min(remaining as usize);
        }
        // Not zeroed: most reads are short, and every page that is touched has to be made first.
        match rustix::io::read(pipe, &mut buffer.spare_capacity_mut()[..wanted]) {
            Ok(([], _)) => output.close(channel),
            Ok((bytes, _)) => {
                let n = bytes.len();
                let kept =
                    n.min(usize::try_from(self.budget).unwrap_or(usize::MAX)).min(output.window.available());
                if kept > 0 {
                    channel.send(output.stream, Body::Data(&bytes[..kept]));
                    output.window.spend(kept);
                    self.budget -= kept as u64;
                }
                if n > kept && !self.cut {
                    self.cut = true;
                    channel.tell(&ToHost::OutputCut { exec: self.id });
                }
                output.discarded += (n - kept) as u64;
                if let Some(remaining) = &mut output.remaining {
                    *remaining -= n as u64;
                }
            }
            Err(Errno::AGAIN) => {
                if output.remaining.is_some() {
                    output.close(channel);
                }
            }
            Err(Errno::INTR) => {}
            Err(_) => output.close(channel),
        }
    }
}

impl Output {
    fn close(&mut self, channel: &mut Channel) {
        if self.pipe.take().is_some() {
            channel.send(self.stream, Body::End);
        }
    }
}

/// Where and how a payload says that it is confined, and where it waits then.
struct Hold<'a> {
    tell: BorrowedFd<'a>,
    /// Said first of all.
    greeting: &'a [u8],
    words: &'a [u8],
    wait: BorrowedFd<'a>,
}

/// What a payload gets besides its standard streams.
struct Given<'a> {
    /// Executed, and gone then.
    program: Option<BorrowedFd<'a>>,
    inherited: &'a [BorrowedFd<'a>],
}

/// The child's side. Returns only with the step that failed; `report` is then where it can be told.
fn child(
    exec: &Exec,
    given: Given<'_>,
    confinement: &Confinement,
    stdio: [BorrowedFd<'_>; 3],
    report: &mut BorrowedFd<'_>,
    hold: Hold<'_>,
) -> Step {
    let prepared = (|| {
        if !hold.greeting.is_empty() {
            rustix::io::write(hold.tell, hold.greeting)
                .map_err(|e| Step { name: "report", error: e.into() })?;
        }
        sys::default_signals().map_err(step("signals"))?;
        rustix::process::setsid().map_err(|e| Step { name: "new session", error: e.into() })?;
        if exec.terminal.is_some() {
            terminal::take(stdio[0]).map_err(step("terminal"))?;
        }
        for (fd, target) in stdio.into_iter().zip(0..) {
            sys::move_fd(fd, target).map_err(step("standard streams"))?;
        }
        // Nothing of the guest stays open here, least of all its channel.
        let close = step("close descriptors");
        let (tell, wait, program) = match given.program {
            None => {
                let kept = [*report, hold.tell, hold.wait];
                let [moved, tell, wait] = sys::only_these(kept, given.inherited).map_err(close)?;
                *report = moved;
                (tell, wait, None)
            }
            Some(program) => {
                let kept = [*report, hold.tell, hold.wait, program];
                let [moved, tell, wait, program] = sys::only_these(kept, given.inherited).map_err(close)?;
                *report = moved;
                (tell, wait, Some(program))
            }
        };
        #[cfg(feature = "weaken")]
        crate::weaken::leave_a_descriptor().map_err(step("close descriptors"))?;
        let strings = exec_strings(exec).map_err(step("arguments"))?;
        confinement.apply()?;
        confinement.show_posture().map_err(step("show posture"))?;
        rustix::io::write(tell, hold.words).map_err(|e| Step { name: "report", error: e.into() })?;
        sys::close_early(tell);
        match rustix::io::read(wait, &mut [0; 1]) {
            Ok(1) => {}
            _ => return Err(Step { name: "hold", error: io::Error::from_raw_os_error(libc::ECANCELED) }),
        }
        rustix::io::write(*report, &[PASSED]).map_err(|e| Step { name: "report", error: e.into() })?;
        // As the payload: it must be allowed to be there. Not before the gate: a directory that does not exist is no reason to give
        // up a cell that others wait for.
        rustix::process::chdir(&*exec.cwd)
            .map_err(|e| Step { name: "working directory", error: e.into() })?;
        Ok((strings, program))
    })();
    match prepared {
        Ok(((_, argv, env), Some(program))) => {
            Step { name: "exec", error: sys::exec_descriptor(program, &argv, &env) }
        }
        Ok(((candidates, argv, env), None)) => {
            // As execvp does: a candidate that may not be executed is remembered, but the search goes on.
            let mut error = io::Error::from_raw_os_error(libc::ENOENT);
            for candidate in candidates {
                // To ask takes a tenth of the time that it takes to fail.
                if rustix::fs::access(&*candidate, rustix::fs::Access::EXISTS) == Err(Errno::NOENT) {
                    continue;
                }
                let tried = sys::exec(&candidate, &argv, &env);
                match tried.raw_os_error() {
                    Some(libc::ENOENT | libc::ENOTDIR) => {}
                    Some(libc::EACCES) => error = tried,
                    _ => return Step { name: "exec", error: tried },
                }
            }
            Step { name: "exec", error }
        }
        Err(failed) => failed,
    }
}

type ExecStrings = (Vec<CString>, Vec<CString>, Vec<CString>);

/// The programs to try, the arguments and the environment.
fn exec_strings(exec: &Exec) -> io::Result<ExecStrings> {
    let text = |text: String| CString::new(text).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    let argv = exec.argv.iter().cloned().map(text).collect::<io::Result<Vec<_>>>()?;
    let env = exec.env.iter().map(|(k, v)| text(format!("{k}={v}"))).collect::<io::Result<Vec<_>>>()?;
    let Some(program) = exec.argv.first() else { return Err(io::Error::from_raw_os_error(libc::EINVAL)) };
    let candidates = if program.contains('/') {
        vec![text(program.clone())?]
    } else {
        let path = exec
            .env
            .iter()
            .find(|(key, _)| key == "PATH")
            .map_or("/usr/bin:/bin", |(_, value)| value.as_str());
        let joined =
            path.split(':').map(|dir| format!("{}/{program}", if dir.is_empty() { "." } else { dir }));
        joined.map(text).collect::<io::Result<_>>()?
    };
    Ok((candidates, argv, env))
}
