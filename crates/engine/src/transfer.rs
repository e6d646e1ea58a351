//! Files into a cell before it runs, and out of it afterwards.

use std::io::Read;
use std::time::Duration;

use casemate_core::limits::LimitKind;
use casemate_core::outcome::Refusal;
use casemate_core::plan::Plan;
use casemate_wire::PROTOCOL_VERSION;
use casemate_wire::frame::{Body, ReceiveWindow, SendWindow};
use casemate_wire::guest::{Entry, ToGuest, ToHost};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::guest::{ChannelError, Event};
use crate::io::{Input, Io};
use crate::run::{self, Digests, Ran, Trouble};
use crate::wall::Cell;

/// Transfers are numbered from here; smaller numbers are the payload's streams.
const FIRST: u32 = 16;
/// Members that are reported as not taken out; a hostile tree can have as many as it has inodes.
const MAX_DENIED: usize = 1000;
/// How long the files of one execution may take to come out.
const GET_LIMIT: Duration = Duration::from_secs(60);

/// Sends every input, then the code file if there is one.
pub(crate) async fn put(
    cell: &mut Cell,
    inputs: Vec<Input>,
    code: Option<(String, Vec<u8>)>,
    digests: &mut Digests,
) -> Result<(), Trouble> {
    let mut id = FIRST;
    for input in inputs {
        id += 1;
        let mut reader: Box<dyn Read + Send> = match (input.entry, input.content) {
            (Entry::File { size, .. }, Some(file)) => Box::new(file.take(size)),
            (Entry::File { .. }, None) | (Entry::Directory { .. }, _) => Box::new(std::io::empty()),
        };
        let digest = put_one(cell, id, &input.path, input.entry, &mut reader).await?;
        if let (Entry::File { .. }, Some(digest)) = (input.entry, digest) {
            digests.add(format!("in:{}", input.path), digest);
        }
    }
    if let Some((path, bytes)) = code {
        let entry = Entry::File { mode: 0o644, size: bytes.len() as u64 };
        if let Some(digest) = put_one(cell, id + 1, &path, entry, &mut bytes.as_slice()).await? {
            digests.add("code", digest);
        }
    }
    Ok(())
}

async fn put_one(
    cell: &mut Cell,
    id: u32,
    path: &str,
    entry: Entry,
    content: &mut (dyn Read + Send),
) -> Result<Option<Sha256>, Trouble> {
    let failed = |error: String| Trouble::Failed(format!("cannot put {path} into the cell: {error}"));
    let Some((channel, places)) = cell.files() else { return Err(failed("it has no files".into())) };
    channel.tell(&ToGuest::Put { id, path: places.resolve(path), entry });
    let mut window = SendWindow::default();
    let mut digest = Sha256::new();
    let mut left = match entry {
        Entry::File { size, .. } => Some(size),
        Entry::Directory { .. } => None,
    };
    let mut buffer = vec![0; 32 * 1024];
    loop {
        while let Some(remaining) = left
            && (remaining == 0 || window.available() > 0)
        {
            if remaining == 0 {
                channel.send(id, Body::End);
                left = None;
                break;
            }
            let wanted =
                buffer.len().min(window.available()).min(usize::try_from(remaining).unwrap_or(usize::MAX));
            let n = content.read(&mut buffer[..wanted]).map_err(|error| failed(error.to_string()))?;
            if n == 0 {
                return Err(failed("it became shorter while it was read".into()));
            }
            digest.update(&buffer[..n]);
            window.spend(n);
            channel.send(id, Body::Data(&buffer[..n]));
            left = Some(remaining - n as u64);
        }
        match channel.next().await? {
            Event::Credit { stream, bytes } if stream == id => {
                window.refund(bytes).map_err(ChannelError::from)?
            }
            Event::Message(ToHost::PutDone { id: done }) if done == id => return Ok(Some(digest)),
            Event::Message(ToHost::TransferFailed { id: of, errno, .. }) if of == id => {
                return Err(match errno {
                    libc::ENOSPC | libc::EDQUOT => Trouble::Refused(Refusal::new(
                        format!("{path} does not fit into the cell"),
                        "raise --disk (and --memory, which it counts against) or --inodes",
                    )),
                    _ => failed(std::io::Error::from_raw_os_error(errno).to_string()),
                });
            }
            Event::Message(ToHost::Hello { version: PROTOCOL_VERSION }) => {}
            Event::Closed => return Err(run::why_closed(cell, "the guest ended while files were put").await),
            _ => return Err(ChannelError::Order("unexpected frame during a transfer").into()),
        }
    }
}

