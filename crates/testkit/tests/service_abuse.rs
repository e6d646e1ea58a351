//! `casemate serve` and clients that do what no client should: each gets the right status or none, nothing is left of what it began,
//! and everybody else is still answered. Where it can be shown, the attack is shown to be one.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use common::server::{Answer, HUNG, Server, answer, request, token};
use common::{Home, eventually};
use serde_json::{Value, json};

/// What a request that costs nothing may take while others misbehave, on a machine that does other things, too.
const PROMPT: Duration = Duration::from_secs(5);
/// How long the server waits: for a head, for a body, for a client that takes nothing.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
const BODY_PATIENCE: Duration = Duration::from_secs(30);
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;

/// What a server holds when nobody wants anything of it.
struct Calm {
    descriptors: usize,
    memory: u64,
}

impl Calm {
    /// After it has done everything once: from then on nothing has a reason to grow.
    fn of(server: &Server<'_>) -> Calm {
        server.post("/v1/executions", &json!({"command": ["true"]})).is(200);
        let session = Session::open(server);
        session.run("true");
        session.end();
        Calm { descriptors: server.descriptors(), memory: server.memory() }
    }

    /// Descriptors may differ by cells that are built ahead. Memory by what an allocator keeps.
    #[track_caller]
    fn returns(&self, server: &Server<'_>) {
        for (what, rest) in [
            ("casemate_cells", 0.0),
            ("casemate_waiting", 0.0),
            ("casemate_sessions", 0.0),
            ("casemate_connections", 1.0),
        ] {
            let within = BODY_PATIENCE + HUNG;
            eventually(&format!("{what} is {rest} again"), within, || server.number(what) <= rest);
        }
        eventually("descriptors are closed", HUNG, || server.descriptors() <= self.descriptors + 8);
        let memory = server.memory();
        assert!(memory < self.memory + 64 * MIB, "{} MiB, then {} MiB", self.memory / MIB, memory / MIB);
    }
}

/// A session of one server, used from outside.
struct Session<'a> {
    server: &'a Server<'a>,
    path: String,
}

impl<'a> Session<'a> {
    fn open(server: &'a Server<'a>) -> Session<'a> {
        Session::with(server, &json!({}))
    }

    fn with(server: &'a Server<'a>, asked: &Value) -> Session<'a> {
        let told = server.post("/v1/sessions", asked).is(201).json();
        Session { server, path: format!("/v1/sessions/{}", told["id"].as_str().expect("an id")) }
    }

    fn at(&self, rest: &str) -> String {
        format!("{}{rest}", self.path)
    }

    #[track_caller]
    fn run(&self, script: &str) -> String {
        let asked = json!({"command": ["sh", "-c", script]});
        let told = self.server.post(&self.at("/processes"), &asked).is(200).json();
        assert_eq!(told["status"], json!({"kind": "exited", "code": 0}), "{told}");
        told["stdout"].as_str().expect("text").to_owned()
    }

    #[track_caller]
    fn end(self) {
        self.server.ask("DELETE", &self.path, None, None).is(200);
    }
}

/// Others are answered, and soon.
#[track_caller]
fn others_are_answered(server: &Server<'_>) {
    let began = Instant::now();
    server.get("/healthz").is(200);
    let told = server.post("/v1/executions", &json!({"command": ["echo", "other"]})).is(200).json();
    assert_eq!(told["stdout"], "other\n");
    assert!(began.elapsed() < PROMPT, "others waited for {:?}", began.elapsed());
}

fn begin(server: &Server<'_>, request: &str) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).expect("it listens");
    stream
}

fn post(path: &str, body: &Value) -> String {
    request("POST", path, None, &[], Some(&body.to_string()))
}

