//! What the operator of this machine demands, and what it means for one request.
//!
//! A policy states floors: which stacks are strong enough for a risk, a kind of tool or a tag. [`decide`] collects
//! every floor that applies to a request, and all of them must hold. Nothing is ever taken out of that
//! collection, so a tenant's section, a tag or a higher risk can only make it harder to satisfy.

mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use raw::PolicyError;

use crate::limits::{LimitKind, Limits, LimitsDraft};
use crate::outcome::Refusal;
use crate::request::{Isolation, Kind, Request, Risk};
use crate::stack::{Stack, Strength, Wall, Weakness};
use crate::words::{any_of, words};

words! {
    /// When records reach the disk.
    #[derive(Default)]
    pub enum Durability: "durability" {
        /// Several records share one flush.
        #[default]
        Batch = "batch",
        /// Every record is flushed before the run goes on.
        Each = "each",
    }
}

words! {
    /// Who shares a WASM worker.
    #[derive(Default)]
    pub enum Sharing: "sharing" {
        /// The calls of one tenant, each with an instance of its own.
        #[default]
        Tenant = "tenant",
        /// Nobody: every execution has its own.
        None = "none",
    }
}

words! {
    /// Which of the Docker Engine's runtimes its cells are made with.
    #[derive(Default)]
    pub enum DockerRuntime: "runtime" {
        /// The host's kernel.
        #[default]
        Runc = "runc",
        /// gVisor's.
        Runsc = "runsc",
    }
}

/// What a machine's time costs its operator. Decides nothing: `casemate doctor --compare` multiplies with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    currency: String,
    /// In millionths, per hour.
    cpu: u64,
    gigabyte: u64,
}

impl Prices {
    pub fn currency(&self) -> &str {
        &self.currency
    }

    /// Of one processor, busy.
    pub fn cpu_hour(&self) -> f64 {
        self.cpu as f64 / 1e6
    }

    /// Of a gigabyte (10^9 bytes) of memory.
    pub fn gb_hour(&self) -> f64 {
        self.gigabyte as f64 / 1e6
    }
}

impl Default for Prices {
    /// About what large clouds ask for an hour of theirs.
    fn default() -> Prices {
        Prices { currency: "USD".into(), cpu: 40_000, gigabyte: 5_000 }
    }
}

/// A validated policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    rules: Rules,
    defaults: LimitsDraft,
    durability: Durability,
    sharing: Sharing,
    docker: DockerRuntime,
    prices: Prices,
    accept: BTreeSet<Weakness>,
    /// Keyed by tenant; each adds to `rules` and takes nothing away.
    tenants: BTreeMap<String, Rules>,
}

/// The demands of one section of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rules {
    floors: BTreeMap<Risk, AnyOf>,
    kinds: BTreeMap<Kind, AnyOf>,
    tags: BTreeMap<String, AnyOf>,
    caps: LimitsDraft,
}

/// Stacks of which one is enough. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AnyOf(Vec<Stack>);

/// One demand on the stack of a run, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    any_of: AnyOf,
    why: String,
}

/// A request that the policy lets pass, with everything the policy decides about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    request: Request,
    limits: Limits,
    floors: Vec<Floor>,
    named: BTreeSet<Stack>,
    accept: BTreeSet<Weakness>,
    durability: Durability,
    sharing: Sharing,
}

/// Applies the policy to a request.
pub fn decide(policy: &Policy, request: &Request) -> Result<Grants, Refusal> {
    let tenant = policy.tenants.get(request.tenant());
    let caps = policy.caps_of(request.tenant());
    let limits = Limits::resolve(request.limits(), &policy.defaults, &caps)?;

    let mut floors = policy.rules.floors_for(request, "");
    if let Some(tenant) = tenant {
        floors.extend(tenant.floors_for(request, &format!(" for tenant {}", request.tenant())));
    }
    if let Isolation::AtLeast(wall) = request.isolation() {
        floors.push(Floor::new(AnyOf(vec![Stack::of(*wall)]), format!("--at-least {wall}")));
    }
    Ok(Grants {
        request: request.clone(),
        limits,
        floors,
        named: policy.named(request),
        accept: policy.accept.clone(),
        durability: policy.durability,
        sharing: policy.sharing,
    })
}

impl Policy {
    /// Reads a policy file. What it leaves out keeps its default; what it does not know is an error.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        raw::parse(text)
    }

    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// One for the machine: what a stack is worth must not depend on who asks.
    pub fn docker_runtime(&self) -> DockerRuntime {
        self.docker
    }

    /// The most that a tenant's requests can ask for.
    pub fn cap(&self, tenant: &str, kind: LimitKind) -> u64 {
        self.caps_of(tenant).get(kind).unwrap_or(kind.range().cap)
    }

    fn caps_of(&self, tenant: &str) -> LimitsDraft {
        match self.tenants.get(tenant) {
            Some(tenant) => self.rules.caps.smaller(&tenant.caps),
            None => self.rules.caps.clone(),
        }
    }

    pub fn prices(&self) -> &Prices {
        &self.prices
    }

    /// Stacks that may be used although they are only used by name: those that the request names, and those that
    /// the policy names anywhere outside of the tenants' sections. The same for every risk and tenant, so that
    /// a further floor never brings a stack into play.
    fn named(&self, request: &Request) -> BTreeSet<Stack> {
        let Rules { floors, kinds, tags, caps: _ } = &self.rules;
        let by_policy = floors.values().chain(kinds.values()).chain(tags.values()).flat_map(|floor| &floor.0);
        let by_request = match request.isolation() {
            Isolation::Auto => None,
            Isolation::AtLeast(wall) => Some(Stack::of(*wall)),
            Isolation::Exactly(stack) => Some(stack.clone()),
        };
        by_policy.cloned().chain(by_request).collect()
    }
}