/// Fetches every path that the plan wants out.
pub(crate) async fn get(cell: &mut Cell, plan: &Plan, io: &mut Io, ran: &mut Ran) -> Result<(), Trouble> {
    if plan.files_out().is_empty() {
        return Ok(());
    }
    let all = async {
        for (index, path) in plan.files_out().iter().enumerate() {
            get_one(cell, plan, io, ran, index, path.as_str()).await?;
        }
        Ok(())
    };
    let done = timeout(GET_LIMIT, all).await;
    ran.timings.mark("files out");
    done.unwrap_or_else(|_| Err(Trouble::Failed(format!("files did not come out within {GET_LIMIT:?}"))))
}

async fn get_one(
    cell: &mut Cell,
    plan: &Plan,
    io: &mut Io,
    ran: &mut Ran,
    index: usize,
    path: &str,
) -> Result<(), Trouble> {
    let id = FIRST + (1 << 16) + index as u32;
    let bound = |kind| plan.limits().get(kind).map_or(0, |bound| bound.value);
    let Some((channel, places)) = cell.files() else {
        return Err(Trouble::Failed(format!("{path} cannot be taken out of a cell without files")));
    };
    channel.tell(&ToGuest::Get {
        id,
        path: places.resolve(path),
        max_bytes: bound(LimitKind::Disk),
        max_entries: u32::try_from(bound(LimitKind::Inodes)).unwrap_or(u32::MAX),
    });
    let failed = |error: &dyn std::fmt::Display| {
        Trouble::Failed(format!("cannot get {path} out of the cell: {error}"))
    };
    let mut window = ReceiveWindow::default();
    let mut current: Option<(String, u64, Sha256)> = None;
    loop {
        match channel.next().await? {
            Event::Data { stream, bytes } if stream == id => {
                window.receive(bytes.len()).map_err(ChannelError::from)?;
                let Some((_, left, digest)) = &mut current else {
                    return Err(ChannelError::Order("file data without a file").into());
                };
                *left = left
                    .checked_sub(bytes.len() as u64)
                    .ok_or(ChannelError::Order("a file longer than announced"))?;
                digest.update(&bytes);
                if let Some(outbox) = &mut io.outbox {
                    outbox.data(&bytes).map_err(|error| failed(&error))?;
                }
                if let Some(credit) = window.consume(bytes.len()) {
                    channel.send(id, Body::Credit(credit));
                }
            }
            Event::Message(ToHost::GetEntry { id: of, path: relative, entry }) if of == id => {
                finish_file(&mut current, ran)?;
                check_relative(&relative)?;
                if let Entry::File { size, .. } = entry {
                    let name =
                        if relative.is_empty() { path.to_owned() } else { format!("{path}/{relative}") };
                    current = Some((name, size, Sha256::new()));
                }
                if let Some(outbox) = &mut io.outbox {
                    outbox.entry(index, &relative, entry).map_err(|error| failed(&error))?;
                }
            }
            Event::Message(ToHost::GetSkipped { id: of, path: relative, why }) if of == id => {
                if ran.denied.len() < MAX_DENIED {
                    ran.denied.push(format!("not taken out: {path}/{relative}: {why}"));
                }
                if let Some(outbox) = &mut io.outbox {
                    outbox.skipped(index, &relative, &why);
                }
            }
            Event::Message(ToHost::GetDone { id: of }) if of == id => return finish_file(&mut current, ran),
            Event::Message(ToHost::TransferFailed { id: of, errno, .. }) if of == id => {
                if errno == libc::ENOENT {
                    // The payload did not make it; that is its own affair and keeps its status.
                    ran.denied.push(format!("not taken out: {path}: does not exist"));
                    if let Some(outbox) = &mut io.outbox {
                        outbox.skipped(index, "", "does not exist");
                    }
                    return Ok(());
                }
                return Err(match errno {
                    libc::EFBIG => Trouble::Failed(format!(
                        "what is in {path} is larger than the cell's disk or inode limit, or too deep"
                    )),
                    _ => failed(&std::io::Error::from_raw_os_error(errno)),
                });
            }
            Event::Closed => {
                return Err(Trouble::Failed("the guest ended while files were taken out".into()));
            }
            // What the ended payload's streams still had.
            Event::Credit { .. } | Event::End { .. } => {}
            // Nobody listens to the guest of a worker before its files are asked for, nor for an answer that took too long.
            Event::Message(ToHost::Hello { version: PROTOCOL_VERSION } | ToHost::Measured(_)) => {}
            _ => return Err(ChannelError::Order("unexpected frame during a transfer").into()),
        }
    }
}

