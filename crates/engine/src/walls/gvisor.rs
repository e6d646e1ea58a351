//! The `gvisor` wall: a container like any other, with a kernel of its own in it. gVisor's `runsc` runs as the container's first
//! program, without privileges outside of it, and the guest and its payloads run in `runsc`. Who breaks out of gVisor is in a
//! container.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use casemate_core::evidence::hex;
use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::outcome::{Refusal, Status};
use casemate_core::plan::Plan;
use casemate_core::request::{Request, RequestDraft, Workload};
use casemate_core::stack::{Stack, Wall as WallName};
use casemate_wire::guest::Terminals;
use casemate_wire::gvisor::specification;
use casemate_wire::launch::{Image, Platform};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::agents::Agents;
use crate::io::Io;
use crate::run::{self, Ran, Trouble};
use crate::wall::{Attachment, Cell, Later, Wall, WallError};
use crate::walls::container::{Container, Content, Sentry, image_kind};
use crate::walls::native;

mod runsc;

pub(crate) use runsc::Runsc;
use runsc::{Finding, Known};

/// How long a sandbox may take to start, run next to nothing and end. It takes a fifth of a second.
const PROBE: Duration = Duration::from_secs(10);

/// How a failure begins that tells about `runsc`, and not about the moment: the launcher's last step, and who complains in it.
const SAID_BY_RUNSC: &str = "start gvisor: runsc failed";

pub(crate) struct Gvisor {
    container: Arc<Container>,
    agents: Agents,
    runsc: Option<Runsc>,
    guest: OnceLock<OwnedFd>,
    /// What was found out about `runsc`, once per machine start and kept in the home.
    works: OnceCell<Known>,
}

impl Gvisor {
    pub(crate) fn new(home: &Path, agents: Agents, container: Arc<Container>) -> Gvisor {
        let runsc = Runsc::find(home);
        let known = runsc.as_ref().and_then(Runsc::known);
        let works = OnceCell::new_with(known);
        Gvisor { container, agents, runsc, guest: OnceLock::new(), works }
    }

    /// Why there is no such wall here, as far as is known without trying.
    pub(crate) fn missing(&self) -> Option<Refusal> {
        let Some(runsc) = &self.runsc else {
            return Some(Refusal::new("runsc is not installed", "`casemate setup gvisor` installs it"));
        };
        match self.works.get()?.finding {
            Finding::Works(_) => None,
            Finding::Fails(ref why) => Some(unusable(runsc, why)),
        }
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        let Some(runsc) = &self.runsc else {
            return "not installed; `casemate setup gvisor` gets it".into();
        };
        let place = runsc.path().display();
        match self.works.get().map(|known| (known, &known.finding)) {
            Some((known, Finding::Works(platform))) => {
                format!("runsc {}, {}, {place}", known.version, platform.as_str())
            }
            Some((known, Finding::Fails(_))) => {
                format!("runsc {}, which does not work here, {place}", known.version)
            }
            None => format!("{place}, not tried yet"),
        }
    }

    /// Starts a real sandbox, unless that was done since this machine was started; what comes of it is kept.
    pub(crate) async fn probe(&self) -> Result<&Known, Refusal> {
        let Some(runsc) = &self.runsc else {
            return Err(Refusal::new("runsc is not installed", "`casemate setup gvisor` installs it"));
        };
        let known = self.works.get_or_try_init(|| self.find_out(runsc)).await?;
        match &known.finding {
            Finding::Works(_) => Ok(known),
            Finding::Fails(why) => Err(unusable(runsc, why)),
        }
    }

