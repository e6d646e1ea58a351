//! `casemate serve` as its clients meet it, over plain sockets: friends, strangers, and those who mean harm.

mod common;

use std::io::Write;
use std::thread;
use std::time::Duration;

use common::server::{HUNG, Server, events, token};
use common::{Home, eventually};
use serde_json::{Value, json};

#[test]
fn an_execution_answers_as_the_command_line_does() {
    let home = Home::new();
    let server = Server::start(&home);
    let asked = json!({"code": "import sys\nprint(sys.stdin.read()[::-1])\nprint('e', file=sys.stderr)\nsys.exit(3)", "stdin": "abc"});
    let told = server.post("/v1/executions", &asked).is(200).json();
    assert_eq!(told["status"], json!({"kind": "exited", "code": 3}), "{told}");
    assert_eq!((&told["stdout"], &told["stderr"]), (&json!("cba\n"), &json!("e\n")));
    let id = told["id"].as_str().expect("an id");
    let shown = server.get(&format!("/v1/executions/{id}")).is(200).json();
    assert_eq!((&shown["state"], &shown["outcome"]["receipt"]), (&json!("exited"), &told["receipt"]));
    let receipt = server.get(&format!("/v1/receipts/{id}")).is(200);
    assert!(String::from_utf8_lossy(&receipt.body).lines().count() >= 2, "{}", receipt.text());
    assert_eq!(server.get(&format!("/v1/receipts/{id}/verify")).is(200).json()["verified"], true);
    let script = "cat a/b; cat c | wc -c; mkdir -p out/d; echo made > out/d/text; printf '\\377' > out/bytes";
    let files = json!({"command": ["sh", "-c", script], "files_out": ["/work/out"], "files_in": [
        {"path": "/work/a/b", "content": "text"}, {"path": "/work/c", "content_base64": "AAEC"}]});
    let told = server.post("/v1/executions", &files).is(200).json();
    let out = |path: &str| {
        let files = told["files"].as_array().expect("files");
        files.iter().find(|file| file["path"] == path).unwrap_or_else(|| panic!("{path} in {told}"))
    };
    assert_eq!(out("/work/out/d/text")["content"], "made\n");
    assert_eq!(out("/work/out/bytes")["content_base64"], "/w==");
    assert_eq!(out("/work/out/d")["kind"], "directory");
    assert_eq!(told["stdout"].as_str().map(|text| text.replace(' ', "")), Some("text3\n".into()), "{told}");
    let explained = server.post("/v1/explain", &json!({"code": "1", "risk": "low"})).is(200).json();
    assert_eq!(explained["stack"], json!(["container"]), "{explained}");
    server.stop();
}

#[test]
fn output_comes_as_it_is_written() {
    let home = Home::new();
    let server = Server::start(&home);
    let code = "import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(0.2)";
    let told = server.post("/v1/executions", &json!({"code": code, "stream": true})).is(200);
    let told = events(&told);
    let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["started", "stdout", "stdout", "stdout", "ended"], "{told:?}");
    assert_eq!(told[1].1, json!({"data": "0\n"}));
    assert_eq!(told[4].1["status"], json!({"kind": "exited", "code": 0}));
    server.stop();
}

#[test]
fn a_key_is_answered_once() {
    let home = Home::new();
    let server = Server::start(&home);
    let ask = |key: &str, code: &str| {
        let body = json!({"code": code}).to_string();
        server.ask_with("POST", "/v1/executions", None, &[("idempotency-key", key)], Some(&body))
    };
    let code = "import os; print(os.urandom(8).hex())";
    let first = ask("k", code).is(200).json();
    assert_eq!(ask("k", code).is(200).json(), first);
    assert_ne!(ask("l", code).is(200).json()["stdout"], first["stdout"]);
    ask("k", "print(1)").problem(422, "idempotency-key-reused");
    // What never ran may be tried again.
    let nothing = server.ask_with("POST", "/v1/executions", None, &[("idempotency-key", "m")], Some("{}"));
    nothing.problem(422, "invalid-request");
    ask("m", code).is(200);
    server.stop();
}

