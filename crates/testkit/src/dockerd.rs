//! A Docker Engine of one's own: data, sockets and control groups apart from those of any other, gone when dropped. Shared with
//! `xtask`, so there is nothing but the standard library in here.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const GROUPS: &str = "/sys/fs/cgroup";

#[derive(Debug)]
pub struct Dockerd {
    dir: PathBuf,
    /// The control group that its containers are in, in every hierarchy.
    group: String,
    child: Option<Child>,
}

impl Dockerd {
    /// Starts one that keeps everything in `dir`, with gVisor as a second runtime if there is a `runsc`.
    pub fn start(dir: &Path, runsc: Option<&Path>) -> Result<Dockerd, String> {
        fs::create_dir_all(dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let name = dir.display().to_string().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let group = format!("docker-{}-{}", std::process::id(), &name[name.len().saturating_sub(24)..]);
        let mut dockerd = Dockerd { dir: dir.to_owned(), group, child: None };
        if let Some(runsc) = runsc {
            // Its own network would be that of the engine's namespace.
            let wrapper = dockerd.wrapper();
            let text = format!("#!/bin/sh\nexec '{}' --network=none \"$@\"\n", runsc.display());
            fs::write(&wrapper, text)
                .and_then(|()| fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)))
                .map_err(|error| format!("cannot write {}: {error}", wrapper.display()))?;
        }
        // Whatever this machine's own engine is told is not for this one.
        fs::write(dir.join("daemon.json"), "{}").map_err(|error| error.to_string())?;
        dockerd.run()?;
        Ok(dockerd)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    /// The value of `DOCKER_HOST` that leads here.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn wrapper(&self) -> PathBuf {
        self.dir.join("runsc")
    }

    /// Starts it, for the first time or again, and waits until it answers.
    pub fn run(&mut self) -> Result<(), String> {
        let at = |name: &str| self.dir.join(name);
        let log = File::create(at("dockerd.log")).map_err(|error| error.to_string())?;
        let mut command = Command::new("dockerd");
        command
            .arg("--config-file")
            .arg(at("daemon.json"))
            .arg("--data-root")
            .arg(at("data"))
            .arg("--exec-root")
            .arg(at("exec"))
            .arg("--pidfile")
            .arg(at("dockerd.pid"))
            .args(["--host", &self.host(), "--cgroup-parent", &format!("/{}", self.group)])
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false"]);
        if self.wrapper().exists() {
            command.arg("--add-runtime").arg(format!("runsc={}", self.wrapper().display()));
        }
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let spawned = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        let child = spawned.map_err(|error| format!("cannot start dockerd: {error}"))?;
        let deadline = Instant::now() + PATIENCE;
        let child = self.child.insert(child);
        loop {
            if answers(&self.dir.join("docker.sock")) {
                return Ok(());
            }
            let ended = child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(at("dockerd.log")).unwrap_or_default();
                let last = said.lines().rev().take(5).collect::<Vec<_>>().join("\n");
                return Err(format!("dockerd does not answer ({ended:?}): {last}"));
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Stops it as a service manager would: its containers end with it.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        let deadline = Instant::now() + PATIENCE;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = child.kill();
            }
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        self.stop();
        // It leaves the namespace of its own network mounted.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| Path::new(point).starts_with(&self.dir)) {
            let _ = Command::new("umount").arg(point).status();
        }
        // Only if it is empty: a group in it is something that somebody should have removed.
        let hierarchies = fs::read_dir(GROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
        for hierarchy in hierarchies.chain([PathBuf::from(GROUPS)]) {
            let _ = fs::remove_dir(hierarchy.join(&self.group));
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn answers(socket: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    ask().is_ok_and(|answer: String| answer.ends_with("OK"))
}
