//! The seccomp filters that guest and payload live under, as BPF programs ready for `seccomp(2)`.
//!
//! - `syscalls` is the policy: every system call that is known here, by name, and what happens to it.
//! - `table` says what a rule means; [`Rule::verdict`] is its plain reading.
//! - `assemble` turns the policy into BPF: a binary search over the numbers, argument checks at its leaves.
//!
//! **One program, several verdicts.** A refused call must look the way programs expect it to: `ENOSYS` makes libc fall
//! back from clone3 to clone, `EPERM` stops `unshare`, a foreign ABI is a kill. `seccompiler` has one match action per
//! filter, so this would be a stack of filters, each paid for at every install and at every call. Hence the assembler.
//!
//! **Built for the kernel's shortcut.** At install the kernel walks the program once for every number; a call that is
//! allowed whatever its arguments goes into a bitmap and never runs the filter again. That walk understands only
//! loads of `nr` and `arch`, `AND`, jumps and returns, so nothing else comes before an argument check, and
//! the search keeps each walk short.
//!
//! **Numbers are compared by their low halves, pointers by both.** To the kernel a checked number is an `int` or a 32-bit
//! flag word, and it drops the high half: a filter that looked at all 64 bits could be passed by setting one of them. But
//! whether a pointer is null takes both: a mapping at 4 GiB has a low half of zero.
//!
//! **Assembled when this is compiled.** The programs are constants of the binary: to assemble them at each start took
//! longer than to install them.
//!
//! Nothing here does I/O: the caller installs the program, with `no_new_privs` set.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

#[cfg(test)]
mod assemble;
mod program;
mod syscalls;
mod table;

#[cfg(test)]
mod checks;
#[cfg(test)]
mod interpret;
#[cfg(test)]
mod numbers;

use alloc::string::{String, ToString};
use alloc::vec::Vec;

pub use program::{Ids, Network, Program, Ptrace};
pub use table::{Clause, Half, Match, Rule, Verdict};

use table::Arch;

// By `build.rs`: one constant per program, and `fn assembled(Program) -> &'static [sock_filter]`.
include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// The filter for the machine this was compiled for.
pub fn program(program: Program) -> &'static [libc::sock_filter] {
    assembled(program)
}

/// The bytes to hash when a receipt names the filter: eight per instruction, little-endian, in order.
pub fn digest_input(program: &[libc::sock_filter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for instruction in program {
        bytes.extend(instruction.code.to_le_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_le_bytes());
    }
    bytes
}

/// The rule for every named call; whatever is not named here gets [`Verdict::ABSENT`].
pub fn rules(program: Program) -> impl Iterator<Item = (&'static str, Rule)> {
    table::rows(Arch::NATIVE, program).map(|(name, _, rule)| (name, rule))
}

/// The same in words, for documentation.
pub fn verdicts(program: Program) -> impl Iterator<Item = (&'static str, String)> {
    rules(program).map(|(name, rule)| (name, rule.to_string()))
}
