//! Where this program lies: nowhere.
//!
//! It is executed by descriptor. A statically linked C library still asks the kernel for its path when it starts, and gives up
//! (`assert`) if the answer does not begin with a slash; gVisor's is `host:[7]`. Nothing here uses the path, so nobody is asked.
#![allow(unsafe_code, reason = "takes the place of a function of the C library")]

/// The C library's, with the answer that it has for a path that is not known.
#[unsafe(no_mangle)]
extern "C" fn _dl_get_origin() -> *const core::ffi::c_char {
    core::ptr::without_provenance(usize::MAX)
}
