//! What only virtual machines can do, and what can go wrong with them: every one of these ends as an outcome with a cause, in time, and
//! leaves nothing.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use casemate_core::policy::Policy;
use casemate_engine::{Config, Engine};
use casemate_testkit::{
    Cause, CellBuilder, Need, Ran, Rig, Stack, Status, Traces, Wall, cell, is_root, microvm,
};

/// A machine that fails says so, or is given up, long before this.
const SOON: Duration = Duration::from_secs(20);

fn machine() -> Stack {
    Stack::of(Wall::Microvm)
}

/// Runs a test with an engine, or shows what everybody else is told.
fn on<R: Future<Output = Rig>>(open: impl Fn() -> R, test: impl AsyncFn(&Rig)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let rig = open().await;
        match is_root() {
            true => test(&rig).await,
            false => {
                let ran = cell(&rig, &machine()).with(|draft| draft.image = Default::default()).run().await;
                assert!(ran.refusal().is_some_and(|refusal| !refusal.hint.is_empty()), "{}", ran.story());
            }
        }
        rig.close().await;
    });
}

fn as_root<'e>(rig: &'e Rig, script: &str) -> CellBuilder<'e> {
    cell(rig, &machine()).needs(Need::FullLinux).timeout("30s").shell(script)
}

fn failed(ran: &Ran, about: &str) {
    match &ran.outcome.status {
        Status::Failed { reason } => assert!(reason.contains(about), "{about:?} is not in {reason:?}"),
        _ => panic!("{about}: {}", ran.story()),
    }
    assert!(ran.took < SOON, "{about}: it took {:?}", ran.took);
}

async fn works(rig: &Rig) {
    let ran = cell(rig, &machine()).shell("echo fine").run().await;
    assert_eq!((ran.code(), &*ran.out()), (Some(0), "fine\n"), "{}", ran.story());
}

#[test]
fn a_machine_has_a_kernel_and_nothing_of_the_hosts() {
    on(Rig::open, async |rig| {
        let ran =
            cell(rig, &machine()).shell("uname -r; cat /proc/net/dev | tail -n +3; ls /sys").run().await;
        let out = ran.out();
        let ours = rustix::system::uname();
        assert_ne!(out.lines().next(), ours.release().to_str().ok(), "{}", ran.story());
        let devices: Vec<&str> =
            out.lines().skip(1).filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
        assert_eq!(devices, ["lo"], "{}", ran.story());
        // As root of the machine, with all that it has.
        let ran = as_root(rig, "ls /sys/class/net /sys/class/block; cat /proc/partitions; ps -e -o comm=")
            .run()
            .await;
        assert_eq!(ran.code(), Some(0), "{}", ran.story());
        let words: BTreeSet<String> = ran.out().split_whitespace().map(str::to_owned).collect();
        for foreign in ["eth0", "ens3", "sda", "dockerd", "cargo", "qemu-system-x86"] {
            assert!(!words.contains(foreign), "{foreign}: {}", ran.story());
        }
    });
}

#[test]
fn clones_are_machines_of_their_own() {
    on(Rig::open, async |rig| {
        let script = "head -c 32 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid; \
                      cat /proc/sys/kernel/random/boot_id; date +%s; cat /proc/self/auxv | head -c 1 >/dev/null; \
                      python3 -c 'import os,secrets; print(os.urandom(16).hex(), secrets.token_hex(16), id(object()))'";
        let (mut drawn, mut times) = (BTreeSet::new(), Vec::new());
        for _ in 0..4 {
            let (one, other) = tokio::join!(
                cell(rig, &machine()).shell(script).run(),
                as_root(rig, &format!("{script}; hostname >/dev/null")).run()
            );
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
            for ran in [one, other] {
                assert_eq!(ran.code(), Some(0), "{}", ran.story());
                let words: Vec<String> = ran.out().split_whitespace().map(str::to_owned).collect();
                let (time, random): (Vec<_>, Vec<_>) = words
                    .into_iter()
                    .partition(|word| word.len() == 10 && word.bytes().all(|b| b.is_ascii_digit()));
                let time: u64 = time[0].parse().expect("a time");
                times.push(now.abs_diff(time));
                // Pairs of digits may well be equal; all 32 of them together must not be.
                drawn.insert(random[..32].concat());
                drawn.extend(random[32..].iter().cloned());
            }
        }
        assert_eq!(drawn.len(), 8 * 6, "two clones drew the same: {drawn:?}");
        assert!(times.iter().all(|off| *off <= 10), "their clocks are {times:?} seconds off");
    });
}

