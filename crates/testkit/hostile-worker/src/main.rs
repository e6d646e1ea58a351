//! A WASM worker that was taken over: it says hello like the real one, claims to have loaded whatever it is given (but for
//! deterministic code, about which it is silent), and does with each call what the call's first argument says.

#[path = "../../../wasm/src/origin.rs"]
mod origin;

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::frame::{self, Body, Decoder, MAX_PAYLOAD};
use casemate_wire::guest::{Discarded, ProcessUsage, ToHost, WaitStatus};
use casemate_wire::worker::{Call, Mode, ToWorker, World};
use rustix::fs::{MemfdFlags, memfd_create};

fn main() -> io::Result<()> {
    let mut line = Line { decoder: Decoder::for_requests() };
    tell(&ToHost::Hello { version: PROTOCOL_VERSION })?;
    while let Some(message) = line.next()? {
        match message {
            // Of these it never says a word.
            ToWorker::Load { mode: Mode::Deterministic, .. } => {}
            ToWorker::Load { module, .. } => {
                tell(&ToHost::Loaded { module, world: Ok(World::Preview1), imports: Vec::new() })?;
            }
            ToWorker::Call(call) => answer(&call, &mut line)?,
            _ => {}
        }
    }
    Ok(())
}

fn answer(call: &Call, line: &mut Line) -> io::Result<()> {
    let words: Vec<&str> = call.args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["probe", args @ ..] => {
            let program = line.input(call.stdin.unwrap_or_default())?;
            let (code, out) = probe(&program, args)?;
            for piece in out.chunks(MAX_PAYLOAD) {
                send(call.stdout, Body::Data(piece))?;
            }
            exited(call.id, code)
        }
        ["look"] => {
            let out = look();
            send(call.stdout, Body::Data(&out.as_bytes()[..out.len().min(MAX_PAYLOAD)]))?;
            exited(call.id, 0)
        }
        ["nonsense"] => write(&[0xa5; 4096]),
        ["a-frame-too-large"] => write(&[0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 1]),
        ["die"] => std::process::abort(),
        ["silence"] => Ok(()),
        // All that the flow control does not know of, without end.
        ["flood-messages"] => loop {
            tell(&ToHost::OutputCut { exec: call.id })?;
        },
        ["flood-ends"] => loop {
            send(call.stdout, Body::End)?;
        },
        ["flood-nothing"] => loop {
            send(call.stdout, Body::Data(&[]))?;
        },
        ["flood-data"] => loop {
            send(call.stdout, Body::Data(&[7; MAX_PAYLOAD]))?;
        },
        ["flood-loaded"] => loop {
            let imports = vec!["x".repeat(1000); 30];
            tell(&ToHost::Loaded { module: 77, world: Ok(World::Tool), imports })?;
        },
        ["answer-others"] => {
            for other in (0..4096).map(|n| n * 4).filter(|other| *other != call.id) {
                send(other + 2, Body::Data(b"forged"))?;
                exited(other, 0)?;
                tell(&ToHost::LoadFailed { module: other, why: "forged".into() })?;
            }
            exited(call.id, 7)
        }
        ["answer-twice"] => {
            exited(call.id, 7)?;
            send(call.stdout, Body::Data(b"after the end"))?;
            exited(call.id, 8)
        }
        ["lie-about-usage"] => {
            let usage = ProcessUsage { cpu_micros: u64::MAX, max_rss_bytes: u64::MAX };
            let discarded = Discarded { stdout: u64::MAX, stderr: u64::MAX };
            tell(&ToHost::Exited { exec: call.id, status: WaitStatus::Exited(7), usage, discarded })
        }
        ["speak-as-a-guest"] => tell(&ToHost::Held { exec: call.id, pid: 1 }),
        _ => exited(call.id, 0),
    }
}

/// Runs a program as a child, with its own standard streams and nothing else: the probe that also runs natively.
fn probe(program: &[u8], args: &[&str]) -> io::Result<(u8, Vec<u8>)> {
    let memory = memfd_create("probe", MemfdFlags::empty())?;
    let mut file = std::fs::File::from(memory);
    file.write_all(program)?;
    // Executed through a path, while nobody has it open for writing.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let readable = std::fs::File::open(&path)?;
    let program = format!("/proc/self/fd/{}", readable.as_raw_fd());
    drop(file);
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let args = args.iter().map(|arg| arg.replace("{guest}", &parent.to_string()));
    let output = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    Ok((output.status.code().unwrap_or(255) as u8, output.stdout))
}

/// What it finds around itself.
fn look() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let names = |path: &str| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let reads = |path: &str| std::fs::read(path).map_or("no", |_| "yes");
    let interfaces = std::fs::read_to_string("/proc/net/dev").unwrap_or_default().lines().count();
    let connects = std::net::TcpStream::connect(("127.0.0.1", 9)).map_err(|error| error.kind());
    format!(
        "{status}\nroot: {}\nproc: {}\nshadow: {}\nhome: {}\ninterfaces: {interfaces}\nconnect: {connects:?}\nenv: {:?}\n",
        names("/"),
        names("/proc"),
        reads("/etc/shadow"),
        names("/root"),
        std::env::vars().collect::<Vec<_>>(),
    )
}

struct Line {
    decoder: Decoder,
}

impl Line {
    fn next(&mut self) -> io::Result<Option<ToWorker>> {
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                if let Body::Message(bytes) = frame.body {
                    return ToWorker::decode(bytes).map(Some).map_err(io::Error::other);
                }
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// What comes on a stream until its end.
    fn input(&mut self, stream: u32) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                match frame.body {
                    Body::Data(bytes) if frame.stream == stream => {
                        all.extend_from_slice(bytes);
                        send(stream, Body::Credit(bytes.len() as u32))?;
                    }
                    Body::End if frame.stream == stream => return Ok(all),
                    _ => {}
                }
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn fill(&mut self) -> io::Result<bool> {
        let read = io::stdin().read(self.decoder.space())?;
        self.decoder.filled(read);
        Ok(read > 0)
    }
}

fn exited(exec: u32, code: u8) -> io::Result<()> {
    let usage = ProcessUsage { cpu_micros: 1, max_rss_bytes: 1 };
    let discarded = Discarded { stdout: 0, stderr: 0 };
    tell(&ToHost::Exited { exec, status: WaitStatus::Exited(code), usage, discarded })
}

fn tell(message: &ToHost) -> io::Result<()> {
    send(0, Body::Message(&message.encode()))
}

fn send(stream: u32, body: Body<'_>) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::encode(stream, body, &mut bytes);
    write(&bytes)
}

/// The line is the standard input, in both directions.
fn write(bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(rustix::stdio::stdin(), rest)?;
        rest = &rest[written..];
    }
    Ok(())
}