fn finish_file(current: &mut Option<(String, u64, Sha256)>, ran: &mut Ran) -> Result<(), Trouble> {
    match current.take() {
        Some((_, left, _)) if left > 0 => Err(ChannelError::Order("a file shorter than announced").into()),
        Some((name, _, digest)) => {
            ran.digests.add(format!("out:{name}"), digest);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Names come from the guest: relative, plain components, nothing that could leave the caller's directory.
pub(crate) fn check_relative(path: &str) -> Result<(), Trouble> {
    let plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    if path.is_empty() || (path.len() <= 4096 && path.split('/').all(plain)) {
        return Ok(());
    }
    Err(ChannelError::Order("a path that leaves its directory").into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use casemate_core::limits::LimitsDraft;
    use casemate_core::request::{Request, RequestDraft, Workload};
    use casemate_core::stack::{Stack, Wall};
    use casemate_wire::frame;
    use casemate_wire::guest::{Config, Filter, Ids, Inside, Landlock, Network, Ptrace, Rlimits, Terminals};
    use casemate_wire::launch::{Attached, Counters};

    use super::*;
    use crate::guest::{Channel, GuestChannel};
    use crate::wall::{Begun, Control, Gauges, Hold, Job, Later, Look, Places, WallError};

    struct Nobody;

    impl Control for Nobody {
        fn proceed(&mut self) -> Later<'_, Result<Begun, WallError>> {
            Box::pin(std::future::pending())
        }
        fn look(&mut self, _number: u32) -> Later<'_, Result<Look, WallError>> {
            Box::pin(std::future::pending())
        }
        fn measure(&mut self) -> Later<'_, Result<Counters, WallError>> {
            Box::pin(std::future::pending())
        }
        fn finish(&mut self) -> Later<'_, Result<Counters, WallError>> {
            Box::pin(std::future::pending())
        }
    }

    /// What comes of one file that is to come out, when this is all that its guest says.
    fn got(said: &[ToHost]) -> Result<(), Trouble> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
            ours.set_nonblocking(true).expect("a socket");
            let mut frames = Vec::new();
            for message in said {
                frame::encode(0, Body::Message(&message.encode()), &mut frames);
            }
            theirs.write_all(&frames).expect("room for a few frames");
            let mut cell = Cell {
                channel: Channel::Guest(GuestChannel::new(ours.into()).expect("a channel")),
                job: Job::Program { config: config(), attached: Attached::Nothing },
                places: Places { work: "/work".into(), tmp: "/tmp".into() },
                control: Box::new(Nobody),
                gauges: Gauges::Outside,
                hold: Hold::Gate,
                runtime: serde_json::Value::Null,
            };
            let request = Request::new(RequestDraft::new(Workload::Command { argv: vec!["true".into()] }));
            let plan =
                Plan::of_our_own(request.expect("valid"), LimitsDraft::new(), Stack::of(Wall::Container));
            let plan = plan.unwrap_or_else(|refusal| panic!("{}", refusal.reason));
            get_one(&mut cell, &plan, &mut Io::default(), &mut Ran::default(), 0, "/work/x").await
        })
    }

    fn config() -> Config {
        Config {
            version: PROTOCOL_VERSION,
            payload_id: None,
            network: Network::None,
            ids: Ids::Own,
            ptrace: Ptrace::Denied,
            filter: Filter::Inherited,
            rlimits: Rlimits { open_files: 1, processes: None, cpu_seconds: None, file_size: None },
            landlock: Landlock::NotThere,
            terminals: Terminals::None,
            privileges: casemate_wire::guest::Privileges::None,
            file_roots: Vec::new(),
        }
    }

    /// The first frame of a worker's guest may be read when its files are asked for, and not before.
    #[test]
    fn a_hello_that_nobody_had_read_is_no_breach() {
        let done = ToHost::GetDone { id: FIRST + (1 << 16) };
        let hello = |version| ToHost::Hello { version };
        assert!(got(&[hello(PROTOCOL_VERSION), done.clone()]).is_ok());
        assert!(got(&[ToHost::Measured(Inside::default()), done.clone()]).is_ok());
        assert!(got(&[hello(PROTOCOL_VERSION + 1), done.clone()]).is_err());
        assert!(got(&[ToHost::PutDone { id: 1 }, done]).is_err());
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for bad in ["../x", "a/../b", "/etc/passwd", "a//b", ".", "a/.", "a\0b"] {
            assert!(check_relative(bad).is_err(), "{bad}");
        }
        for good in ["", "a", "a/b.c", "..a", "a b/ü"] {
            assert!(check_relative(good).is_ok(), "{good}");
        }
    }
}
