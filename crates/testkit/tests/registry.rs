//! Images from registries: a real one, on this machine, and one that lies.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use casemate_testkit::image::{OCI_INDEX, OCI_MANIFEST, Parts, digest, with_programs};
use casemate_testkit::tar::Tar;
use common::{Home, eventually};
use serde_json::json;

/// Debian's `docker-registry`, with its files beside a test's home. Gone with the test.
struct Registry {
    process: Child,
    address: String,
}

impl Registry {
    fn start(home: &Home) -> Registry {
        let address = free_address();
        let storage = home.beside("registry");
        let config = format!(
            "version: 0.1\nlog: {{accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"{address}\"}}\n",
            storage.display()
        );
        let config = home.write_beside("registry.yml", config);
        let process = Command::new("docker-registry")
            .args(["serve", &config])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is installed");
        let registry = Registry { process, address };
        eventually("the registry answers", Duration::from_secs(10), || {
            TcpStream::connect(&registry.address).is_ok()
        });
        registry
    }

    /// Puts an image into the repository `t`, under a tag, as any client would.
    fn push(&self, parts: &Parts, tag: &str) {
        for (name, bytes) in parts.blobs.iter().filter(|(name, _)| **name != parts.manifest) {
            let begun = http(&self.address, "POST", "/v2/t/blobs/uploads/", &[], b"");
            let place = begun.header("location").expect("a place to upload to").to_owned();
            let place = place.split_once(&self.address).map_or(place.clone(), |(_, path)| path.to_owned());
            let sign = if place.contains('?') { '&' } else { '?' };
            let path = format!("{place}{sign}digest={name}");
            assert_eq!(
                http(&self.address, "PUT", &path, &["Content-Type: application/octet-stream"], bytes).code,
                201
            );
        }
        self.put_manifest(tag, OCI_MANIFEST, &parts.blobs[&parts.manifest]);
    }

    fn put_manifest(&self, tag: &str, media_type: &str, bytes: &[u8]) {
        let header = format!("Content-Type: {media_type}");
        let put = http(&self.address, "PUT", &format!("/v2/t/manifests/{tag}"), &[&header], bytes);
        assert_eq!(put.code, 201, "{}", String::from_utf8_lossy(&put.body));
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

struct Answer {
    code: u16,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

fn http(address: &str, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let mut body = Vec::new();
    reader.read_to_end(&mut body).unwrap();
    let code = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, headers: lines.split_off(1), body }
}

fn image() -> Parts {
    let base = with_programs(Tar::new(), &["/bin/sh", "/bin/cat"]).file("etc/motd", "below").file("gone", "");
    let above = Tar::new().file("etc/motd", "from the registry\n").file(".wh.gone", "");
    Parts::new(&[("+gzip", base.end()), ("+zstd", above.end())])
}

#[test]
fn an_image_comes_from_a_real_registry() {
    let home = Home::new();
    let registry = Registry::start(&home);
    let parts = image();
    registry.push(&parts, "1");
    registry.put_manifest("all", OCI_INDEX, &serde_json::to_vec(&index(&parts)).unwrap());
    let name = |rest: &str| format!("{}/t{rest}", registry.address);
    let pull = |rest: &str, words: &[&str]| home.casemate(&[&["image", "pull", &name(rest)], words].concat());

    // By tag, by digest, and through an index, it is the same image.
    assert_eq!(pull(":1", &["--name", "tagged"]).expect(0).out().trim(), parts.manifest);
    assert_eq!(
        pull(&format!("@{}", parts.manifest), &["--name", "pinned"]).expect(0).out().trim(),
        parts.manifest
    );
    assert_eq!(pull(":all", &[]).expect(0).out().trim(), parts.manifest);
    for image in ["tagged", "pinned", &name(":all"), &parts.manifest] {
        let done =
            home.run(&["--image", image, "--", "sh", "-c", "cat /etc/motd; cat /gone || true"]).expect(0);
        assert_eq!(done.out(), "from the registry\n", "{image}");
    }
    // What is not there is not there, and what is pinned is not replaced by what has the tag now.
    pull(":2", &[]).refused("cannot pull");
    let other = digest(b"another");
    pull(&format!("@{other}"), &[]).refused("cannot pull");
    home.casemate(&["image", "pull", "localhost:1/t:1"]).refused("cannot pull");
    home.casemate(&["image", "pull", "no reference at all"]).refused("does not name an image");
    pull(":1", &["--size-limit", "1K"]).refused("bytes, and 1024 are allowed");
    let staging = home.path().join("images/staging");
    assert_eq!(std::fs::read_dir(staging).unwrap().count(), 0);
    home.nothing_left();
}

fn index(parts: &Parts) -> serde_json::Value {
    // A registry takes an index only if it has what it names.
    let size = parts.blobs[&parts.manifest].len();
    json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [{"mediaType": OCI_MANIFEST, "digest": parts.manifest,
        "size": size, "platform": {"architecture": "amd64", "os": "linux"}}]})
}

