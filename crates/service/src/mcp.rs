//! The tools that a model calls, over the Model Context Protocol: on standard input and output, or over HTTP at `/mcp`. A client has one
//! session, opened when it first needs one, and everything that it runs or writes is in there.
//!
//! Up to protocol version 2025-11-25, and on standard input and output, a client is its connection. Since 2026-07-28 there are no
//! connections over HTTP, only requests: there, a client is whoever sends the same cookie, or names a session that an earlier result
//! has named.

mod client;
mod files;
mod output;
mod run;
mod stdio;
mod tools;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    InitializeRequestParams, InitializeResult, JsonObject, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::app::{App, Shared};
use crate::problem::{Code, Problem};
use client::Place;
pub use client::Setup;
pub(crate) use client::{Client, LONGEST_CALL, Visitors};
pub use stdio::serve_stdio;
use tools::Tool;

const INSTRUCTIONS: &str = "\
Runs code and commands in a sandbox: no network, no files of the host, bounded time, memory and output. \
All calls share one session: what is written below /work or /tmp is there for the next call. Every call starts a program of its own, so \
variables do not stay; put what has to stay into files. A session that was killed (for its memory, say) or was not used for long is replaced by \
an empty one, and the next result says so. Long output is told by its head and tail: write it to a file and read the part that matters. \
Every result names a receipt, the signed record of what ran behind which walls; `explain` says where and why.";

/// Answers one connection, or, where the protocol knows none, one request.
pub(crate) struct Handler {
    app: Weak<Shared>,
    /// Whose connection it is, once that is known.
    client: OnceLock<Arc<Client>>,
    http: Option<Http>,
}

/// What the handlers of a tenant's HTTP requests share.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    pub(crate) visitors: Arc<Visitors>,
    /// One permit for each that may be connected.
    pub(crate) places: Arc<Semaphore>,
}

/// What an HTTP request says about whom it comes from.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    pub(crate) setup: Setup,
    /// What a client is known by that has no connection.
    pub(crate) key: String,
    /// It was only now given the key, and may not send it back.
    pub(crate) is_new: bool,
}

/// What a tool has to say.
struct Answer {
    content: Vec<ContentBlock>,
    structured: Value,
    /// It did not come to what was asked for.
    failed: bool,
}

/// Whom a call is for, and in which session.
enum Whose {
    Connected(Arc<Client>),
    /// Without a connection; perhaps with the session that it names.
    Visitor(Arc<Client>, Option<String>),
}

impl Handler {
    /// For the one client at the other end of a pipe.
    fn connected(app: &App, setup: Setup) -> Handler {
        let client = OnceLock::from(Arc::new(Client::new(setup, None)));
        Handler { app: Arc::downgrade(app), client, http: None }
    }

    pub(crate) fn over_http(app: Weak<Shared>, http: Http) -> Handler {
        Handler { app, client: OnceLock::new(), http: Some(http) }
    }

    /// Where nobody has connected, requests stand for themselves.
    fn has_connection(&self) -> bool {
        self.client.get().is_some()
    }

