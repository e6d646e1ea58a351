//! What gVisor's `runsc` is told. The launcher carries it out, the engine records it; neither makes anything up.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::guest::Terminals;
use crate::launch::{Attached, Platform};

/// Where `runsc` finds its bundle and keeps its state: a small file system of the cell's own, which its payload never sees.
pub const BUNDLE: &str = "/run";
/// The name of the specification in the bundle.
pub const SPECIFICATION_FILE: &str = "/run/config.json";

/// The OCI runtime specification of every cell. The root is the cell's own root as the launcher built it, read-only; the three
/// writable places are binds of its scratch file system; no network, no host devices, no sysfs. `/dev` is gVisor's own and root's;
/// read-only, nobody could write to a device in it. The guest is root of this kernel with what it needs to become the payload and
/// to hand files over to it, and nothing else once it has begun: what it needs to hide itself it gives up then.
pub fn specification(terminals: Terminals) -> String {
    let arguments = match terminals {
        Terminals::None => "\"casemate-guest\"".into(),
        Terminals::Own => format!("\"casemate-guest\", \"{KEEP_TERMINALS}\""),
    };
    SPECIFICATION.replace("ARGUMENTS", &arguments)
}

/// What the guest is told on its command line if the terminals that gVisor's kernel has are to stay.
pub const KEEP_TERMINALS: &str = "keep-terminals";

const SPECIFICATION: &str = r#"{
  "ociVersion": "1.0.2",
  "hostname": "cell",
  "root": {"path": "/", "readonly": true},
  "process": {
    "terminal": false,
    "user": {"uid": 0, "gid": 0},
    "args": [ARGUMENTS],
    "env": [],
    "cwd": "/",
    "noNewPrivileges": true,
    "capabilities": {
      "bounding": ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN"],
      "effective": ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN"],
      "permitted": ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN"]
    }
  },
  "mounts": [
    {"destination": "/proc", "type": "proc", "source": "proc", "options": ["ro", "nosuid", "nodev", "noexec"]},
    {"destination": "/sys", "type": "tmpfs", "source": "tmpfs", "options": ["ro", "nosuid", "nodev", "noexec"]},
    {"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["ro", "nosuid", "nodev", "noexec"]},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["rw", "nosuid", "noexec"]},
    {"destination": "/dev/shm", "type": "bind", "source": "/dev/shm", "options": ["bind", "rw", "nosuid", "nodev"]},
    {"destination": "/tmp", "type": "bind", "source": "/tmp", "options": ["bind", "rw", "nosuid", "nodev"]},
    {"destination": "/work", "type": "bind", "source": "/work", "options": ["bind", "rw", "nosuid", "nodev"]}
  ],
  "linux": {
    "namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]
  }
}
"#;

/// All of it. `runsc` executes itself several times until a sandbox stands, and each time its collector of garbage would run for
/// nothing. The sandbox itself gets none of this; what serves its files does, and has little garbage.
pub const ENVIRONMENT: [&str; 1] = ["GOGC=400"];

/// The arguments of `runsc`, for a guest that is behind descriptor `guest`. The channel (3), the ends of the gate (4 and 5) and
/// what is attached (from 6 on) keep their numbers.
pub fn arguments(platform: Platform, attached: Attached, guest: i32) -> Vec<String> {
    let platform = format!("--platform={}", platform.as_str());
    let guest = format!("--exec-fd={guest}");
    let options = [
        "runsc",
        "--root=/run/state",
        // The cell's cgroups are the launcher's, and it is in them already.
        "--ignore-cgroups",
        "--network=none",
        "--host-uds=none",
        "--host-fifo=none",
        "--overlay2=none",
        // Nobody else changes the files of a cell, so nothing has to be looked up twice.
        "--file-access=exclusive",
        "--file-access-mounts=exclusive",
        platform.as_str(),
        "run",
        // What starts the sandbox has privileges in the cell and talks to the sandbox: it must not stay.
        "--detach",
        "--bundle=/run",
        guest.as_str(),
    ];
    let passed = (3..6 + attached.count()).map(|number| format!("--pass-fd={number}:{number}"));
    options.into_iter().map(String::from).chain(passed).chain(["cell".into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_attached_is_passed_on_under_its_number() {
        let arguments = arguments(Platform::Systrap, Attached::ProgramAndLine, 9);
        let passed: Vec<&str> = arguments.iter().filter_map(|word| word.strip_prefix("--pass-fd=")).collect();
        assert_eq!(passed, ["3:3", "4:4", "5:5", "6:6", "7:7"]);
        assert_eq!(arguments.last().map(String::as_str), Some("cell"));
    }
}
