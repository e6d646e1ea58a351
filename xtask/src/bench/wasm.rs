//! The WASM wall: calls next to Wasmtime alone, and code next to the native interpreters, in turns.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::driver::Driver;
use super::samples::{Named, Samples, micros, millis};
use super::stage::Stage;
use super::{candidates, memory};
use crate::artifacts;
use crate::runtimes;
use crate::shell::{self, Result, heading};

/// Calls, and how many of them at a time, to see how many there are in a second.
const BURST: (usize, usize) = (30_000, 32);
/// Calls of a tool in each round, one after the other.
const ROW: usize = 10;
/// Instances that are kept alive to see what they take.
const HELD: usize = 20;

const CALL_TARGET: Duration = Duration::from_micros(100);
const RATE_TARGET: f64 = 15_000.0;

pub(super) fn run(rounds: usize, bench: &Path, casemate: &Path, stage: &Stage) -> Result {
    let made = runtimes::ensure(casemate)?;
    heading("building Wasmtime alone, for comparison");
    let mut raw = Raw::start()?;
    let home = stage.home("wasm");
    runtimes::copy(&made, &home)?;
    let mut engine = Driver::start_in(bench, stage, &home)?;

    heading(&format!("{rounds} rounds of WASM, with the machine's load at {} before", super::load()));
    let bare = |program: &str, arguments: [&str; 2]| {
        let mut command = Command::new(program);
        command.args(arguments);
        move || candidates::time(&mut command)
    };
    let mut python = bare("/usr/bin/python3", ["-c", "print(1)"]);
    let mut node = bare("/usr/bin/node", ["-e", "console.log(1)"]);
    let [mut bare_python, mut our_python, mut bare_node, mut our_node]: [Samples; 4] = Default::default();
    let [mut alone, mut alone_first, mut called, mut called_first]: [Samples; 4] = Default::default();
    let mut parts = Named::default();
    for round in 0..super::WARM_UP + rounds.max(1) {
        let took = [python()?, engine.code("python")?, node()?, engine.code("javascript")?];
        let mut of_row = Named::default();
        let rows = [raw.calls_in_a_row(ROW)?, engine.calls_in_a_row(ROW, &mut of_row)?];
        if round < super::WARM_UP {
            continue;
        }
        let samples = [&mut bare_python, &mut our_python, &mut bare_node, &mut our_node];
        samples.into_iter().zip(took).for_each(|(samples, took)| samples.add(took));
        parts.append(of_row);
        for (row, (all, first)) in
            rows.iter().zip([(&mut alone, &mut alone_first), (&mut called, &mut called_first)])
        {
            first.add(row[0]);
            row.iter().for_each(|took| all.add(*took));
        }
    }

    println!("\n{:<44} {:>9} {:>9}", "", "p50", "p99");
    let met = |met: bool| if met { "met" } else { "MISSED" };
    let line = |name: &str, samples: &Samples, verdict: String| {
        let [p50, p99] = [0.5, 0.99].map(|share| samples.at(share));
        let shown = if p99 < Duration::from_millis(1) { micros } else { millis };
        println!("  {name:<42} {:>9} {:>9}{verdict}", shown(p50), shown(p99));
    };
    let ratio = |ours: &Samples, bare: &Samples, most: f64| {
        let found = ours.at(0.5).as_secs_f64() / bare.at(0.5).as_secs_f64();
        format!("  {found:.2}x bare, target {most}x: {}", met(found <= most))
    };
    line("python3 -c 'print(1)', bare", &bare_python, String::new());
    line("Engine::execute, the same in WASM", &our_python, ratio(&our_python, &bare_python, 0.35));
    line("node -e 'console.log(1)', bare", &bare_node, String::new());
    line("Engine::execute, the same in WASM", &our_node, ratio(&our_node, &bare_node, 0.1));
    println!("a tiny tool, called {ROW} times in a row");
    line("Wasmtime alone, in-process", &alone, String::new());
    let verdict = format!("  target 100 µs: {}", met(called.at(0.5) <= CALL_TARGET));
    line("Engine::execute, evidence on", &called, verdict);
    println!("the first call of each row: everybody had gone to sleep");
    line("Wasmtime alone, in-process", &alone_first, String::new());
    line("Engine::execute, evidence on", &called_first, String::new());
    println!("\nof which, phase by phase (p50, p99; µs)");
    for (name, samples) in parts.of("phase") {
        println!("  {name:<42} {:>9} {:>9}", samples.at(0.5).as_micros(), samples.at(0.99).as_micros());
    }

    let (count, width) = BURST;
    let rate = count as f64 / engine.calls(count, width)?.as_secs_f64();
    println!(
        "\ncalls: {rate:.0} per second, {width} at a time, target {RATE_TARGET}: {}",
        met(rate >= RATE_TARGET)
    );
    let before = memory::payloads(&home)?;
    engine.hold_code(HELD)?;
    let after = memory::payloads(&home)?;
    engine.release()?;
    let each = after.saturating_sub(before) / HELD as u64 / 1024;
    println!(
        "memory of one of {HELD} live Python instances: {each} KiB, in a worker of {} MiB",
        before >> 20
    );
    engine.stop()
}

/// Wasmtime in a process of its own (`benches/wasmtime`).
struct Raw {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Raw {
    fn start() -> Result<Raw> {
        let mut child = Command::new(build()?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("Wasmtime alone: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        Ok(Raw { _child: child, input, output: BufReader::new(output) })
    }

    fn calls_in_a_row(&mut self, count: usize) -> Result<Vec<Duration>> {
        let broken = |error| format!("Wasmtime alone: {error}");
        writeln!(self.input, "{count}").map_err(broken)?;
        let nanos = self.output.by_ref().lines().take(count).map(|line| {
            let line = line.map_err(broken)?;
            line.parse().map(Duration::from_nanos).map_err(|_| format!("Wasmtime alone: {line:?}"))
        });
        match nanos.collect::<Result<Vec<Duration>>>()? {
            took if took.len() == count => Ok(took),
            _ => Err("Wasmtime alone has ended".into()),
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self._child.kill();
        let _ = self._child.wait();
    }
}

fn build() -> Result<PathBuf> {
    let target = shell::target_dir().join("bench-wasmtime");
    let manifest = shell::root().join("benches/wasmtime/Cargo.toml");
    let arguments = ["--release", "--locked", "--manifest-path", &manifest.to_string_lossy(), "--target-dir"];
    let built = artifacts::build(&[&arguments[..], &[&target.to_string_lossy()]].concat())?;
    artifacts::Artifact::binary(&built, "raw-wasmtime")
}