/// Reads until this has come.
#[track_caller]
fn read_until(stream: &mut TcpStream, wanted: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let mut byte = [0];
        let read = stream.read(&mut byte).expect("something comes");
        assert_eq!(read, 1, "it ended with {}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
}

/// Nothing comes for this long, and the connection stays.
fn is_silent(stream: &TcpStream, time: Duration) -> bool {
    stream.set_read_timeout(Some(time)).expect("a time-out");
    let peeked = stream.peek(&mut [0]);
    stream.set_read_timeout(Some(HUNG)).expect("a time-out");
    peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Whether the other side has closed, without looking at what it said.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let mut sink = [0; 4096];
    let closed = loop {
        match stream.read(&mut sink) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) => break error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    stream.set_nonblocking(false).expect("a socket");
    closed
}

#[test]
fn whoever_goes_away_at_any_time_leaves_nothing() {
    let home = Home::new();
    let server = Server::start_with(&home, &["--cells", "1"]);
    let calm = Calm::of(&server);
    let sleep = json!({"command": ["sleep", "50"], "limits": {"wall-time": "60s"}});
    // In the queue, behind somebody who has the only cell.
    let first = begin(&server, &post("/v1/executions", &sleep));
    eventually("it runs", HUNG, || server.number("casemate_cells") == 1.0);
    let queued: Vec<TcpStream> = (0..100).map(|_| begin(&server, &post("/v1/executions", &sleep))).collect();
    eventually("they wait", HUNG, || server.number("casemate_waiting") == 100.0);
    drop(queued);
    eventually("they wait no more", HUNG, || server.number("casemate_waiting") == 0.0);
    assert_eq!(server.number("casemate_cells"), 1.0, "the one that runs is not touched");
    drop(first);
    calm.returns(&server);
    // While it is streamed, and while the answer is on its way.
    let stream = json!({"code": "import time\nprint(1, flush=True)\ntime.sleep(50)", "stream": true, "limits": {"wall-time": "60s"}});
    let mut streaming = begin(&server, &post("/v1/executions", &stream));
    read_until(&mut streaming, "event: stdout");
    drop(streaming);
    calm.returns(&server);
    let large = json!({"command": ["head", "-c", "900000", "/dev/zero"]});
    let mut answering = begin(&server, &post("/v1/executions", &large));
    read_until(&mut answering, "200 OK");
    drop(answering);
    calm.returns(&server);
    let listed = server.get("/v1/executions").is(200).json();
    let states = listed["executions"].as_array().expect("a list").iter().map(|known| known["state"].clone());
    let running = states.filter(|state| state == "running").count();
    assert_eq!(running, 0, "{listed}");
    server.stop();
}

#[test]
fn whoever_goes_away_from_a_session_leaves_nothing_in_it() {
    let home = Home::new();
    let server = Server::start(&home);
    let calm = Calm::of(&server);
    // While it is opened: it is either not there, or there to be found.
    for wait in 0..20 {
        let opening = begin(&server, &post("/v1/sessions", &json!({})));
        thread::sleep(Duration::from_millis(2 * wait));
        drop(opening);
    }
    eventually("what was begun is done", HUNG, || {
        server.number("casemate_cells") == server.number("casemate_sessions")
    });
    for known in server.get("/v1/sessions").is(200).json()["sessions"].as_array().expect("a list") {
        let id = known["id"].as_str().expect("an id");
        server.ask("DELETE", &format!("/v1/sessions/{id}"), None, None).is(200);
    }
    calm.returns(&server);
    let session = Session::open(&server);
    // While a program starts or runs: nothing runs for nobody.
    for wait in 0..20 {
        let asked = json!({"command": ["sleep", "777"]});
        let starting = begin(&server, &post(&session.at("/processes"), &asked));
        thread::sleep(Duration::from_millis(5 * wait));
        drop(starting);
    }
    let sleepers =
        "n=0; for p in /proc/[0-9]*; do read -r c < $p/comm && [ $c = sleep ] && n=$((n+1)); done; echo $n";
    eventually("no program is left", HUNG, || session.run(sleepers) == "0\n");
    // In the middle of a file, or of a watch: more often than a session can have at the same time.
    for _ in 0..80 {
        let put = request("PUT", &session.at("/files?path=/work/half"), None, &[], None);
        drop(begin(&server, &put.replace("content-length: 0", "content-length: 9999")));
        let watch = request("GET", &session.at("/files/watch?path=/work"), None, &[], None);
        drop(begin(&server, &watch));
    }
    let whole = || server.ask_with("PUT", &session.at("/files?path=/work/whole"), None, &[], Some("whole"));
    eventually("there is room for others", HUNG, || whole().status == 201);
    assert_eq!(session.run("cat whole"), "whole");
    session.end();
    calm.returns(&server);
    server.stop();
}

/// The first program of a session is looked at from outside before it runs, and can be given up at that very moment.
#[test]
fn whoever_gives_up_the_first_program_leaves_a_session_that_works() {
    let home = Home::new();
    let server = Server::start(&home);
    for wait in 0..12 {
        // With hardly any time of its own, it takes long to notice that it may go.
        let session = Session::with(&server, &json!({"limits": {"cpus": "0.05"}}));
        let asked = json!({"command": ["sleep", "777"]});
        let starting = begin(&server, &post(&session.at("/processes"), &asked));
        thread::sleep(Duration::from_millis(wait));
        drop(starting);
        assert_eq!(session.run("echo next"), "next\n");
        session.end();
    }
    server.stop();
}

#[test]
fn slow_readers_slow_down_nobody_else_and_are_given_up() {
    let home = Home::new();
    let server = Server::start(&home);
    let calm = Calm::of(&server);
    let limits = json!({"output": "64M", "wall-time": "120s", "memory": "256M"});
    let flood = json!({"command": ["head", "-c", "60000000", "/dev/zero"], "stream": true, "limits": limits});
    // Whoever reads has it all, soon.
    let began = Instant::now();
    let told = server.post("/v1/executions", &flood).is(200);
    let read = began.elapsed();
    assert!(told.body.len() > 60_000_000 && read < WRITE_PATIENCE, "{} bytes in {read:?}", told.body.len());
    drop(told);
    let session = Session::with(&server, &json!({"limits": {"disk": "80M", "memory": "256M"}}));
    session.run("head -c 70000000 /dev/zero > large");
    let download = request("GET", &session.at("/files?path=/work/large"), None, &[], None);
    let before = server.memory();
    let began = Instant::now();
    let mut slow: Vec<TcpStream> =
        [post("/v1/executions", &flood), post(&session.at("/processes"), &flood), download]
            .iter()
            .map(|request| begin(&server, request))
            .collect();
    while began.elapsed() < WRITE_PATIENCE - Duration::from_secs(10) {
        others_are_answered(&server);
        let memory = server.memory();
        assert!(memory < before + 32 * MIB, "{} MiB, then {} MiB", before / MIB, memory / MIB);
        thread::sleep(Duration::from_millis(500));
    }
    let listed = server.get("/v1/executions").is(200).json();
    let running = |listed: &Value| {
        listed["executions"].as_array().expect("a list").iter().any(|known| known["state"] == "running")
    };
    assert!(running(&listed), "it waits for its reader: {listed}");
    eventually("they are given up", WRITE_PATIENCE + HUNG, || server.number("casemate_connections") == 1.0);
    assert!(began.elapsed() >= WRITE_PATIENCE, "not before {:?}", began.elapsed());
    assert!(slow.iter_mut().all(is_closed));
    session.end();
    calm.returns(&server);
    server.stop();
}

#[test]
fn what_does_not_arrive_is_not_waited_for() {
    let home = Home::new();
    let server = Server::start(&home);
    let calm = Calm::of(&server);
    let session = Session::open(&server);
    let whole = post("/v1/executions", &json!({"command": ["true"]}));
    let half = &whole[..whole.len() - 5];
    let put = request("PUT", &session.at("/files?path=/work/half"), None, &[], None);
    let put = put.replace("content-length: 0", "content-length: 9");
    let began = Instant::now();
    let mut dawdling = [half, &put].map(|request| begin(&server, request));
    // Heads that come byte by byte, more of them than there are threads or cells.
    let mut dripping: Vec<TcpStream> =
        (0..500).map(|_| begin(&server, "GET /healthz HTTP/1.1\r\n")).collect();
    eventually("they are held", HUNG, || server.number("casemate_connections") > 500.0);
    while began.elapsed() < HEAD_PATIENCE / 2 {
        others_are_answered(&server);
        for stream in &mut dripping {
            let _ = stream.write_all(b"x");
        }
        thread::sleep(Duration::from_millis(500));
    }
    let held = dripping.iter_mut().filter_map(|stream| (!is_closed(stream)).then_some(())).count();
    assert_eq!(held, 500, "until its time is over, each takes a connection");
    eventually("their time is over", HEAD_PATIENCE + HUNG, || {
        dripping.iter_mut().for_each(|stream| drop(stream.write_all(b"x")));
        server.number("casemate_connections") <= 3.0
    });
    for stream in &mut dawdling {
        answer(stream).problem(408, "too-slow");
    }
    assert!(began.elapsed() >= BODY_PATIENCE, "{:?}", began.elapsed());
    // A connection that is kept alive for nothing is not kept for long.
    let mut idle = begin(&server, &request("GET", "/healthz", None, &[], None));
    read_until(&mut idle, "ok\n");
    eventually("it is closed", HEAD_PATIENCE + HUNG, || is_closed(&mut idle));
    session.end();
    calm.returns(&server);
    server.stop();
}

#[test]
fn too_much_is_refused_before_it_is_read() {
    let home = Home::new();
    let server = Server::start(&home);
    let calm = Calm::of(&server);
    for extra in [&[][..], &[("expect", "100-continue")]] {
        let head = request("POST", "/v1/executions", None, extra, None);
        for length in ["16777217", "1000000000000", "18446744073709551615"] {
            let mut announced =
                begin(&server, &head.replace("content-length: 0", &format!("content-length: {length}")));
            let began = Instant::now();
            let told = answer(&mut announced);
            // The last one is a length that nothing has: it does not get past the head.
            assert_eq!(told.status, if length.starts_with("184") { 431 } else { 413 }, "{}", told.text());
            assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
        }
    }
    // Not announced: as much is read as is taken, and no more. One that hears nothing before it has sent all still hears why.
    let head = request("POST", "/v1/executions", None, &[("transfer-encoding", "chunked")], None);
    let mut chunked = begin(&server, &head.replace("content-length: 0\r\n", ""));
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    (0..20).for_each(|_| chunked.write_all(chunk.as_bytes()).expect("it is taken"));
    answer(&mut chunked).problem(413, "too-large");
    // Endless: at some point nobody listens any more.
    let mut endless = begin(&server, &head.replace("content-length: 0\r\n", ""));
    let sent = (0..10_000).take_while(|_| endless.write_all(chunk.as_bytes()).is_ok()).count();
    assert!((16..1000).contains(&sent), "{sent} MiB were taken");
    drop(endless);
    // Without a token nothing is read at all, and with one that is no good neither.
    let large = "x".repeat(8 << 20);
    server
        .ask_with("POST", "/v1/executions", Some("cmt_0_0"), &[], Some(&large))
        .problem(401, "unauthenticated");
    // In a session it is the disk that is full.
    let session = Session::with(&server, &json!({"limits": {"disk": "4M"}}));
    let put = server.ask_with("PUT", &session.at("/files?path=/work/large"), None, &[], Some(&large));
    put.problem(507, "no-space");
    session.end();
    calm.returns(&server);
    server.stop();
}

#[test]
fn what_is_ambiguous_is_not_guessed() {
    let home = Home::new();
    let server = Server::start(&home);
    let get = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n";
    let end = "connection: close\r\n\r\n";
    let head = "POST /v1/explain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    for (raw, status) in [
        // The control: this one is fine.
        (format!("{get}{end}"), 200),
        (format!("{head}content-length: 2\r\ncontent-length: 3\r\n{end}{{}}"), 400),
        (format!("{head}content-length: 2, 3\r\n{end}{{}}"), 400),
        (format!("{head}content-length: +2\r\n{end}{{}}"), 400),
        (format!("{head}content-length: 0x2\r\n{end}{{}}"), 400),
        (format!("{head}content-length: -1\r\n{end}{{}}"), 400),
        (format!("{head}content-length : 2\r\n{end}{{}}"), 400),
        (format!("{head}transfer-encoding: gzip\r\n{end}{{}}"), 400),
        (format!("{head}transfer-encoding: chunked, identity\r\n{end}{{}}"), 400),
        (format!("{head}transfer-encoding: chunked\r\n{end}zz\r\n{{}}\r\n0\r\n\r\n"), 400),
        (format!("{head}transfer-encoding: chunked\r\n{end}ffffffffffffffffff\r\n{{}}"), 400),
        ("POST /v1/explain HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".into(), 400),
        (format!("{get} folded: x\r\n{end}"), 400),
        (format!("{get}x: a\0b\r\n{end}"), 400),
        ("GET /healthz\r\n".into(), 400),
        ("GET /healthz HTTP/9.9\r\n\r\n".into(), 400),
        // In another protocol than it would be answered in, an answer makes no sense.
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 0),
        ("\0\0\0\0\r\n\r\n".into(), 400),
        (format!("GET /health z HTTP/1.1\r\n{end}"), 400),
        (format!("GET http://localhost/healthz HTTP/1.1\r\nhost: localhost\r\n{end}"), 200),
        (format!("OPTIONS * HTTP/1.1\r\nhost: localhost\r\n{end}"), 404),
        (format!("CONNECT localhost:22 HTTP/1.1\r\nhost: localhost:22\r\n{end}"), 404),
        (format!("GET /{} HTTP/1.1\r\n{end}", "a".repeat(100_000)), 414),
    ] {
        let told = server.raw(raw.as_bytes());
        assert_eq!(told.status, status, "{raw:.120}: {}", told.text());
    }
    let absolute = format!("GET http://localhost/v1/executions HTTP/1.1\r\nhost: evil.example\r\n{end}");
    server.raw(absolute.as_bytes()).problem(403, "forbidden");
    // Two lengths of two kinds: what follows the end of either is not taken for a request.
    for lengths in
        ["content-length: 4\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 4"]
    {
        let raw = format!("{head}{lengths}\r\n\r\n0\r\n\r\n{get}{end}");
        let told = server.raw(raw.as_bytes()).text();
        assert_eq!(told.matches("HTTP/1.1 ").count() + told.matches("http/1.1 ").count(), 1, "{told}");
    }
    server.stop();
}

