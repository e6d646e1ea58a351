//! The payload's filter as a seccomp profile of Docker, from the same table that its own BPF is assembled from.
//!
//! A profile can only say under which conditions a call is allowed: a list of arguments that have to compare equal under a mask,
//! one comparison per argument. So "all but these values" becomes the masks and values of all the others; there are no more
//! than 32 for each value that is left out. What is refused looks the same as everywhere else because the guest installs the
//! exact filter on top; of two errors, the kernel reports that of the filter that came last.

use std::collections::BTreeMap;

use casemate_filter::{Clause, Half, Match, Program, Rule, Verdict};
use serde_json::{Value, json};

/// The profile for payloads with this filter, and for the guest, which needs nothing else.
pub(super) fn profile(program: Program) -> String {
    let (mut allowed, mut refused, mut conditional) =
        (Vec::new(), BTreeMap::<i32, Vec<&str>>::new(), Vec::new());
    for (name, rule) in casemate_filter::rules(program) {
        match rule {
            Rule::Always(Verdict::Allow) => allowed.push(name),
            // What is named nowhere does not exist.
            Rule::Always(Verdict::ABSENT) => {}
            Rule::Always(Verdict::Errno(errno)) => refused.entry(errno).or_default().push(name),
            Rule::Always(Verdict::KillProcess) => {
                conditional.push(json!({"names": [name], "action": "SCMP_ACT_KILL_PROCESS"}));
            }
            Rule::Unless(clauses) => conditional.extend(permitted(clauses).into_iter().map(|arguments| {
                json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments.iter().map(compared).collect::<Vec<_>>()})
            })),
        }
    }
    let mut calls = vec![json!({"names": allowed, "action": "SCMP_ACT_ALLOW"})];
    calls.extend(
        refused
            .into_iter()
            .map(|(errno, names)| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno})),
    );
    calls.extend(conditional);
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::ENOSYS,
        // Calls of any other one, x32 and 32-bit calls among them, end the process.
        "architectures": [ARCHITECTURE],
        "syscalls": calls,
    })
    .to_string()
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// The bits of an argument that count, and what they must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bits {
    mask: u64,
    value: u64,
}

/// By the number of the argument.
type Arguments = BTreeMap<u8, Bits>;

fn compared((index, bits): (&u8, &Bits)) -> Value {
    json!({"index": index, "value": bits.mask, "valueTwo": bits.value, "op": "SCMP_CMP_MASKED_EQ"})
}

/// The combinations of arguments to which no clause applies. Each is one comparison per argument, and together they are all.
fn permitted(clauses: &[Clause]) -> Vec<Arguments> {
    let mut found = vec![Arguments::new()];
    for clause in clauses {
        let escapes = escapes(clause);
        let both = |before: &Arguments| -> Vec<Arguments> {
            escapes.iter().filter_map(|bits| with(before, clause.argument, *bits)).collect()
        };
        found = found.iter().flat_map(both).collect();
    }
    found
}

/// `before`, and this about one argument; `None` if both cannot be.
fn with(before: &Arguments, argument: u8, bits: Bits) -> Option<Arguments> {
    let mut arguments = before.clone();
    let known = arguments.entry(argument).or_insert(Bits { mask: 0, value: 0 });
    if (known.value ^ bits.value) & known.mask & bits.mask != 0 {
        return None;
    }
    *known = Bits { mask: known.mask | bits.mask, value: known.value | bits.value };
    Some(arguments)
}

/// What an argument must be for a clause not to apply.
fn escapes(clause: &Clause) -> Vec<Bits> {
    let shift = if clause.half == Half::High { 32 } else { 0 };
    let bits =
        |(mask, value): (u32, u32)| Bits { mask: u64::from(mask) << shift, value: u64::from(value) << shift };
    let values: Vec<u32> = clause.values.iter().copied().filter(|value| value & !clause.mask == 0).collect();
    match clause.when {
        Match::NoneOf => values.into_iter().map(|value| bits((clause.mask, value))).collect(),
        Match::AnyOf => {
            let mut others = Vec::new();
            all_but(&values, clause.mask, (0, 0), &mut others);
            others.into_iter().map(bits).collect()
        }
    }
}

