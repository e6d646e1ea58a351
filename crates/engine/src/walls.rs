//! The walls. Each starts guests behind something; the spine does the rest.

pub(crate) mod container;
mod native;
pub(crate) mod process;
pub(crate) mod wasm;
