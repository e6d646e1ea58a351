//! Code that keeps what it defines: what is asked for, and what comes of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::request::Amount;
use super::words;
use crate::interpreter::{Context, Failure};

/// Code to run. It finds what earlier code in its context has defined.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"code": "x = 6\nx * 7"})))]
pub(crate) struct NewCode {
    pub(crate) code: String,
    /// Python if neither a language nor a context is named.
    #[serde(default)]
    #[schema(value_type = Option<words::Interpreted>)]
    pub(crate) language: Option<String>,
    /// Where it runs; otherwise in the session's own of this language.
    #[serde(default)]
    pub(crate) context: Option<String>,
    /// Set while it runs.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// After this long it is interrupted; what was defined stays.
    #[serde(default)]
    #[schema(value_type = Option<words::Duration>)]
    pub(crate) timeout: Option<Amount>,
    /// Answer with events as things happen.
    #[serde(default)]
    pub(crate) stream: bool,
}

/// Where code is to run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"language": "python"})))]
pub(crate) struct NewContext {
    /// Python if none is named.
    #[serde(default)]
    #[schema(value_type = Option<words::Interpreted>)]
    pub(crate) language: Option<String>,
    /// Where it begins: below `/work` or `/tmp`.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
}

/// Where code runs, and leaves what it defines.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Context)]
pub(crate) struct ContextJson {
    id: String,
    #[schema(value_type = words::Interpreted)]
    language: &'static str,
    cwd: String,
}

/// Contexts of a session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Contexts)]
pub(crate) struct ContextsJson {
    pub(crate) contexts: Vec<ContextJson>,
    #[schema(required = true)]
    pub(crate) next: Option<String>,
}

/// What came of a piece of code.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = CodeResult)]
pub(crate) struct CodeJson {
    /// As its receipt has it. None if its context was lost.
    #[schema(required = true)]
    pub(crate) id: Option<String>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// What it displayed, and the value of its last expression: content by media type.
    pub(crate) results: Vec<Map<String, Value>>,
    #[schema(required = true)]
    pub(crate) error: Option<CodeErrorJson>,
    #[schema(required = true)]
    pub(crate) execution_count: Option<u64>,
    pub(crate) context: String,
}

/// What ended a piece of code early.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeError)]
pub(crate) struct CodeErrorJson {
    name: String,
    value: String,
    traceback: String,
}

/// `started`: the first event of code.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeStartedEvent)]
pub(crate) struct CodeStartedJson {
    pub(crate) context: String,
}

/// `stdout` and `stderr` of code.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeOutputEvent)]
pub(crate) struct CodeOutputJson {
    pub(crate) data: String,
}

/// `result`: something that it displayed, or the value of its last expression.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeResultEvent)]
pub(crate) struct CodeResultJson {
    /// Content by media type.
    pub(crate) formats: Map<String, Value>,
    /// It is the value of the last expression.
    pub(crate) is_main: bool,
}

/// `ended`: the last event of code, unless its context was lost.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeEndedEvent)]
pub(crate) struct CodeEndedJson {
    pub(crate) execution_count: u64,
    /// As its receipt has it.
    pub(crate) id: String,
}

impl From<Failure> for CodeErrorJson {
    fn from(Failure { name, value, traceback }: Failure) -> CodeErrorJson {
        CodeErrorJson { name, value, traceback }
    }
}

impl From<&Context> for ContextJson {
    fn from(context: &Context) -> ContextJson {
        let (id, cwd) = (context.id.clone(), context.cwd.clone());
        ContextJson { id, language: context.language.as_str(), cwd }
    }
}
