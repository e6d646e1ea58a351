//! Frames: the multiplexed byte protocol between engine and guest.
//!
//! ```text
//!   0        4        8      9
//!   +--------+--------+------+-----------------+
//!   | length | stream | kind | payload (length) |
//!   +--------+--------+------+-----------------+
//! ```
//! Integers are little endian. `length` is at most [`MAX_PAYLOAD`], or [`MAX_REQUEST`] for a message to a guest. Kinds: a control message (stream 0 only), data, credit and
//! end of one stream. A sender may have at most [`WINDOW`] bytes of a stream under way; the receiver returns credit
//! as it consumes them, so one stuck stream never blocks another and memory stays bounded on both sides.

use alloc::vec::Vec;

/// Largest payload of one frame. A receiver that is told of more stops reading the channel for good.
pub const MAX_PAYLOAD: usize = 64 * 1024;
/// Largest control message that a guest takes from its engine: the arguments and the environment of one exec, which a request
/// bounds at 1 MiB, and room for their encoding. In the other direction [`MAX_PAYLOAD`] holds for messages, too.
pub const MAX_REQUEST: usize = 2 * 1024 * 1024;
/// Bytes of one stream that may be on their way before the receiver has to return credit.
pub const WINDOW: u32 = 256 * 1024;
/// Bytes before the payload.
pub const HEADER: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub stream: u32,
    pub body: Body<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// A control message; its stream is 0.
    Message(&'a [u8]),
    Data(&'a [u8]),
    /// The receiver has consumed this many bytes.
    Credit(u32),
    /// No more data follows on this stream.
    End,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    #[error("a frame of {0} bytes is too long")]
    TooLong(u32),
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    #[error("frame kind {kind} cannot carry {length} bytes on stream {stream}")]
    BadShape { kind: u8, length: u32, stream: u32 },
}

const MESSAGE: u8 = 0;
const DATA: u8 = 1;
const CREDIT: u8 = 2;
const END: u8 = 3;

/// Appends one frame to `out`. Data must not exceed [`MAX_PAYLOAD`], longer data goes out in several frames; a message must not
/// exceed what its receiver takes.
pub fn encode(stream: u32, body: Body<'_>, out: &mut Vec<u8>) {
    let credit;
    let (kind, payload): (u8, &[u8]) = match body {
        Body::Message(bytes) => (MESSAGE, bytes),
        Body::Data(bytes) => (DATA, bytes),
        Body::Credit(n) => {
            credit = n.to_le_bytes();
            (CREDIT, &credit)
        }
        Body::End => (END, &[]),
    };
    let limit = if kind == MESSAGE { MAX_REQUEST } else { MAX_PAYLOAD };
    assert!(payload.len() <= limit, "an outgoing frame is bounded by its producer");
    out.reserve(HEADER + payload.len());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&stream.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(payload);
}

/// Cuts a byte stream into frames. Holds at most one frame and one read's worth of bytes.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    max_message: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { buffer: Vec::new(), start: 0, end: 0, max_message: MAX_PAYLOAD }
    }
}

impl Decoder {
    /// For a guest, whose peer is the engine.
    pub fn for_requests() -> Decoder {
        Decoder { max_message: MAX_REQUEST, ..Decoder::default() }
    }

    /// Room to read into; pass the number of bytes read to [`Decoder::filled`].
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.buffer.len() - self.end < HEADER + MAX_PAYLOAD {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        // Starts small: most cells exchange a few hundred bytes, and a guest's memory is the tenant's memory.
        let wanted = if self.end - self.start < 1024 { 4096 } else { HEADER + MAX_PAYLOAD };
        if self.buffer.len() < self.end + wanted {
            self.buffer.resize(self.end + wanted, 0);
        }
        &mut self.buffer[self.end..]
    }

    pub fn filled(&mut self, bytes: usize) {
        self.end += bytes;
        debug_assert!(self.end <= self.buffer.len());
    }

    /// The next whole frame, or `None` when more bytes are needed. After an error the channel is unusable.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let bytes = &self.buffer[self.start..self.end];
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (length, stream, kind) = (word(0), word(4), header[8]);
        let limit = if kind == MESSAGE { self.max_message } else { MAX_PAYLOAD };
        if length as usize > limit {
            return Err(FrameError::TooLong(length));
        }
        let bad_shape = FrameError::BadShape { kind, length, stream };
        match kind {
            MESSAGE if stream == 0 => {}
            DATA if stream != 0 && length > 0 => {}
            CREDIT if stream != 0 && length == 4 => {}
            END if stream != 0 && length == 0 => {}
            MESSAGE..=END => return Err(bad_shape),
            other => return Err(FrameError::UnknownKind(other)),
        }
        let Some(payload) = rest.get(..length as usize) else { return Ok(None) };
        self.start += HEADER + length as usize;
        let body = match kind {
            MESSAGE => Body::Message(payload),
            DATA => Body::Data(payload),
            CREDIT => Body::Credit(u32::from_le_bytes([payload[0], payload[1], payload[2], payload[3]])),
            _ => Body::End,
        };
        Ok(Some(Frame { stream, body }))
    }
}

