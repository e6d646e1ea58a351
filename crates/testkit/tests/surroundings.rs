//! Machines that lack something, and users that may not do everything: refusals with a hint, never less than was asked for.
//! These tests change the surroundings of Casemate, so only root can run them.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Home, NOBODY, binary, eventually, finish, needs_root};
use serde_json::{Value, json};

/// A shell script as root in a mount namespace of its own, with `$BIN` and `$CASEMATE_HOME`.
fn in_private_mounts(home: &Home, script: &str) -> Command {
    needs_root();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-euc", script]);
    command.env("CASEMATE_HOME", home.path()).env("BIN", binary()).stdin(Stdio::null());
    command
}

#[test]
fn on_a_read_only_store_nothing_runs() {
    let home = Home::new();
    let fresh = "mount -t tmpfs none $CASEMATE_HOME; mount -o remount,ro $CASEMATE_HOME; $BIN run -- true";
    finish(in_private_mounts(&home, fresh)).refused("ead-only");
    // One that has served before.
    home.run(&["--", "true"]).expect(0);
    let chain = fs::read(home.chain()).unwrap();
    for command in ["run -- echo ran", "run --json -- echo ran"] {
        let used = "mount --bind $CASEMATE_HOME $CASEMATE_HOME; mount -o remount,bind,ro $CASEMATE_HOME;";
        let done = finish(in_private_mounts(&home, &format!("{used} $BIN {command}")));
        assert!(!done.out().contains("ran\n"), "{}", done.out());
        assert_eq!(done.code, 125, "{}", done.err());
    }
    let reading = "mount --bind $CASEMATE_HOME $CASEMATE_HOME; mount -o remount,bind,ro $CASEMATE_HOME;
                   $BIN evidence verify --all";
    finish(in_private_mounts(&home, reading)).expect(0);
    assert_eq!(fs::read(home.chain()).unwrap(), chain);
    home.nothing_left();
}

#[test]
fn when_only_the_chain_is_read_only_nothing_runs() {
    let home = Home::new();
    home.run(&["--", "true"]).expect(0);
    let script = "cd $CASEMATE_HOME; mount --bind evidence evidence; mount -o remount,bind,ro evidence;
                  $BIN run -- echo ran";
    let done = finish(in_private_mounts(&home, script));
    done.refused("read-only");
    assert_eq!(done.out(), "");
    home.nothing_left();
    assert_eq!(home.verify()["executions"], 1);
}

#[test]
fn on_a_full_store_nothing_runs() {
    let home = Home::new();
    for size in ["4k", "16k", "64k"] {
        let script =
            format!("mount -t tmpfs -o size={size} none $CASEMATE_HOME; $BIN run -- echo ran; exit 1");
        let script =
            script.replace("; exit 1", " || code=$?; ls $CASEMATE_HOME/runs >&3 || true; exit ${code:-0}");
        let done = finish(in_private_mounts(&home, &format!("exec 3>&1; {script}")));
        done.refused("no space left");
        assert!(["", "lock\n"].contains(&done.out().as_str()), "with {size}, left in runs: {}", done.out());
    }
    // Full after a while, because some room is reserved, and room again later: the store goes on where it was.
    let script = "mount -t tmpfs -o size=4m none $CASEMATE_HOME
                  $BIN run -- true
                  head -c 8M /dev/zero > $CASEMATE_HOME/fill || true
                  runs=0; while $BIN run -- true; do runs=$((runs + 1)); [ $runs -lt 100 ] || exit 1; done
                  rm $CASEMATE_HOME/fill
                  $BIN run -- true
                  $BIN evidence verify --all --json";
    let done = finish(in_private_mounts(&home, script)).expect(0);
    assert_eq!(
        (&done.json()["open"], &done.json()["verified"]),
        (&json!([]), &json!(true)),
        "{}",
        done.out()
    );
    assert!(done.err().contains("no space left"), "{}", done.err());
    home.nothing_left();
}

#[test]
fn a_home_that_cannot_be_one_is_refused() {
    let home = Home::new();
    let file = home.write_beside("file", "not a directory");
    for bad in [file.clone(), format!("{file}/deeper"), "/proc/no/such/place".to_owned()] {
        let mut command = home.command(["run", "--", "true"]);
        command.env("CASEMATE_HOME", &bad);
        finish(command).refused(&bad);
    }
}

