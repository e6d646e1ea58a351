//! The JSON of the API.

pub(crate) mod code;
pub(crate) mod event;
pub(crate) mod files;
pub(crate) mod kept;
pub(crate) mod listed;
pub(crate) mod object;
pub mod outcome;
pub(crate) mod request;
pub(crate) mod words;
