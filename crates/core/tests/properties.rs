//! The promises of policy and routing, checked over generated policies, requests and machines.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

use std::collections::BTreeSet;

use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::policy::{self, Grants, Policy};
use casemate_core::request::{
    Capability, CodeSource, Component, ImageDigest, ImageRef, Isolation, Kind, Language, Need, Request,
    RequestDraft, Risk, Stdin, Workload,
};
use casemate_core::route::{self, Choice, Clauses, ImageKind, Profile, Selection, State, Support};
use casemate_core::stack::{Class, Stack, Wall, Weakness};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;

/// What a generated policy file says, kept apart from the parser so that it can judge it.
#[derive(Debug, Clone)]
struct Demands {
    risks: [Vec<Stack>; 4],
    kinds: Vec<Vec<Stack>>,
    tag: Option<Vec<Stack>>,
    caps: LimitsDraft,
}

#[derive(Debug, Clone)]
struct World {
    accept_tcg: bool,
    everyone: Demands,
    acme: Demands,
    draft: RequestDraft,
    profiles: Vec<Profile>,
}

impl Demands {
    fn toml(&self, prefix: &str) -> String {
        let list =
            |stacks: &[Stack]| format!("{:?}", stacks.iter().map(Stack::to_string).collect::<Vec<_>>());
        let mut text = format!("[{prefix}floors]\n");
        for (risk, floor) in Risk::ALL.iter().zip(&self.risks) {
            text += &format!("{risk} = {}\n", list(floor));
        }
        text += &format!("[{prefix}kinds]\n");
        for (kind, floor) in Kind::ALL.iter().zip(&self.kinds) {
            text += &format!("{kind} = {}\n", list(floor));
        }
        if let Some(floor) = &self.tag {
            text += &format!("[{prefix}tags]\nmarked = {}\n", list(floor));
        }
        text += &format!("[{prefix}caps]\n");
        for (kind, value) in self.caps.iter() {
            text += &format!("{kind} = \"{}\"\n", kind.format(value));
        }
        text
    }

    /// The floors that apply to a request, straight from the rules in the documentation.
    fn floors(&self, request: &Request) -> Vec<&[Stack]> {
        let risks = Risk::ALL.iter().zip(&self.risks).filter(|(risk, _)| **risk <= request.risk());
        let kinds = Kind::ALL.iter().zip(&self.kinds).filter(|(kind, _)| Some(**kind) == request.kind());
        let tag = self.tag.iter().filter(|_| request.tags().contains("marked"));
        let floors = risks.map(|(_, floor)| floor).chain(kinds.map(|(_, floor)| floor)).chain(tag);
        floors.map(Vec::as_slice).collect()
    }
}

