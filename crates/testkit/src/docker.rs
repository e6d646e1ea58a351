//! The Docker Engine that the suites use: `cargo xtask test` starts one of its own and names its socket in `DOCKER_HOST`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::Value;

use crate::is_root;

/// Its socket. Only root may use it.
pub fn socket() -> PathBuf {
    let named = std::env::var("DOCKER_HOST").unwrap_or_default();
    match named.strip_prefix("unix://") {
        Some(path) => PathBuf::from(path),
        None => panic!("no Docker Engine to test with: `cargo xtask test` starts one, and sets DOCKER_HOST"),
    }
}

/// Where it keeps everything, if there is one.
pub(crate) fn place() -> Option<PathBuf> {
    std::env::var_os("DOCKER_HOST")?;
    socket().parent().map(PathBuf::from)
}

/// The ids of containers with a label, in whatever state, and none if there is no engine to have any.
pub fn containers(label: &str) -> Vec<String> {
    if !is_root() || std::env::var_os("DOCKER_HOST").is_none() {
        return Vec::new();
    }
    let filters = format!("%7B%22label%22:[%22{label}%22]%7D");
    let Some(listed) = get(&format!("/containers/json?all=1&filters={filters}")) else { return Vec::new() };
    let id = |container: &Value| container["Id"].as_str().map(str::to_owned);
    let mut ids: Vec<String> = listed.as_array().into_iter().flatten().filter_map(id).collect();
    ids.sort();
    ids
}

/// What the engine answers, if it does.
fn get(path: &str) -> Option<Value> {
    let mut stream = UnixStream::connect(socket()).ok()?;
    let request = format!("GET /v1.41{path} HTTP/1.0\r\nHost: docker\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    serde_json::from_str(body).ok()
}
