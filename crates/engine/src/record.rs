//! The record of one execution: opened before anything runs, closed whatever happens.

use std::sync::Arc;

use casemate_core::evidence::Event;
use casemate_core::outcome::{Cause, Outcome, Status};
use casemate_core::plan::Plan;
use casemate_core::request::Request;

use crate::evidence::{self, Note};
use crate::execute::{EvidenceError, Executed};
use crate::io::ExecutionId;
use crate::program::Program;
use crate::recorder::{Receipt, Store, StoreError};
use crate::run::Ran;

pub(crate) struct Record {
    store: Arc<Store>,
    run: String,
    id: String,
    /// The session that it is a part of.
    session: Option<String>,
    planned: Option<Planned>,
    closed: bool,
}

/// What stands in the opening record.
struct Planned {
    request_digest: [u8; 32],
    stack: casemate_core::stack::Stack,
    class: casemate_core::stack::Class,
    unbounded: Vec<casemate_core::limits::LimitKind>,
    program: Option<Program>,
}

impl Record {
    /// Names the execution.
    pub(crate) fn open(store: &Arc<Store>, run: &str, id: ExecutionId) -> Record {
        let (store, run) = (store.clone(), run.to_owned());
        Record { store, run, id: id.into_string(), session: None, planned: None, closed: false }
    }

    /// Names something that happens in a session.
    pub(crate) fn within(&self) -> Record {
        let mut record = Record::open(&self.store, &self.run, ExecutionId::new());
        record.session = Some(self.id.clone());
        record
    }

    /// Records something small that has happened in this session. Returns its name.
    pub(crate) fn note(&self, note: &Note<'_>) -> Result<String, StoreError> {
        let id = ExecutionId::new().into_string();
        let (subjects, body) = evidence::note(&self.id, note)?;
        self.store.append(Event::Noted, &id, &self.run, &subjects, &body)?;
        Ok(id)
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Writes the opening record: from here on, something may run.
    pub(crate) fn planned(
        &mut self,
        request: &Request,
        plan: &Plan,
        program: Option<Program>,
    ) -> Result<(), StoreError> {
        let asked = evidence::request(request)?;
        let request_digest = evidence::request_digest(request, &asked);
        let subjects = evidence::subjects(request_digest, &Default::default());
        let body = evidence::opening(&asked, plan, self.session.as_deref())?;
        self.store.append(Event::Opened, &self.id, &self.run, &subjects, &body)?;
        self.planned = Some(Planned {
            request_digest,
            stack: plan.stack().clone(),
            class: plan.class(),
            unbounded: plan.unbounded().to_vec(),
            program,
        });
        Ok(())
    }

    /// Writes the closing record, or the only one of a refusal, and makes the outcome. Without a request: it never became
    /// a valid one.
    pub(crate) fn close(mut self, request: Option<&Request>, status: Status, mut ran: Ran) -> Executed {
        let mut outcome = Outcome::without_cell(self.id.clone(), status);
        if let Some(planned) = &self.planned {
            outcome.stack = Some(planned.stack.clone());
            outcome.class = Some(planned.class);
            outcome.unbounded = planned.unbounded.clone();
        }
        outcome.limits_hit = std::mem::take(&mut ran.limits_hit);
        outcome.usage = ran.usage;
        outcome.denied = std::mem::take(&mut ran.denied);
        outcome.stdout_truncated = ran.stdout_truncated;
        outcome.stderr_truncated = ran.stderr_truncated;
        let written = self.write_closing(request, &outcome, &ran);
        ran.timings.mark("close");
        outcome.timings = ran.timings.phases;
        outcome.steps = ran.steps;
        match written {
            Ok(receipt) => Executed { outcome, receipt: Some(receipt), evidence_error: None },
            Err(error) => {
                // What ran without a closing record must not look like a success.
                let error = EvidenceError::from(&error);
                let what = if self.planned.is_some() { "closed" } else { "opened, so nothing ran" };
                outcome.status =
                    Status::Failed { reason: format!("the record could not be {what}: {error}") };
                Executed { outcome, receipt: None, evidence_error: Some(error) }
            }
        }
    }

    fn write_closing(
        &mut self,
        request: Option<&Request>,
        outcome: &Outcome,
        ran: &Ran,
    ) -> Result<Receipt, StoreError> {
        self.closed = true;
        match &self.planned {
            Some(planned) => {
                let subjects = evidence::subjects(planned.request_digest, &ran.digests);
                let program = planned.program.as_ref().and_then(Program::finish);
                let body = evidence::closing(outcome, ran, program.as_ref())?;
                self.store.append(Event::Closed, &self.id, &self.run, &subjects, &body)
            }
            None => {
                let asked = request.map(evidence::request).transpose()?.unwrap_or_default();
                let digest = request.map_or([0; 32], |request| evidence::request_digest(request, &asked));
                let subjects = evidence::subjects(digest, &ran.digests);
                let body = evidence::refused(&asked, outcome)?;
                self.store.append(Event::Refused, &self.id, &self.run, &subjects, &body)
            }
        }
    }
}

/// The caller lost interest: the cell is being killed, and the record says so.
impl Drop for Record {
    fn drop(&mut self) {
        if self.planned.is_some() && !self.closed {
            let status = Status::Killed { cause: Cause::Cancelled, limit: None, peak: None };
            let _ =
                self.write_closing(None, &Outcome::without_cell(self.id.clone(), status), &Ran::default());
        }
    }
}
