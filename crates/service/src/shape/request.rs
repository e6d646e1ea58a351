//! What a client asks for. Strict: a field that means nothing here is an error, not a wish that is not heard.

use std::collections::BTreeMap;
use std::io::Write;
use std::mem::take;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_core::limits::{LimitKind, LimitsDraft};
use casemate_core::request::{CodeSource, Component, Isolation, Language, RequestDraft, Stdin, Workload};
use casemate_engine::images::Images;
use casemate_engine::{Entry, Input, Io};
use serde::Deserialize;
use utoipa::ToSchema;

use super::files::Collected;
use super::{object, words};
use crate::problem::{Code, Problem};

/// An amount as on the command line.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a limit such as \"256M\", \"10s\" or 64")]
pub(crate) enum Amount {
    Text(String),
    Whole(u64),
    Decimal(f64),
}

/// A body with everything in it that says behind which walls something runs. Flat, because `flatten` and strictness exclude each other.
macro_rules! behind_walls {
    ($(#[$about:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $kind:ty,)* }) => {
        #[derive(Debug, Clone, Default, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub(crate) struct $name {
            $(#[serde(default)] $(#[$of])* pub(crate) $field: $kind,)*
            /// How much harm is expected of it; `medium` unless something else is said.
            #[serde(default)]
            #[schema(value_type = Option<words::Risk>)]
            pub(crate) risk: Option<String>,
            /// What sort of tool it is.
            #[serde(default)]
            #[schema(value_type = Option<words::Kind>)]
            pub(crate) kind: Option<String>,
            /// Words of the policy.
            #[serde(default)]
            pub(crate) tags: Vec<String>,
            /// What it cannot do without, and not every wall can give.
            #[serde(default)]
            #[schema(value_type = Vec<words::Need>)]
            pub(crate) needs: Vec<String>,
            /// Of the store, by name or digest; `host` if none is named.
            #[serde(default)]
            #[schema(example = "host")]
            pub(crate) image: Option<String>,
            /// Exactly this stack.
            #[serde(default)]
            #[schema(value_type = Option<words::Stack>)]
            pub(crate) on: Option<String>,
            /// This wall, or a stronger one.
            #[serde(default)]
            #[schema(value_type = Option<words::Wall>)]
            pub(crate) at_least: Option<String>,
            /// Environment variables. There are no others.
            #[serde(default)]
            #[schema(example = json!({"LANG": "C.UTF-8"}))]
            pub(crate) env: BTreeMap<String, String>,
            /// Where it begins: below `/work` or `/tmp`.
            #[serde(default)]
            #[schema(example = "/work")]
            pub(crate) cwd: Option<String>,
            /// What it may use, by kind.
            #[serde(default)]
            #[schema(value_type = words::Limits)]
            pub(crate) limits: BTreeMap<String, Amount>,
            /// Hosts and ports that it may connect to.
            #[serde(default)]
            pub(crate) egress: Vec<String>,
            /// Names of secrets, and the hosts that they are for.
            #[serde(default)]
            pub(crate) secrets: Vec<String>,
        }

        impl $name {
            fn take_walls(&mut self) -> Walls {
                Walls {
                    risk: self.risk.take(),
                    kind: self.kind.take(),
                    tags: take(&mut self.tags),
                    needs: take(&mut self.needs),
                    image: self.image.take(),
                    on: self.on.take(),
                    at_least: self.at_least.take(),
                    env: take(&mut self.env),
                    cwd: self.cwd.take(),
                    limits: take(&mut self.limits),
                    egress: take(&mut self.egress),
                    secrets: take(&mut self.secrets),
                }
            }
        }
    };
}

behind_walls! {
    /// Something to run: exactly one of `command`, `code` and `component`.
    #[schema(as = NewExecution, examples(
        json!({"code": "print(6 * 7)"}),
        json!({"command": ["wc", "-c"], "stdin": "abc", "limits": {"wall-time": "2s"}})
    ))]
    Execution {
        /// A program of the image, with its arguments.
        #[schema(example = json!(["wc", "-c"]))]
        command: Option<Vec<String>>,
        /// In the language of `language`.
        #[schema(example = "print(6 * 7)")]
        code: Option<String>,
        /// Python if none is named.
        #[schema(value_type = Option<words::Language>)]
        language: Option<String>,
        /// A WASM component, in base64.
        component: Option<String>,
        /// For code and components.
        args: Vec<String>,
        /// Standard input, as text.
        stdin: Option<String>,
        /// Standard input, in base64.
        stdin_base64: Option<String>,
        /// Put in before it begins.
        #[serde(deserialize_with = "object::list")]
        files_in: Vec<FileIn>,
        /// Paths of files and directories that come with the answer.
        #[schema(example = json!(["/work/out"]))]
        files_out: Vec<String>,
        /// What a component may observe.
        #[schema(value_type = Vec<words::Capability>)]
        capabilities: Vec<String>,
        /// The same every time. For components.
        deterministic: bool,
        /// Answer with events as things happen.
        stream: bool,
    }
}

/// A volume of the tenant, made if there is none of this name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"name": "data", "path": "/work/data"})))]
pub(crate) struct VolumeIn {
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")]
    pub(crate) name: String,
    /// Where it is in the session: below `/work` or `/tmp`.
    pub(crate) path: String,
    /// Whether what the session changes is kept when it ends. One session at a time can do that.
    #[serde(default = "kept")]
    pub(crate) keep: bool,
}

