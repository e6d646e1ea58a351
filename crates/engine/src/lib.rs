//! Being written.

pub mod recorder;
