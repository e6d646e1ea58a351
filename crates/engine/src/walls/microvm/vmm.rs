//! QEMU in a cell of our own container wall: own ids and namespaces, no network, no file but the distribution's programs, a bound on
//! everything. Who breaks out of the machine and takes over QEMU is there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::plan::Plan;
use casemate_core::request::{Request, RequestDraft, Workload};
use casemate_core::stack::{Stack, Wall as WallName};
use casemate_wire::frame::{Body, ReceiveWindow};
use casemate_wire::guest::ToHost;
use casemate_wire::launch::{Counters, Image};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::qemu::Descriptors;
use super::shape::Shape;
use crate::guest::{Channel, Event};
use crate::run::{self, STDERR, STDOUT, Trouble};
use crate::wall::{Attachment, Begun, Control, WallError};
use crate::walls::container::{Container, Content};

/// What is kept of what a machine's console and QEMU say.
const LAST_WORDS: usize = 4096;
/// Of QEMU's processors, besides those of the machine: for its disk, its ports and itself.
const OF_DEVICES: u64 = 500;
/// QEMU writes nothing but a machine's state, and that into memory; but what it may write into a file holds for that, too.
const DISK: u64 = 32 << 20;

/// A running emulator. Dropped, it is killed, and the machine with it.
pub(super) struct Vmm {
    control: Box<dyn Control>,
    pub(super) console: Console,
    /// How its cell looks from outside.
    pub(super) begun: Begun,
}

impl Vmm {
    pub(super) async fn start(
        container: &Container,
        shape: Shape,
        command: Vec<String>,
        inherited: &Descriptors<'_>,
    ) -> Result<Vmm, WallError> {
        let plan = plan(shape, command).map_err(WallError::Refused)?;
        let program = Some(Attachment::Descriptors(inherited.all()));
        let content = Content { kind: Image::Host, image: None, program, sentry: None };
        let mut cell = container.build(&plan, content).await?;
        let begun = run::start_program(&mut cell, &plan).await.map_err(|trouble| match trouble {
            Trouble::Failed(reason) => WallError::Failed(format!("QEMU: {reason}")),
            Trouble::Refused(refusal) => WallError::Refused(refusal),
            Trouble::Cancelled => WallError::Failed("QEMU: cancelled".into()),
        })?;
        Ok(Vmm { control: cell.control, console: Console::follow(cell.channel), begun })
    }

    pub(super) async fn measure(&mut self) -> Result<Counters, WallError> {
        self.control.measure().await
    }

    /// Reads the counters for the last time and kills it.
    pub(super) async fn finish(&mut self) -> Result<Counters, WallError> {
        self.control.finish().await
    }
}

fn plan(shape: Shape, command: Vec<String>) -> Result<Plan, casemate_core::outcome::Refusal> {
    let (memory, threads) = shape.outside();
    let limits = LimitsDraft::new()
        .with(LimitKind::Memory, memory)
        .with(LimitKind::Pids, threads + u64::from(shape.cpus))
        .with(LimitKind::Cpus, u64::from(shape.cpus) * 1000 + OF_DEVICES)
        .with(LimitKind::Disk, DISK)
        .with(LimitKind::Output, LimitKind::Output.range().cap);
    let request = Request::new(RequestDraft::new(Workload::Command { argv: command }))?;
    Plan::of_our_own(request, limits, Stack::of(WallName::Container))
}

/// Listens to QEMU, so that it never waits for somebody to.
pub(super) struct Console {
    said: Arc<Mutex<VecDeque<u8>>>,
    over: watch::Receiver<bool>,
    listener: AbortHandle,
}

impl Drop for Console {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Console {
    fn follow(mut channel: Channel) -> Console {
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, over) = watch::channel(false);
        let kept = said.clone();
        let listener = tokio::spawn(async move {
            let mut windows = [(STDOUT, ReceiveWindow::default()), (STDERR, ReceiveWindow::default())];
            while let Ok(event) = channel.next().await {
                match event {
                    Event::Data { stream, bytes } => {
                        let known = windows.iter_mut().find(|(number, _)| *number == stream);
                        let Some((_, window)) = known else { break };
                        if window.receive(bytes.len()).is_err() {
                            break;
                        }
                        keep(&kept, &bytes);
                        if let Some(credit) = window.consume(bytes.len()) {
                            channel.send(stream, Body::Credit(credit));
                        }
                    }
                    Event::Message(ToHost::Exited { .. } | ToHost::ExecFailed { .. }) | Event::Closed => {
                        break;
                    }
                    _ => {}
                }
            }
            let _ = sender.send(true);
        });
        Console { said, over, listener: listener.abort_handle() }
    }

    /// Completes when QEMU has ended, or whoever watches over it.
    pub(super) async fn ended(&self) {
        let mut over = self.over.clone();
        // An error means that nobody is left to say so.
        let _ = over.wait_for(|over| *over).await;
    }

    /// What it said last: the kernel, if that panicked, or QEMU itself.
    pub(super) fn last_words(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let (front, back) = said.as_slices();
        telling(&String::from_utf8_lossy(&[front, back].concat()))
    }

    /// Likewise, once it has had the time to say it.
    pub(super) async fn epitaph(&self) -> String {
        let _ = tokio::time::timeout(Duration::from_secs(1), self.ended()).await;
        match self.last_words() {
            said if said.is_empty() => "the virtual machine has ended".into(),
            said => format!("the virtual machine has ended: {said}"),
        }
    }
}

fn keep(said: &Mutex<VecDeque<u8>>, bytes: &[u8]) {
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    said.extend(bytes);
    let beyond = said.len().saturating_sub(LAST_WORDS);
    said.drain(..beyond);
}

/// The line that says why, if there is one, or else the last; without anything that would do something to a terminal.
fn telling(said: &str) -> String {
    let plain = |line: &str| -> String {
        let line = line
            .trim_start_matches(|c: char| c == '[' || c == ']' || c == '.' || c == ' ' || c.is_ascii_digit());
        line.chars().filter(|c| !c.is_control()).take(300).collect()
    };
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let why = |line: &&&str| {
        let reasons =
            ["Kernel panic", "casemate-machine:", "qemu-system", "Out of memory", "Unable to mount"];
        reasons.iter().any(|reason| line.contains(reason))
    };
    lines.iter().find(why).or(lines.last()).map(|line| plain(line)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_says_why_is_found() {
        let panic = "[    1.2] something\n[    1.3] Kernel panic - not syncing: Attempted to kill init!\n[  1.4] CPU: 0\n";
        assert_eq!(telling(panic), "Kernel panic - not syncing: Attempted to kill init!");
        assert_eq!(telling("a\n\n b \n"), "b");
        assert_eq!(telling("qemu-system-x86_64: -accel: no\nx"), "qemu-system-x86_64: -accel: no");
        assert_eq!(telling("\x1b[31mred\u{7}"), "[31mred");
        assert_eq!(telling(""), "");
    }

    #[test]
    fn no_more_is_kept_than_its_last_words() {
        let said = Mutex::new(VecDeque::new());
        for _ in 0..100 {
            keep(&said, &[b'x'; 1000]);
        }
        keep(&said, b"end");
        let said = said.into_inner().unwrap();
        assert_eq!(said.len(), LAST_WORDS);
        assert!(said.iter().rev().take(3).eq(b"dne"));
    }
}
