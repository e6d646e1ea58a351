//! The JSON of records. Members are declared in the order of their keys, because that is how canonical JSON has them and
//! nobody sorts them afterwards.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use serde::{Serialize, Serializer};

#[derive(Serialize)]
pub(super) struct Asked<'a> {
    pub(super) capabilities: Vec<&'a str>,
    pub(super) cwd: Option<&'a str>,
    pub(super) deterministic: bool,
    pub(super) egress: &'a [String],
    pub(super) env_names: Vec<Cow<'a, str>>,
    pub(super) files_in: Vec<Cow<'a, str>>,
    pub(super) files_out: Vec<Cow<'a, str>>,
    pub(super) image: Cow<'a, str>,
    pub(super) isolation: Cow<'a, str>,
    pub(super) kind: Option<&'a str>,
    pub(super) limits: BTreeMap<&'a str, u64>,
    pub(super) needs: Vec<&'a str>,
    pub(super) risk: &'a str,
    pub(super) secrets: &'a [String],
    pub(super) stdin: bool,
    pub(super) tags: &'a BTreeSet<String>,
    pub(super) tenant: &'a str,
    pub(super) workload: AskedWorkload<'a>,
}

/// One kind of workload: what belongs to another is left out.
#[derive(Default, Serialize)]
pub(super) struct AskedWorkload<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) argv: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) argv_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) argv_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) argv_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) component: Option<AskedComponent<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) language: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<AskedSource<'a>>,
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
}

#[derive(Serialize)]
pub(super) struct AskedComponent<'a> {
    pub(super) bytes: usize,
    pub(super) name: Cow<'a, str>,
    pub(super) sha256: String,
}

#[derive(Serialize)]
pub(super) struct AskedSource<'a> {
    pub(super) bytes: usize,
    pub(super) form: &'a str,
    pub(super) name: Option<&'a str>,
    pub(super) sha256: String,
}

#[derive(Serialize)]
pub(super) struct Decision<'a> {
    pub(super) class: &'a str,
    pub(super) image: Cow<'a, str>,
    pub(super) limits: BTreeMap<&'a str, DecidedLimit<'a>>,
    pub(super) passed_over: Vec<Other<'a>>,
    pub(super) stack: Vec<&'a str>,
    pub(super) unbounded: Vec<&'a str>,
}

#[derive(Serialize)]
pub(super) struct DecidedLimit<'a> {
    pub(super) origin: &'a str,
    pub(super) value: u64,
}

/// A stack that was passed over.
#[derive(Serialize)]
pub(super) struct Other<'a> {
    pub(super) reason: &'a str,
    pub(super) stack: Shown<'a, casemate_core::stack::Stack>,
}

/// How an execution ended.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Ended<'a> {
    Exited { code: i32, kind: &'a str },
    Signaled { kind: &'a str, signal: i32 },
    Killed { cause: &'a str, kind: &'a str, limit: Option<u64>, peak: Option<u64> },
    Refused { hint: Cow<'a, str>, kind: &'a str, reason: Cow<'a, str> },
    Failed { kind: &'a str, reason: Cow<'a, str> },
}

/// A limit that was hit.
#[derive(Serialize)]
pub(super) struct Hit<'a> {
    pub(super) limit: &'a str,
    pub(super) peak: Option<u64>,
    pub(super) value: u64,
}

/// The program that was executed.
#[derive(Serialize)]
pub(super) struct Identified<'a> {
    pub(super) path: &'a str,
    pub(super) sha256: &'a str,
}

/// What somebody outside wanted of a session's files.
#[derive(Serialize)]
pub(super) struct AskedOfFiles<'a> {
    pub(super) operation: &'a str,
    pub(super) path: Cow<'a, str>,
    pub(super) to: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
pub(super) struct DoneToFiles<'a> {
    pub(super) bytes: Option<u64>,
    pub(super) operation: &'a str,
    pub(super) path: Cow<'a, str>,
    pub(super) result: &'a str,
    pub(super) sha256: Option<String>,
    pub(super) to: Option<Cow<'a, str>>,
}

/// Code that an interpreter was given.
#[derive(Serialize)]
pub(super) struct GivenCode<'a> {
    pub(super) bytes: u64,
    pub(super) language: Cow<'a, str>,
    pub(super) process: &'a str,
    pub(super) result: Cow<'a, str>,
    pub(super) sha256: String,
}

#[derive(Serialize)]
pub(super) struct Truncated {
    pub(super) stderr: bool,
    pub(super) stdout: bool,
}

#[derive(Serialize)]
pub(super) struct Used {
    pub(super) cpu_us: Option<u64>,
    pub(super) disk_bytes: Option<u64>,
    pub(super) memory_peak_bytes: Option<u64>,
    pub(super) pids_peak: Option<u64>,
    pub(super) wall_us: Option<u64>,
}

/// What is written as it is shown, without a string in between.
pub(super) struct Shown<'a, T>(pub(super) &'a T);

impl<T: Display> Serialize for Shown<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self.0)
    }
}
