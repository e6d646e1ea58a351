//! The engine, in a process of its own that takes its turns (`crates/engine/benches/execute.rs`).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::samples::Named;
use super::stage::Stage;
use crate::shell::Result;

pub(super) struct Driver {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Driver {
    pub(super) fn start(program: &Path, stage: &Stage) -> Result<Driver> {
        Driver::start_in(program, stage, &stage.home("engine"))
    }

    pub(super) fn start_in(program: &Path, stage: &Stage, home: &Path) -> Result<Driver> {
        let mut command = Command::new(program);
        command.arg(stage.image()).env("CASEMATE_HOME", home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        Ok(Driver { child, input, output: BufReader::new(output) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// One execution. What each part of it took is added to `parts`.
    pub(super) fn run(&mut self, parts: Option<&mut Named>) -> Result<Duration> {
        self.once("run", parts)
    }

    /// One execution in the image that there is always.
    pub(super) fn host(&mut self) -> Result<Duration> {
        self.once("host", None)
    }

    /// Calls of a WASM tool, one after the other, likewise.
    pub(super) fn calls_in_a_row(&mut self, count: usize, parts: &mut Named) -> Result<Vec<Duration>> {
        let mut answer = self.ask(&format!("call {count}"))?;
        let mut took = vec![total_of(&answer, Some(parts))?];
        while took.len() < count {
            answer = self.answer()?;
            took.push(total_of(&answer, Some(parts))?);
        }
        Ok(took)
    }

    pub(super) fn code(&mut self, language: &str) -> Result<Duration> {
        self.once(&format!("code {language}"), None)
    }

    pub(super) fn calls(&mut self, count: usize, width: usize) -> Result<Duration> {
        micros(&self.ask(&format!("calls {count} {width}"))?)
    }

    pub(super) fn hold_code(&mut self, count: usize) -> Result {
        self.ask(&format!("hold-code {count}")).map(drop)
    }

    fn once(&mut self, question: &str, parts: Option<&mut Named>) -> Result<Duration> {
        total_of(&self.ask(question)?, parts)
    }

    pub(super) fn burst(&mut self, count: usize, width: usize) -> Result<Duration> {
        micros(&self.ask(&format!("burst {count} {width}"))?)
    }

    pub(super) fn hold(&mut self, count: usize) -> Result {
        self.ask(&format!("hold {count}")).map(drop)
    }

    pub(super) fn release(&mut self) -> Result {
        self.ask("release").map(drop)
    }

    /// Lets it end in good order.
    pub(super) fn stop(self) -> Result {
        let Driver { mut child, input, output } = self;
        drop((input, output));
        match child.wait() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("the engine's benchmark ended badly: {other:?}")),
        }
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.input, "{line}").map_err(|error| format!("the engine's benchmark: {error}"))?;
        self.answer().map_err(|error| format!("`{line}`: {error}"))
    }

    fn answer(&mut self) -> Result<String> {
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(|error| format!("the engine's benchmark: {error}"))?;
        match answer.trim_end() {
            "" => Err("the engine's benchmark has ended".into()),
            answer => Ok(answer.to_owned()),
        }
    }
}

/// How long it took; the rest of the answer is added to `parts`.
fn total_of(answer: &str, parts: Option<&mut Named>) -> Result<Duration> {
    let mut fields = answer.split('\t');
    let total = micros(fields.next().unwrap_or_default())?;
    if let Some(parts) = parts {
        for field in fields {
            let (name, value) = field.rsplit_once('=').ok_or("a part without its time")?;
            parts.add(name, micros(value)?);
        }
    }
    Ok(total)
}

fn micros(text: &str) -> Result<Duration> {
    text.parse().map(Duration::from_micros).map_err(|_| format!("{text:?} is not a time"))
}
