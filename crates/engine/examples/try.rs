use casemate_core::request::*;
use casemate_engine::*;
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let argv: Vec<String> = std::env::args().skip(1).collect();
    let t = std::time::Instant::now();
    let engine = Engine::open(Config {
        home: default_home(),
        policy: if argv[0] == "process" {
            casemate_core::policy::Policy::parse("[floors]\nlow=\"process\"").unwrap()
        } else {
            Default::default()
        },
        durability: Durability::OnExit,
        agents: Agents::embedded(),
    })
    .await
    .unwrap();
    println!("open {:?} {:?}", t.elapsed(), engine.facts());
    for _ in 0..std::env::var("N").map_or(1, |n| n.parse().unwrap()) {
        let mut draft = RequestDraft::new(Workload::Command { argv: argv[1..].to_vec() });
        if argv[0] == "process" {
            draft.risk = Risk::Low;
            draft.isolation = Isolation::Exactly("process".parse().unwrap());
        }
        let (tx, mut rx) = tokio::sync::mpsc::channel(16);
        let t = std::time::Instant::now();
        let run = engine.execute(Request::new(draft).unwrap(), Io { output: Some(tx), ..Default::default() });
        let print = async {
            while let Some(c) = rx.recv().await {
                print!("{}", String::from_utf8_lossy(&c.bytes));
            }
        };
        let (done, ()) = tokio::join!(run, print);
        println!(
            "{:?} {:?}\n{:?}\n{:?} {:?}\n{:?}",
            t.elapsed(),
            done.outcome.status,
            done.outcome.timings,
            done.outcome.usage,
            done.outcome.limits_hit,
            done.outcome.steps
        );
    }
    engine.shutdown().await.unwrap();
    println!("total {:?}", t.elapsed());
}
