//! `cargo xtask bench`: how fast Casemate is, as ratios within one run.
//!
//! Machines differ and are noisy, so nothing is compared across runs: each round starts every candidate once, one after
//! the other, and what counts is how many times longer than its yardstick one takes at the median. The order is another
//! one in each round: the kernel clears away namespaces, mounts and cgroups after the process that had them is gone, and
//! whoever comes next pays for it.

mod candidates;
mod driver;
mod memory;
mod samples;
mod sandboxes;
mod service;
mod stage;
mod wasm;

use std::time::Duration;

use crate::artifacts::{self, Artifact};
use crate::packages;
use crate::shell::{Result, heading};
use candidates::Candidate;
use driver::Driver;
use samples::{Named, Samples, millis};
use stage::Stage;

pub(crate) const ROUNDS: usize = 300;
pub(crate) const QUICK_ROUNDS: usize = 40;

/// Rounds that are not counted.
const WARM_UP: usize = 5;
/// Cells that are kept alive to see what they take.
const HELD: usize = 20;
/// Executions, and how many of them at a time, to see how many there are in a second.
const BURST: (usize, usize) = (400, 20);

const PACKAGES: [&str; 4] = ["bubblewrap", "runc", "python3", "nodejs"];

pub(crate) fn run(rounds: usize) -> Result {
    packages::ensure(&PACKAGES)?;
    heading("building");
    let built = artifacts::build(&["--release", "--package", "casemate-engine", "--bench", "execute"])?;
    let bench = built.iter().find(|artifact| artifact.name == "execute");
    let bench = &bench.ok_or("cargo built no benchmark of the engine")?.path;

    // As its users build it: in one go with the rest of the workspace, it gets features and libraries that are for tests.
    let built = Artifact::binary(&artifacts::build(&["--release"])?, "casemate")?;

    let stage = Stage::new()?;
    let casemate = stage.install(&built)?;
    let mut candidates = candidates::all(&stage, &casemate);
    let mut engine = Driver::start(bench, &stage)?;
    let mut parts = Named::default();

    heading(&format!("{rounds} rounds, with the machine's load at {} before", load()));
    let mut order = Order::new(candidates.len());
    for round in 0..WARM_UP + rounds.max(1) {
        for &index in order.shuffled() {
            let candidate = &mut candidates[index];
            let took = match &mut candidate.command {
                Some(command) => candidates::time(command)?,
                None => engine.run(if round < WARM_UP { None } else { Some(&mut parts) })?,
            };
            if round >= WARM_UP {
                candidate.samples.add(took);
            }
        }
    }
    compare(&candidates);
    break_down(&parts);
    memory::report(&mut engine, &stage, HELD)?;
    throughput(&mut engine)?;
    engine.stop()?;
    service::run(rounds, bench, &casemate, &stage)?;
    wasm::run(rounds, bench, &built, &stage)?;
    sandboxes::run(rounds, &casemate, &stage)
}

/// Who comes when. The same in every run of the bench.
struct Order {
    indices: Vec<usize>,
    state: u64,
}

impl Order {
    fn new(count: usize) -> Order {
        Order { indices: (0..count).collect(), state: 1 }
    }

    /// Fisher and Yates, with a linear congruential generator: nobody plays against this.
    fn shuffled(&mut self) -> &[usize] {
        for last in (1..self.indices.len()).rev() {
            self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let other = (self.state >> 33) as usize % (last + 1);
            self.indices.swap(last, other);
        }
        &self.indices
    }
}

/// The kernel's averages over one, five and fifteen minutes: on a busy machine, whatever hands over between processes
/// takes longer than its share.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn compare(candidates: &[Candidate]) {
    println!("\n{:<44} {:>9} {:>9} {:>8}", "", "p50", "p99", "x bare");
    let p50 = |index: usize| candidates[index].samples.at(0.5).as_secs_f64();
    for (index, candidate) in candidates.iter().enumerate() {
        if candidate.bare == index {
            println!("{}", candidate.program);
        }
        let ratio = |other: usize| p50(index) / p50(other);
        let target = candidate.target.as_ref().map(|target| {
            let (found, other) = (ratio(target.against), candidates[target.against].name);
            let verdict = if found <= target.most { "met" } else { "MISSED" };
            format!("  {found:.2}x {other}, target {}x: {verdict}", target.most)
        });
        println!(
            "  {:<42} {:>9} {:>9} {:>7.2}x{}",
            candidate.name,
            millis(candidate.samples.at(0.5)),
            millis(candidate.samples.at(0.99)),
            ratio(candidate.bare),
            target.unwrap_or_default()
        );
    }
}

/// Where the time of `Engine::execute` goes.
fn break_down(parts: &Named) {
    // Shorter steps are summed up.
    const WORTH_A_LINE: Duration = Duration::from_micros(5);
    for (kind, title) in [
        ("phase", "Engine::execute, phase by phase (p50, p99; µs)"),
        ("step", "of which the cell's first process, step by step (p50, p99; µs)"),
    ] {
        println!("\n{title}");
        let mut rest: Vec<&Samples> = Vec::new();
        for (name, samples) in parts.of(kind) {
            let (median, high) = (samples.at(0.5), samples.at(0.99));
            if kind == "step" && median < WORTH_A_LINE {
                rest.push(samples);
            } else {
                println!("  {name:<42} {:>9} {:>9}", median.as_micros(), high.as_micros());
            }
        }
        if !rest.is_empty() {
            let sum: Duration = rest.iter().map(|samples| samples.at(0.5)).sum();
            println!("  {:<42} {:>9}", format!("{} shorter ones together", rest.len()), sum.as_micros());
        }
    }
}

fn throughput(engine: &mut Driver) -> Result {
    let (count, width) = BURST;
    let took = engine.burst(count, width)?;
    let rate = count as f64 / took.as_secs_f64();
    println!("\nlaunches: {rate:.0} per second, {width} at a time");
    Ok(())
}
