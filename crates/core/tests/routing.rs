//! The default policy on an ordinary machine, and what is said when it cannot serve a request.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::sync::Arc;

use casemate_core::limits::{LimitKind, LimitsDraft, Origin};
use casemate_core::outcome::Refusal;
use casemate_core::plan::{Decision, Plan};
use casemate_core::policy::{self, Durability, Policy};
use casemate_core::request::{
    CodeSource, Isolation, Kind, Language, Need, Request, RequestDraft, Risk, Workload,
};
use casemate_core::route::{self, Choice, Clauses, ImageKind, Profile, Support};
use casemate_core::stack::{Class, Stack, Weakness};

fn stack(text: &str) -> Stack {
    text.parse().unwrap()
}

fn native() -> Clauses {
    Clauses {
        commands: Support::Yes,
        languages: Language::ALL.into(),
        needs: [Need::Fork, Need::Ptrace].into(),
        images: [ImageKind::Host, ImageKind::Directory, ImageKind::Stored].into(),
        cwd: Support::Yes,
        files_in: Support::Yes,
        files_out: Support::Yes,
        ..Clauses::default()
    }
}

fn profile(text: &str, cost: u32) -> Profile {
    let stack = stack(text);
    let class = stack.nominal_class();
    Profile::new(stack, class, cost).supporting(native()).enforcing(LimitKind::ALL)
}

/// Root on a virtual machine without KVM: gVisor is not installed, QEMU emulates.
fn machine() -> Vec<Profile> {
    let only_python =
        Clauses { commands: Support::No, languages: [Language::Python].into(), needs: [].into(), ..native() };
    let emulated = |text, cost| {
        Profile::new(stack(text), Class::SharedKernel, cost)
            .weakened(Weakness::Tcg)
            .supporting(native())
            .enforcing(LimitKind::ALL)
    };
    vec![
        Profile::new(stack("process"), Class::SharedKernel, 1)
            .supporting(native())
            .enforcing([LimitKind::WallTime, LimitKind::CpuTime])
            .unenforced_hint(LimitKind::Memory, "use a container"),
        profile("container", 10),
        profile("container+wasm", 5).supporting(only_python),
        profile("gvisor", 50).missing("runsc is not installed", "run `casemate setup gvisor`"),
        profile("docker", 60).by_name_only(),
        emulated("microvm", 500),
        emulated("microvm+container", 510),
    ]
}

fn python() -> RequestDraft {
    RequestDraft::new(Workload::Code {
        language: Language::Python,
        source: CodeSource::Inline("print(1)".to_owned()),
        args: vec![],
    })
}

fn command() -> RequestDraft {
    RequestDraft::new(Workload::Command { argv: vec!["make".to_owned()] })
}

fn route_with(policy: &str, draft: RequestDraft) -> Result<Choice, Refusal> {
    let request = Request::new(draft)?;
    let grants = policy::decide(&Policy::parse(policy).unwrap(), &request)?;
    route::choose(&grants, &machine())
}

fn route(draft: RequestDraft) -> Result<Choice, Refusal> {
    route_with("", draft)
}

fn chosen(draft: RequestDraft) -> String {
    route(draft).unwrap().stack.to_string()
}

#[test]
fn ordinary_work_goes_to_a_container() {
    assert_eq!(chosen(command()), "container");
    assert_eq!(chosen(RequestDraft { kind: Some(Kind::BuildTest), ..command() }), "container");
    assert_eq!(chosen(RequestDraft { risk: Risk::Low, ..command() }), "container");
}

#[test]
fn agent_written_code_goes_to_wasm_where_it_can() {
    assert_eq!(chosen(RequestDraft { risk: Risk::High, ..python() }), "container+wasm");
    assert_eq!(chosen(RequestDraft { kind: Some(Kind::PureCompute), ..python() }), "container+wasm");
}

#[test]
fn every_stack_that_was_passed_over_says_why() {
    let choice = route(command()).unwrap();
    let reason = |text: &str| {
        choice.passed_over.iter().find(|passed| passed.stack == stack(text)).unwrap().reason.as_str()
    };
    assert_eq!(reason("process"), "weaker than container, which risk medium requires");
    assert_eq!(reason("container+wasm"), "cannot run native commands");
    assert_eq!(reason("gvisor"), "missing: runsc is not installed");
    assert_eq!(reason("docker"), "only used when it is asked for by name");
    assert_eq!(
        reason("microvm"),
        "only shared-kernel here because of tcg, and so weaker than container, which risk medium requires"
    );
    assert_eq!(reason("microvm+container"), "would do, but costs more than container");
}

#[test]
fn a_missing_wall_is_refused_with_its_own_hint() {
    let refusal = route(RequestDraft { risk: Risk::High, ..command() }).unwrap_err();
    assert!(
        refusal.reason.starts_with(
            "nothing here can take this run, which needs container+wasm or gvisor (risk high): \
             gvisor: missing: runsc is not installed; container+wasm: cannot run native commands"
        ),
        "{refusal}"
    );
    assert_eq!(refusal.hint, "run `casemate setup gvisor`");
}

