//! The Docker Engine of this machine: where it is, what it is, and what it can do.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error as ClientError;
use bollard::models::SystemInfo;
use bollard::{API_DEFAULT_VERSION, ClientVersion, Docker as Client};
use casemate_core::outcome::Refusal;
use casemate_core::policy::DockerRuntime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::settings::Swap;
use crate::wall::WallError;

const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
/// An engine that lives answers in a millisecond.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// How long it may take to connect us to a container.
const ATTACH: Duration = Duration::from_secs(10);
/// How long one request may take, in seconds: to make or start a container takes a tenth of one.
const REQUEST: u64 = 60;
/// Docker 20.10: the first one with everything that is asked for.
const OLDEST: ClientVersion = ClientVersion { major_version: 1, minor_version: 41 };
/// The head of an HTTP response.
const MAX_HEAD: usize = 16 * 1024;

pub(super) const START_IT: &str =
    "start Docker, or let `casemate setup docker` say how; DOCKER_HOST=unix://PATH names another socket";

/// Where the engine is to be found that `host` names, or why it cannot be used.
pub(super) fn socket(host: &str) -> Result<PathBuf, Refusal> {
    let path = match host {
        "" => DEFAULT_SOCKET,
        _ => host.strip_prefix("unix://").ok_or_else(|| {
            Refusal::new(
                "DOCKER_HOST names an engine that may be on another machine, where there are none of the image's files",
                "set it to unix://PATH, the socket of an engine on this machine",
            )
        })?,
    };
    Ok(PathBuf::from(path))
}

/// Why this user cannot use it, as far as is known without asking it.
pub(super) fn obstacle(socket: &Path) -> Option<Refusal> {
    match std::fs::metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Some(forbidden(socket)),
        Err(_) => return Some(absent(socket, "there is no such socket")),
        Ok(found) if !found.file_type().is_socket() => return Some(absent(socket, "it is not a socket")),
        Ok(_) => {}
    }
    let may = rustix::fs::access(socket, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK);
    may.err().map(|_| forbidden(socket))
}

fn absent(socket: &Path, why: &str) -> Refusal {
    Refusal::new(format!("no Docker Engine answers at {}: {why}", socket.display()), START_IT)
}

fn forbidden(socket: &Path) -> Refusal {
    Refusal::new(
        format!("this user may not use the Docker Engine at {}", socket.display()),
        "run casemate as root, or as a member of the socket's group (which is as good as root)",
    )
}

/// An engine that answered, and can do what is needed.
pub(super) struct Engine {
    pub(super) socket: PathBuf,
    pub(super) client: Client,
    pub(super) api: String,
    pub(super) version: String,
    pub(super) processors: u64,
    pub(super) swap: Swap,
}

impl Engine {
    pub(super) async fn reach(socket: &Path, runtime: DockerRuntime) -> Result<Engine, Refusal> {
        let said = match timeout(FIRST_ANSWER, ping(socket)).await {
            Ok(Ok(said)) => said,
            Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(forbidden(socket));
            }
            Ok(Err(error)) => return Err(absent(socket, &words(&error))),
            Err(_) => return Err(absent(socket, &format!("nothing came within {FIRST_ANSWER:?}"))),
        };
        let api = version(&said).filter(|version| *version >= OLDEST).ok_or_else(|| {
            Refusal::new(
                format!("the Docker Engine speaks version {said} of its API, and {OLDEST} is needed"),
                "install Docker 20.10 or newer",
            )
        })?;
        // The same, again: `ClientVersion` cannot be copied.
        let spoken = version(&said).filter(|_| api < *API_DEFAULT_VERSION).unwrap_or(newest());
        let client = socket
            .to_str()
            .and_then(|path| Client::connect_with_unix(path, REQUEST, &spoken).ok())
            .ok_or_else(|| absent(socket, "it cannot be connected to"))?;
        let info = client.info().await.map_err(|error| absent(socket, &error.to_string()))?;
        let swap = check(&info, runtime)?;
        Ok(Engine {
            socket: socket.to_owned(),
            client,
            api: spoken.to_string(),
            version: info.server_version.unwrap_or_default(),
            processors: u64::try_from(info.ncpu.unwrap_or(1)).unwrap_or(1),
            swap,
        })
    }

    /// Whether it is still there. To ask takes a fraction of a millisecond.
    pub(super) async fn answers(&self) -> bool {
        matches!(timeout(FIRST_ANSWER, ping(&self.socket)).await, Ok(Ok(_)))
    }

    /// A stream to and from the standard streams of a container that is not started yet, and what came on it with the answer.
    pub(super) async fn attach(&self, container: &str) -> io::Result<(UnixStream, Vec<u8>)> {
        let path = format!("/v{}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1", self.api);
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        );
        let answer = timeout(ATTACH, exchange(&self.socket, &request)).await;
        let (stream, head, rest) = answer.map_err(|_| io::Error::other("it does not answer"))??;
        match head.split(' ').nth(1) {
            Some("101" | "200") => Ok((stream, rest)),
            _ => Err(io::Error::other(format!("it said {}", head.lines().next().unwrap_or_default()))),
        }
    }
}