const fn kept() -> bool {
    true
}

behind_walls! {
    /// A session, and what holds for everything in it.
    #[schema(examples(json!({"ttl": "10m", "idle_timeout": "2m", "metadata": {"purpose": "trial"}})))]
    NewSession {
        /// How long it lives, unless it is extended; five minutes if nothing is said, a day at most.
        #[schema(value_type = Option<words::Duration>)]
        ttl: Option<Amount>,
        /// How long it lives when nobody uses it.
        #[schema(value_type = Option<words::Duration>)]
        idle_timeout: Option<Amount>,
        /// For you to find it by. Up to 64 entries, and 16 KiB.
        #[schema(example = json!({"purpose": "trial"}))]
        metadata: BTreeMap<String, String>,
        /// Directories that outlive it.
        volumes: Vec<VolumeIn>,
    }
}

/// A program for a session: exactly one of `command` and `code`. Nothing in it can ask for more than the session was granted.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"command": ["ls", "-l", "/work"]}), json!({"code": "print(6 * 7)", "background": true})))]
pub(crate) struct NewProcess {
    /// A program of the image, with its arguments.
    #[serde(default)]
    #[schema(example = json!(["ls", "-l"]))]
    pub(crate) command: Option<Vec<String>>,
    /// In the language of `language`.
    #[serde(default)]
    pub(crate) code: Option<String>,
    /// Python if none is named.
    #[serde(default)]
    #[schema(value_type = Option<words::Language>)]
    pub(crate) language: Option<String>,
    /// For code.
    #[serde(default)]
    pub(crate) args: Vec<String>,
    /// Somebody will write to its standard input.
    #[serde(default)]
    pub(crate) stdin: bool,
    /// It has a terminal of this size.
    #[serde(default, deserialize_with = "object::perhaps")]
    pub(crate) terminal: Option<Terminal>,
    /// Answer with events as things happen.
    #[serde(default)]
    pub(crate) stream: bool,
    /// Answer when it has started, not when it has ended.
    #[serde(default)]
    pub(crate) background: bool,
    /// For you to find it by.
    #[serde(default)]
    pub(crate) tag: Option<String>,
    /// Environment variables, besides those of the session.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Where it begins.
    #[serde(default)]
    #[schema(example = "/work")]
    pub(crate) cwd: Option<String>,
    /// What it may use, by kind.
    #[serde(default)]
    #[schema(value_type = words::Limits)]
    pub(crate) limits: BTreeMap<String, Amount>,
}

/// A file that is put in: with `content`, `content_base64`, or nothing in it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileIn {
    /// Below `/work` or `/tmp`. Directories above it are made.
    #[schema(example = "/work/data.txt")]
    pub(crate) path: String,
    /// As text.
    #[schema(example = "text\n")]
    pub(crate) content: Option<String>,
    /// In base64.
    pub(crate) content_base64: Option<String>,
    /// In octal; 644 if none is named.
    #[schema(example = "644", pattern = "^[0-7]{1,3}$")]
    pub(crate) mode: Option<String>,
}

/// In characters.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Terminal {
    #[schema(example = 24)]
    pub(crate) rows: u16,
    #[schema(example = 80)]
    pub(crate) columns: u16,
}

/// More time for a session, counted from now.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"ttl": "10m"})))]
pub(crate) struct Extension {
    #[schema(value_type = words::Duration)]
    pub(crate) ttl: Amount,
}

/// A signal for a program and everything that it has started.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"signal": 15})))]
pub(crate) struct Signal {
    /// Its number.
    #[schema(minimum = 1, maximum = 64)]
    pub(crate) signal: u8,
}

/// What is the same for executions and sessions.
struct Walls {
    risk: Option<String>,
    kind: Option<String>,
    tags: Vec<String>,
    needs: Vec<String>,
    image: Option<String>,
    on: Option<String>,
    at_least: Option<String>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    limits: BTreeMap<String, Amount>,
    egress: Vec<String>,
    secrets: Vec<String>,
}

/// What there is to run.
struct Program {
    command: Option<Vec<String>>,
    code: Option<String>,
    language: Option<String>,
    component: Option<String>,
    args: Vec<String>,
}

impl Execution {
    /// The request, and what goes with it.
    pub(crate) fn into_draft(
        mut self,
        tenant: &str,
        images: &Images,
    ) -> Result<(RequestDraft, Io, Option<Collected>), Problem> {
        let walls = self.take_walls();
        let program = Program {
            command: self.command,
            code: self.code,
            language: self.language,
            component: self.component,
            args: self.args,
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
            let mode = mode(file.mode.as_deref())?;
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
    pub(crate) fn into_draft(mut self, tenant: &str, images: &Images) -> Result<RequestDraft, Problem> {
        let walls = self.take_walls();
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
    fn fill(self, draft: &mut RequestDraft, tenant: &str, images: &Images) -> Result<(), Problem> {
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

/// In octal, as everybody writes it.
pub(crate) fn mode(text: Option<&str>) -> Result<u32, Problem> {
    let Some(text) = text else { return Ok(0o644) };
    let is_octal = text.len() <= 3 && text.bytes().all(|digit| digit.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
    mode.ok_or_else(|| Problem::new(Code::Invalid, "this is not a mode", "write it in octal, such as 644"))
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