/// All numbers within `free` bits but `values`, as masks and values: the number line is halved until a part has none of them.
fn all_but(values: &[u32], free: u32, (mask, value): (u32, u32), found: &mut Vec<(u32, u32)>) {
    if values.is_empty() {
        return found.push((mask, value));
    }
    let Some(highest) = free.checked_ilog2() else { return };
    let bit = 1 << highest;
    for half in [0, bit] {
        let within: Vec<u32> = values.iter().copied().filter(|value| value & bit == half).collect();
        all_but(&within, free & !bit, (mask | bit, value | half), found);
    }
}

#[cfg(test)]
mod tests {
    use casemate_filter::{Ids, Network, Ptrace};

    use super::*;

    /// As libseccomp reads it: a call is allowed if all comparisons of one of its entries hold.
    fn allows(profile: &Value, name: &str, arguments: &[u64; 6]) -> bool {
        let entries = profile["syscalls"].as_array().expect("a list").iter();
        entries.filter(|entry| entry["action"] == "SCMP_ACT_ALLOW").any(|entry| {
            let named =
                entry["names"].as_array().is_some_and(|names| names.iter().any(|known| known == name));
            let number = |value: &Value| value.as_u64().expect("a number");
            named
                && entry["args"].as_array().into_iter().flatten().all(|argument| {
                    let given = arguments[number(&argument["index"]) as usize];
                    given & number(&argument["value"]) == number(&argument["valueTwo"])
                })
        })
    }

    fn every() -> impl Iterator<Item = Program> {
        [Ptrace::Denied, Ptrace::Allowed].into_iter().flat_map(|ptrace| {
            let own = Program::Payload { network: Network::Namespaced, ids: Ids::Own, ptrace };
            let shared = Program::Payload { network: Network::None, ids: Ids::Shared, ptrace };
            [own, shared]
        })
    }

    /// Values around those that clauses mention, and what a high half can do.
    fn interesting(clauses: &[Clause]) -> Vec<u64> {
        let around = clauses.iter().flat_map(|clause| clause.values).flat_map(|&value| {
            [value, value.wrapping_add(1), value.wrapping_sub(1), value ^ 0x8000_0000, !value]
        });
        let mut values: Vec<u64> = around.chain([0, 1, u32::MAX]).map(u64::from).collect();
        values.extend(values.clone().into_iter().map(|value| value | 0xdead_0000_0000));
        values.sort_unstable();
        values.dedup();
        values
    }

    #[test]
    fn it_allows_what_the_table_allows_and_nothing_else() {
        for program in every() {
            let profile: Value = serde_json::from_str(&profile(program)).expect("JSON");
            for (name, rule) in casemate_filter::rules(program) {
                let clauses = if let Rule::Unless(clauses) = rule { clauses } else { &[] };
                let values = interesting(clauses);
                let mut arguments = [0; 6];
                // Enough to meet every value of every argument, alone and beside others.
                for round in 0..4 * values.len() {
                    for (at, argument) in arguments.iter_mut().enumerate() {
                        *argument = values[(round * (at * 7 + 1) + round / values.len() * 3) % values.len()];
                    }
                    let expected = rule.verdict(&arguments) == Verdict::Allow;
                    assert_eq!(allows(&profile, name, &arguments), expected, "{name} {arguments:x?}");
                }
            }
        }
    }

    #[test]
    fn no_entry_compares_one_argument_twice() {
        // They would be alternatives to the runtime, not conditions.
        for program in every() {
            let profile: Value = serde_json::from_str(&profile(program)).expect("JSON");
            for entry in profile["syscalls"].as_array().expect("a list") {
                let mut seen = Vec::new();
                for argument in entry["args"].as_array().into_iter().flatten() {
                    assert!(!seen.contains(&&argument["index"]), "{entry}");
                    seen.push(&argument["index"]);
                }
            }
        }
    }
}
