//! `casemate serve` with two hundred clients of four tenants for two minutes, of which one asks for far more than its share.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::server::{HUNG, Kept, Server, request, token};
use common::{Home, eventually, needs_root};
use serde_json::{Value, json};

const DURATION: Duration = Duration::from_secs(120);
/// Until allocator, caches and pools have what they need.
const WARM_UP: Duration = Duration::from_secs(20);
/// Clients of each tenant. The first one floods.
const CLIENTS: [usize; 4] = [140, 20, 20, 20];
const FLOOD: usize = 0;
/// So few that every tenant always has more to do than cells, and that the flooding one fills its queue.
const CELLS: usize = 16;
const QUEUE: usize = 64;
/// Of all tenants together, several times what a machine of today does in the time: each leaves some kilobytes of evidence.
const MOST: usize = 250_000;
/// By how much equals may differ.
const UNFAIR: f64 = 1.2;
/// What the daemon's memory may grow by after the warm-up. It keeps nothing of an execution that has ended: what grows are free lists
/// of the allocator and pages of the database, which has a cache of 2 MiB per connection.
const GROWTH: u64 = 24 << 20;
/// How long the simplest question may take, at the median and at worst, on a machine that has twice as much to do as it can.
const PROMPT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// What one client was told.
#[derive(Default)]
struct Heard {
    /// By id: what it was to echo, and the receipt.
    done: Vec<(String, String, String)>,
    /// How many of them were answered after the warm-up.
    counted: usize,
    turned_away: usize,
}

fn client(server: &Server<'_>, name: &str, token: &str, began: Instant, all: &AtomicUsize) -> Heard {
    let mut connection = Kept::connect(server.address).expect("it listens");
    let mut heard = Heard::default();
    while began.elapsed() < DURATION && all.load(Ordering::Relaxed) < MOST {
        let unique = format!("{name}-{}", heard.done.len());
        let body = json!({"command": ["/bin/echo", unique]}).to_string();
        let asked = request("POST", "/v1/executions", Some(token), &[], Some(&body));
        let told = connection.ask(&asked).expect("an answer");
        if told.status == 429 {
            assert!(told.head.contains("retry-after: 1"), "{}", told.text());
            told.problem(429, "quota-exceeded");
            heard.turned_away += 1;
            // It was asked to wait for longer.
            thread::sleep(Duration::from_millis(100));
            continue;
        }
        let told = told.is(200).json();
        assert_eq!(told["stdout"], format!("{unique}\n"), "{told}");
        assert_eq!(told["status"], json!({"kind": "exited", "code": 0}), "{told}");
        let word = |name: &str| told[name].as_str().expect("a word").to_owned();
        heard.done.push((word("id"), unique, word("receipt")));
        all.fetch_add(1, Ordering::Relaxed);
        heard.counted += usize::from(began.elapsed() > WARM_UP);
    }
    heard
}

/// What is sampled of the daemon while it works.
#[derive(Debug, Default)]
struct Sampled {
    memory: Vec<u64>,
    descriptors: Vec<usize>,
    healthy: Vec<Duration>,
}

fn sample(server: &Server<'_>, until: Instant) -> Sampled {
    let mut sampled = Sampled::default();
    while Instant::now() < until {
        let asked = Instant::now();
        server.get("/healthz").is(200);
        sampled.healthy.push(asked.elapsed());
        sampled.memory.push(server.memory());
        sampled.descriptors.push(server.descriptors());
        thread::sleep(Duration::from_millis(200));
    }
    sampled
}

#[test]
fn everybody_gets_their_own_and_their_share() {
    needs_root();
    let home = Home::new();
    let tenants: Vec<String> = (0..CLIENTS.len()).map(|n| format!("tenant-{n}")).collect();
    let tokens: Vec<String> = tenants.iter().map(|tenant| token(&home, &["--tenant", tenant])).collect();
    let watcher = token(&home, &["--tenant", "watcher", "--scope", "metrics"]);
    let (cells, queue) = (CELLS.to_string(), QUEUE.to_string());
    let server = Server::start_with(&home, &["--cells", &cells, "--queue", &queue]);
    let began = Instant::now();
    let all = AtomicUsize::new(0);
    let (heard, warm, late) = thread::scope(|scope| {
        let clients: Vec<Vec<_>> = (0..CLIENTS.len())
            .map(|tenant| {
                let start = |client_number: usize| {
                    let (server, token, all) = (&server, &tokens[tenant], &all);
                    let name = format!("{}-{client_number}", tenants[tenant]);
                    scope.spawn(move || client(server, &name, token, began, all))
                };
                (0..CLIENTS[tenant]).map(start).collect()
            })
            .collect();
        thread::sleep(WARM_UP);
        let half = (DURATION - WARM_UP) / 2;
        let warm = sample(&server, began + WARM_UP + half / 4);
        let late = sample(&server, began + DURATION - Duration::from_secs(1));
        let heard: Vec<Vec<Heard>> = clients
            .into_iter()
            .map(|of_tenant| of_tenant.into_iter().map(|client| client.join().expect("no panic")).collect())
            .collect();
        (heard, warm, late)
    });
    assert!(all.into_inner() < MOST, "the machine is too fast for this test: raise MOST");
    shares_are_fair(&heard);
    nothing_grows(&warm, &late);
    let metrics = || server.ask("GET", "/metrics", Some(&watcher), None).is(200).text();
    for rest in ["casemate_cells 0\n", "casemate_waiting 0\n"] {
        eventually("nothing runs any more", HUNG, || metrics().contains(rest));
    }
    let records = home.chain();
    server.stop();
    every_receipt_is_of_its_execution(&records, heard.into_iter().flatten().flat_map(|heard| heard.done));
}