/// Answers what it was told to, whatever is true.
struct Liar {
    address: String,
}

impl Liar {
    fn start(answers: BTreeMap<String, (String, Vec<u8>)>) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = Arc::new(answers);
        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answers = answers.clone();
                thread::spawn(move || answer(stream, &answers));
            }
        });
        Liar { address }
    }
}

fn answer(mut stream: TcpStream, answers: &BTreeMap<String, (String, Vec<u8>)>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut first = String::new();
    let _ = reader.read_line(&mut first);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let (code, media_type, body) = match answers.get(path) {
        Some((media_type, body)) => ("200 OK", media_type.as_str(), body.as_slice()),
        None => ("404 Not Found", "application/json", &b"{\"errors\":[]}"[..]),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

#[test]
fn a_registry_that_lies_is_not_believed() {
    let truth = image();
    let honest = || {
        let mut answers = BTreeMap::from([("/v2/".to_owned(), (String::new(), Vec::new()))]);
        for (name, bytes) in &truth.blobs {
            answers.insert(
                format!("/v2/t/blobs/{name}"),
                ("application/octet-stream".to_owned(), bytes.clone()),
            );
        }
        for by in ["1", &truth.manifest] {
            let manifest = truth.blobs[&truth.manifest].clone();
            answers.insert(format!("/v2/t/manifests/{by}"), (OCI_MANIFEST.to_owned(), manifest));
        }
        answers
    };
    let manifest: serde_json::Value = serde_json::from_slice(&truth.blobs[&truth.manifest]).unwrap();
    let layer = manifest["layers"][0]["digest"].as_str().unwrap().to_owned();
    let home = Home::new();
    let pull = |answers: BTreeMap<String, (String, Vec<u8>)>, by: &str| {
        let liar = Liar::start(answers);
        home.casemate(&["image", "pull", &format!("{}/t{by}", liar.address), "--name", "x"])
    };
    pull(honest(), ":1").expect(0);
    home.casemate(&["image", "rm", "x"]).expect(0);

    let pinned = format!("@{}", truth.manifest);
    let mut other_manifest = honest();
    let forged = image().with_manifest(|manifest| manifest["annotations"] = json!({"forged": "yes"}));
    for by in ["1", &truth.manifest] {
        let bytes = forged.blobs[&forged.manifest].clone();
        other_manifest.insert(format!("/v2/t/manifests/{by}"), (OCI_MANIFEST.to_owned(), bytes));
    }
    pull(other_manifest, &pinned).refused("not what was asked for");

    let path = format!("/v2/t/blobs/{layer}");
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut answers = honest();
        change(&mut answers.get_mut(&path).unwrap().1);
        answers
    };
    pull(changed(&|bytes| bytes[100] ^= 1), ":1").refused("not what was asked for");
    pull(changed(&|bytes| bytes.truncate(500)), ":1").refused("not what was asked for");
    pull(changed(&|bytes| bytes.extend([0; 4096])), ":1").refused("bytes, and not");
    let mut strange = honest();
    let unknown = b"{\"schemaVersion\": 2, \"mediaType\": \"application/x-unknown\"}".to_vec();
    strange.insert("/v2/t/manifests/1".into(), ("application/x-unknown".into(), unknown));
    pull(strange, ":1").refused("media type");
    let mut endless = honest();
    endless.insert("/v2/t/manifests/1".into(), (OCI_MANIFEST.into(), vec![b' '; 8 << 20]));
    pull(endless, ":1").refused("");

    assert_eq!(home.casemate(&["image", "ls", "--json"]).expect(0).out(), "");
    assert_eq!(std::fs::read_dir(home.path().join("images/staging")).unwrap().count(), 0);
    home.nothing_left();
}
