//! Hostile images, requests, outputs and results: attacks 4–8, 16, 93, 94, 99, 100, 102, 104–107.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use casemate_core::policy::Policy;
use casemate_testkit::{Entry, Stack, Status, cell};
use tempfile::TempDir;

use crate::judged::watched;
use crate::row::Control::Nothing;
use crate::row::On::{self, Held, NotApplicable};
use crate::row::{Finding, Judge, Judged, Row, Scene, Trial};
use crate::run::judge;

const NO_IMAGE: On = NotApplicable("this wall refuses images");
const OUTSIDE: On = Held(Nothing("no layer: the engine itself is under test"));

const fn row(attacks: &'static [u16], name: &'static str, judge: Judge, process: On) -> Row {
    Row { attacks, name, trial: Trial::Judged { judge, container: OUTSIDE, process } }
}

pub(crate) const ROWS: &[Row] = &[
    row(&[4], "image swapped during the launch", swapped_image, NO_IMAGE),
    row(&[5, 6], "links for /dev/null and /dev/pts", hostile_dev, NO_IMAGE),
    row(&[7], "link for /proc", hostile_proc, NO_IMAGE),
    row(&[8], "work directory in /proc/self/fd", work_directory, OUTSIDE),
    row(&[16, 105], "out-specials", out_specials, OUTSIDE),
    row(&[93], "leftovers of another tenant", leftovers, OUTSIDE),
    row(&[94], "predictable names", names, OUTSIDE),
    row(&[99], "pid reuse", pid_reuse, OUTSIDE),
    row(&[100], "forged-result", forged_result, OUTSIDE),
    row(&[102], "hostile-output", hostile_output, OUTSIDE),
    row(&[104, 105], "links in the way out", links_out, OUTSIDE),
    row(&[106], "out of an interpreter", interpreter, OUTSIDE),
    row(&[107], "asking for no sandbox", no_sandbox, OUTSIDE),
];

fn fault(finding: bool, story: impl FnOnce() -> String) -> Result<Finding, String> {
    if finding { Ok(Finding::Held) } else { Err(story()) }
}

