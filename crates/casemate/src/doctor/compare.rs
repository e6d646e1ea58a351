//! `casemate doctor --compare`: every stack that stands here, measured on this machine and put side by side.
//!
//! ```text
//! cold        a new engine, its launcher, the cell, a small program: what `casemate run` does
//! again       the same in an engine that stays
//! memory      all processes of a cell in which a shell waits; of WASM, the worker
//! evaluation  a small Python program in an engine that stays: its time, and what one more of them costs
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use casemate_core::outcome::Status;
use casemate_core::policy::{Policy, Prices};
use casemate_core::request::{CodeSource, Isolation, Language, Need, Request, RequestDraft, Stdin, Workload};
use casemate_core::route::{Profile, State, Support};
use casemate_core::stack::Stack;
use casemate_engine::{Ahead, Config, Durability, Engine, Executed, Io};
use serde::Serialize;
use tokio::sync::mpsc;

use super::advice::{self, Advice};
use super::character::Character;
use super::footprint::{Processes, machine_cpu};
use super::scratch::Scratch;
use super::{
    Finding, Interrupt, draft, find, probe_policy, probe_workload, takes_the_host_image, with_engine,
};
use crate::failure::Failure;
use crate::home::PolicyFile;
use crate::progress::Step;
use casemate_service::shape::outcome::walls;

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
    /// Whether work of medium risk may run there.
    pub(super) allowed_by_policy: bool,
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
    /// None if too much else was going on to tell.
    pub(super) cpu_seconds: Option<f64>,
    pub(super) gb_seconds: f64,
    pub(super) price: Option<f64>,
}

impl Compared {
    pub(super) fn name(&self) -> String {
        self.stack.join("+")
    }

    pub(super) fn is_ready(&self) -> bool {
        self.finding.is_ready()
    }
}

