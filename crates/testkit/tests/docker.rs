//! The Docker wall from outside: Casemate is killed, the Docker Engine is stopped, or is not there at all; and what runs in its
//! containers runs as it does elsewhere. Only root may use the engine; others are told so.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use casemate_testkit::docker::{containers, socket};
use casemate_testkit::dockerd::Dockerd;
use common::{Home, Running, eventually, finish, is_root};
use rustix::process::Signal;
use serde_json::{Value, json};

/// `casemate run --on docker WORDS…`, with this engine.
fn on(home: &Home, host: &str, words: &[&str]) -> Command {
    let mut command = home.run_command(&[&["--on", "docker"], words].concat());
    command.env("DOCKER_HOST", host);
    command
}

fn host() -> String {
    format!("unix://{}", socket().display())
}

/// For tests that need the engine: others are refused, and that is all there is to see.
fn may_use_it(home: &Home) -> bool {
    if !is_root() {
        let refused = finish(on(home, &host(), &["--", "true"]));
        refused.refused("may not use the Docker Engine");
    }
    is_root()
}

/// Containers that runs of this home have.
fn containers_of(home: &Home) -> Vec<String> {
    home.runs().iter().flat_map(|run| containers(&format!("casemate.run={run}"))).collect()
}

/// A container of somebody else's, gone when dropped.
struct Foreign(String);

impl Foreign {
    fn start(label: &str) -> Foreign {
        let (home, mark) = (Home::new(), format!("casemate-test-foreign={label}"));
        // It takes an image, and any will do.
        finish(on(&home, &host(), &["--", "true"])).expect(0);
        let image = docker(&["images", "--quiet", "--filter", "label=casemate.skeleton"]);
        let image = image.lines().next().expect("an image").to_owned();
        let made = docker(&[
            "create",
            "--label",
            &mark,
            "--network",
            "none",
            "--interactive",
            &image,
            "/.casemate/guest",
        ]);
        Foreign(made.trim().to_owned())
    }

    fn is_there(&self) -> bool {
        !docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &format!("id={}", self.0)]).is_empty()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        docker(&["rm", "--force", &self.0]);
    }
}

