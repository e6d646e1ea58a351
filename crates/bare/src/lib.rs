//! What the launcher and the guest stand on instead of the standard library.
//!
//! Both are copied into memory and started by every `casemate run`, and everything in them is trusted with
//! privileges. With a C library and `std` they took ten times the space, most of it code for locales, name services and stack
//! traces, and twice as long to start (much of that CPUID instructions, each of which is an exit to the hypervisor on a
//! virtual machine). They have one thread, no locale and no arguments, so they need very little:
//!
//! - [`call`]: system calls. [`io`]: their errors, reading and writing. [`files`]: small files. [`process`]: signals, filters and
//!   the like. [`Moment`]: time.
//! - with the feature `program`: the way from the kernel to `main`, an allocator, and what is said when it panics.
//!
//! Without that feature the same code runs on top of the standard library: in tests, and in the builds that leave layers
//! out for the negative controls.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod call;
pub mod files;
pub mod io;
#[cfg(any(feature = "program", test))]
#[cfg_attr(
    test,
    allow(dead_code, reason = "tests have the standard library's memory, and try this one beside it")
)]
mod memory;
mod moment;
pub mod process;
#[cfg(feature = "program")]
mod start;

pub use moment::Moment;

/// Makes a function without arguments, which returns the exit code, the one that the program starts with.
#[macro_export]
macro_rules! program {
    ($main:path) => {
        #[allow(
            unsafe_code,
            reason = "the symbol is called by the entry point of `casemate-bare`, and defined only here"
        )]
        #[unsafe(no_mangle)]
        extern "C" fn casemate_main() -> i32 {
            $main()
        }
    };
}

/// Ends this process at once.
pub fn exit_now(code: i32) -> ! {
    loop {
        // SAFETY: takes an integer and does not return.
        #[allow(unsafe_code, reason = "a call that touches no memory")]
        let _ = unsafe { call::call(libc::SYS_exit_group, [code as usize]) };
    }
}
