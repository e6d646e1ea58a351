//! Memory for a program with one thread: an allocator, and the functions that compilers expect to find.
#![allow(unsafe_code, reason = "an allocator hands out raw memory")]

use core::alloc::{GlobalAlloc, Layout};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::ptr::null_mut;

use crate::call::call;

#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap = Heap::new();

/// Blocks of 16 bytes to 32 KiB, by powers of two, which are kept for their like once they are free. What is larger, or has to
/// be aligned in a special way, is mapped by itself.
struct Heap(UnsafeCell<State>);

struct State {
    /// The first free block of each class; it holds the address of the next one.
    free: [*mut u8; CLASSES],
    /// What has not been handed out yet of the last chunk.
    next: usize,
    end: usize,
}

const SMALLEST: usize = 16;
const CLASSES: usize = 12;
const LARGEST: usize = SMALLEST << (CLASSES - 1);
const CHUNK: usize = 128 << 10;
const PAGE: usize = 4096;

impl Heap {
    const fn new() -> Heap {
        Heap(UnsafeCell::new(State { free: [null_mut(); CLASSES], next: 0, end: 0 }))
    }
}

// SAFETY: these programs have one thread, and no signal handler that allocates, or any at all.
unsafe impl Sync for Heap {}

/// The class of blocks that fit, if there is one.
fn class(layout: Layout) -> Option<usize> {
    if layout.size() > LARGEST || layout.align() > SMALLEST {
        return None;
    }
    let size = layout.size().max(SMALLEST).next_power_of_two();
    Some((size / SMALLEST).trailing_zeros() as usize)
}

fn pages(size: usize) -> usize {
    size.next_multiple_of(PAGE)
}

fn map(size: usize) -> *mut u8 {
    let (protection, flags) =
        ((libc::PROT_READ | libc::PROT_WRITE) as usize, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize);
    // SAFETY: a new mapping touches no memory that there was.
    match unsafe { call(libc::SYS_mmap, [0, size, protection, flags, usize::MAX, 0]) } {
        Ok(address) => address as *mut u8,
        Err(_) => null_mut(),
    }
}

