//! A daemon of a test's own, and clients that say to it exactly what is written here: plain sockets, nothing in between.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Home;

/// Nothing here takes this long, unless it hangs.
pub(crate) const HUNG: Duration = Duration::from_secs(60);

/// A server in a home of its own. Killed when dropped.
pub(crate) struct Server<'a> {
    pub(crate) home: &'a Home,
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        format!("{}\n{}", self.head, String::from_utf8_lossy(&self.body))
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// A problem document that says all that it must.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) {
        let answer = self.is(status);
        assert!(answer.head.contains("content-type: application/problem+json"), "{}", answer.text());
        let problem = answer.json();
        assert_eq!((&problem["code"], &problem["status"]), (&json!(code), &json!(status)), "{problem}");
        for member in ["type", "title", "detail", "hint"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member} in {problem}");
        }
    }
}

impl<'a> Server<'a> {
    pub(crate) fn start(home: &'a Home) -> Server<'a> {
        Server::start_with(home, &[])
    }

    pub(crate) fn start_with(home: &'a Home, flags: &[&str]) -> Server<'a> {
        Server::run(home, home.command(Server::words(flags)))
    }

    /// With no more descriptors than these, whatever it wishes for.
    pub(crate) fn start_limited(home: &'a Home, descriptors: usize) -> Server<'a> {
        let mut command = Command::new("sh");
        let plain = home.command(Server::words(&[]));
        command.arg("-c").arg(format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""));
        command.arg(plain.get_program()).args(plain.get_args()).env("CASEMATE_HOME", home.path());
        Server::run(home, command)
    }

    fn words<'b>(flags: &[&'b str]) -> Vec<&'b str> {
        [&["serve", "--listen", "127.0.0.1:0"], flags].concat()
    }

    fn run(home: &'a Home, mut command: Command) -> Server<'a> {
        let log = home.beside("serve.log");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(fs::File::create(&log).expect("a log"));
        let mut child = command.spawn().expect("the server starts");
        let deadline = Instant::now() + HUNG;
        let address = loop {
            let said = fs::read_to_string(&log).expect("a log");
            if let Some((address, _)) = said.split_once("http://").and_then(|(_, rest)| rest.split_once('\n'))
            {
                break address.parse().expect("an address");
            }
            let ended = child.try_wait().expect("its own child");
            assert!(ended.is_none() && Instant::now() < deadline, "it does not listen: {said}");
            thread::sleep(Duration::from_millis(2));
        };
        // Remembered, so that what it may leave behind is looked for.
        home.runs();
        Server { home, child, address }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(HUNG)).expect("a time-out");
        stream
    }

    /// Sends a request as it is written here, and reads until the server closes.
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that has heard enough may close before all is sent.
        let _ = stream.write_all(request);
        answer(&mut stream)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, token: Option<&str>, body: Option<&Value>) -> Answer {
        let content = body.map(Value::to_string);
        self.ask_with(method, path, token, &[], content.as_deref())
    }

    pub(crate) fn ask_with(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        headers: &[(&str, &str)],
        content: Option<&str>,
    ) -> Answer {
        let headers = [headers, &[("connection", "close")][..]].concat();
        self.raw(request(method, path, token, &headers, content).as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, None, Some(body))
    }

    pub(crate) fn number(&self, name: &str) -> f64 {
        let text = self.get("/metrics").is(200).text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().expect("a number")
    }

    /// Its resident memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        super::leftovers::names(format!("/proc/{}/fd", self.child.id()).as_ref()).len()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Tells it to stop, and insists that it leaves nothing behind.
    #[track_caller]
    pub(crate) fn stop(self) {
        self.signal(Signal::TERM);
        self.ends_well();
    }

    #[track_caller]
    pub(crate) fn ends_well(mut self) {
        let status = self.child.wait().expect("its own child");
        let log = fs::read_to_string(self.home.beside("serve.log")).expect("a log");
        assert!(status.success(), "{status}: {log}");
        assert!(!log.contains("panicked"), "{log}");
        self.home.nothing_left();
        assert_eq!(self.home.verify()["open"], json!([]));
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As it is sent: JSON, unless a header says otherwise.
pub(crate) fn request(
    method: &str,
    path: &str,
    token: Option<&str>,
    headers: &[(&str, &str)],
    content: Option<&str>,
) -> String {
    let content = content.unwrap_or_default();
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    if let Some(token) = token {
        request += &format!("authorization: Bearer {token}\r\n");
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        request += "content-type: application/json\r\n";
    }
    request + &format!("content-length: {}\r\n\r\n{content}", content.len())
}

pub(crate) fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(bytes.len());
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let rest = bytes.get(end + 4..).unwrap_or_default();
    let body = if head.contains("transfer-encoding: chunked") { unchunked(rest) } else { rest.to_vec() };
    Answer { status, head, body }
}

/// A connection that is kept, for one request after the other.
pub(crate) struct Kept(BufReader<TcpStream>);

impl Kept {
    pub(crate) fn connect(address: SocketAddr) -> Result<Kept> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HUNG))?;
        Ok(Kept(BufReader::new(stream)))
    }

    /// Sends it as it is, and reads an answer that announces its length.
    pub(crate) fn ask(&mut self, request: &str) -> Result<Answer> {
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        head.make_ascii_lowercase();
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.and_then(|length| length.parse().ok()).ok_or(ErrorKind::InvalidData)?;
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(Answer { status, head, body })
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        let size =
            std::str::from_utf8(&rest[..at]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let (Some(size @ 1..), Some(chunk)) = (size, rest.get(at + 2..)) else { break };
        body.extend_from_slice(&chunk[..size.min(chunk.len())]);
        rest = chunk.get(size + 2..).unwrap_or_default();
    }
    body
}

pub(crate) fn token(home: &Home, words: &[&str]) -> String {
    let done = home.casemate(&[&["token", "create"], words].concat()).expect(0);
    done.out().lines().last().expect("a token").to_owned()
}

/// What server-sent events say: name and data.
pub(crate) fn events(answer: &Answer) -> Vec<(String, Value)> {
    let text = String::from_utf8(answer.body.clone()).expect("text");
    let event = |block: &str| {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        Some((field("event: ")?, serde_json::from_str(&field("data: ")?).ok()?))
    };
    text.split("\n\n").filter_map(event).collect()
}
