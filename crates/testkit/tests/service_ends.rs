//! How `casemate serve` ends: asked to, told to, or killed, and always in the middle of something.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use common::server::{HUNG, Kept, Server, answer, request};
use common::{Home, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

const ROUNDS: usize = 10;
/// How long each server lives under load.
const LIFE: Duration = Duration::from_millis(700);

/// What clients of one server know for certain when it is killed.
#[derive(Default)]
struct Acknowledged {
    /// By id, what they were told of an execution.
    answered: BTreeMap<String, Value>,
    /// By key, what they were told; nothing if they were told nothing.
    keyed: BTreeMap<String, Option<Value>>,
    /// Executions that were said to have begun, and nothing more.
    begun: Vec<String>,
}

fn post(path: &str, body: &Value, headers: &[(&str, &str)]) -> String {
    request("POST", path, None, headers, Some(&body.to_string()))
}

fn echo(unique: &str) -> Value {
    json!({"command": ["echo", unique]})
}

/// One request after the other until nobody answers any more.
fn ask_on(server: &Server<'_>, name: &str, with_keys: bool, known: &Mutex<Acknowledged>) {
    let Ok(mut connection) = Kept::connect(server.address) else { return };
    for n in 0.. {
        let key = format!("{name}-{n}");
        let headers = [("idempotency-key", key.as_str())];
        let asked = post("/v1/executions", &echo(&key), if with_keys { &headers } else { &[] });
        if with_keys {
            known.lock().expect("no panic").keyed.insert(key.clone(), None);
        }
        let Ok(told) = connection.ask(&asked) else { return };
        let told = told.is(200).json();
        assert_eq!(told["stdout"], format!("{key}\n"), "{told}");
        let mut known = known.lock().expect("no panic");
        known.answered.insert(told["id"].as_str().expect("an id").to_owned(), told.clone());
        if with_keys {
            known.keyed.insert(key, Some(told));
        }
    }
}

/// Begins something long, and hears that it has begun.
fn begin_streaming(server: &Server<'_>) -> (TcpStream, String) {
    let asked = json!({"command": ["sleep", "60"], "stream": true, "limits": {"wall-time": "90s"}});
    let mut stream = server.connect();
    stream.write_all(post("/v1/executions", &asked, &[]).as_bytes()).expect("it listens");
    let mut said = String::new();
    loop {
        let mut some = [0; 256];
        let read = stream.read(&mut some).expect("an event");
        assert!(read > 0, "it ended: {said}");
        said += &String::from_utf8_lossy(&some[..read]);
        if let Some((_, rest)) = said.split_once("\"id\":\"")
            && let Some((id, _)) = rest.split_once('"')
        {
            return (stream, id.to_owned());
        }
    }
}

fn open_session(server: &Server<'_>) -> String {
    let session = server.post("/v1/sessions", &json!({})).is(201).json();
    let path = format!("/v1/sessions/{}", session["id"].as_str().expect("an id"));
    let asked = json!({"command": ["sleep", "60"], "background": true});
    server.post(&format!("{path}/processes"), &asked).is(201);
    path
}

/// All of it at once, then the end.
fn kill_under_load(mut server: Server<'_>) -> (Acknowledged, String) {
    let known = Mutex::new(Acknowledged::default());
    let session = open_session(&server);
    let followed = format!("{session}/processes");
    let pid = server.get(&followed).is(200).json()["processes"][0]["pid"].to_string();
    let mut following = server.connect();
    let output = request("GET", &format!("{followed}/{pid}/output"), None, &[], None);
    following.write_all(output.as_bytes()).expect("it listens");
    let (_streaming, begun) = begin_streaming(&server);
    known.lock().expect("no panic").begun.push(begun);
    thread::scope(|scope| {
        for n in 0..4 {
            let (server, known) = (&server, &known);
            scope.spawn(move || ask_on(server, &format!("{}-{n}", server.child.id()), n % 2 == 0, known));
        }
        thread::sleep(LIFE);
        server.signal(Signal::KILL);
    });
    server.child.wait().expect("its own child");
    (known.into_inner().expect("no panic"), session)
}

#[test]
fn killed_under_load_ten_times_it_leaves_nothing_and_says_so() {
    let home = Home::new();
    let socket = home.beside("socket").display().to_string();
    let start = || Server::start_with(&home, &["--socket", &socket]);
    let mut total = 0;
    let mut interrupted = 0;
    for _ in 0..ROUNDS {
        let (known, session) = kill_under_load(start());
        home.soon_no_process_left(&Default::default());
        // The next one clears away what the last one could not.
        let server = start();
        home.verify();
        assert!(home.live_runs().len() <= 1, "only its own: {:?}", home.live_runs());
        for (id, told) in &known.answered {
            let shown = server.get(&format!("/v1/executions/{id}")).is(200).json();
            assert_eq!((&shown["state"], &shown["outcome"]["receipt"]), (&json!("exited"), &told["receipt"]));
            server.get(&format!("/v1/receipts/{id}")).is(200);
        }
        for id in &known.begun {
            let shown = server.get(&format!("/v1/executions/{id}")).is(200).json();
            assert_eq!(shown["state"], "interrupted", "{shown}");
        }
        let shown = server.get(&session).is(200).json();
        assert_eq!(shown["state"], "interrupted", "{shown}");
        let listed = server.get("/v1/sessions").is(200).json();
        assert_eq!(listed["sessions"], json!([]), "no session outlives its server");
        let listed = server.get("/v1/executions?limit=100").is(200).json();
        assert!(!listed.to_string().contains("\"running\""), "{listed}");
        // What was said is said again. What was not said was not kept, and is done now.
        for (key, told) in &known.keyed {
            let body = echo(key).to_string();
            let headers = [("idempotency-key", key.as_str())];
            let again = server.ask_with("POST", "/v1/executions", None, &headers, Some(&body)).is(200).json();
            assert_eq!(again["stdout"], format!("{key}\n"));
            assert!(told.as_ref().is_none_or(|told| *told == again), "{told:?}, then {again}");
        }
        total += known.answered.len();
        interrupted += known.keyed.values().filter(|told| told.is_none()).count();
        server.stop();
        let records = home.records();
        for id in known.answered.keys() {
            let closed = records.iter().any(|record| record["id"] == **id && record["event"] == "closed");
            assert!(closed, "{id} was acknowledged and has no receipt");
        }
        for id in &known.begun {
            assert_eq!(home.events_of(id), ["opened", "interrupted"]);
        }
    }
    assert!(total > 10 * ROUNDS, "only {total} were answered");
    assert!(interrupted > 0, "no key was in flight when it was killed");
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn asked_to_end_it_finishes_what_it_has_begun() {
    let home = Home::new();
    let mut server = Server::start_with(&home, &["--cells", "3", "--drain", "20s"]);
    let session = open_session(&server);
    let asked = post("/v1/executions", &json!({"command": ["sh", "-c", "sleep 3; echo done"]}), &[]);
    let send = |request: &str| {
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).expect("it listens");
        stream
    };
    let mut running: Vec<TcpStream> = (0..2).map(|_| send(&asked)).collect();
    eventually("they run", HUNG, || server.number("casemate_cells") == 3.0);
    let mut waiting: Vec<TcpStream> = (0..3).map(|_| send(&asked)).collect();
    eventually("they wait", HUNG, || server.number("casemate_waiting") == 3.0);
    let (first, second) = asked.split_at(20);
    let mut half = send(first);
    let mut following = send(&request("GET", &format!("{session}/files/watch?path=/work"), None, &[], None));
    eventually("it watches", HUNG, || following.peek(&mut [0]).is_ok_and(|n| n > 0));
    let began = Instant::now();
    server.signal(Signal::TERM);
    eventually("it listens no more", HUNG, || TcpStream::connect(server.address).is_err());
    // What was half said by then is refused, or was not heard at all.
    let _ = half.write_all(second.as_bytes());
    let told = answer(&mut half);
    assert!([0, 503].contains(&told.status), "{}", told.text());
    for stream in &mut running {
        let told = answer(stream).is(200).json();
        assert_eq!((&told["stdout"], &told["status"]["code"]), (&json!("done\n"), &json!(0)), "{told}");
    }
    for stream in &mut waiting {
        let told = answer(stream);
        assert!(told.head.contains("retry-after"), "{}", told.text());
        told.problem(503, "draining");
    }
    assert_eq!(answer(&mut following).status, 200, "a watch ends with its session");
    let status = server.child.wait().expect("its own child");
    assert!(status.success(), "{status}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    home.nothing_left();
    assert_eq!(home.verify()["open"], json!([]));
}

#[test]
fn what_takes_too_long_is_ended_when_its_time_is_over() {
    let home = Home::new();
    let mut server = Server::start_with(&home, &["--drain", "1s"]);
    let (_streaming, id) = begin_streaming(&server);
    let began = Instant::now();
    server.signal(Signal::TERM);
    let status = server.child.wait().expect("its own child");
    assert!(status.success() && began.elapsed() < Duration::from_secs(10), "{status} {:?}", began.elapsed());
    home.nothing_left();
    assert_eq!(home.events_of(&id), ["opened", "closed"]);
    assert_eq!(home.verify()["open"], json!([]));
}

#[test]
fn told_twice_it_ends_at_once() {
    for second in [Signal::TERM, Signal::INT] {
        let home = Home::new();
        let mut server = Server::start(&home);
        let (_streaming, id) = begin_streaming(&server);
        open_session(&server);
        server.signal(Signal::TERM);
        eventually("it listens no more", HUNG, || TcpStream::connect(server.address).is_err());
        thread::sleep(Duration::from_millis(200));
        assert_eq!(server.child.try_wait().expect("its own child"), None, "it waits for what runs");
        let began = Instant::now();
        server.signal(second);
        let status = server.child.wait().expect("its own child");
        assert!(
            !status.success() && began.elapsed() < Duration::from_secs(5),
            "{status} {:?}",
            began.elapsed()
        );
        home.soon_no_process_left(&Default::default());
        // Whatever was cut off is on record, now or with the next start.
        let next = Server::start(&home);
        let shown = next.get(&format!("/v1/executions/{id}")).is(200).json();
        assert!(shown["state"] == "interrupted" || shown["state"] == "killed", "{shown}");
        next.stop();
    }
}
