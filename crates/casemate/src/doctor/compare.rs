//! `casemate doctor --compare`: every stack that stands here, measured on this machine and put side by side.
//!
//! ```text
//! cold        from nothing to the end of a small program: an engine, its launcher, the cell
//! again       the same in an engine that stays
//! memory      all processes of a cell in which a shell waits; of WASM, the worker
//! evaluation  a small Python program in an engine that stays: its time, and what one more of them costs
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use casemate_core::outcome::Status;
use casemate_core::policy::{Policy, Prices};
use casemate_core::request::{CodeSource, Language, Need, Request, RequestDraft, Stdin, Workload};
use casemate_core::route::{Profile, State, Support};
use casemate_core::stack::Stack;
use casemate_engine::{Ahead, Config, Durability, Engine, Executed, Io};
use serde::Serialize;
use tokio::sync::mpsc;

use super::advice::{self, Advice};
use super::character::Character;
use super::footprint::{Processes, machine_cpu};
use super::{Finding, Scratch, draft, find, probe_policy, probe_workload};
use crate::failure::Failure;
use crate::home::PolicyFile;
use crate::progress::Step;
use crate::render::json::walls;

/// What is evaluated where prices are compared: a start-up, a bit of work, a line of output.
const EVALUATION: &str = "print(sum(i * i for i in range(100_000)))";
const COLD: usize = 3;
const AGAIN: usize = 10;
/// Evaluations are repeated until that long has passed, so that the kernel's ticks say something: this often at least and at most.
const LONG_ENOUGH: Duration = Duration::from_millis(800);
const EVALUATIONS: std::ops::RangeInclusive<u32> = 6..=200;
/// How long the machine is listened to before what it does is counted.
const SILENCE: Duration = Duration::from_millis(500);
const STRACE: &str = "/usr/bin/strace";

#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    version: &'static str,
    evaluation: &'static str,
    pub(super) prices: PricesJson,
    pub(super) stacks: Vec<Compared>,
    /// What the policy makes of it.
    pub(super) advice: Vec<Advice>,
    pub(super) remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct PricesJson {
    pub(super) currency: String,
    pub(super) cpu_hour: f64,
    pub(super) gb_hour: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Compared {
    pub(super) stack: Vec<&'static str>,
    pub(super) class: &'static str,
    #[serde(flatten)]
    pub(super) finding: Finding,
    #[serde(flatten)]
    pub(super) character: Character,
    pub(super) strace: Strace,
    pub(super) measured: Option<Measured>,
    #[serde(skip)]
    pub(super) profile: Profile,
}

/// Whether a debugger works there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Strace {
    Works,
    Fails,
    /// The stack has no `ptrace` to offer.
    Refused,
    /// There is no strace on this machine, or no such wall.
    Untried,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    pub(super) cold_ms: f64,
    pub(super) again_ms: f64,
    pub(super) memory_bytes: u64,
    pub(super) evaluation: Option<Cost>,
    /// Why there is no evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_evaluated: Option<String>,
}

/// What one more evaluation costs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cost {
    pub(super) wall_ms: f64,
    pub(super) cpu_seconds: f64,
    pub(super) gb_seconds: f64,
    pub(super) price: f64,
}

impl Compared {
    pub(super) fn name(&self) -> String {
        self.stack.join("+")
    }

    pub(super) fn is_ready(&self) -> bool {
        self.finding.is_ready()
    }
}

pub(super) async fn compare(home: &Path, file: &PolicyFile) -> Result<Comparison, Failure> {
    let scratch = Scratch::beneath(home)?;
    let policy = probe_policy(file.policy.docker_runtime())?;
    let bench = Bench { home, scratch: &scratch.0, policy, prices: file.policy.prices().clone() };
    let step = Step::begin("looking for walls");
    let mut stacks = Vec::new();
    let engine = bench.engine(Ahead::Nothing).await?;
    for profile in engine.profiles() {
        if *profile.state() == State::Ready {
            step.say(format!("trying {}", profile.stack()));
        }
        let finding = find(&engine, profile).await?;
        stacks.push(Compared {
            stack: walls(profile.stack()),
            class: profile.class().as_str(),
            strace: strace(&engine, profile, &finding).await?,
            finding,
            character: Character::of(profile),
            measured: None,
            profile: profile.clone(),
        });
    }
    drop(engine.shutdown().await?);
    for compared in stacks.iter_mut().filter(|stack| stack.is_ready()) {
        step.say(format!("measuring {}", compared.profile.stack()));
        match bench.measure(&compared.profile).await {
            Ok(measured) => compared.measured = Some(measured),
            Err(Failure::Told { message, hint }) => {
                compared.finding = Finding::Broken { reason: message, fix: hint.unwrap_or_default() };
            }
            Err(gone) => return Err(gone),
        }
    }
    drop(step);
    let asked = Engine::open(bench.config(Ahead::Nothing, file.policy.clone())).await?;
    let advice = advice::by_policy(&asked)?;
    drop(asked.shutdown().await?);
    let prices = file.policy.prices();
    Ok(Comparison {
        version: env!("CARGO_PKG_VERSION"),
        evaluation: EVALUATION,
        prices: PricesJson {
            currency: prices.currency().to_owned(),
            cpu_hour: prices.cpu_hour(),
            gb_hour: prices.gb_hour(),
        },
        remarks: advice::remarks(&stacks, &advice),
        stacks,
        advice,
    })
}

