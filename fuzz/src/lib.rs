//! What each fuzz target does with its input. Nothing may panic, and what is accepted must keep its promises.

mod archive;
mod evidence;
mod frame;
mod policy;

pub use archive::archive;
pub use evidence::evidence;
pub use frame::frame;
pub use policy::policy;