#[test]
fn whoever_goes_away_takes_their_execution_with_them() {
    let home = Home::new();
    let server = Server::start(&home);
    let body = json!({"command": ["sleep", "50"], "limits": {"wall-time": "60s"}}).to_string();
    let head = format!(
        "POST /v1/executions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = server.connect();
    stream.write_all(format!("{head}{body}").as_bytes()).expect("it listens");
    eventually("it runs", HUNG, || server.number("casemate_cells") == 1.0);
    drop(stream);
    eventually("it does not run any more", HUNG, || server.number("casemate_cells") == 0.0);
    // Half a body, and then nothing: not even a cell.
    let mut half = server.connect();
    half.write_all(&format!("{head}{body}").as_bytes()[..head.len() + 10]).expect("it listens");
    drop(half);
    let listed = server.get("/v1/executions").is(200).json();
    let states: Vec<&Value> =
        listed["executions"].as_array().expect("a list").iter().map(|e| &e["state"]).collect();
    assert_eq!(states, [&json!("killed")], "{listed}");
    server.stop();
}

#[test]
fn an_execution_can_be_cancelled() {
    let home = Home::new();
    let server = Server::start(&home);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let asked = json!({"command": ["sleep", "50"], "limits": {"wall-time": "60s"}});
            server.post("/v1/executions", &asked).is(200).json()
        });
        let mut id = String::new();
        eventually("it runs", HUNG, || {
            let listed = server.get("/v1/executions").is(200).json();
            id = listed["executions"][0]["id"].as_str().unwrap_or_default().to_owned();
            listed["executions"][0]["state"] == "running" && server.number("casemate_cells") == 1.0
        });
        server.ask("DELETE", &format!("/v1/executions/{id}"), None, None).is(202);
        let told = waiting.join().expect("an answer");
        assert_eq!(told["status"]["cause"], "cancelled", "{told}");
        server.ask("DELETE", &format!("/v1/executions/{id}"), None, None).is(204);
    });
    server.ask("DELETE", "/v1/executions/none", None, None).problem(404, "not-found");
    server.stop();
}

#[test]
fn tokens_say_who_may_do_what() {
    let home = Home::new();
    let [acme, other] = ["acme", "other"].map(|tenant| token(&home, &["--tenant", tenant]));
    let narrow = token(&home, &["--tenant", "acme", "--scope", "receipts"]);
    let brief = token(&home, &["--tenant", "acme", "--expires", "1s"]);
    let server = Server::start(&home);
    let run = json!({"code": "print(1)"});
    let ask = |token: Option<&str>| server.ask("POST", "/v1/executions", token, Some(&run));
    let told = ask(Some(&acme)).is(200).json();
    let id = told["id"].as_str().expect("an id").to_owned();
    ask(None).problem(401, "unauthenticated");
    ask(Some("")).problem(401, "unauthenticated");
    ask(Some(&acme[..acme.len() - 1])).problem(401, "unauthenticated");
    let guessed = format!("{}{}", &acme[..acme.len() - 1], if acme.ends_with('0') { '1' } else { '0' });
    ask(Some(&guessed)).problem(401, "unauthenticated");
    ask(Some(&narrow)).problem(403, "forbidden");
    thread::sleep(Duration::from_millis(2100));
    ask(Some(&brief)).problem(401, "unauthenticated");
    // What belongs to somebody else is not there.
    for path in
        [format!("/v1/executions/{id}"), format!("/v1/receipts/{id}"), format!("/v1/receipts/{id}/verify")]
    {
        server.ask("GET", &path, Some(&acme), None).is(200);
        let foreign = server.ask("GET", &path, Some(&other), None);
        let nobodys = server.ask("GET", &path.replace(&id, &"0".repeat(32)), Some(&other), None);
        assert_eq!(foreign.body, nobodys.body);
        foreign.problem(404, "not-found");
    }
    server.ask("DELETE", &format!("/v1/executions/{id}"), Some(&other), None).problem(404, "not-found");
    assert_eq!(
        server.ask("GET", "/v1/executions", Some(&other), None).is(200).json()["executions"],
        json!([])
    );
    server.ask("GET", "/metrics", Some(&acme), None).problem(403, "forbidden");
    // In place, while it runs.
    let listed = home.casemate(&["token", "ls", "--json"]).expect(0).json();
    let ours = listed["tokens"].as_array().expect("a list").iter().find(|token| token["tenant"] == "other");
    home.casemate(&["token", "revoke", ours.expect("it")["id"].as_str().expect("an id")]).expect(0);
    ask(Some(&other)).problem(401, "unauthenticated");
    home.casemate(&["token", "revoke", "nonsense"]).refused("there is no token");
    home.casemate(&["token", "create", "--tenant", "../x"]).refused("tenant");
    home.casemate(&["token", "create", "--tenant", "x", "--scope", "everything"]).refused("scope");
    server.stop();
}

