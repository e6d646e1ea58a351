//! What server-sent events carry, each in the JSON after `data:`. The name of an event says which of these it is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_engine::session::Change;
use serde::Serialize;
use utoipa::ToSchema;

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