fn shares_are_fair(heard: &[Vec<Heard>]) {
    let sum = |of: fn(&Heard) -> usize| heard.iter().map(move |tenant| tenant.iter().map(of).sum::<usize>());
    let counted: Vec<usize> = sum(|heard| heard.counted).collect();
    let turned_away: Vec<usize> = sum(|heard| heard.turned_away).collect();
    println!("answered after the warm-up: {counted:?}, turned away: {turned_away:?}");
    let equals = counted.iter().enumerate().filter(|(tenant, _)| *tenant != FLOOD).map(|(_, count)| *count);
    let (least, most) = (equals.clone().min().expect("some"), equals.max().expect("some"));
    assert!(least > 100, "too few to tell anything: {counted:?}");
    assert!(most as f64 <= UNFAIR * least as f64, "equals are not treated as such: {counted:?}");
    assert!(counted[FLOOD] as f64 <= UNFAIR * least as f64, "who floods has more: {counted:?}");
    assert!(counted[FLOOD] as f64 * UNFAIR >= least as f64, "who floods is punished: {counted:?}");
    assert!(turned_away[FLOOD] > 0, "nothing was flooded: {turned_away:?}");
    assert_eq!(
        turned_away.iter().sum::<usize>(),
        turned_away[FLOOD],
        "others are turned away: {turned_away:?}"
    );
}

fn nothing_grows(warm: &Sampled, late: &Sampled) {
    let mut healthy: Vec<Duration> = warm.healthy.iter().chain(&late.healthy).copied().collect();
    healthy.sort_unstable();
    let (median, worst) = (healthy[healthy.len() / 2], healthy[healthy.len() - 1]);
    println!("health: {median:?} at the median, {worst:?} at worst");
    assert!(median < PROMPT.0 && worst < PROMPT.1, "{median:?}, {worst:?}");
    // The most that was seen each time: cells come and go, and take memory and descriptors with them.
    let most = |samples: &[u64]| samples.iter().copied().max().expect("samples");
    let (before, after) = (most(&warm.memory), most(&late.memory));
    println!("memory: {} KiB, then {} KiB", before >> 10, after >> 10);
    assert!(after < before + GROWTH, "memory grew from {before} to {after}");
    let most = |samples: &[usize]| samples.iter().copied().max().expect("samples");
    let (before, after) = (most(&warm.descriptors), most(&late.descriptors));
    println!("descriptors: {before}, then {after}");
    assert!(after <= before + 2 * CELLS, "descriptors grew from {before} to {after}");
}

/// The chain has verified. What each client was told of its execution is what it says, too.
fn every_receipt_is_of_its_execution(
    chain: &std::path::Path,
    told: impl Iterator<Item = (String, String, String)>,
) {
    let (mut asked, mut closed) = (HashMap::new(), HashMap::new());
    for line in BufReader::new(std::fs::File::open(chain).expect("a chain")).lines() {
        let mut line: Value = serde_json::from_str(&line.expect("readable")).expect("JSON");
        let record = line["intoto"]["predicate"].take();
        let Some(id) = record["id"].as_str().map(str::to_owned) else { continue };
        match record["event"].as_str() {
            Some("opened") => {
                let argv = record["body"]["request"]["workload"]["argv"][1].as_str().map(str::to_owned);
                assert!(asked.insert(id, argv).is_none(), "an id was used twice");
            }
            Some("closed") => drop(closed.insert(id, record["chain"]["seq"].to_string())),
            other => panic!("nothing else happens here: {other:?}"),
        }
    }
    let mut count = 0;
    for (id, unique, receipt) in told {
        assert_eq!(asked.remove(&id), Some(Some(unique)), "{id}");
        assert_eq!(closed.get(&id).map(String::as_str), receipt.split(':').next(), "{id}");
        count += 1;
    }
    assert_eq!(asked.len(), 0, "{count} were answered, and others ran, too");
}
