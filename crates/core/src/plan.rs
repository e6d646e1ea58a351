//! The fully decided instruction to a wall. A wall sees this and nothing else: no policy, no risk, no choice.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::limits::{Bound, LimitKind, Limits, LimitsDraft, Origin};
use crate::outcome::Refusal;
use crate::policy::{Durability, Grants, Sharing};
use crate::request::{Capability, GuestPath, ImageRef, Need, Request, Stdin, Workload};
use crate::route::Choice;
use crate::stack::{Class, Stack};

/// Every field is enforced by the wall that gets it; the router refused what it could not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    request: Arc<Request>,
    decision: Arc<Decision>,
}

/// What was decided about a request, and holds for every other one of its [shape](Request::shape).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    limits: Limits,
    durability: Durability,
    sharing: Sharing,
    choice: Choice,
}

impl Decision {
    pub fn new(grants: &Grants, choice: Choice) -> Decision {
        let (limits, durability, sharing) = (grants.limits().clone(), grants.durability(), grants.sharing());
        Decision { limits, durability, sharing, choice }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Limits that the chosen stack cannot enforce, and nobody asked for.
    pub fn unbounded(&self) -> &[LimitKind] {
        &self.choice.unbounded
    }
}

impl Plan {
    /// `decision` is the one about this request.
    pub fn new(request: Arc<Request>, decision: Arc<Decision>) -> Plan {
        Plan { request, decision }
    }

    /// For a program of our own that has to run behind walls, too, such as a compiler. It is not asked for by anybody, so no
    /// policy decides about it; its limits are all meant.
    pub fn of_our_own(request: Request, limits: LimitsDraft, stack: Stack) -> Result<Plan, Refusal> {
        let nothing = LimitsDraft::new();
        let class = stack.nominal_class();
        let decision = Decision {
            limits: Limits::resolve(&limits, &nothing, &nothing)?,
            durability: Durability::default(),
            sharing: Sharing::default(),
            choice: Choice {
                strength: stack.strength(class),
                stack,
                class,
                unbounded: Vec::new(),
                passed_over: Vec::new(),
            },
        };
        Ok(Plan { request: Arc::new(request), decision: Arc::new(decision) })
    }

    /// The plan of something that runs in a session. What was decided about the session holds; a request may only ask for less, and
    /// only of what is counted for each program by itself.
    pub fn within(session: &Plan, request: Request) -> Result<Plan, Refusal> {
        let mut decision = Decision::clone(&session.decision);
        for (kind, value) in request.limits().iter() {
            let granted = session.limits().get(kind);
            match kind {
                LimitKind::WallTime | LimitKind::Output => {
                    if let Some(granted) = granted.filter(|granted| value > granted.value) {
                        let (value, most) = (kind.format(value), kind.format(granted.value));
                        return Err(Refusal::new(
                            format!("{kind} {value} is more than the session was granted, {most}"),
                            "ask for no more than that, or for more when the session is created",
                        ));
                    }
                }
                _ => {
                    return Err(Refusal::new(
                        format!("{kind} is a limit of the whole session"),
                        "set it when the session is created",
                    ));
                }
            }
            decision.limits.set(kind, Bound { value, origin: Origin::Request });
        }
        let beyond = [
            (request.tenant() != session.tenant(), "the tenant"),
            (request.image() != session.image(), "the image"),
            (!request.needs().is_subset(session.needs()), "what it needs"),
            (!request.egress().is_empty(), "egress"),
            (!request.secrets().is_empty(), "secrets"),
            (!request.capabilities().is_empty(), "capabilities"),
            (request.deterministic(), "determinism"),
            (!matches!(request.workload(), Workload::Command { .. } | Workload::Code { .. }), "the workload"),
        ];
        match beyond.into_iter().find(|(differs, _)| *differs) {
            Some((_, what)) => Err(Refusal::new(
                format!("{what} is decided when a session is created"),
                "create another session for it",
            )),
            None => Ok(Plan { request: Arc::new(request), decision: Arc::new(decision) }),
        }
    }

    /// The same, with a bound on something left out.
    #[must_use]
    pub fn unlimited(mut self, kind: LimitKind) -> Plan {
        Arc::make_mut(&mut self.decision).limits.lift(kind);
        self
    }

    /// Why this stack, and no other.
    pub fn choice(&self) -> &Choice {
        &self.decision.choice
    }

    pub fn stack(&self) -> &Stack {
        &self.decision.choice.stack
    }

    /// What really stands, not what the stack's name promises.
    pub fn class(&self) -> Class {
        self.decision.choice.class
    }

    pub fn tenant(&self) -> &str {
        self.request.tenant()
    }

    pub fn workload(&self) -> &Workload {
        self.request.workload()
    }

    /// The whole environment: nothing is inherited from the host.
    pub fn env(&self) -> &[(String, String)] {
        self.request.env()
    }

    pub fn cwd(&self) -> Option<&str> {
        self.request.cwd()
    }

    pub fn image(&self) -> &ImageRef {
        self.request.image()
    }

    pub fn files_in(&self) -> &[GuestPath] {
        self.request.files_in()
    }

    pub fn files_out(&self) -> &[GuestPath] {
        self.request.files_out()
    }

    pub fn stdin(&self) -> Stdin {
        self.request.stdin()
    }

    pub fn egress(&self) -> &[String] {
        self.request.egress()
    }

    pub fn secrets(&self) -> &[String] {
        self.request.secrets()
    }

    pub fn capabilities(&self) -> &BTreeSet<Capability> {
        self.request.capabilities()
    }

    pub fn needs(&self) -> &BTreeSet<Need> {
        self.request.needs()
    }

    pub fn deterministic(&self) -> bool {
        self.request.deterministic()
    }

    pub fn limits(&self) -> &Limits {
        &self.decision.limits
    }

    /// Default bounds that this wall cannot enforce, and says so.
    pub fn unbounded(&self) -> &[LimitKind] {
        &self.decision.choice.unbounded
    }

    pub fn durability(&self) -> Durability {
        self.decision.durability
    }

    pub fn sharing(&self) -> Sharing {
        self.decision.sharing
    }
}
