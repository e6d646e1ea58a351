//! The choice of a stack: the cheapest one that is at or above every floor and can honour the whole request.
//!
//! Nothing is tried out. Each [`Profile`] says beforehand what its stack enforces, and every profile that is not
//! chosen has a reason, which is what `explain` prints.

mod obstacle;
mod profile;

pub use profile::{Clauses, ImageKind, Profile, Selection, State, Support};

use crate::limits::LimitKind;
use crate::outcome::Refusal;
use crate::policy::Grants;
use crate::request::Isolation;
use crate::stack::{Class, Stack, Strength};
use obstacle::{Distance, Obstacle, binding, check};

/// The stack for one run. Only [`choose`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    pub stack: Stack,
    /// What really stands: never the nominal class of a weakened wall, even where that was accepted.
    pub class: Class,
    pub strength: Strength,
    /// Default bounds that this stack cannot enforce.
    pub unbounded: Vec<LimitKind>,
    /// Every other profile, in the order in which they were given.
    pub passed_over: Vec<PassedOver>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    pub stack: Stack,
    pub reason: String,
}

/// Chooses among what this machine has, or says what is missing.
pub fn choose(grants: &Grants, profiles: &[Profile]) -> Result<Choice, Refusal> {
    let verdicts: Vec<_> = profiles.iter().map(|profile| (profile, check(grants, profile))).collect();
    let fitting = verdicts.iter().enumerate().filter(|(_, (_, verdict))| verdict.is_ok());
    let Some((chosen, (profile, _))) = fitting.min_by_key(|(_, (profile, _))| profile.cost()) else {
        return Err(refuse(grants, &verdicts));
    };
    let passed_over =
        verdicts.iter().enumerate().filter(|(at, _)| *at != chosen).map(|(_, (other, verdict))| {
            let reason = match verdict {
                Err(obstacle) => obstacle.reason.clone(),
                Ok(()) if other.cost() == profile.cost() => {
                    format!("would do, at the same cost as {}", profile.stack())
                }
                Ok(()) => format!("would do, but costs more than {}", profile.stack()),
            };
            PassedOver { stack: other.stack().clone(), reason }
        });
    Ok(Choice {
        stack: profile.stack().clone(),
        class: profile.class(),
        strength: profile.stack().strength(profile.class()),
        unbounded: unbounded(grants, profile),
        passed_over: passed_over.collect(),
    })
}

fn unbounded(grants: &Grants, profile: &Profile) -> Vec<LimitKind> {
    grants.limits().iter().map(|(kind, _)| kind).filter(|kind| !profile.enforces(*kind)).collect()
}

type Verdict<'a> = (&'a Profile, Result<(), Obstacle>);

fn refuse(grants: &Grants, verdicts: &[Verdict<'_>]) -> Refusal {
    let mut obstacles: Vec<(&Profile, &Obstacle)> =
        verdicts.iter().filter_map(|(profile, verdict)| Some((*profile, verdict.as_ref().err()?))).collect();
    obstacles.sort_by_key(|(profile, obstacle)| (obstacle.distance, profile.cost()));

    if let Isolation::Exactly(asked) = grants.isolation() {
        return match obstacles.iter().find(|(profile, _)| profile.stack() == asked) {
            Some((_, obstacle)) => Refusal::new(
                format!("{asked} cannot take this run: {}", obstacle.reason),
                obstacle.hint.clone().unwrap_or_else(|| setup_hint(asked)),
            ),
            None => Refusal::new(format!("{asked} is not available on this machine"), setup_hint(asked)),
        };
    }

    let demands: Vec<String> = binding(grants.floors()).iter().map(ToString::to_string).collect();
    let needed = format!("nothing here can take this run, which needs {}", demands.join(" and "));
    // Stacks that are too weak are not worth listing: the demand says so already.
    obstacles.retain(|(_, obstacle)| obstacle.distance <= Distance::Weakened);
    match obstacles.first() {
        Some((nearest, obstacle)) => Refusal::new(
            format!("{needed}: {}", list(&obstacles)),
            obstacle.hint.clone().unwrap_or_else(|| setup_hint(nearest.stack())),
        ),
        None => {
            let would_do: Vec<Stack> = Stack::all()
                .filter(|stack| grants.floors().iter().all(|floor| floor.admits(&stack.nominal_strength())))
                .collect();
            let names: Vec<String> = would_do.iter().map(ToString::to_string).collect();
            Refusal::new(
                format!("{needed}: no wall of {} is available on this machine", names.join(", ")),
                would_do.first().map(setup_hint).unwrap_or_default(),
            )
        }
    }
}

/// `container, gvisor: no support for secrets; microvm: missing: …`, nearest first.
fn list(obstacles: &[(&Profile, &Obstacle)]) -> String {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for (profile, obstacle) in obstacles {
        let stack = profile.stack().to_string();
        match groups.iter_mut().find(|(reason, _)| *reason == obstacle.reason) {
            Some((_, stacks)) => stacks.push(stack),
            None => groups.push((&obstacle.reason, vec![stack])),
        }
    }
    let groups = groups.iter().map(|(reason, stacks)| format!("{}: {reason}", stacks.join(", ")));
    groups.collect::<Vec<_>>().join("; ")
}

fn setup_hint(stack: &Stack) -> String {
    format!("`casemate doctor` says what {stack} needs here")
}
