//! What stands around a program: needs, grants, images, and the posture that is recorded.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use casemate_testkit::{Need, PROBE, Rig, Stack, Wall, cell, is_root};

use crate::{is_not_for, is_wasm, refused, refuses, succeeded};

pub(crate) async fn tracing_needs_to_be_asked_for(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "tracing_needs_to_be_asked_for") {
        return refuses(cell(rig, stack).needs(Need::Ptrace), "ptrace").await;
    }
    let trace = || cell(rig, stack).probe(["ptrace-traceme-thread"]);
    assert_eq!(trace().run().await.code(), Some(10), "denied unless asked for");
    let asked = trace().needs(Need::Ptrace).run().await;
    match stack.outermost() {
        Wall::Process => refused(&asked, "ptrace"),
        _ => assert_eq!(asked.code(), Some(20), "{}", asked.story()),
    }
}

pub(crate) async fn layers_are_never_traded(rig: &Rig, stack: &Stack) {
    for need in [Need::Bpf, Need::NestedContainers, Need::Root, Need::FullLinux] {
        let ran = cell(rig, stack).needs(need).run().await;
        // A machine has no layer within that would be relaxed.
        match stack.walls() == [Wall::Microvm] {
            true => succeeded(&ran),
            false => refused(&ran, need.as_str()),
        }
    }
    match is_wasm(stack) {
        true => refuses(cell(rig, stack).needs(Need::Fork), "fork").await,
        false => succeeded(&cell(rig, stack).needs(Need::Fork).shell("(exit 0) && true").run().await),
    }
}

pub(crate) async fn grants_that_do_not_exist_are_refused(rig: &Rig, stack: &Stack) {
    let egress = cell(rig, stack).with(|draft| draft.egress.push("example.com:443".into()));
    refused(&egress.run().await, "egress");
    let secret = cell(rig, stack).with(|draft| draft.secrets.push("TOKEN@example.com".into()));
    refused(&secret.run().await, "secrets");
    let deterministic = cell(rig, stack).deterministic().run().await;
    match is_wasm(stack) {
        true => succeeded(&deterministic),
        false => refused(&deterministic, "deterministic"),
    }
}

pub(crate) async fn the_host_image_is_the_hosts_programs(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "the_host_image_is_the_hosts_programs") {
        let look = "import os
for path in '/usr/bin/env', '/etc/passwd', '/proc/self/status', '../usr/bin/env', '/dev/null':
    try: open(path); exit(1)
    except OSError: pass
print('nothing')";
        for look in [
            cell(rig, stack).python(look, &[]),
            cell(rig, stack).file("/work/x", 0o644, b"").python(look, &[]),
        ] {
            let ran = look.run().await;
            assert_eq!((ran.code(), ran.out().as_str()), (Some(0), "nothing\n"), "{}", ran.story());
        }
        return;
    }
    if stack.outermost() == Wall::Microvm {
        let host = cell(rig, stack).with(|draft| draft.image = Default::default());
        return refuses(host, "image").await;
    }
    let look = "ls /usr/bin/env && for d in /root /home /var/lib /etc/shadow /boot; do ls $d/* $d/.[a-z]* && exit 1; done; exit 0";
    let ran = cell(rig, stack).shell(look).run().await;
    assert_eq!((ran.code(), ran.out().as_str()), (Some(0), "/usr/bin/env\n"), "{}", ran.story());
    assert_ne!(
        cell(rig, stack).shell("touch /usr/x || touch /etc/x || touch /x").run().await.code(),
        Some(0)
    );
}

/// Without root a payload behind the process wall is the owner of its caller's files, and Landlock does not govern metadata.
pub(crate) async fn the_callers_files_stay_as_they_are(rig: &Rig, stack: &Stack) {
    let script = r#"
import os, sys
path = sys.argv[1]
def attempt(trick):
    try: trick()
    except (OSError, AttributeError): pass
attempt(lambda: os.chmod(path, 0o600))
attempt(lambda: os.chown(path, -1, os.getgid()))
attempt(lambda: os.utime(path))
attempt(lambda: os.setxattr(path, "user.casemate", b"x"))
attempt(lambda: os.fchmod(os.open(path, 3), 0o600))
attempt(lambda: os.chmod("/proc/self/fd/%d" % os.open(path, os.O_PATH), 0o600))
attempt(lambda: (os.chdir(os.path.dirname(path)), os.chmod(".", 0o700)))
print("tried")
"#;
    let directory = tempfile::TempDir::new().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let path = directory.path().join("file");
    std::fs::write(&path, "mine").expect("a file");
    let argument = path.to_str().expect("a path in UTF-8");
    let seen = || {
        [directory.path(), &path].map(|path| {
            let seen = path.metadata().expect("still there");
            (seen.ctime(), seen.ctime_nsec())
        })
    };
    let before = seen();
    // More than the clock that files are stamped with needs to tick.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let ran = cell(rig, stack).python(script, &[argument]).run().await;
    assert_eq!(ran.out(), "tried\n", "{}", ran.story());
    assert_eq!(seen(), before, "a file of the caller was changed");
    let control =
        std::process::Command::new("python3").args(["-c", script, argument]).output().expect("python");
    assert!(control.status.success());
    let changed = seen();
    assert!(
        changed[0] != before[0] && changed[1] != before[1],
        "control: the same changes both outside of a cell"
    );
}

