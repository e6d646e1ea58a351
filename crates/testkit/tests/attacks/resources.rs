//! later
pub(crate) const ROWS: &[crate::row::Row] = &[];
