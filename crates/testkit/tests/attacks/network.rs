//! Attack 46, and the controls of the network probes.

use std::process::{Command, Stdio};
use std::sync::Mutex;

use casemate_testkit::{BAIT, Bait, Marked, Status, cell};
use tokio::sync::{oneshot, watch};

use crate::row::Control::Without;
use crate::row::On::Held;
use crate::row::layers::{FILTER_AND_FILES, NETWORK};
use crate::row::{Finding, Judged, Row, Scene, Trial};
use crate::run::{bait_program, judge, judge_words};

pub(crate) const ROWS: &[Row] = &[Row {
    attacks: &[46],
    name: "neighbour-cell",
    trial: Trial::Judged {
        judge: neighbour,
        container: Held(Without(NETWORK)),
        process: Held(Without(FILTER_AND_FILES)),
    },
}];

/// Another tenant's cell listens while the probe looks for it.
fn neighbour(scene: Scene) -> Judged {
    Box::pin(async move {
        let (marker, name) = (Marked::new("neighbour").0, Marked::new("listener").0);
        let (cancel, cancelled) = watch::channel(false);
        let (announce, announced) = oneshot::channel::<String>();
        let announce = Mutex::new(Some(announce));
        let listener = cell(&scene.rig, &scene.stack)
            .tenant("neighbour")
            .command(["./bait", "neighbour", &marker, &name])
            .file("/work/bait", 0o755, BAIT)
            .watching(move |chunk| {
                if let Some(announce) = announce.lock().expect("one thread").take() {
                    let _ = announce.send(String::from_utf8_lossy(&chunk.bytes).trim().to_owned());
                }
            })
            .cancelled_by(cancelled)
            .run();
        let attack = async {
            let port = announced.await.unwrap_or_default();
            if port.parse::<u16>().is_err() {
                // Without sockets there is nobody to reach.
                return Ok((Finding::Held, port));
            }
            let ran =
                cell(&scene.rig, &scene.stack).probe(["neighbour-cell", &name, &port, &marker]).run().await;
            let _ = cancel.send(true);
            judge(&ran).map(|finding| (finding, port))
        };
        let (listener, found) = tokio::join!(listener, attack);
        let (finding, port) = found?;
        match listener.outcome.status {
            Status::Killed { .. } => Ok(finding),
            Status::Exited { code: 1 } if port.contains("socket") => Ok(Finding::Held),
            _ => Err(format!("the neighbour did not listen: {}", listener.story())),
        }
    })
}

/// A network that leads nowhere but looks like one: an interface, a default route, and listeners at the addresses that
/// the probes dial.
const NETWORK_OF_ITS_OWN: &str = "
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
    ip link set lo up
    ip link add probe0 type veth peer name probe1
    ip address add 203.0.113.2/24 dev probe0
    ip link set probe0 up
    ip link set probe1 up
    ip route add default via 203.0.113.1
    ip neighbour add 203.0.113.1 lladdr 02:00:00:00:00:01 dev probe0
    ip address add 198.51.100.7/32 dev lo
    ip address add 169.254.169.254/32 dev lo
    mkfifo $$.ready
    ./bait listen 198.51.100.7 443 169.254.169.254 80 >$$.ready &
    listener=$!
    read -r ready <$$.ready
    rm $$.ready
    ./probe \"$@\"
    code=$?
    kill $listener
    exit $code";

/// Runs a probe on the bare host, but in a network namespace so that no packet leaves it.
pub(crate) fn bare(bait: &Bait, argv: &[String]) -> Result<String, String> {
    bait_program(bait);
    let unshare: &[&str] =
        if casemate_testkit::is_root() { &["--net"] } else { &["--net", "--map-root-user"] };
    let output = Command::new("unshare")
        .args(unshare)
        .args(["sh", "-c", NETWORK_OF_ITS_OWN, "sh"])
        .args(argv)
        .current_dir(bait.directory())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("unshare: {error}"))?;
    let out = String::from_utf8_lossy(&output.stdout);
    match judge_words(output.status.code().unwrap_or(-1), &out) {
        Ok(Finding::Escaped) => Ok("escapes".into()),
        other => Err(format!("{other:?}, {}", String::from_utf8_lossy(&output.stderr))),
    }
}