pub(crate) async fn a_directory_is_an_image(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "a_directory_is_an_image") {
        return refuses(cell(rig, stack).image(image_with_tool().path()), "image").await;
    }
    let image = image_with_tool();
    std::fs::write(image.path().join("release"), "suite").expect("a file");
    let inside = |argv: &[&str]| cell(rig, stack).image(image.path()).command(argv.iter().copied()).run();
    let listed = inside(&["tool", "list"]).await;
    if matches!(stack.outermost(), Wall::Process | Wall::Microvm) {
        return refused(&listed, "image");
    }
    succeeded(&listed);
    assert!(listed.out().starts_with("dotdot\t"));
    // Nothing of the host's /usr is in it, what it holds is read-only, and the cell's own places are there.
    refused(&inside(&["sh"]).await, "not found");
    assert_eq!(inside(&["/bin/tool", "write-root"]).await.code(), Some(10));
    assert_eq!(inside(&["/bin/tool", "read-host-file", "/release", "suite"]).await.code(), Some(20));
    assert_eq!(inside(&["/bin/tool", "core-pattern"]).await.code(), Some(10));
    // A change of the directory is a change of the image.
    std::fs::remove_file(image.path().join("release")).expect("removed");
    std::fs::write(image.path().join("release2"), "suite").expect("a file");
    assert_eq!(inside(&["/bin/tool", "read-host-file", "/release", "suite"]).await.code(), Some(10));
    assert_eq!(inside(&["/bin/tool", "read-host-file", "/release2", "suite"]).await.code(), Some(20));
}

/// Its mounts would be too many to tell of, and nothing runs that cannot be told of.
pub(crate) async fn an_image_with_too_many_names_is_not_run(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "an_image_with_too_many_names_is_not_run") {
        return refuses(cell(rig, stack).image(image_with_tool().path()), "image").await;
    }
    let image = image_with_tool();
    for n in 0..2000 {
        std::fs::write(image.path().join(format!("a-file-with-a-longer-name-{n}")), "").expect("a file");
    }
    let ran = cell(rig, stack).image(image.path()).command(["tool", "list"]).run().await;
    match stack.outermost() {
        Wall::Process | Wall::Microvm => refused(&ran, "image"),
        _ => assert!(ran.story().contains("more than 256 names") && ran.out().is_empty(), "{}", ran.story()),
    }
    succeeded(&cell(rig, stack).command(["true"]).run().await);
}

/// More than are kept prepared, each with its own content, the first one once more at the end.
pub(crate) async fn many_images_stay_apart(rig: &Rig, stack: &Stack) {
    if is_not_for(stack, "many_images_stay_apart") {
        return refuses(cell(rig, stack).image(image_with_tool().path()), "image").await;
    }
    if matches!(stack.outermost(), Wall::Process | Wall::Microvm) {
        return refused(&cell(rig, stack).image(image_with_tool().path()).run().await, "image");
    }
    let images: Vec<_> = (0..40).map(|_| image_with_tool()).collect();
    for (n, image) in images.iter().enumerate() {
        std::fs::write(image.path().join(format!("number-{n}")), "suite").expect("a file");
    }
    for (n, image) in images.iter().enumerate().chain([(0, &images[0])]) {
        let look = |name: String| {
            let argv = ["tool".to_owned(), "read-host-file".into(), name, "suite".into()];
            cell(rig, stack).image(image.path()).command(argv).run()
        };
        let own = look(format!("/number-{n}")).await;
        assert_eq!(own.code(), Some(20), "image {n} has its own file: {}", own.story());
        let other = look(format!("/number-{}", (n + 1) % 40)).await;
        assert_eq!(other.code(), Some(10), "image {n} has no other's: {}", other.story());
    }
}

