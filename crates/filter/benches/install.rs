//! What a filter costs: installing it, and every call after that. `cargo bench -p casemate-filter`
//!
//! seccompiler's chain of comparisons is the yardstick.

#![allow(unsafe_code, reason = "installs filters in children and makes raw system calls")]

#[path = "../tests/child/mod.rs"]
mod child;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use casemate_filter::{Program, program};
use child::{CELL, PROCESS, install};
use seccompiler::{SeccompAction, SeccompFilter};

const ROUNDS: usize = 300;

fn main() {
    let single = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }];
    let other = seccompiler_like();
    let candidates: [(&str, Vec<&[libc::sock_filter]>); 7] = [
        ("none", vec![]),
        ("a single return", vec![&single]),
        ("guest", vec![program(Program::Guest)]),
        ("payload (cell)", vec![program(CELL)]),
        ("payload (process)", vec![program(PROCESS)]),
        ("guest + payload", vec![program(Program::Guest), program(CELL)]),
        ("seccompiler", vec![&other]),
    ];
    let mut samples = vec![Vec::new(); candidates.len()];
    for _ in 0..ROUNDS {
        // Interleaved, as the machine's speed drifts.
        for ((_, filters), samples) in candidates.iter().zip(&mut samples) {
            samples.push(in_child(|| measure(filters)));
        }
    }
    println!("{:20} {:>12} {:>10} {:>10} {:>10}", "", "instructions", "install", "getppid", "ioctl");
    for ((name, filters), samples) in candidates.iter().zip(&samples) {
        let median = |field: usize| {
            let mut values: Vec<u64> = samples.iter().map(|sample| sample[field]).collect();
            values.sort_unstable();
            Duration::from_nanos(values[values.len() / 2])
        };
        let length: usize = filters.iter().map(|filter| filter.len()).sum();
        println!("{name:20} {length:>12} {:>10.1?} {:>10.1?} {:>10.1?}", median(0), median(1), median(2));
    }
}

/// Nanoseconds: for the installation, and for one call that is always allowed and one whose arguments are checked.
fn measure(filters: &[&[libc::sock_filter]]) -> [u64; 3] {
    let start = Instant::now();
    if install(filters).is_err() {
        return [u64::MAX; 3];
    }
    let installed = start.elapsed();
    let per_call = |number, arguments| {
        let start = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(child::errno_of(number, arguments));
        }
        start.elapsed().as_nanos() as u64 / 1000
    };
    let getppid = per_call(libc::SYS_getppid, [0; 6]);
    [installed.as_nanos() as u64, getppid, per_call(libc::SYS_ioctl, [u64::MAX, 0x5413, 0, 0, 0, 0])]
}

/// As many allowed calls as ours has, and no argument checks.
fn seccompiler_like() -> Vec<libc::sock_filter> {
    let allowed = (0..300).map(|number| (number, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().expect("an architecture that seccompiler knows");
    let filter =
        SeccompFilter::new(allowed, SeccompAction::Errno(38), SeccompAction::Allow, arch).expect("a filter");
    let code: seccompiler::BpfProgram = filter.try_into().expect("a program");
    code.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect()
}

/// Runs `measure` in a forked child, which cannot get rid of its filters, and brings the figures back.
fn in_child(measure: impl FnOnce() -> [u64; 3]) -> [u64; 3] {
    let (mut receiver, mut sender) = std::io::pipe().expect("a pipe");
    // SAFETY: there is one thread, so the child may do anything; it leaves through _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let bytes: Vec<u8> = measure().into_iter().flat_map(u64::to_ne_bytes).collect();
        let sent = sender.write_all(&bytes).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!sent)) };
    }
    let mut bytes = [[0u8; 8]; 3];
    receiver.read_exact(bytes.as_flattened_mut()).expect("figures from the child");
    // SAFETY: reaps our own child; the status is not wanted.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    bytes.map(u64::from_ne_bytes)
}
