//! Sessions that somebody opened over HTTP: whose they are, when their time is over, and which programs run in them.

mod log;
mod watchers;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use casemate_core::limits::LimitKind;
use casemate_core::outcome::Cause;
use casemate_core::request::Request;
use casemate_engine::Executed;
use casemate_engine::session::{Process, ProcessControl, Session, SessionExec};
use tokio::sync::watch;

use crate::app::{App, Shared};
use crate::executions::note;
use crate::interpreter::{self, Contexts};
use crate::problem::{Code, Problem};
use crate::quota::{self, Admitted};
use crate::store::now;
use crate::volumes::Attached;
pub(crate) use log::{Log, Reading, Said};
pub(crate) use watchers::Watchers;

/// Programs of a session that have ended and can still be asked about.
const REMEMBERED: usize = 32;
/// A program's name for those who started it.
const MAX_TAG: usize = 256;
/// How long a volume may take to be kept.
const SAVING: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<String, Arc<Live>>>);

/// A session that is open.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) session: Session,
    pub(crate) tenant: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub(crate) created: i64,
    began: Instant,
    /// When its time is over.
    end: watch::Sender<Instant>,
    idle: Option<Duration>,
    /// Milliseconds from `began` to when somebody last wanted something of it.
    used: AtomicU64,
    paused: AtomicBool,
    processes: Mutex<BTreeMap<u32, Arc<Running>>>,
    volumes: Vec<Attached>,
    pub(crate) contexts: Contexts,
    pub(crate) watchers: Watchers,
    /// What its programs are in, by name; `host` for the host's own.
    pub(crate) image: String,
    /// Whoever shows this may use the session, without being its tenant.
    key: String,
}

/// A program in a session, until it is forgotten.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) id: String,
    pub(crate) pid: u32,
    pub(crate) tag: Option<String>,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) terminal: bool,
    pub(crate) control: ProcessControl,
    pub(crate) log: Log,
}

/// What a program has written, for as long as somebody reads it.
#[derive(Debug)]
pub(crate) struct LogOf(pub(crate) Arc<Running>);

impl std::ops::Deref for LogOf {
    type Target = Log;
    fn deref(&self) -> &Log {
        &self.0.log
    }
}

/// What a new session is given besides its request.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) volumes: Vec<Attached>,
}

/// What a program of a session is started with.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) exec: SessionExec,
    pub(crate) tag: Option<String>,
}

/// A session is asked to live for as long as any of its tenant's may: its own time is kept here, because it
/// can be extended.
pub(crate) fn as_long_as_any(app: &Shared, tenant: &str) -> u64 {
    app.engine.cap(tenant, LimitKind::WallTime)
}

impl Sessions {
    /// A foreign one is none.
    pub(crate) fn find(&self, tenant: &str, id: &str) -> Result<Arc<Live>, Problem> {
        let found = self.lock().get(id).filter(|live| live.tenant == tenant).cloned();
        let found = found.ok_or_else(|| Problem::not_found("session"))?;
        found.touch();
        Ok(found)
    }

    /// For whoever knows no tenant, but the session's key.
    pub(crate) fn find_by_key(&self, id: &str, key: &str) -> Result<Arc<Live>, Problem> {
        use subtle::ConstantTimeEq;
        let found = self.lock().get(id).filter(|live| live.session.outcome().is_none()).cloned();
        let found = found.ok_or_else(|| Problem::not_found("session"))?;
        if !bool::from(found.key.as_bytes().ct_eq(key.as_bytes())) {
            let hint = "send what the session's creator was given";
            return Err(Problem::new(Code::Unauthenticated, "this is not the key of the session", hint));
        }
        found.touch();
        Ok(found)
    }

