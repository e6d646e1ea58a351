//! How QEMU is told what machine to be, and asked to write one down.
//!
//! It gets everything as descriptors and opens nothing of the host's but itself. A clone gets the same devices in the same order as
//! its template, or its state would not fit.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use casemate_wire::guest::FIRST_INHERITED;
use casemate_wire::machine::{CELL_PORT, CONTROL_PORT, LINE_PORT, WITH_IMAGE, WITHOUT_IMAGE};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::kit::Qemu;
use super::shape::Shape;
use crate::sys;

/// Code that was translated. A machine that needs more starts over with it.
const TRANSLATED_MIB: u32 = 64;

/// The descriptors that QEMU inherits, and their numbers there.
#[derive(Default)]
pub(super) struct Descriptors<'a>(Vec<BorrowedFd<'a>>);

impl<'a> Descriptors<'a> {
    pub(super) fn add(&mut self, descriptor: BorrowedFd<'a>) -> i32 {
        self.0.push(descriptor);
        FIRST_INHERITED + self.0.len() as i32 - 1
    }

    pub(super) fn all(&self) -> &[BorrowedFd<'a>] {
        &self.0
    }
}

/// The devices of a machine, by what is behind them.
#[derive(Clone, Copy)]
pub(super) struct Devices<'a> {
    pub(super) memory: BorrowedFd<'a>,
    /// The image, if there is one.
    pub(super) disk: Option<BorrowedFd<'a>>,
    pub(super) control: BorrowedFd<'a>,
    pub(super) cell: BorrowedFd<'a>,
    /// Nobody is there if there is none.
    pub(super) line: Option<BorrowedFd<'a>>,
}

/// How a machine comes to be.
#[derive(Clone, Copy)]
pub(super) enum Birth<'a> {
    Boot {
        kernel: BorrowedFd<'a>,
        initramfs: BorrowedFd<'a>,
        monitor: BorrowedFd<'a>,
        tsc_khz: u64,
    },
    /// From the state of everything but the memory.
    Clone {
        state: BorrowedFd<'a>,
        monitor: BorrowedFd<'a>,
    },
}

/// The number under which the QEMU of a clone has the state.
const STATE: i32 = FIRST_INHERITED;

/// What is said to the monitor of a clone, all at once: it has nothing to ask.
pub(super) fn beginning() -> String {
    let ignore_shared = json!({"capabilities": [{"capability": "x-ignore-shared", "state": true}]});
    let commands = [
        json!({"execute": "qmp_capabilities"}),
        json!({"execute": "migrate-set-capabilities", "arguments": ignore_shared}),
        json!({"execute": "migrate-incoming", "arguments": {"uri": format!("fd:{STATE}")}}),
    ];
    commands.iter().map(|command| format!("{command}\n")).collect()
}