fn docker(words: &[&str]) -> String {
    let output =
        Command::new("docker").args(words).env("DOCKER_HOST", host()).output().expect("the docker command");
    assert!(output.status.success(), "docker {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("plain text")
}

/// To make a container that it was asked for.
const ENGINE_TAKES: Duration = Duration::from_millis(700);

#[test]
fn killed_in_the_middle_the_next_start_removes_its_container_and_no_other() {
    let home = Home::new();
    if !may_use_it(&home) {
        return;
    }
    let foreign = Foreign::start("kill");
    let mut sibling =
        on(&home, &host(), &["--timeout", "120s", "--", "sh", "-c", "echo ready; cat; echo untouched"]);
    sibling.stdin(std::process::Stdio::piped());
    let mut sibling = Running::start(sibling);
    sibling.wait_for_output("ready");
    let live = home.live_runs();
    // In every phase of its life.
    for delay in [5, 20, 40, 60, 80, 100, 120, 1000] {
        let words = ["--timeout", "100s", "--", "sh", "-c", "echo x > /tmp/x; exec sleep 100"];
        let run = Running::start(on(&home, &host(), &words));
        std::thread::sleep(Duration::from_millis(delay));
        home.runs();
        run.signal(Signal::KILL);
        run.finish().expect(137);
        // What the engine was asked for by somebody who is gone, it makes all the same, in its own time.
        std::thread::sleep(ENGINE_TAKES);
        // Whatever the next one runs on.
        home.run(&["--on", "container", "--", "true"]).expect(0);
        let left: Vec<String> = home.leftovers(&live);
        assert!(left.is_empty(), "killed after {delay} ms, left behind: {left:#?}");
        let mut ours = containers_of(&home);
        ours.retain(|id| !live.iter().any(|run| containers(&format!("casemate.run={run}")).contains(id)));
        assert_eq!(ours, Vec::<String>::new(), "killed after {delay} ms");
        assert!(foreign.is_there());
        assert_eq!(home.verify()["open"].as_array().map(Vec::len), Some(1), "only the sibling is open");
    }
    sibling.feed(b"still here\n");
    assert_eq!(sibling.finish().expect(0).out(), "ready\nstill here\nuntouched\n");
    assert_eq!(home.verify()["open"], json!([]));
    assert_eq!(containers_of(&home), Vec::<String>::new());
    home.nothing_left();
}

#[test]
fn a_payload_does_not_outlive_a_killed_casemate() {
    let home = Home::new();
    if !may_use_it(&home) {
        return;
    }
    let words = ["--timeout", "200s", "--", "sh", "-c", "setsid sleep 100 & echo ready; exec sleep 100"];
    let mut run = Running::start(on(&home, &host(), &words));
    run.wait_for_output("ready");
    home.runs();
    let ids = containers_of(&home);
    assert_eq!(ids.len(), 1, "one container per execution");
    run.signal(Signal::KILL);
    run.finish().expect(137);
    eventually("no process of the container is left", Duration::from_secs(5), || {
        !common::leftovers::processes().iter().any(|process| process.groups.contains(&ids[0]))
    });
    finish(on(&home, &host(), &["--", "true"])).expect(0);
    assert_eq!(containers_of(&home), Vec::<String>::new());
    let events: Vec<Value> = home.records().into_iter().map(|mut record| record["event"].take()).collect();
    assert_eq!(events.iter().filter(|event| *event == "interrupted").count(), 1, "{events:?}");
}

#[test]
fn an_engine_that_stops_fails_the_run_and_is_used_again_when_it_is_back() {
    let home = Home::new();
    if !may_use_it(&home) {
        return;
    }
    let mut dockerd = Dockerd::start(&home.beside("dockerd"), None).expect("an engine of our own");
    let host = dockerd.host();
    let ran = || {
        let words = ["--json", "--timeout", "100s", "--", "sh", "-c", "echo ready; exec sleep 100"];
        on(&home, &host, &words)
    };
    finish(on(&home, &host, &["--", "true"])).expect(0);
    let run = Running::start(ran());
    std::thread::sleep(Duration::from_secs(1));
    dockerd.stop();
    let done = run.finish();
    assert_eq!(done.json()["status"]["kind"], "failed", "{}", done.out());
    let reason = done.json()["status"]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("Docker Engine"), "{reason}");
    finish(on(&home, &host, &["--", "true"])).refused("no Docker Engine answers");
    dockerd.run().expect("it starts again");
    assert_eq!(finish(on(&home, &host, &["--", "echo", "again"])).expect(0).out(), "again\n");
    let listed = Command::new("docker").args(["ps", "--all", "--quiet"]).env("DOCKER_HOST", &host).output();
    assert_eq!(listed.expect("the docker command").stdout, b"", "the orphan was removed");
    assert_eq!(home.verify()["open"], json!([]));
    drop(dockerd);
    home.nothing_left();
}

/// In one process that lives on.
#[test]
fn an_engine_that_is_back_needs_no_other_casemate() {
    use casemate_testkit::{Rig, Stack, Status, Wall, cell};
    if !is_root() {
        return;
    }
    let dir = tempfile::TempDir::with_prefix("cm-dockerd-").expect("a directory");
    let mut dockerd = Dockerd::start(&dir.path().join("dockerd"), None).expect("an engine of our own");
    let stack = Stack::of(Wall::Docker);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let rig = Rig::on_engine(&dockerd.host()).await;
        let once = || cell(&rig, &stack).shell("echo here").run();
        assert_eq!(once().await.out(), "here\n");
        let long = cell(&rig, &stack).shell("echo ready; exec sleep 60").timeout("80s").run();
        let (ran, ()) = tokio::join!(long, async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            tokio::task::block_in_place(|| dockerd.stop());
        });
        assert!(matches!(ran.outcome.status, Status::Failed { .. }), "{}", ran.story());
        assert!(once().await.refusal().is_some_and(|refusal| !refusal.hint.is_empty()));
        tokio::task::block_in_place(|| dockerd.run()).expect("it starts again");
        assert_eq!(once().await.out(), "here\n");
        rig.close().await;
    });
    let listed =
        Command::new("docker").args(["ps", "--all", "--quiet"]).env("DOCKER_HOST", dockerd.host()).output();
    assert_eq!(listed.expect("the docker command").stdout, b"", "the orphan was removed");
}

