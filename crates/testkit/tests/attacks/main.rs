//! The attack suite: every line of the matrix that these walls can meet, on every wall, with its negative control.
//!
//! ```text
//! trial    the probe runs in a fresh cell of the shipped engine and must be held (exit 10 and its verdict)
//! judged   the same, judged from outside: outcome, timing, a bystander, and what is left afterwards
//! control  the probe runs again without the layer that held it, and must escape
//! ```
//! An inconclusive probe is a failure, and so are a probe without a row and an attack without one. Arguments choose rows by
//! name. Nothing is skipped: where a limit cannot be enforced, asking for it must be refused with a hint.

mod bare_wasm;
mod docker;
mod hostile;
mod images;
mod judged;
mod network;
mod resources;
mod row;
mod run;
mod table;
mod terminals;
mod wasm;

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::time::Instant;

use row::{Row, Trial};
use run::{Line, Suite};

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|word| word == bare_wasm::COMPILE) {
        bare_wasm::compile_input();
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let rows: Vec<&'static Row> = [
        table::ROWS,
        resources::ROWS,
        wasm::ROWS,
        hostile::ROWS,
        terminals::ROWS,
        images::ROWS,
        network::ROWS,
        table::REST,
    ]
    .into_iter()
    .flatten()
    .collect();
    let gaps = if wanted.is_empty() { gaps(&rows) } else { Vec::new() };
    let chosen: Vec<&'static Row> = rows
        .into_iter()
        .filter(|row| wanted.is_empty() || wanted.iter().any(|name| row.name.contains(name.as_str())))
        .collect();
    let started = Instant::now();
    // The first runtime of a process opens what tokio then keeps for good, and the first random number likewise.
    drop(tokio::runtime::Runtime::new().expect("a runtime"));
    bare_wasm::warm_up();
    let descriptors = open_descriptors();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let lines = runtime.block_on(Suite::new(chosen).run());
    drop(runtime);
    let mut failures: Vec<String> = lines.iter().flat_map(Line::failures).chain(gaps).collect();
    let now = open_descriptors();
    let left = now.len().saturating_sub(descriptors.len());
    if left > 0 {
        failures.push(format!("{left} descriptors of this process are left open, of {now:?}"));
    }
    print_table(&lines);
    for failure in &failures {
        println!("\nFAILED {failure}");
    }
    let passed: usize = lines.iter().map(Line::passed).sum();
    println!("\nran for {:.1?}\n{passed} passed, {} failed", started.elapsed(), failures.len());
    ExitCode::from(u8::from(!failures.is_empty()))
}

fn print_table(lines: &[Line]) {
    println!("{:<18} {:<34} {:<14} verdict", "attack", "probe", "wall");
    for line in lines {
        let attacks = ranges(line.row.attacks);
        println!("{attacks:<18} {:<34} {:<14} {}", line.row.name, line.wall, line.verdict());
    }
}

/// `1,2,8-10`
fn ranges(numbers: &[u16]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some((&first, _)) = rest.split_first() {
        let length = rest.iter().zip(first..).take_while(|(number, expected)| **number == *expected).count();
        let separator = if text.is_empty() { "" } else { "," };
        match length {
            1 => text += &format!("{separator}{first}"),
            _ => text += &format!("{separator}{first}-{}", rest[length - 1]),
        }
        rest = &rest[length..];
    }
    text
}

/// Probes that no row uses, and attacks that no row is about.
fn gaps(rows: &[&Row]) -> Vec<String> {
    let used: BTreeSet<&str> = rows.iter().filter_map(|row| row.name.split(' ').next()).collect();
    let about: BTreeSet<u16> = rows.iter().flat_map(|row| row.attacks).copied().collect();
    let probes = probe_names();
    assert!(probes.len() > 50, "`probe list` prints next to nothing");
    let unknown = rows.iter().filter_map(|row| match row.trial {
        Trial::Probe { .. } if !probes.iter().any(|name| name == row.name) => {
            Some(format!("no probe is named {}", row.name))
        }
        _ => None,
    });
    let unused = probes.iter().filter(|name| !used.contains(name.as_str()));
    let missing = (1..=108).filter(|attack| !about.contains(attack));
    unused
        .map(|name| format!("the probe {name} is used by no row"))
        .chain(missing.map(|attack| format!("attack {attack} has no row")))
        .chain(unknown)
        .collect()
}

fn probe_names() -> Vec<String> {
    let program = tempfile::NamedTempFile::new().expect("a file for the probe").into_temp_path();
    std::fs::write(&program, casemate_testkit::PROBE).expect("the probe is written");
    run::make_executable(&program);
    let listed = Command::new(&program).arg("list").output().expect("the probe runs on this host");
    let text = String::from_utf8(listed.stdout).expect("plain text");
    text.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

/// What the descriptors of this process lead to.
fn open_descriptors() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string())).collect()
}
