//! Terminals in sessions: what a program on one may expect, on every stack that has them. On the others it is told that there are
//! none.

use std::time::Duration;

use casemate_core::request::{Isolation, Request, RequestDraft, Risk, Workload};
use casemate_engine::session::{Outflow, Process, Session, SessionExec, TerminalSize};
use casemate_engine::{Chunk, Executed};
use casemate_testkit::{Cause, Rig, Stack, Status, Wall, cell, microvm};

use crate::is_wasm;

const SOON: Duration = Duration::from_secs(10);
const SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

async fn open(rig: &Rig, stack: &Stack) -> Option<Session> {
    if is_wasm(stack) {
        // No sessions, no terminals: the bodies about sessions show that.
        return None;
    }
    let mut draft = RequestDraft::new(Workload::Session);
    draft.isolation = Isolation::Exactly(stack.clone());
    draft.image = microvm::image_on(stack);
    draft.risk = Risk::Low;
    let opened = rig.open_session(Request::new(draft).expect("a request")).await;
    Some(opened.unwrap_or_else(|executed| panic!("no session: {:?}", executed.outcome.status)))
}

/// Starts it on a terminal, or shows that it is refused where there is none.
async fn start(session: &Session, stack: &Stack, argv: &[&str]) -> Option<Process> {
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    let request = RequestDraft::new(Workload::Command { argv });
    let started = session.exec(SessionExec { request, stdin: true, terminal: Some(SIZE) }).await;
    let has_terminals = matches!(stack.outermost(), Wall::Container | Wall::Gvisor | Wall::Microvm);
    match (started, has_terminals) {
        (Ok(process), true) => Some(process),
        (Err(executed), false) => match executed.outcome.status {
            Status::Refused(refusal)
                if refusal.reason.contains("terminal") && refusal.hint.contains("container") =>
            {
                None
            }
            other => panic!("refused for another reason: {other:?}"),
        },
        (Ok(_), false) => panic!("whose terminal is that?"),
        (Err(executed), true) => panic!("{:?}", executed.outcome.status),
    }
}

async fn shell(session: &Session, stack: &Stack, script: &str) -> Option<Process> {
    start(session, stack, &["sh", "-c", script]).await
}

/// What it shows up to the moment when `wanted` is in it.
async fn shows(output: &mut Outflow<Chunk>, wanted: &str) -> String {
    let mut shown = String::new();
    let all = async {
        while !shown.contains(wanted) {
            let chunk = output.next().await.unwrap_or_else(|| panic!("{wanted:?} is not in {shown:?}"));
            shown += &String::from_utf8(chunk.bytes).expect("text");
        }
    };
    if tokio::time::timeout(SOON, all).await.is_err() {
        panic!("{wanted:?} is not in {shown:?}, and nothing more comes");
    }
    shown
}

/// All that is still to come, and the end.
async fn rest(process: Process) -> (String, Executed) {
    let Process { mut output, ended, .. } = process;
    let mut shown = Vec::new();
    let all = async {
        while let Some(chunk) = output.next().await {
            shown.extend(chunk.bytes);
        }
        ended.await.expect("an end")
    };
    let ended = tokio::time::timeout(SOON, all).await.expect("it ends in time");
    (String::from_utf8(shown).expect("text"), ended)
}

async fn type_in(process: &Process, keys: &str) {
    process.control.stdin().send(keys.as_bytes().to_vec()).await.expect("it takes input");
}

pub(crate) async fn a_program_on_a_terminal_finds_what_it_expects(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let script = "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all three; echo to stderr >&2";
    if let Some(process) = shell(&session, stack, script).await {
        let (shown, ended) = rest(process).await;
        assert_eq!(shown, "/dev/pts/0\r\n24 80\r\nall three\r\nto stderr\r\n");
        assert_eq!(ended.outcome.status, Status::Exited { code: 0 });
    }
    // By its other name, which gVisor's kernel does not open.
    if stack.outermost() == Wall::Container {
        let script = "echo through /dev/tty > /dev/tty; stty -F /dev/tty size";
        let process = shell(&session, stack, script).await.expect("it has terminals");
        assert_eq!(rest(process).await.0, "through /dev/tty\r\n24 80\r\n");
        // A terminal does not stay when nobody is on it.
        let process = shell(&session, stack, "tty").await.expect("it has terminals");
        assert_eq!(rest(process).await.0, "/dev/pts/0\r\n");
    }
    session.end(Cause::Cancelled).await;
}

pub(crate) async fn keys_on_a_terminal_do_what_they_do(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let Some(mut cat) = start(&session, stack, &["cat"]).await else {
        session.end(Cause::Cancelled).await;
        return;
    };
    type_in(&cat, "line\n").await;
    // Once as an echo, once from the program.
    shows(&mut cat.output, "line\r\nline\r\n").await;
    type_in(&cat, "\x04").await;
    assert_eq!(rest(cat).await.1.outcome.status, Status::Exited { code: 0 });

    let sleeper = start(&session, stack, &["sleep", "60"]).await.expect("it has terminals");
    type_in(&sleeper, "\x03").await;
    assert_eq!(rest(sleeper).await.1.outcome.status, Status::Signaled { signal: 2 });

    // The end of input, from the other side.
    let cat = start(&session, stack, &["cat"]).await.expect("it has terminals");
    cat.control.stdin().end();
    assert_eq!(rest(cat).await.1.outcome.status, Status::Exited { code: 0 });
    session.end(Cause::Cancelled).await;
}

