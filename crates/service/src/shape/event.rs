//! Server-sent events. Each has a name, which says what its data is: an object, as JSON.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_engine::session::Change;
use serde::Serialize;
use utoipa::openapi::schema::{Object, ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::code::{CodeEndedJson, CodeErrorJson, CodeOutputJson, CodeResultJson, CodeStartedJson};
use super::outcome::ExecutionJson;

/// Events of something that runs.
pub(crate) enum Run {}

/// Events of a directory that is watched.
pub(crate) enum Watch {}

/// Events of code that keeps what it defines.
pub(crate) enum Code {}

/// `started`: the first event of everything that runs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StartedEvent)]
pub(crate) struct StartedJson {
    pub(crate) id: String,
    /// Of a program in a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) pid: Option<u32>,
}

/// `stdout` and `stderr`. Text where it is text; what is cut in the middle of a character comes in base64.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OutputEvent)]
pub(crate) enum OutputJson {
    Data(String),
    DataBase64(String),
}

/// `missed` (something was forgotten before it came), `lost` (what became of it is not known; the last event), and `watching` (from now
/// on).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BareEvent)]
pub(crate) struct BareJson {}

/// `changed`: something in a directory that is watched.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChangedEvent)]
pub(crate) struct ChangedJson {
    /// Relative to the directory.
    pub(crate) path: String,
    change: ChangeJson,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Change)]
enum ChangeJson {
    Created,
    Written,
    Removed,
    Renamed,
    Attributes,
}

impl PartialSchema for Run {
    fn schema() -> RefOr<Schema> {
        let events = OneOfBuilder::new()
            .item(event(&["started"], StartedJson::name()))
            .item(event(&["stdout", "stderr"], OutputJson::name()))
            .item(event(&["ended"], ExecutionJson::name()))
            .item(event(&["missed", "lost"], BareJson::name()));
        events.into()
    }
}

impl ToSchema for Run {
    fn name() -> Cow<'static, str> {
        "RunEvent".into()
    }
}

impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        let events = OneOfBuilder::new()
            .item(event(&["started"], CodeStartedJson::name()))
            .item(event(&["stdout", "stderr"], CodeOutputJson::name()))
            .item(event(&["result"], CodeResultJson::name()))
            .item(event(&["error"], CodeErrorJson::name()))
            .item(event(&["ended"], CodeEndedJson::name()));
        events.into()
    }
}

impl ToSchema for Code {
    fn name() -> Cow<'static, str> {
        "CodeEvent".into()
    }
}

impl PartialSchema for Watch {
    fn schema() -> RefOr<Schema> {
        let events = OneOfBuilder::new()
            .item(event(&["changed"], ChangedJson::name()))
            .item(event(&["watching", "missed"], BareJson::name()));
        events.into()
    }
}

impl ToSchema for Watch {
    fn name() -> Cow<'static, str> {
        "WatchEvent".into()
    }
}

/// An event of one of these names, whose data is called so among the schemas.
fn event(names: &[&str], data: Cow<'static, str>) -> Object {
    let name = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names.iter().copied()));
    let data = ObjectBuilder::new()
        .schema_type(Type::String)
        .content_media_type("application/json")
        .content_schema(Some(Ref::from_schema_name(data)));
    ObjectBuilder::new()
        .property("event", name)
        .required("event")
        .property("data", data)
        .required("data")
        .build()
}

impl OutputJson {
    pub(crate) fn of(bytes: &[u8]) -> OutputJson {
        match std::str::from_utf8(bytes) {
            Ok(text) => OutputJson::Data(text.to_owned()),
            Err(_) => OutputJson::DataBase64(STANDARD.encode(bytes)),
        }
    }
}

impl ChangedJson {
    pub(crate) fn new(path: String, change: Change) -> ChangedJson {
        let change = match change {
            Change::Created => ChangeJson::Created,
            Change::Written => ChangeJson::Written,
            Change::Removed => ChangeJson::Removed,
            Change::Renamed => ChangeJson::Renamed,
            Change::Attributes => ChangeJson::Attributes,
        };
        ChangedJson { path, change }
    }
}
