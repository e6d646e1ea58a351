//! `cargo xtask check | test | runtimes | bench`: what is run before a push, what proves the promises, and what measures them.

mod artifacts;
mod bench;
mod check;
mod clients;
mod docker;
mod gvisor;
mod microvm;
mod packages;
mod runtimes;
mod shell;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check [--without-advisories | --without-deny]
                             format, lints, dependencies, documentation, then `test`
  test                       every test, as root and as an unprivileged user; installs what they need
  runtimes                   Python and JavaScript for WASM, runsc, QEMU with a kernel, and clients of the service, for tests that
                             are started by hand
  bench [--rounds N | --quick]
                             how fast it is, in turns with bare programs, bubblewrap, runc and docker";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["check"] => check::run(check::Deny::Everything),
        ["check", "--without-advisories"] => check::run(check::Deny::WithoutAdvisories),
        ["check", "--without-deny"] => check::run(check::Deny::LeftOut),
        ["test"] => test::run(),
        ["runtimes"] => runtimes::run(),
        ["bench"] => bench::run(bench::ROUNDS),
        ["bench", "--quick"] => bench::run(bench::QUICK_ROUNDS),
        ["bench", "--rounds", rounds] => match rounds.parse() {
            Ok(rounds) => bench::run(rounds),
            Err(_) => Err(format!("--rounds {rounds}: not a number")),
        },
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