pub(crate) async fn a_shell_on_a_terminal_has_job_control(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    if let Some(mut shell) = start(&session, stack, &["bash", "--norc", "-i"]).await {
        type_in(&shell, "PS1='> '\n").await;
        shows(&mut shell.output, "\r\n> ").await;
        // Only what is in the foreground is meant, and the shell lives on.
        type_in(&shell, "sleep 61 & sleep 60\n").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        type_in(&shell, "\x03").await;
        type_in(&shell, "echo ended with $?\n").await;
        shows(&mut shell.output, "ended with 130\r\n").await;
        type_in(&shell, "sleep 62\n").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        type_in(&shell, "\x1a").await;
        shows(&mut shell.output, "Stopped").await;
        type_in(&shell, "jobs | wc -l; kill -9 %1 %2; sleep 0.3\n").await;
        let shown = shows(&mut shell.output, "\r\n2\r\n").await;
        assert!(shown.contains("jobs"), "it echoes: {shown:?}");
        type_in(&shell, "\nexit 5\n").await;
        let (shown, ended) = rest(shell).await;
        assert_eq!(ended.outcome.status, Status::Exited { code: 5 }, "{shown:?}");
    }
    session.end(Cause::Cancelled).await;
}

pub(crate) async fn a_terminal_can_have_another_size(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let script = "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.05; done";
    if let Some(mut process) = shell(&session, stack, script).await {
        shows(&mut process.output, "ready").await;
        process.control.resize(TerminalSize { rows: 50, columns: 132 });
        let (shown, ended) = rest(process).await;
        assert!(shown.contains("50 132"), "{shown:?}");
        assert_eq!(ended.outcome.status, Status::Exited { code: 3 });
    }
    session.end(Cause::Cancelled).await;
}

pub(crate) async fn whoever_is_left_on_a_terminal_is_hung_up_on(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let script =
        "(trap 'echo hung up > /work/told; exit' HUP; while :; do sleep 0.05; done) & sleep 0.3; echo over";
    if let Some(process) = start(&session, stack, &["bash", "-i", "-c", script]).await {
        let (shown, ended) = rest(process).await;
        assert!(shown.contains("over\r\n"), "{shown:?}");
        assert_eq!(ended.outcome.status, Status::Exited { code: 0 });
    }
    // One that does not care holds nobody up.
    if let Some(process) = shell(&session, stack, "(trap '' HUP; sleep 30) & echo over").await {
        assert_eq!(rest(process).await.1.outcome.status, Status::Exited { code: 0 });
    }
    session.end(Cause::Cancelled).await;
}

pub(crate) async fn terminals_of_cells_are_apart(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let Some(other) = open(rig, stack).await else { return };
    let look = "tty; cd /dev/pts; echo *; read line; echo heard $line";
    if let Some(mut process) = shell(&session, stack, look).await {
        let mut others = shell(&other, stack, look).await.expect("it has terminals");
        for shown in
            [shows(&mut process.output, "ptmx\r\n").await, shows(&mut others.output, "ptmx\r\n").await]
        {
            assert_eq!(shown, "/dev/pts/0\r\n0 ptmx\r\n");
        }
        // Within a cell, one can have more of them, and no more than its share.
        let more = "import os\nfds = []\ntry:\n    while len(fds) < 1000: fds += os.openpty()\nexcept OSError: pass\nprint(len(fds) // 2)";
        let argv = ["python3", "-c", more].map(str::to_owned).to_vec();
        let request = RequestDraft::new(Workload::Command { argv });
        let many =
            session.exec(SessionExec { request, stdin: false, terminal: None }).await.expect("it starts");
        let (count, _) = rest(many).await;
        if stack.outermost() == Wall::Container {
            assert_eq!(count, "31\n");
        }
        type_in(&process, "this one\n").await;
        type_in(&others, "that one\n").await;
        assert!(rest(process).await.0.contains("heard this one\r\n"));
        assert!(rest(others).await.0.contains("heard that one\r\n"));
    }
    session.end(Cause::Cancelled).await;
    other.end(Cause::Cancelled).await;
}

pub(crate) async fn nobody_else_has_terminals(rig: &Rig, stack: &Stack) {
    if is_wasm(stack) {
        return;
    }
    let script = "for place in /dev/ptmx /dev/pts/ptmx /dev/pts/0; do (: <> $place) 2> /dev/null && echo opened $place; done; echo done";
    let ran = cell(rig, stack).shell(script).run().await;
    assert_eq!(ran.out(), "done\n", "{}", ran.story());
}
