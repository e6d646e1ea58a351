//! Executions that somebody asked for over HTTP: one cell each, from admission to receipt.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use casemate_core::outcome::Status;
use casemate_core::request::Request;
use casemate_engine::{Chunk, Executed, ExecutionId, Io, Stream};
use tokio::sync::{mpsc, oneshot, watch};

use crate::app::App;
use crate::problem::{Code, Problem};
use crate::quota;
use crate::shape::files::{Collected, FileJson};
use crate::shape::outcome::ExecutionJson;

/// Those that run, by id.
#[derive(Debug, Default)]
pub(crate) struct Executions(Mutex<HashMap<String, Live>>);

#[derive(Debug)]
struct Live {
    tenant: String,
    cancel: watch::Sender<bool>,
}

/// One that was begun. Dropped, it is cancelled.
pub(crate) struct Execution {
    id: String,
    pub(crate) output: mpsc::Receiver<Chunk>,
    pub(crate) ended: oneshot::Receiver<Box<Executed>>,
    files: Option<Collected>,
    app: App,
}

/// Pieces of output that wait for a reader. When there are more, the payload waits.
const PENDING: usize = 16;

impl Executions {
    /// Ends one, if it runs and is the tenant's.
    pub(crate) fn cancel(&self, tenant: &str, id: &str) -> bool {
        match self.lock().get(id).filter(|live| live.tenant == tenant) {
            Some(live) => live.cancel.send(true).is_ok(),
            None => false,
        }
    }

    pub(crate) fn cancel_all(&self) {
        for live in self.lock().values() {
            let _ = live.cancel.send(true);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Live>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for room, then begins. What comes of it is recorded whether somebody waits for it or not.
pub(crate) async fn begin(
    app: &App,
    request: Request,
    mut io: Io,
    files: Option<Collected>,
) -> Result<Execution, Problem> {
    let tenant = request.tenant().to_owned();
    let (request, admitted) = quota::admit(app, request).await?;
    let id = ExecutionId::new();
    let (chunks, output) = mpsc::channel(PENDING);
    let (cancel, cancelled) = watch::channel(false);
    let (tell, ended) = oneshot::channel();
    io.id = Some(id.clone());
    io.output = Some(chunks);
    io.cancel = Some(cancelled);
    let id = id.to_string();
    app.state.begun(&id, &tenant, "execution", None, app.engine.run_id());
    app.executions.lock().insert(id.clone(), Live { tenant, cancel });
    let (own, number) = (app.clone(), id.clone());
    tokio::spawn(async move {
        let executed = Box::new(own.engine.execute(request, io).await);
        admitted.end(executed.outcome.usage.cpu);
        own.executions.lock().remove(&number);
        own.metrics.executed(&executed);
        note(&own, &number, &executed);
        own.state.flush().await;
        let _ = tell.send(executed);
    });
    Ok(Execution { id, output, ended, files, app: app.clone() })
}

/// What one answer holds. More has to be streamed.
const MOST_COLLECTED: usize = 16 << 20;

pub(crate) fn check_collected(bytes: usize) -> Result<(), Problem> {
    match bytes <= MOST_COLLECTED {
        true => Ok(()),
        false => Err(Problem::new(
            Code::TooLarge,
            format!(
                "it wrote more than the {} MiB that one answer holds, and was ended",
                MOST_COLLECTED >> 20
            ),
            "ask for a stream",
        )),
    }
}

/// For those who ask later what became of it. Its output is not kept.
pub(crate) fn note(app: &App, id: &str, executed: &Executed) {
    let summary = serde_json::to_string(&ExecutionJson::summary(executed)).unwrap_or_default();
    let micros = executed.outcome.usage.wall.map(|wall| wall.as_micros() as u64);
    tracing::info!(id, status = kind(&executed.outcome.status), micros, "ended");
    if let Some(error) = &executed.evidence_error {
        tracing::error!(id, %error, "not recorded");
    }
    app.state.ended(id, kind(&executed.outcome.status), summary);
}

pub(crate) const fn kind(status: &Status) -> &'static str {
    match status {
        Status::Exited { .. } => "exited",
        Status::Signaled { .. } => "signaled",
        Status::Killed { .. } => "killed",
        Status::Refused(_) => "refused",
        Status::Failed { .. } => "failed",
    }
}

impl Execution {
    /// Its id, once it is known for longer than this server lives.
    pub(crate) async fn named(&self) -> &str {
        self.app.state.flush().await;
        &self.id
    }

    /// What came out, once it has ended.
    pub(crate) fn files(&self) -> Option<Vec<FileJson>> {
        self.files.as_ref().map(Collected::take)
    }

    /// Everything that it wrote, and what came of it.
    pub(crate) async fn finish(mut self) -> Result<ExecutionJson, Problem> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(Chunk { stream, bytes }) = self.output.recv().await {
            check_collected(stdout.len() + stderr.len() + bytes.len())?;
            match stream {
                Stream::Stdout => stdout.extend(bytes),
                Stream::Stderr => stderr.extend(bytes),
            }
        }
        let executed = (&mut self.ended).await.map_err(|_| Problem::internal("the execution was lost"))?;
        Ok(ExecutionJson::new(*executed, (stdout, stderr)).with_files(self.files()))
    }
}

/// Whoever asked is gone, or has the answer.
impl Drop for Execution {
    fn drop(&mut self) {
        if let Some(live) = self.app.executions.lock().get(&self.id) {
            let _ = live.cancel.send(true);
        }
    }
}

/// Until nothing runs, or this long.
pub(crate) async fn drained(app: &App, patience: Duration) -> bool {
    let wait = async {
        while app.executions.count() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(patience, wait).await.is_ok()
}
