//! `casemate doctor`: starts every wall for real and says what is missing; with `--compare`, measures and compares them.

mod advice;
mod character;
mod compare;
mod footprint;
mod page;
mod scratch;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::outcome::Status;
use casemate_core::policy::{DockerRuntime, Policy};
use casemate_core::request::{Component, Isolation, Request, RequestDraft, Risk, Workload};
use casemate_core::route::{ImageKind, Profile, State, Support};
use casemate_engine::{Ahead, Config, Durability, Engine, Executed, Io};
use serde::Serialize;
use tokio::sync::watch;

use self::scratch::Scratch;

use crate::exit;
use crate::failure::Failure;
use crate::home::PolicyFile;
use crate::render::terminal::{Style, columns, one_line};
use crate::signals::Signals;
use casemate_service::shape::outcome::walls;

/// A code that nothing returns by accident.
const PROBE_CODE: i32 = 7;
const PROBE_TIME: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    home: String,
    policy: String,
    walls: Vec<Examined>,
    facts: Vec<(String, String)>,
}

/// One stack, after it was tried.
#[derive(Debug, Serialize)]
struct Examined {
    stack: Vec<&'static str>,
    class: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
enum Finding {
    Ready {
        started_in_ms: u64,
    },
    Missing {
        reason: String,
        fix: String,
    },
    /// All there, and yet it did not run.
    Broken {
        reason: String,
        fix: String,
    },
}

/// How much is wanted to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What stands.
    Walls,
    /// And what each is worth, and costs.
    Comparison,
}

pub(crate) async fn doctor(policy: Option<&Path>, depth: Depth, json: bool) -> Result<u8, Failure> {
    let home = casemate_engine::default_home();
    let file = PolicyFile::load(policy, &home)?;
    let interrupt = Interrupt::catch()?;
    let ready = match depth {
        Depth::Walls => {
            let report = report(&home, &file, &interrupt).await?;
            print(&report, json, || render(&report, Style::of_stdout()))?;
            report.walls.iter().any(|wall| wall.finding.is_ready())
        }
        Depth::Comparison => {
            let comparison = compare::compare(&home, &file, &interrupt).await?;
            print(&comparison, json, || page::render(&comparison, Style::of_stdout()))?;
            comparison.stacks.iter().any(|stack| stack.finding.is_ready())
        }
    };
    Ok(if ready { exit::DONE } else { exit::NO })
}

fn print(value: &impl Serialize, json: bool, text: impl FnOnce() -> String) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match json {
        true => {
            serde_json::to_writer(&mut stdout, value)?;
            writeln!(stdout)?;
        }
        false => stdout.write_all(text().as_bytes())?,
    }
    Ok(stdout.flush()?)
}

/// Whether somebody wants us to stop: what runs then is ended, cleared away, and nothing else begun.
struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    fn catch() -> Result<Interrupt, Failure> {
        let mut signals = Signals::catch()?;
        let (wanted, receiver) = watch::channel(false);
        tokio::spawn(async move {
            signals.next().await;
            let _ = wanted.send(true);
            // As long as it is not dropped, it says so.
            wanted.closed().await;
        });
        Ok(Interrupt(receiver))
    }

    async fn execute(&self, engine: &Engine, request: Request, io: Io) -> Result<Executed, Failure> {
        let executed = engine.execute(request, Io { cancel: Some(self.0.clone()), ..io }).await;
        if *self.0.borrow() { Err(Failure::Interrupted) } else { Ok(executed) }
    }
}

/// An engine for as long as `work` takes. Whatever becomes of that, it is shut down.
async fn with_engine<T>(
    config: Config,
    work: impl AsyncFnOnce(&Engine) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let engine = Engine::open(config).await?;
    let done = work(&engine).await;
    drop(engine.shutdown().await?);
    done
}

async fn report(home: &Path, file: &PolicyFile, interrupt: &Interrupt) -> Result<Report, Failure> {
    let policy = match &file.path {
        Some(path) => path.display().to_string(),
        None => "built-in".to_owned(),
    };
    examine(home, policy, file.policy.docker_runtime(), interrupt).await
}

/// Tries the walls in a home of their own: probes are nobody's executions and leave no records.
async fn examine(
    home: &Path,
    policy: String,
    docker: DockerRuntime,
    interrupt: &Interrupt,
) -> Result<Report, Failure> {
    let scratch = Scratch::beneath(home).await?;
    let config = Config {
        durability: Durability::OnExit,
        ahead: Ahead::Nothing,
        installed: home.to_owned(),
        ..Config::new(scratch.path(), probe_policy(docker)?)
    };
    let (walls, facts) = with_engine(config, async |engine: &Engine| {
        let mut walls = Vec::new();
        for profile in engine.profiles() {
            walls.push(Examined {
                stack: self::walls(profile.stack()),
                class: profile.class().as_str(),
                finding: find(engine, profile, interrupt).await?,
            });
        }
        Ok((walls, engine.facts()))
    })
    .await?;
    Ok(Report { version: env!("CARGO_PKG_VERSION"), home: home.display().to_string(), policy, walls, facts })
}