/// Where and how it is measured.
struct Bench<'a> {
    home: &'a Path,
    scratch: &'a Path,
    policy: Policy,
    prices: Prices,
}

impl Bench<'_> {
    fn config(&self, ahead: Ahead, policy: Policy) -> Config {
        Config {
            durability: Durability::OnExit,
            ahead,
            installed: self.home.to_owned(),
            ..Config::new(self.scratch, policy)
        }
    }

    async fn engine(&self, ahead: Ahead) -> Result<Engine, Failure> {
        Ok(Engine::open(self.config(ahead, self.policy.clone())).await?)
    }

    async fn measure(&self, profile: &Profile) -> Result<Measured, Failure> {
        let mut cold = Vec::new();
        for _ in 0..COLD {
            let started = Instant::now();
            let engine = self.engine(Ahead::Nothing).await?;
            small(&engine, profile).await?;
            cold.push(started.elapsed());
            drop(engine.shutdown().await?);
        }
        let engine = self.engine(Ahead::Always).await?;
        small(&engine, profile).await?;
        let mut again = Vec::new();
        for _ in 0..AGAIN {
            again.push(small(&engine, profile).await?);
        }
        drop(engine.shutdown().await?);
        let memory_bytes = self.memory(profile).await?;
        let evaluated = self.evaluate(profile, memory_bytes).await?;
        let (evaluation, not_evaluated) = match evaluated {
            Ok(cost) => (Some(cost), None),
            Err(why) => (None, Some(why)),
        };
        Ok(Measured {
            cold_ms: milliseconds(median(cold)),
            again_ms: milliseconds(median(again)),
            memory_bytes,
            evaluation,
            not_evaluated,
        })
    }

    /// Of everything that is there for one cell, while something waits in it.
    async fn memory(&self, profile: &Profile) -> Result<u64, Failure> {
        let engine = self.engine(Ahead::Nothing).await?;
        let memory = match profile.clauses().components {
            // Its worker stays, and that is what it takes.
            Support::Yes => {
                let before = Processes::now();
                small(&engine, profile).await?;
                Processes::now().new_memory(&before)
            }
            Support::No => waiting(&engine, profile).await?,
        };
        drop(engine.shutdown().await?);
        Ok(memory)
    }

    /// Compares an engine that evaluates once with one that does it many times: what they differ in is what it costs.
    async fn evaluate(&self, profile: &Profile, memory: u64) -> Result<Result<Cost, String>, Failure> {
        let meter = Meter::new().await;
        // The first time, something may have to be compiled, which is kept.
        let warm = match self.evaluations(profile, &meter, 2).await? {
            Ok((_, typical)) => typical,
            Err(why) => return Ok(Err(why)),
        };
        let fit = (LONG_ENOUGH.as_secs_f64() / warm.wall.as_secs_f64()) as u32;
        let count = fit.clamp(*EVALUATIONS.start(), *EVALUATIONS.end());
        let once = self.evaluations(profile, &meter, 1).await?;
        let many = self.evaluations(profile, &meter, 1 + count).await?;
        let ((once, _), (many, each)) = match (once, many) {
            (Ok(once), Ok(many)) => (once, many),
            (Err(why), _) | (_, Err(why)) => return Ok(Err(why)),
        };
        let cpu = many.saturating_sub(once) / count;
        let bytes = memory + each.memory;
        let (cpu_seconds, gb_seconds) = (cpu.as_secs_f64(), bytes as f64 / 1e9 * each.wall.as_secs_f64());
        Ok(Ok(Cost {
            wall_ms: milliseconds(each.wall),
            cpu_seconds,
            gb_seconds,
            price: price(&self.prices, cpu_seconds, gb_seconds),
        }))
    }

    /// The processor time of an engine's whole life, and what a typical evaluation in it took.
    async fn evaluations(
        &self,
        profile: &Profile,
        meter: &Meter,
        count: u32,
    ) -> Result<Result<(Duration, Typical), String>, Failure> {
        let reading = meter.begin();
        let engine = self.engine(Ahead::Always).await?;
        let (mut times, mut memory) = (Vec::new(), 0);
        let mut trouble = None;
        for _ in 0..count {
            let source = CodeSource::Inline(EVALUATION.into());
            let workload = Workload::Code { language: Language::Python, source, args: Vec::new() };
            let started = Instant::now();
            let executed = engine.execute(Request::new(draft(profile, workload))?, Io::default()).await;
            times.push(started.elapsed());
            memory = executed.outcome.usage.memory_peak.unwrap_or(0).max(memory);
            if executed.outcome.status != (Status::Exited { code: 0 }) {
                trouble = Some(why_not(&executed));
                break;
            }
        }
        drop(engine.shutdown().await?);
        Ok(match trouble {
            Some(why) => Err(why),
            None => Ok((meter.end(reading), Typical { wall: median(times), memory })),
        })
    }
}

