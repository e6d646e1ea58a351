//! `filesystem.Filesystem`: directories of a sandbox, and what changes in them.

use std::time::Duration;

use axum::Json;
use axum::response::Response;
use casemate_engine::session::{Change, Changed, FileError, FileInfo, FileKind};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::connect::{Answer, Asked, Patience, Said, Unary, answer, failed};
use super::{Sandbox, USER, User, file};
use crate::problem::{Code, Problem};
use crate::sessions::Live;
use crate::time::rfc3339_micros;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    #[serde(default)]
    path: String,
}

/// `Stat`
pub(super) async fn stat(Sandbox(live): Sandbox, _: User, Unary(asked): Unary<Named>) -> Answer {
    Ok(Json(json!({"entry": look(&live, &file(&asked.path)?).await?})))
}

/// `MakeDir`
pub(super) async fn make_directory(Sandbox(live): Sandbox, _: User, Unary(asked): Unary<Named>) -> Answer {
    let path = file(&asked.path)?;
    match live.session.make_directory(&path).await.map_err(Problem::from)? {
        true => Ok(Json(json!({"entry": look(&live, &path).await?}))),
        false => Err(Problem::new(Code::Exists, "the directory is there already", "use it").into()),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Renaming {
    source: String,
    destination: String,
}

/// `Move`: makes what is missing above the destination.
pub(super) async fn rename(Sandbox(live): Sandbox, _: User, Unary(asked): Unary<Renaming>) -> Answer {
    let (from, to) = (file(&asked.source)?, file(&asked.destination)?);
    crate::api::files::make_parents(&live, &to).await?;
    live.session.rename(&from, &to).await.map_err(Problem::from)?;
    Ok(Json(json!({"entry": look(&live, &to).await?})))
}

/// `Remove`: what is not there need not be removed.
pub(super) async fn remove(Sandbox(live): Sandbox, _: User, Unary(asked): Unary<Named>) -> Answer {
    match live.session.remove(&file(&asked.path)?).await.map_err(Problem::from) {
        Err(problem) if problem.code != Code::NotFound => Err(problem.into()),
        _ => Ok(Json(json!({}))),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
}

/// `ListDir`
pub(super) async fn list(Sandbox(live): Sandbox, _: User, Unary(asked): Unary<Listed>) -> Answer {
    let path = file(&asked.path)?;
    let found = live.session.list(&path, asked.depth.max(1)).await.map_err(Problem::from)?;
    if found.first().is_some_and(|(_, itself)| itself.kind != FileKind::Directory) {
        return Err(
            Problem::new(Code::NotADirectory, "this is not a directory", "ask for its info instead").into()
        );
    }
    let below = found.iter().skip(1).map(|(name, info)| described(&format!("{path}/{name}"), info));
    Ok(Json(json!({"entries": below.collect::<Vec<Value>>()})))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Watched {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    include_entry: bool,
    /// There are no network mounts in a cell, so there is nothing to be allowed.
    #[serde(default, rename = "allowNetworkMounts")]
    _allow_network_mounts: bool,
}

/// `WatchDir`: changes, as they come.
pub(super) async fn watch(
    Sandbox(live): Sandbox,
    _: User,
    patience: Patience,
    Asked(asked): Asked<Watched>,
) -> Response {
    let begun = async {
        let path = file(&asked.path)?;
        let changes = live.session.watch(&path, asked.recursive).await?;
        Ok((path, changes))
    };
    let (path, changes) = match begun.await {
        Ok(begun) => begun,
        Err(problem) => return failed(problem),
    };
    let watching = Watching { live, path, changes, include_entry: asked.include_entry, over: false };
    use futures_util::StreamExt;
    let started = futures_util::stream::once(async { Said::Message(json!({"start": {}})) });
    let heartbeat = patience.heartbeat;
    answer(started.chain(futures_util::stream::unfold(watching, move |mut watching| async move {
        let said = watching.next(heartbeat).await?;
        Some((said, watching))
    })))
}

struct Watching {
    live: std::sync::Arc<Live>,
    path: String,
    changes: mpsc::Receiver<Changed>,
    include_entry: bool,
    over: bool,
}

impl Watching {
    async fn next(&mut self, heartbeat: Duration) -> Option<Said> {
        if self.over {
            return None;
        }
        let Ok(changed) = timeout(heartbeat, self.changes.recv()).await else {
            return Some(Said::Message(json!({"keepalive": {}})));
        };
        let Some(changed) = changed else {
            self.over = true;
            return Some(Said::Failed(Problem::from(FileError::Ended).into()));
        };
        match event(&self.live, &self.path, changed, self.include_entry).await {
            Ok(event) => Some(Said::Message(json!({"filesystem": event}))),
            Err(problem) => {
                self.over = true;
                Some(Said::Failed(problem.into()))
            }
        }
    }
}

/// `CreateWatcher`
pub(super) async fn create_watcher(Sandbox(live): Sandbox, _: User, Unary(asked): Unary<Watched>) -> Answer {
    let path = file(&asked.path)?;
    let changes = live.session.watch(&path, asked.recursive).await.map_err(Problem::from)?;
    let name = live.watchers.keep(path, changes)?;
    // Whoever asks for what has changed does not say again what they want to know.
    let kind = if asked.include_entry { WITH_ENTRIES } else { PLAIN };
    Ok(Json(json!({"watcherId": format!("{kind}{name}")})))
}

const WITH_ENTRIES: &str = "entries-";
const PLAIN: &str = "plain-";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Watcher {
    watcher_id: String,
}

impl Watcher {
    fn name(&self) -> (&str, bool) {
        match self.watcher_id.strip_prefix(WITH_ENTRIES) {
            Some(name) => (name, true),
            None => (self.watcher_id.strip_prefix(PLAIN).unwrap_or_default(), false),
        }
    }
}

/// `GetWatcherEvents`: since the last time.
pub(super) async fn watcher_events(Sandbox(live): Sandbox, _: User, Unary(asked): Unary<Watcher>) -> Answer {
    let (name, include_entry) = asked.name();
    let (path, changes) = live.watchers.take(name)?;
    let mut events = Vec::with_capacity(changes.len());
    for changed in changes {
        events.push(event(&live, &path, changed, include_entry).await?);
    }
    Ok(Json(json!({"events": events})))
}

/// `RemoveWatcher`
pub(super) async fn remove_watcher(Sandbox(live): Sandbox, _: User, Unary(asked): Unary<Watcher>) -> Answer {
    live.watchers.remove(asked.name().0)?;
    Ok(Json(json!({})))
}

async fn event(
    live: &Live,
    directory: &str,
    changed: Changed,
    include_entry: bool,
) -> Result<Value, Problem> {
    let Changed::Entry { path, change } = changed else {
        let hint = "look at the directory itself, then watch it again";
        return Err(Problem::new(Code::TooLarge, "more has changed than could be told", hint));
    };
    let kind = match change {
        Change::Created => "EVENT_TYPE_CREATE",
        Change::Written => "EVENT_TYPE_WRITE",
        Change::Removed => "EVENT_TYPE_REMOVE",
        Change::Renamed => "EVENT_TYPE_RENAME",
        Change::Attributes => "EVENT_TYPE_CHMOD",
    };
    let mut event = json!({"name": path, "type": kind});
    // It may be gone again.
    if include_entry && let Ok(entry) = look(live, &format!("{directory}/{path}")).await {
        event["entry"] = entry;
    }
    Ok(event)
}

async fn look(live: &Live, path: &str) -> Result<Value, Problem> {
    let found = live.session.list(path, 0).await?;
    let (_, info) = found.first().ok_or(FileError::Ended)?;
    Ok(described(path, info))
}

fn described(path: &str, info: &FileInfo) -> Value {
    let kind = match info.kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Link => "FILE_TYPE_SYMLINK",
        FileKind::Other => "FILE_TYPE_UNSPECIFIED",
    };
    json!({
        "name": path.rsplit('/').next().unwrap_or_default(),
        "type": kind,
        "path": path,
        "size": info.size.to_string(),
        "mode": info.mode & 0o7777,
        "permissions": permissions(info.mode),
        "owner": USER,
        "group": USER,
        "modifiedTime": rfc3339_micros(info.modified_micros),
        "isSymlink": info.kind == FileKind::Link,
    })
}

/// As `ls` shows them.
fn permissions(mode: u32) -> String {
    (0..9).map(|bit| if mode & (0o400 >> bit) == 0 { '-' } else { ['r', 'w', 'x'][bit % 3] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_like_those_of_ls() {
        assert_eq!(permissions(0o644), "rw-r--r--");
        assert_eq!(permissions(0o100_751), "rwxr-x--x");
    }
}
