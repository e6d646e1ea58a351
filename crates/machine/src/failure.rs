//! What went wrong, and in which step.

use std::fmt;
use std::io;

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) step: String,
    pub(crate) error: io::Error,
}

impl Failure {
    pub(crate) fn at<E: Into<io::Error>>(step: impl Into<String>) -> impl FnOnce(E) -> Failure {
        move |error| Failure { step: step.into(), error: error.into() }
    }

    pub(crate) fn new(step: impl Into<String>, what: impl Into<String>) -> Failure {
        Failure { step: step.into(), error: io::Error::other(what.into()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.error)
    }
}
