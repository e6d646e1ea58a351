//! How results look to people ([`terminal`]) and to programs ([`json`]).

pub(crate) mod json;
pub(crate) mod terminal;