#[test]
fn whoever_has_a_machine_to_themselves_is_root_of_it() {
    on(Rig::open, async |rig| {
        let ran = as_root(
            rig,
            "id -u; echo x > /usr/marked && cat /usr/marked; mount -t tmpfs none /mnt && echo mounted",
        )
        .run()
        .await;
        assert_eq!((ran.code(), &*ran.out()), (Some(0), "0\nx\nmounted\n"), "{}", ran.story());
        // What is inside is not: it would have to be relaxed for that.
        let stack: Stack = "microvm+container".parse().expect("a stack");
        let ran = cell(rig, &stack).needs(Need::Root).run().await;
        assert!(ran.refusal().is_some(), "{}", ran.story());
        // And nothing of it is there for the next.
        let ran = as_root(rig, "cat /usr/marked").run().await;
        assert_eq!(ran.code(), Some(1), "{}", ran.story());
    });
}

#[test]
fn a_machine_takes_what_other_walls_refuse() {
    on(Rig::open, async |rig| {
        let ran = as_root(rig, "strace -f -e trace=execve true 2>&1 | grep -c execve").run().await;
        assert_eq!((ran.code(), &*ran.out()), (Some(0), "1\n"), "{}", ran.story());
        // A program of two instructions, loaded into the kernel: return zero.
        let bpf = "import ctypes, struct\n\
            code = ctypes.create_string_buffer(struct.pack('<BBhiBBhi', 0xb7, 0, 0, 0, 0x95, 0, 0, 0))\n\
            name = ctypes.create_string_buffer(b'GPL')\n\
            attr = struct.pack('<IIQQIIQII', 1, 2, ctypes.addressof(code), ctypes.addressof(name), 0, 0, 0, 0, 0)\n\
            print(ctypes.CDLL(None, use_errno=True).syscall(321, 5, attr, len(attr)) > 0)";
        let run = |needs: Option<Need>| {
            let cell = cell(rig, &machine()).python(bpf, &[]);
            async move {
                match needs {
                    Some(need) => cell.needs(need).run().await,
                    None => cell.run().await,
                }
            }
        };
        let ran = run(Some(Need::Bpf)).await;
        assert_eq!((ran.code(), &*ran.out()), (Some(0), "True\n"), "{}", ran.story());
        let ran = run(None).await;
        assert_eq!((ran.code(), &*ran.out()), (Some(0), "False\n"), "without the need: {}", ran.story());
    });
}

#[test]
fn a_container_is_built_and_run_in_a_machine() {
    on(Rig::open, async |rig| {
        let script = "set -e; cd /work; export HOME=/work TMPDIR=/work STORAGE_DRIVER=vfs\n\
            c=$(buildah --root /work/r --runroot /work/rr from scratch)\n\
            buildah --root /work/r --runroot /work/rr copy -q $c /bin/busybox /bin/busybox >/dev/null\n\
            buildah --root /work/r --runroot /work/rr config --entrypoint '[\"/bin/busybox\",\"echo\",\"built\"]' $c\n\
            buildah --root /work/r --runroot /work/rr commit -q $c oci:/work/image:latest >/dev/null\n\
            m=$(buildah --root /work/r --runroot /work/rr mount $c)\n\
            mkdir -p /work/b/rootfs && cp -a $m/. /work/b/rootfs && mkdir -p /work/b/rootfs/proc /work/b/rootfs/dev\n\
            cd /work/b && runc spec\n\
            sed -i 's|\"sh\"|\"/bin/busybox\", \"echo\", \"ran in a container\"|; s|\"terminal\": true|\"terminal\": false|' config.json\n\
            runc run one";
        let ran = cell(rig, &machine())
            .needs(Need::NestedContainers)
            .memory("512M")
            .disk("200M")
            .pids("256")
            .timeout("120s")
            .shell(script)
            .run()
            .await;
        assert_eq!(ran.code(), Some(0), "{}", ran.story());
        assert!(ran.out().contains("ran in a container"), "{}", ran.story());
    });
}

