//! The assembled programs against the plain reading of the table, for both architectures.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::assemble::assemble;
use crate::interpret::{Call, run};
use crate::table::{Arch, Half, Match, Rule, Verdict, rows};
use crate::{Ids, Network, Program, Ptrace, digest_input, program, verdicts};

const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

fn payloads() -> impl Iterator<Item = Program> {
    programs().filter(|program| matches!(program, Program::Payload { .. }))
}

fn programs() -> impl Iterator<Item = Program> {
    Program::all()
}

#[test]
fn what_was_assembled_when_this_was_compiled_is_what_would_be_assembled_now() {
    let bytes = |code: &[libc::sock_filter]| digest_input(code);
    for one in programs() {
        assert_eq!(bytes(program(one)), bytes(&assemble(Arch::NATIVE, one)), "{one:?}");
    }
}

/// What the table says about a call, without any assembling.
fn by_table(arch: Arch, program: Program, call: Call) -> Verdict {
    if call.arch != arch.audit() {
        return Verdict::KillProcess;
    }
    if arch == Arch::X86_64 && call.nr & 0x4000_0000 != 0 && call.nr != u32::MAX {
        return Verdict::KillProcess;
    }
    rows(arch, program)
        .find(|&(_, number, _)| number == call.nr)
        .map_or(Verdict::ABSENT, |(_, _, rule)| rule.verdict(&call.arguments))
}

/// Every value that a clause names, its neighbours, and all of them with bits set where the kernel does not look.
fn interesting(rule: Rule) -> Vec<[u64; 6]> {
    let Rule::Unless(clauses) = rule else { return vec![[0; 6], [u64::MAX; 6]] };
    let mut lists = vec![[0u64; 6], [1; 6], [u64::MAX; 6]];
    for clause in clauses {
        let values: Vec<u64> = clause
            .values
            .iter()
            .flat_map(|&value| [value, value ^ 1, value.wrapping_add(1), !value, value | !clause.mask])
            .chain((0..32).map(|bit| 1 << bit))
            .flat_map(|value| {
                let value = u64::from(value);
                [value, value << 32, value | 1 << 32, value | 0xffff_ffff << 32]
            })
            .collect();
        let filled: Vec<_> = lists
            .iter()
            .take(40)
            .flat_map(|list| {
                values.iter().map(|&value| {
                    let mut list = *list;
                    list[usize::from(clause.argument)] = value;
                    list
                })
            })
            .collect();
        lists.splice(0..0, filled);
    }
    lists
}

