//! What evidence costs: pairs of an opening and a closing record, appended in `batch` mode by one thread and by two.
//!
//! `cargo bench -p casemate-engine --bench record [-- PAIRS [THREADS]]`. The bodies are shaped like those of real runs: of a
//! command in a container, and of a call to a WASM worker. Processor time comes from the scheduler's own account: of the appending
//! threads, and of the whole process with its background thread.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on fails by panicking")]

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use casemate_engine::recorder::{Body, Durability, Event, Store, Subject};
use serde_json::Value;

const PAIRS: usize = 20_000;
/// Ids are made this many at a time, outside of what is measured.
const CHUNK: usize = 200;
const ROUNDS: usize = 5;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let pairs = numbers.next().unwrap_or(PAIRS);
    let threads = numbers.next().map_or(vec![1, 2], |threads| vec![threads]);
    for (what, bodies) in [("command", COMMAND), ("call", CALL)] {
        for &threads in &threads {
            let mut rounds: Vec<Round> =
                (0..ROUNDS).map(|_| Round::measure(bodies, threads, pairs)).collect();
            rounds.sort_unstable_by_key(|round| round.appending);
            let Round { median, p99, appending, process, bytes } = rounds[ROUNDS / 2];
            println!(
                "{what}, {threads} thread(s): a pair takes {:.1} us at the median, {:.1} at p99; {:.1} us of CPU in the append \
                 path, {:.1} in the whole process; {bytes} bytes",
                micros(median),
                micros(p99),
                micros(appending),
                micros(process),
            );
        }
    }
}

/// What the opening and the closing record say.
type Bodies = [&'static str; 2];

const COMMAND: Bodies =
    [include_str!("bodies/command-opened.json"), include_str!("bodies/command-closed.json")];
const CALL: Bodies = [include_str!("bodies/call-opened.json"), include_str!("bodies/call-closed.json")];

/// What one pair took.
#[derive(Clone, Copy)]
struct Round {
    median: Duration,
    p99: Duration,
    appending: Duration,
    process: Duration,
    bytes: u64,
}

impl Round {
    fn measure(bodies: Bodies, threads: usize, pairs: usize) -> Round {
        let home =
            tempfile::tempdir_in(std::env::var_os("BENCH_DIR").unwrap_or_else(|| "/var/tmp".into())).unwrap();
        let before = cpu_of_process();
        let store = Store::open(home.path(), Durability::Batch).unwrap();
        let each = pairs / threads;
        let mut preparing = Duration::ZERO;
        let (mut took, mut appending) = (Vec::new(), Duration::ZERO);
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|t| (t, &store))
                .map(|(t, store)| scope.spawn(move || append(store, bodies, t, each)))
                .collect();
            for thread in running {
                let done = thread.join().unwrap();
                took.extend(done.0);
                appending += done.1;
                preparing += done.2;
            }
        });
        drop(store);
        let process = cpu_of_process() - before - preparing;
        took.sort_unstable();
        let chain = fs::metadata(home.path().join("evidence/chain.jsonl")).unwrap().len();
        let n = took.len();
        Round {
            median: took[n / 2],
            p99: took[n * 99 / 100],
            appending: appending / n as u32,
            process: process / n as u32,
            bytes: chain / n as u64,
        }
    }
}

/// How long each pair took, the processor time of all of them, and that of preparing them.
fn append(store: &Store, bodies: Bodies, thread: usize, pairs: usize) -> (Vec<Duration>, Duration, Duration) {
    let [opened, closed] = bodies.map(|body| serde_json::from_str::<Value>(body).unwrap());
    let subjects = |names: &[&str]| -> Vec<Subject> {
        names.iter().map(|name| Subject { name: (*name).to_owned(), sha256: [7; 32] }).collect()
    };
    let (of_opened, of_closed) = (subjects(&["request"]), subjects(&["request", "stdout", "stderr"]));
    let run = "d223e58510672b3684eadc30884b2483";
    let mut took = Vec::with_capacity(pairs);
    let (mut appending, start) = (Duration::ZERO, cpu_of_thread());
    for chunk in 0..pairs / CHUNK {
        let ids: Vec<String> =
            (0..CHUNK).map(|n| format!("{:08x}{:024x}", thread, chunk * CHUNK + n)).collect();
        let before = cpu_of_thread();
        for id in &ids {
            let start = Instant::now();
            store.append(Event::Opened, id, run, &of_opened, &body(&opened)).unwrap();
            store.append(Event::Closed, id, run, &of_closed, &body(&closed)).unwrap();
            took.push(start.elapsed());
        }
        appending += cpu_of_thread() - before;
    }
    let preparing = cpu_of_thread() - start - appending;
    (took, appending, preparing)
}

/// As the engine writes it: the members are in order.
fn body(value: &Value) -> Body {
    let members = value.as_object().unwrap().iter();
    members.fold(Body::members(), |body, (key, member)| body.with(key, member)).end().unwrap()
}

fn cpu_of_thread() -> Duration {
    schedstat(Path::new("/proc/thread-self"))
}

fn cpu_of_process() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // User and system time, in hundredths of a second; threads that have ended are included.
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Nanoseconds on a processor.
fn schedstat(of: &Path) -> Duration {
    let text = fs::read_to_string(of.join("schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1000.0
}
