//! The description of this API, generated from the code: served at `/openapi.json`, committed as `docs/openapi.json`, shown at `/docs`.
//!
//! An address is described where it is handled (`#[utoipa::path]`), and listed below. What a handler can answer besides what it is for
//! is named by the sets of problems that stand here.

mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{Object, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, Header, Ref, RefOr, Required, Response, ResponseBuilder};
use utoipa::{IntoResponses, Modify, OpenApi, ToSchema as _};

use super::{
    archives, code, executions, files, images, processes, receipts, server, sessions, terminals, usage,
    volumes,
};
use crate::problem::{Code, Document};
use crate::shape::{code as shape, event};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Casemate",
        description = "Runs code that nobody trusts, behind exactly the walls that it needs, and leaves a signed receipt."
    ),
    servers((url = "/")),
    paths(
        executions::create,
        executions::list,
        executions::show,
        executions::cancel,
        executions::explain,
        sessions::create,
        sessions::list,
        sessions::show,
        sessions::extend,
        sessions::kill,
        sessions::pause,
        sessions::resume,
        processes::create,
        processes::list,
        processes::show,
        processes::kill,
        processes::output,
        processes::stdin,
        processes::signal,
        terminals::attach,
        files::read,
        files::write,
        files::remove,
        files::list,
        files::stat,
        files::make_directory,
        files::rename,
        files::watch,
        code::run,
        code::create,
        code::list,
        code::remove,
        code::restart,
        archives::download,
        archives::upload,
        volumes::list,
        volumes::remove,
        volumes::save,
        receipts::show,
        receipts::verify,
        images::list,
        images::show,
        images::import,
        images::remove,
        server::health,
        server::ready,
        server::metrics,
        usage::show,
    ),
    components(schemas(event::StartedJson, event::OutputJson, event::ChangedJson, event::BareJson, shape::CodeStartedJson, shape::CodeOutputJson, shape::CodeResultJson, shape::CodeEndedJson)),
    tags(
        (name = "executions", description = "One cell, one program, one receipt."),
        (name = "sessions", description = "One cell for several programs and their files."),
        (name = "processes", description = "Programs in a session."),
        (name = "code", description = "Code of a session that keeps what it defines."),
        (name = "files", description = "Files of a session: below `/work` and `/tmp`, and nowhere else."),
        (name = "volumes", description = "Directories that outlive sessions."),
        (name = "receipts", description = "The signed records of what ran."),
        (name = "images", description = "What cells can have for a root file system."),
        (name = "server", description = "The server itself."),
    ),
    security(("token" = []), ("key" = [])),
    modifiers(&Everywhere),
)]
struct Api;

/// The document, as JSON for people and programs alike.
pub(crate) fn text() -> String {
    Api::openapi().to_pretty_json().unwrap_or_default() + "\n"
}

pub(super) async fn openapi() -> impl IntoResponse {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str())
}

const PAGE: &str = include_str!("docs.html");

/// A page that shows it. It needs nothing from elsewhere, and may load nothing from there.
pub(super) async fn docs() -> impl IntoResponse {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        format!(
            "default-src 'none'; connect-src 'self'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash_of("style"),
            hash_of("script"),
        )
    });
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(PAGE))
}

/// What a browser is told of the one element of this name, so that it believes no other.
fn hash_of(element: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let content = PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    let digest = Sha256::digest(content.map_or("", |(content, _)| content));
    format!("'sha256-{}'", STANDARD.encode(digest))
}

macro_rules! problems {
    ($($(#[$about:meta])* $name:ident = $($code:ident)*;)*) => {$(
        $(#[$about])*
        pub(super) enum $name {}

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                [$(Code::$code),*].into_iter().map(|code| (code.status().as_str().to_owned(), reference(code))).collect()
            }
        }
    )*};
}

problems! {
    /// Of every address that wants to know who asks.
    Asked = Unauthenticated Forbidden Internal;
    /// Of those that take a query.
    Queried = Invalid;
    /// Of those that take a JSON document.
    Documented = Malformed TooSlow TooLarge MediaType Invalid;
    /// Of those that take bytes.
    Sent = Malformed TooSlow TooLarge;
    /// Of those that name something.
    Named = NotFound;
    /// Of those that run something in a cell of its own.
    Admitted = Refused Quota Busy;
    /// Of those for which a session has to be there.
    InSession = NotFound Ended Refused Busy;
    /// Of those that touch the files of a session.
    OnFiles = NotFound Exists TooLarge Ended Invalid Busy NoSpace;
    /// Of those that may find that somebody was there before.
    Conflicting = Exists;
    /// Of those that are for another protocol.
    Switched = Upgrade;
    /// Of those that can be too many at once.
    Crowded = Busy;
}

