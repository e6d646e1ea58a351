//! What outlives the server: tokens, sessions, executions, and answers that were promised to be the same when asked again. SQLite, in
//! the home, written by one thread. The truth about what ran is in the evidence; this says whose it was and where to find it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, Row, params};
use subtle::ConstantTimeEq;
use tokio::sync::oneshot;

use crate::token::{Scope, Token};

/// In `PRAGMA user_version`. Another one is refused: nothing is guessed.
const VERSION: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    digest BLOB NOT NULL,
    tenant TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER,
    revoked INTEGER
) STRICT;
CREATE TABLE executions (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    session TEXT,
    run TEXT NOT NULL,
    created INTEGER NOT NULL,
    ended INTEGER,
    state TEXT NOT NULL,
    summary TEXT
) STRICT;
CREATE INDEX executions_of ON executions (tenant, kind, place);
CREATE TABLE answers (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    request BLOB NOT NULL,
    created INTEGER NOT NULL,
    run TEXT NOT NULL,
    answer TEXT,
    PRIMARY KEY (tenant, key)
) STRICT;
CREATE TABLE used (
    tenant TEXT NOT NULL,
    day INTEGER NOT NULL,
    cpu_millis INTEGER NOT NULL,
    PRIMARY KEY (tenant, day)
) STRICT;
";

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the state in {path} cannot be used: {source}")]
    Database { path: PathBuf, source: rusqlite::Error },
    #[error("the state in {path} was written by another version ({found}, not {VERSION})")]
    Version { path: PathBuf, found: i64 },
    #[error("no randomness: {0}")]
    Random(#[from] rustix::io::Errno),
}

impl StateError {
    pub fn hint(&self) -> &'static str {
        match self {
            StateError::Database { .. } => "is the disk full, or the file somebody else's?",
            StateError::Version { .. } => {
                "use the version of casemate that wrote it, or another CASEMATE_HOME"
            }
            StateError::Random(_) => "the kernel's generator has to be there",
        }
    }
}

/// A token as it is listed: everything but its secret, which is nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    pub id: String,
    pub tenant: String,
    pub scopes: BTreeSet<Scope>,
    /// Seconds since 1970, like the following.
    pub created: i64,
    pub expires: Option<i64>,
    pub revoked: Option<i64>,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) tenant: String,
    pub(crate) scopes: BTreeSet<Scope>,
}

/// Something that ran, or runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) place: i64,
    pub(crate) id: String,
    pub(crate) created: i64,
    pub(crate) ended: Option<i64>,
    pub(crate) state: String,
    /// As the API shows it, without its output.
    pub(crate) summary: Option<String>,
}

/// What a request with a key comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the first.
    Ours,
    /// This was the answer.
    Answered(String),
    /// The first one has none yet.
    Pending,
    /// The key belongs to another request.
    Other,
}

pub struct State {
    path: PathBuf,
    reader: Mutex<Connection>,
    writer: Option<mpsc::Sender<Write>>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// When old answers were forgotten the last time.
    forgot: AtomicI64,
}

enum Write {
    Begun {
        id: String,
        tenant: String,
        kind: &'static str,
        session: Option<String>,
        run: String,
        created: i64,
    },
    Ended {
        id: String,
        ended: i64,
        state: &'static str,
        summary: String,
    },
    Spent {
        tenant: String,
        day: i64,
        cpu_millis: u64,
    },
    /// Tell when everything before this is written.
    Flush(oneshot::Sender<()>),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("path", &self.path).finish_non_exhaustive()
    }
}

pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

impl State {
    /// Opens or makes it.
    pub fn open(home: &Path) -> Result<State, StateError> {
        let path = home.join("service.db");
        let failed = |source| StateError::Database { path: path.clone(), source };
        let connect = || -> Result<Connection, rusqlite::Error> {
            let connection = Connection::open(&path)?;
            connection.busy_timeout(std::time::Duration::from_secs(10))?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            // Survives a kill of this process; a power cut may cost the last moments, which the evidence still has.
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            Ok(connection)
        };
        let mut reader = connect().map_err(failed)?;
        restrict(&path);
        let setup =
            reader.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(failed)?;
        let found: i64 = setup.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
        match found {
            0 => {
                setup.execute_batch(SCHEMA).map_err(failed)?;
                setup.pragma_update(None, "user_version", VERSION).map_err(failed)?;
                setup.commit().map_err(failed)?;
            }
            VERSION => drop(setup),
            found => return Err(StateError::Version { path: path.clone(), found }),
        }
        let writer = connect().map_err(failed)?;
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("casemate-state".into())
            .spawn(move || write_all(writer, &receiver))
            .map_err(|error| failed(rusqlite::Error::ToSqlConversionFailure(error.into())))?;
        Ok(State {
            path,
            reader: Mutex::new(reader),
            writer: Some(sender),
            thread: Some(thread),
            forgot: AtomicI64::new(0),
        })
    }

