//! The fully decided instruction to a wall. A wall sees this and nothing else: no policy, no risk, no choice.

use std::collections::BTreeSet;

use crate::limits::{LimitKind, Limits};
use crate::policy::{Durability, Grants};
use crate::request::{GuestPath, ImageRef, Need, Request, Stdin, Workload};
use crate::route::Choice;
use crate::stack::{Class, Stack};

/// Every field is enforced by the wall that gets it; the router refused what it could not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    request: Request,
    limits: Limits,
    durability: Durability,
    stack: Stack,
    class: Class,
    unbounded: Vec<LimitKind>,
}

impl Plan {
    pub fn new(grants: Grants, choice: Choice) -> Plan {
        let Choice { stack, class, unbounded, .. } = choice;
        let (request, limits, durability) = grants.into_parts();
        Plan { request, limits, durability, stack, class, unbounded }
    }

    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// What really stands, not what the stack's name promises.
    pub fn class(&self) -> Class {
        self.class
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

    pub fn needs(&self) -> &BTreeSet<Need> {
        self.request.needs()
    }

    pub fn deterministic(&self) -> bool {
        self.request.deterministic()
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Default bounds that this wall cannot enforce, and says so.
    pub fn unbounded(&self) -> &[LimitKind] {
        &self.unbounded
    }

    pub fn durability(&self) -> Durability {
        self.durability
    }
}
