//! The attached standard streams of a container: plain bytes towards it; from it, chunks that say which stream they are from.
//!
//! The client library would read a whole chunk into memory, however long it says it is. Here bytes are passed on as they come,
//! so whoever does not read keeps the container from writing, and nothing grows.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

const BUFFER: usize = 64 * 1024;

/// Carries bytes between the engine's stream and the guest's channel until either is gone. `early` came before.
pub(super) async fn carry(engine: UnixStream, early: Vec<u8>, channel: UnixStream) -> io::Result<()> {
    let (from_engine, mut to_engine) = engine.into_split();
    let (mut from_channel, to_channel) = channel.into_split();
    let down = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            match from_channel.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                // There may still be something to read.
                Ok(n) => match to_engine.write_all(&buffer[..n]).await {
                    Ok(()) => {}
                    Err(_) => return std::future::pending::<io::Result<()>>().await,
                },
            }
        }
        // The guest sees the end of its input, and ends.
        let _ = to_engine.shutdown().await;
        std::future::pending::<io::Result<()>>().await
    };
    tokio::select! {
        ended = up(from_engine, early, to_channel) => ended,
        failed = down => failed,
    }
}

async fn up(mut engine: OwnedReadHalf, early: Vec<u8>, mut channel: OwnedWriteHalf) -> io::Result<()> {
    let mut chunks = Chunks::default();
    let mut buffer = vec![0; BUFFER];
    let (mut length, early) = (early.len().min(BUFFER), early);
    buffer[..length].copy_from_slice(&early[..length]);
    loop {
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let (output, used) = chunks.next(rest)?;
            // Whoever does not listen any more has given up on the cell.
            channel.write_all(output).await?;
            rest = &rest[used..];
        }
        length = match engine.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        };
    }
}

/// Takes the engine's chunks apart: eight bytes that say which stream and how long, then as many bytes.
#[derive(Default)]
struct Chunks {
    header: [u8; 8],
    seen: usize,
    stream: u8,
    left: u32,
}

const STDOUT: u8 = 1;
const STDERR: u8 = 2;

impl Chunks {
    /// What of `bytes` is output, and how many of them this was about. The guest writes nothing to standard error; what is there is
    /// the runtime's, and nobody's.
    fn next<'a>(&mut self, bytes: &'a [u8]) -> io::Result<(&'a [u8], usize)> {
        if self.left > 0 {
            let used = bytes.len().min(self.left as usize);
            self.left -= used as u32;
            return Ok((if self.stream == STDOUT { &bytes[..used] } else { &[] }, used));
        }
        let used = bytes.len().min(self.header.len() - self.seen);
        self.header[self.seen..self.seen + used].copy_from_slice(&bytes[..used]);
        self.seen += used;
        if self.seen == self.header.len() {
            let [stream, 0, 0, 0, length @ ..] = self.header else { return Err(malformed()) };
            if !matches!(stream, STDOUT | STDERR) {
                return Err(malformed());
            }
            (self.stream, self.left, self.seen) = (stream, u32::from_be_bytes(length), 0);
        }
        Ok((&[], used))
    }
}

fn malformed() -> io::Error {
    io::Error::other("the Docker Engine's stream is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(pieces: &[&[u8]]) -> io::Result<Vec<u8>> {
        let (mut chunks, mut all) = (Chunks::default(), Vec::new());
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (output, used) = chunks.next(rest)?;
                assert!(used > 0, "no progress");
                all.extend_from_slice(output);
                rest = &rest[used..];
            }
        }
        Ok(all)
    }

    const STREAM: &[u8] =
        b"\x01\0\0\0\0\0\0\x03abc\x02\0\0\0\0\0\0\x04lost\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x01d";

    #[test]
    fn output_is_taken_out_however_it_is_cut() {
        assert_eq!(output(&[STREAM]).unwrap(), b"abcd");
        for length in 1..STREAM.len() {
            let pieces: Vec<&[u8]> = STREAM.chunks(length).collect();
            assert_eq!(output(&pieces).unwrap(), b"abcd", "in pieces of {length}");
        }
    }

    #[test]
    fn a_length_that_never_comes_takes_no_memory() {
        assert_eq!(output(&[b"\x01\0\0\0\xff\xff\xff\xff", b"x"]).unwrap(), b"x");
    }

    #[test]
    fn nonsense_ends_it() {
        for header in
            [b"\x03\0\0\0\0\0\0\x01", b"\x00\0\0\0\0\0\0\x01", b"\x01\0\x01\0\0\0\0\x01", b"HTTP/1.1"]
        {
            assert!(output(&[header]).is_err(), "{header:?}");
        }
    }
}