#[test]
fn every_number_gets_what_the_table_says() {
    for arch in ARCHES {
        for program in programs() {
            let code = assemble(arch, program);
            let rules: BTreeMap<u32, Rule> = rows(arch, program).map(|(_, nr, rule)| (nr, rule)).collect();
            let edges =
                [0x3fff_ffff, 0x4000_0000, 0x4000_0001, 0x7fff_ffff, 0x8000_0000, 0xc000_0000, u32::MAX - 1];
            for nr in (0..=1024).chain(edges).chain([u32::MAX]) {
                let rule = rules.get(&nr).copied().unwrap_or(Rule::Always(Verdict::ABSENT));
                for arguments in interesting(rule) {
                    let call = Call { arch: arch.audit(), nr, arguments };
                    assert_eq!(
                        run(&code, call).0,
                        by_table(arch, program, call),
                        "{arch:?} {program:?} {call:x?}"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(5_000) })]

    #[test]
    fn any_call_gets_what_the_table_says(
        native in prop::sample::select(&ARCHES[..]),
        program in prop::sample::select(programs().collect::<Vec<_>>()),
        arch in prop_oneof![4 => Just(None), 1 => any::<u32>().prop_map(Some)],
        nr in prop_oneof![6 => 0u32..512, 1 => any::<u32>(), 1 => (0u32..512).prop_map(|nr| nr | 0x4000_0000)],
        arguments in prop::array::uniform6(prop_oneof![0u64..64, any::<u32>().prop_map(u64::from), any::<u64>()]),
    ) {
        let call = Call { arch: arch.unwrap_or(native.audit()), nr, arguments };
        prop_assert_eq!(run(&assemble(native, program), call).0, by_table(native, program, call));
    }

    #[test]
    fn the_guest_filter_adds_nothing_to_a_payload_filter(
        arch in prop::sample::select(&ARCHES[..]),
        payload in prop::sample::select(payloads().collect::<Vec<_>>()),
        nr in 0u32..512,
        arguments in prop::array::uniform6(prop_oneof![0u64..64, any::<u64>()]),
    ) {
        let (outer, inner) = (assemble(arch, Program::Guest), assemble(arch, payload));
        assert_superset((&outer, &inner), payload, Call { arch: arch.audit(), nr, arguments });
    }
}

#[test]
fn the_guest_filter_allows_whatever_a_payload_filter_allows() {
    for arch in ARCHES {
        for payload in payloads() {
            let (outer, inner) = (assemble(arch, Program::Guest), assemble(arch, payload));
            for (_, nr, rule) in rows(arch, payload).chain(rows(arch, Program::Guest)) {
                for arguments in interesting(rule) {
                    assert_superset((&outer, &inner), payload, Call { arch: arch.audit(), nr, arguments });
                }
            }
        }
    }
}

/// Where both refuse they agree; only the stricter refusals of a payload without namespaces or ids of its own may have
/// another errno, and that one is reported, as the payload's filter is the younger.
fn assert_superset(
    (outer, inner): (&[libc::sock_filter], &[libc::sock_filter]),
    payload: Program,
    call: Call,
) {
    let guest = run(outer, call).0;
    let inner = run(inner, call).0;
    let stricter =
        matches!(payload, Program::Payload { network: Network::None, .. }) && inner == Verdict::DENIED;
    assert!(guest == Verdict::Allow || guest == inner || stricter, "{guest:?} above {inner:?}: {call:x?}");
}

#[test]
fn every_call_of_the_unpacker_is_in_the_table() {
    let listed = rows(Arch::NATIVE, Program::Unpacker).count();
    assert_eq!(listed, crate::syscalls::UNPACKER.len());
}

#[test]
fn a_foreign_architecture_is_killed_whatever_it_calls() {
    let foreign = [0x4000_0003, 0xc000_00b7, 0xc000_003e, 0x4000_0028, 0x8000_0016, 0];
    for arch in ARCHES {
        for program in programs() {
            let code = assemble(arch, program);
            for other in foreign.into_iter().filter(|&other| other != arch.audit()) {
                for nr in 0..1024 {
                    let call = Call { arch: other, nr, arguments: [0; 6] };
                    assert_eq!(run(&code, call).0, Verdict::KillProcess);
                }
            }
        }
    }
}

#[test]
fn no_call_is_listed_twice() {
    for arch in ARCHES {
        let mut names = HashSet::new();
        let mut numbers = HashSet::new();
        for (name, number, _) in rows(arch, Program::Guest) {
            assert!(names.insert(name), "{name} twice");
            assert!(numbers.insert(number), "{number} twice, the second time as {name}");
        }
    }
}

#[test]
fn a_program_is_small_and_its_searches_are_short() {
    for arch in ARCHES {
        for program in programs() {
            let code = assemble(arch, program);
            let longest = (0..512)
                .map(|nr| run(&code, Call { arch: arch.audit(), nr, arguments: [0; 6] }).1)
                .max()
                .unwrap();
            println!("{arch:?} {program:?}: {} instructions, {longest} at most for one call", code.len());
            assert!(code.len() < 200, "{} instructions", code.len());
            assert!(longest < 24, "{longest} instructions for one call");
        }
    }
}

/// seccompiler knows one verdict besides the default, so it is asked only who gets through.
#[test]
fn an_independent_compiler_lets_the_same_calls_through() {
    for program in programs() {
        let allowed: BTreeMap<i64, Vec<SeccompRule>> = rows(Arch::X86_64, program)
            .filter_map(|(_, number, rule)| Some((i64::from(number), alternatives(rule)?)))
            .collect();
        let reference: Vec<libc::sock_filter> = seccompiler::BpfProgram::try_from(
            SeccompFilter::new(
                allowed,
                SeccompAction::Errno(libc::ENOSYS as u32),
                SeccompAction::Allow,
                seccompiler::TargetArch::x86_64,
            )
            .unwrap(),
        )
        .unwrap()
        .iter()
        .map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k })
        .collect();
        let ours = assemble(Arch::X86_64, program);
        for (name, nr, rule) in rows(Arch::X86_64, program) {
            for arguments in interesting(rule) {
                let call = Call { arch: Arch::X86_64.audit(), nr, arguments };
                let allows = |code| run(code, call).0 == Verdict::Allow;
                assert_eq!(allows(&ours), allows(&reference), "{name} {arguments:x?} for {program:?}");
            }
        }
    }
}