struct Typical {
    wall: Duration,
    memory: u64,
}

/// Counts the processor time of the whole machine beyond what it does anyway. That of processes would not do: a kernel clears away
/// after a cell on its own account, what dies with its namespace is in nobody's sum, and the Docker Engine is not ours.
struct Meter {
    /// Per second.
    background: f64,
}

impl Meter {
    async fn new() -> Meter {
        let (before, started) = (machine_cpu(), Instant::now());
        tokio::time::sleep(SILENCE).await;
        let spent = machine_cpu().saturating_sub(before);
        Meter { background: spent.as_secs_f64() / started.elapsed().as_secs_f64() }
    }

    fn begin(&self) -> (Duration, Instant) {
        (machine_cpu(), Instant::now())
    }

    fn end(&self, (before, started): (Duration, Instant)) -> Duration {
        let anyway = Duration::from_secs_f64(self.background * started.elapsed().as_secs_f64());
        machine_cpu().saturating_sub(before).saturating_sub(anyway)
    }
}

/// The smallest program, and how long it took.
async fn small(engine: &Engine, profile: &Profile) -> Result<Duration, Failure> {
    let request = Request::new(draft(profile, probe_workload(profile)?))?;
    let started = Instant::now();
    let executed = engine.execute(request, Io::default()).await;
    match executed.outcome.status {
        Status::Exited { code: super::PROBE_CODE } => Ok(started.elapsed()),
        _ => Err(unsteady(profile.stack(), &why_not(&executed))),
    }
}

/// The memory of a cell in which a shell waits for input that never comes.
async fn waiting(engine: &Engine, profile: &Profile) -> Result<u64, Failure> {
    let argv = ["sh", "-c", "echo up; read line; exit 7"].map(str::to_owned).to_vec();
    let mut draft = draft(profile, Workload::Command { argv });
    draft.stdin = Stdin::Provided;
    let (theirs, ours) = tokio::io::duplex(64);
    let (output, mut outputs) = mpsc::channel(4);
    let io = Io { stdin: Some(Box::new(theirs)), output: Some(output), ..Io::default() };
    let before = Processes::now();
    let look = async {
        // It is up, or will not be.
        let _ = outputs.recv().await;
        let memory = Processes::now().new_memory(&before);
        drop(ours);
        while outputs.recv().await.is_some() {}
        memory
    };
    let (executed, memory) = tokio::join!(engine.execute(Request::new(draft)?, io), look);
    match executed.outcome.status {
        Status::Exited { code: super::PROBE_CODE } => Ok(memory),
        _ => Err(unsteady(profile.stack(), &why_not(&executed))),
    }
}

async fn strace(engine: &Engine, profile: &Profile, finding: &Finding) -> Result<Strace, Failure> {
    if !profile.clauses().needs.contains(&Need::Ptrace) {
        return Ok(Strace::Refused);
    }
    if !finding.is_ready() || !Path::new(STRACE).exists() {
        return Ok(Strace::Untried);
    }
    let argv = [STRACE, "-o", "/dev/null", "sh", "-c", "exit 7"].map(str::to_owned).to_vec();
    let draft = RequestDraft { needs: vec![Need::Ptrace], ..draft(profile, Workload::Command { argv }) };
    let executed = engine.execute(Request::new(draft)?, Io::default()).await;
    Ok(match executed.outcome.status {
        Status::Exited { code: super::PROBE_CODE } => Strace::Works,
        _ => Strace::Fails,
    })
}

fn why_not(executed: &Executed) -> String {
    match &executed.outcome.status {
        Status::Refused(refusal) => format!("{}; {}", refusal.reason, refusal.hint),
        status => format!("it {}", status.describe()),
    }
}

/// It ran a moment ago.
fn unsteady(stack: &Stack, why: &str) -> Failure {
    Failure::new(
        format!("{stack} stood when it was tried, and not when it was measured: {why}"),
        "`casemate doctor` says which walls stand; try again when the machine is quiet",
    )
}

fn price(prices: &Prices, cpu_seconds: f64, gb_seconds: f64) -> f64 {
    (cpu_seconds * prices.cpu_hour() + gb_seconds * prices.gb_hour()) / 3600.0
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    // What is beyond microseconds is noise.
    time.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_each_costs_what_it_says() {
        let policy = Policy::parse("[prices]\ncpu-hour = 2\ngb-hour = 0.5\n").unwrap();
        assert_eq!(price(policy.prices(), 3600.0, 0.0), 2.0);
        assert_eq!(price(policy.prices(), 0.0, 7200.0), 1.0);
        assert_eq!(price(policy.prices(), 1800.0, 3600.0), 1.5);
    }

    #[test]
    fn one_slow_run_does_not_count() {
        let times = [5, 1, 900].map(Duration::from_millis).to_vec();
        assert_eq!(milliseconds(median(times)), 5.0);
    }
}
