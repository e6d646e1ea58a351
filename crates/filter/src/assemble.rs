//! From rules to BPF.
//!
//! ```text
//! load arch ─ not ours → kill
//! load nr
//! binary search over the whole range of numbers, cut into segments of equal rule
//!   └ leaf: a return, or argument checks that end in returns
//! ```
//! Every piece is a list of instructions that ends in returns and jumps only forward within itself, so pieces can be put
//! behind one another as they are: nothing needs labels or a second pass.

use libc::sock_filter;

use crate::Program;
use crate::table::{self, Arch, Clause, Match, Rule, Verdict};

/// Offsets into `struct seccomp_data`.
const NR: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

pub(crate) fn assemble(arch: Arch, program: Program) -> Vec<sock_filter> {
    let mut code =
        vec![load(ARCH), jump(libc::BPF_JEQ, arch.audit(), 1, 0), ret(Verdict::KillProcess), load(NR)];
    code.extend(search(&segments(arch, program)));
    code
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

fn search(segments: &[Segment]) -> Vec<sock_filter> {
    if let [only] = segments {
        return leaf(only.rule);
    }
    let (low, high) = segments.split_at(segments.len() / 2);
    let low_code = search(low);
    // Conditional jumps reach 255 instructions; an unconditional one reaches all.
    let mut code = match u8::try_from(low_code.len()) {
        Ok(distance) => vec![jump(libc::BPF_JGE, high[0].first, distance, 0)],
        Err(_) => vec![jump(libc::BPF_JGE, high[0].first, 0, 1), always(low_code.len() as u32)],
    };
    code.extend(low_code);
    code.extend(search(high));
    code
}

fn leaf(rule: Rule) -> Vec<sock_filter> {
    match rule {
        Rule::Always(verdict) => vec![ret(verdict)],
        Rule::Unless(clauses) => {
            let mut code: Vec<_> = clauses.iter().flat_map(refuse).collect();
            code.push(ret(Verdict::Allow));
            code
        }
    }
}

/// Returns the clause's verdict if it applies, and otherwise runs on past its own end.
fn refuse(clause: &Clause) -> Vec<sock_filter> {
    let mut code = vec![load(ARGUMENTS + 8 * u32::from(clause.argument))];
    if clause.mask != u32::MAX {
        code.push(statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, clause.mask));
    }
    for (index, &value) in clause.values.iter().enumerate() {
        let comparisons_left = (clause.values.len() - 1 - index) as u8;
        let last = comparisons_left == 0;
        code.push(match clause.when {
            // Equal: to the return. The last one, when unequal: past it.
            Match::AnyOf => jump(libc::BPF_JEQ, value, comparisons_left, u8::from(last)),
            // Equal: past the return. The last one, when unequal, falls into it.
            Match::NoneOf => jump(libc::BPF_JEQ, value, comparisons_left + 1, 0),
        });
    }
    code.push(ret(clause.verdict));
    code
}

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

fn always(distance: u32) -> sock_filter {
    statement(libc::BPF_JMP | libc::BPF_JA, distance)
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(comparison: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | comparison | libc::BPF_K) as u16, jt, jf, k }
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
        let mut code = vec![load(NR)];
        code.extend(search(&segments));
        for nr in 0..1500 {
            assert_eq!(run(&code, Call { arch: 0, nr, arguments: [0; 6] }).0, Verdict::Errno(nr as i32 + 1));
        }
    }
}