/// While cells are launched from it, a directory of the image keeps turning into a link to the bait and back.
fn swapped_image(scene: Scene) -> Judged {
    Box::pin(async move {
        let image = directory();
        let (data, link) = (image.path().join("data"), image.path().join(".link"));
        fs::create_dir(&data).map_err(text)?;
        symlink(scene.bait.directory(), &link).map_err(text)?;
        let stop = Arc::new(AtomicBool::new(false));
        let swapper = std::thread::spawn({
            let (stop, data, link, spare) =
                (stop.clone(), data.clone(), link.clone(), image.path().join(".spare"));
            move || {
                let mut swaps = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    let swapped = fs::rename(&data, &spare).is_ok() && fs::rename(&link, &data).is_ok();
                    let back = fs::rename(&data, &link).is_ok() && fs::rename(&spare, &data).is_ok();
                    swaps += u32::from(swapped && back);
                }
                swaps
            }
        });
        let mut escapes = Vec::new();
        let (mut ran, mut aborted) = (0, 0);
        for _ in 0..60 {
            let args = ["read-host-file", "/data/secret", &scene.bait.marker];
            let tried = cell(&scene.rig, &scene.stack).image(image.path()).probe(args).run().await;
            match &tried.outcome.status {
                // The Docker Engine takes paths, and refuses one that leads nowhere at that moment.
                Status::Failed { .. } | Status::Refused(_) => aborted += 1,
                _ if judge(&tried) == Ok(Finding::Held) => ran += 1,
                _ => escapes.push(tried.story()),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let swaps = swapper.join().map_err(|_| "the swapper died".to_owned())?;
        fault(escapes.is_empty() && swaps > 100 && ran > 0, || {
            format!("{swaps} swaps, {ran} cells held, {aborted} launches aborted, escapes: {escapes:?}")
        })
    })
}

/// The image offers its own /dev, with links where devices should be. The cell's /dev is the launcher's.
fn hostile_dev(scene: Scene) -> Judged {
    Box::pin(async move {
        let (inside, whole) = (directory(), directory());
        let dev = inside.path().join("dev");
        fs::create_dir(&dev).map_err(text)?;
        for name in ["null", "zero", "tty", "full", "console", "ptmx"] {
            symlink(scene.bait.policy_file(), dev.join(name)).map_err(text)?;
        }
        for name in ["pts", "shm", "mqueue"] {
            symlink(scene.bait.directory(), dev.join(name)).map_err(text)?;
        }
        symlink(scene.bait.directory(), whole.path().join("dev")).map_err(text)?;
        for image in [inside, whole] {
            let try_it = |args: &[&str]| {
                cell(&scene.rig, &scene.stack).image(image.path()).probe(args.iter().copied()).run()
            };
            for args in [&["device-open"][..], &["write-root"], &["policy-write", &scene.bait.policy_file()]]
            {
                let tried = try_it(args).await;
                if judge(&tried)? != Finding::Held {
                    return Err(tried.story());
                }
            }
        }
        fault(scene.bait.is_untouched(), || "the bait was written to through /dev".into())
    })
}

/// The image offers its own /proc: a link, and a directory with a link in it.
fn hostile_proc(scene: Scene) -> Judged {
    Box::pin(async move {
        let (whole, inside) = (directory(), directory());
        symlink(scene.bait.directory(), whole.path().join("proc")).map_err(text)?;
        fs::create_dir_all(inside.path().join("proc/self")).map_err(text)?;
        symlink(scene.bait.policy_file(), inside.path().join("proc/self/uid_map")).map_err(text)?;
        for image in [whole, inside] {
            for probe in ["core-pattern", "masked-proc"] {
                let tried = cell(&scene.rig, &scene.stack).image(image.path()).probe([probe]).run().await;
                if judge(&tried)? != Finding::Held {
                    return Err(tried.story());
                }
            }
        }
        fault(scene.bait.is_untouched(), || "the bait was written to through /proc".into())
    })
}

/// Every descriptor that the launcher, the guest or the engine might have open is tried as a way out.
fn work_directory(scene: Scene) -> Judged {
    Box::pin(async move {
        let script = format!("cat ../../../../../../../..{}", scene.bait.secret_file());
        for at in ["self", "1", "thread-self"] {
            for number in 3..12 {
                let path = format!("/proc/{at}/fd/{number}");
                let tried = cell(&scene.rig, &scene.stack).shell(&script).cwd(&path).run().await;
                let outside = tried.out().contains(&scene.bait.marker);
                if outside || tried.refusal().is_none_or(|refusal| refusal.hint.is_empty()) {
                    return Err(format!("{path}: {}", tried.story()));
                }
            }
        }
        Ok(Finding::Held)
    })
}

/// Only files and directories come out, without set-id bits; the rest is skipped and said so.
fn out_specials(scene: Scene) -> Judged {
    Box::pin(async move {
        let script = "mkdir out && ./probe out-specials out && exit 1; chmod 700 out/unreadable; exit 0";
        let ran = watched(&scene, |cell| cell.probe(["out-specials"]).shell(script).out("/work/out")).await?;
        let skipped: BTreeSet<&str> = ran.files.skipped.iter().map(|(_, path, _)| path.as_str()).collect();
        let made =
            |name: &str| ran.out().lines().any(|line| line.starts_with(name) && line.ends_with("made"));
        let pairs = [
            ("fifo", "fifo"),
            ("socket", "socket"),
            ("whiteout by mknod", "whiteout"),
            ("symlink to /etc/passwd", "link-absolute"),
            ("symlink upwards", "link-upwards"),
            ("symlink to a directory", "link-root"),
            ("symlink to itself", "link-loop"),
        ];
        if let Some((_, path)) = pairs.iter().find(|(what, path)| made(what) && !skipped.contains(path)) {
            return Err(format!("{path} was not reported as skipped: {}", ran.story()));
        }
        let modes = ran.files.entries.iter().map(|entry| match entry.entry {
            Entry::File { mode, .. } | Entry::Directory { mode } => mode,
        });
        let set_id = modes.filter(|mode| mode & 0o7000 != 0).count();
        let links = ran.files.entries.iter().filter(|entry| entry.path.starts_with("link-")).count();
        let reported = ran.outcome.denied.len() == ran.files.skipped.len();
        fault(ran.code() == Some(0) && made("fifo") && set_id == 0 && links == 0 && reported, || {
            format!("{set_id} with set-id bits, {links} links: {} {:?}", ran.story(), ran.files)
        })
    })
}

/// One tenant leaves something everywhere; the next one finds nothing.
fn leftovers(scene: Scene) -> Judged {
    Box::pin(async move {
        let litter = "touch litter \"$TMPDIR/litter\" /tmp/litter /var/tmp/litter /dev/shm/litter 2>/dev/null; ls litter";
        let first = cell(&scene.rig, &scene.stack).tenant("first").shell(litter).run().await;
        if first.out() != "litter\n" {
            return Err(format!("nothing could be left: {}", first.story()));
        }
        let second =
            cell(&scene.rig, &scene.stack).tenant("second").probe(["tmp-leftovers", "probe"]).run().await;
        judge(&second)
    })
}

/// Names that others could guess or take before us.
fn names(scene: Scene) -> Judged {
    Box::pin(async move {
        let is_random = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mut ids = BTreeSet::new();
        for _ in 0..20 {
            ids.insert(cell(&scene.rig, &scene.stack).run().await.outcome.id);
        }
        let all = ids.len() == 20 && ids.iter().all(|id| is_random(id)) && is_random(scene.rig.run_id());
        fault(all, || format!("not 128 random bits each: {ids:?}"))
    })
}

/// Cells end one after the other while their pids are free for others at once; nobody else's process is hit.
fn pid_reuse(scene: Scene) -> Judged {
    Box::pin(async move {
        let mut bystander = std::process::Command::new("sleep").arg("60").spawn().map_err(text)?;
        let mut result = Ok(Finding::Held);
        for _ in 0..20 {
            let ran = cell(&scene.rig, &scene.stack)
                .shell("for i in 1 2 3 4 5 6 7 8; do : & done; wait")
                .run()
                .await;
            if ran.code() != Some(0) {
                result = Err(ran.story());
            }
        }
        if !matches!(bystander.try_wait(), Ok(None)) {
            result = Err("a process outside was killed".into());
        }
        let _ = bystander.kill();
        let _ = bystander.wait();
        result
    })
}

/// A status on standard output is output.
fn forged_result(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.probe(["forged-result"])).await?;
        let own_stack = ran.outcome.stack.as_ref() == Some(&scene.stack);
        let output = ran.out().contains("\"forged\"") && !ran.out().contains("took a frame");
        let records = scene.rig.records(&ran.outcome.id);
        let closing =
            records.last().map(|record| record.entry.body["status"].to_string()).unwrap_or_default();
        fault(ran.code() == Some(7) && own_stack && output && closing.contains('7'), || {
            format!("the record says {closing}: {}", ran.story())
        })
    })
}

