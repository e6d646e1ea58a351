//! Sessions: one cell for several programs, each with a record that points to the session's.

use std::time::Duration;

use casemate_core::evidence::hex;
use casemate_core::limits::LimitKind;
use casemate_core::request::{Isolation, Request, RequestDraft, Risk, Workload};
use casemate_engine::recorder::Event;
use casemate_engine::session::{
    Change, Changed, FileError, FileKind, NoteError, Outflow, Piece, Session, SessionExec,
};
use casemate_engine::{Chunk, Entry, Executed, Stream};
use casemate_testkit::{Cause, Rig, Stack, Status, Wall, microvm};
use sha2::{Digest, Sha256};

use crate::is_wasm;

const LIFETIME: u64 = 60_000;
const SOON: Duration = Duration::from_secs(10);

fn asked(stack: &Stack) -> RequestDraft {
    let mut draft = RequestDraft::new(Workload::Session);
    draft.isolation = Isolation::Exactly(stack.clone());
    draft.image = microvm::image_on(stack);
    draft.risk = Risk::Low;
    draft.limits.set(LimitKind::WallTime, LIFETIME);
    draft
}

/// A session, or the proof that this stack has none.
async fn open(rig: &Rig, stack: &Stack) -> Option<Session> {
    let opened = rig.open_session(Request::new(asked(stack)).expect("a request")).await;
    match (opened, is_wasm(stack)) {
        (Ok(session), false) => Some(session),
        (Err(executed), true) => match executed.outcome.status {
            Status::Refused(refusal) if refusal.reason.contains("session") && !refusal.hint.is_empty() => {
                None
            }
            other => panic!("refused for another reason: {other:?}"),
        },
        (Ok(_), true) => panic!("there are no sessions of WASM"),
        (Err(executed), false) => panic!("no session: {:?}", executed.outcome.status),
    }
}

fn shell(script: &str) -> SessionExec {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    command(argv)
}

fn command(argv: Vec<String>) -> SessionExec {
    SessionExec { request: RequestDraft::new(Workload::Command { argv }), stdin: false, terminal: None }
}

/// Everything it says on standard output, and what came of it.
async fn run(session: &Session, exec: SessionExec) -> (String, Executed) {
    let process = match session.exec(exec).await {
        Ok(process) => process,
        Err(executed) => return (String::new(), *executed),
    };
    let said = text(process.output).await;
    (said, process.ended.await.expect("an end"))
}

async fn text(mut output: Outflow<Chunk>) -> String {
    let mut said = Vec::new();
    while let Some(chunk) = output.next().await {
        if chunk.stream == Stream::Stdout {
            said.extend(chunk.bytes);
        }
    }
    String::from_utf8(said).expect("text")
}

/// Closes it, and insists that its record is the last about it.
async fn close(rig: &Rig, session: Session) {
    let ended = session.end(Cause::Cancelled).await.expect("an end");
    let status = &ended.outcome.status;
    assert!(matches!(status, Status::Killed { cause: Cause::Cancelled, .. }), "{status:?}");
    let records = rig.records(session.id());
    let events: Vec<Event> = records.iter().map(|record| record.entry.event).collect();
    assert_eq!(events, [Event::Opened, Event::Closed]);
    assert_eq!(records[0].entry.body["request"]["workload"]["type"], "session");
}

pub(crate) async fn programs_of_a_session_share_its_files_and_nothing_else(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let Some(other) = open(rig, stack).await else { return };
    let (_, executed) = run(&session, shell("echo kept > note; exit 3")).await;
    assert_eq!(executed.outcome.status, Status::Exited { code: 3 });
    let (said, _) = run(&session, shell("cat note")).await;
    assert_eq!(said, "kept\n");
    let (said, executed) = run(&other, shell("cat note || echo nothing")).await;
    assert_eq!((said.as_str(), executed.outcome.status), ("nothing\n", Status::Exited { code: 0 }));
    close(rig, session).await;
    close(rig, other).await;
}

