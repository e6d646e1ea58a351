//! The JSON of the API.

pub(crate) mod files;
pub mod outcome;
pub(crate) mod request;
