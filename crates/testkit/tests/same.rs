//! One request, any wall: the same program, image and files give the same output, files and outcome everywhere.

use std::os::unix::fs::PermissionsExt;

use casemate_testkit::{PROBE, Ran, Rig, Stack, Venue, Wall, cell, venues};

/// Prints what a program sees of where it is, and leaves files of several kinds.
const LOOK: &str = r#"import os, sys, subprocess, threading
print(os.getcwd(), os.getuid(), os.getgid(), sorted(os.environ))
print(sorted(os.listdir('.')), open('in/data').read(), oct(os.stat('in/tool').st_mode & 0o777))
print(sys.stdin.read())
print('to stderr', file=sys.stderr)
os.makedirs('out/deep/er')
open('out/text', 'w').write('hello')
open('out/deep/bytes', 'wb').write(bytes(range(256)) * 300)
os.chmod('out/text', 0o640)
os.symlink('text', 'out/link')
print(subprocess.run(['sh', '-c', 'echo child; exit 3'], capture_output=True))
thread = threading.Thread(target=lambda: print('thread'))
thread.start(); thread.join()
with open('/tmp/scratch', 'w') as file: file.write('x' * 1000)
print(os.path.getsize('/tmp/scratch'), os.path.exists('/home'), os.path.exists('/etc/shadow'))
# Which of the two reasons is given first, differs between kernels.
try: open('/usr/x', 'w')
except OSError as error: print(error.strerror in ('Read-only file system', 'Permission denied'))
sys.exit(5)"#;

/// Where a native program runs in a root of its own.
fn native() -> Vec<Venue> {
    let has_a_root = |stack: &Stack| !stack.contains(Wall::Wasm) && stack.outermost() != Wall::Process;
    venues().into_iter().filter(|venue| has_a_root(&venue.stack)).collect()
}

/// All that a caller gets, for comparison.
fn seen(ran: &Ran) -> String {
    // In which order a directory is listed is up to its file system.
    let mut files: Vec<String> = ran.files.entries.iter().map(|entry| format!("{entry:?}")).collect();
    files.sort();
    let files = files.join("\n");
    let outcome = &ran.outcome;
    format!("{:?}\n{:?}\n{}\n{}\n{files}", outcome.status, outcome.denied, ran.out(), ran.err())
}

fn on_each(test: impl AsyncFn(&Rig, &Stack) -> String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut first: Option<(Venue, String)> = None;
        for venue in native() {
            let rig = Rig::with_docker(venue.docker).await;
            let now = test(&rig, &venue.stack).await;
            rig.close().await;
            match &first {
                Some((other, then)) => assert_eq!(&now, then, "{venue} and {other} differ"),
                None => first = Some((venue, now)),
            }
        }
        assert!(first.is_some_and(|(_, seen)| seen.len() > 50), "nothing was seen");
    });
}

#[test]
fn a_program_of_the_host_cannot_tell_the_walls_apart() {
    on_each(async |rig, stack| {
        let cell = cell(rig, stack).python(LOOK, &["one", "two"]).stdin("from outside").env("GIVEN", "yes");
        let members: &[(&str, u32, Option<&[u8]>)] =
            &[("data", 0o644, Some(b"data")), ("tool", 0o755, Some(b"tool"))];
        let cell = cell.tree("/work/in", 0o755, members);
        let ran = cell.out("/work/out").out("/work/missing").run().await;
        assert_eq!(ran.code(), Some(5), "{stack}: {}", ran.story());
        seen(&ran)
    });
}

#[test]
fn a_program_of_an_image_cannot_either() {
    let image = tempfile::TempDir::new().expect("a directory");
    std::fs::set_permissions(image.path(), PermissionsExt::from_mode(0o755)).expect("its mode");
    std::fs::create_dir(image.path().join("bin")).expect("bin");
    std::fs::write(image.path().join("bin/tool"), PROBE).expect("a program");
    std::fs::set_permissions(image.path().join("bin/tool"), PermissionsExt::from_mode(0o755))
        .expect("its mode");
    std::fs::write(image.path().join("of-the-image"), "suite").expect("a file");
    on_each(async |rig, stack| {
        let look = ["tool", "read-host-file", "/of-the-image", "suite"];
        let ran = cell(rig, stack).image(image.path()).command(look).run().await;
        assert_eq!(ran.code(), Some(20), "{stack}: {}", ran.story());
        let write = cell(rig, stack).image(image.path()).command(["tool", "write-root"]).run().await;
        assert_eq!(write.code(), Some(10), "{stack}: {}", write.story());
        // The probe goes on to say how each kernel answers to less ordinary ways.
        let ordinary = |line: &&str| line.contains("directly:") || line.contains("work directory:");
        ran.out().lines().filter(ordinary).collect::<Vec<_>>().join("\n")
    });
}

#[test]
fn limits_end_it_alike() {
    on_each(async |rig, stack| {
        let mut ends = Vec::new();
        let time = cell(rig, stack).shell("sleep 60").timeout("300ms").run().await;
        let output = cell(rig, stack)
            .shell("yes | head -c 5000")
            .limit(casemate_testkit::LimitKind::Output, "1000")
            .run()
            .await;
        let signal = cell(rig, stack).shell("kill -SEGV $$").run().await;
        let missing = cell(rig, stack).command(["no-such-program"]).run().await;
        for ran in [time, output, signal, missing] {
            let kind = ran.outcome.status.as_str().to_owned();
            let hit: Vec<String> = ran.outcome.limits_hit.iter().map(|hit| hit.kind.to_string()).collect();
            ends.push(format!(
                "{kind} {:?} {hit:?} {} {}",
                ran.code(),
                ran.out().len(),
                ran.outcome.stdout_truncated
            ));
        }
        ends.join("\n")
    });
}
