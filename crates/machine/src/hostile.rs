//! Test builds only: a machine that was taken over. It boots like any other, so that there is a template, and then does what is named at
//! the end of its own program (`\nhostile:WORD\n`), which the test appends to it. This module is compiled with the feature `hostile`
//! alone, and `casemate` is never built with it.

use std::sync::OnceLock;
use std::time::Duration;

use casemate_wire::launch::{Answer, Op, Request};
use casemate_wire::machine::{FromMachine, Seed};

use crate::launcher::Belongings;
use crate::ports::Port;

static WORD: OnceLock<String> = OnceLock::new();

/// Reads the word while the program is still there.
pub(crate) fn load() {
    let program = std::fs::read("/init").unwrap_or_default();
    let tail = String::from_utf8_lossy(&program[program.len().saturating_sub(512)..]).into_owned();
    let word = tail.rsplit_once("\nhostile:").map(|(_, word)| word.trim_end().to_owned());
    let _ = WORD.set(word.unwrap_or_default());
}

fn word() -> &'static str {
    WORD.get().map_or("", String::as_str)
}

fn silence() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}

pub(crate) fn instead_of_waking(port: &Port, seed: &Seed) {
    let awake = FromMachine::Awake { id: seed.id, sample: [0; 32] };
    match word() {
        "silence" => silence(),
        "another-machine" => {
            let _ = port.tell(&FromMachine::Awake { id: [7; 16], sample: [0; 32] });
            silence()
        }
        "before-it-is-awake" => {
            let _ = port.tell(&FromMachine::Launcher(Answer::Gone { cell: 1 }.encode()));
            silence()
        }
        "awake-twice" => {
            let _ = port.tell(&awake);
            let _ = port.tell(&awake);
            silence()
        }
        "nonsense" => {
            port.write(&[0xa5; 4096]);
            silence()
        }
        "a-frame-too-large" => {
            port.write(&[0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 0]);
            silence()
        }
        "half-a-frame" => {
            port.write(&[100, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
            silence()
        }
        "data" => {
            port.write(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0]);
            silence()
        }
        // The first process must not end, so the kernel does.
        "panic" => std::process::exit(3),
        "flood" => {
            let _ = port.tell(&awake);
            loop {
                let _ = port.tell(&FromMachine::Launcher(Answer::Gone { cell: 9 }.encode()));
            }
        }
        "flood-nonsense" => loop {
            port.write(&[0; 65536]);
        },
        _ => {}
    }
}

pub(crate) fn instead_of_launching(port: &Port, belongings: &Belongings, request: &[u8]) {
    let Ok(Request { id, op }) = Request::decode(request) else { return };
    match (word(), op) {
        ("nonsense-in-the-cell", Op::Launch(_)) => {
            let _ = rustix::io::write(belongings.channel(), &[0xa5; 4096]);
            silence()
        }
        ("flood-in-the-cell", Op::Launch(_)) => loop {
            let _ = rustix::io::write(belongings.channel(), &[0; 32768]);
        },
        ("an-answer-too-many", Op::Launch(_)) => {
            let _ = port.tell(&FromMachine::Launcher(Answer::Farewell.encode()));
            let _ = port.tell(&FromMachine::Launcher(Answer::Recovered { id }.encode()));
            silence()
        }
        ("nonsense-for-an-answer", Op::Launch(_)) => {
            let _ = port.tell(&FromMachine::Launcher(vec![0xff; 100]));
            silence()
        }
        // Its payload runs by then.
        ("silence-later", Op::Measure { .. } | Op::Finish { .. }) => silence(),
        ("panic-later", Op::Measure { .. }) => std::process::exit(3),
        _ => {}
    }
}
