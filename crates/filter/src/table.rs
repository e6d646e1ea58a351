//! What a rule means, and which rule a program gets for a row of the table.

use core::fmt;

use crate::syscalls::{TABLE, UNPACKER};
use crate::{Ids, Network, Program, Ptrace};

/// What the kernel does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// The call is not made and fails with this error.
    Errno(i32),
    KillProcess,
}

impl Verdict {
    /// Known and forbidden.
    pub const DENIED: Verdict = Verdict::Errno(libc::EPERM);
    /// As on a kernel without this call: callers have a fallback for that.
    pub const ABSENT: Verdict = Verdict::Errno(libc::ENOSYS);
}

/// What happens to one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Always(Verdict),
    /// Allowed, unless a clause applies; the first that does gives the verdict.
    Unless(&'static [Clause]),
}

/// Refuses a call by one argument: by half of it, of which only the bits in `mask` count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clause {
    pub argument: u8,
    pub half: Half,
    pub mask: u32,
    pub when: Match,
    pub values: &'static [u32],
    pub verdict: Verdict,
}

/// 32 bits of an argument, as BPF knows no more at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Low,
    High,
}

/// How the masked argument has to compare to the values for a clause to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    AnyOf,
    NoneOf,
}

impl Rule {
    /// The meaning that the assembled program must have.
    pub fn verdict(self, arguments: &[u64; 6]) -> Verdict {
        match self {
            Rule::Always(verdict) => verdict,
            Rule::Unless(clauses) => clauses
                .iter()
                .find(|clause| clause.applies(arguments))
                .map_or(Verdict::Allow, |clause| clause.verdict),
        }
    }
}

impl Clause {
    fn applies(&self, arguments: &[u64; 6]) -> bool {
        let argument = arguments[usize::from(self.argument)];
        let half = match self.half {
            Half::Low => argument as u32,
            Half::High => (argument >> 32) as u32,
        };
        self.values.contains(&(half & self.mask)) == (self.when == Match::AnyOf)
    }
}

/// One row: a call, its number on each architecture that has it, and its policy.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) x86_64: Option<u32>,
    pub(crate) aarch64: Option<u32>,
    pub(crate) policy: Policy,
}

/// A rule, or what it depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    Same(Rule),
    /// Debugging: allowed to those who were granted it.
    Tracing,
    /// What leads to the rest of the machine where the payload has no namespaces.
    ByNetwork {
        namespaced: Rule,
        none: Rule,
    },
    /// What changes files that Landlock does not guard against their owner.
    ByIds {
        own: Rule,
        shared: Rule,
    },
}

impl Policy {
    fn rule(self, program: Program) -> Rule {
        // The guest is the union of all payloads.
        let (network, ids, ptrace) = match program {
            Program::Guest => (Network::Namespaced, Ids::Own, Ptrace::Allowed),
            Program::Payload { network, ids, ptrace } => (network, ids, ptrace),
            // It has a list of its own, see `rows`.
            Program::Unpacker => return Rule::Always(Verdict::ABSENT),
        };
        match self {
            Policy::Same(rule) => rule,
            Policy::Tracing => Rule::Always(match ptrace {
                Ptrace::Allowed => Verdict::Allow,
                Ptrace::Denied => Verdict::DENIED,
            }),
            Policy::ByNetwork { namespaced, none } => match network {
                Network::Namespaced => namespaced,
                Network::None => none,
            },
            Policy::ByIds { own, shared } => match ids {
                Ids::Own => own,
                Ids::Shared => shared,
            },
        }
    }
}

/// Both are known wherever this is compiled, so that one machine can check both programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "outside the tests only the native one is built"))]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    #[cfg(target_arch = "x86_64")]
    pub(crate) const NATIVE: Arch = Arch::X86_64;
    #[cfg(target_arch = "aarch64")]
    pub(crate) const NATIVE: Arch = Arch::Aarch64;

    /// `AUDIT_ARCH_*`: the ELF machine, with the bits for 64-bit and little-endian.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the assembler"))]
    pub(crate) fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::Aarch64 => 0xc000_00b7,
        }
    }

    fn number(self, row: &Row) -> Option<u32> {
        match self {
            Arch::X86_64 => row.x86_64,
            Arch::Aarch64 => row.aarch64,
        }
    }
}

/// Name, number and rule of every call in the table that this architecture has.
pub(crate) fn rows(arch: Arch, program: Program) -> impl Iterator<Item = (&'static str, u32, Rule)> {
    TABLE.iter().filter_map(move |row| {
        let rule = match program {
            Program::Unpacker => UNPACKER.iter().find(|(name, _)| *name == row.name)?.1,
            _ => row.policy.rule(program),
        };
        Some((row.name, arch.number(row)?, rule))
    })
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Verdict::Allow => f.write_str("allow"),
            Verdict::KillProcess => f.write_str("kill"),
            Verdict::Errno(libc::EPERM) => f.write_str("EPERM"),
            Verdict::Errno(libc::ENOSYS) => f.write_str("ENOSYS"),
            Verdict::Errno(libc::EBADF) => f.write_str("EBADF"),
            Verdict::Errno(libc::EAFNOSUPPORT) => f.write_str("EAFNOSUPPORT"),
            Verdict::Errno(libc::EPROTONOSUPPORT) => f.write_str("EPROTONOSUPPORT"),
            Verdict::Errno(number) => write!(f, "errno {number}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Always(verdict) => verdict.fmt(f),
            Rule::Unless(clauses) => {
                f.write_str("allow")?;
                clauses.iter().try_for_each(|clause| write!(f, "; {clause}"))
            }
        }
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = if self.half == Half::High { "the high half of " } else { "" };
        write!(f, "{} if {half}argument {}", self.verdict, self.argument)?;
        if self.mask != u32::MAX {
            write!(f, " & {:#x}", self.mask)?;
        }
        f.write_str(if self.when == Match::AnyOf { " is" } else { " is not" })?;
        for (index, value) in self.values.iter().enumerate() {
            write!(f, "{}{value:#x}", if index == 0 { " " } else { " or " })?;
        }
        Ok(())
    }
}