/// What one side may still send on a stream.
#[derive(Debug, Clone, Copy)]
pub struct SendWindow(u32);

impl Default for SendWindow {
    fn default() -> Self {
        SendWindow(WINDOW)
    }
}

impl SendWindow {
    pub fn available(self) -> usize {
        self.0 as usize
    }
    pub fn spend(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(bytes as u32);
    }
    /// Credit beyond the window was never spent: the peer is confused or hostile.
    pub fn refund(&mut self, bytes: u32) -> Result<(), OverCredit> {
        self.0 = self.0.checked_add(bytes).filter(|&sum| sum <= WINDOW).ok_or(OverCredit)?;
        Ok(())
    }
}

/// What the other side may still send on a stream, and what it is owed for bytes already consumed.
#[derive(Debug, Clone, Copy)]
pub struct ReceiveWindow {
    open: u32,
    owed: u32,
}

impl Default for ReceiveWindow {
    fn default() -> Self {
        ReceiveWindow { open: WINDOW, owed: 0 }
    }
}

impl ReceiveWindow {
    /// Bytes have arrived. More than the window held is a violation.
    pub fn receive(&mut self, bytes: usize) -> Result<(), OverCredit> {
        self.open =
            u32::try_from(bytes).ok().and_then(|bytes| self.open.checked_sub(bytes)).ok_or(OverCredit)?;
        Ok(())
    }
    /// Bytes were consumed; returns credit to send once it is worth a frame.
    pub fn consume(&mut self, bytes: usize) -> Option<u32> {
        self.owed += bytes as u32;
        if self.owed < WINDOW / 4 {
            return None;
        }
        self.open += self.owed;
        Some(core::mem::take(&mut self.owed))
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the peer broke flow control")]
pub struct OverCredit;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode_all(bytes: &[u8], chunk: usize) -> Result<Vec<(u32, String)>, FrameError> {
        let mut decoder = Decoder::default();
        let mut frames = Vec::new();
        for piece in bytes.chunks(chunk.max(1)) {
            let mut piece = piece;
            while !piece.is_empty() {
                let space = decoder.space();
                let n = piece.len().min(space.len());
                space[..n].copy_from_slice(&piece[..n]);
                decoder.filled(n);
                piece = &piece[n..];
                while let Some(frame) = decoder.next_frame()? {
                    frames.push((frame.stream, format!("{:?}", frame.body)));
                }
            }
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_survive_any_fragmentation(
            datas in prop::collection::vec((1u32..9, prop::collection::vec(any::<u8>(), 1..5000)), 0..20),
            chunk in 1usize..9000,
        ) {
            let mut bytes = Vec::new();
            for (stream, data) in &datas {
                encode(*stream, Body::Data(data), &mut bytes);
                encode(*stream, Body::Credit(7), &mut bytes);
            }
            let expected: Vec<_> = datas.iter().flat_map(|(stream, data)| {
                [(*stream, format!("{:?}", Body::Data(data))), (*stream, format!("{:?}", Body::Credit(7)))]
            }).collect();
            prop_assert_eq!(decode_all(&bytes, chunk).unwrap(), expected);
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_never_grow_the_buffer(bytes in prop::collection::vec(any::<u8>(), 0..4000), chunk in 1usize..100) {
            let _ = decode_all(&bytes, chunk);
        }
    }

    #[test]
    fn a_frame_longer_than_the_limit_is_refused_at_its_header() {
        let mut bytes = u32::MAX.to_le_bytes().to_vec();
        bytes.extend([1, 0, 0, 0, DATA]);
        assert_eq!(decode_all(&bytes, 3), Err(FrameError::TooLong(u32::MAX)));
    }

    #[test]
    fn only_a_guest_takes_long_messages() {
        let (message, mut bytes) = (vec![7; MAX_REQUEST], Vec::new());
        encode(0, Body::Message(&message), &mut bytes);
        assert_eq!(decode_all(&bytes, 4096), Err(FrameError::TooLong(MAX_REQUEST as u32)));
        let mut decoder = Decoder::for_requests();
        for piece in bytes.chunks(4096) {
            decoder.space()[..piece.len()].copy_from_slice(piece);
            decoder.filled(piece.len());
        }
        assert_eq!(decoder.next_frame(), Ok(Some(Frame { stream: 0, body: Body::Message(&message) })));
    }

    #[test]
    fn data_on_stream_zero_is_refused() {
        let mut bytes = Vec::new();
        encode(0, Body::Data(b"x"), &mut bytes);
        assert!(matches!(decode_all(&bytes, 64), Err(FrameError::BadShape { .. })));
    }

    #[test]
    fn sending_beyond_the_window_is_refused() {
        let mut window = ReceiveWindow::default();
        window.receive(WINDOW as usize).unwrap();
        assert_eq!(window.receive(1), Err(OverCredit));
        assert_eq!(window.consume(WINDOW as usize), Some(WINDOW));
        window.receive(1).unwrap();
        assert_eq!(SendWindow::default().refund(1), Err(OverCredit));
    }
}
