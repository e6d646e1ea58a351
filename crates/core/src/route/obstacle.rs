//! Why a stack cannot take a run. The checks stand in one list, in the order in which they are explained.

use super::{ImageKind, Profile, Selection, State, Support};
use crate::policy::{Floor, Grants};
use crate::request::{Isolation, Request, Workload};
use crate::stack::{Strength, Wall};
use crate::words::{any_of, quote};

/// The first thing that keeps a stack from taking a run.
#[derive(Debug)]
pub(super) struct Obstacle {
    pub(super) distance: Distance,
    pub(super) reason: String,
    pub(super) hint: Option<String>,
}

/// How far a stack is from taking the run, nearest first: the nearest one has the most useful hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Distance {
    /// The machine would have to change: something is not installed, or not delegated to us.
    Machine,
    /// The request would have to change.
    Clause,
    /// Strong enough by name, not by what stands.
    Weakened,
    TooWeak,
    NotAsked,
}

pub(super) fn check(grants: &Grants, profile: &Profile) -> Result<(), Obstacle> {
    asked_for(grants, profile)?;
    strong_enough(grants, profile)?;
    supported(grants.request(), profile)?;
    // Before the limits: what a wall that cannot start would enforce is not known.
    available(profile)?;
    enforceable(grants, profile)
}

/// The strength that counts against floors: the real one, unless somebody accepted the weakness by name.
pub(super) fn counted_strength(grants: &Grants, profile: &Profile) -> Strength {
    let accepted = profile.weakness().is_some_and(|weakness| grants.accepts(weakness, profile.stack()));
    let class = if accepted { profile.stack().nominal_class() } else { profile.class() };
    profile.stack().strength(class.max(profile.class()))
}

/// The demands that are not already part of a stronger one.
pub(super) fn binding(floors: &[Floor]) -> Vec<&Floor> {
    let mut binding: Vec<&Floor> = Vec::new();
    for floor in floors {
        // Of two equal demands the later one stays: it is the one the caller will recognise.
        binding.retain(|kept| !floor.implies(kept));
        if !binding.iter().any(|kept| kept.implies(floor)) {
            binding.push(floor);
        }
    }
    binding
}

fn asked_for(grants: &Grants, profile: &Profile) -> Result<(), Obstacle> {
    let not_asked = |reason, hint| Err(Obstacle { distance: Distance::NotAsked, reason, hint });
    match (grants.isolation(), profile.selection()) {
        (Isolation::Exactly(asked), _) if asked != profile.stack() => {
            not_asked(format!("not the stack that was asked for, {asked}"), None)
        }
        (_, Selection::ByName) if !grants.names(profile.stack()) => not_asked(
            "only used when it is asked for by name".to_owned(),
            Some(format!("ask for it with --on {}", profile.stack())),
        ),
        _ => Ok(()),
    }
}

fn strong_enough(grants: &Grants, profile: &Profile) -> Result<(), Obstacle> {
    let strength = counted_strength(grants, profile);
    let unmet = |floor: &&Floor| !floor.admits(&strength);
    // All floors are checked; the binding ones only come first because they explain more.
    let all = binding(grants.floors()).into_iter().chain(grants.floors());
    let Some(floor) = all.into_iter().find(unmet) else { return Ok(()) };
    let demand = format!("{}, which {} requires", any_of(floor.any_of()), floor.why());
    let nominal = profile.stack().nominal_strength();
    match profile.weakness() {
        Some(weakness) if grants.floors().iter().all(|floor| floor.admits(&nominal)) => Err(Obstacle {
            distance: Distance::Weakened,
            reason: format!(
                "only {} here because of {weakness}, and so weaker than {demand}",
                strength.class
            ),
            hint: Some(format!(
                "accept it with accept = [\"{weakness}\"] in the policy, or ask for --on {}",
                profile.stack()
            )),
        }),
        _ => Err(Obstacle {
            distance: Distance::TooWeak,
            reason: format!("weaker than {demand}"),
            hint: Some(format!("use {} or stronger", any_of(floor.any_of()))),
        }),
    }
}

