//! casemate-wasm-compile: a module on standard input, compiled code on standard output.
//!
//! Who compiles hostile bytes may be taken over by them, or be kept busy for ever. So this runs as the payload of a cell with
//! nothing in it, under limits, once per module; and what it makes is only ever run in a cell of the same tenant.

#[path = "../../wasm/src/origin.rs"]
mod origin;
#[path = "../../wasm/src/settings.rs"]
mod settings;

use std::io::{self, Read, Write};
use std::process::ExitCode;

use casemate_wire::worker::Mode;
use rustix::process::{Resource, Rlimit, setrlimit};
use wasmparser::{KnownCustom, Name, Parser, Payload};
use wasmtime::Engine;

/// The module is at fault. Anything else that goes wrong is ours.
const REFUSED: u8 = 3;

fn main() -> ExitCode {
    match compile() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Module(error)) => {
            let _ = writeln!(io::stderr(), "{error:#}");
            ExitCode::from(REFUSED)
        }
        Err(Failure::Io(error)) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    Module(wasmtime::Error),
    Io(io::Error),
}

/// Where the cell has no cgroup to do it, this keeps a bomb from taking all memory or a processor for ever.
const MAX_ADDRESS_SPACE: u64 = 4 << 30;
const MAX_CPU_SECONDS: u64 = 90;

fn limit_ourselves() -> io::Result<()> {
    for (resource, most) in [(Resource::As, MAX_ADDRESS_SPACE), (Resource::Cpu, MAX_CPU_SECONDS)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

fn compile() -> Result<(), Failure> {
    limit_ourselves().map_err(Failure::Io)?;
    let mode = match std::env::args().nth(1).as_deref() {
        Some("deterministic") => Mode::Deterministic,
        _ => Mode::Ordinary,
    };
    let mut module = Vec::new();
    io::stdin().lock().read_to_end(&mut module).map_err(Failure::Io)?;
    if let Some(name) = absurd_name(&module) {
        return Err(Failure::Module(wasmtime::format_err!(
            "it gives something a name of {name} bytes, and {MAX_NAME} is the most"
        )));
    }
    let engine = engine(mode).map_err(|error| Failure::Io(io::Error::other(format!("{error:#}"))))?;
    let compiled = match module.get(..8) {
        Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => engine.precompile_module(&module),
        Some([0, b'a', b's', b'm', _, 0, 1, 0]) => engine.precompile_component(&module),
        _ => Err(wasmtime::format_err!("this is neither a WASM module nor a component")),
    };
    let compiled = compiled.map_err(Failure::Module)?;
    io::stdout().lock().write_all(&compiled).map_err(Failure::Io)
}

/// The longest name in a `name` section. They are repeated for each frame of a backtrace.
const MAX_NAME: usize = 16 << 10;

/// The length of a name that is too long for that. Sections that make no sense are not looked at by anybody.
fn absurd_name(module: &[u8]) -> Option<usize> {
    let names = Parser::new(0).parse_all(module).map_while(Result::ok).filter_map(|payload| match payload {
        Payload::CustomSection(section) => Some(section),
        _ => None,
    });
    names
        .filter_map(|section| match section.as_known() {
            KnownCustom::Name(names) => names.map_while(Result::ok).filter_map(longest).max(),
            _ => None,
        })
        .find(|length| *length > MAX_NAME)
}

fn longest(names: Name<'_>) -> Option<usize> {
    match names {
        Name::Module { name, .. } => Some(name.len()),
        Name::Function(names) => names.into_iter().map_while(Result::ok).map(|named| named.name.len()).max(),
        _ => None,
    }
}

fn engine(mode: Mode) -> wasmtime::Result<Engine> {
    let mut config = settings::of_code(mode);
    // Named, it means the first processors of this architecture: the code then runs on all of them, and in an emulator, too.
    config.target(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH))?;
    if mode == Mode::Deterministic {
        config.cranelift_nan_canonicalization(true);
    }
    Engine::new(&config)
}