pub(crate) async fn every_program_of_a_session_has_a_record_that_points_to_it(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    for round in 0..3 {
        let (said, executed) = run(&session, shell("echo out; echo err >&2")).await;
        assert_eq!((said.as_str(), executed.outcome.status), ("out\n", Status::Exited { code: 0 }));
        let records = rig.records(&executed.outcome.id);
        let [opened, closed] = &records[..] else { panic!("{} records", records.len()) };
        assert_eq!(opened.entry.body["session"], session.id());
        assert_eq!(closed.entry.body["status"]["code"], 0);
        assert!(closed.entry.body["applied"]["seccomp_sha256"].is_string());
        let names: Vec<&str> = closed.entry.subjects.iter().map(|subject| subject.name.as_str()).collect();
        assert!(names.contains(&"stdout") && names.contains(&"stderr"), "{names:?}");
        // Everyone is looked at from outside, where there is something to be seen.
        let observed = &closed.entry.body["observed"];
        match (round, rig.is_in_gvisor(stack)) {
            (0, _) | (_, false) => {
                assert_eq!(observed["no_new_privs"], true, "{observed}");
                assert_eq!(observed["seccomp"]["mode"], 2, "{observed}");
                // gVisor's kernel may be root, of a user namespace of its own.
                let own =
                    observed["namespaces"]["own"].as_array().is_some_and(|own| own.contains(&"user".into()));
                let is_root = observed["uid"].as_u64() == Some(0);
                assert!(!is_root || own && rig.is_in_gvisor(stack), "{observed}");
            }
            (_, true) => assert_eq!(observed["unseen"][0], "program", "{observed}"),
        }
    }
    close(rig, session).await;
}

pub(crate) async fn a_program_that_does_not_start_leaves_the_session_alone(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let refusal = |executed: &Executed| match &executed.outcome.status {
        Status::Refused(refusal) => refusal.clone(),
        other => panic!("not refused: {other:?}"),
    };
    // The very first one, even.
    let (_, executed) = run(&session, command(vec!["no-such-program".into()])).await;
    assert!(refusal(&executed).reason.contains("not found"), "{:?}", executed.outcome.status);
    let mut elsewhere = shell("pwd");
    elsewhere.request.cwd = Some("/work/nowhere".into());
    let (_, executed) = run(&session, elsewhere).await;
    assert!(refusal(&executed).reason.contains("directory"), "{:?}", executed.outcome.status);
    // More than the session was granted.
    for (kind, value) in [(LimitKind::WallTime, LIFETIME + 1), (LimitKind::Memory, 64 << 20)] {
        let mut more = shell("true");
        more.request.limits.set(kind, value);
        let (_, executed) = run(&session, more).await;
        assert!(refusal(&executed).reason.contains("session"), "{:?}", executed.outcome.status);
        assert_eq!(rig.records(&executed.outcome.id).len(), 1, "a refusal has one record");
    }
    let (said, _) = run(&session, shell("echo still here")).await;
    assert_eq!(said, "still here\n");
    close(rig, session).await;
}

pub(crate) async fn programs_of_a_session_run_side_by_side(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    // One listens, one talks; a third one waits for a signal.
    let mut reader = shell("while read line; do echo \"heard $line\"; done; echo over");
    reader.stdin = true;
    let reader =
        session.exec(reader).await.unwrap_or_else(|executed| panic!("{:?}", executed.outcome.status));
    let waiting = session.exec(shell("trap 'echo caught; exit 7' USR1; while :; do sleep 0.05; done")).await;
    let mut waiting = waiting.expect("it starts");
    let (said, _) = run(&session, shell("echo meanwhile")).await;
    assert_eq!(said, "meanwhile\n");
    let input = reader.control.stdin();
    for word in ["one", "two"] {
        input.send(format!("{word}\n").into_bytes()).await.expect("it reads");
    }
    input.end();
    assert_eq!(text(reader.output).await, "heard one\nheard two\nover\n");
    assert_eq!(reader.ended.await.expect("an end").outcome.status, Status::Exited { code: 0 });
    // Until the trap is set, the signal would end it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    waiting.control.signal(10);
    let ended = tokio::time::timeout(SOON, &mut waiting.ended).await.expect("in time").expect("an end");
    assert_eq!(ended.outcome.status, Status::Exited { code: 7 });
    assert_eq!(text(waiting.output).await, "caught\n");
    close(rig, session).await;
}