#[test]
fn emulation_is_no_hardware_boundary_unless_accepted_by_name() {
    let critical = RequestDraft { risk: Risk::Critical, ..command() };
    let refusal = route(critical.clone()).unwrap_err();
    assert!(refusal.reason.contains("microvm+container (risk critical)"), "{refusal}");
    assert!(refusal.hint.contains("accept = [\"tcg\"]"), "{}", refusal.hint);

    let choice = route_with("accept = [\"tcg\"]", critical).unwrap();
    assert_eq!((choice.stack, choice.class), (stack("microvm+container"), Class::SharedKernel));

    let by_name = RequestDraft { isolation: Isolation::Exactly(stack("microvm")), ..command() };
    assert_eq!(route(by_name).unwrap().class, Class::SharedKernel);
}

#[test]
fn a_stack_asked_for_by_name_is_that_stack_or_nothing() {
    let on = |text: &str| RequestDraft { isolation: Isolation::Exactly(stack(text)), ..command() };
    assert_eq!(chosen(on("docker")), "docker");

    let refusal = route(on("process")).unwrap_err();
    assert_eq!(
        refusal.reason,
        "process cannot take this run: weaker than container, which risk medium requires"
    );
    assert_eq!(refusal.hint, "use container or stronger");

    let refusal = route(on("docker+wasm")).unwrap_err();
    assert_eq!(refusal.reason, "docker+wasm is not available on this machine");
    assert_eq!(refusal.hint, "`casemate doctor` says what docker+wasm needs here");
}

#[test]
fn a_policy_can_let_low_risk_run_as_a_process() {
    let policy = "[floors]\nlow = \"process\"";
    let low = RequestDraft { risk: Risk::Low, ..command() };
    let choice = route_with(policy, low.clone()).unwrap();
    assert_eq!(choice.stack, stack("process"));
    assert!(choice.unbounded.contains(&LimitKind::Memory), "{:?}", choice.unbounded);

    // An asked limit that the cheaper wall cannot enforce moves the run to one that can.
    let limits = LimitsDraft::new().with(LimitKind::Memory, 64 << 20);
    let choice = route_with(policy, RequestDraft { limits: limits.clone(), ..low.clone() }).unwrap();
    assert_eq!(choice.stack, stack("container"));

    // Asked for by name, it is refused with the wall's own hint.
    let isolation = Isolation::Exactly(stack("process"));
    let refusal = route_with(policy, RequestDraft { limits, isolation, ..low }).unwrap_err();
    assert_eq!(
        refusal.reason,
        "process cannot take this run: cannot enforce memory 64 MiB asked for by the request"
    );
    assert_eq!(refusal.hint, "use a container");
}

#[test]
fn what_no_wall_supports_is_said_once_for_all_of_them() {
    let refusal =
        route(RequestDraft { egress: vec!["api.example.com:443".to_owned()], ..python() }).unwrap_err();
    assert!(
        refusal
            .reason
            .contains("container+wasm, container, gvisor, microvm+container: no support for network egress"),
        "{refusal}"
    );
}

#[test]
fn needs_that_relax_layers_are_only_given_in_a_microvm() {
    let refusal = route(RequestDraft { needs: vec![Need::Root], ..command() }).unwrap_err();
    assert!(refusal.reason.contains("root is only given inside a microvm"), "{refusal}");
}

#[test]
fn a_machine_without_any_strong_wall_says_which_one_to_set_up() {
    let request = Request::new(RequestDraft { risk: Risk::Critical, ..command() }).unwrap();
    let grants = policy::decide(&Policy::default(), &request).unwrap();
    let refusal = route::choose(&grants, &[profile("container", 10)]).unwrap_err();
    assert_eq!(
        refusal.reason,
        "nothing here can take this run, which needs microvm+container (risk critical): \
         no wall of microvm+container, microvm+container+wasm is available on this machine"
    );
    assert_eq!(refusal.hint, "`casemate doctor` says what microvm+container needs here");
}

#[test]
fn a_tenant_is_held_to_its_own_floors_and_caps() {
    let policy = "[tenants.acme.floors]\nlow = \"gvisor\"\n[tenants.acme.caps]\nmemory = \"128M\"";
    let acme = RequestDraft { tenant: Some("acme".to_owned()), ..command() };
    let refusal = route_with(policy, acme.clone()).unwrap_err();
    assert!(refusal.reason.contains("gvisor (risk low for tenant acme)"), "{refusal}");

    let limits = LimitsDraft::new().with(LimitKind::Memory, 256 << 20);
    let refusal = route_with(policy, RequestDraft { limits, ..acme }).unwrap_err();
    assert_eq!(refusal.reason, "memory 256 MiB is above the policy's cap of 128 MiB");
    assert_eq!(route_with(policy, command()).unwrap().stack, stack("container"));
}

#[test]
fn a_plan_carries_what_was_decided() {
    let policy = Policy::parse("[evidence]\ndurability = \"each\"\n[defaults]\npids = 8").unwrap();
    let request = Request::new(RequestDraft { cwd: Some("/work/".to_owned()), ..command() }).unwrap();
    let grants = policy::decide(&policy, &request).unwrap();
    let choice = route::choose(&grants, &machine()).unwrap();
    let plan = Plan::new(Arc::new(request), Arc::new(Decision::new(&grants, choice)));
    assert_eq!(plan.stack(), &stack("container"));
    assert_eq!(plan.cwd(), Some("/work"));
    assert_eq!(plan.durability(), Durability::Each);
    let pids = plan.limits().get(LimitKind::Pids).unwrap();
    assert_eq!((pids.value, pids.origin), (8, Origin::Policy));
}
