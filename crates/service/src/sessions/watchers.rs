//! Changes in directories that are kept until somebody asks for them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use casemate_engine::session::Changed;
use tokio::sync::mpsc::Receiver;

use crate::problem::{Code, Problem};

/// In one session.
const MOST: usize = 32;

/// Those of one session. What nobody asks for is bounded by the receiver, which then says that changes were lost.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<HashMap<String, Watcher>>);

#[derive(Debug)]
struct Watcher {
    /// What is watched.
    path: String,
    changes: Receiver<Changed>,
}

impl Watchers {
    /// Keeps what comes from now on, and says under which name.
    pub(crate) fn keep(&self, path: String, changes: Receiver<Changed>) -> Result<String, Problem> {
        let name = crate::token::random().map_err(|error| Problem::internal(error.to_string()))?;
        let mut watchers = self.lock();
        if watchers.len() >= MOST {
            let detail = format!("there are {MOST} watchers in this session");
            return Err(Problem::new(Code::Quota, detail, "remove one of them"));
        }
        watchers.insert(name.clone(), Watcher { path, changes });
        Ok(name)
    }

    /// What has changed since somebody asked, and where.
    pub(crate) fn take(&self, name: &str) -> Result<(String, Vec<Changed>), Problem> {
        let mut watchers = self.lock();
        let watcher = watchers.get_mut(name).ok_or_else(|| Problem::not_found("watcher"))?;
        let mut changes = Vec::new();
        while let Ok(changed) = watcher.changes.try_recv() {
            changes.push(changed);
        }
        Ok((watcher.path.clone(), changes))
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), Problem> {
        self.lock().remove(name).map(drop).ok_or_else(|| Problem::not_found("watcher"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Watcher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
