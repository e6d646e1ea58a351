//! Raw system calls, for what `rustix` does not offer.
#![allow(unsafe_code, reason = "system calls that take pointers as integers")]

use rustix::io::Errno;

/// Makes the system call `number`.
///
/// # Safety
/// As for the call in question: what it is told to read or write must be there, and stay so for as long as it takes.
pub unsafe fn call<const N: usize>(number: libc::c_long, arguments: [usize; N]) -> Result<usize, Errno> {
    const { assert!(N <= 6) };
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: as the caller has promised.
    let result = unsafe { raw(number as usize, all) };
    // The kernel's errors are the last page of the address space, where nothing else can be.
    match result {
        -4095..=-1 => Err(Errno::from_raw_os_error(-result as i32)),
        _ => Ok(result as usize),
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn raw(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the instruction changes rax, rcx, r11, and what the call is for; the last is the caller's to answer for.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Elsewhere there is a C library.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn raw(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: as the caller has promised; errno belongs to this thread.
    unsafe {
        match libc::syscall(number as libc::c_long, a, b, c, d, e, f) {
            -1 => -(*libc::__errno_location() as isize),
            result => result as isize,
        }
    }
}