    /// Makes a token. It is shown once, and then only its digest is left.
    pub fn create_token(
        &self,
        tenant: &str,
        scopes: &BTreeSet<Scope>,
        expires: Option<i64>,
    ) -> Result<Token, StateError> {
        let token = Token::generate()?;
        let words: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
        self.with(|connection| {
            connection.execute(
                "INSERT INTO tokens (id, digest, tenant, scopes, created, expires) VALUES (?, ?, ?, ?, ?, ?)",
                params![token.id, token.digest(), tenant, words.join(" "), now(), expires],
            )
        })?;
        Ok(token)
    }

    pub fn tokens(&self) -> Result<Vec<TokenInfo>, StateError> {
        self.with(|connection| {
            let mut found = connection.prepare_cached(
                "SELECT id, tenant, scopes, created, expires, revoked FROM tokens ORDER BY created, id",
            )?;
            found.query_map([], token_info)?.collect()
        })
    }

    /// Makes another token for the same tenant and scopes; the old one is good for `grace` more seconds. `None`: there is no such
    /// token that is good.
    pub fn rotate_token(
        &self,
        id: &str,
        expires: Option<i64>,
        grace: i64,
    ) -> Result<Option<Token>, StateError> {
        let good = |token: &TokenInfo| {
            token.id == id && token.revoked.is_none() && token.expires.is_none_or(|expires| expires > now())
        };
        let Some(old) = self.tokens()?.into_iter().find(good) else { return Ok(None) };
        // As long as the old one was good for, if nobody says how long.
        let lifetime = old.expires.map(|expires| now() + (expires - old.created));
        let token = self.create_token(&old.tenant, &old.scopes, expires.or(lifetime))?;
        let until = now() + grace;
        self.with(|connection| {
            connection.execute(
                "UPDATE tokens SET expires = min(?1, coalesce(expires, ?1)) WHERE id = ?2",
                params![until, id],
            )
        })?;
        Ok(Some(token))
    }

    /// `false`: there is no such token, or it was revoked before.
    pub fn revoke_token(&self, id: &str) -> Result<bool, StateError> {
        let changed = self.with(|connection| {
            connection
                .execute("UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL", params![now(), id])
        })?;
        Ok(changed > 0)
    }

