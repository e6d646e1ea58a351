//! Server-sent events: output as it comes. A slow reader slows the program down, and is given up on when it reads nothing.

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use casemate_engine::{Chunk, Stream};
use futures_util::Stream as Events;
use std::convert::Infallible;
use std::time::Duration;

use crate::shape::event::OutputJson;

/// Said when nothing else is, so that whoever is in between does not take silence for death.
const HEARTBEAT: Duration = Duration::from_secs(15);

pub(super) fn sse(events: impl Events<Item = Event> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let events = events.map(Ok::<_, Infallible>);
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response()
}

pub(super) fn output(chunk: &Chunk) -> Event {
    let name = match chunk.stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    named(name, &OutputJson::of(&chunk.bytes))
}

pub(super) fn named(name: &str, data: &impl serde::Serialize) -> Event {
    let data = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(name).data(data)
}
