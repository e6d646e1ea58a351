//! From rules to BPF.
//!
//! ```text
//! load arch ─ not ours → kill
//! load nr
//! binary search over the whole range of numbers, cut into stretches of one rule with few exceptions
//!   └ leaf: the exceptions one by one, then the rule: a return, or argument checks that end in returns
//! ```
//! Installing costs by the instruction, as the kernel checks, translates and compiles them all, so leaves are shared.
//! Jumps only go forward; the program is therefore written from its end, and every target is there before its jump.

use libc::sock_filter;

use crate::Program;
use crate::table::{self, Arch, Clause, Half, Match, Rule, Verdict};

/// Offsets into `struct seccomp_data`.
const NR: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

pub(crate) fn assemble(arch: Arch, program: Program) -> Vec<sock_filter> {
    let mut code = Code::default();
    code.search(&stretches(&segments(arch, program)));
    code.push(load(NR));
    let ours = code.here();
    let foreign = code.push(ret(Verdict::KillProcess));
    code.branch(libc::BPF_JEQ, arch.audit(), ours, foreign);
    code.push(load(ARCH));
    code.finish()
}

/// The rule from this number on, up to the next segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    first: u32,
    rule: Rule,
}

/// Covers all 2³² numbers. Those with the x32 bit are a second ABI that the table says nothing about; -1 has the bit too,
/// but is what a tracer writes to have a call skipped.
fn segments(arch: Arch, program: Program) -> Vec<Segment> {
    const ABSENT: Rule = Rule::Always(Verdict::ABSENT);
    const KILL: Rule = Rule::Always(Verdict::KillProcess);

    let mut cuts = vec![Segment { first: 0, rule: ABSENT }];
    let mut rows: Vec<_> = table::rows(arch, program).collect();
    rows.sort_by_key(|&(_, number, _)| number);
    for (_, number, rule) in rows {
        // A row ends the gap before it and starts the next one; a gap of no numbers is overwritten.
        cuts.pop_if(|gap| gap.first == number);
        cuts.extend([Segment { first: number, rule }, Segment { first: number + 1, rule: ABSENT }]);
    }
    if arch == Arch::X86_64 {
        cuts.extend(
            [(0x4000_0000, KILL), (0x8000_0000, ABSENT), (0xc000_0000, KILL), (u32::MAX, ABSENT)]
                .map(|(first, rule)| Segment { first, rule }),
        );
    }
    cuts.dedup_by_key(|segment| segment.rule);
    cuts
}

/// A rule from this number on, up to the next stretch, and single numbers in between that have their own.
#[derive(Debug)]
struct Stretch<'a> {
    rule: Segment,
    exceptions: Vec<&'a Segment>,
}

/// Telling an exception costs one comparison where two more segments cost two; but they are tried in turn, so only a few.
const EXCEPTIONS: usize = 4;

fn stretches(segments: &[Segment]) -> Vec<Stretch<'_>> {
    let mut stretches: Vec<Stretch<'_>> = Vec::new();
    let mut rest = segments;
    while let [next, after @ ..] = rest {
        rest = after;
        if let (Some(current), [resumed, after @ ..]) = (stretches.last_mut(), after)
            && next.first + 1 == resumed.first
            && resumed.rule == current.rule.rule
            && current.exceptions.len() < EXCEPTIONS
        {
            current.exceptions.push(next);
            rest = after;
            continue;
        }
        stretches.push(Stretch { rule: *next, exceptions: Vec::new() });
    }
    stretches
}

/// A program being written from its end.
#[derive(Default)]
struct Code {
    reversed: Vec<sock_filter>,
    leaves: Vec<(Rule, Label)>,
}

/// An instruction, by its distance from the end.
#[derive(Clone, Copy, Debug)]
struct Label(usize);