fn reference(code: Code) -> RefOr<Response> {
    Ref::from_response_name(response_name(code)).into()
}

fn response_name(code: Code) -> String {
    code.status().canonical_reason().unwrap_or_default().replace(' ', "")
}

/// What is the same at every address: whose requests are answered, how they are named, and how it is told that they came to nothing.
struct Everywhere;

impl Modify for Everywhere {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let components = api.components.get_or_insert_default();
        add_security(components);
        add_problems(components);
        for operation in api.paths.paths.values_mut().flat_map(operations) {
            name_request(operation);
            take_no_bytes(operation);
        }
        links::add(api);
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
    operations.into_iter().flatten()
}

fn add_security(components: &mut Components) {
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of `casemate token create`. A server without tokens answers programs on its own machine."))
        .build();
    let key = ApiKey::Header(ApiKeyValue::with_description(
        "X-API-Key",
        "The same, for clients that send it like this.",
    ));
    components.add_security_scheme("token", SecurityScheme::Http(bearer));
    components.add_security_scheme("key", SecurityScheme::ApiKey(key));
}

/// One response for each status that some problem has, with the problems that have it.
fn add_problems(components: &mut Components) {
    components
        .schemas
        .insert(Document::name().into_owned(), <Document<'_> as utoipa::PartialSchema>::schema());
    let names: BTreeSet<String> = Code::ALL.iter().map(|code| response_name(*code)).collect();
    for name in names {
        let codes: Vec<Code> =
            Code::ALL.iter().copied().filter(|code| response_name(*code) == name).collect();
        let meanings: Vec<String> =
            codes.iter().map(|code| format!("`{}`: {}.", code.as_str(), code.title())).collect();
        let content = utoipa::openapi::Content::new(Some(Ref::from_schema_name(Document::name())));
        let mut response = ResponseBuilder::new()
            .description(meanings.join(" "))
            .content("application/problem+json", content)
            .header(REQUEST_ID, request_id());
        if codes.contains(&Code::Unauthenticated) {
            response = response.header("WWW-Authenticate", header_of(Type::String, "How to say who asks"));
        }
        if codes.iter().any(|code| matches!(code, Code::Quota | Code::Busy | Code::InProgress)) {
            response = response.header(
                "Retry-After",
                header_of(Type::Integer, "After how many seconds it is worth trying again"),
            );
        }
        components.responses.insert(name, response.build().into());
    }
}

const REQUEST_ID: &str = "X-Request-Id";

fn request_id() -> Header {
    header_of(Type::String, "The name of the request, for a log line and a report to be brought together")
}

fn header_of(kind: Type, meaning: &str) -> Header {
    HeaderBuilder::new().schema(Some(Object::with_type(kind))).description(Some(meaning)).build()
}

fn name_request(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response.headers.insert(REQUEST_ID.to_owned(), request_id().into());
        }
    }
    let parameters = operation.parameters.get_or_insert_default();
    parameters.push(RefOr::T(name_parameter()));
}

/// No bytes are bytes, too.
fn take_no_bytes(operation: &mut Operation) {
    if let Some(RefOr::T(body)) = &mut operation.request_body
        && !body.content.contains_key("application/json")
    {
        body.required = Some(Required::False);
    }
}

fn name_parameter() -> Parameter {
    ParameterBuilder::new()
        .name(REQUEST_ID)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "What to call the request: up to 64 letters, digits and `-_.`. Otherwise it is given a name.",
        ))
        .schema(Some(Object::with_type(Type::String)))
        .build()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Set, it makes the committed document what it should be.
    const RENEW: &str = "CASEMATE_RENEW";

    #[test]
    fn the_committed_document_is_the_one_that_is_served() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        if std::env::var_os(RENEW).is_some() {
            std::fs::write(&path, text()).expect("writable");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == text(),
            "docs/openapi.json is stale: {RENEW}=1 cargo test -p casemate-service committed_document"
        );
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let api = Api::openapi();
        let operations = api.paths.paths.values().flat_map(|item| {
            [&item.get, &item.put, &item.post, &item.delete, &item.patch].into_iter().flatten()
        });
        let mut names: Vec<&str> =
            operations.map(|operation| operation.operation_id.as_deref().unwrap_or_default()).collect();
        assert!(names.iter().all(|name| !name.is_empty() && !name.contains('_')), "{names:?}");
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_browser_believes_the_page_and_nothing_else() {
        for element in ["style", "script"] {
            assert_eq!(PAGE.matches(&format!("<{element}>")).count(), 1);
            assert!(
                !PAGE.contains(&format!("<{element} ")),
                "{element} with attributes is not what is hashed"
            );
        }
        assert!(!PAGE.contains("http://") && !PAGE.contains("https://"));
    }
}
