//! Bytes from a guest, and packets from an engine that was taken over.

use casemate_wire::frame::{Body, Decoder, FrameError, SendWindow, WINDOW, encode};
use casemate_wire::guest::{ToGuest, ToHost};
use casemate_wire::launch::{Answer, Request};

/// The first two bytes say how the rest is cut into reads.
pub fn frame(data: &[u8]) {
    let Some((&[a, b], bytes)) = data.split_first_chunk() else { return };
    let (whole, end) = decode(bytes, bytes.len().max(1));
    let (pieces, other_end) = decode(bytes, usize::from(u16::from_le_bytes([a, b])).max(1));
    assert_eq!(whole, pieces, "frames depend on how they arrive");
    assert_eq!(end, other_end, "the end depends on how the frames arrive");

    let mut again = Vec::new();
    let mut window = SendWindow::default();
    for (stream, body) in &whole {
        encode(*stream, body.borrow(), &mut again);
        match body {
            Owned::Message(bytes) => messages(bytes),
            Owned::Credit(n) => {
                window.spend(usize::from(a));
                let _ = window.refund(*n);
                assert!(window.available() <= WINDOW as usize, "more credit than there is window");
            }
            Owned::Data(_) | Owned::End => {}
        }
    }
    assert!(bytes.starts_with(&again), "a frame has another spelling");
    messages(bytes);
}

/// A message that is understood says the same when it is said again.
fn messages(bytes: &[u8]) {
    if let Ok(message) = ToHost::decode(bytes) {
        assert_eq!(ToHost::decode(&message.encode()).expect("our own words"), message);
    }
    if let Ok(message) = ToGuest::decode(bytes) {
        assert_eq!(ToGuest::decode(&message.encode()).expect("our own words"), message);
    }
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode()).expect("our own words"), request);
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode()).expect("our own words"), answer);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Owned {
    Message(Vec<u8>),
    Data(Vec<u8>),
    Credit(u32),
    End,
}

impl Owned {
    fn borrow(&self) -> Body<'_> {
        match self {
            Owned::Message(bytes) => Body::Message(bytes),
            Owned::Data(bytes) => Body::Data(bytes),
            Owned::Credit(n) => Body::Credit(*n),
            Owned::End => Body::End,
        }
    }
}

impl From<Body<'_>> for Owned {
    fn from(body: Body<'_>) -> Owned {
        match body {
            Body::Message(bytes) => Owned::Message(bytes.to_vec()),
            Body::Data(bytes) => Owned::Data(bytes.to_vec()),
            Body::Credit(n) => Owned::Credit(n),
            Body::End => Owned::End,
        }
    }
}

/// Reads `bytes` in pieces of `size`, up to the first error.
fn decode(bytes: &[u8], size: usize) -> (Vec<(u32, Owned)>, Option<FrameError>) {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for mut piece in bytes.chunks(size) {
        while !piece.is_empty() {
            let space = decoder.space();
            let n = piece.len().min(space.len());
            space[..n].copy_from_slice(&piece[..n]);
            decoder.filled(n);
            piece = &piece[n..];
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => frames.push((frame.stream, frame.body.into())),
                    Ok(None) => break,
                    Err(error) => return (frames, Some(error)),
                }
            }
        }
    }
    (frames, None)
}