impl Code {
    fn search(&mut self, stretches: &[Stretch<'_>]) -> Label {
        if let [only] = stretches {
            let rule = self.leaf(only.rule.rule);
            return only.exceptions.iter().fold(rule, |others, exception| {
                let this = self.leaf(exception.rule);
                self.branch(libc::BPF_JEQ, exception.first, this, others)
            });
        }
        let (low, high) = stretches.split_at(stretches.len() / 2);
        let (above, below) = (self.search(high), self.search(low));
        self.branch(libc::BPF_JGE, high[0].rule.first, above, below)
    }

    /// What a rule does, written once for all who are near enough.
    fn leaf(&mut self, rule: Rule) -> Label {
        let known = self.leaves.iter().rev().find(|(other, _)| *other == rule).map(|&(_, label)| label);
        if let Some(label) = known.filter(|&label| self.distance(label) < REACH / 2) {
            return label;
        }
        let label = match rule {
            Rule::Always(verdict) => self.push(ret(verdict)),
            Rule::Unless(clauses) => {
                let allow = self.leaf(Rule::Always(Verdict::Allow));
                clauses.iter().rev().fold(allow, |passed, clause| self.clause(clause, passed))
            }
        };
        self.leaves.push((rule, label));
        label
    }

    fn clause(&mut self, clause: &Clause, passed: Label) -> Label {
        debug_assert!(!clause.values.is_empty(), "the load must be followed by a comparison");
        let refused = self.leaf(Rule::Always(clause.verdict));
        let (equal, unequal) = match clause.when {
            Match::AnyOf => (refused, passed),
            Match::NoneOf => (passed, refused),
        };
        clause.values.iter().fold(unequal, |next, &value| self.branch(libc::BPF_JEQ, value, equal, next));
        if clause.mask != u32::MAX {
            self.push(statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, clause.mask));
        }
        // Both architectures are little-endian.
        let half = match clause.half {
            Half::Low => 0,
            Half::High => 4,
        };
        self.push(load(ARGUMENTS + 8 * u32::from(clause.argument) + half))
    }

    fn branch(&mut self, comparison: u32, k: u32, yes: Label, no: Label) -> Label {
        let (yes, no) = (self.within_reach(yes), self.within_reach(no));
        let (jt, jf) = (self.distance(yes) as u8, self.distance(no) as u8);
        self.push(sock_filter { code: (libc::BPF_JMP | comparison | libc::BPF_K) as u16, jt, jf, k })
    }

    /// Conditional jumps are short; what is too far away gets an unconditional one to go through.
    fn within_reach(&mut self, label: Label) -> Label {
        // One less, as the other target of the same branch may need a step of its own.
        if self.distance(label) < REACH {
            return label;
        }
        let distance = self.distance(label) as u32;
        self.push(statement(libc::BPF_JMP | libc::BPF_JA, distance))
    }

    /// How many instructions the next one would have to skip.
    fn distance(&self, label: Label) -> usize {
        self.reversed.len() - 1 - label.0
    }

    fn here(&self) -> Label {
        Label(self.reversed.len() - 1)
    }

    fn push(&mut self, instruction: sock_filter) -> Label {
        self.reversed.push(instruction);
        self.here()
    }

    fn finish(mut self) -> Vec<sock_filter> {
        self.reversed.reverse();
        self.reversed
    }
}

/// The longest conditional jump.
const REACH: usize = u8::MAX as usize;

fn load(offset: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn ret(verdict: Verdict) -> sock_filter {
    let value = match verdict {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Errno(number) => libc::SECCOMP_RET_ERRNO | (number as u32 & libc::SECCOMP_RET_DATA),
        Verdict::KillProcess => libc::SECCOMP_RET_KILL_PROCESS,
    };
    statement(libc::BPF_RET | libc::BPF_K, value)
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpret::{Call, run};

    /// No table of ours is that large yet, but the next one may be.
    #[test]
    fn a_search_longer_than_a_conditional_jump_still_lands_right() {
        let rule = |nr: u32| Rule::Always(Verdict::Errno(nr as i32 + 1));
        let segments: Vec<_> = (0..1500).map(|first| Segment { first, rule: rule(first) }).collect();
        let mut code = Code::default();
        code.search(&stretches(&segments));
        code.push(load(NR));
        let code = code.finish();
        for nr in 0..1500 {
            assert_eq!(run(&code, Call { arch: 0, nr, arguments: [0; 6] }).0, Verdict::Errno(nr as i32 + 1));
        }
    }
}
