//! A client and the session that it has.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use casemate_core::limits::LimitKind;
use casemate_core::outcome::Cause;
use casemate_core::request::{Invalid, LOCAL_TENANT, Request, RequestDraft};
use casemate_engine::session::Session;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::LONGEST;
use crate::app::{App, Shared};
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Sessions, Terms, as_long_as_any};

/// How long one call may take, unless whoever runs the server says less.
pub(crate) const LONGEST_CALL: Duration = Duration::from_secs(3600);
/// How long it takes unless the client says otherwise.
const USUAL_CALL: Duration = Duration::from_secs(60);
/// What a program may write. Only its head and tail are kept, so there is no need to stop it early.
const OUTPUT: u64 = 64 << 20;
/// Calls of one client that go on at the same time.
const CALLS: usize = 16;
/// Clients of one tenant that have no connection of their own and are remembered.
const VISITORS: usize = 1024;

/// What the sessions of a client are opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// A request for a session, whose limit of wall time is that of every single call.
    draft: RequestDraft,
    idle: Option<Duration>,
}

/// Somebody who calls tools. When the last of it is dropped, the session ends.
#[derive(Debug)]
pub(crate) struct Client {
    setup: Setup,
    cell: tokio::sync::Mutex<Option<Cell>>,
    calls: Semaphore,
    /// Leave to be connected, where that is counted.
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct Cell {
    session: Session,
    /// The rest of it is kept only as long as it is open, with its place among the tenant's cells.
    live: Weak<Live>,
}

/// The session that a call is about.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) live: Arc<Live>,
    /// What became of the one that the client had before.
    pub(crate) lost: Option<String>,
}

/// Clients that the protocol does not tell apart: they are known by a key that they were given.
#[derive(Debug, Default)]
pub(crate) struct Visitors(Mutex<HashMap<String, Arc<Client>>>);

impl Setup {
    /// `idle`: how long a session stays when nothing is done in it.
    pub fn new(draft: RequestDraft, idle: Option<Duration>) -> Result<Setup, Invalid> {
        match draft.limits.get(LimitKind::WallTime) {
            Some(asked) if Duration::from_millis(asked) > LONGEST_CALL => Err(Invalid::new(
                format!("calls of up to {} cannot be had", LimitKind::WallTime.format(asked)),
                format!("allow at most {}", LimitKind::WallTime.format(LONGEST_CALL.as_millis() as u64)),
            )),
            _ => Ok(Setup { draft, idle }),
        }
    }

    pub(crate) fn tenant(&self) -> &str {
        self.draft.tenant.as_deref().unwrap_or(LOCAL_TENANT)
    }

    pub(crate) fn draft(&self) -> &RequestDraft {
        &self.draft
    }

    /// How long a call takes at most, and how long if it does not say.
    pub(crate) fn timeouts(&self) -> (Duration, Duration) {
        let most = self.draft.limits.get(LimitKind::WallTime).map_or(LONGEST_CALL, Duration::from_millis);
        (most, USUAL_CALL.min(most))
    }

    /// The request for a session that lives for as long as any may: its own time is kept by whoever opened it.
    pub(crate) fn request(&self, app: &Shared) -> Result<Request, Problem> {
        let mut draft = self.draft.clone();
        let tenant = draft.tenant.clone().unwrap_or_else(|| LOCAL_TENANT.to_owned());
        draft.limits.set(LimitKind::WallTime, as_long_as_any(app, &tenant));
        if draft.limits.get(LimitKind::Output).is_none() {
            let mut wider = draft.clone();
            wider.limits.set(LimitKind::Output, OUTPUT);
            // A policy that allows less has its way.
            let wider = Request::new(wider)?;
            if app.engine.explain(&wider).is_ok() {
                return Ok(wider);
            }
        }
        Ok(Request::new(draft)?)
    }

    async fn open(&self, app: &App) -> Result<Arc<Live>, Problem> {
        let metadata = BTreeMap::from([("opened-by".to_owned(), "mcp".to_owned())]);
        Sessions::open(
            app,
            self.request(app)?,
            Terms { ttl: LONGEST, idle: self.idle, metadata, ..Terms::default() },
        )
        .await
    }
}

impl Client {
    pub(crate) fn new(setup: Setup, place: Option<OwnedSemaphorePermit>) -> Client {
        Client { setup, cell: tokio::sync::Mutex::default(), calls: Semaphore::new(CALLS), _place: place }
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Leave for one more call. A client that asks for everything at once is told so, and nothing piles up.
    pub(crate) fn call(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Problem> {
        self.calls.try_acquire().map_err(|_| {
            let detail = format!("{CALLS} calls of this client are being answered already");
            Problem::new(Code::Busy, detail, "wait until one of them has ended").later(1)
        })
    }

    /// Its session, opened if there is none.
    pub(crate) async fn place(&self, app: &App) -> Result<Place, Problem> {
        let mut cell = self.cell.lock().await;
        let lost = match &*cell {
            None => None,
            Some(Cell { session, live }) => match (session.outcome(), live.upgrade()) {
                (None, Some(live)) => {
                    live.touch();
                    return Ok(Place { live, lost: None });
                }
                (Some(executed), _) => Some(executed.outcome.status.describe()),
                (None, None) => Some("it ended".to_owned()),
            },
        };
        let live = self.setup.open(app).await?;
        *cell = Some(Cell { session: live.session.clone(), live: Arc::downgrade(&live) });
        Ok(Place { live, lost })
    }

    /// Nobody is left who could use its session.
    fn is_over(&self) -> bool {
        let open = |cell: &Cell| cell.session.outcome().is_none();
        self.cell.try_lock().is_ok_and(|cell| !cell.as_ref().is_some_and(open))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(Cell { session, .. }) = self.cell.get_mut().take() else { return };
        // Without a runtime, the engine is gone as well, and the cell with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { session.end(Cause::Cancelled).await });
        }
    }
}

impl Visitors {
    /// Whoever has this key, a new client if nobody had it yet.
    pub(crate) fn client(&self, key: &str, setup: &Setup) -> Result<Arc<Client>, Problem> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(key) {
            return Ok(client.clone());
        }
        if clients.len() >= VISITORS {
            clients.retain(|_, client| Arc::strong_count(client) > 1 || !client.is_over());
        }
        if clients.len() >= VISITORS {
            let hint = "wait until some of their sessions have ended";
            return Err(Problem::new(Code::Quota, "too many clients of this tenant have a session", hint));
        }
        let client = Arc::new(Client::new(setup.clone(), None));
        clients.insert(key.to_owned(), client.clone());
        Ok(client)
    }
}