#[test]
fn without_an_engine_it_is_refused() {
    let home = Home::new();
    let nowhere = home.beside("no.sock");
    let refused = finish(on(&home, &format!("unix://{}", nowhere.display()), &["--", "true"]));
    refused.refused("no Docker Engine answers");
    let file = home.write_beside("file", "");
    finish(on(&home, &format!("unix://{file}"), &["--", "true"])).refused("not a socket");
    for remote in ["tcp://192.0.2.1:2375", "ssh://somewhere"] {
        finish(on(&home, remote, &["--", "true"])).refused("another machine");
    }
    // Somebody else answers, or nobody does.
    let other = home.beside("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&other).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            use std::io::{Read, Write};
            // Whoever hangs up on a question is not listened to.
            let _ = (&stream).read(&mut [0; 1024]);
            let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nServer: something\r\n\r\n");
        }
    });
    finish(on(&home, &format!("unix://{}", other.display()), &["--", "true"])).refused("not Docker");
    // Nothing else becomes of it, and other walls do not mind.
    let mut elsewhere = home.run_command(&["--", "true"]);
    elsewhere.env("DOCKER_HOST", format!("unix://{}", nowhere.display()));
    finish(elsewhere).expect(0);
    home.nothing_left();
}

#[test]
fn a_runtime_that_the_engine_does_not_have_is_refused() {
    let home = Home::new();
    if !may_use_it(&home) {
        return;
    }
    let dockerd = Dockerd::start(&home.beside("dockerd"), None).expect("an engine of our own");
    let policy = home.write_beside("policy.toml", "[docker]\nruntime = \"runsc\"\n");
    finish(on(&home, &dockerd.host(), &["--policy", &policy, "--", "true"]))
        .refused("no runtime of the name runsc");
}

/// What came of a request, but for what takes time.
fn result(home: &Home, wall: &str, image: &Path, words: &[&str]) -> Value {
    let out = home.beside(&format!("out-{wall}"));
    let _ = std::fs::remove_dir_all(&out);
    let landing = format!("/work/out:{}", out.display());
    let image = image.display().to_string();
    let mut command = home.run_command(
        &[&["--json", "--on", wall, "--image", &image, "--out", &landing, "--memory", "128M"], words]
            .concat(),
    );
    command.env("DOCKER_HOST", host());
    let done = finish(command);
    let mut json = done.json();
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(&out).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        files.insert(
            name,
            String::from_utf8_lossy(&std::fs::read(entry.path()).expect("a file")).into_owned(),
        );
    }
    json!({
        "code": done.code, "status": json["status"].take(), "stdout": json["stdout"].take(), "stderr": json["stderr"].take(),
        "limits_hit": json["limits_hit"].take(), "denied": json["denied"].take(), "files": files,
    })
}

