//! Programs of the host that `setup` has do its work. Each says on standard error what went wrong, and people get to read the line of
//! it that says most.

use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::FREE_SPACE;
use crate::failure::{Failure, os_words};

/// How apt, tar and the system say it.
const FULL_DISK: [&str; 2] = ["No space left on device", "enough free space"];

/// Runs one to its end.
pub(super) fn run(mut command: Command, missing: &str, otherwise: &str) -> Result<(), Failure> {
    let output = command.output();
    succeeded(&command, output, missing, otherwise).map(drop)
}

/// Runs one, and returns what it prints. Whoever gives up waiting for it ends it, and all that it has started with it.
pub(super) async fn read(mut command: Command, missing: &str, otherwise: &str) -> Result<Vec<u8>, Failure> {
    // In a group of its own, Ctrl-C on a terminal reaches us alone; in no language but that of our messages, we know what it says.
    command.process_group(0).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut command = tokio::process::Command::from(command);
    let output = match command.spawn() {
        Ok(child) => {
            let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
            let output = child.wait_with_output().await;
            group.0 = None;
            output
        }
        Err(error) => Err(error),
    };
    Ok(succeeded(command.as_std(), output, missing, otherwise)?.stdout)
}

fn succeeded(
    command: &Command,
    output: io::Result<Output>,
    missing: &str,
    otherwise: &str,
) -> Result<Output, Failure> {
    let name = command.get_program().to_string_lossy();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::new(format!("{name} is not installed"), missing),
        _ => Failure::new(format!("cannot run {name}: {}", os_words(error)), missing),
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let is_full = |line: &&str| FULL_DISK.iter().any(|sign| line.contains(sign));
    let full = words.lines().find(is_full);
    // The first of apt's errors is the reason for the others; from elsewhere, the last word counts.
    let error = || words.lines().find_map(|line| line.strip_prefix("E: "));
    let last = || words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
    let hint = match full {
        Some(_) => FREE_SPACE,
        None if words.contains("No module named pip") => missing,
        None => otherwise,
    };
    Err(Failure::new(format!("{name} failed: {}", full.or_else(error).unwrap_or_else(last)), hint))
}

/// Processes that end when nobody waits for them any more.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn told<T: std::fmt::Debug>(done: Result<T, Failure>) -> (String, String) {
        match done {
            Err(Failure::Told { message, hint }) => (message, hint.unwrap_or_default()),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_a_program_prints_is_read_and_what_it_complains_about_is_told() {
        assert_eq!(read(shell("echo $LC_ALL"), "missing", "otherwise").await.unwrap(), b"C\n");
        let failed =
            read(shell("echo first >&2; echo last >&2; echo >&2; exit 3"), "missing", "otherwise").await;
        assert_eq!(told(failed), ("sh failed: last".into(), "otherwise".into()));
        let apts = "echo 'W: be warned' >&2; echo 'E: the reason' >&2; echo 'E: what follows' >&2; echo ' - more' >&2; exit 100";
        let failed = read(shell(apts), "missing", "otherwise").await;
        assert_eq!(told(failed).0, "sh failed: the reason");
        let full = read(
            shell("echo 'tar: No space left on device' >&2; echo last >&2; exit 1"),
            "missing",
            "otherwise",
        )
        .await;
        assert_eq!(told(full), ("sh failed: tar: No space left on device".into(), FREE_SPACE.into()));
        let absent = read(Command::new("/nowhere/at-all"), "missing", "otherwise").await;
        assert_eq!(told(absent), ("/nowhere/at-all is not installed".into(), "missing".into()));
        let absent = run(Command::new("/nowhere/at-all"), "missing", "otherwise");
        assert_eq!(told(absent).1, "missing");
    }

    #[tokio::test]
    async fn nothing_that_a_program_has_started_goes_on_when_it_is_given_up() {
        let place = tempfile::tempdir().unwrap();
        let mark = place.path().join("mark");
        let script = format!("sh -c 'sleep 1; touch {0}' & touch {0}.started; wait", mark.display());
        let given_up = tokio::time::timeout(Duration::from_millis(500), read(shell(&script), "", "")).await;
        assert!(given_up.is_err());
        assert!(place.path().join("mark.started").exists());
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!mark.exists(), "it went on");
    }
}