// SAFETY: a block is in no free list while it is handed out, and blocks of one class have the size of that class, so what is
// returned is big enough and nobody else's. Chunks begin at a page, and every block is a multiple of `SMALLEST`.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else {
            return if layout.align() > PAGE { null_mut() } else { map(pages(layout.size())) };
        };
        // SAFETY: one thread, and this function does not call itself.
        let state = unsafe { &mut *self.0.get() };
        let first = state.free[class];
        if !first.is_null() {
            // SAFETY: a free block holds the address of the next one.
            state.free[class] = unsafe { *first.cast() };
            return first;
        }
        let size = SMALLEST << class;
        if state.end - state.next < size {
            // What is left of the last chunk is less than this, and is given up.
            let chunk = map(CHUNK);
            if chunk.is_null() {
                return chunk;
            }
            (state.next, state.end) = (chunk as usize, chunk as usize + CHUNK);
        }
        state.next += size;
        (state.next - size) as *mut u8
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for this function.
        let block = unsafe { self.alloc(layout) };
        // What was just mapped is zero.
        if !block.is_null() && class(layout).is_some() {
            // SAFETY: a block of at least this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(layout) {
            Some(class) => {
                // SAFETY: one thread; the block is ours again, and large enough for an address.
                unsafe {
                    let state = &mut *self.0.get();
                    *block.cast() = state.free[class];
                    state.free[class] = block;
                }
            }
            None => {
                // SAFETY: mapped by `alloc` with this size, and not used any more.
                let _ = unsafe { call(libc::SYS_munmap, [block as usize, pages(layout.size())]) };
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the new size makes a valid layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class(layout), class(wanted)) {
            (Some(now), Some(then)) if now == then => block,
            (None, None) if pages(layout.size()) == pages(size) => block,
            _ => {
                // SAFETY: both blocks are at least as large as what is copied, and different.
                unsafe {
                    let moved = self.alloc(wanted);
                    if !moved.is_null() {
                        moved.copy_from_nonoverlapping(block, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

// What the compiler calls for copies, fills and comparisons. None of them may be written as a loop that it would
// recognise as itself. The string instructions are fast on every processor of the last ten years.

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller owns both ranges, and they do not overlap.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack, preserves_flags));
    }
    to
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // Forwards, unless that would overwrite what is still to be read.
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: as for this function; what is overwritten has been read before.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller owns both ranges; they are not empty here.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") count => _, inout("rdi") to.add(count - 1) => _,
             inout("rsi") from.add(count - 1) => _, options(nostack));
    }
    to
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller owns the range.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8,
             options(nostack, preserves_flags));
    }
    to
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    let mut at = 0;
    while at < count {
        // SAFETY: within both ranges. Volatile, or this loop would become a call of itself.
        let (l, r) = unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
        if l != r {
            return i32::from(l) - i32::from(r);
        }
        at += 1;
    }
    0
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: as for this function.
    unsafe { memcmp(left, right, count) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller's text ends with a zero. Volatile, or this loop would become a call of itself.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// A block with a pattern of its own in every byte.
    struct Block {
        at: *mut u8,
        layout: Layout,
        pattern: u8,
    }

    impl Block {
        fn fill(&self) {
            // SAFETY: handed out with this size.
            unsafe { self.at.write_bytes(self.pattern, self.layout.size()) };
        }

        fn check(&self, bytes: usize) {
            // SAFETY: handed out with at least this size, and filled.
            let found = unsafe { core::slice::from_raw_parts(self.at, bytes) };
            assert!(found.iter().all(|&byte| byte == self.pattern), "{:?} was overwritten", self.layout);
        }
    }

    /// Numbers that look random and are the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % end
        }
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a layout")
    }

    #[test]
    fn no_block_is_anybody_elses() {
        let heap = Heap::new();
        let mut numbers = Numbers(7);
        let mut blocks: Vec<Block> = Vec::new();
        for round in 0..20_000 {
            match numbers.below(3) {
                0 if !blocks.is_empty() => {
                    let block = blocks.swap_remove(numbers.below(blocks.len()));
                    block.check(block.layout.size());
                    // SAFETY: allocated here with this layout.
                    unsafe { heap.dealloc(block.at, block.layout) };
                }
                1 if !blocks.is_empty() => {
                    let at = numbers.below(blocks.len());
                    let (size, block) = (1 + numbers.below(70_000), &mut blocks[at]);
                    let kept = size.min(block.layout.size());
                    // SAFETY: allocated here with this layout; the new size is not zero.
                    block.at = unsafe { heap.realloc(block.at, block.layout, size) };
                    block.check(kept);
                    block.layout = layout(size, block.layout.align());
                    block.fill();
                }
                _ => {
                    let most = 1 << (1 + numbers.below(17));
                    let layout = layout(1 + numbers.below(most), 1 << numbers.below(9));
                    // SAFETY: the size is not zero.
                    let at = unsafe { heap.alloc_zeroed(layout) };
                    assert!(
                        !at.is_null() && (at as usize).is_multiple_of(layout.align()),
                        "{layout:?} at {at:?}"
                    );
                    Block { at, layout, pattern: 0 }.check(layout.size());
                    let block = Block { at, layout, pattern: round as u8 | 1 };
                    block.fill();
                    blocks.push(block);
                }
            }
        }
        assert!(blocks.len() > 100, "the test has tried something");
        blocks.iter().for_each(|block| block.check(block.layout.size()));
    }

    #[test]
    fn a_freed_block_is_used_again() {
        let heap = Heap::new();
        // SAFETY: allocated and freed with one layout.
        unsafe {
            let first = heap.alloc(layout(100, 8));
            heap.dealloc(first, layout(100, 8));
            assert_eq!(heap.alloc(layout(128, 8)), first);
        }
    }

    #[test]
    fn copies_fills_and_comparisons_are_right() {
        let mut numbers = Numbers(3);
        for _ in 0..2_000 {
            let source: Vec<u8> = (0..200).map(|_| numbers.below(4) as u8).collect();
            let (from, to, count) = (numbers.below(100), numbers.below(100), numbers.below(100));
            let (mut ours, mut theirs) = (source.clone(), source.clone());
            theirs.copy_within(from..from + count, to);
            // SAFETY: both ranges are within the vector.
            unsafe { memmove(ours.as_mut_ptr().add(to), ours.as_ptr().add(from), count) };
            assert_eq!(ours, theirs, "moving {count} from {from} to {to}");
            // SAFETY: both ranges are within their vectors.
            let order = unsafe { memcmp(ours.as_ptr().add(from), source.as_ptr().add(to), count) };
            assert_eq!(order.cmp(&0), ours[from..from + count].cmp(&source[to..to + count]));
            // SAFETY: within the vector.
            unsafe { memset(ours.as_mut_ptr().add(to), 9, count) };
            theirs[to..to + count].fill(9);
            assert_eq!(ours, theirs);
        }
        // SAFETY: a literal with a zero at its end.
        assert_eq!(unsafe { strlen(c"seven 7".as_ptr().cast()) }, 7);
    }
}