#[test]
fn without_cgroups_what_needs_them_is_refused_or_unbounded() {
    let home = Home::new();
    let without = "mount -t tmpfs none /sys/fs/cgroup";
    for flag in ["--memory 64M", "--cpu-time 1s", "--cpus 1"] {
        let done = finish(in_private_mounts(&home, &format!("{without}; $BIN run {flag} -- true")));
        done.refused(flag.trim_start_matches('-').split(' ').next().unwrap());
        assert!(done.err().contains("cgroup"), "{}", done.err());
    }
    let plain =
        finish(in_private_mounts(&home, &format!("{without}; $BIN run --json -- true"))).expect(0).json();
    assert_eq!(plain["status"], json!({"kind": "exited", "code": 0}));
    assert_eq!(plain["unbounded"], json!(["cpu-time", "cpus", "memory"]));
    // What was not bounded is in the signed record, too.
    let opened = &home.records().into_iter().find(|record| record["event"] == "opened").unwrap();
    assert_eq!(opened["body"]["decision"]["unbounded"], plain["unbounded"]);
    let limited = format!(
        "{without}; $BIN run --json --pids 8 --timeout 500ms --lang shell -c 'bomb() {{ bomb | bomb & }}; bomb; sleep 9'"
    );
    let limited = finish(in_private_mounts(&home, &limited)).expect(124).json();
    assert_eq!(limited["status"]["cause"], "wall-time");
    home.nothing_left();
}

/// A user namespace. Dropped, it is gone.
struct UserNamespace(Child);

impl UserNamespace {
    /// Maps as many ids as the host has, or only root's.
    fn new(ids: &str) -> UserNamespace {
        needs_root();
        let holder = Command::new("unshare").args(["--user", "sleep", "60"]).spawn().expect("unshare");
        let proc = format!("/proc/{}", holder.id());
        let namespace = |proc: &str| fs::read_link(format!("{proc}/ns/user")).ok();
        eventually("unshare has made a user namespace", Duration::from_secs(5), || {
            namespace(&proc).is_some_and(|own| Some(own) != namespace("/proc/self"))
        });
        fs::write(format!("{proc}/uid_map"), ids).expect("uid_map");
        fs::write(format!("{proc}/gid_map"), ids).expect("gid_map");
        UserNamespace(holder)
    }

