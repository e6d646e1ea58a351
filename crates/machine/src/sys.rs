//! The system calls that `rustix` does not offer, each as thin as possible.
#![allow(unsafe_code, reason = "raw system calls of the machine's first process live here")]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use casemate_wire::machine::ENTROPY;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// A program in memory that nobody can write to any more.
pub(crate) fn sealed_program(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut memory = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    memory.write_all(bytes)?;
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&memory, all)?;
    Ok(memory.into())
}

/// Mixes `entropy` into the kernel's generator, and has it start anew from that at once.
pub(crate) fn add_entropy(entropy: &[u8]) -> io::Result<()> {
    /// `struct rand_pool_info` with room for one seed.
    #[repr(C)]
    struct Pool {
        bits: libc::c_int,
        size: libc::c_int,
        bytes: [u8; ENTROPY],
    }
    const ADD_ENTROPY: libc::c_ulong = 0x4008_5203;
    const RESEED: libc::c_ulong = 0x5207;
    let bytes: [u8; ENTROPY] =
        entropy.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let pool = Pool { bits: 8 * ENTROPY as libc::c_int, size: ENTROPY as libc::c_int, bytes };
    let generator = File::options().read(true).write(true).open("/dev/random")?;
    // SAFETY: the kernel reads one `rand_pool_info` whose size field covers the bytes that follow; the second call takes nothing.
    let done = unsafe {
        match libc::ioctl(generator.as_raw_fd(), ADD_ENTROPY as _, &raw const pool) {
            0 => libc::ioctl(generator.as_raw_fd(), RESEED as _),
            failed => failed,
        }
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends the machine.
pub(crate) fn power_off() -> ! {
    rustix::fs::sync();
    loop {
        // The machine that emulates this one ends when asked to restart.
        let _ = rustix::system::reboot(rustix::system::RebootCommand::Restart);
    }
}