    fn whose(
        &self,
        arguments: &mut JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<Whose, Problem> {
        let visit = visit(context);
        let client = match (self.client.get(), &self.http, visit) {
            (Some(client), ..) => client.clone(),
            (None, Some(http), Some(visit)) => http.visitors.client(&visit.key, &visit.setup)?,
            _ => return Err(Problem::internal("it is not known who asks")),
        };
        if visit.is_some_and(|visit| visit.setup != *client.setup()) {
            let hint = "use one address for all requests, or begin anew";
            return Err(Problem::new(Code::Invalid, "the address asks for other walls than before", hint));
        }
        if self.has_connection() {
            return Ok(Whose::Connected(client));
        }
        let named =
            arguments.remove("session").map(|named| parse::<String>(&named, "session")).transpose()?;
        Ok(Whose::Visitor(client, named))
    }

    async fn answer(
        &self,
        tool: Tool,
        mut arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<Answer, Problem> {
        let app = self.app.upgrade().ok_or_else(draining)?;
        let whose = self.whose(&mut arguments, context)?;
        let client = whose.client();
        let _call = client.call()?;
        let arguments = Value::Object(arguments);
        if tool == Tool::Explain {
            return tools::explain(&app, client.setup(), parse(&arguments, "arguments")?);
        }
        let mut place = whose.place(&app).await?;
        let mut answered = tool.answer(&app, &place, client.setup(), &arguments, context).await;
        // It ended before anything began: that was not the caller's doing, and they get another one.
        if whose.may_have_another() && ended_meanwhile(&place, &answered).await {
            place = whose.place(&app).await?;
            answered = tool.answer(&app, &place, client.setup(), &arguments, context).await;
        }
        let mut answer = match (answered, &place.lost) {
            (Err(problem), None) => return Err(problem),
            (answered, _) => answered.unwrap_or_else(Answer::from),
        };
        if let Some(lost) = &place.lost {
            let note =
                format!("[the earlier session is over ({lost}), and its files are gone; this is a new one]");
            answer.content.insert(0, ContentBlock::text(note));
        }
        answer.structured["session"] = place.live.session.id().into();
        if matches!(whose, Whose::Visitor(_, None)) && visit(context).is_some_and(|visit| visit.is_new) {
            let note =
                format!("[session {}: name it in the next call to find its files]", place.live.session.id());
            answer.content.push(ContentBlock::text(note));
        }
        Ok(answer)
    }
}

impl Whose {
    fn client(&self) -> &Client {
        match self {
            Whose::Connected(client) | Whose::Visitor(client, _) => client,
        }
    }

    /// Whoever names a session means that one.
    fn may_have_another(&self) -> bool {
        !matches!(self, Whose::Visitor(_, Some(_)))
    }

    async fn place(&self, app: &App) -> Result<Place, Problem> {
        let (client, named) = match self {
            Whose::Connected(client) | Whose::Visitor(client, None) => return client.place(app).await,
            Whose::Visitor(client, Some(named)) => (client, named),
        };
        let tenant = client.setup().tenant();
        let found = app.sessions.find(tenant, named).map_err(|problem| Problem {
            hint: "it is over, and its files are gone; leave `session` out to begin a new one".into(),
            ..problem
        })?;
        Ok(Place { live: found, lost: None })
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let server = Implementation::new("casemate", env!("CARGO_PKG_VERSION")).with_title("Casemate");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(server)
            .with_instructions(INSTRUCTIONS)
    }

    /// Somebody connects who will stay. They are counted, so that those who never leave do not add up.
    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if let (Some(http), Some(visit)) = (&self.http, visit(&context)) {
            let place = http.places.clone().try_acquire_owned().map_err(|_| {
                ErrorData::invalid_request(
                    "too many clients of this tenant are connected; close some of them",
                    None,
                )
            })?;
            self.client.get_or_init(|| Arc::new(Client::new(visit.setup.clone(), Some(place))));
        }
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let described = |tool: &Tool| tool.described(!self.has_connection());
        Ok(ListToolsResult::with_all_items(Tool::ALL.iter().map(described).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        Tool::named(name).map(|tool| tool.described(!self.has_connection()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = Tool::named(&request.name).ok_or_else(|| {
            ErrorData::invalid_params(
                format!("there is no tool `{}`; tools/list names them", request.name),
                None,
            )
        })?;
        let arguments = request.arguments.unwrap_or_default();
        let answered = self.answer(tool, arguments, &context);
        let answered = tokio::select! {
            // What runs is ended by whoever waits for it, and its answer still comes; whatever else it is need not be waited for.
            answered = answered => answered,
            () = cancelled_for_long(&context) => Err(cancelled()),
        };
        Ok(CallToolResult::from(answered.unwrap_or_else(Answer::from)).into())
    }
}

/// Whether there was no answer because the session is over.
async fn ended_meanwhile(place: &Place, answered: &Result<Answer, Problem>) -> bool {
    const PATIENCE: Duration = Duration::from_secs(2);
    let is_ended = matches!(answered, Err(problem) if problem.code == Code::Ended);
    is_ended && timeout(PATIENCE, place.live.session.ended()).await.is_ok()
}

/// What was cancelled has this long to end by itself.
async fn cancelled_for_long(context: &RequestContext<RoleServer>) {
    const LAST_WORDS: Duration = Duration::from_secs(5);
    context.ct.cancelled().await;
    sleep(LAST_WORDS).await;
}

fn cancelled() -> Problem {
    Problem::new(Code::Ended, "the call was cancelled", "call again")
}

fn draining() -> Problem {
    Problem::new(Code::Draining, "the server is about to stop", "ask another one, or later")
}

fn visit(context: &RequestContext<RoleServer>) -> Option<&Visit> {
    context.extensions.get::<axum::http::request::Parts>()?.extensions.get()
}

fn parse<T: DeserializeOwned>(value: &Value, what: &str) -> Result<T, Problem> {
    T::deserialize(value).map_err(|error| {
        let detail = format!("`{what}` cannot be read: {error}");
        Problem::new(Code::Invalid, detail, "tools/list has the schema of each tool's arguments")
    })
}

impl Answer {
    fn new(text: String, structured: Value) -> Answer {
        Answer { content: vec![ContentBlock::text(text)], structured, failed: false }
    }
}

impl From<Problem> for Answer {
    fn from(Problem { code, detail, hint, .. }: Problem) -> Answer {
        let text = format!("error: {detail}\nhint: {hint}");
        let error = json!({"code": code.as_str(), "detail": detail, "hint": hint});
        Answer { failed: true, ..Answer::new(text, json!({ "error": error })) }
    }
}

impl From<Answer> for CallToolResult {
    fn from(Answer { content, structured, failed }: Answer) -> CallToolResult {
        let mut result =
            if failed { CallToolResult::error(content) } else { CallToolResult::success(content) };
        result.structured_content = Some(structured);
        result
    }
}