    /// A shell script as root of the namespace.
    fn run(&self, home: &Home, script: &str) -> Command {
        let pid = self.0.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--user", "--target", &pid, "sh", "-euc", script]).stdin(Stdio::null());
        command.env("CASEMATE_HOME", home.path()).env("BIN", home.reachable_binary());
        command
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const NO_MORE: &str = "echo 0 > /proc/sys/user/max_user_namespaces; exec";

#[test]
fn without_user_namespaces_the_container_is_refused_and_the_process_wall_works() {
    let process = "--policy $POLICY run --risk low --on process --json -- id -u";
    for user in ["root", "nobody"] {
        let (home, become_user) = match user {
            "root" => (Home::new(), String::new()),
            _ => (Home::unprivileged(), format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups")),
        };
        let policy = home.write_beside("policy.toml", "[floors]\nlow = \"process\"\n");
        let place = UserNamespace::new("0 0 4294967295");
        let done = finish(place.run(&home, &format!("{NO_MORE} {become_user} $BIN run -- true")));
        done.refused("namespace");
        assert!(done.err().contains("max_user_namespaces"), "{user}: {}", done.err());
        let mut command = place.run(&home, &format!("{NO_MORE} {become_user} $BIN {process}"));
        command.env("POLICY", &policy);
        let json = finish(command).expect(0).json();
        assert_eq!(json["stack"], json!(["process"]), "{user}");
        assert_ne!(json["stdout"], "0\n", "{user}");
        let doctor = finish(place.run(&home, &format!("{NO_MORE} {become_user} $BIN doctor --json")));
        let doctor = doctor.expect(0).json();
        assert_eq!(state(&doctor, "process"), "ready", "{user}: {doctor}");
        assert_eq!(state(&doctor, "container"), "missing", "{user}: {doctor}");
        home.nothing_left();
    }
}

#[test]
fn root_of_a_user_namespace_without_other_ids_is_refused() {
    let home = Home::new();
    let policy = home.write_beside("policy.toml", "[floors]\nlow = \"process\"\n");
    let place = UserNamespace::new("0 0 1");
    // A payload could only be root there, and nobody would notice from outside.
    for words in ["run -- true", "run --risk low --on process -- true"] {
        let mut command = place.run(&home, &format!("$BIN --policy $POLICY {words}"));
        command.env("POLICY", &policy);
        finish(command).refused("no other id");
    }
    let doctor = finish(place.run(&home, "$BIN doctor --json")).expect(1).json();
    assert_eq!(
        (state(&doctor, "container"), state(&doctor, "process")),
        ("missing".into(), "missing".into())
    );
    home.nothing_left();
}

fn state(doctor: &Value, wall: &str) -> String {
    let walls = doctor["walls"].as_array().expect("walls");
    let found = walls.iter().find(|one| one["stack"] == json!([wall])).expect("the wall");
    found["state"].as_str().expect("a state").to_owned()
}

#[test]
fn a_user_without_privileges_gets_both_walls() {
    let home = Home::unprivileged();
    let (done, json) = home.run_json(&["--", "sh", "-c", "id -u; cat /etc/shadow /root/x; exit 3"]);
    assert_eq!((done.code, &json["stack"]), (3, &json!(["container"])));
    assert_eq!(json["stdout"], "1000\n");
    assert_eq!(json["unbounded"], json!(["cpu-time", "cpus", "memory"]));
    let process = home.on_process();
    let process: Vec<&str> = process.iter().map(String::as_str).collect();
    let (done, json) =
        home.run_json(&[&process[..], &["--", "sh", "-c", "cat /etc/shadow; exit 4"]].concat());
    assert_eq!((done.code, &json["stack"]), (4, &json!(["process"])));
    assert_eq!(json["unbounded"], json!(["cpu-time", "cpus", "memory", "disk", "inodes", "pids"]));
    home.casemate(&["doctor"]).expect(0);
    home.nothing_left();
}

#[test]
fn a_user_without_privileges_is_refused_what_only_root_can_enforce() {
    let home = Home::unprivileged();
    for (flag, value, name) in
        [("--memory", "64M", "memory"), ("--cpu-time", "1s", "cpu-time"), ("--cpus", "1", "cpus")]
    {
        let done = home.run(&[flag, value, "--", "true"]);
        done.refused(name);
        assert!(done.err().contains("hint: run casemate as root"), "{}", done.err());
        // The same if it is the policy that asks.
        let policy = home.write_beside(
            "demanding.toml",
            format!("[defaults]\n{name} = {value:?}\n").replace("\"1\"", "1"),
        );
        home.casemate(&["--policy", &policy, "run", "--", "true"]).refused(name);
        home.casemate(&["explain", flag, value, "--", "true"]).refused(name);
    }
    let records = home.records();
    assert_eq!(records.len(), 6);
    assert!(records.iter().all(|record| record["event"] == "refused"));
    home.verify();
    home.nothing_left();
}

#[test]
fn a_user_without_privileges_has_limits_that_hold() {
    let home = Home::unprivileged();
    let (done, json) = home.run_json(&["--timeout", "300ms", "--", "sleep", "30"]);
    assert_eq!((done.code, json["status"]["cause"].as_str()), (124, Some("wall-time")));
    assert!(done.took < Duration::from_millis(1300), "{:?}", done.took);
    let (_, json) = home.run_json(&["--disk", "1M", "--", "sh", "-c", "head -c 8M /dev/zero > x; sleep 0.2"]);
    assert_eq!(json["limits_hit"][0]["kind"], "disk", "{json}");
    home.nothing_left();
    assert_eq!(home.verify()["executions"], 2);
}

#[test]
fn one_users_home_is_not_anothers() {
    let home = Home::unprivileged();
    home.run(&["--", "true"]).expect(0);
    let theirs = Home::new();
    fs::set_permissions(theirs.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut command = home.command(["run", "--", "true"]);
    command.env("CASEMATE_HOME", theirs.path());
    finish(command).refused(&theirs.path().display().to_string());
}

#[test]
fn a_policy_that_others_may_not_read_stops_them() {
    let home = Home::unprivileged();
    let policy = home.path().join("policy.toml");
    std::fs::write(&policy, "").unwrap();
    std::fs::set_permissions(&policy, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    home.casemate(&["run", "--", "true"]).refused("policy.toml");
    assert!(home.records().is_empty());
    home.nothing_left();
}
