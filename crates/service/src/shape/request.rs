//! What a client asks for. Strict: a field that means nothing here is an error, not a wish that is not heard.

use std::collections::BTreeMap;
use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::request::{CodeSource, Component, Isolation, Language, RequestDraft, Stdin, Workload};
use casemate_engine::images::Images;
use casemate_engine::{Entry, Input, Io};
use serde::Deserialize;

use super::files::Collected;
use crate::problem::{Code, Problem};

/// What is the same for executions and sessions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Walls {
    /// `low`, `medium`, `high` or `critical`.
    pub(crate) risk: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) needs: Vec<String>,
    /// Of the store, by name or digest; `host` if none is named.
    pub(crate) image: Option<String>,
    /// Exactly this stack.
    pub(crate) on: Option<String>,
    /// This wall, or a stronger one.
    pub(crate) at_least: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: Option<String>,
    /// By kind: `{"memory": "256M", "wall-time": "10s", "pids": 64}`.
    pub(crate) limits: BTreeMap<String, Amount>,
    pub(crate) egress: Vec<String>,
    pub(crate) secrets: Vec<String>,
}

/// As on the command line.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a limit such as \"256M\", \"10s\" or 64")]
pub(crate) enum Amount {
    Text(String),
    Whole(u64),
    Decimal(f64),
}

/// Something to run. Exactly one of `command`, `code` and `component`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Program {
    /// A program of the image, with its arguments.
    pub(crate) command: Option<Vec<String>>,
    /// In the language of `language`.
    pub(crate) code: Option<String>,
    /// `python`, `javascript` or `shell`; Python if none is named.
    pub(crate) language: Option<String>,
    /// A WASM component, in base64.
    pub(crate) component: Option<String>,
    /// For code and components.
    pub(crate) args: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileIn {
    pub(crate) path: String,
    /// As text, or in base64.
    pub(crate) content: Option<String>,
    pub(crate) content_base64: Option<String>,
    pub(crate) mode: Option<u32>,
}

