//! Every decision Casemate takes, as pure functions over plain data.
//!
//! The spine of an execution reads `request` → `policy::decide` → `route::choose` → `Plan::new` → `Outcome`.
//! Nothing here reads a file, a clock or the environment: what a machine can do arrives as
//! [`route::Profile`]s, what an operator wants as the text of a [`policy::Policy`]. That is what makes "never
//! weaker than asked" a property that tests can check over every input.

pub mod evidence;
pub mod image;
pub mod limits;
pub mod outcome;
pub mod plan;
pub mod policy;
pub mod request;
pub mod route;
pub mod stack;

mod words;
