//! Run code you do not trust, behind exactly the walls it needs.

mod args;
mod doctor;
mod evidence;
mod exit;
mod explain;
mod failure;
mod files;
mod home;
mod image;
mod input;
mod mcp;
mod output;
mod progress;
mod render;
mod request;
mod run;
mod serve;
mod setup;
mod signals;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use args::{Cli, Command};
use casemate_engine::EarlyLauncher;
use clap::error::ErrorKind;
use failure::Failure;
use render::terminal::{self, Style};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    // While it starts, we find out what for. If it cannot be started, the engine tries again and says why.
    let early = run::start_early(&words);
    let ended = match Cli::parse_words(&words) {
        Ok(cli) => dispatch(&cli, early),
        Err(error) => misused(&error),
    };
    ExitCode::from(ended.unwrap_or_else(|failure| {
        terminal::report(&failure);
        match failure {
            Failure::Told { .. } => exit::NOT_RUN,
            Failure::BrokenPipe => exit::BROKEN_PIPE,
            Failure::Interrupted => exit::KILLED,
        }
    }))
}

fn dispatch(cli: &Cli, early: Option<EarlyLauncher>) -> Result<u8, Failure> {
    let policy = cli.policy.as_deref();
    match &cli.command {
        Command::Run(args) => wait_for(run::run(args, policy, early)),
        Command::Explain(args) => wait_for(explain::explain(args, policy)),
        Command::Doctor { compare, json } => {
            let depth = if *compare { doctor::Depth::Comparison } else { doctor::Depth::Walls };
            wait_for(doctor::doctor(policy, depth, *json))
        }
        Command::Setup { walls, from, kernel } => {
            let given = setup::Given { from: from.as_deref(), kernel: kernel.as_deref() };
            wait_for(setup::setup(walls, given, policy))
        }
        Command::Image { command } => wait_for(image::image(command)),
        Command::Evidence { command } => evidence::evidence(command),
        Command::Serve(args) => until_told(serve::serve(args, policy)),
        Command::Mcp(args) => until_told(mcp::mcp(args, policy)),
        Command::Token { command } => serve::token(command),
        Command::Completions { shell } => {
            std::io::stdout().write_all(&args::completions(*shell))?;
            Ok(exit::DONE)
        }
    }
}

/// Unlike the others, a server has many things to do at once.
fn until_told(server: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(server);
    runtime.shutdown_background();
    ended
}

fn wait_for(command: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(command);
    // Threads that wait for a terminal or a pipe are not waited for.
    runtime.shutdown_background();
    ended
}

/// Clap's words, our exit code.
fn misused(error: &clap::Error) -> Result<u8, Failure> {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return Err(Failure::new(
            "an option's value is not valid UTF-8",
            "only FILE, --image and the HOST half of --in and --out may hold other bytes",
        ));
    }
    let words = error.render();
    let words = if Style::of_stderr() == Style::Plain { words.to_string() } else { words.ansi().to_string() };
    match words.split_once("\n\nFor more information") {
        // Its last line is advice, and advice has a line of its own with us.
        Some((told, _)) => {
            writeln!(std::io::stderr(), "{told}")?;
            terminal::hint("`casemate --help` and `casemate COMMAND --help` list what there is");
        }
        // What was asked for: help, a version.
        None => error.print()?,
    }
    Ok(exit::of_usage(error.kind()))
}