#[test]
fn without_tokens_only_programs_on_this_machine_are_answered() {
    let home = Home::new();
    home.casemate(&["serve", "--listen", "0.0.0.0:0"]).refused("there is no token");
    home.nothing_left();
    let server = Server::start(&home);
    let run = json!({"code": "print(1)"}).to_string();
    let ask = |headers: &[(&str, &str)]| server.ask_with("POST", "/v1/executions", None, headers, Some(&run));
    ask(&[]).is(200);
    ask(&[("origin", "https://evil.example")]).problem(403, "forbidden");
    ask(&[("origin", "null")]).problem(403, "forbidden");
    let rebound = format!(
        "POST /v1/executions HTTP/1.1\r\nhost: evil.example\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{run}",
        run.len()
    );
    server.raw(rebound.as_bytes()).problem(403, "forbidden");
    // What a page can make a browser send without asking first.
    ask(&[("content-type", "text/plain")]).problem(415, "unsupported-media-type");
    server.stop();
}

#[test]
fn nonsense_is_answered_with_a_problem() {
    let home = Home::new();
    let server = Server::start(&home);
    let send = |content: &str| server.ask_with("POST", "/v1/executions", None, &[], Some(content));
    send("").problem(400, "malformed-request");
    send("{").problem(400, "malformed-request");
    send(&"[".repeat(200_000)).problem(400, "malformed-request");
    send("[]").problem(422, "invalid-request");
    send("{\"code\": 1}").problem(422, "invalid-request");
    send("{\"code\": \"1\", \"sandbox\": false}").problem(422, "invalid-request");
    send("{\"code\": \"1\", \"command\": [\"a\"]}").problem(422, "invalid-request");
    send("{}").problem(422, "invalid-request");
    for limits in
        [json!({"memory": "1K"}), json!({"memory": -1}), json!({"memory": "lots"}), json!({"luck": 7})]
    {
        server
            .post("/v1/executions", &json!({"code": "1", "limits": limits}))
            .problem(422, "invalid-request");
    }
    server.post("/v1/executions", &json!({"code": "1", "image": "/etc"})).is(422);
    server.post("/v1/executions", &json!({"code": "1", "image": "no-such-image"})).problem(422, "refused");
    let egress = json!({"code": "1", "egress": ["a.example:443"]});
    let told = server.post("/v1/executions", &egress).is(200).json();
    assert_eq!(told["status"]["kind"], "refused", "{told}");
    let large = json!({"code": "1", "stdin": "x".repeat(17 << 20)}).to_string();
    assert_eq!(send(&large).status, 413);
    server.get("/v1/nothing").problem(404, "no-such-route");
    server.get("/v1/explain").problem(405, "method-not-allowed");
    server.get("/v1/executions?limit=0").problem(422, "invalid-request");
    server.get("/v1/executions?cursor=x").problem(422, "invalid-request");
    server.get("/v1/executions/..%2f..%2fetc").problem(404, "not-found");
    assert_eq!(server.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").status, 400);
    assert_eq!(server.raw(b"GET / HTTP/1.1\r\nx: y\r\n\x00: z\r\n\r\n").status, 400);
    let long = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    assert_eq!(server.raw(long.as_bytes()).status, 431);
    assert_eq!(server.get("/healthz").is(200).body, b"ok\n");
    server.stop();
}

#[test]
fn a_session_lives_as_long_as_it_was_asked_to() {
    let home = Home::new();
    let server = Server::start(&home);
    let opened = server
        .post("/v1/sessions", &json!({"metadata": {"for": "a test"}, "env": {"WHO": "me"}}))
        .is(201)
        .json();
    let id = opened["id"].as_str().expect("an id").to_owned();
    let at = |rest: &str| format!("/v1/sessions/{id}{rest}");
    let run = |script: &str| server.post(&at("/processes"), &json!({"command": ["sh", "-c", script]}));
    let told = run("echo $WHO > kept; cat kept").is(200).json();
    assert_eq!((&told["stdout"], &told["status"]["code"]), (&json!("me\n"), &json!(0)), "{told}");
    let read = server.get(&at("/files?path=/work/kept")).is(200);
    assert_eq!(read.body, b"me\n");
    let content = "x".repeat(300_000);
    let put =
        server.ask_with("PUT", &at("/files?path=/work/deep/er/large&mode=600"), None, &[], Some(&content));
    assert_eq!(put.is(201).json()["size"], 300_000);
    let stat = server.get(&at("/files/stat?path=/work/deep/er/large")).is(200).json();
    assert_eq!((&stat["size"], &stat["mode"]), (&json!(300_000), &json!("600")));
    let listed = server.get(&at("/files/list?path=/work&depth=3")).is(200).json();
    assert_eq!(listed["entries"].as_array().map(Vec::len), Some(4), "{listed}");
    server.post(&at("/files/mkdir"), &json!({"path": "/work/new"})).is(201);
    server.post(&at("/files/rename"), &json!({"from": "/work/kept", "to": "/work/new/kept"})).is(204);
    server.ask("DELETE", &at("/files?path=/work/deep"), None, None).is(204);
    server.get(&at("/files?path=/work/deep")).problem(404, "not-found");
    server.get(&at("/files?path=/work/new")).problem(409, "is-a-directory");
    for path in
        ["/etc/passwd", "/work/../etc/passwd", "/work/%2e%2e/%2e%2e/etc/passwd", "passwd", "/work/a%00b"]
    {
        let answer = server.get(&at(&format!("/files?path={path}")));
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.text());
        let answer = server.ask_with("PUT", &at(&format!("/files?path={path}")), None, &[], Some("x"));
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.text());
    }
    // In the background: heard later, written to, ended.
    let asked = json!({"command": ["sh", "-c", "echo begun; cat; echo over"], "background": true, "stdin": true, "tag": "b"});
    let begun = server.post(&at("/processes"), &asked).is(201).json();
    let process = |rest: &str| at(&format!("/processes/{}{rest}", begun["pid"]));
    assert_eq!(server.get(&process("")).is(200).json()["running"], true);
    server.ask_with("POST", &process("/stdin?end=true"), None, &[], Some("words\n")).is(204);
    let said = events(&server.get(&process("/output")).is(200));
    let text: String = said.iter().filter_map(|(_, data)| data["data"].as_str()).collect();
    assert_eq!(text, "begun\nwords\nover\n", "{said:?}");
    assert_eq!(said.last().map(|(name, _)| name.as_str()), Some("ended"));
    assert_eq!(server.get(&process("")).is(200).json()["running"], false);
    server.get(&at("/processes/99999")).problem(404, "not-found");
    let told = server.ask("PATCH", &at(""), None, Some(&json!({"ttl": "1s"}))).is(200).json();
    assert_eq!(told["metadata"]["for"], "a test");
    eventually("its time is over", HUNG, || server.get(&at("")).is(200).json()["state"] == "killed");
    run("true").problem(404, "not-found");
    // Nobody wants anything of this one.
    let idle = server.post("/v1/sessions", &json!({"ttl": "1h", "idle_timeout": "300ms"})).is(201).json();
    let sessions = || server.get("/v1/sessions").is(200).json()["sessions"].as_array().map(Vec::len);
    eventually("nobody waits for an idle one", HUNG, || sessions() == Some(0));
    assert_ne!(idle["id"], id.as_str());
    server.stop();
}

#[test]
fn it_ends_with_whoever_started_it_if_told_so() {
    let home = Home::new();
    let mut server = Server::start_with(&home, &["--until-stdin-closes"]);
    let session = server.post("/v1/sessions", &json!({"ttl": "10m"})).is(201).json();
    let place = format!("/v1/sessions/{}/processes", session["id"].as_str().expect("an id"));
    server.post(&place, &json!({"command": ["sleep", "600"], "background": true})).is(201);
    drop(server.child.stdin.take());
    server.ends_well();
}