fn newest() -> ClientVersion {
    ClientVersion {
        major_version: API_DEFAULT_VERSION.major_version,
        minor_version: API_DEFAULT_VERSION.minor_version,
    }
}

/// Whether it can do what cells need.
fn check(info: &SystemInfo, runtime: DockerRuntime) -> Result<Swap, Refusal> {
    let lacks = |what: &str, hint: &str| Err(Refusal::new(format!("the Docker Engine {what}"), hint));
    if info.os_type.as_deref() != Some("linux") {
        return lacks("does not run Linux containers", "use an engine on Linux");
    }
    let kernel = rustix::system::uname();
    if info.kernel_version.as_deref() != kernel.release().to_str().ok() {
        return lacks(
            "runs on another kernel than this one",
            "use an engine on this machine, not in a virtual one",
        );
    }
    let secured = info.security_options.iter().flatten();
    if !secured.clone().any(|option| option.starts_with("name=seccomp")) {
        return lacks(
            "has no seccomp",
            "use a kernel with CONFIG_SECCOMP_FILTER, and an engine built with it",
        );
    }
    if secured.clone().any(|option| option == "name=rootless") {
        return lacks(
            "is rootless, and what it limits cannot be read from outside",
            "use one that runs as root",
        );
    }
    let controllers = [
        ("memory", info.memory_limit),
        ("processes", info.pids_limit),
        ("processor time", info.cpu_cfs_quota),
    ];
    if let Some((what, _)) = controllers.iter().find(|(_, can)| *can == Some(false)) {
        return lacks(&format!("cannot limit {what} here"), "mount cgroups with that controller");
    }
    let runtimes = info.runtimes.iter().flatten();
    if !runtimes.clone().any(|(name, _)| name == runtime.as_str()) {
        return lacks(
            &format!("has no runtime of the name {runtime}"),
            "add it to \"runtimes\" in /etc/docker/daemon.json, for runsc with `--network=none` among its \"runtimeArgs\"; \
             or change [docker] runtime in the policy",
        );
    }
    match info.swap_limit {
        Some(false) if has_swap() => lacks(
            "cannot keep containers from swapping, so a memory limit would not hold",
            "boot with swapaccount=1, or without swap",
        ),
        Some(false) => Ok(Swap::Absent),
        _ => Ok(Swap::Limited),
    }
}

fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|table| table.lines().count() > 1)
}

/// The version of its API that an engine says it speaks.
async fn ping(socket: &Path) -> io::Result<String> {
    let request = "GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n";
    let (_, head, _) = exchange(socket, request).await?;
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("api-version").then(|| value.trim().to_owned())
    };
    head.lines().find_map(field).ok_or_else(|| io::Error::other("whatever answers there is not Docker"))
}

fn version(text: &str) -> Option<ClientVersion> {
    let (major, minor) = text.split_once('.')?;
    Some(ClientVersion { major_version: major.parse().ok()?, minor_version: minor.parse().ok()? })
}

/// Sends a request and reads the head of the answer; what came with it is the beginning of the rest.
async fn exchange(socket: &Path, request: &str) -> io::Result<(UnixStream, String, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    loop {
        if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = answer.split_off(end + 4);
            let head = String::from_utf8(answer).map_err(io::Error::other)?;
            return Ok((stream, head, rest));
        }
        if answer.len() > MAX_HEAD {
            return Err(io::Error::other("the answer has no end"));
        }
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// What the system said, for people.
pub(super) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words);
    let mut letters = words.chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

/// What became of a request to the engine.
pub(super) fn trouble(step: &str, error: ClientError) -> WallError {
    match error {
        // It understood, and will not.
        ClientError::DockerResponseServerError { status_code: 400..500, message } => {
            WallError::Refused(Refusal::new(
                format!("the Docker Engine would not {step}: {message}"),
                "`casemate doctor` tries it with a small program; the engine's own log says more",
            ))
        }
        ClientError::DockerResponseServerError { message, .. } => {
            WallError::Failed(format!("the Docker Engine could not {step}: {message}"))
        }
        other => WallError::Failed(format!("the Docker Engine did not {step}: {other}")),
    }
}

/// Whether there is no such thing.
pub(super) fn is_gone(error: &ClientError) -> bool {
    matches!(error, ClientError::DockerResponseServerError { status_code: 404, .. })
}

/// Whether it is about to be gone.
pub(super) fn is_leaving(error: &ClientError) -> bool {
    matches!(error, ClientError::DockerResponseServerError { status_code: 409, .. })
}
