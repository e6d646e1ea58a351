//! What the service adds to an execution: `Engine::execute` in one process, the same over HTTP in another, in turns.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use super::driver::Driver;
use super::samples::{Samples, millis};
use super::stage::Stage;
use crate::shell::{self, Result, heading};

const TARGET: Duration = Duration::from_micros(500);
/// What both run, in the image that there is always.
const BODY: &str = r#"{"command": ["/bin/true"]}"#;

pub(super) fn run(rounds: usize, bench: &Path, casemate: &Path, stage: &Stage) -> Result {
    let mut engine = Driver::start_in(bench, stage, &stage.home("beside-service"))?;
    let mut server = Server::start(casemate, &stage.home("service"))?;
    heading(&format!("{rounds} rounds of the service, with the machine's load at {} before", super::load()));
    let [mut direct, mut over_http]: [Samples; 2] = Default::default();
    let mut order = super::Order::new(2);
    for round in 0..super::WARM_UP + rounds.max(1) {
        for &who in order.shuffled() {
            let (samples, took) = match who {
                0 => (&mut direct, engine.host()?),
                _ => (&mut over_http, server.run()?),
            };
            if round >= super::WARM_UP {
                samples.add(took);
            }
        }
    }
    println!("\n{:<44} {:>9} {:>9}", "/bin/true", "p50", "p99");
    for (name, samples) in
        [("Engine::execute", &direct), ("POST /v1/executions, kept alive, with a token", &over_http)]
    {
        println!("  {name:<42} {:>9} {:>9}", millis(samples.at(0.5)), millis(samples.at(0.99)));
    }
    let added = over_http.at(0.5).saturating_sub(direct.at(0.5));
    let verdict = if added <= TARGET { "met" } else { "MISSED" };
    println!("  added at the median: {}, target {}: {verdict}", millis(added), millis(TARGET));
    server.stop()?;
    engine.stop()
}

/// A daemon, and one connection to it.
struct Server {
    child: Child,
    connection: BufReader<TcpStream>,
    request: String,
    /// Kept open for as long as the daemon may have something to say.
    _said: BufReader<ChildStderr>,
}

impl Server {
    fn start(casemate: &Path, home: &Path) -> Result<Server> {
        let command = || {
            let mut command = Command::new(casemate);
            command.env("CASEMATE_HOME", home);
            command
        };
        let token = shell::read(command().args(["token", "create", "--tenant", "bench"]))?;
        let token = token.lines().last().ok_or("no token was printed")?;
        let mut child = command()
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("casemate serve: {error}"))?;
        let mut stderr = BufReader::new(child.stderr.take().ok_or("no pipe")?);
        let mut said = String::new();
        stderr.read_line(&mut said).map_err(|error| format!("casemate serve: {error}"))?;
        let address = said.trim_end().strip_prefix("listening on http://");
        let address = address.ok_or_else(|| format!("casemate serve says {said:?}"))?;
        let connection = TcpStream::connect(address).map_err(broken)?;
        connection.set_nodelay(true).map_err(broken)?;
        let request = format!(
            "POST /v1/executions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        Ok(Server { child, connection: BufReader::new(connection), request, _said: stderr })
    }

    /// From the first byte of the request to the last one of the answer.
    fn run(&mut self) -> Result<Duration> {
        let start = Instant::now();
        self.connection.get_mut().write_all(self.request.as_bytes()).map_err(broken)?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.connection.read_line(&mut head).map_err(broken)? == 0 {
                return Err("the server has closed the connection".into());
            }
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.and_then(|length| length.parse().ok()).ok_or("an answer without a length")?;
        let mut body = vec![0; length];
        self.connection.read_exact(&mut body).map_err(broken)?;
        let took = start.elapsed();
        let body = String::from_utf8_lossy(&body);
        match head.starts_with("HTTP/1.1 200 ") && body.contains(r#""kind":"exited","code":0"#) {
            true => Ok(took),
            false => Err(format!("the server answers {head}{body}")),
        }
    }

    /// Lets it end in good order.
    fn stop(mut self) -> Result {
        shell::run(Command::new("kill").arg(self.child.id().to_string()))?;
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("the server ended badly: {other:?}")),
        }
    }
}

/// Whatever goes wrong: it does not stay behind.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn broken(error: std::io::Error) -> String {
    format!("the server: {error}")
}