#[test]
fn requests_in_a_row_are_answered_in_a_row() {
    let home = Home::new();
    let server = Server::start(&home);
    let calm = Calm::of(&server);
    let row: String = (0..20)
        .map(|n| post("/v1/executions", &json!({"command": ["echo", format!("number {n}.")]})))
        .chain([request("GET", "/healthz", None, &[("connection", "close")], None)])
        .collect();
    let told = String::from_utf8(server.raw(row.as_bytes()).body).expect("text");
    let places: Vec<Option<usize>> = (0..20).map(|n| told.find(&format!("number {n}."))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    assert!(told.ends_with("ok\n"), "{told}");
    // Asked a thousand times without ever reading an answer: it gets no further than its connection holds.
    let mut greedy = server.connect();
    greedy.set_write_timeout(Some(Duration::from_secs(1))).expect("a time-out");
    let ask = request("GET", "/v1/executions", None, &[], None).repeat(100);
    let asked = (0..1000).take_while(|_| greedy.write_all(ask.as_bytes()).is_ok()).count();
    assert!(asked < 1000, "it waits for somebody to take its answers");
    others_are_answered(&server);
    drop(greedy);
    calm.returns(&server);
    server.stop();
}

#[test]
fn too_many_connections_wait_their_turn() {
    let home = Home::new();
    // Half of them are for connections. They are held by saying nothing, for as long as a head may take.
    let most = 300;
    let server = Server::start_limited(&home, 2 * most);
    let calm = Calm::of(&server);
    let mut held = Vec::new();
    eventually("they are held", HUNG, || {
        held.retain_mut(|stream| !is_closed(stream));
        held.extend((held.len()..most).map(|_| server.connect()));
        server.descriptors() > most
    });
    let mut late = begin(&server, &request("GET", "/healthz", None, &[("connection", "close")], None));
    assert!(is_silent(&late, Duration::from_millis(500)), "there is no room for it");
    drop(held);
    assert_eq!(answer(&mut late).is(200).body, b"ok\n");
    calm.returns(&server);
    server.stop();
}

/// Every address with somebody's id in it, as the source has them, and what is sent there.
fn addresses_with_ids() -> Vec<(&'static str, String)> {
    const SOURCE: &str = include_str!("../../service/src/api.rs");
    let mut found = Vec::new();
    for route in SOURCE.split(".route(").skip(1) {
        let path = route.split('"').nth(1).expect("a path");
        let methods = ["get", "post", "put", "patch", "delete"];
        let handlers = route.split(".fallback").next().unwrap_or_default();
        for method in methods.into_iter().filter(|method| handlers.contains(&format!("{method}("))) {
            if path.contains('{') {
                found.push((method, path.to_owned()));
            }
        }
    }
    found
}

/// What makes sense at an address: its query, and its body.
fn sensible(method: &str, path: &str) -> (&'static str, Value) {
    let last = path.rsplit('/').next().unwrap_or_default();
    match (method, last) {
        ("post", "processes") => ("", json!({"command": ["true"]})),
        ("post", "signal") => ("", json!({"signal": 15})),
        ("post", "mkdir") => ("", json!({"path": "/work/x"})),
        ("post", "rename") => ("", json!({"from": "/work/kept", "to": "/work/y"})),
        ("patch", "{id}") => ("", json!({"ttl": "5m"})),
        ("post", "code") => ("", json!({"code": "1"})),
        ("post", "contexts") => ("", json!({})),
        ("get", "files" | "stat" | "archive") => ("?path=/work/kept", Value::Null),
        ("get", "list" | "watch") => ("?path=/work", Value::Null),
        ("put", "archive") => ("?path=/work/x", Value::Null),
        ("put" | "delete", "files") => ("?path=/work/kept", Value::Null),
        _ => ("", Value::Null),
    }
}

#[test]
fn what_is_somebody_elses_is_nowhere() {
    let home = Home::new();
    let [owner, other] = ["owner", "other"].map(|tenant| token(&home, &["--tenant", tenant]));
    let late = token(&home, &["--tenant", "owner", "--expires", "1s"]);
    let gone = token(&home, &["--tenant", "owner"]);
    let gone_id = gone.split('_').nth(1).expect("an id").to_owned();
    home.casemate(&["token", "revoke", &gone_id]).expect(0);
    let server = Server::start(&home);
    let ask = |token: &str, method: &str, path: &str, body: &Value| {
        let body = (!body.is_null()).then_some(body);
        server.ask(&method.to_uppercase(), path, Some(token), body)
    };
    // Until one of the tokens has expired.
    thread::sleep(Duration::from_millis(2100));
    let told = ask(&owner, "post", "/v1/executions", &json!({"command": ["true"]})).is(200).json();
    let execution = told["id"].as_str().expect("an id").to_owned();
    let told = ask(&owner, "post", "/v1/sessions", &json!({})).is(201).json();
    let session = told["id"].as_str().expect("an id").to_owned();
    let sleeping = json!({"command": ["sleep", "60"], "background": true, "stdin": true});
    let told = ask(&owner, "post", &format!("/v1/sessions/{session}/processes"), &sleeping).is(201).json();
    let (process, pid) = (told["id"].as_str().expect("an id").to_owned(), told["pid"].to_string());
    ask(&owner, "put", &format!("/v1/sessions/{session}/files?path=/work/kept"), &json!("x")).is(201);
    let kept = json!({"volumes": [{"name": "data", "path": "/work/data"}]});
    let told = ask(&owner, "post", "/v1/sessions", &kept).is(201).json();
    let keeper = told["id"].as_str().expect("an id").to_owned();
    ask(&owner, "delete", &format!("/v1/sessions/{keeper}"), &Value::Null).is(200);
    let (context, volume) = ("0".repeat(32), "data".to_owned());
    let filled = |pattern: &str, id: &str| {
        let name = if pattern.starts_with("/v1/volumes") { id } else { &volume };
        let path = pattern.replace("{id}", id).replace("{pid}", &pid);
        path.replace("{context}", &context).replace("{name}", name)
    };
    let mut addresses = addresses_with_ids();
    // What images there are is everybody's business.
    addresses.retain(|(_, pattern)| !pattern.starts_with("/v1/images"));
    assert!(addresses.len() > 20, "{addresses:?}");
    for (method, pattern) in &addresses {
        let ids = match pattern.split('/').nth(2) {
            Some("executions") => vec![&execution],
            Some("sessions") => vec![&session],
            Some("receipts") => vec![&execution, &session, &process],
            Some("volumes") => vec![&volume],
            other => panic!("{other:?} of {pattern} is new here: whose ids does it take?"),
        };
        let (query, body) = sensible(method, pattern);
        for id in ids {
            let place = |id: &str| format!("{}{query}", filled(pattern, id));
            let told = ask(&other, method, &place(id), &body);
            let nobodys = ask(&other, method, &place(&"0".repeat(id.len())), &body);
            assert_eq!((told.status, &told.body), (nobodys.status, &nobodys.body), "{method} {pattern}");
            told.problem(404, "not-found");
            for bad in [&late, &gone, "", "cmt_", "x"] {
                ask(bad, method, &place(id), &body).problem(401, "unauthenticated");
            }
        }
    }
    // Their owner finds them all, and nothing has happened to any.
    // (Who asks for a terminal has to speak its protocol.)
    let is_plain = |(method, pattern): &&(&str, String)| *method == "get" && !pattern.ends_with("/terminal");
    for (method, pattern) in addresses.iter().filter(is_plain) {
        let (query, _) = sensible(method, pattern);
        let id = if pattern.starts_with("/v1/sessions") { &session } else { &execution };
        let path = format!("{}{query}", filled(pattern, id));
        let mut stream = begin(&server, &request("GET", &path, Some(&owner), &[], None));
        read_until(&mut stream, "200 OK");
    }
    let files = ask(&owner, "get", &format!("/v1/sessions/{session}/files/list?path=/work"), &Value::Null);
    assert_eq!(files.is(200).json()["entries"].as_array().map(Vec::len), Some(1));
    let told = ask(&owner, "get", &format!("/v1/sessions/{session}/processes/{pid}"), &Value::Null).is(200);
    assert_eq!(told.json()["running"], true);
    let listed = ask(&other, "get", "/v1/sessions", &Value::Null).is(200).json();
    assert_eq!(listed["sessions"], json!([]));
    server.stop();
}

#[test]
fn no_path_leads_out_of_a_session() {
    let home = Home::new();
    let secret = home.write_beside("secret", "of the host");
    let server = Server::start(&home);
    let session = Session::open(&server);
    session.run(&format!(
        "mkdir -p real; echo inside > real/kept; ln -s / root; ln -s /etc/passwd passwd; ln -s ../.. up; \
         ln -s {secret} secret; ln -s /proc/1/root proc; ln -s loop loop; ln -s real alias"
    ));
    let long = format!("/work/{}", "a".repeat(300));
    let deep = format!("/work/{}x", "a/".repeat(3000));
    let outside = [
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/null",
        "/",
        "",
        "work/real/kept",
        "/workshop/x",
        "/work/../etc/passwd",
        "/work/%2e%2e/etc/passwd",
        "/work/..%2f..%2fetc/passwd",
        "/work/....//x/../../y",
        "/work/real/../../etc/passwd",
        "/work/a%00b",
        "/work/real/kept%00.txt",
        "/work/root/etc/passwd",
        "/work/passwd",
        "/work/up/etc/passwd",
        "/work/secret",
        "/work/proc/etc/passwd",
        "/work/loop",
        "/work/loop/x",
        &long,
        &deep,
        "%2fetc%2fpasswd",
        "//etc/passwd",
        "/tmp/../etc/passwd",
    ];
    let refused = |what: &str, path: &str, told: Answer| {
        assert!((400..500).contains(&told.status), "{what} {path:.60}: {}", told.text());
        assert!(!told.text().contains("root:x:") && !told.text().contains("of the host"), "{what} {path}");
        told.status
    };
    for path in outside {
        let at = |rest: &str| session.at(&format!("/files{rest}?path={path}"));
        refused("read", path, server.get(&at("")));
        refused("write", path, server.ask_with("PUT", &at(""), None, &[], Some("x")));
        let link = ["/work/passwd", "/work/secret", "/work/loop"].contains(&path);
        // A link can be looked at and removed: it is itself inside.
        if !link {
            refused("stat", path, server.get(&at("/stat")));
            refused("remove", path, server.ask("DELETE", &at(""), None, None));
        }
        refused("list", path, server.get(&at("/list")));
        refused("watch", path, server.get(&at("/watch")));
        // In JSON it is not decoded once more, but means the same.
        let plain = path.replace("%2e", ".").replace("%2f", "/").replace("%00", "\0");
        refused("mkdir", path, server.post(&session.at("/files/mkdir"), &json!({"path": plain})));
        let rename = |from: &str, to: &str| {
            server.post(&session.at("/files/rename"), &json!({"from": from, "to": to}))
        };
        if !link {
            refused("rename from", path, rename(&plain, "/work/taken"));
        }
        if !link {
            refused("rename to", path, rename("/work/real/kept", &plain));
        }
    }
    for path in ["/work/real", "/work"] {
        let told = server.get(&session.at(&format!("/files/list?path={path}&depth=9"))).is(200);
        assert!(!told.text().contains("passwd:") && !told.text().contains("hostname"), "{}", told.text());
    }
    // Decoded once and no more: this is a name like any other, and inside.
    let odd = "/files?path=/work/%252e%252e/%252e%252e/odd";
    server.ask_with("PUT", &session.at(odd), None, &[], Some("x")).is(201);
    assert_eq!(session.run("cat %2e%2e/%2e%2e/odd"), "x");
    // What is inside is still there, and still what it was.
    assert_eq!(server.get(&session.at("/files?path=/work/real/kept")).is(200).body, b"inside\n");
    // A path of the host that is also one of the cell is the cell's.
    server.get(&session.at(&format!("/files?path={secret}"))).problem(404, "not-found");
    server.ask_with("PUT", &session.at(&format!("/files?path={secret}")), None, &[], Some("x")).is(201);
    assert_eq!(std::fs::read_to_string(&secret).expect("readable"), "of the host");
    session.end();
    server.stop();
}