/// The command line of QEMU, and what it inherits.
pub(super) fn command<'a>(
    shape: Shape,
    devices: Devices<'a>,
    birth: Birth<'a>,
) -> (Vec<String>, Descriptors<'a>) {
    let mut inherited = Descriptors::default();
    let mut words: Vec<String> = Vec::new();
    let mut say = |parts: &[&str]| words.extend(parts.iter().map(|&part| part.to_owned()));
    let bytes = shape.memory_bytes;
    // A template writes into the memory that it will be cloned from; a clone has what it writes to itself.
    let share = if matches!(birth, Birth::Boot { .. }) { "on" } else { "off" };
    if let Birth::Clone { state, .. } = birth {
        let number = inherited.add(state);
        debug_assert_eq!(number, STATE);
    }
    let memory = inherited.add(devices.memory);
    say(&[Qemu::PATH, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    // What an emulator that was taken over would want first. It is in a cell of ours, too.
    say(&["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
    say(&["-machine", "microvm,acpi=on,rtc=off,memory-backend=memory"]);
    say(&["-accel", &format!("tcg,thread=multi,tb-size={TRANSLATED_MIB}"), "-cpu", "max"]);
    say(&["-smp", &shape.cpus.to_string(), "-m", &format!("{}M", bytes >> 20)]);
    let file = format!("mem-path=/proc/self/fd/{memory},share={share}");
    say(&["-object", &format!("memory-backend-file,id=memory,size={bytes},{file}")]);
    // What the kernel has to say before anybody else can say anything, and its last words.
    say(&["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
    say(&["-device", "virtio-serial-device,max_ports=4"]);
    let ports = [
        ("control", CONTROL_PORT, Some(devices.control)),
        ("cell", CELL_PORT, Some(devices.cell)),
        ("line", LINE_PORT, devices.line),
    ];
    for (id, name, socket) in ports {
        let behind = match socket {
            Some(socket) => format!("socket,id={id},fd={}", inherited.add(socket)),
            None => format!("null,id={id}"),
        };
        say(&["-chardev", &behind, "-device", &format!("virtserialport,chardev={id},name={name}")]);
    }
    if let Some(disk) = devices.disk {
        let number = inherited.add(disk);
        say(&["-add-fd", &format!("fd={number},set=1")]);
        let file = "driver=file,node-name=file,filename=/dev/fdset/1,read-only=on,locking=off";
        say(&["-blockdev", file, "-blockdev", "driver=raw,node-name=image,file=file,read-only=on"]);
        say(&["-device", "virtio-blk-device,drive=image"]);
    }
    let monitor = match birth {
        Birth::Boot { kernel, initramfs, monitor, tsc_khz } => {
            let (kernel, initramfs) = (inherited.add(kernel), inherited.add(initramfs));
            let content = if devices.disk.is_some() { WITH_IMAGE } else { WITHOUT_IMAGE };
            say(&["-kernel", &format!("/proc/self/fd/{kernel}")]);
            say(&["-initrd", &format!("/proc/self/fd/{initramfs}")]);
            // A panic restarts the machine, which ends it. Without being told, the kernel would measure the emulated clock for ever. And an
            // emulated processor does not speculate: there is nothing to be mitigated.
            let kernel_line = format!(
                "console=ttyS0 quiet panic=-1 reboot=t rdinit=/init mitigations=off tsc=reliable tsc_early_khz={tsc_khz} {content}"
            );
            say(&["-append", &kernel_line]);
            monitor
        }
        Birth::Clone { monitor, .. } => {
            say(&["-incoming", "defer"]);
            monitor
        }
    };
    say(&["-chardev", &format!("socket,id=monitor,fd={}", inherited.add(monitor))]);
    say(&["-mon", "chardev=monitor,mode=control"]);
    (words, inherited)
}

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest thing that it says to us.
const MAX_LINE: u64 = 64 * 1024;

/// A conversation with a QEMU that has booted a template. It is in a cell, and hostile code has not run in it yet; it is bounded all the
/// same.
pub(super) struct Monitor {
    lines: BufReader<OwnedReadHalf>,
    voice: OwnedWriteHalf,
    /// The same socket, for what the other cannot send.
    socket: OwnedFd,
    /// As it introduces itself.
    pub(super) version: String,
}

impl Monitor {
    pub(super) async fn open(socket: UnixStream) -> io::Result<Monitor> {
        let same = socket.as_fd().try_clone_to_owned()?;
        let (reader, voice) = socket.into_split();
        let (lines, version) = (BufReader::new(reader), String::new());
        let mut monitor = Monitor { lines, voice, socket: same, version };
        let greeting = monitor.hear().await?;
        let version = &greeting["QMP"]["version"]["qemu"];
        let number = |part: &str| version[part].as_u64().ok_or_else(|| said_nonsense(&greeting));
        monitor.version = format!("{}.{}.{}", number("major")?, number("minor")?, number("micro")?);
        monitor.ask("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    /// Writes the state of everything but the memory into `file`. The machine stands still from then on.
    pub(super) async fn save(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        // What it inherited it only reads from; for writing, it wants to be given a file by name.
        let mut request = json!({"execute": "getfd", "arguments": {"fdname": "state"}}).to_string();
        request.push('\n');
        // Nothing was sent that it has not answered yet: there is room.
        let sent = sys::send_some(self.socket.as_fd(), request.as_bytes(), Some(file))?;
        if sent != request.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.returned().await?;
        let ignore_shared = json!({"capabilities": [{"capability": "x-ignore-shared", "state": true}]});
        self.ask("migrate-set-capabilities", ignore_shared).await?;
        self.ask("migrate", json!({"uri": "fd:state"})).await?;
        for _ in 0..4000 {
            let state = self.ask("query-migrate", json!({})).await?;
            match state["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => return Err(said_nonsense(&state)),
                _ => tokio::time::sleep(Duration::from_millis(3)).await,
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    async fn ask(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let mut request = json!({"execute": command, "arguments": arguments}).to_string();
        request.push('\n');
        self.voice.write_all(request.as_bytes()).await?;
        self.returned().await
    }

    /// What comes of the request before.
    async fn returned(&mut self) -> io::Result<Value> {
        loop {
            let mut answer = self.hear().await?;
            if answer.get("event").is_some() {
                continue;
            }
            match answer.get_mut("return") {
                Some(result) => return Ok(result.take()),
                None => return Err(said_nonsense(&answer)),
            }
        }
    }

    async fn hear(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.lines).take(MAX_LINE);
        let read = tokio::time::timeout(PATIENCE, bounded.read_until(b'\n', &mut line));
        match read.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => serde_json::from_slice(&line).map_err(io::Error::other),
        }
    }
}

fn said_nonsense(what: &Value) -> io::Error {
    io::Error::other(format!("QEMU answered {what}"))
}

/// Another description of the same file, so that two who read it do not share a place in it.
pub(super) fn reopened(file: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
}