#[test]
fn a_kernel_that_panics_ends_as_that() {
    on(Rig::open, async |rig| {
        let ran = as_root(rig, "echo c > /proc/sysrq-trigger; sleep 60").run().await;
        failed(&ran, "Kernel panic");
        works(rig).await;
    });
}

#[test]
fn a_machine_without_memory_ends_as_that() {
    on(Rig::open, async |rig| {
        let hog = "x = []\nwhile True: x.append(bytearray(1 << 20))";
        let ran = cell(rig, &machine()).python(hog, &[]).memory("64M").run().await;
        assert!(matches!(ran.outcome.status, Status::Killed { cause: Cause::Memory, .. }), "{}", ran.story());
        // The kernel's own choice, however much there is.
        let ran = as_root(rig, "echo f > /proc/sysrq-trigger; sleep 60").run().await;
        let ended =
            matches!(ran.outcome.status, Status::Killed { cause: Cause::Memory, .. } | Status::Failed { .. });
        assert!(ended && ran.took < SOON, "{}", ran.story());
        works(rig).await;
    });
}

#[test]
fn a_machine_that_stops_answering_is_ended_in_time() {
    on(Rig::open, async |rig| {
        let spin =
            "echo -1 > /proc/sys/kernel/sched_rt_runtime_us; exec chrt -f 99 sh -c 'while :; do :; done'";
        let began = Instant::now();
        let ran = as_root(rig, spin).timeout("3s").run().await;
        assert!(
            matches!(ran.outcome.status, Status::Killed { cause: Cause::WallTime, .. }),
            "{}",
            ran.story()
        );
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        // Time of the processor is counted outside, whoever counts inside.
        let ran = as_root(rig, spin).cpu_time("2s").run().await;
        assert!(
            matches!(ran.outcome.status, Status::Killed { cause: Cause::CpuTime, .. }),
            "{}",
            ran.story()
        );
        works(rig).await;
    });
}

/// Everything in there is somebody else's, but for the walls around it.
#[test]
fn a_machine_that_was_taken_over_harms_nobody() {
    let at_once = [
        ("another-machine", "out of turn"),
        ("before-it-is-awake", "out of turn"),
        ("awake-twice", "out of turn"),
        ("nonsense", "broke the protocol"),
        ("a-frame-too-large", "broke the protocol"),
        ("data", "broke the protocol"),
        ("flood-nonsense", "broke the protocol"),
        ("nonsense-for-an-answer", "broke the protocol"),
        ("nonsense-in-the-cell", "broke the protocol"),
        ("flood-in-the-cell", "broke the protocol"),
        ("panic", "Kernel panic"),
    ];
    for (word, about) in at_once {
        on(
            || Rig::with_hostile_machine(word),
            async |rig| {
                let ran = cell(rig, &machine()).run().await;
                failed(&ran, about);
            },
        );
    }
}

#[test]
fn a_machine_that_says_nothing_is_given_up() {
    std::thread::scope(|threads| {
        for word in ["silence", "half-a-frame", "an-answer-too-many", "flood"] {
            threads.spawn(move || {
                on(
                    || Rig::with_hostile_machine(word),
                    async |rig| {
                        let began = Instant::now();
                        let ran = cell(rig, &machine()).run().await;
                        assert!(
                            matches!(ran.outcome.status, Status::Failed { .. }),
                            "{word}: {}",
                            ran.story()
                        );
                        assert!(began.elapsed() < Duration::from_secs(60), "{word}: {:?}", began.elapsed());
                    },
                );
            });
        }
    });
    on(
        || Rig::with_hostile_machine("silence-later"),
        async |rig| {
            let ran = cell(rig, &machine()).shell("sleep 60").timeout("2s").run().await;
            assert!(
                matches!(ran.outcome.status, Status::Killed { cause: Cause::WallTime, .. }),
                "{}",
                ran.story()
            );
            assert!(ran.took < SOON, "{:?}", ran.took);
        },
    );
    on(
        || Rig::with_hostile_machine("panic-later"),
        async |rig| {
            let ran = cell(rig, &machine()).shell("sleep 60").run().await;
            failed(&ran, "Kernel panic");
        },
    );
}

