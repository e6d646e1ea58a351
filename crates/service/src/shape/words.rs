//! Schemas of what has no type of its own in the API: above all closed vocabularies. They are those of the core, so that what is documented and what is understood cannot drift apart.

use casemate_core::limits::{self, Unit};
use casemate_core::{outcome, request, stack};
use utoipa::openapi::schema::{AdditionalProperties, KnownFormat, Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use crate::interpreter;

macro_rules! schemas {
    ($($(#[$about:meta])* $name:ident = $schema:expr;)*) => {$(
        $(#[$about])*
        pub(crate) enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $name {}
    )*};
}

schemas! {
    Risk = one_of(request::Risk::ALL);
    Kind = one_of(request::Kind::ALL);
    Language = one_of(request::Language::ALL);
    Interpreted = one_of(interpreter::Language::ALL.map(interpreter::Language::as_str));
    Need = one_of(request::Need::ALL);
    Capability = one_of(request::Capability::ALL);
    Wall = one_of(stack::Wall::ALL);
    /// Any stack there is, as one word.
    Stack = one_of(stack::Stack::all());
    Class = one_of(stack::Class::ALL);
    Cause = one_of(outcome::Cause::ALL);
    LimitKind = one_of(limits::LimitKind::ALL);
    Origin = one_of(limits::Origin::ALL);
    State = one_of(["running", "exited", "signaled", "killed", "refused", "failed", "interrupted"]);
    /// A body that is not JSON.
    Bytes = ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)))
        .build();
    Duration = amount(Unit::Milliseconds);
    /// An amount for each kind of limit, and nothing else.
    Limits = limits::LimitKind::ALL
        .into_iter()
        .fold(ObjectBuilder::new(), |limits, kind| limits.property(kind.as_str(), amount(kind.unit())))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .examples([serde_json::json!({"memory": "256M", "wall-time": "10s", "pids": 64})])
        .build();
}

fn one_of(words: impl IntoIterator<Item = impl ToString>) -> Object {
    let words = words.into_iter().map(|word| word.to_string());
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build()
}

fn amount(unit: Unit) -> Object {
    let (meaning, example) = match unit {
        Unit::Milliseconds => ("Seconds, or with a unit: ms, s, m or h", "10s"),
        Unit::MilliCpus => ("Processors, such as 0.5", "0.5"),
        Unit::Bytes => ("Bytes, or with a unit: K, M, G or T", "256M"),
        Unit::BytesPerSecond => ("Bytes per second, or with a unit: K, M, G or T", "10M/s"),
        Unit::Count => ("How many", "64"),
    };
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Number]))
        .minimum(Some(0))
        .description(Some(meaning))
        .examples([example])
        .build()
}
