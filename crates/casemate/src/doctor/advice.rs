//! What follows from a comparison: where the policy sends work, and what that costs beside the alternatives.

use casemate_core::request::{CodeSource, Language, Need, Request, RequestDraft, Risk, Workload};
use casemate_core::route::Support;
use casemate_core::stack::Class;
use casemate_engine::Engine;
use serde::Serialize;

use super::compare::{Compared, Strace};
use crate::failure::Failure;

/// Where the policy sends one sort of work.
#[derive(Debug, Serialize)]
pub(super) struct Advice {
    pub(super) risk: &'static str,
    pub(super) work: &'static str,
    /// None if nothing that stands here is strong enough.
    pub(super) stack: Option<String>,
    /// What would have to be done, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing: Option<String>,
}

/// Asks the router, for each risk and each sort of work.
pub(super) fn by_policy(engine: &Engine) -> Result<Vec<Advice>, Failure> {
    let program = || Workload::Command { argv: vec!["true".into()] };
    let python = || Workload::Code {
        language: Language::Python,
        source: CodeSource::Inline("pass".into()),
        args: Vec::new(),
    };
    let works: [(&'static str, Workload, &[Need]); 3] = [
        ("a program", program(), &[]),
        ("Python", python(), &[]),
        ("a debugger", program(), &[Need::Ptrace]),
    ];
    let mut advice = Vec::new();
    for risk in Risk::ALL {
        for (work, workload, needs) in &works {
            let draft = RequestDraft { risk, needs: needs.to_vec(), ..RequestDraft::new(workload.clone()) };
            let (stack, missing) = match engine.explain(&Request::new(draft)?) {
                Ok(explanation) => (Some(explanation.choice.stack.to_string()), None),
                Err(refusal) => (None, Some(refusal.hint)),
            };
            advice.push(Advice { risk: risk.as_str(), work, stack, missing });
        }
    }
    Ok(advice)
}

/// What is worth knowing of these figures, a sentence each.
pub(super) fn remarks(stacks: &[Compared], advice: &[Advice]) -> Vec<String> {
    let ready = |name: &str| stacks.iter().find(|stack| stack.is_ready() && stack.name() == name);
    let mut remarks = Vec::new();
    let container = ready("container").and_then(thousand).filter(|price| *price > 0.0);
    let strict = |stack: &Compared| stack.profile.class() > Class::SharedKernel;
    let native = |stack: &Compared| stack.profile.clauses().commands == Support::Yes;
    if let Some((stack, price)) = cheapest(stacks, |stack| !native(stack) && !strict(stack)) {
        remarks.push(compared("For Python behind WASM, take", stack, price, container));
    }
    match cheapest(stacks, |stack| strict(stack) && native(stack)) {
        Some((stack, price)) => {
            remarks.push(compared("Where a program must not share the host's kernel, take", stack, price, container));
        }
        None if !stacks.iter().any(|stack| stack.is_ready() && strict(stack) && native(stack)) => remarks.push(
            "Nothing here keeps a program from the host's kernel: `casemate setup gvisor`, as root, adds a stack that does."
                .into(),
        ),
        None => {}
    }
    if let Some((stack, price)) = cheapest(stacks, |stack| strict(stack) && !native(stack)) {
        remarks.push(compared("And for Python behind WASM,", stack, price, container));
    }
    if let (Some(docker), Some(container)) = (ready("docker"), ready("container"))
        && let (Some(theirs), Some(ours)) = (&docker.measured, &container.measured)
    {
        let stronger = docker.profile.class() > container.profile.class();
        remarks.push(format!(
            "docker takes {:.1} times as long to start as container and is {}: choose it where its engine is a given.",
            theirs.cold_ms / ours.cold_ms.max(0.001),
            if stronger { "stronger, as gvisor is" } else { "no stronger" }
        ));
    }
    let debuggers: Vec<String> =
        stacks.iter().filter(|stack| stack.strace == Strace::Works).map(Compared::name).collect();
    if !debuggers.is_empty() {
        remarks.push(format!("strace works on {}, with `--needs ptrace`.", debuggers.join(", ")));
    }
    let served = |risk: Risk| advice.iter().any(|one| one.risk == risk.as_str() && one.stack.is_some());
    for risk in Risk::ALL.into_iter().filter(|risk| !served(*risk)) {
        remarks.push(format!("Work of {risk} risk is refused here: nothing that stands is strong enough."));
    }
    remarks
}

/// A stack and how its price relates to that of the ordinary one.
fn compared(words: &str, stack: &Compared, price: f64, container: Option<f64>) -> String {
    let relation =
        container.map(|container| format!(", at {:.1} times the price of container", price / container));
    format!("{words} {}{}.", stack.name(), relation.unwrap_or_default())
}

/// The price of a thousand evaluations, if it could be measured.
pub(super) fn thousand(stack: &Compared) -> Option<f64> {
    stack.measured.as_ref()?.evaluation.as_ref()?.price.map(|price| price * 1000.0)
}

fn cheapest(stacks: &[Compared], suits: impl Fn(&Compared) -> bool) -> Option<(&Compared, f64)> {
    let usable = |stack: &&Compared| stack.allowed_by_policy && suits(stack);
    let priced = stacks.iter().filter(usable).filter_map(|stack| Some((stack, thousand(stack)?)));
    priced.min_by(|(_, one), (_, other)| one.total_cmp(other))
}