    async fn find_out(&self, runsc: &Runsc) -> Result<Known, Refusal> {
        let identified = runsc.identify().await;
        let (version, sha256) = identified.map_err(|error| unusable(runsc, &error.to_string()))?;
        let (mut failures, mut certain) = (Vec::new(), true);
        for platform in Platform::ALL {
            let why = match timeout(PROBE, self.try_out(runsc, platform)).await {
                Ok(Ok(())) => {
                    let known = Known { version, sha256, finding: Finding::Works(platform) };
                    return Ok(if certain { runsc.keep(known) } else { known });
                }
                Ok(Err(why)) => why,
                Err(_) => format!("no answer within {PROBE:?}"),
            };
            certain &= why.starts_with(SAID_BY_RUNSC);
            failures.push(format!("{}: {why}", platform.as_str()));
        }
        let known = Known { version, sha256, finding: Finding::Fails(failures.join("; ")) };
        match certain {
            true => Ok(runsc.keep(known)),
            // A machine that was busy, or a process that somebody killed: the next one may find it otherwise.
            false => Err(unusable(runsc, &failures.join("; "))),
        }
    }

    /// Runs the guest itself as a payload: it finds nobody to talk to, and ends.
    async fn try_out(&self, runsc: &Runsc, platform: Platform) -> Result<(), String> {
        let plan = probe_plan().map_err(|refusal| refusal.reason)?;
        let guest = self.guest().map_err(|error| error.to_string())?;
        let program = Some(Attachment::Program { program: guest, line: None });
        let sentry = Some(Sentry { platform, runsc: runsc.as_fd(), guest });
        let content = Content { kind: Image::Empty, image: None, program, sentry };
        let cell = self.container.build(&plan, content).await.map_err(|error| error.to_string())?;
        match run::run(cell, &plan, Io::default(), &mut Ran::default()).await {
            Ok(Status::Exited { code: 0 }) => Ok(()),
            Ok(status) => Err(status.describe()),
            Err(Trouble::Failed(why)) => Err(why),
            Err(Trouble::Refused(refusal)) => Err(refusal.reason),
            Err(Trouble::Cancelled) => Err("cancelled".into()),
        }
    }

    async fn build(
        &self,
        plan: &Plan,
        kind: Image,
        image: Option<BorrowedFd<'_>>,
        program: Option<Attachment<'_>>,
    ) -> Result<Cell, WallError> {
        let known = self.probe().await.map_err(WallError::Refused)?;
        let (Some(runsc), Finding::Works(platform)) = (&self.runsc, &known.finding) else {
            return Err(WallError::Failed("runsc is gone".into()));
        };
        let sentry = Some(Sentry { platform: *platform, runsc: runsc.as_fd(), guest: self.guest()? });
        let mut cell = self.container.build(plan, Content { kind, image, program, sentry }).await?;
        cell.runtime = describe(known, *platform, native::terminals(plan));
        Ok(cell)
    }

    fn guest(&self) -> Result<BorrowedFd<'_>, WallError> {
        super::made_once(&self.guest, || self.agents.guest()).map(AsFd::as_fd)
    }
}

impl Wall for Gvisor {
    fn start<'a>(
        &'a self,
        plan: &'a Plan,
        image: Option<BorrowedFd<'a>>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(self.build(plan, image_kind(plan), image, None))
    }

    fn start_program<'a>(
        &'a self,
        plan: &'a Plan,
        program: Attachment<'a>,
    ) -> Later<'a, Result<Cell, WallError>> {
        Box::pin(self.build(plan, Image::Empty, None, Some(program)))
    }
}

/// What the record says about the kernel in the cell.
fn describe(known: &Known, platform: Platform, terminals: Terminals) -> Value {
    json!({
        "runsc": known.version,
        "sha256": known.sha256,
        "platform": platform.as_str(),
        "specification_sha256": hex(&Sha256::digest(specification(terminals).as_bytes())),
    })
}

fn unusable(runsc: &Runsc, why: &str) -> Refusal {
    Refusal::new(
        format!("no sandbox can be started with {}: {why}", runsc.path().display()),
        "`casemate setup gvisor` installs a version that is known to work and tries again",
    )
}

fn probe_plan() -> Result<Plan, Refusal> {
    let draft = RequestDraft::new(Workload::Command { argv: vec!["probe".into()] });
    let limits = LimitsDraft::new()
        .with(LimitKind::Memory, 64 << 20)
        .with(LimitKind::Disk, LimitKind::Disk.range().min)
        .with(LimitKind::WallTime, PROBE.as_millis() as u64);
    Plan::of_our_own(Request::new(draft)?, limits, Stack::of(WallName::Gvisor))
}
