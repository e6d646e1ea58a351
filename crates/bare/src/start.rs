//! From the kernel to `main`, and what is said when it panics.
//!
//! The programs are position independent: the kernel puts them anywhere, and they put their own addresses right before anything
//! else. The C library would do that, and a lot besides.
#![allow(unsafe_code, reason = "the entry point of a program without a C library")]

use core::arch::naked_asm;
use core::fmt::Write;

use crate::call::call;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("programs without a C library exist for x86_64 only");

unsafe extern "C" {
    /// See [`crate::program`].
    safe fn casemate_main() -> i32;
}

/// Where the kernel begins.
///
/// # Safety
/// For the kernel only: the stack pointer is at the arguments, which are ignored.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "xor ebp, ebp",
        "lea rdi, [rip + __ehdr_start]",
        "lea rsi, [rip + _DYNAMIC]",
        "and rsp, -16",
        "call {begin}",
        "ud2",
        begin = sym begin,
    )
}

unsafe extern "C" fn begin(image: *const Header, dynamic: *const Dynamic) -> ! {
    // SAFETY: the linker provides both, and nothing has run yet.
    unsafe {
        relocate(image as usize, dynamic);
        protect(image);
    }
    crate::exit_now(casemate_main())
}

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

/// A relocation with everything in it.
#[repr(C)]
struct Rela {
    offset: usize,
    info: usize,
    addend: usize,
}

/// Adds the address that the program was loaded at to every address in its data.
///
/// # Safety
/// Before anything uses such an address: this function and what it calls refer to code and data only relative to
/// the instruction pointer.
#[inline(never)]
unsafe fn relocate(base: usize, mut dynamic: *const Dynamic) {
    const RELA: usize = 7;
    const RELA_SIZE: usize = 8;
    const RELR_SIZE: usize = 35;
    const RELR: usize = 36;
    const RELATIVE: usize = 8;
    let (mut rela, mut rela_size, mut relr, mut relr_size) = (0, 0, 0, 0);
    // SAFETY: the linker ends the section with a zero tag, and has written tables of the stated sizes. What they
    // point to is this program's own writable data.
    unsafe {
        while (*dynamic).tag != 0 {
            let value = (*dynamic).value;
            match (*dynamic).tag {
                RELA => rela = value,
                RELA_SIZE => rela_size = value,
                RELR => relr = value,
                RELR_SIZE => relr_size = value,
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
        let mut entry = (base + rela) as *const Rela;
        let end = (base + rela + rela_size) as *const Rela;
        while rela_size != 0 && entry < end {
            if (*entry).info & 0xffff_ffff != RELATIVE {
                core::arch::asm!("ud2", options(noreturn));
            }
            *((base + (*entry).offset) as *mut usize) = base + (*entry).addend;
            entry = entry.add(1);
        }
        // The packed form: an address, then bitmaps of which of the 63 words that follow it are addresses too.
        let mut word = (base + relr) as *const usize;
        let end = (base + relr + relr_size) as *const usize;
        let mut place: *mut usize = core::ptr::null_mut();
        while relr_size != 0 && word < end {
            if *word & 1 == 0 {
                place = (base + *word) as *mut usize;
                *place += base;
                place = place.add(1);
            } else {
                let (mut bits, mut at) = (*word >> 1, place);
                while bits != 0 {
                    if bits & 1 != 0 {
                        *at += base;
                    }
                    (bits, at) = (bits >> 1, at.add(1));
                }
                place = place.add(63);
            }
            word = word.add(1);
        }
    }
}

/// The beginning of an ELF file.
#[repr(C)]
struct Header {
    identity: [u8; 16],
    kind: [u16; 2],
    version: u32,
    entry: usize,
    segments_at: usize,
    sections_at: usize,
    flags: u32,
    size: u16,
    segment_size: u16,
    segments: u16,
}

#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: usize,
    address: usize,
    physical: usize,
    file_size: usize,
    size: usize,
    align: usize,
}

/// Makes data read-only that was writable for the sake of [`relocate`] alone.
///
/// # Safety
/// `image` is where this program was loaded.
unsafe fn protect(image: *const Header) {
    const RELRO: u32 = 0x6474_e552;
    let base = image as usize;
    // SAFETY: the header was loaded with the program and says where its segments are described.
    unsafe {
        let segments = (base + (*image).segments_at) as *const Segment;
        for index in 0..usize::from((*image).segments) {
            let segment = segments.add(index);
            if (*segment).kind == RELRO {
                let from = (base + (*segment).address) & !4095;
                let to = (base + (*segment).address + (*segment).size) & !4095;
                if to > from && call(libc::SYS_mprotect, [from, to - from, libc::PROT_READ as usize]).is_err()
                {
                    core::arch::asm!("ud2", options(noreturn));
                }
            }
        }
    }
}

/// Says where, and ends like an abort.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    struct Stderr;
    impl Write for Stderr {
        fn write_str(&mut self, words: &str) -> core::fmt::Result {
            crate::io::complain(words);
            Ok(())
        }
    }
    let _ = writeln!(Stderr, "casemate agent: {info}");
    crate::exit_now(134)
}

// The compiled `core` and `alloc` are prepared for panics that unwind. Here none does: these are referred to, never called.

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    crate::exit_now(134)
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    crate::exit_now(134)
}