pub(super) async fn compare(
    home: &Path,
    file: &PolicyFile,
    interrupt: &Interrupt,
) -> Result<Comparison, Failure> {
    let scratch = Scratch::beneath(home).await?;
    let policy = probe_policy(file.policy.docker_runtime())?;
    let prices = file.policy.prices();
    let bench = Bench { home, scratch: scratch.path(), policy, prices, interrupt };
    let step = Step::begin("looking for walls");
    let mut stacks = with_engine(bench.config(Ahead::Nothing), async |engine: &Engine| {
        let mut stacks = Vec::new();
        for profile in engine.profiles() {
            if *profile.state() == State::Ready {
                step.say(format!("trying {}", profile.stack()));
            }
            let finding = find(engine, profile, interrupt).await?;
            stacks.push(Compared {
                stack: walls(profile.stack()),
                class: profile.class().as_str(),
                strace: bench.strace(engine, profile, &finding).await?,
                allowed_by_policy: false,
                finding,
                character: Character::of(profile),
                measured: None,
                profile: profile.clone(),
            });
        }
        Ok(stacks)
    })
    .await?;
    // What takes an image of its own has none here to be measured with.
    let measurable = |stack: &&mut Compared| stack.is_ready() && takes_the_host_image(&stack.profile);
    for compared in stacks.iter_mut().filter(measurable) {
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
    let theirs = Config { policy: file.policy.clone(), ..bench.config(Ahead::Nothing) };
    let advice = with_engine(theirs, async |engine: &Engine| {
        for stack in &mut stacks {
            let draft = RequestDraft {
                isolation: Isolation::Exactly(stack.profile.stack().clone()),
                ..RequestDraft::new(probe_workload(&stack.profile)?)
            };
            stack.allowed_by_policy = engine.explain(&Request::new(draft)?).is_ok();
        }
        advice::by_policy(engine)
    })
    .await?;
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
    prices: &'a Prices,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    fn config(&self, ahead: Ahead) -> Config {
        Config {
            durability: Durability::OnExit,
            ahead,
            installed: self.home.to_owned(),
            ..Config::new(self.scratch, self.policy.clone())
        }
    }

    async fn measure(&self, profile: &Profile) -> Result<Measured, Failure> {
        let mut cold = Vec::new();
        for _ in 0..COLD {
            let started = Instant::now();
            let took = with_engine(self.config(Ahead::Nothing), async |engine: &Engine| {
                self.small(engine, profile).await?;
                Ok(started.elapsed())
            });
            cold.push(took.await?);
        }
        let again = with_engine(self.config(Ahead::Always), async |engine: &Engine| {
            self.small(engine, profile).await?;
            let mut again = Vec::new();
            for _ in 0..AGAIN {
                again.push(self.small(engine, profile).await?);
            }
            Ok(again)
        });
        let again = again.await?;
        let memory_bytes = self.memory(profile).await?;
        let (evaluation, not_evaluated) = match self.evaluate(profile, memory_bytes).await? {
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

    /// The smallest program, and how long it took.
    async fn small(&self, engine: &Engine, profile: &Profile) -> Result<Duration, Failure> {
        let request = Request::new(draft(profile, probe_workload(profile)?))?;
        let started = Instant::now();
        let executed = self.interrupt.execute(engine, request, Io::default()).await?;
        match executed.outcome.status {
            Status::Exited { code: super::PROBE_CODE } => Ok(started.elapsed()),
            _ => Err(unsteady(profile.stack(), &why_not(&executed))),
        }
    }

    /// Of everything that is there for one cell, while something waits in it.
    async fn memory(&self, profile: &Profile) -> Result<u64, Failure> {
        with_engine(self.config(Ahead::Nothing), async |engine: &Engine| match profile.clauses().components {
            // Its worker stays, and that is what it takes.
            Support::Yes => {
                let before = Processes::now();
                self.small(engine, profile).await?;
                Ok(Processes::now().new_memory(&before))
            }
            Support::No => self.waiting(engine, profile).await,
        })
        .await
    }

    /// The memory of a cell in which a shell waits for input that never comes.
    async fn waiting(&self, engine: &Engine, profile: &Profile) -> Result<u64, Failure> {
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
        let (executed, memory) = tokio::join!(self.interrupt.execute(engine, Request::new(draft)?, io), look);
        let executed = executed?;
        match executed.outcome.status {
            Status::Exited { code: super::PROBE_CODE } => Ok(memory),
            _ => Err(unsteady(profile.stack(), &why_not(&executed))),
        }
    }

    async fn strace(&self, engine: &Engine, profile: &Profile, finding: &Finding) -> Result<Strace, Failure> {
        if !profile.clauses().needs.contains(&Need::Ptrace) {
            return Ok(Strace::Refused);
        }
        if !finding.is_ready() || !Path::new(STRACE).exists() || !takes_the_host_image(profile) {
            return Ok(Strace::Untried);
        }
        let argv = [STRACE, "-o", "/dev/null", "sh", "-c", "exit 7"].map(str::to_owned).to_vec();
        let draft = RequestDraft { needs: vec![Need::Ptrace], ..draft(profile, Workload::Command { argv }) };
        let executed = self.interrupt.execute(engine, Request::new(draft)?, Io::default()).await?;
        Ok(match executed.outcome.status {
            Status::Exited { code: super::PROBE_CODE } => Strace::Works,
            _ => Strace::Fails,
        })
    }

    /// Compares an engine that evaluates once with one that does it many times: what they differ in is what it costs.
    async fn evaluate(&self, profile: &Profile, memory: u64) -> Result<Result<Cost, String>, Failure> {
        let meter = Meter::new().await;
        // The first time, something may have to be compiled, which is kept.
        let warm = match self.evaluations(profile, &meter, 3).await? {
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
        let cpu_seconds = meter.believed(many.saturating_sub(once) / count, each.wall);
        let gb_seconds = (memory + each.memory) as f64 / 1e9 * each.wall.as_secs_f64();
        Ok(Ok(Cost {
            wall_ms: milliseconds(each.wall),
            cpu_seconds,
            gb_seconds,
            price: cpu_seconds.map(|cpu_seconds| price(self.prices, cpu_seconds, gb_seconds)),
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
        let evaluated = with_engine(self.config(Ahead::Always), async |engine: &Engine| {
            let (mut times, mut memory) = (Vec::new(), 0);
            for _ in 0..count {
                let source = CodeSource::Inline(EVALUATION.into());
                let workload = Workload::Code { language: Language::Python, source, args: Vec::new() };
                let request = Request::new(draft(profile, workload))?;
                let started = Instant::now();
                let executed = self.interrupt.execute(engine, request, Io::default()).await?;
                times.push(started.elapsed());
                memory = executed.outcome.usage.memory_peak.unwrap_or(0).max(memory);
                if executed.outcome.status != (Status::Exited { code: 0 }) {
                    return Ok(Err(why_not(&executed)));
                }
            }
            Ok(Ok(Typical { wall: median(times), memory }))
        });
        Ok(evaluated.await?.map(|typical| (meter.end(reading), typical)))
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

    /// In seconds, unless other work has drowned it: somebody who waits for an evaluation waits for a processor, mostly.
    fn believed(&self, cpu: Duration, wall: Duration) -> Option<f64> {
        let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        let share = cpu.as_secs_f64() / wall.as_secs_f64();
        (self.background < processors / 4.0 && (0.3..=processors).contains(&share))
            .then_some(cpu.as_secs_f64())
    }
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
    fn what_other_work_drowns_is_not_priced() {
        let (quiet, busy) = (Meter { background: 0.01 }, Meter { background: 100.0 });
        let ms = Duration::from_millis;
        assert_eq!(quiet.believed(ms(10), ms(10)), Some(0.01));
        assert_eq!(quiet.believed(ms(0), ms(10)), None);
        assert_eq!(quiet.believed(ms(100_000), ms(10)), None);
        assert_eq!(busy.believed(ms(10), ms(10)), None);
    }

    #[test]
    fn one_slow_run_does_not_count() {
        let times = [5, 1, 900].map(Duration::from_millis).to_vec();
        assert_eq!(milliseconds(median(times)), 5.0);
    }
}
