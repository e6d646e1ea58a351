//! The guest as a program, without a launcher's gate: every payload is held for the engine. Several live at once, and a
//! signal reaches the one that it is for.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;

use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::frame::{self, Body, Decoder};
use casemate_wire::guest::{
    Access, Config, Exec, Executable, Filter, Ids, Inherits, Input, Landlock, LandlockRule, Network,
    Presence, Privileges, Ptrace, Rlimits, Terminals, ToGuest, ToHost, WaitStatus,
};

/// What the guest says, as far as these tests care.
#[derive(Debug, PartialEq)]
enum Said {
    Message(ToHost),
    Data(u32, Vec<u8>),
    Other,
}

struct Guest {
    child: Child,
    socket: UnixStream,
    decoder: Decoder,
}

impl Guest {
    fn start() -> Guest {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        // The channel is descriptor 3.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" 3<&0", env!("CARGO_BIN_EXE_casemate-guest")]);
        let child = shell.stdin(OwnedFd::from(theirs)).spawn().expect("the guest starts");
        let mut guest = Guest { child, socket: ours, decoder: Decoder::default() };
        guest.tell(&ToGuest::Configure(config()));
        assert_eq!(guest.next(), Said::Message(ToHost::Hello { version: PROTOCOL_VERSION }));
        guest
    }

    fn tell(&mut self, message: &ToGuest) {
        let mut bytes = Vec::new();
        frame::encode(0, Body::Message(&message.encode()), &mut bytes);
        self.socket.write_all(&bytes).expect("the guest listens");
    }

    fn next(&mut self) -> Said {
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("well-formed") {
                return match frame.body {
                    Body::Message(bytes) => Said::Message(ToHost::decode(bytes).expect("a message")),
                    Body::Data(bytes) => Said::Data(frame.stream, bytes.to_vec()),
                    _ => Said::Other,
                };
            }
            let read = self.socket.read(self.decoder.space()).expect("the guest answers in time");
            assert!(read > 0, "the guest is gone");
            self.decoder.filled(read);
        }
    }

    /// Starts a shell that is then held.
    fn exec(&mut self, id: u32, script: &str) {
        self.tell(&ToGuest::Exec(Exec {
            id,
            argv: ["sh", "-c", script].map(Into::into).into(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            cwd: "/".into(),
            program: Executable::Named,
            stdin: Input::Nothing,
            stdout: 10 * id,
            stderr: 10 * id + 1,
            max_output: 1 << 20,
            terminal: None,
            announce: false,
            inherits: Inherits::Streams,
        }));
        match self.next() {
            Said::Message(ToHost::Held { exec, .. }) if exec == id => {}
            other => panic!("{id} is not held: {other:?}"),
        }
    }

    /// What comes until `id` has ended, and how it ended.
    fn until_exit(&mut self, id: u32) -> (Vec<Said>, WaitStatus) {
        let mut before = Vec::new();
        loop {
            match self.next() {
                Said::Message(ToHost::Exited { exec, status, .. }) if exec == id => return (before, status),
                other => before.push(other),
            }
        }
    }

    /// Closes the channel: the guest ends, and with it everything it started.
    fn end(mut self) {
        drop(self.socket);
        assert!(self.child.wait().expect("the guest can be waited for").success());
    }
}

fn config() -> Config {
    let rule = |path: &str, access| LandlockRule { path: path.into(), access, presence: Presence::Required };
    Config {
        version: PROTOCOL_VERSION,
        payload_id: None,
        network: Network::None,
        ids: Ids::Shared,
        ptrace: Ptrace::Denied,
        filter: Filter::Own,
        rlimits: Rlimits { open_files: 256, processes: None, cpu_seconds: None, file_size: None },
        landlock: Landlock::Rules(vec![rule("/", Access::ReadExecute), rule("/dev", Access::Device)]),
        file_roots: Vec::new(),
        terminals: Terminals::None,
        privileges: Privileges::None,
    }
}

#[test]
fn two_payloads_are_held_and_live_side_by_side() {
    let mut guest = Guest::start();
    guest.exec(1, "echo one; exit 3");
    guest.exec(2, "echo two; exit 4");
    // The second goes first, and nothing is heard of the other meanwhile.
    guest.tell(&ToGuest::Proceed { exec: 2 });
    let (said, status) = guest.until_exit(2);
    assert_eq!(status, WaitStatus::Exited(4));
    assert!(said.contains(&Said::Data(20, b"two\n".to_vec())), "{said:?}");
    assert!(!said.iter().any(|said| matches!(said, Said::Data(10 | 11, _))), "it was not let go: {said:?}");
    guest.tell(&ToGuest::Proceed { exec: 1 });
    let (said, status) = guest.until_exit(1);
    assert_eq!(status, WaitStatus::Exited(3));
    assert!(said.contains(&Said::Data(10, b"one\n".to_vec())), "{said:?}");
    guest.end();
}

#[test]
fn a_signal_reaches_the_payload_that_it_is_for() {
    let mut guest = Guest::start();
    guest.exec(1, "echo ready; sleep 60");
    guest.exec(2, "echo ready; sleep 60");
    for id in [1, 2] {
        guest.tell(&ToGuest::Proceed { exec: id });
        while guest.next() != Said::Data(10 * id, b"ready\n".to_vec()) {}
    }
    guest.tell(&ToGuest::Signal { exec: 2, signal: 15 });
    assert_eq!(guest.until_exit(2).1, WaitStatus::Signaled(15));
    // The first one is still there, until the guest is told to end it.
    guest.tell(&ToGuest::Signal { exec: 1, signal: 9 });
    assert_eq!(guest.until_exit(1).1, WaitStatus::Signaled(9));
    guest.end();
}

/// As root on a host it could change what is mounted there: it is not the first process, so nothing of that is its business.
#[test]
fn a_guest_that_is_not_the_first_process_leaves_the_machine_alone() {
    let look = || {
        let devices: Vec<bool> =
            ["/dev/fuse", "/dev/net/tun"].iter().map(|path| std::path::Path::new(path).exists()).collect();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let ours = |line: &&str| line.contains(" /proc/1 ") || line.contains(" /dev/pts ");
        (devices, mounts.lines().filter(ours).count())
    };
    let before = look();
    let mut guest = Guest::start();
    let _ = guest.child.kill();
    let _ = guest.child.wait();
    assert_eq!(look(), before);
}
