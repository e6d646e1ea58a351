//! An operator's policy file.

use std::sync::LazyLock;

use casemate_core::limits::LimitKind;
use casemate_core::policy::{self, Grants, Policy};
use casemate_core::request::{Isolation, Request, RequestDraft, Risk, Workload};
use casemate_core::route::{self, Clauses, ImageKind, Profile, Support};
use casemate_core::stack::Stack;

/// A machine on which every wall stands and enforces everything.
static MACHINE: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    let clauses = Clauses { commands: Support::Yes, images: [ImageKind::Host].into(), ..Clauses::default() };
    let profile = |(cost, stack): (u32, Stack)| {
        let class = stack.nominal_class();
        Profile::new(stack, class, cost).supporting(clauses.clone()).enforcing(LimitKind::ALL)
    };
    (0..).zip(Stack::all()).map(profile).collect()
});

/// Whatever a file says: a higher risk or a tenant never gets less, and what is chosen is as strong as demanded.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let policy = match Policy::parse(text) {
        Ok(policy) => policy,
        Err(error) => return drop(error.to_string()),
    };
    let mut lower: Option<Grants> = None;
    for risk in Risk::ALL {
        let Ok(grants) = policy::decide(&policy, &request(risk, None, Isolation::Auto)) else { return };
        if let Some(lower) = &lower {
            includes(&grants, lower);
        }
        chosen_well(&grants);
        if let Ok(tenant) = policy::decide(&policy, &request(risk, Some("acme"), Isolation::Auto)) {
            includes(&tenant, &grants);
            chosen_well(&tenant);
        }
        for stack in Stack::all() {
            if let Ok(grants) = policy::decide(&policy, &request(risk, None, Isolation::Exactly(stack))) {
                chosen_well(&grants);
            }
        }
        lower = Some(grants);
    }
}

fn includes(more: &Grants, less: &Grants) {
    for floor in less.floors() {
        assert!(more.floors().contains(floor), "{floor} is not demanded any more");
    }
}

fn chosen_well(grants: &Grants) {
    let Ok(choice) = route::choose(grants, &MACHINE) else { return };
    for floor in grants.floors() {
        assert!(floor.admits(&choice.strength), "{} is below {floor}", choice.stack);
    }
    if let Isolation::Exactly(stack) = grants.isolation() {
        assert_eq!(*stack, choice.stack, "another stack than the one asked for");
    }
}

fn request(risk: Risk, tenant: Option<&str>, isolation: Isolation) -> Request {
    let mut draft = RequestDraft::new(Workload::Command { argv: vec!["true".into()] });
    draft.risk = risk;
    draft.tenant = tenant.map(Into::into);
    draft.tags = vec!["personal-data".into()];
    draft.isolation = isolation;
    Request::new(draft).expect("a request that makes sense")
}