macro_rules! body {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? } with { $($more:ident: $of:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $(#[serde(default)] pub(crate) $field: $kind,)*
            $(#[serde(default)] pub(crate) $more: $of,)*
        }
    };
}

body! {
    /// `POST /v1/executions`, and `POST /v1/explain`. Flat, because `flatten` and strictness exclude each other.
    Execution {
        command: Option<Vec<String>>, code: Option<String>, language: Option<String>, component: Option<String>, args: Vec<String>,
        stdin: Option<String>, stdin_base64: Option<String>,
        files_in: Vec<FileIn>, files_out: Vec<String>, capabilities: Vec<String>, deterministic: bool,
        stream: bool,
    } with {
        risk: Option<String>, kind: Option<String>, tags: Vec<String>, needs: Vec<String>, image: Option<String>,
        on: Option<String>, at_least: Option<String>, env: BTreeMap<String, String>, cwd: Option<String>,
        limits: BTreeMap<String, Amount>, egress: Vec<String>, secrets: Vec<String>,
    }
}

body! {
    /// `POST /v1/sessions`
    NewSession {
        ttl: Option<Amount>, idle_timeout: Option<Amount>, metadata: BTreeMap<String, String>,
    } with {
        risk: Option<String>, kind: Option<String>, tags: Vec<String>, needs: Vec<String>, image: Option<String>,
        on: Option<String>, at_least: Option<String>, env: BTreeMap<String, String>, cwd: Option<String>,
        limits: BTreeMap<String, Amount>, egress: Vec<String>, secrets: Vec<String>,
    }
}

body! {
    /// `POST /v1/sessions/{id}/processes`
    NewProcess {
        command: Option<Vec<String>>, code: Option<String>, language: Option<String>, args: Vec<String>,
        stdin: bool, terminal: Option<Terminal>, stream: bool, background: bool, tag: Option<String>,
    } with {
        env: BTreeMap<String, String>, cwd: Option<String>, limits: BTreeMap<String, Amount>,
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Terminal {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

impl Execution {
    /// The request, and what goes with it.
    pub(crate) fn into_draft(
        self,
        tenant: &str,
        images: &Images,
    ) -> Result<(RequestDraft, Io, Option<Collected>), Problem> {
        let program = Program {
            command: self.command,
            code: self.code,
            language: self.language,
            component: self.component,
            args: self.args,
        };
        let walls = Walls {
            risk: self.risk,
            kind: self.kind,
            tags: self.tags,
            needs: self.needs,
            image: self.image,
            on: self.on,
            at_least: self.at_least,
            env: self.env,
            cwd: self.cwd,
            limits: self.limits,
            egress: self.egress,
            secrets: self.secrets,
        };
        let mut draft = RequestDraft::new(program.into_workload()?);
        walls.fill(&mut draft, tenant, images)?;
        draft.deterministic = self.deterministic;
        draft.capabilities = parse_all(&self.capabilities)?;
        let mut io = Io::default();
        let collected = (!self.files_out.is_empty()).then(Collected::default);
        if let Some(collected) = &collected {
            io.outbox = Some(Box::new(collected.collector(self.files_out.clone())));
        }
        draft.files_out = self.files_out;
        if let Some(stdin) = content("stdin", self.stdin, self.stdin_base64)? {
            draft.stdin = Stdin::Provided;
            io.stdin = Some(Box::new(std::io::Cursor::new(stdin)));
        }
        for file in self.files_in {
            let bytes = content(&file.path, file.content, file.content_base64)?.unwrap_or_default();
            draft.files_in.push(file.path.clone());
            let mode = file.mode.unwrap_or(0o644) & 0o777;
            let entry = Entry::File { mode, size: bytes.len() as u64 };
            let above = parents(&file.path, &io.inputs);
            draft.files_in.extend(above.iter().map(|input| input.path.clone()));
            io.inputs.extend(above);
            io.inputs.push(Input { path: file.path, entry, content: Some(in_memory(&bytes)?) });
        }
        Ok((draft, io, collected))
    }
}

impl NewSession {
    pub(crate) fn into_draft(self, tenant: &str, images: &Images) -> Result<RequestDraft, Problem> {
        let walls = Walls {
            risk: self.risk,
            kind: self.kind,
            tags: self.tags,
            needs: self.needs,
            image: self.image,
            on: self.on,
            at_least: self.at_least,
            env: self.env,
            cwd: self.cwd,
            limits: self.limits,
            egress: self.egress,
            secrets: self.secrets,
        };
        let mut draft = RequestDraft::new(Workload::Session);
        walls.fill(&mut draft, tenant, images)?;
        Ok(draft)
    }
}

impl NewProcess {
    /// What is decided by the session is filled in there.
    pub(crate) fn into_draft(self) -> Result<RequestDraft, Problem> {
        let program = Program {
            command: self.command,
            code: self.code,
            language: self.language,
            component: None,
            args: self.args,
        };
        let mut draft = RequestDraft::new(program.into_workload()?);
        draft.env = self.env.into_iter().collect();
        draft.cwd = self.cwd;
        draft.limits = limits(&self.limits)?;
        Ok(draft)
    }
}

impl Walls {
    pub(crate) fn fill(self, draft: &mut RequestDraft, tenant: &str, images: &Images) -> Result<(), Problem> {
        draft.tenant = Some(tenant.to_owned());
        draft.isolation = match (&self.on, &self.at_least) {
            (Some(_), Some(_)) => {
                return Err(Problem::new(
                    Code::Invalid,
                    "both `on` and `at_least` are given",
                    "give one of them",
                ));
            }
            (Some(stack), None) => Isolation::Exactly(stack.parse()?),
            (None, Some(wall)) => Isolation::AtLeast(wall.parse()?),
            (None, None) => Isolation::Auto,
        };
        if let Some(risk) = &self.risk {
            draft.risk = risk.parse()?;
        }
        draft.kind = self.kind.as_deref().map(str::parse).transpose()?;
        draft.needs = parse_all(&self.needs)?;
        draft.tags = self.tags;
        if let Some(image) = self.image.as_deref().filter(|image| *image != "host") {
            draft.image = images.find(image)?;
        }
        draft.env = self.env.into_iter().collect();
        draft.cwd = self.cwd;
        draft.limits = limits(&self.limits)?;
        draft.egress = self.egress;
        draft.secrets = self.secrets;
        Ok(())
    }
}

impl Program {
    fn into_workload(self) -> Result<Workload, Problem> {
        let which = |reason: &str| {
            Err(Problem::new(Code::Invalid, reason, "give exactly one of `command`, `code` and `component`"))
        };
        match (self.command, self.code, self.component) {
            (None, None, None) => which("there is nothing to run"),
            (Some(argv), None, None) => {
                if self.language.is_some() || !self.args.is_empty() {
                    return which("`language` and `args` belong to code");
                }
                Ok(Workload::Command { argv })
            }
            (None, Some(code), None) => {
                let language = self.language.as_deref().map(str::parse).transpose()?;
                let language = language.unwrap_or(Language::Python);
                Ok(Workload::Code { language, source: CodeSource::Inline(code), args: self.args })
            }
            (None, None, Some(component)) => {
                let component = Component::new("component.wasm", decode("component", &component)?)?;
                Ok(Workload::Component { component, args: self.args })
            }
            _ => which("there is more than one thing to run"),
        }
    }
}

impl Amount {
    pub(crate) fn read(&self, kind: LimitKind) -> Result<u64, Problem> {
        let text = match self {
            Amount::Text(text) => text.clone(),
            Amount::Whole(number) => number.to_string(),
            Amount::Decimal(number) => number.to_string(),
        };
        Ok(kind.check(kind.parse(&text)?)?)
    }
}

fn limits(asked: &BTreeMap<String, Amount>) -> Result<LimitsDraft, Problem> {
    let mut limits = LimitsDraft::new();
    for (name, amount) in asked {
        let kind: LimitKind = name.parse()?;
        limits.set(kind, amount.read(kind)?);
    }
    Ok(limits)
}

fn parse_all<T: std::str::FromStr>(words: &[String]) -> Result<Vec<T>, Problem>
where
    Problem: From<T::Err>,
{
    words.iter().map(|word| Ok(word.parse()?)).collect()
}

/// Text, or bytes in base64, or nothing.
fn content(what: &str, text: Option<String>, base64: Option<String>) -> Result<Option<Vec<u8>>, Problem> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(Problem::new(
            Code::Invalid,
            format!("{what} is given twice"),
            "give it as text or in base64, not both",
        )),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(base64)) => decode(what, &base64).map(Some),
        (None, None) => Ok(None),
    }
}

fn decode(what: &str, base64: &str) -> Result<Vec<u8>, Problem> {
    STANDARD.decode(base64).map_err(|error| {
        Problem::new(
            Code::Invalid,
            format!("{what} is not base64: {error}"),
            "use the standard alphabet, with padding",
        )
    })
}

/// The directories above a file that are not there yet.
fn parents(path: &str, there: &[Input]) -> Vec<Input> {
    let mut missing = Vec::new();
    for (at, _) in path.match_indices('/').filter(|(at, _)| *at > 0) {
        let parent = &path[..at];
        let known = matches!(parent, "/work" | "/tmp") || there.iter().any(|input| input.path == parent);
        if !known {
            let entry = Entry::Directory { mode: 0o755 };
            missing.push(Input { path: parent.to_owned(), entry, content: None });
        }
    }
    missing
}

/// A file that is nowhere but in memory.
fn in_memory(bytes: &[u8]) -> Result<std::fs::File, Problem> {
    use std::io::Seek;
    let failed = |error: std::io::Error| Problem::internal(format!("no memory for a file: {error}"));
    let made = rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = std::fs::File::from(made.map_err(|error| failed(error.into()))?);
    file.write_all(bytes).and_then(|()| file.rewind()).map_err(failed)?;
    Ok(file)
}

/// What runs, for a list of programs.
pub(crate) fn shown(workload: &Workload) -> Vec<String> {
    match workload {
        Workload::Command { argv } => argv.clone(),
        Workload::Code { language, .. } => vec![language.to_string()],
        Workload::Component { component, .. } => vec![component.name().to_owned()],
        Workload::Session => Vec::new(),
    }
}
