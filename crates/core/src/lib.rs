//! Being written.

pub mod evidence;
