//! Things on the host that a probe looks for. A probe that does not find them there would prove nothing in a cell.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A word that occurs nowhere else on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked(pub String);

impl Marked {
    pub fn new(what: &str) -> Marked {
        let mut bytes = [0; 8];
        let source = fs::File::open("/dev/urandom").and_then(|mut file| {
            use std::io::Read;
            file.read_exact(&mut bytes)
        });
        source.expect("random bytes");
        Marked(format!("casemate-{what}-{:016x}", u64::from_le_bytes(bytes)))
    }
}

/// A host with something to steal: files that everybody may read and write, and a process with listeners, shared memory, a
/// queue and a secret in its environment. Gone when dropped.
#[derive(Debug)]
pub struct Bait {
    /// In command lines, greetings, names and files.
    pub marker: String,
    /// In the environment of the bait process alone.
    pub secret: String,
    directory: TempDir,
    process: Child,
    pub port: u16,
    pub segment: u32,
}

impl Bait {
    pub fn lay() -> Bait {
        // Not below /tmp, which every cell has to itself: only the wall may be what hides it.
        let directory =
            TempDir::with_prefix_in("casemate-bait-", "/var/tmp").expect("a directory for the bait");
        open_to_all(directory.path(), 0o777);
        let (marker, secret) = (Marked::new("bait").0, Marked::new("secret").0);
        for name in ["secret", "policy.toml"] {
            let path = directory.path().join(name);
            fs::write(&path, &marker).expect("a bait file");
            open_to_all(&path, 0o666);
        }
        let program = directory.path().join("bait");
        fs::write(&program, crate::BAIT).expect("the bait program");
        open_to_all(&program, 0o755);
        let mut process = spawn_fresh(
            Command::new(&program)
                .args([marker.as_str(), &directory.path().to_string_lossy()])
                .env_clear()
                .env("SECRET", &secret)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        );
        let mut line = String::new();
        let out = process.stdout.take().expect("its output is a pipe");
        BufReader::new(out).read_line(&mut line).expect("the bait says what it made");
        let mut words = line.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
        let (Some(port), Some(segment)) = (number(), number()) else {
            panic!("the bait could not be laid; its message is above");
        };
        Bait { marker, secret, directory, process, port: port as u16, segment }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Holds the marker; everybody on the host may read it.
    pub fn secret_file(&self) -> String {
        self.path("secret")
    }

    /// Everybody on the host may write to it.
    pub fn policy_file(&self) -> String {
        self.path("policy.toml")
    }

    pub fn socket(&self) -> String {
        self.path("socket")
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Whether everything is as it was laid.
    pub fn is_untouched(&self) -> bool {
        [self.secret_file(), self.policy_file()]
            .iter()
            .all(|path| fs::read_to_string(path).is_ok_and(|text| text == self.marker))
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        // It removes its queue when its input ends.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// A program that was written a moment ago may still be held open by a sibling that is about to exec.
pub(crate) fn spawn_fresh(command: &mut Command) -> Child {
    for _ in 0..100 {
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            other => return other.expect("a program that was just written can be started"),
        }
    }
    panic!("the program stays busy");
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the owner may change the mode");
}