#[test]
fn an_emulator_that_is_killed_ends_its_machine_alone() {
    on(Rig::open, async |rig| {
        let run = cell(rig, &machine()).shell("sleep 60").run();
        let kill = async {
            let deadline = Instant::now() + SOON;
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let traces = Traces::of(rig.run_id());
                let emulator = traces.processes.iter().find(|(_, command)| command.contains("qemu-system"));
                if let Some((pid, _)) = emulator {
                    // Not before there is something in it.
                    tokio::time::sleep(Duration::from_millis(700)).await;
                    let pid = rustix::process::Pid::from_raw(*pid as i32).expect("a number");
                    return rustix::process::kill_process(pid, rustix::process::Signal::KILL)
                        .expect("it lives");
                }
                assert!(Instant::now() < deadline, "there is no emulator: {traces:?}");
            }
        };
        let (ran, ()) = tokio::join!(run, kill);
        failed(&ran, "virtual machine has ended");
        works(rig).await;
    });
}

#[test]
fn a_damaged_template_is_not_run() {
    let apart = || {
        Rig::after(|home| {
            if is_root() {
                microvm::keep_apart(home)
            }
        })
    };
    on(apart, async |rig| {
        works(rig).await;
        let made = fs::read_dir(rig.home().join("microvm/templates")).expect("templates").flatten().next();
        let made = made.expect("a template was kept").path();
        let good = fs::read(&made).expect("a template");
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 0xff;
        fs::write(&made, &bad).expect("damage");
        // This engine has it in memory; another one on the same home does not.
        let next = Engine::open(Config::new(rig.home(), Policy::default())).await.expect("a second engine");
        let ran = cell(&next, &machine()).shell("echo again").run().await;
        assert_eq!((ran.code(), &*ran.out()), (Some(0), "again\n"), "{}", ran.story());
        next.shutdown().await.expect("an orderly shutdown");
        assert!(fs::read(&made).expect("a template") != bad, "the damaged one is still there");
    });
}

#[test]
fn what_is_missing_or_damaged_is_said_with_a_hint() {
    let refused = |ran: &Ran, about: &str| {
        let refusal = ran.refusal().unwrap_or_else(|| panic!("{about}: {}", ran.story()));
        assert!(refusal.reason.contains(about), "{about:?} is not in {:?}", refusal.reason);
        assert!(!refusal.hint.is_empty(), "{about}: no hint");
    };
    if !is_root() {
        return;
    }
    // A kernel that is another one now.
    let changed = || {
        Rig::after(|home| {
            microvm::keep_apart(home);
            let kernel = home.join("microvm/kernel/vmlinuz");
            let mut bytes = fs::read(&kernel).expect("a kernel");
            bytes[70_000] ^= 1;
            fs::remove_file(&kernel).and_then(|()| fs::write(&kernel, bytes)).expect("another kernel");
        })
    };
    on(changed, async |rig| refused(&cell(rig, &machine()).run().await, "damaged"));
    // No shell in the image, and no image at all.
    on(Rig::open, async |rig| {
        refused(&cell(rig, &machine()).command(["no-such-shell"]).run().await, "not found");
        let ran = cell(rig, &machine()).with(|draft| draft.image = Default::default()).run().await;
        refused(&ran, "image");
        // As little as can be asked for still starts a program.
        let ran = cell(rig, &machine()).memory("8M").command(["true"]).run().await;
        assert_eq!(ran.code(), Some(0), "{}", ran.story());
    });
    let missing = || Rig::after(|home| fs::remove_dir_all(home.join("microvm/kernel")).expect("a kernel"));
    on(missing, async |rig| {
        refused(&cell(rig, &machine()).run().await, "no kernel for virtual machines");
    });
}