fn supported(request: &Request, profile: &Profile) -> Result<(), Obstacle> {
    let clauses = profile.clauses();
    runs(request.workload(), profile)?;
    for need in request.needs() {
        if need.relaxes_layers() && profile.stack().outermost() != Wall::Microvm {
            return unsupported(format!("{need} is only given inside a microvm"), "use --at-least microvm");
        }
        if !clauses.needs.contains(need) {
            return unsupported(format!("{need} is not given"), format!("drop the need for {need}"));
        }
    }
    if !clauses.images.contains(&ImageKind::of(request.image())) {
        let image = quote(&request.image().label());
        return unsupported(format!("the image {image} is not supported"), "choose another --image");
    }
    let switches = [
        (request.cwd().is_some(), clauses.cwd, "a working directory", "leave the working directory alone"),
        (!request.files_in().is_empty(), clauses.files_in, "files in", "drop --in"),
        (!request.files_out().is_empty(), clauses.files_out, "files out", "drop --out"),
        (
            !request.egress().is_empty(),
            clauses.egress,
            "network egress",
            "drop --allow: cells have no network",
        ),
        (!request.secrets().is_empty(), clauses.secrets, "secrets", "drop --secret"),
        (
            request.deterministic(),
            clauses.deterministic,
            "deterministic execution",
            "do not ask for determinism",
        ),
    ];
    for (asked, support, what, hint) in switches {
        if asked && support == Support::No {
            return unsupported(format!("no support for {what}"), hint);
        }
    }
    Ok(())
}

fn runs(workload: &Workload, profile: &Profile) -> Result<(), Obstacle> {
    match workload {
        Workload::Command { .. } if profile.clauses().commands == Support::No => {
            unsupported("cannot run native commands", "give code in a language that it runs")
        }
        Workload::Session if profile.clauses().commands == Support::No => {
            unsupported("has no sessions, only single executions", "use a stack that does not end in +wasm")
        }
        Workload::Code { language, .. } if profile.clauses().languages_to_set_up.contains(language) => {
            let wall = profile.stack().innermost();
            Err(Obstacle {
                distance: Distance::Machine,
                reason: format!("missing: {language} for {wall}"),
                hint: Some(format!("`casemate setup {wall}` builds it")),
            })
        }
        Workload::Code { language, .. } if !profile.clauses().languages.contains(language) => {
            unsupported(format!("cannot run {language}"), "use another language or another stack")
        }
        Workload::Component { .. } if profile.clauses().components == Support::No => unsupported(
            "cannot run WASM components",
            "use a stack that ends in +wasm, such as container+wasm",
        ),
        Workload::Command { .. } | Workload::Code { .. } | Workload::Component { .. } | Workload::Session => {
            Ok(())
        }
    }
}

fn available(profile: &Profile) -> Result<(), Obstacle> {
    match profile.state() {
        State::Ready => Ok(()),
        State::Missing { reason, hint } => Err(Obstacle {
            distance: Distance::Machine,
            reason: format!("missing: {reason}"),
            hint: Some(hint.clone()),
        }),
    }
}

fn enforceable(grants: &Grants, profile: &Profile) -> Result<(), Obstacle> {
    let unmet = grants.limits().iter().find(|(kind, bound)| bound.asked() && !profile.enforces(*kind));
    let Some((kind, bound)) = unmet else { return Ok(()) };
    let hint =
        profile.hint_for(kind).map_or_else(|| format!("leave {} to its default", kind.flag()), str::to_owned);
    Err(Obstacle {
        distance: Distance::Machine,
        reason: format!(
            "cannot enforce {kind} {} asked for by the {}",
            kind.format(bound.value),
            bound.origin
        ),
        hint: Some(hint),
    })
}

fn unsupported(reason: impl Into<String>, hint: impl Into<String>) -> Result<(), Obstacle> {
    Err(Obstacle { distance: Distance::Clause, reason: reason.into(), hint: Some(hint.into()) })
}