/// The rule as seccompiler spells it: any of several lists of conditions, all of which must hold.
fn alternatives(rule: Rule) -> Option<Vec<SeccompRule>> {
    let clauses = match rule {
        Rule::Always(Verdict::Allow) => return Some(Vec::new()),
        Rule::Always(_) => return None,
        Rule::Unless(clauses) => clauses,
    };
    let mut lists: Vec<Vec<SeccompCondition>> = vec![Vec::new()];
    for clause in clauses {
        lists = match clause.when {
            Match::NoneOf => lists
                .iter()
                .flat_map(|list| {
                    clause.values.iter().map(|&value| {
                        let shift = if clause.half == Half::High { 32 } else { 0 };
                        let is = SeccompCondition::new(
                            clause.argument,
                            SeccompCmpArgLen::Qword,
                            SeccompCmpOp::MaskedEq(u64::from(clause.mask) << shift),
                            u64::from(value) << shift,
                        );
                        list.iter().cloned().chain([is.unwrap()]).collect()
                    })
                })
                .collect(),
            Match::AnyOf => {
                assert_eq!(clause.mask, u32::MAX, "seccompiler has no masked inequality");
                assert_eq!(clause.half, Half::Low, "which therefore has no half either");
                let is_not = |&value| {
                    let (argument, value) = (clause.argument, u64::from(value));
                    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value).unwrap()
                };
                lists
                    .into_iter()
                    .map(|list| list.into_iter().chain(clause.values.iter().map(is_not)).collect())
                    .collect()
            }
        };
    }
    Some(lists.into_iter().map(|list| SeccompRule::new(list).unwrap()).collect())
}

#[test]
fn the_digest_covers_every_field_and_tells_programs_apart() {
    let code = program(Program::Guest);
    let bytes = digest_input(code);
    assert_eq!(bytes.len(), code.len() * 8);
    assert_eq!(bytes[..8], [0x20, 0, 0, 0, 4, 0, 0, 0], "the first instruction loads the architecture");
    let digests: HashSet<_> = payloads().map(|payload| digest_input(program(payload))).collect();
    assert_eq!(digests.len(), 8);
}

#[test]
fn verdicts_read_as_sentences() {
    let payload = Program::Payload { network: Network::Namespaced, ids: Ids::Shared, ptrace: Ptrace::Denied };
    let words: BTreeMap<_, _> = verdicts(payload).collect();
    assert_eq!(words["read"], "allow");
    assert_eq!(words["ptrace"], "EPERM");
    assert_eq!(words["clone3"], "ENOSYS");
    assert_eq!(words["clone"], "allow; EPERM if argument 0 & 0x7e020000 is not 0x0");
    assert_eq!(words["fchmod"], "allow; EBADF if argument 0 & 0x80000000 is not 0x0");
    assert_eq!(
        words["utimensat"],
        "allow; EPERM if argument 1 is not 0x0; EPERM if the high half of argument 1 is not 0x0; \
         EPERM if argument 3 is not 0x0"
    );
    assert_eq!(words["ioctl"], "allow; EPERM if argument 1 is 0x5412 or 0x541c or 0x5423");
}