    /// Whether anybody needs a token at all.
    pub(crate) fn has_tokens(&self) -> Result<bool, StateError> {
        self.with(|connection| {
            connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM tokens)")?.query_row([], |row| row.get(0))
        })
    }

    /// Whose token this is, if it is any good.
    pub(crate) fn authenticate(&self, token: &Token) -> Result<Option<Caller>, StateError> {
        let found = self.with(|connection| {
            connection
                .prepare_cached("SELECT digest, tenant, scopes FROM tokens WHERE id = ?1 AND revoked IS NULL AND (expires IS NULL OR expires > ?2)")?
                .query_row(params![token.id, now()], |row| {
                    Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
                })
                .optional()
        })?;
        Ok(found.and_then(|(digest, tenant, words)| {
            let same = bool::from(digest.ct_eq(&token.digest()));
            same.then(|| Caller { tenant, scopes: scopes(&words) })
        }))
    }

    /// Something runs.
    pub(crate) fn begun(&self, id: &str, tenant: &str, kind: &'static str, session: Option<&str>, run: &str) {
        self.write(Write::Begun {
            id: id.to_owned(),
            tenant: tenant.to_owned(),
            kind,
            session: session.map(str::to_owned),
            run: run.to_owned(),
            created: now(),
        });
    }

    /// Something that happened in a session, and is over.
    pub(crate) fn noted(
        &self,
        id: &str,
        tenant: &str,
        kind: &'static str,
        session: &str,
        run: &str,
        state: &'static str,
    ) {
        self.begun(id, tenant, kind, Some(session), run);
        self.ended(id, state, String::new());
    }

    /// It runs no more.
    pub(crate) fn ended(&self, id: &str, state: &'static str, summary: String) {
        self.write(Write::Ended { id: id.to_owned(), ended: now(), state, summary });
    }

    /// A tenant has used this much processor time, on this day since 1970.
    pub(crate) fn spent(&self, tenant: &str, day: i64, cpu_millis: u64) {
        self.write(Write::Spent { tenant: tenant.to_owned(), day, cpu_millis });
    }

    /// How much processor time a tenant has used on that day, in milliseconds.
    pub(crate) fn used(&self, tenant: &str, day: i64) -> Result<u64, StateError> {
        let used: Option<i64> = self.with(|connection| {
            connection
                .prepare_cached("SELECT cpu_millis FROM used WHERE tenant = ? AND day = ?")?
                .query_row(params![tenant, day], |row| row.get(0))
                .optional()
        })?;
        Ok(used.unwrap_or(0) as u64)
    }

    /// Servers that have something running, or have not answered what they were asked.
    pub(crate) fn runs(&self) -> Result<Vec<String>, StateError> {
        self.with(|connection| {
            let mut found = connection.prepare_cached(
                "SELECT run FROM executions WHERE ended IS NULL UNION SELECT run FROM answers WHERE answer IS NULL",
            )?;
            found.query_map([], |row| row.get(0))?.collect()
        })
    }

    /// What a server that is gone has left running does not run any more, and nobody will answer what it was asked.
    pub(crate) fn close_interrupted(&self, run: &str) -> Result<(), StateError> {
        self.with(|connection| {
            connection.execute(
                "UPDATE executions SET state = 'interrupted', ended = ?1 WHERE ended IS NULL AND run = ?2",
                params![now(), run],
            )?;
            connection.execute("DELETE FROM answers WHERE answer IS NULL AND run = ?", params![run])
        })
        .map(drop)
    }

    pub(crate) fn find(&self, tenant: &str, kind: &str, id: &str) -> Result<Option<Known>, StateError> {
        self.with(|connection| {
            connection
                .prepare_cached("SELECT place, id, created, ended, state, summary FROM executions WHERE id = ? AND tenant = ? AND kind = ?")?
                .query_row(params![id, tenant, kind], known)
                .optional()
        })
    }

    /// Newest first, those before `before`.
    pub(crate) fn list(
        &self,
        tenant: &str,
        kind: &str,
        before: i64,
        most: usize,
    ) -> Result<Vec<Known>, StateError> {
        self.with(|connection| {
            connection
                .prepare_cached("SELECT place, id, created, ended, state, summary FROM executions WHERE tenant = ? AND kind = ? AND place < ? ORDER BY place DESC LIMIT ?")?
                .query_map(params![tenant, kind, before, most as i64], known)?
                .collect()
        })
    }

    /// Whose an execution, session or program is, whatever it is.
    pub(crate) fn is_of(&self, tenant: &str, id: &str) -> Result<bool, StateError> {
        self.with(|connection| {
            connection
                .prepare_cached("SELECT EXISTS (SELECT 1 FROM executions WHERE id = ? AND tenant = ?)")?
                .query_row(params![id, tenant], |row| row.get(0))
        })
    }

    /// Takes a key for a request, or says what became of the one that has it.
    pub(crate) fn claim(
        &self,
        tenant: &str,
        key: &str,
        request: &[u8; 32],
        run: &str,
    ) -> Result<Claim, StateError> {
        self.forget_answers()?;
        self.with(|connection| {
            let fresh = connection
                .prepare_cached("INSERT INTO answers (tenant, key, request, created, run) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")?
                .execute(params![tenant, key, request, now(), run])?;
            if fresh > 0 {
                return Ok(Claim::Ours);
            }
            let (first, answer): (Vec<u8>, Option<String>) = connection
                .prepare_cached("SELECT request, answer FROM answers WHERE tenant = ? AND key = ?")?
                .query_row(params![tenant, key], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(match answer {
                _ if first != request => Claim::Other,
                Some(answer) => Claim::Answered(answer),
                None => Claim::Pending,
            })
        })
    }

    /// What was said to a request with a key. Without an answer, the key is free again.
    pub(crate) fn answer(&self, tenant: &str, key: &str, answer: Option<&str>) -> Result<(), StateError> {
        self.with(|connection| match answer {
            Some(answer) => connection
                .prepare_cached("UPDATE answers SET answer = ? WHERE tenant = ? AND key = ?")?
                .execute(params![answer, tenant, key]),
            None => connection
                .prepare_cached("DELETE FROM answers WHERE tenant = ? AND key = ? AND answer IS NULL")?
                .execute(params![tenant, key]),
        })
        .map(drop)
    }

    /// Forgets answers that are older than anybody would ask for, once in a while.
    fn forget_answers(&self) -> Result<(), StateError> {
        const KEPT: i64 = 24 * 3600;
        const BETWEEN: i64 = 3600;
        let (now, last) = (now(), self.forgot.load(Ordering::Relaxed));
        if now < last + BETWEEN {
            return Ok(());
        }
        self.forgot.store(now, Ordering::Relaxed);
        self.with(|connection| {
            let old = "DELETE FROM answers WHERE created < ? AND answer IS NOT NULL";
            connection.execute(old, params![now - KEPT])
        })
        .map(drop)
    }

    /// Waits until everything so far is written. What a client is told of has to be known after a crash, too.
    pub(crate) async fn flush(&self) {
        let (tell, told) = oneshot::channel();
        self.write(Write::Flush(tell));
        let _ = told.await;
    }

    fn write(&self, write: Write) {
        if let Some(writer) = &self.writer {
            // The thread ends when this does, and not before.
            let _ = writer.send(write);
        }
    }

    fn with<T>(&self, act: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StateError> {
        let connection = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        act(&connection).map_err(|source| StateError::Database { path: self.path.clone(), source })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.writer = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Only for us. SQLite makes its other files like this one.
fn restrict(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
}

/// One transaction for all that has come meanwhile.
fn write_all(mut connection: Connection, inbox: &mpsc::Receiver<Write>) {
    while let Ok(first) = inbox.recv() {
        let mut told = Vec::new();
        let mut all = vec![first];
        all.extend(inbox.try_iter());
        let written = (|| -> rusqlite::Result<()> {
            let transaction = connection.transaction()?;
            for write in all {
                match write {
                    Write::Begun { id, tenant, kind, session, run, created } => transaction
                        .prepare_cached("INSERT OR IGNORE INTO executions (id, tenant, kind, session, run, created, state) VALUES (?, ?, ?, ?, ?, ?, 'running')")?
                        .execute(params![id, tenant, kind, session, run, created])?,
                    Write::Ended { id, ended, state, summary } => transaction
                        .prepare_cached("UPDATE executions SET ended = ?, state = ?, summary = ? WHERE id = ?")?
                        .execute(params![ended, state, summary, id])?,
                    Write::Spent { tenant, day, cpu_millis } => transaction
                        .prepare_cached("INSERT INTO used (tenant, day, cpu_millis) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET cpu_millis = cpu_millis + excluded.cpu_millis")?
                        .execute(params![tenant, day, cpu_millis as i64])?,
                    Write::Flush(tell) => {
                        told.push(tell);
                        0
                    }
                };
            }
            transaction.commit()
        })();
        if let Err(error) = written {
            // The evidence has it all the same; this is what makes it quick to find.
            tracing::error!(%error, "the state could not be written");
        }
        for tell in told {
            let _ = tell.send(());
        }
    }
}

fn token_info(row: &Row<'_>) -> rusqlite::Result<TokenInfo> {
    let words: String = row.get(2)?;
    Ok(TokenInfo {
        id: row.get(0)?,
        tenant: row.get(1)?,
        scopes: scopes(&words),
        created: row.get(3)?,
        expires: row.get(4)?,
        revoked: row.get(5)?,
    })
}

/// A word that means nothing to this version allows nothing.
fn scopes(words: &str) -> BTreeSet<Scope> {
    words.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn known(row: &Row<'_>) -> rusqlite::Result<Known> {
    Ok(Known {
        place: row.get(0)?,
        id: row.get(1)?,
        created: row.get(2)?,
        ended: row.get(3)?,
        state: row.get(4)?,
        summary: row.get(5)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::default_scopes;

    fn state() -> (tempfile::TempDir, State) {
        let home = tempfile::tempdir().expect("a directory");
        let state = State::open(home.path()).expect("a state");
        (home, state)
    }

    #[test]
    fn a_token_works_until_it_is_revoked_or_expires() {
        let (home, state) = state();
        assert!(!state.has_tokens().expect("readable"));
        let token = state.create_token("acme", &default_scopes(), None).expect("a token");
        let late = state.create_token("acme", &default_scopes(), Some(now() - 1)).expect("a token");
        assert!(state.has_tokens().expect("readable"));
        let caller = state.authenticate(&token).expect("readable").expect("good");
        assert_eq!((caller.tenant.as_str(), caller.scopes), ("acme", default_scopes()));
        assert_eq!(state.authenticate(&late).expect("readable"), None);
        assert!(state.revoke_token(&token.id).expect("writable"));
        assert!(!state.revoke_token(&token.id).expect("writable"));
        assert_eq!(state.authenticate(&token).expect("readable"), None);
        // Nowhere is the secret itself.
        let secret = token.to_string();
        let (_, secret) = secret.rsplit_once('_').expect("three parts");
        for file in std::fs::read_dir(home.path()).expect("readable").flatten() {
            let bytes = std::fs::read(file.path()).expect("readable");
            assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
        }
    }

    #[test]
    fn a_guessed_secret_is_no_good() {
        let (_home, state) = state();
        let token = state.create_token("acme", &default_scopes(), None).expect("a token");
        let mut guess = Token::generate().expect("randomness");
        guess.id.clone_from(&token.id);
        assert_eq!(state.authenticate(&guess).expect("readable"), None);
    }

    #[tokio::test]
    async fn executions_belong_to_their_tenant_and_are_interrupted_with_their_server() {
        let (home, state) = state();
        state.begun("1", "a", "execution", None, "run-1");
        state.begun("2", "a", "execution", None, "run-1");
        state.ended("1", "exited", "{}".into());
        state.flush().await;
        assert_eq!(state.find("b", "execution", "1").expect("readable"), None);
        assert_eq!(state.list("a", "execution", i64::MAX, 10).expect("readable").len(), 2);
        assert_eq!(state.list("a", "execution", i64::MAX, 1).expect("readable")[0].id, "2");
        drop(state);
        let state = State::open(home.path()).expect("again");
        assert_eq!(state.runs().expect("readable"), ["run-1"]);
        // Another server of the same home is none of its business.
        state.close_interrupted("run-2").expect("writable");
        assert_eq!(state.runs().expect("readable"), ["run-1"]);
        state.close_interrupted("run-1").expect("writable");
        assert!(state.runs().expect("readable").is_empty());
        let found = |id| state.find("a", "execution", id).expect("readable").expect("there").state;
        assert_eq!((found("1").as_str(), found("2").as_str()), ("exited", "interrupted"));
    }

    #[test]
    fn a_key_has_one_answer() {
        let (_home, state) = state();
        let claim = |tenant, request| state.claim(tenant, "k", &[request; 32], "run-1").expect("writable");
        assert_eq!(claim("a", 1), Claim::Ours);
        assert_eq!(claim("a", 1), Claim::Pending);
        assert_eq!(claim("a", 2), Claim::Other);
        assert_eq!(claim("b", 2), Claim::Ours);
        state.answer("a", "k", Some("said")).expect("writable");
        assert_eq!(claim("a", 1), Claim::Answered("said".into()));
        state.answer("b", "k", None).expect("writable");
        assert_eq!(claim("b", 3), Claim::Ours);
        assert_eq!(claim("b", 4), Claim::Other);
        state.close_interrupted("run-1").expect("writable");
        assert_eq!(claim("b", 4), Claim::Ours);
        assert_eq!(claim("a", 1), Claim::Answered("said".into()));
    }

    #[test]
    fn another_version_is_left_alone() {
        let (home, state) = state();
        drop(state);
        let connection = Connection::open(home.path().join("service.db")).expect("a database");
        connection.pragma_update(None, "user_version", VERSION + 1).expect("writable");
        drop(connection);
        assert!(matches!(State::open(home.path()), Err(StateError::Version { .. })));
    }
}