impl World {
    fn policy(&self) -> Policy {
        let accept = if self.accept_tcg { "accept = [\"tcg\"]\n" } else { "" };
        let text = format!("{accept}{}{}", self.everyone.toml(""), self.acme.toml("tenants.acme."));
        Policy::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    fn request(&self) -> Request {
        Request::new(self.draft.clone()).unwrap()
    }

    fn grants(&self) -> Option<Grants> {
        policy::decide(&self.policy(), &self.request()).ok()
    }

    fn choice(&self) -> Option<Choice> {
        route::choose(&self.grants()?, &self.profiles).ok()
    }

    fn chosen(&self, choice: &Choice) -> &Profile {
        self.profiles.iter().find(|profile| *profile.stack() == choice.stack).unwrap()
    }

    /// Every stack that could be chosen if it were the only one.
    fn acceptable(&self) -> BTreeSet<Stack> {
        let Some(grants) = self.grants() else { return BTreeSet::new() };
        let fits = |profile: &&Profile| route::choose(&grants, std::slice::from_ref(*profile)).is_ok();
        self.profiles.iter().filter(fits).map(|profile| profile.stack().clone()).collect()
    }

    fn with(&self, change: impl FnOnce(&mut RequestDraft)) -> World {
        let mut world = self.clone();
        change(&mut world.draft);
        world
    }
}

fn any_stack() -> impl Strategy<Value = Stack> {
    select(Stack::all().collect::<Vec<_>>())
}

fn any_floor() -> impl Strategy<Value = Vec<Stack>> {
    // Weak floors more often than not, so that many worlds have something to choose from.
    let weak = select(vec!["process".parse::<Stack>().unwrap(), "container".parse().unwrap()]);
    vec(prop_oneof![3 => weak, 1 => any_stack()], 1..3)
}

fn any_limits() -> impl Strategy<Value = LimitsDraft> {
    subsequence(LimitKind::ALL.to_vec(), 0..3).prop_flat_map(|kinds| {
        let values = kinds.iter().map(|kind| kind.range().min.max(1)..=kind.range().cap).collect::<Vec<_>>();
        values.prop_map(move |values| {
            kinds
                .iter()
                .zip(values)
                .fold(LimitsDraft::new(), |limits, (kind, value)| limits.with(*kind, value))
        })
    })
}

fn any_demands() -> impl Strategy<Value = Demands> {
    let caps = prop_oneof![3 => Just(LimitsDraft::new()), 1 => any_limits()];
    ([any_floor(), any_floor(), any_floor(), any_floor()], vec(any_floor(), 5), option::of(any_floor()), caps)
        .prop_map(|(risks, kinds, tag, caps)| Demands { risks, kinds, tag, caps })
}

fn any_workload() -> impl Strategy<Value = Workload> {
    let command = Workload::Command { argv: vec!["true".to_owned()] };
    let code = |language| Workload::Code { language, source: CodeSource::Inline("1".into()), args: vec![] };
    let component = Component::new("c.wasm", b"\0asm\x01\0\0\0".to_vec()).expect("a module");
    let component = Workload::Component { component, args: vec![] };
    prop_oneof![
        Just(command),
        select(Language::ALL.to_vec()).prop_map(code),
        Just(component),
        Just(Workload::Session)
    ]
}

fn any_draft() -> impl Strategy<Value = RequestDraft> {
    let isolation = prop_oneof![
        6 => Just(Isolation::Auto),
        1 => select(Wall::ALL.to_vec()).prop_map(Isolation::AtLeast),
        2 => any_stack().prop_map(Isolation::Exactly),
    ];
    let stored = ImageRef::Stored { name: "s".into(), digest: ImageDigest([7; 32]) };
    let image = prop_oneof![
        4 => Just(ImageRef::Host),
        1 => Just(ImageRef::Directory { label: "d".into() }),
        1 => Just(stored),
    ];
    let limits = prop_oneof![1 => Just(LimitsDraft::new()), 1 => any_limits()];
    let needs = prop_oneof![3 => Just(vec![]), 1 => vec(select(Need::ALL.to_vec()), 1..2)];
    (
        any_workload(),
        select(Risk::ALL.to_vec()),
        option::of(select(Kind::ALL.to_vec())),
        (any::<bool>(), any::<bool>(), 0..20u8),
        needs,
        (image, isolation, limits),
    )
        .prop_map(|(workload, risk, kind, (tagged, acme, extra), needs, (image, isolation, limits))| {
            RequestDraft {
                tenant: acme.then(|| "acme".to_owned()),
                risk,
                kind,
                tags: if tagged { vec!["marked".to_owned()] } else { vec![] },
                needs,
                image,
                isolation,
                limits,
                egress: if extra == 0 { vec!["a.example:443".to_owned()] } else { vec![] },
                secrets: if extra == 1 { vec!["TOKEN@a.example".to_owned()] } else { vec![] },
                files_in: if extra == 2 { vec!["/work/a".to_owned()] } else { vec![] },
                files_out: if extra == 3 { vec!["/work/b".to_owned()] } else { vec![] },
                cwd: (extra == 4).then(|| "/work".to_owned()),
                deterministic: extra == 5,
                ..RequestDraft::new(workload)
            }
        })
}

fn any_support() -> impl Strategy<Value = Support> {
    prop_oneof![1 => Just(Support::No), 4 => Just(Support::Yes)]
}

fn any_clauses() -> impl Strategy<Value = Clauses> {
    let s = any_support;
    (
        (s(), s(), s(), s(), s(), s(), s(), s()),
        btree_set(select(Language::ALL.to_vec()), 1..4),
        btree_set(select(Need::ALL.to_vec()), 0..6),
        btree_set(select(vec![ImageKind::Host, ImageKind::Directory, ImageKind::Stored]), 1..4),
    )
        .prop_map(
            |(
                (commands, components, cwd, files_in, files_out, egress, secrets, deterministic),
                languages,
                needs,
                images,
            )| {
                let missing = Language::ALL.into_iter().filter(|language| !languages.contains(language));
                Clauses {
                    commands,
                    components,
                    languages_to_set_up: missing.take(1).collect(),
                    languages,
                    needs,
                    images,
                    cwd,
                    files_in,
                    files_out,
                    egress,
                    secrets,
                    deterministic,
                }
            },
        )
}

fn any_profile(stack: Stack) -> impl Strategy<Value = Profile> {
    let enforces = prop_oneof![
        2 => Just(LimitKind::ALL.to_vec()),
        1 => subsequence(LimitKind::ALL.to_vec(), 0..=LimitKind::ALL.len()),
    ];
    (select(Class::ALL.to_vec()), 0..100u32, 0..8u8, any_clauses(), enforces).prop_map(
        move |(class, cost, condition, clauses, enforces)| {
            let class = if condition < 5 { stack.nominal_class() } else { class };
            let mut profile =
                Profile::new(stack.clone(), class, cost).supporting(clauses).enforcing(enforces);
            if class < stack.nominal_class() {
                profile = profile.weakened(Weakness::Tcg);
            }
            match condition {
                0 => profile.missing("not installed", "install it"),
                1 => profile.by_name_only(),
                _ => profile,
            }
        },
    )
}

fn any_world() -> impl Strategy<Value = World> {
    let profiles = subsequence(Stack::all().collect::<Vec<_>>(), 0..=12)
        .prop_flat_map(|stacks| stacks.into_iter().map(any_profile).collect::<Vec<_>>());
    (any::<bool>(), any_demands(), any_demands(), any_draft(), profiles).prop_map(
        |(accept_tcg, everyone, acme, draft, profiles)| World { accept_tcg, everyone, acme, draft, profiles },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_choice_is_never_below_any_floor(world in any_world()) {
        let Some(choice) = world.choice() else { return Ok(()) };
        let request = world.request();
        let profile = world.chosen(&choice);
        let by_name = *request.isolation() == Isolation::Exactly(choice.stack.clone());
        let accepted = profile.weakness().is_some() && (world.accept_tcg || by_name);
        let class = if accepted { choice.stack.nominal_class() } else { profile.class() };
        let strength = choice.stack.strength(class);

        let mut floors = world.everyone.floors(&request);
        if request.tenant() == "acme" {
            floors.extend(world.acme.floors(&request));
        }
        for floor in floors {
            prop_assert!(
                floor.iter().any(|stack| strength.at_least(&stack.nominal_strength())),
                "{} is below {:?}", choice.stack, floor
            );
        }
        match request.isolation() {
            Isolation::Auto => {}
            Isolation::AtLeast(wall) => {
                prop_assert!(strength.at_least(&Stack::of(*wall).nominal_strength()));
            }
            Isolation::Exactly(stack) => prop_assert_eq!(&choice.stack, stack),
        }
        prop_assert_eq!(choice.class, profile.class(), "the class on record is the real one");
    }

    #[test]
    fn raising_the_risk_never_admits_another_stack(world in any_world(), higher in select(Risk::ALL.to_vec())) {
        let (low, high) = (world.draft.risk.min(higher), world.draft.risk.max(higher));
        let below = world.with(|draft| draft.risk = low).acceptable();
        let above = world.with(|draft| draft.risk = high);
        prop_assert!(above.acceptable().is_subset(&below));
        if let Some(choice) = above.choice() {
            prop_assert!(below.contains(&choice.stack));
        }
    }

    #[test]
    fn a_tenant_section_never_admits_another_stack_or_a_larger_limit(world in any_world()) {
        let anyone = world.with(|draft| draft.tenant = None);
        let acme = world.with(|draft| draft.tenant = Some("acme".to_owned()));
        prop_assert!(acme.acceptable().is_subset(&anyone.acceptable()));
        if let Some(grants) = acme.grants() {
            let loose = anyone.grants().expect("what acme may, anyone may");
            for (kind, bound) in loose.limits().iter() {
                prop_assert!(grants.limits().get(kind).is_some_and(|tight| tight.value <= bound.value), "{}", kind);
            }
        }
    }

    #[test]
    fn a_tag_never_admits_another_stack(world in any_world()) {
        let plain = world.with(|draft| draft.tags.clear());
        let tagged = world.with(|draft| draft.tags = vec!["marked".to_owned()]);
        prop_assert!(tagged.acceptable().is_subset(&plain.acceptable()));
    }

    #[test]
    fn what_was_asked_for_is_enforced_and_the_rest_is_reported(world in any_world()) {
        let Some(choice) = world.choice() else { return Ok(()) };
        let profile = world.chosen(&choice);
        for (kind, bound) in world.grants().unwrap().limits().iter() {
            prop_assert!(profile.enforces(kind) || !bound.asked(), "{} was asked for", kind);
            prop_assert_eq!(choice.unbounded.contains(&kind), !profile.enforces(kind));
        }
        for (kind, _) in world.everyone.caps.iter() {
            prop_assert!(profile.enforces(kind), "{} is capped by the policy", kind);
        }
        for (kind, value) in world.draft.limits.iter() {
            prop_assert!(profile.enforces(kind));
            prop_assert_eq!(world.grants().unwrap().limits().get(kind).map(|bound| bound.value), Some(value));
        }
    }

    /// What an engine relies on when it remembers a decision.
    #[test]
    fn requests_of_one_shape_are_decided_alike(world in any_world()) {
        let other = world.with(|draft| {
            draft.env.push(("OTHER".to_owned(), "value".to_owned()));
            draft.stdin = Stdin::Provided;
            draft.workload = match draft.workload.clone() {
                Workload::Command { .. } => Workload::Command { argv: vec!["false".to_owned(), "x".to_owned()] },
                Workload::Code { language, .. } => {
                    Workload::Code { language, source: CodeSource::Inline("2".into()), args: vec!["y".to_owned()] }
                }
                Workload::Component { .. } => {
                    let component = Component::new("d.wasm", b"\0asm\x0d\0\x01\0".to_vec()).expect("a component");
                    draft.capabilities = vec![Capability::Clocks];
                    Workload::Component { component, args: vec!["z".to_owned()] }
                }
                Workload::Session => Workload::Session,
            };
            draft.cwd = draft.cwd.as_ref().map(|_| "/tmp".to_owned());
            draft.egress.iter_mut().for_each(|rule| *rule = "b.example:80".to_owned());
            draft.secrets.iter_mut().for_each(|secret| *secret = "KEY@b.example".to_owned());
            draft.files_in.iter_mut().chain(&mut draft.files_out).for_each(|path| *path = "/tmp/other".to_owned());
        });
        prop_assert_eq!(world.request().shape(), other.request().shape());
        prop_assert_eq!(world.choice(), other.choice());
        prop_assert_eq!(
            world.grants().map(|grants| grants.limits().clone()),
            other.grants().map(|grants| grants.limits().clone())
        );
    }

    #[test]
    fn every_clause_of_a_chosen_run_is_supported(world in any_world()) {
        let Some(choice) = world.choice() else { return Ok(()) };
        let (request, profile) = (world.request(), world.chosen(&choice));
        let clauses = profile.clauses();
        prop_assert_eq!(profile.state(), &State::Ready);
        prop_assert!(request.needs().is_subset(&clauses.needs));
        prop_assert!(clauses.images.contains(&ImageKind::of(request.image())));
        match request.workload() {
            Workload::Command { .. } | Workload::Session => prop_assert_eq!(clauses.commands, Support::Yes),
            Workload::Code { language, .. } => prop_assert!(clauses.languages.contains(language)),
            Workload::Component { .. } => prop_assert_eq!(clauses.components, Support::Yes),
        }
        for (unused, support) in [
            (request.egress().is_empty(), clauses.egress),
            (request.secrets().is_empty(), clauses.secrets),
            (request.files_in().is_empty(), clauses.files_in),
            (request.files_out().is_empty(), clauses.files_out),
            (request.cwd().is_none(), clauses.cwd),
            (!request.deterministic(), clauses.deterministic),
        ] {
            prop_assert!(unused || support == Support::Yes);
        }
        let relaxed = [Need::Bpf, Need::NestedContainers, Need::Root].iter().any(|need| request.needs().contains(need));
        prop_assert!(!relaxed || choice.stack.outermost() == Wall::Microvm);
    }

    #[test]
    fn the_cheapest_acceptable_stack_wins_and_every_other_has_a_reason(world in any_world()) {
        let Some(choice) = world.choice() else {
            prop_assert!(world.acceptable().is_empty(), "something would have fitted");
            return Ok(());
        };
        let acceptable = world.acceptable();
        let cheapest = world.profiles.iter().filter(|p| acceptable.contains(p.stack())).map(Profile::cost).min();
        prop_assert_eq!(Some(world.chosen(&choice).cost()), cheapest);

        let others: Vec<&Stack> = choice.passed_over.iter().map(|passed| &passed.stack).collect();
        let expected: Vec<&Stack> =
            world.profiles.iter().map(Profile::stack).filter(|stack| **stack != choice.stack).collect();
        prop_assert_eq!(others, expected);
        prop_assert!(choice.passed_over.iter().all(|passed| !passed.reason.is_empty()));
    }

    #[test]
    fn a_refusal_names_a_wall_that_would_have_done(world in any_world()) {
        let Some(grants) = world.grants() else { return Ok(()) };
        let missing: Vec<Profile> = world
            .profiles
            .iter()
            .map(|profile| profile.clone().missing("not installed", "install it"))
            .collect();
        let refusal = route::choose(&grants, &missing).expect_err("nothing is installed");
        prop_assert!(!refusal.hint.is_empty());
        if let Isolation::Exactly(stack) = grants.isolation() {
            prop_assert!(refusal.reason.contains(&stack.to_string()), "{}", refusal);
            return Ok(());
        }
        // Strong enough by its name, or (Docker with runsc) by what really stands.
        let nominal = Stack::all().map(|stack| stack.nominal_strength()).zip(Stack::all());
        let real = missing.iter().map(|profile| (profile.stack().strength(profile.class()), profile.stack().clone()));
        let would_do = nominal.chain(real).filter(|(strength, _)| {
            grants.floors().iter().all(|floor| floor.admits(strength))
        });
        let named = would_do.map(|(_, stack)| stack.to_string()).any(|name| refusal.reason.contains(&name));
        prop_assert!(named, "{}", refusal);
    }

    #[test]
    fn a_stack_for_use_by_name_is_not_chosen_unless_somebody_names_it(world in any_world()) {
        let Some(choice) = world.choice() else { return Ok(()) };
        if world.chosen(&choice).selection() == Selection::ByName {
            let World { everyone, draft, .. } = &world;
            let by_policy = everyone.risks.iter().chain(&everyone.kinds).chain(&everyone.tag).flatten();
            let by_request = match &draft.isolation {
                Isolation::Auto => None,
                Isolation::AtLeast(wall) => Some(Stack::of(*wall)),
                Isolation::Exactly(stack) => Some(stack.clone()),
            };
            prop_assert!(by_policy.cloned().chain(by_request).any(|stack| stack == choice.stack));
        }
    }
}

#[test]
fn the_generator_makes_worlds_in_which_runs_are_chosen() {
    // Properties over choices prove nothing if everything is refused.
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let worlds = (0..400).map(|_| any_world().new_tree(&mut runner).unwrap().current());
    let chosen = worlds.filter(|world| world.choice().is_some()).count();
    assert!(chosen > 100, "only {chosen} of 400 worlds lead to a run");
}