    /// Those of one tenant, or all, oldest first.
    pub(crate) fn list(&self, tenant: Option<&str>) -> Vec<Arc<Live>> {
        let sessions = self.lock();
        let of = |live: &&Arc<Live>| tenant.is_none_or(|tenant| live.tenant == tenant);
        let mut found: Vec<Arc<Live>> = sessions.values().filter(of).cloned().collect();
        found.sort_by(|a, b| (a.began, a.session.id()).cmp(&(b.began, b.session.id())));
        found
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Opens one. It counts as a cell of its tenant for as long as it lives.
    pub(crate) async fn open(app: &App, request: Request, terms: Terms) -> Result<Arc<Live>, Problem> {
        let (tenant, image) = (request.tenant().to_owned(), request.image().label().into_owned());
        let key = crate::token::random().map_err(|error| Problem::internal(error.to_string()))?;
        let (request, admitted) = quota::admit(app, request).await?;
        let session = app.engine.open_session(request).await.map_err(|executed| not_begun(app, &executed))?;
        crate::metrics::Metrics::add(&app.metrics.sessions, 1);
        let id = session.id().to_owned();
        app.state.begun(&id, &tenant, "session", None, app.engine.run_id());
        let began = Instant::now();
        let (end, ends) = watch::channel(began + terms.ttl);
        let live = Arc::new(Live {
            session,
            tenant,
            metadata: terms.metadata,
            created: now(),
            began,
            end,
            idle: terms.idle,
            used: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            processes: Mutex::default(),
            volumes: terms.volumes,
            contexts: Contexts::default(),
            watchers: Watchers::default(),
            image,
            key,
        });
        app.sessions.lock().insert(id, live.clone());
        // From here on somebody sees to its end, whatever becomes of this request.
        tokio::spawn(look_after(app.clone(), live.clone(), admitted, ends));
        for volume in &live.volumes {
            if let Err(problem) = volume.fill(app, &live).await {
                live.session.end(Cause::Cancelled).await;
                return Err(problem);
            }
        }
        app.state.flush().await;
        Ok(live)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Live>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until it is over, for whatever reason.
async fn look_after(app: App, live: Arc<Live>, admitted: Admitted, mut ends: watch::Receiver<Instant>) {
    let executed = loop {
        let end = *ends.borrow_and_update();
        let idle_end = live.idle.map_or(end, |idle| live.last_used() + idle);
        tokio::select! {
            ended = live.session.ended() => break ended,
            changed = ends.changed() => if changed.is_err() { break live.session.end(Cause::Cancelled).await },
            () = tokio::time::sleep_until(end.min(idle_end).into()) => {
                let idle = live.idle.is_some_and(|idle| live.last_used() + idle <= Instant::now() && !live.is_busy());
                // A program that runs is use, too.
                if live.is_busy() {
                    live.touch();
                }
                if *ends.borrow() <= Instant::now() || idle {
                    live.save_or_tell(&app).await;
                    break live.session.end(Cause::WallTime).await;
                }
            }
        }
    };
    app.sessions.lock().remove(live.session.id());
    live.volumes.iter().for_each(Attached::release);
    admitted.end(executed.as_ref().and_then(|executed| executed.outcome.usage.cpu));
    if let Some(executed) = executed {
        note(&app, live.session.id(), &executed);
    }
}

impl Live {
    pub(crate) fn touch(&self) {
        self.used.fetch_max(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn last_used(&self) -> Instant {
        self.began + Duration::from_millis(self.used.load(Ordering::Relaxed))
    }

    fn is_busy(&self) -> bool {
        let is_interpreter = |process: &Running| process.tag.as_deref() == Some(interpreter::TAG);
        let runs = |process: &Arc<Running>| !process.log.is_over() && !is_interpreter(process);
        self.lock().values().any(runs) || self.contexts.are_busy()
    }

    /// From now on.
    pub(crate) fn extend(&self, ttl: Duration) {
        self.end.send_replace(Instant::now() + ttl);
    }

    /// Seconds since 1970.
    pub(crate) fn expires(&self) -> i64 {
        now() + self.end.borrow().saturating_duration_since(Instant::now()).as_secs() as i64
    }

    /// Keeps what its volumes are now, and ends it. If one cannot be kept, it goes on.
    pub(crate) async fn close(self: &Arc<Live>, app: &App) -> Result<Arc<Executed>, Problem> {
        for volume in self.volumes.iter().filter(|volume| volume.is_kept()) {
            self.save(app, &volume.name).await?;
        }
        let ended = self.session.end(Cause::Cancelled).await;
        self.volumes.iter().for_each(Attached::release);
        let ended = ended.ok_or_else(|| Problem::internal("what became of the session is not known"))?;
        // Whoever looks after it says so, too, but may come to that later than the answer.
        note(app, self.session.id(), &ended);
        app.state.flush().await;
        Ok(ended)
    }

    /// For a session whose end does not wait for anybody.
    pub(crate) async fn save_or_tell(self: &Arc<Live>, app: &App) {
        for volume in self.volumes.iter().filter(|volume| volume.is_kept()) {
            if let Err(problem) = self.save(app, &volume.name).await {
                let (session, volume, reason) = (self.session.id(), &volume.name, &problem.detail);
                tracing::error!(session, volume, reason, "the volume is as it was saved before");
            }
        }
    }

    /// Keeps what one of its volumes is now, and returns how many bytes that takes.
    pub(crate) async fn save(self: &Arc<Live>, app: &App, name: &str) -> Result<u64, Problem> {
        let volume = self.volumes.iter().find(|volume| volume.name == name);
        let volume = volume.ok_or_else(|| Problem::not_found("volume"))?;
        let most = app.quotas.of(&self.tenant).disk.unwrap_or(u64::MAX);
        let saving = volume.save(&app.volumes, self, most);
        let saved = tokio::time::timeout(SAVING, saving).await;
        saved.unwrap_or_else(|_| Err(Problem::internal("the volume could not be read in time")))
    }

    /// For its tenant, and whoever they give it to.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    pub(crate) async fn pause(&self) -> Result<(), Problem> {
        self.session.pause().await?;
        self.paused.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) async fn resume(&self) -> Result<(), Problem> {
        self.session.resume().await?;
        self.paused.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Starts a program. Its output is kept until somebody has read it, or nobody wants it.
    pub(crate) async fn start(self: &Arc<Live>, app: &App, start: Start) -> Result<Arc<Running>, Problem> {
        let Start { exec, tag } = start;
        if tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
            let hint = format!("use up to {MAX_TAG} bytes");
            return Err(Problem::new(Code::Invalid, "the tag is too long", hint));
        }
        let argv = crate::shape::request::shown(&exec.request.workload);
        let (cwd, terminal) = (exec.request.cwd.clone(), exec.terminal.is_some());
        let started = self.session.exec(exec).await.map_err(|executed| not_begun(app, &executed))?;
        let Process { id, control, output, ended } = started;
        app.state.begun(&id, &self.tenant, "process", Some(self.session.id()), app.engine.run_id());
        let pid = control.pid;
        let running = Arc::new(Running { id, pid, tag, argv, cwd, terminal, control, log: Log::default() });
        {
            let mut processes = self.lock();
            let over: Vec<u32> =
                processes.iter().filter(|(_, p)| p.log.is_over()).map(|(pid, _)| *pid).collect();
            if over.len() >= REMEMBERED
                && let Some(oldest) = over.first()
            {
                processes.remove(oldest);
            }
            processes.insert(pid, running.clone());
        }
        let (own, of, live) = (app.clone(), running.clone(), self.clone());
        tokio::spawn(async move {
            of.log.fill(output).await;
            if let Ok(executed) = ended.await {
                own.metrics.executed(&executed);
                note(&own, &of.id, &executed);
                own.state.flush().await;
                of.log.end(executed);
            } else {
                of.log.lose();
            }
            live.touch();
        });
        app.state.flush().await;
        Ok(running)
    }

    pub(crate) fn process(&self, pid: u32) -> Result<Arc<Running>, Problem> {
        self.lock().get(&pid).cloned().ok_or_else(|| Problem::not_found("process"))
    }

    /// Nobody will ask about it again.
    pub(crate) fn forget(&self, pid: u32) {
        self.lock().remove(&pid);
    }

    pub(crate) fn processes(&self) -> Vec<Arc<Running>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Arc<Running>>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why nothing runs. It has a record all the same.
fn not_begun(app: &App, executed: &Executed) -> Problem {
    use casemate_core::outcome::Status;
    app.metrics.executed(executed);
    match &executed.outcome.status {
        Status::Refused(refusal) if executed.outcome.id.is_empty() => {
            Problem::new(Code::Ended, refusal.reason.clone(), refusal.hint.clone())
        }
        Status::Refused(refusal) => refusal.clone().into(),
        Status::Failed { reason } => Problem::internal(reason.clone()),
        status => Problem::new(Code::Ended, status.describe(), "create another session"),
    }
}