async fn find(engine: &Engine, profile: &Profile, interrupt: &Interrupt) -> Result<Finding, Failure> {
    if let State::Missing { reason, hint } = profile.state() {
        return Ok(Finding::Missing { reason: reason.clone(), fix: hint.clone() });
    }
    let started = Instant::now();
    if !takes_the_host_image(profile) {
        // There is no image to try it with: what it is made of is tried.
        return Ok(match engine.probe_microvm().await {
            Ok(_) => Finding::Ready { started_in_ms: started.elapsed().as_millis() as u64 },
            Err(refusal) => Finding::Broken { reason: refusal.reason, fix: refusal.hint },
        });
    }
    let request = Request::new(draft(profile, probe_workload(profile)?))?;
    let executed = interrupt.execute(engine, request, Io::default()).await?;
    let fix = "report this with the facts below".to_owned();
    Ok(match (executed.outcome.status, executed.evidence_error) {
        (Status::Exited { code: PROBE_CODE }, None) => {
            Finding::Ready { started_in_ms: started.elapsed().as_millis() as u64 }
        }
        (_, Some(error)) => Finding::Broken { reason: format!("no evidence: {error}"), fix },
        (Status::Refused(refusal), _) => Finding::Broken { reason: refusal.reason, fix: refusal.hint },
        (status, _) => Finding::Broken { reason: format!("the probe {}", status.describe()), fix },
    })
}

/// Whether something can be run there without an image from the store.
fn takes_the_host_image(profile: &Profile) -> bool {
    profile.clauses().images.contains(&ImageKind::Host)
}

/// The weakest floor there is, so that every wall can be tried. Holds for probes and nothing else.
fn probe_policy(docker: DockerRuntime) -> Result<Policy, Failure> {
    let text = format!("[floors]\nlow = \"process\"\n[docker]\nruntime = \"{docker}\"\n");
    Policy::parse(&text).map_err(|error| Failure::new(error, ""))
}

/// The smallest program that shows that the wall starts things and reports how they end.
fn probe_workload(profile: &Profile) -> Result<Workload, Failure> {
    Ok(match profile.clauses().components {
        Support::Yes => {
            let component = Component::new("probe", include_bytes!("doctor/probe.wasm").to_vec())?;
            Workload::Component { component, args: Vec::new() }
        }
        Support::No => Workload::Command { argv: ["sh", "-c", "exit 7"].map(str::to_owned).to_vec() },
    })
}

/// On this stack and no other.
fn draft(profile: &Profile, workload: Workload) -> RequestDraft {
    let mut draft = RequestDraft::new(workload);
    draft.risk = Risk::Low;
    draft.isolation = Isolation::Exactly(profile.stack().clone());
    if profile.enforces(LimitKind::WallTime) {
        draft.limits = LimitsDraft::new().with(LimitKind::WallTime, PROBE_TIME.as_millis() as u64);
    }
    draft
}

fn render(report: &Report, style: Style) -> String {
    let plain: Vec<Vec<String>> = report.walls.iter().map(|wall| wall.row()).collect();
    let mut lines = columns(&plain);
    for (line, wall) in lines.iter_mut().zip(&report.walls) {
        // Coloured after they were lined up: escape sequences have no width.
        *line = match wall.finding {
            Finding::Ready { .. } => line.replacen("ready", &style.green("ready"), 1),
            Finding::Missing { .. } => line.replacen("missing", &style.yellow("missing"), 1),
            Finding::Broken { .. } => line.replacen("broken", &style.red("broken"), 1),
        };
    }
    // One fix often serves several stacks.
    let mut fixes: Vec<(&str, Vec<String>)> = Vec::new();
    for wall in &report.walls {
        let Some(fix) = wall.finding.fix() else { continue };
        match fixes.iter_mut().find(|(known, _)| *known == fix) {
            Some((_, stacks)) => stacks.push(wall.stack.join("+")),
            None => fixes.push((fix, vec![wall.stack.join("+")])),
        }
    }
    if !fixes.is_empty() {
        lines.extend([String::new(), "to fix:".to_owned()]);
        lines.extend(fixes.iter().map(|(fix, stacks)| format!("  {}: {}", stacks.join(", "), one_line(fix))));
    }
    let own = [("version", report.version), ("home", &report.home), ("policy", &report.policy)];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let facts = own.iter().chain(&report.facts);
    let facts: Vec<Vec<String>> =
        facts.map(|(name, value)| vec![format!("  {name}"), one_line(value)]).collect();
    lines.extend([String::new(), "this machine:".to_owned()]);
    lines.extend(columns(&facts));
    lines.push(String::new());
    lines.join("\n")
}

impl Finding {
    fn is_ready(&self) -> bool {
        matches!(self, Finding::Ready { .. })
    }

    fn fix(&self) -> Option<&str> {
        match self {
            Finding::Ready { .. } => None,
            Finding::Missing { fix, .. } | Finding::Broken { fix, .. } => Some(fix),
        }
    }
}

impl Examined {
    fn row(&self) -> Vec<String> {
        let (state, note) = match &self.finding {
            Finding::Ready { started_in_ms } => ("ready", format!("ran a program in {started_in_ms} ms")),
            Finding::Missing { reason, .. } => ("missing", one_line(reason)),
            Finding::Broken { reason, .. } => ("broken", one_line(reason)),
        };
        vec![self.stack.join("+"), state.to_owned(), self.class.to_owned(), note]
    }
}
