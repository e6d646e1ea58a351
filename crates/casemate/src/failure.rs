//! What stopped a command, and what the caller can do about it.

use std::error::Error;
use std::fmt::Display;
use std::io;

use casemate_core::outcome::Refusal;
use casemate_core::request::Invalid;
use casemate_engine::OpenError;
use casemate_engine::images::ImageError;
use casemate_engine::recorder::StoreError;

#[derive(Debug)]
pub(crate) enum Failure {
    /// Shown as `error: …` and `hint: …`.
    Told { message: String, hint: Option<String> },
    /// Whoever read our output has seen enough.
    BrokenPipe,
    /// Somebody wants us to stop, and has been obeyed.
    Interrupted,
}

impl Failure {
    pub(crate) fn new(message: impl Display, hint: impl Into<String>) -> Failure {
        Failure::Told { message: message.to_string(), hint: Some(hint.into()) }
    }

    fn chain(error: &dyn Error, hint: Option<String>) -> Failure {
        let mut message = without_number(&error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(&format!(": {}", without_number(&cause.to_string())));
            source = cause.source();
        }
        Failure::Told { message, hint }
    }
}

/// What the system says about an error, without its number.
pub(crate) fn os_words(error: impl Into<io::Error>) -> String {
    without_number(&error.into().to_string())
}

fn without_number(words: &str) -> String {
    words.rsplit_once(" (os error ").map_or(words, |(words, _)| words).to_owned()
}

impl From<Refusal> for Failure {
    fn from(Refusal { reason, hint }: Refusal) -> Failure {
        Failure::Told { message: reason, hint: Some(hint).filter(|hint| !hint.is_empty()) }
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Failure {
        Refusal::from(invalid).into()
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::chain(&error, error.hint())
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Failure {
        Failure::chain(&error, Some(error.hint()))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        match error {
            StoreError::Export(cause) => cause.into(),
            other => Failure::chain(&other, other.hint()),
        }
    }
}

/// Errors of our own standard output; every other kind of I/O names its file first.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
            _ => {
                Failure::Told { message: format!("cannot write the output: {}", os_words(error)), hint: None }
            }
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        io::Error::from(error).into()
    }
}