pub(crate) async fn time_runs_out_for_a_program_and_not_for_its_session(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let mut late = shell("echo begun; sleep 30");
    late.request.limits.set(LimitKind::WallTime, 300);
    let (said, executed) = run(&session, late).await;
    assert_eq!(said, "begun\n");
    match executed.outcome.status {
        Status::Killed { cause: Cause::WallTime, limit: Some(300), peak: Some(peak) } => {
            assert!((300..2000).contains(&peak), "{peak} ms");
        }
        other => panic!("{other:?}"),
    }
    let mut loud = shell("yes | head -c 100000");
    loud.request.limits.set(LimitKind::Output, 1000);
    let (said, executed) = run(&session, loud).await;
    assert_eq!(said.len(), 1000);
    assert!(executed.outcome.stdout_truncated);
    let killed = session.exec(shell("sleep 30")).await.expect("it starts");
    killed.control.kill(Cause::Cancelled);
    let ended = tokio::time::timeout(SOON, killed.ended).await.expect("in time").expect("an end");
    assert!(matches!(ended.outcome.status, Status::Killed { cause: Cause::Cancelled, .. }));
    let (said, _) = run(&session, shell("echo goes on")).await;
    assert_eq!(said, "goes on\n");
    close(rig, session).await;
}

pub(crate) async fn files_of_a_session_can_be_had_at_any_time(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    // Before anything has run.
    assert_eq!(session.make_directory("/work/a/b").await, Ok(true));
    assert_eq!(session.make_directory("/work/a/b").await, Ok(false));
    let content: Vec<u8> = (0..700_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    put(&session, "/work/a/b/large", &content).await.expect("it fits");
    put(&session, "/work/a/small", b"hello").await.expect("it fits");
    let (said, _) = run(&session, shell("cat a/small; wc -c < a/b/large; echo back > $TMPDIR/answer")).await;
    assert_eq!(said.replace(' ', ""), "hello700000\n");
    assert_eq!(get(&session, "/work/a/b/large").await.expect("a file"), content);
    assert_eq!(get(&session, "/tmp/answer").await.expect("a file"), b"back\n");
    let listed = session.list("/work", 3).await.expect("a list");
    let mut names: Vec<(&str, FileKind)> =
        listed.iter().map(|(name, info)| (name.as_str(), info.kind)).collect();
    names.sort_by_key(|(name, _)| *name);
    let expected = [
        ("", FileKind::Directory),
        ("a", FileKind::Directory),
        ("a/b", FileKind::Directory),
        ("a/b/large", FileKind::File),
        ("a/small", FileKind::File),
    ];
    assert_eq!(names, expected);
    let size = listed.iter().find(|(name, _)| name == "a/b/large").map(|(_, info)| info.size);
    assert_eq!(size, Some(700_000));
    assert_eq!(session.list("/work", 1).await.expect("a list").len(), 2, "no deeper than was asked");
    session.rename("/work/a/small", "/work/moved").await.expect("renamed");
    assert_eq!(get(&session, "/work/moved").await.expect("a file"), b"hello");
    session.remove("/work/a").await.expect("removed, with all below it");
    let gone = FileError::Kernel(2);
    assert_eq!(session.list("/work/a", 0).await, Err(gone.clone()));
    assert_eq!(get(&session, "/work/a/small").await, Err(gone.clone()));
    assert_eq!(session.remove("/work/a").await, Err(gone.clone()));
    assert_eq!(put(&session, "/work/nowhere/x", b"x").await, Err(gone));
    close(rig, session).await;
}

pub(crate) async fn no_path_leads_out_of_a_sessions_directories(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let links =
        "ln -s /etc etc; ln -s /etc/passwd file; ln -s / root; mkdir in; ln -s ../.. in/up; ln -s loop loop";
    let (_, executed) = run(&session, shell(links)).await;
    assert_eq!(executed.outcome.status, Status::Exited { code: 0 });
    for path in [
        "/etc/passwd",
        "/proc/self/environ",
        "/work/../etc/passwd",
        "/work/etc/passwd",
        "/work/file",
        "/work/root/etc/passwd",
        "/work/in/up/etc/passwd",
        "/work/loop",
        "/workx",
        "relative",
        "",
    ] {
        assert!(get(&session, path).await.is_err(), "{path:?} was read");
        assert!(put(&session, path, b"x").await.is_err(), "{path:?} was written");
        assert!(session.make_directory(&format!("{path}/new")).await.is_err(), "{path:?} was made");
        assert!(session.rename(path, "/work/taken").await.is_err() || path.starts_with("/work/"), "{path:?}");
        let _ = session.rename("/work/taken", path).await;
    }
    // A link is removed, and not what it leads to.
    session.remove("/work/etc").await.expect("a link can be removed");
    let (said, _) = run(&session, shell("ls /etc/passwd")).await;
    assert_eq!(said, "/etc/passwd\n");
    for root in ["/work", "/tmp", "/"] {
        assert!(session.remove(root).await.is_err(), "{root} was removed");
    }
    close(rig, session).await;
}

pub(crate) async fn changes_are_told_to_whoever_watches(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    session.make_directory("/work/seen/deep").await.expect("made");
    let mut changes = session.watch("/work/seen", true).await.expect("a watch");
    assert!(session.watch("/work/none", true).await.is_err());
    assert!(session.watch("/etc", true).await.is_err());
    let (_, executed) =
        run(&session, shell("echo x > seen/deep/file; mv seen/deep/file seen/other; rm seen/other")).await;
    assert_eq!(executed.outcome.status, Status::Exited { code: 0 });
    let mut told = Vec::new();
    while !told.contains(&("other".to_owned(), Change::Removed)) {
        let next = tokio::time::timeout(SOON, changes.recv()).await;
        match next.unwrap_or_else(|_| panic!("nothing more after {told:?}")) {
            Some(Changed::Entry { path, change }) => told.push((path, change)),
            other => panic!("{other:?}"),
        }
    }
    for expected in [
        ("deep/file", Change::Created),
        ("deep/file", Change::Written),
        ("deep/file", Change::Renamed),
        ("other", Change::Renamed),
    ] {
        assert!(
            told.iter().any(|(path, change)| (path.as_str(), *change) == expected),
            "{expected:?} in {told:?}"
        );
    }
    close(rig, session).await;
}

pub(crate) async fn a_paused_session_stands_still(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let mut ticking =
        session.exec(shell("while :; do echo tick; sleep 0.02; done")).await.expect("it starts");
    for _ in 0..3 {
        ticking.output.next().await.expect("a tick");
    }
    let paused = session.pause().await;
    if stack.outermost() == Wall::Process {
        // There, everything else on the machine would be stopped.
        assert_eq!(paused, Err(FileError::Kernel(95)));
        return close(rig, session).await;
    }
    paused.expect("it stands still");
    // What was on its way has arrived by then.
    while tokio::time::timeout(Duration::from_millis(300), ticking.output.next()).await.is_ok() {}
    let silence = tokio::time::timeout(Duration::from_millis(500), ticking.output.next()).await;
    assert!(silence.is_err(), "it goes on: {silence:?}");
    let (_, refused) = run(&session, shell("true")).await;
    assert!(matches!(refused.outcome.status, Status::Refused(_)), "{:?}", refused.outcome.status);
    session.resume().await.expect("it goes on");
    tokio::time::timeout(SOON, ticking.output.next()).await.expect("in time").expect("a tick");
    close(rig, session).await;
}

pub(crate) async fn a_session_ends_with_everything_in_it(rig: &Rig, stack: &Stack) {
    let mut draft = asked(stack);
    draft.limits.set(LimitKind::WallTime, 1500);
    let opened = rig.open_session(Request::new(draft).expect("a request")).await;
    let Ok(session) = opened else { return drop(open(rig, stack).await) };
    let running = session.exec(shell("echo begun; sleep 60")).await.expect("it starts");
    // Nobody asks for the end: its time is over.
    let ended = tokio::time::timeout(SOON, session.ended()).await.expect("in time").expect("an end");
    assert!(matches!(ended.outcome.status, Status::Killed { cause: Cause::WallTime, limit: Some(1500), .. }));
    let program = running.ended.await.expect("an end").outcome.status;
    assert!(matches!(program, Status::Killed { cause: Cause::WallTime, .. }), "{program:?}");
    let late = session.exec(shell("true")).await.map(drop);
    assert!(matches!(late, Err(executed) if matches!(executed.outcome.status, Status::Refused(_))));
    assert_eq!(session.list("/work", 1).await, Err(FileError::Ended));
    // And when the last who could ask for anything is gone.
    let Some(session) = open(rig, stack).await else { return };
    let id = session.id().to_owned();
    drop(session);
    let closed = async {
        while rig.records(&id).len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, closed).await.expect("its record is closed");
}

pub(crate) async fn what_is_done_to_files_of_a_session_is_recorded(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    session.make_directory("/work/a/b").await.expect("made");
    put(&session, "/work/a/one", b"hello").await.expect("it fits");
    put(&session, "/work/a/b/two", b"world!").await.expect("it fits");
    let mut tree = session.get("/work/a", 1 << 20, 100);
    while tree.next().await.is_some() {}
    session.rename("/work/a/one", "/work/moved").await.expect("renamed");
    session.remove("/work/a").await.expect("removed");
    assert_eq!(get(&session, "/work/a").await, Err(FileError::Kernel(2)));
    // Nothing moves or changes by looking.
    session.list("/work", 1).await.expect("a list");
    // The end of the session finds this one half done.
    let (input, _done) = session.put("/work/half", 0o644);
    input.send(b"hal".to_vec()).await.expect("there is room");
    let id = session.id().to_owned();
    close(rig, session).await;

    let notes = rig.notes(&id);
    let told: Vec<String> = notes
        .iter()
        .map(|note| {
            let files = &note.entry.body["files"];
            let word = |key: &str| files[key].as_str().unwrap_or("-").to_owned();
            [word("operation"), word("path"), word("to"), files["bytes"].to_string(), word("result")]
                .join(" ")
        })
        .collect();
    let expected = [
        "make-directory /work/a/b - null ok",
        "put /work/a/one - 5 ok",
        "put /work/a/b/two - 6 ok",
        "get /work/a - 11 ok",
        "rename /work/a/one /work/moved null ok",
        "remove /work/a - null ok",
        "get /work/a - 0 No such file or directory (os error 2)",
        "put /work/half - 3 the session has ended",
    ];
    assert_eq!(told, expected);
    let digest_of = |record: usize, name: &str| {
        let subject = notes[record].entry.subjects.iter().find(|subject| subject.name == name);
        subject.unwrap_or_else(|| panic!("{name} is not among {:?}", notes[record].entry.subjects)).sha256
    };
    let sha256 = |bytes: &[u8]| -> [u8; 32] { Sha256::digest(bytes).into() };
    assert_eq!(digest_of(1, "/work/a/one"), sha256(b"hello"));
    assert_eq!(notes[1].entry.body["files"]["sha256"], hex(&sha256(b"hello")));
    assert_eq!(digest_of(3, "/work/a/one"), sha256(b"hello"));
    assert_eq!(digest_of(3, "/work/a/b/two"), sha256(b"world!"));
    assert_eq!(digest_of(7, "/work/half"), sha256(b"hal"));
    for note in &notes {
        assert_eq!(note.entry.subjects[0].name, "request");
        assert_eq!(rig.records(&note.entry.id).len(), 1, "it has an id of its own");
    }
}

pub(crate) async fn code_for_an_interpreter_is_recorded(rig: &Rig, stack: &Stack) {
    let Some(session) = open(rig, stack).await else { return };
    let (_, executed) = run(&session, shell("true")).await;
    let (process, digest) = (executed.outcome.id, [7; 32]);
    let noted = session.note_code(&process, "python", digest, 42, "ok").await.expect("it is noted");
    for stranger in ["", "0123456789abcdef0123456789abcdef", session.id()] {
        let refused = session.note_code(stranger, "python", digest, 42, "ok").await;
        assert_eq!(refused, Err(NoteError::UnknownProcess), "{stranger:?}");
    }
    let [record] = &rig.records(&noted)[..] else { panic!("not one record") };
    assert_eq!(record.entry.body["session"], session.id());
    let code = &record.entry.body["code"];
    assert_eq!((&code["process"], &code["language"]), (&process.into(), &"python".into()));
    assert_eq!((&code["bytes"], &code["result"]), (&42.into(), &"ok".into()));
    assert_eq!((code["sha256"].as_str(), record.entry.subjects[0].sha256), (Some(&*hex(&digest)), digest));
    assert_eq!(rig.notes(session.id()).len(), 1, "what is refused is not noted");
    session.end(Cause::Cancelled).await;
    assert_eq!(session.note_code("x", "python", digest, 1, "ok").await, Err(NoteError::Ended));
}

async fn put(session: &Session, path: &str, bytes: &[u8]) -> Result<(), FileError> {
    let (input, done) = session.put(path, 0o644);
    for part in bytes.chunks(100_000) {
        if input.send(part.to_vec()).await.is_err() {
            break;
        }
    }
    input.end();
    done.await.expect("an answer")
}

async fn get(session: &Session, path: &str) -> Result<Vec<u8>, FileError> {
    let mut pieces = session.get(path, 1 << 30, 1);
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        match piece {
            Piece::Entry { path, entry: Entry::File { .. } } => assert_eq!(path, ""),
            Piece::Data(more) => bytes.extend(more),
            Piece::Failed(error) => return Err(error),
            other => panic!("{other:?}"),
        }
    }
    Ok(bytes)
}
