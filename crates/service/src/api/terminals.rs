//! `/v1/sessions/{id}/processes/{pid}/terminal`: a terminal over a WebSocket. Binary messages are what is typed and what is shown; text
//! messages are for us: `{"resize": {"rows": 40, "columns": 120}}` from the client, `{"ended": {…}}` from here before it closes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::Bytes;
use casemate_engine::session::TerminalSize;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout};

use super::document::{Asked, InSession, Queried, Switched};
use super::extract::Path;
use crate::app::App;
use crate::listen::Place;
use crate::problem::{Code, Problem};
use crate::sessions::{Live, Log, LogOf, Reading, Running, Said};
use crate::shape::outcome::ExecutionJson;
use crate::shape::request::Terminal;
use crate::store::Caller;
use crate::token::Scope;

/// Of one message. What is typed or pasted comes in smaller ones.
const MAX_MESSAGE: usize = 64 << 10;
/// How long a client may take to read a message, and how long it may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(60);

type Sink = SplitSink<WebSocket, Message>;

/// What a client says besides what is typed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Wish {
    Resize(Terminal),
}

/// Talk to a program's terminal over a WebSocket.
///
/// Binary messages are what is typed and what is shown. Text messages are `{"resize": {"rows": 40, "columns": 120}}` to the server, and
/// `{"ended": …}` from it, before it closes.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/processes/{pid}/terminal", operation_id = "attachTerminal", tag = "processes",
    params(("id" = String, Path, description = "Of a session"), ("pid" = u32, Path, description = "Of a program in it")),
    responses((status = 101, description = "A WebSocket from here on"), Asked, InSession, Queried, Switched)
)]
pub(crate) async fn attach(
    State(app): State<App>,
    caller: Caller,
    Path((id, pid)): Path<(String, u32)>,
    Extension(place): Extension<Place>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    caller.check(Scope::Run)?;
    let live = app.sessions.find(&caller.tenant, &id)?;
    let running = live.process(pid)?;
    if !running.terminal {
        let hint = "start it with `terminal`, or use `output` and `stdin`";
        return Err(Problem::new(Code::Invalid, "this program has no terminal", hint));
    }
    let upgrade = upgrade.map_err(|rejection| {
        Problem::new(Code::Upgrade, rejection.body_text(), "this address is for WebSockets")
    })?;
    let upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE);
    let turn = app.sockets.take(&caller.tenant, 1).await?;
    Ok(upgrade.on_upgrade(move |socket| async move {
        let _held = (place, turn);
        let reading = Log::read(LogOf(running.clone()), true);
        talk(socket, &live, &running, reading).await;
    }))
}

/// Until the program ends, or the client goes. What is typed and what is shown do not wait for each other: each may be what the other
/// one waits for.
async fn talk(socket: WebSocket, live: &Live, running: &Running, reading: Reading<LogOf>) {
    let (mut sink, stream) = socket.split();
    let heard = Mutex::new(Instant::now());
    let (code, reason) = tokio::select! {
        end = show(&mut sink, reading, &heard) => end,
        end = listen(stream, live, running, &heard) => end,
    };
    // Whoever went away has been told enough. The program goes on: somebody may come back to it.
    let _ = send(&mut sink, Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await;
}

/// Why a conversation ends: a code of the protocol, and words.
type End = (u16, &'static str);

async fn show(sink: &mut Sink, mut reading: Reading<LogOf>, heard: &Mutex<Instant>) -> End {
    const GONE: End = (1001, "the client does not read");
    let mut beat = Instant::now() + HEARTBEAT;
    loop {
        let (message, end) = tokio::select! {
            said = reading.next() => match said {
                Said::Output(chunk) => (Message::Binary(chunk.bytes.into()), None),
                Said::Missed => (text(&json!({"missed": true})), None),
                Said::Ended(executed) => {
                    (text(&json!({"ended": ExecutionJson::summary(&executed)})), Some((1000, "ended")))
                }
                Said::Lost => return (1011, "what became of the program is not known"),
            },
            () = sleep_until(beat) => {
                if heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed() > SILENCE {
                    return (1001, "nothing was heard for too long");
                }
                beat = Instant::now() + HEARTBEAT;
                (Message::Ping(Bytes::new()), None)
            }
        };
        if send(sink, message).await.is_err() {
            return GONE;
        }
        if let Some(end) = end {
            return end;
        }
    }
}

async fn listen(
    mut stream: SplitStream<WebSocket>,
    live: &Live,
    running: &Running,
    heard: &Mutex<Instant>,
) -> End {
    let input = running.control.stdin();
    while let Some(Ok(message)) = stream.next().await {
        *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        live.touch();
        match message {
            // When nobody reads it any more, the end is about to be shown.
            Message::Binary(bytes) => drop(input.send(bytes.to_vec()).await),
            Message::Text(text) => match serde_json::from_str(&text) {
                Ok(Wish::Resize(Terminal { rows, columns })) => {
                    running.control.resize(TerminalSize { rows, columns });
                }
                Err(_) => return (1007, "a text message is {\"resize\": {\"rows\": R, \"columns\": C}}"),
            },
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) => {}
        }
    }
    (1000, "goodbye")
}

fn text(value: &serde_json::Value) -> Message {
    Message::Text(value.to_string().into())
}

async fn send(sink: &mut Sink, message: Message) -> Result<(), Gone> {
    timeout(PATIENCE, sink.send(message)).await.map_err(|_| Gone)?.map_err(|_| Gone)
}

/// The client is.
struct Gone;
