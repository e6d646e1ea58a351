//! Clients that do not do their part: some take nothing of their answer, others send what nobody wants.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, timeout};

/// Of a body that nobody reads: how much is taken all the same, and for how long.
const UNWANTED: usize = 64 << 20;
const UNWANTED_PATIENCE: Duration = Duration::from_secs(2);

/// A connection that fails when the other side has taken nothing for too long. Whatever waits for it is let go by that.
pub(super) struct Taken<S> {
    stream: S,
    patience: Duration,
    /// Since somebody waits for the client.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Taken<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Taken<S> {
        Taken { stream, patience, waiting: None }
    }

    /// Passes on what came of a write, unless there is nothing to pass on for too long.
    fn judge<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        waiting.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Taken<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Taken<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.judge(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(closed, cx)
    }
}

/// The body of a request. When it is dropped before its end, what is on its way is thrown away for a moment: a client whose connection
/// is closed in its face does not hear why.
pub(super) struct Received {
    body: Option<Incoming>,
    /// The client waits to be told to go on, and the answer tells it not to.
    waits: bool,
}

impl Received {
    pub(super) fn new(body: Incoming, waits: bool) -> Received {
        Received { body: Some(body), waits }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.waits = false;
        self.body.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let unwanted = self.body.take().filter(|body| !self.waits && !body.is_end_stream());
        if let (Some(body), Ok(runtime)) = (unwanted, tokio::runtime::Handle::try_current()) {
            runtime.spawn(timeout(UNWANTED_PATIENCE, throw_away(body)));
        }
    }
}

async fn throw_away(mut body: Incoming) {
    let mut thrown = 0;
    while let Some(Ok(frame)) = body.frame().await {
        thrown += frame.data_ref().map_or(0, Bytes::len);
        if thrown > UNWANTED {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn whoever_takes_nothing_is_given_up() {
        let (ours, _theirs) = tokio::io::duplex(8);
        let mut ours = Taken::new(ours, PATIENCE);
        ours.write_all(b"12345678").await.expect("there is room");
        let refused = ours.write_all(b"9").await.expect_err("nobody takes it");
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn whoever_takes_something_is_waited_for_anew() {
        let (ours, mut theirs) = tokio::io::duplex(1);
        let mut ours = Taken::new(ours, PATIENCE);
        let reading = tokio::spawn(async move {
            for _ in 0..8 {
                sleep(PATIENCE / 4).await;
                theirs.read_u8().await.expect("something");
            }
        });
        ours.write_all(b"12345678").await.expect("it is taken bit by bit, in twice the time");
        reading.await.expect("no panic");
    }
}