/// A directory with the probe in it, as `/bin/tool`.
fn image_with_tool() -> tempfile::TempDir {
    let image = tempfile::TempDir::new().expect("a directory");
    std::fs::set_permissions(image.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
    std::fs::create_dir(image.path().join("bin")).expect("bin");
    std::fs::write(image.path().join("bin/tool"), PROBE).expect("a program");
    std::fs::set_permissions(image.path().join("bin/tool"), std::fs::Permissions::from_mode(0o755))
        .expect("mode");
    image
}

pub(crate) async fn the_posture_is_recorded(rig: &Rig, stack: &Stack) {
    let ran = cell(rig, stack).run().await;
    succeeded(&ran);
    let records = rig.records(&ran.outcome.id);
    let closing = &records.last().expect("a closing record").entry.body;
    if is_wasm(stack) {
        // What stands around an instance is its worker's: in the worker's own record, or beside the call that has it alone.
        // A machine is never shared.
        if stack.outermost() != Wall::Microvm {
            let worker = closing["observed"]["worker"].as_str().expect("the record names the worker");
            let worker = rig.records(worker);
            let opening = &worker.first().expect("the worker has a record").entry.body;
            assert_eq!(opening["worker"]["sha256"].as_str().map(str::len), Some(64), "{opening}");
            confined(rig, stack, &opening["observed"]);
        }
        let alone = cell(rig, stack).out("/work/nothing").run().await;
        let records = rig.records(&alone.outcome.id);
        let observed = &records.last().expect("a closing record").entry.body["observed"];
        assert_eq!(observed["worker_sha256"].as_str().map(str::len), Some(64), "{observed}");
        return confined(rig, stack, &observed["posture"]);
    }
    confined(rig, stack, &closing["observed"]);
    match rig.is_in_gvisor(stack) {
        // Its kernel has none.
        true => assert!(closing["applied"]["landlock"].is_null(), "{closing}"),
        false => assert!(
            closing["applied"]["landlock"].as_array().is_some_and(|rules| rules.len() > 3),
            "{closing}"
        ),
    }
    assert_eq!(closing["applied"]["seccomp_sha256"].as_str().map(str::len), Some(64));
    assert_eq!(closing["program"]["sha256"].as_str().map(str::len), Some(64), "{closing}");
}

/// What a payload must look like from outside.
fn confined(rig: &Rig, stack: &Stack, seen: &serde_json::Value) {
    let gvisor = rig.is_in_gvisor(stack);
    let docker = stack.outermost() == Wall::Docker;
    // The Docker Engine's gVisor is root, of a user namespace of its own.
    assert!(seen["uid"].as_u64() != Some(0) || (gvisor && docker), "{seen}");
    let runtime = &seen["runtime"];
    if stack.outermost() == Wall::Microvm {
        assert!(matches!(runtime["accelerator"].as_str(), Some("tcg" | "kvm")), "{runtime}");
        assert!(runtime["kernel"].as_str().is_some_and(|version| !version.is_empty()), "{runtime}");
        // Who breaks out of the machine is somebody without rights, too.
        let vmm = &runtime["vmm"];
        assert!(vmm["uid"].as_u64() >= Some(0x5000_0000), "{vmm}");
        assert_eq!(vmm["capabilities"]["bounding"].as_u64(), Some(0), "{vmm}");
        assert!((vmm["seccomp"]["mode"].as_u64(), &vmm["no_new_privs"]) == (Some(2), &true.into()), "{vmm}");
        assert_eq!(vmm["namespaces"]["own"].as_array().map(Vec::len), Some(7), "{vmm}");
    }
    if docker {
        assert_eq!(runtime["seccomp_profile_sha256"].as_str().map(str::len), Some(64), "{runtime}");
        assert!(runtime["engine"].as_str().is_some_and(|version| !version.is_empty()), "{runtime}");
        assert_eq!(runtime["runtime"], if gvisor { "runsc" } else { "runc" });
    } else if gvisor {
        // What is seen is its kernel, which has capabilities in a user namespace of its own, and who made it.
        for digest in ["sha256", "specification_sha256"] {
            assert_eq!(runtime[digest].as_str().map(str::len), Some(64), "{runtime}");
        }
        assert!(runtime["runsc"].as_str().is_some_and(|version| !version.is_empty()), "{runtime}");
        assert!(matches!(runtime["platform"].as_str(), Some("systrap" | "ptrace")), "{runtime}");
    }
    if !gvisor {
        for set in ["effective", "permitted", "inheritable", "ambient"] {
            assert_eq!(seen["capabilities"][set].as_u64(), Some(0), "{set} in {seen}");
        }
    }
    assert_eq!(seen["no_new_privs"], true);
    assert_eq!(seen["seccomp"]["mode"].as_u64(), Some(2));
    // Without namespaces the payload's is another one than the guest's, and the Docker Engine's is one more.
    let filters = if stack.outermost() == Wall::Process || (docker && !gvisor) { 2 } else { 1 };
    assert!(seen["seccomp"]["filters"].as_u64() >= Some(filters), "{seen}");
    let own: Vec<&str> = seen["namespaces"]["own"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    let expected: &[&str] = match (stack.outermost(), gvisor) {
        (Wall::Process, _) => &[],
        // Its users are the host's.
        (Wall::Docker, false) => &["mnt", "pid", "net", "ipc", "uts", "cgroup"],
        // What is in the namespaces that gVisor's kernel shares does not show inside.
        (Wall::Docker, true) => &["user", "mnt", "net", "ipc", "uts"],
        _ => &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"],
    };
    assert!(stack.outermost() != Wall::Process || own.is_empty(), "{own:?}");
    for name in expected {
        assert!(own.contains(name), "{name} is missing from {own:?}");
    }
    if is_root() && !gvisor {
        assert_eq!(seen["capabilities"]["bounding"].as_u64(), Some(0));
        assert!(seen["cgroup"].as_object().is_some_and(|files| !files.is_empty()), "{seen}");
    }
}
