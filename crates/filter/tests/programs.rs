//! Ordinary programs do not notice the filter: each runs under the guest's and the payload's filter together.

#![allow(unsafe_code, reason = "the filters are installed between fork and exec")]

mod child;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use casemate_filter::{Program, program};
use child::{CELL, CELL_TRACING, PROCESS, ROOTLESS, install};

/// Runs it, expects success, and returns what it printed.
fn run(payload: Program, command: &mut Command) -> String {
    let filters = [program(Program::Guest), program(payload)];
    // SAFETY: between fork and exec this makes two kinds of system calls and allocates nothing.
    unsafe { command.pre_exec(move || install(&filters)) };
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?} under {payload:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// An empty directory that is gone when the test is.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("casemate-filter-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn python(payload: Program, code: &str) -> String {
    run(payload, Command::new("/usr/bin/python3").args(["-c", code]))
}

fn node(payload: Program, code: &str) -> String {
    run(payload, Command::new("/usr/bin/node").args(["-e", code]))
}

const PYTHON_COMMON: &str = r#"
import asyncio, concurrent.futures, ctypes, hashlib, json, mmap, os, select, signal, socket, sqlite3, ssl
import subprocess, tempfile, threading, time
threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert subprocess.run(["/bin/echo", "hi"], capture_output=True).stdout == b"hi\n"
assert subprocess.check_output("ls / | wc -l", shell=True)
async def both():
    p = await asyncio.create_subprocess_exec("/bin/cat", stdin=-1, stdout=-1)
    out, _ = await p.communicate(b"abc")
    await asyncio.gather(asyncio.sleep(0.001), asyncio.to_thread(time.sleep, 0.001))
    return out
assert asyncio.run(both()) == b"abc"
with concurrent.futures.ProcessPoolExecutor(2) if MULTI else concurrent.futures.ThreadPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-1, -2])) == [1, 2]
with tempfile.TemporaryDirectory() as d:
    db = sqlite3.connect(os.path.join(d, "x.db")); db.execute("create table t(a)"); db.commit(); db.close()
    os.mkfifo(os.path.join(d, "fifo")); f = os.open(d, 0) if SHARED else d; os.utime(f); os.chmod(f, 0o700)
    open(os.path.join(d, "a"), "w").close(); os.rename(os.path.join(d, "a"), os.path.join(d, "b"))
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
m = mmap.mmap(-1, 4096); m[0] = 1; os.nice(1); os.sched_yield(); os.getrandom(8)
signal.setitimer(signal.ITIMER_REAL, 10); ssl.create_default_context()
print("done")
"#;

#[test]
fn python_in_a_cell() {
    assert_eq!(python(CELL, &format!("MULTI, SHARED = True, False\n{PYTHON_COMMON}")), "done\n");
    let network = r#"
import socket
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    server = socket.create_server((address, 0), family=family)
    client = socket.create_connection(server.getsockname()[:2])
    peer, _ = server.accept(); client.send(b"x"); assert peer.recv(1) == b"x"
assert socket.getaddrinfo("127.0.0.1", 80) and socket.getaddrinfo("localhost", 80)
try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
except OSError as e: print(e.errno)
"#;
    assert_eq!(python(CELL, network), format!("{}\n", libc::EAFNOSUPPORT));
}

#[test]
fn python_behind_the_process_wall() {
    assert_eq!(python(PROCESS, &format!("MULTI, SHARED = False, False\n{PYTHON_COMMON}")), "done\n");
    assert_eq!(python(ROOTLESS, &format!("MULTI, SHARED = False, True\n{PYTHON_COMMON}")), "done\n");
    let connect = "import socket\ntry: socket.socket()\nexcept PermissionError: print('refused')";
    assert_eq!(python(PROCESS, connect), "refused\n");
}

const NODE_COMMON: &str = r#"
const cp = require('child_process'), fs = require('fs'), os = require('os'), path = require('path');
const { Worker } = require('worker_threads');
if (cp.execSync('echo hi').toString() !== 'hi\n') throw 1;
const d = fs.mkdtempSync(path.join(os.tmpdir(), 'x')); fs.writeFileSync(d + '/a', 'b'); fs.rmSync(d, { recursive: true });
require('crypto').pbkdf2Sync('a', 'b', 10, 16, 'sha256'); require('zlib').gzipSync('abc'); os.cpus();
cp.spawn('/bin/cat', [], { stdio: ['pipe', 'pipe', 'inherit'] }).on('close', () =>
  new Worker('1', { eval: true }).on('exit', () => finish())).stdin.end('abc');
"#;

#[test]
fn node_in_a_cell() {
    let server = r#"
function finish() {
  const s = require('http').createServer((q, r) => r.end('x')).listen(0, '127.0.0.1', () =>
    fetch(`http://localhost:${s.address().port}/`).then(r => r.text()).then(t => { console.log(t); process.exit(); }));
}"#;
    assert_eq!(node(CELL, &format!("{NODE_COMMON}{server}")), "x\n");
}

