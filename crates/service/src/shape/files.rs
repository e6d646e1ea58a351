//! Files that come out of an execution, as part of its answer.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_engine::{Entry, Outbox};
use serde::Serialize;
use utoipa::ToSchema;

/// Of all of them together.
const MOST: usize = 16 << 20;

/// A file or directory that came out of an execution.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = File)]
pub struct FileJson {
    path: String,
    /// `file` or `directory`.
    kind: &'static str,
    /// In octal.
    mode: String,
    /// Where it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    content: Option<String>,
    /// Where it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    content_base64: Option<String>,
}

/// Where they are collected, for whoever answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collected(Arc<Mutex<Vec<Found>>>);

#[derive(Debug)]
struct Found {
    path: String,
    entry: Entry,
    content: Vec<u8>,
}

/// The cell's side of it.
pub(crate) struct Collector {
    asked: Vec<String>,
    left: usize,
    into: Collected,
}

impl Collected {
    pub(crate) fn collector(&self, asked: Vec<String>) -> Collector {
        Collector { asked, left: MOST, into: self.clone() }
    }

    pub(crate) fn take(&self) -> Vec<FileJson> {
        std::mem::take(&mut *self.lock()).into_iter().map(Found::shown).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Found>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox for Collector {
    fn entry(&mut self, index: usize, path: &str, entry: Entry) -> io::Result<()> {
        let root = self.asked.get(index).map_or("", String::as_str);
        let path = if path.is_empty() { root.to_owned() } else { format!("{root}/{path}") };
        self.into.lock().push(Found { path, entry, content: Vec::new() });
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let more = || io::Error::other(format!("more than {} MiB do not fit into an answer", MOST >> 20));
        self.left = self.left.checked_sub(bytes.len()).ok_or_else(more)?;
        if let Some(last) = self.into.lock().last_mut() {
            last.content.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Told as `denied`.
    fn skipped(&mut self, _: usize, _: &str, _: &str) {}
}

impl Found {
    fn shown(self) -> FileJson {
        let (kind, mode) = match self.entry {
            Entry::File { mode, .. } => ("file", mode),
            Entry::Directory { mode } => ("directory", mode),
        };
        let (content, content_base64) = match (kind, String::from_utf8(self.content)) {
            ("file", Ok(text)) => (Some(text), None),
            ("file", Err(error)) => (None, Some(STANDARD.encode(error.as_bytes()))),
            _ => (None, None),
        };
        FileJson { path: self.path, kind, mode: format!("{mode:o}"), content, content_base64 }
    }
}
