//! Classic BPF, as the kernel runs it on `struct seccomp_data`; only the instructions that its install-time walk knows.

use libc::sock_filter;

use crate::table::Verdict;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) arch: u32,
    pub(crate) nr: u32,
    pub(crate) arguments: [u64; 6],
}

/// The verdict, and how many instructions it took. Panics on whatever the kernel would refuse to load.
pub(crate) fn run(program: &[sock_filter], call: Call) -> (Verdict, usize) {
    let mut accumulator = 0u32;
    let mut at = 0;
    for steps in 1.. {
        let sock_filter { code, jt, jf, k } = program[at];
        let branch = |taken: bool| usize::from(if taken { jt } else { jf });
        at += 1;
        match code {
            0x20 => accumulator = load(call, k),
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => at += branch(accumulator == k),
            0x25 => at += branch(accumulator > k),
            0x35 => at += branch(accumulator >= k),
            0x45 => at += branch(accumulator & k != 0),
            0x06 => return (verdict(k), steps),
            other => panic!("instruction {} has the unexpected code {other:#x}", at - 1),
        }
    }
    unreachable!("jumps only go forward")
}

fn load(call: Call, offset: u32) -> u32 {
    match offset {
        0 => call.nr,
        4 => call.arch,
        16..64 if offset.is_multiple_of(4) => {
            let argument = call.arguments[(offset as usize - 16) / 8];
            (argument >> (offset % 8 * 8)) as u32
        }
        _ => panic!("load from {offset}"),
    }
}

fn verdict(value: u32) -> Verdict {
    match value & 0xffff_0000 {
        0x7fff_0000 => Verdict::Allow,
        0x0005_0000 => Verdict::Errno((value & 0xffff) as i32),
        0x8000_0000 => Verdict::KillProcess,
        other => panic!("return of {other:#x}"),
    }
}
