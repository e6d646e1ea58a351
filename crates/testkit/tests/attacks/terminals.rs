//! Attacks on terminals, from sessions that have some: 6 and 27 once more, where there is something to attack.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

use casemate_core::request::{Isolation, Request, RequestDraft, Risk, Workload};
use casemate_engine::session::{Process, Session, SessionExec, TerminalSize};
use casemate_testkit::{Cause, PROBE, Status, microvm};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

use crate::row::Control::Without;
use crate::row::On::{Held, NotApplicable};
use crate::row::layers::{FILTER, TERMINALS};
use crate::row::{Finding, Judged, Row, Scene, Trial};
use crate::run::judge_words;

const NO_TERMINALS: &str = "a program that asks for a terminal is refused, whatever it is";

pub(crate) const ROWS: &[Row] = &[
    Row {
        attacks: &[27],
        name: "typing into one's own terminal",
        trial: Trial::Judged {
            judge: typing,
            container: Held(Without(FILTER)),
            process: NotApplicable(NO_TERMINALS),
        },
    },
    Row {
        attacks: &[6],
        name: "terminals of the host",
        trial: Trial::Judged {
            judge: terminals_of_the_host,
            container: Held(Without(TERMINALS)),
            process: NotApplicable(NO_TERMINALS),
        },
    },
];

async fn open(scene: &Scene) -> Result<Session, String> {
    let mut draft = RequestDraft::new(Workload::Session);
    draft.isolation = Isolation::Exactly(scene.stack.clone());
    draft.image = microvm::image_on(&scene.stack);
    draft.risk = Risk::Low;
    let request = Request::new(draft).map_err(|invalid| invalid.reason)?;
    let opened = scene.rig.open_session(request).await;
    opened.map_err(|executed| format!("no session: {:?}", executed.outcome.status))
}

async fn start(session: &Session, argv: &[&str], terminal: Option<TerminalSize>) -> Result<Process, Status> {
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    let request = RequestDraft::new(Workload::Command { argv });
    let started = session.exec(SessionExec { request, stdin: false, terminal }).await;
    started.map_err(|executed| executed.outcome.status)
}

/// What it wrote, and its exit code.
async fn finish(process: Process) -> Result<(String, i32), String> {
    let Process { mut output, ended, .. } = process;
    let mut written = Vec::new();
    while let Some(chunk) = output.next().await {
        written.extend(chunk.bytes);
    }
    let written = String::from_utf8_lossy(&written).into_owned();
    let status = ended.await.map_err(|_| "no end".to_owned())?.outcome.status;
    match status {
        Status::Exited { code } => Ok((written, code)),
        other => Err(format!("{other:?}: {written}")),
    }
}

/// The probe has a terminal, and can make more.
fn typing(scene: Scene) -> Judged {
    Box::pin(async move {
        let session = open(&scene).await?;
        let (input, done) = session.put("/work/probe", 0o755);
        for part in PROBE.chunks(64 * 1024) {
            input.send(part.to_vec()).await.map_err(|error| error.to_string())?;
        }
        input.end();
        done.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let size = TerminalSize { rows: 24, columns: 80 };
        let found = match start(&session, &["./probe", "tiocsti"], Some(size)).await {
            Ok(process) => {
                let (out, code) = finish(process).await?;
                // Else it has shown next to nothing.
                match out.contains("on a pty") {
                    true => judge_words(code, &out),
                    false => Err(format!("it had no terminal: {out}")),
                }
            }
            Err(Status::Refused(refusal)) => Ok(Finding::Refused(refusal.hint)),
            Err(other) => Err(format!("{other:?}")),
        };
        session.end(Cause::Cancelled).await;
        found
    })
}

/// One that everybody on the host may use.
fn host_terminal() -> Result<(OwnedFd, String), String> {
    let text = |error: rustix::io::Errno| error.to_string();
    let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(text)?;
    unlockpt(&outside).map_err(text)?;
    let name = ptsname(&outside, Vec::new()).map_err(text)?.to_string_lossy().into_owned();
    std::fs::set_permissions(&name, std::fs::Permissions::from_mode(0o666))
        .map_err(|error| error.to_string())?;
    rustix::io::ioctl_fionbio(&outside, true).map_err(text)?;
    Ok((outside, name))
}

/// Whatever the payload finds, it writes to. Nothing of that may be seen on a terminal of the host.
fn terminals_of_the_host(scene: Scene) -> Judged {
    Box::pin(async move {
        let (outside, name) = host_terminal()?;
        // It can be written to, by its name.
        std::fs::write(&name, "from the host").map_err(|error| error.to_string())?;
        let mut shown = [0; 64];
        let seen = rustix::io::read(&outside, &mut shown).map_err(|error| error.to_string())?;
        if &shown[..seen] != b"from the host" {
            return Err("a terminal of the host does not show what is written to it".into());
        }
        let session = open(&scene).await?;
        let script = format!(
            "for place in {name} /dev/pts/*; do echo from a cell > $place; done 2> /dev/null; echo tried"
        );
        let process = start(&session, &["sh", "-c", &script], None).await;
        let (said, _) = finish(process.map_err(|status| format!("{status:?}"))?).await?;
        session.end(Cause::Cancelled).await;
        match (said.as_str(), rustix::io::read(&outside, &mut shown)) {
            ("tried\n", Ok(1..)) => Ok(Finding::Escaped),
            ("tried\n", _) => Ok(Finding::Held),
            (other, _) => Err(format!("it did not get far: {other:?}")),
        }
    })
}
