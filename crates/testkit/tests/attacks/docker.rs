//! The attacks on the Docker wall. Its cells have no launcher of ours that could leave a layer out, so what a probe notices is shown
//! in containers that the `docker` command starts: with the settings of a cell, but for those layers.

use std::process::{Command, Stdio};

use casemate_testkit::{Layer, PROBE};

use crate::row::{Control, Finding, On, Row, Trial};
use crate::run::{judge_words, make_executable};

/// What a row means on containers of the Docker Engine's `runc`, given what it means on our own.
pub(crate) fn on(row: &Row, container: On) -> On {
    match (&row.trial, container) {
        (Trial::Probe { args, .. }, On::Held(Control::Without(set))) if can_be_left_out(set, args) => {
            On::Held(Control::PlainDocker(set))
        }
        (
            _,
            On::Held(
                Control::Without(_)
                | Control::HostRoot(_)
                | Control::OpenImage(_)
                | Control::AnswersDiffer(_),
            ),
        ) => On::Held(Control::OfTheContainer),
        (_, on) => on,
    }
}

/// Of its `runsc`, given what it means in gVisor.
pub(crate) fn in_gvisor(row: &Row, gvisor: On) -> On {
    const UNCOUNTED: &str = "gVisor does not count inodes here: unbounded by default, refused when asked for";
    match row.name {
        "inode-fill" => match gvisor {
            On::Held(_) => On::Held(Control::Nothing(UNCOUNTED)),
            other => other,
        },
        _ => gvisor,
    }
}

/// Layers that a container of the `docker` command can do without. There is no guest in it that could be attacked.
fn can_be_left_out(set: &[Layer], args: &str) -> bool {
    set.iter().all(|layer| *layer != "descriptors") && !args.contains("{guest}")
}

/// Runs the probe in a plain container without these layers; it must escape.
pub(crate) fn plain(without: &[Layer], argv: &[String]) -> Result<String, String> {
    let has = |layer: &str| !without.contains(&layer);
    let place = tempfile::TempDir::new().map_err(|error| error.to_string())?;
    let program = place.path().join("probe");
    std::fs::write(&program, PROBE).map_err(|error| error.to_string())?;
    make_executable(place.path());
    make_executable(&program);
    let mut docker = Command::new("docker");
    docker.args(["run", "--rm", "--interactive", "--workdir", "/work", "--hostname", "cell"]);
    docker.args(["--tmpfs", "/tmp:rw,exec", "--volume"]).arg(format!("{}:/work", place.path().display()));
    for name in ["usr", "lib", "lib64", "bin"] {
        // As in a cell, but for the rights that were left out.
        let mode = if has("read-only") { "ro" } else { "rw" };
        docker.arg("--volume").arg(format!("/{name}:/{name}:{mode}"));
    }
    match has("capabilities") {
        true => _ = docker.args(["--cap-drop", "ALL"]),
        // Not `--privileged`: that asks for more than root of some machines has.
        false => {
            docker.args(["--device-cgroup-rule", "a *:* rwm", "--security-opt", "apparmor=unconfined"]);
            for name in capabilities() {
                docker.args(["--cap-add", name]);
            }
        }
    }
    if has("payload-ids") && has("capabilities") {
        docker.args(["--user", "1000:1000"]);
    }
    if !has("seccomp") {
        docker.args(["--security-opt", "seccomp=unconfined"]);
    }
    if has("no-new-privileges") {
        docker.args(["--security-opt", "no-new-privileges"]);
    }
    if !has("proc-masks") || !has("read-only") {
        docker.args(["--security-opt", "systempaths=unconfined"]);
    }
    if has("read-only") {
        docker.arg("--read-only");
    }
    for (layer, option) in [("pid-namespace", "--pid"), ("ipc-namespace", "--ipc")] {
        if !has(layer) {
            docker.args([option, "host"]);
        }
    }
    docker.args(["--network", if has("net-namespace") { "none" } else { "host" }]);
    if has("rlimits") {
        docker.args(["--ulimit", "core=0"]);
    } else {
        docker.args(["--ulimit", "core=-1"]);
    }
    docker.args(["--entrypoint", "/work/probe"]).arg(image()?).args(argv);
    let output = docker.stdin(Stdio::null()).output().map_err(|error| format!("docker: {error}"))?;
    let out = String::from_utf8_lossy(&output.stdout);
    match judge_words(output.status.code().unwrap_or(-1), &out) {
        Ok(Finding::Escaped) => Ok("escapes".into()),
        other => Err(format!("{other:?}, {out}, {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Those that root has here, in the order of their numbers.
fn capabilities() -> Vec<&'static str> {
    // Older engines do not know those that were split off CAP_SYS_ADMIN, which includes them.
    const NAMES: [&str; 38] = [
        "CHOWN",
        "DAC_OVERRIDE",
        "DAC_READ_SEARCH",
        "FOWNER",
        "FSETID",
        "KILL",
        "SETGID",
        "SETUID",
        "SETPCAP",
        "LINUX_IMMUTABLE",
        "NET_BIND_SERVICE",
        "NET_BROADCAST",
        "NET_ADMIN",
        "NET_RAW",
        "IPC_LOCK",
        "IPC_OWNER",
        "SYS_MODULE",
        "SYS_RAWIO",
        "SYS_CHROOT",
        "SYS_PTRACE",
        "SYS_PACCT",
        "SYS_ADMIN",
        "SYS_BOOT",
        "SYS_NICE",
        "SYS_RESOURCE",
        "SYS_TIME",
        "SYS_TTY_CONFIG",
        "MKNOD",
        "LEASE",
        "AUDIT_WRITE",
        "AUDIT_CONTROL",
        "SETFCAP",
        "MAC_OVERRIDE",
        "MAC_ADMIN",
        "SYSLOG",
        "WAKE_ALARM",
        "BLOCK_SUSPEND",
        "AUDIT_READ",
    ];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    NAMES.into_iter().enumerate().filter(|(number, _)| set >> number & 1 == 1).map(|(_, name)| name).collect()
}

/// The image of the trials, which came first: there is nothing in it but the guest and empty directories.
fn image() -> Result<String, String> {
    let list =
        Command::new("docker").args(["images", "--quiet", "--filter", "label=casemate.skeleton"]).output();
    let list = list.map_err(|error| format!("docker: {error}"))?;
    let ids = String::from_utf8_lossy(&list.stdout);
    ids.lines().next().map(str::to_owned).ok_or_else(|| "no image of ours is there".into())
}
