//! What is recorded of a session besides its programs: what was done to its files for somebody outside, each with a record of its
//! own.

use casemate_wire::guest::FileRequest;
use sha2::{Digest, Sha256};

use crate::evidence::{Content, Note};
use crate::record::Record;
use crate::recorder::StoreError;
use crate::run::Digests;

/// Files of a tree of which the record has a digest each.
const MAX_NAMED: usize = 64;

/// Something that is being done to files.
pub(super) struct Transfer {
    operation: &'static str,
    path: String,
    to: Option<String>,
}

impl Transfer {
    pub(super) fn put(path: &str) -> Transfer {
        Transfer { operation: "put", path: path.to_owned(), to: None }
    }

    pub(super) fn get(path: &str) -> Transfer {
        Transfer { operation: "get", path: path.to_owned(), to: None }
    }

    /// Nothing is changed or moved by a list or a watch.
    pub(super) fn of(request: &FileRequest) -> Option<Transfer> {
        let (operation, path, to) = match request {
            FileRequest::MakeDirectory { path } => ("make-directory", path, None),
            FileRequest::Rename { from, to } => ("rename", from, Some(to.clone())),
            FileRequest::Remove { path } => ("remove", path, None),
            FileRequest::List { .. } | FileRequest::Watch { .. } | FileRequest::Unwatch { .. } => {
                return None;
            }
        };
        Some(Transfer { operation, path: path.clone(), to })
    }

    /// The name of a file in a tree that is being read.
    pub(super) fn name_of(&self, relative: &str) -> String {
        if relative.is_empty() { self.path.clone() } else { format!("{}/{relative}", self.path) }
    }

    pub(super) fn record(
        &self,
        session: &Record,
        tenant: &str,
        moved: Option<Moved>,
        result: Result<(), &str>,
    ) -> Result<(), StoreError> {
        let moved = moved.map(Moved::end);
        let content =
            moved.as_ref().map(|(bytes, sha256, files)| Content { bytes: *bytes, sha256: *sha256, files });
        let Transfer { operation, path, to } = self;
        let note = Note::Files { tenant, operation, path, to: to.as_deref(), content, result };
        session.note(&note).map(drop)
    }
}

/// What has gone in or come out so far.
#[derive(Default)]
pub(super) struct Moved {
    bytes: u64,
    all: Sha256,
    files: Digests,
    current: Option<(String, Sha256)>,
}

impl Moved {
    /// All of one file.
    pub(super) fn whole(name: &str, bytes: u64, digest: Sha256) -> Moved {
        Moved {
            bytes,
            all: digest.clone(),
            files: Digests::default(),
            current: Some((name.to_owned(), digest)),
        }
    }

    /// The bytes that follow are those of this file.
    pub(super) fn file(&mut self, name: String) {
        self.end_file();
        if self.files.0.len() < MAX_NAMED {
            self.current = Some((name, Sha256::new()));
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.all.update(bytes);
        if let Some((_, digest)) = &mut self.current {
            digest.update(bytes);
        }
    }

    fn end_file(&mut self) {
        if let Some((name, digest)) = self.current.take() {
            self.files.add(name, digest);
        }
    }

    fn end(mut self) -> (u64, [u8; 32], Digests) {
        self.end_file();
        (self.bytes, self.all.finalize().into(), self.files)
    }
}