/// The API returns the very bytes.
fn hostile_output(scene: Scene) -> Judged {
    Box::pin(async move {
        let ran = watched(&scene, |cell| cell.probe(["hostile-output"])).await?;
        let bytes = &ran.stderr;
        let whole = ran.out().contains(&format!("({} of them)", bytes.len()));
        let odd = [0u8, 0x1b, 0xff, 0x07, 0x9b].iter().all(|byte| bytes.contains(byte));
        fault(ran.stdout.starts_with(bytes) && whole && odd, || {
            format!("{} bytes: {}", bytes.len(), ran.story())
        })
    })
}

/// What is asked for is replaced by a link, or lies behind one.
fn links_out(scene: Scene) -> Judged {
    Box::pin(async move {
        let secret = scene.bait.secret_file();
        let directory = scene.bait.directory().display().to_string();
        let ways = [
            (format!("ln -s {secret} out"), "/work/out"),
            (format!("ln -s {directory} out"), "/work/out"),
            (format!("ln -s {directory} out"), "/work/out/secret"),
            ("ln -s / out".to_owned(), "/work/out/etc/passwd"),
            ("mkfifo out".to_owned(), "/work/out"),
            (format!("mkdir out; ln -s {secret} out/link; mkfifo out/pipe"), "/work/out"),
        ];
        for (script, path) in ways {
            let ran = cell(&scene.rig, &scene.stack).shell(&script).out(path).run().await;
            let bytes: usize = ran.files.entries.iter().map(|entry| entry.bytes.len()).sum();
            let told = ran.outcome.status.as_str() == "failed" || !ran.files.skipped.is_empty();
            if bytes > 0 || !told {
                return Err(format!("{script}: {bytes} bytes came out: {}", ran.story()));
            }
        }
        let upwards = ["/work/../etc/passwd", "/etc/passwd", "/work/a/../../etc", "work/a", "/work"];
        let accepted = upwards.iter().find(|path| cell(&scene.rig, &scene.stack).out(path).request().is_ok());
        fault(accepted.is_none(), || format!("{accepted:?} is accepted as a path to take out"))
    })
}

/// Whatever a language's own sandbox was worth, the wall around the interpreter holds.
fn interpreter(scene: Scene) -> Judged {
    Box::pin(async move {
        let escape = "import os, sys; os.execv('./probe', sys.argv[1:])";
        let (secret, marker) = (scene.bait.secret_file(), scene.bait.marker.clone());
        let argv = ["python3", "-c", escape, "probe", "read-host-file", &secret, &marker];
        let ran = watched(&scene, |cell| cell.probe(["read-host-file"]).command(argv)).await?;
        judge(&ran)
    })
}

/// There is no word for it: not as a stack, not in a policy, not in the environment of the engine or the request.
fn no_sandbox(scene: Scene) -> Judged {
    Box::pin(async move {
        for word in ["none", "off", "host", "unsafe", "no-sandbox", ""] {
            if word.parse::<Stack>().is_ok() {
                return Err(format!("{word:?} is a stack"));
            }
        }
        for policy in ["sandbox = false", "isolation = \"none\"", "[floors]\nlow = \"none\"", "unsafe = true"]
        {
            if Policy::parse(policy).is_ok() {
                return Err(format!("{policy:?} is a policy"));
            }
        }
        let names = ["CASEMATE_NO_SANDBOX", "CASEMATE_UNSAFE", "CASEMATE_ISOLATION"];
        let cell = names.iter().fold(cell(&scene.rig, &scene.stack), |cell, name| cell.env(name, "1"));
        judge(&cell.probe(["unshare-user"]).run().await)
    })
}

fn directory() -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::with_prefix_in("casemate-image-", "/var/tmp").expect("a directory for an image");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    directory
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}