impl Default for Policy {
    /// The same policy as `docs/policy.toml`, which explains it.
    fn default() -> Policy {
        const CONTAINER: &[Wall] = &[Wall::Container];
        const CONTAINER_WASM: &[Wall] = &[Wall::Container, Wall::Wasm];
        const GVISOR: &[Wall] = &[Wall::Gvisor];
        const MICROVM: &[Wall] = &[Wall::Microvm];
        const MICROVM_CONTAINER: &[Wall] = &[Wall::Microvm, Wall::Container];
        Policy {
            rules: Rules {
                floors: BTreeMap::from([
                    (Risk::Low, AnyOf::of(&[CONTAINER])),
                    (Risk::Medium, AnyOf::of(&[CONTAINER])),
                    (Risk::High, AnyOf::of(&[CONTAINER_WASM, GVISOR])),
                    (Risk::Critical, AnyOf::of(&[MICROVM_CONTAINER])),
                ]),
                kinds: BTreeMap::from([
                    (Kind::PureCompute, AnyOf::of(&[CONTAINER_WASM])),
                    (Kind::FileOps, AnyOf::of(&[CONTAINER])),
                    (Kind::BuildTest, AnyOf::of(&[CONTAINER])),
                    (Kind::UntrustedScript, AnyOf::of(&[MICROVM])),
                    (Kind::Model, AnyOf::of(&[MICROVM_CONTAINER])),
                ]),
                tags: BTreeMap::new(),
                caps: LimitsDraft::new(),
            },
            defaults: LimitsDraft::new(),
            durability: Durability::default(),
            sharing: Sharing::default(),
            docker: DockerRuntime::default(),
            prices: Prices::default(),
            accept: BTreeSet::new(),
            tenants: BTreeMap::new(),
        }
    }
}

impl Rules {
    /// Every floor of this section that applies to the request.
    fn floors_for(&self, request: &Request, whose: &str) -> Vec<Floor> {
        // The floors of all lower risks apply too: however a file orders them, a higher risk never gets less.
        let risks = self.floors.range(..=request.risk());
        let kinds = request.kind().and_then(|kind| self.kinds.get_key_value(&kind));
        let tags = request.tags().iter().filter_map(|tag| self.tags.get_key_value(tag));

        let risks = risks.map(|(risk, floor)| (format!("risk {risk}"), floor));
        let kinds = kinds.into_iter().map(|(kind, floor)| (format!("kind {kind}"), floor));
        let tags = tags.map(|(tag, floor)| (format!("tag {tag}"), floor));
        risks
            .chain(kinds)
            .chain(tags)
            .map(|(why, floor)| Floor::new(floor.clone(), format!("{why}{whose}")))
            .collect()
    }
}

impl AnyOf {
    fn of(stacks: &[&[Wall]]) -> AnyOf {
        AnyOf(stacks.iter().map(|walls| Stack::new(walls).expect("a default floor is a stack")).collect())
    }
}

impl Floor {
    fn new(any_of: AnyOf, why: String) -> Floor {
        Floor { any_of, why }
    }

    /// The stacks of which one is enough.
    pub fn any_of(&self) -> &[Stack] {
        &self.any_of.0
    }

    /// Who demands it: `risk high`, `kind model`, `tag pii`, `--at-least gvisor`.
    pub fn why(&self) -> &str {
        &self.why
    }

    pub fn admits(&self, strength: &Strength) -> bool {
        self.any_of().iter().any(|stack| strength.at_least(&stack.nominal_strength()))
    }

    /// Whether everything this floor admits is admitted by the other one too.
    pub fn implies(&self, other: &Floor) -> bool {
        self.any_of().iter().all(|stack| other.admits(&stack.nominal_strength()))
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", any_of(self.any_of()), self.why)
    }
}

impl Grants {
    pub fn request(&self) -> &Request {
        &self.request
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// All of them must hold.
    pub fn floors(&self) -> &[Floor] {
        &self.floors
    }

    pub fn isolation(&self) -> &Isolation {
        self.request.isolation()
    }

    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether a stack that is only used by name may be used here.
    pub fn names(&self, stack: &Stack) -> bool {
        self.named.contains(stack)
    }

    /// Whether a stack with this weakness counts at its nominal class: the policy accepts the weakness by name,
    /// or the caller asked for this very stack.
    pub fn accepts(&self, weakness: Weakness, stack: &Stack) -> bool {
        self.accept.contains(&weakness) || *self.isolation() == Isolation::Exactly(stack.clone())
    }

    pub fn sharing(&self) -> Sharing {
        self.sharing
    }
}