#[test]
fn the_same_image_and_request_come_to_the_same_everywhere() {
    let home = Home::new();
    if !may_use_it(&home) {
        return;
    }
    // The host's programs, as an image of their own.
    let image = home.beside("image");
    std::fs::create_dir_all(image.join("etc")).expect("a directory");
    std::fs::write(image.join("etc/passwd"), "cell:x:1000:1000::/work:/bin/sh\n").expect("a file");
    std::fs::write(image.join("etc/hostname"), "of-the-image\n").expect("a file");
    std::fs::create_dir(image.join("usr")).expect("a directory");
    for name in ["bin", "lib", "lib64", "sbin"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), image.join(name)).expect("a link");
    }
    let _bind = Bound::new("/usr", &image.join("usr"));
    let scripts = [
        "id; pwd; hostname; cat /etc/hostname; readlink /bin; mkdir out; echo made > out/file; echo error >&2; exit 7",
        "ls /usr/bin | head -20; env | sort; mkdir out; head -c 100000 /dev/zero > out/zeros",
        "python3 -c 'import sys, socket; print(sys.prefix, sys.executable); socket.socket().connect((\"192.0.2.1\", 1))'",
        "touch /usr/x; touch /etc/x; touch /x; mkdir out; cat /proc/1/environ; ls /root",
        "kill -9 $$",
        "mkdir out; ln -s /etc/passwd out/link; echo x > out/kept",
    ];
    for script in scripts {
        let words = ["--", "sh", "-c", script];
        let expected = result(&home, "container", &image, &words);
        assert_eq!(result(&home, "docker", &image, &words), expected, "{script}");
    }
    let code = [
        "--lang",
        "python",
        "-c",
        "import os; os.makedirs('out'); open('out/a', 'w').write('b'); print(sum(range(99)))",
    ];
    assert_eq!(result(&home, "docker", &image, &code), result(&home, "container", &image, &code));
}

/// A directory that is mounted in another place, too, until this is dropped.
struct Bound(std::path::PathBuf);

impl Bound {
    fn new(from: &str, to: &Path) -> Bound {
        let status = Command::new("mount").args(["--bind", from]).arg(to).status().expect("mount");
        assert!(status.success());
        Bound(to.to_owned())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn nothing_is_left_after_fifty_runs() {
    let home = Home::new();
    if !may_use_it(&home) {
        return;
    }
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo").lines().count();
    finish(on(&home, &host(), &["--", "true"])).expect(0);
    let (before, images) = (mounts(), docker(&["images", "--quiet"]));
    for n in 0..50 {
        let code = n % 3;
        finish(on(&home, &host(), &["--", "sh", "-c", &format!("exit {code}")])).expect(code);
    }
    assert_eq!(containers_of(&home), Vec::<String>::new());
    // Other tests may start and stop engines of their own meanwhile.
    eventually("no mount is left", Duration::from_secs(20), || mounts() <= before);
    let made = docker(&["images", "--quiet"]).lines().count().saturating_sub(images.lines().count());
    assert!(made < 10, "no image is made per run, and other tests make few");
    assert_eq!(docker(&["volume", "ls", "--quiet"]), "");
    home.nothing_left();
}

#[test]
fn the_record_says_what_stood() {
    let home = Home::new();
    if !may_use_it(&home) {
        return;
    }
    finish(on(&home, &host(), &["--", "true"])).expect(0);
    let records = home.records();
    let observed = &records.last().expect("a record")["body"]["observed"];
    let runtime = &observed["runtime"];
    assert_eq!(runtime["runtime"], "runc", "{observed}");
    for text in ["engine", "api", "image", "container"] {
        assert!(runtime[text].as_str().is_some_and(|text| !text.is_empty()), "{text} in {runtime}");
    }
    assert_eq!(runtime["seccomp_profile_sha256"].as_str().map(str::len), Some(64));
    assert_eq!(observed["seccomp"]["filters"].as_u64(), Some(2), "the engine's and the guest's");
    let mounts = observed["mounts"].as_array().expect("mounts");
    let writable: Vec<&str> = mounts
        .iter()
        .filter_map(Value::as_str)
        .filter(|mount| {
            mount.split(' ').nth(2).is_some_and(|options| options.split(',').any(|option| option == "rw"))
        })
        .filter_map(|mount| mount.split(' ').next())
        .collect();
    let mut writable = writable;
    writable.sort_unstable();
    assert_eq!(writable, ["/dev/shm", "/tmp", "/work"]);
}