#[test]
fn node_behind_the_process_wall() {
    for payload in [PROCESS, ROOTLESS] {
        assert_eq!(node(payload, &format!("{NODE_COMMON}function finish() {{ console.log('x') }}")), "x\n");
    }
}

#[test]
fn shells_compilers_and_git() {
    for (name, payload) in [("cell", CELL), ("process", PROCESS)] {
        let scratch = Scratch::new(name);
        let script = r#"
set -euo pipefail
seq 1000 | sort -rn | head -n 3 | tail -n 1 | cat <(echo start) - > out & wait; grep -q 998 out
printf '#include <pthread.h>\n#include <stdio.h>\nvoid*f(void*a){return a;}\nint main(){pthread_t t;pthread_create(&t,0,f,0);pthread_join(t,0);puts("made");}\n' > a.c
printf 'all: a b\na: a.c\n\tgcc -O1 -pthread -o a a.c\nb: a.c\n\tgcc -g -pthread -o b a.c\n' > Makefile
make -j2 > /dev/null
git init -q repo && cd repo && git config user.email a@b && git config user.name a
cp ../a.c . && git add . && git commit -qm first && git clone -q . ../copy && cd .. && test -f copy/a.c
tar czf a.tgz repo && mkdir x && tar xzf a.tgz -C x && mkfifo pipe && find . -type p > /dev/null
date > /dev/null; df . > /dev/null; ps > /dev/null; timeout 5 nice true; setsid true; dd if=/dev/zero of=z bs=4k count=4 status=none
./a && ./b
"#;
        let mut bash = Command::new("/usr/bin/bash");
        bash.args(["-c", script])
            .current_dir(&scratch.0)
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &scratch.0);
        assert_eq!(run(payload, &mut bash), "made\nmade\n");
    }
}

/// What still works where metadata may be changed only through descriptors, and what that costs.
#[test]
fn a_shell_and_a_compiler_that_share_their_user() {
    let scratch = Scratch::new("rootless");
    let script = r#"
set -euo pipefail
export LC_ALL=C
seq 1000 | sort -rn | head -n 3 | tail -n 1 | cat <(echo start) - > out & wait; grep -q 998 out
mkdir -p d/e; echo x > d/f; cp out a; cp -p out b; cp -r d c; mv a e; touch new; touch -d yesterday out; sed -i s/9/8/ out
gzip -k out; tar cf d.tar d; ln -s out link; mkfifo pipe; rm -r c
python3 -c 'import tarfile; tarfile.open("d.tar").extractall("t")'; test -f t/d/f
printf 'int puts(const char*);int main(){puts("made");}\n' > a.c
gcc -c a.c; ar rcs a.a a.o; gcc -o made a.c
# GNU ld makes its output executable by name, and does not look whether it did.
if test -x made; then echo executable; else echo not executable; fi
"$(readelf -l made | sed -n 's/.*interpreter: \(.*\)]/\1/p')" ./made
# A linker that creates the file executable is not affected (rustc's, below); for GNU ld a descriptor helps.
python3 -c 'import os; os.fchmod(os.open("made", 0), 0o755)'; ./made
refused() { "$@" 2> errors && exit 1; grep -q 'not permitted' errors; }
refused chmod +x out
refused touch d
refused cp -a d d2
refused tar xf d.tar -C t
refused git init -q repo
(timeout 0.2 tail -f out || true) 2>&1 | grep -o 'reverting to polling'
"#;
    let mut bash = Command::new("/usr/bin/bash");
    bash.args(["-c", script]).current_dir(&scratch.0).env("PATH", "/usr/bin:/bin").env("HOME", &scratch.0);
    assert_eq!(run(ROOTLESS, &mut bash), "not executable\nmade\nmade\nreverting to polling\n");
}

#[test]
fn rust_threads_and_processes() {
    // The compiler is at hand wherever this test is: it uses threads, jobserver pipes, mmap and a linker process.
    for (name, payload) in [("rustc-cell", CELL), ("rustc-process", PROCESS), ("rustc-rootless", ROOTLESS)] {
        let scratch = Scratch::new(name);
        let source = scratch.0.join("a.rs");
        std::fs::write(&source, "fn main() { println!(\"{}\", std::thread::spawn(|| 42).join().unwrap()) }")
            .unwrap();
        run(payload, Command::new("rustc").arg(&source).arg("-o").arg(scratch.0.join("a")));
        assert_eq!(run(payload, &mut Command::new(scratch.0.join("a"))), "42\n");
    }
}

#[test]
fn a_debugger_works_where_tracing_was_granted() {
    let trace = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19); os._exit(7)
_, status = os.waitpid(child, 0)
if os.WIFSTOPPED(status) and libc.ptrace(7, child, 0, 0) == 0:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;
    assert_eq!(python(CELL_TRACING, trace), "7\n");
}
