//! What a caller asks for. A [`RequestDraft`] holds whatever came in; a [`Request`] holds only what makes sense,
//! and everything after this module trusts it.

mod check;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use crate::image::{ImageDigest, ImageRef};
pub use crate::words::Invalid;

use crate::limits::{LimitKind, LimitsDraft};
use crate::stack::{Stack, Wall};
use crate::words::words;

/// The kernel's `MAX_ARG_STRLEN`, less the terminating NUL: one argument or environment string.
pub const MAX_ARG_BYTES: usize = 128 * 1024 - 1;
/// All arguments and environment strings together; below every kernel's `ARG_MAX` for an 8 MiB stack.
pub const MAX_ARGS_TOTAL_BYTES: usize = 1024 * 1024;
/// A source file that travels with the request.
pub const MAX_SOURCE_BYTES: usize = 8 * 1024 * 1024;
/// A WASM component that travels with the request.
pub const MAX_COMPONENT_BYTES: usize = 64 * 1024 * 1024;
pub const MAX_ENV_VARS: usize = 256;
pub const MAX_TAGS: usize = 64;
/// Files in, and files out.
pub const MAX_FILES: usize = 256;
/// Egress rules, and secrets.
pub const MAX_GRANTS: usize = 64;
/// The tenant of a request that names none.
pub const LOCAL_TENANT: &str = "local";

words! {
    /// How much harm is expected of the code. Ordered: a higher risk never gets weaker walls.
    #[derive(Default)]
    pub enum Risk: "risk" {
        Low = "low",
        #[default]
        Medium = "medium",
        High = "high",
        Critical = "critical",
    }
}

words! {
    /// What sort of tool is run.
    pub enum Kind: "kind" {
        PureCompute = "pure-compute",
        FileOps = "file-ops",
        BuildTest = "build-test",
        UntrustedScript = "untrusted-script",
        Model = "model",
    }
}

words! {
    pub enum Language: "language" {
        Python = "python",
        Javascript = "javascript",
        Shell = "shell",
    }
}

words! {
    /// Something a workload cannot do without, and which not every wall can give.
    pub enum Need: "need" {
        Ptrace = "ptrace",
        Bpf = "bpf",
        NestedContainers = "nested-containers",
        FullLinux = "full-linux",
        Fork = "fork",
        Root = "root",
    }
}

words! {
    /// What a WASM component may observe besides what it is given. Programs and interpreters have both everywhere.
    pub enum Capability: "capability" {
        Clocks = "clocks",
        Random = "random",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    Command {
        argv: Vec<String>,
    },
    Code {
        language: Language,
        source: CodeSource,
        args: Vec<String>,
    },
    Component {
        component: Component,
        args: Vec<String>,
    },
    /// A cell for programs that are named later ([`crate::plan::Plan::within`]).
    Session,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodeSource {
    /// Handed to the interpreter as an argument.
    Inline(String),
    /// Placed in the cell under this name; bytes, because not every source file is UTF-8.
    File { name: String, bytes: Vec<u8> },
}

/// A WASM component or module. Cheap to copy: whoever calls one often makes it once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component(Arc<ComponentParts>);

#[derive(PartialEq, Eq)]
struct ComponentParts {
    name: String,
    bytes: Vec<u8>,
    digest: [u8; 32],
}

impl Component {
    /// Looks at the beginning of the bytes and at how many there are. Whether they mean anything, a compiler has to tell.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Result<Component, Invalid> {
        let name = name.into();
        check::component(&name, &bytes)?;
        let digest = crate::evidence::sha256(&bytes);
        Ok(Component(Arc::new(ComponentParts { name, bytes, digest })))
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// SHA-256 of the bytes.
    pub fn digest(&self) -> [u8; 32] {
        self.0.digest
    }
}

impl fmt::Debug for ComponentParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.name, self.bytes.len())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stdin {
    #[default]
    Empty,
    Provided,
}

/// How the caller constrains the choice of walls. The policy's floors hold in every case.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    #[default]
    Auto,
    AtLeast(Wall),
    Exactly(Stack),
}

/// An absolute path beneath `/work` or `/tmp`, without `..`, in its shortest spelling.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestPath(String);

/// A request as it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestDraft {
    /// `None` is the tenant `local`.
    pub tenant: Option<String>,
    pub workload: Workload,
    pub risk: Risk,
    pub kind: Option<Kind>,
    pub tags: Vec<String>,
    pub needs: Vec<Need>,
    pub image: ImageRef,
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    pub files_in: Vec<String>,
    pub files_out: Vec<String>,
    pub stdin: Stdin,
    /// `host:port`
    pub egress: Vec<String>,
    /// `NAME@host`
    pub secrets: Vec<String>,
    pub capabilities: Vec<Capability>,
    pub limits: LimitsDraft,
    pub isolation: Isolation,
    pub deterministic: bool,
}

/// A request that makes sense. It may still be refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    tenant: String,
    workload: Workload,
    risk: Risk,
    kind: Option<Kind>,
    tags: BTreeSet<String>,
    needs: BTreeSet<Need>,
    image: ImageRef,
    env: Vec<(String, String)>,
    cwd: Option<String>,
    files_in: Vec<GuestPath>,
    files_out: Vec<GuestPath>,
    stdin: Stdin,
    egress: Vec<String>,
    secrets: Vec<String>,
    capabilities: BTreeSet<Capability>,
    limits: LimitsDraft,
    isolation: Isolation,
    deterministic: bool,
}

/// Everything about a request that decides where it runs and under which limits, and nothing of what it is about. Requests of
/// one shape are all decided alike, so an engine need not decide about each of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    tenant: String,
    workload: WorkloadShape,
    risk: Risk,
    kind: Option<Kind>,
    tags: BTreeSet<String>,
    needs: BTreeSet<Need>,
    image: ImageRef,
    isolation: Isolation,
    limits: LimitsDraft,
    /// Which clauses it has: a working directory, files in, files out, egress, secrets, determinism.
    clauses: [bool; 6],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WorkloadShape {
    Command,
    Code(Language),
    Component,
    Session,
}

impl RequestDraft {
    /// A request for this workload and nothing else: no files, no environment, no network, no secrets, medium
    /// risk, default limits, walls left to the policy.
    pub fn new(workload: Workload) -> RequestDraft {
        RequestDraft {
            tenant: None,
            workload,
            risk: Risk::default(),
            kind: None,
            tags: Vec::new(),
            needs: Vec::new(),
            image: ImageRef::default(),
            env: Vec::new(),
            cwd: None,
            files_in: Vec::new(),
            files_out: Vec::new(),
            stdin: Stdin::default(),
            egress: Vec::new(),
            secrets: Vec::new(),
            capabilities: Vec::new(),
            limits: LimitsDraft::new(),
            isolation: Isolation::default(),
            deterministic: false,
        }
    }
}

impl Request {
    pub fn new(draft: RequestDraft) -> Result<Request, Invalid> {
        let tenant = draft.tenant.unwrap_or_else(|| LOCAL_TENANT.to_owned());
        check::name("tenant", &tenant)?;
        check::workload(&draft.workload)?;
        check::env(&draft.env)?;
        check::argument_total(&draft.workload, &draft.env)?;
        check::image(&draft.image)?;
        check::tags(&draft.tags)?;
        check::egress(&draft.egress)?;
        check::secrets(&draft.secrets)?;
        check::capabilities(&draft.workload, &draft.capabilities)?;
        check::determinism(draft.deterministic, &draft.files_in, &draft.files_out)?;
        for (kind, value) in draft.limits.iter() {
            kind.check(value)?;
        }
        Ok(Request {
            tenant,
            workload: draft.workload,
            risk: draft.risk,
            kind: draft.kind,
            tags: draft.tags.into_iter().collect(),
            needs: draft.needs.into_iter().collect(),
            image: draft.image,
            env: draft.env,
            cwd: draft.cwd.map(|path| check::cwd(&path)).transpose()?,
            files_in: check::files("in", &draft.files_in)?,
            files_out: check::files("out", &draft.files_out)?,
            stdin: draft.stdin,
            egress: draft.egress,
            secrets: draft.secrets,
            capabilities: draft.capabilities.into_iter().collect(),
            limits: draft.limits,
            isolation: draft.isolation,
            deterministic: draft.deterministic,
        })
    }

    /// The same, with this limit asked for.
    pub fn with_limit(mut self, kind: LimitKind, value: u64) -> Result<Request, Invalid> {
        self.limits.set(kind, kind.check(value)?);
        Ok(self)
    }

    /// See [`Shape`].
    pub fn shape(&self) -> Shape {
        // Every field is named, so that a new one has to be thought of here.
        let Request {
            tenant,
            workload,
            risk,
            kind,
            tags,
            needs,
            image,
            env: _,
            cwd,
            files_in,
            files_out,
            stdin: _,
            egress,
            secrets,
            capabilities: _,
            limits,
            isolation,
            deterministic,
        } = self;
        Shape {
            tenant: tenant.clone(),
            workload: match workload {
                Workload::Command { .. } => WorkloadShape::Command,
                Workload::Code { language, .. } => WorkloadShape::Code(*language),
                Workload::Component { .. } => WorkloadShape::Component,
                Workload::Session => WorkloadShape::Session,
            },
            risk: *risk,
            kind: *kind,
            tags: tags.clone(),
            needs: needs.clone(),
            image: image.clone(),
            isolation: isolation.clone(),
            limits: limits.clone(),
            clauses: [
                cwd.is_some(),
                !files_in.is_empty(),
                !files_out.is_empty(),
                !egress.is_empty(),
                !secrets.is_empty(),
                *deterministic,
            ],
        }
    }

    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    pub fn risk(&self) -> Risk {
        self.risk
    }

    pub fn kind(&self) -> Option<Kind> {
        self.kind
    }

    pub fn tags(&self) -> &BTreeSet<String> {
        &self.tags
    }

    pub fn needs(&self) -> &BTreeSet<Need> {
        &self.needs
    }

    pub fn image(&self) -> &ImageRef {
        &self.image
    }

    pub fn env(&self) -> &[(String, String)] {
        &self.env
    }

    pub fn cwd(&self) -> Option<&str> {
        self.cwd.as_deref()
    }

    pub fn files_in(&self) -> &[GuestPath] {
        &self.files_in
    }

    pub fn files_out(&self) -> &[GuestPath] {
        &self.files_out
    }

    pub fn stdin(&self) -> Stdin {
        self.stdin
    }

    pub fn egress(&self) -> &[String] {
        &self.egress
    }

    pub fn capabilities(&self) -> &BTreeSet<Capability> {
        &self.capabilities
    }

    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    pub fn limits(&self) -> &LimitsDraft {
        &self.limits
    }

    pub fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    pub fn deterministic(&self) -> bool {
        self.deterministic
    }
}

impl Need {
    /// Whether giving this takes away a layer of the wall. A microvm has a kernel of its own to spend; nothing
    /// else may.
    pub const fn relaxes_layers(self) -> bool {
        matches!(self, Need::Bpf | Need::NestedContainers | Need::Root)
    }
}

impl GuestPath {
    pub fn new(path: &str) -> Result<GuestPath, Invalid> {
        check::beneath_writable(path).map(GuestPath)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Reads `NAME=value` as the command line writes it.
pub fn parse_env(text: &str) -> Result<(String, String), Invalid> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        Invalid::new(
            format!("{} is not an environment variable", crate::words::quote(text)),
            "write NAME=value; the host's own value is never passed on",
        )
    })?;
    check::env_var(name, value)?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) use check::name as check_name;
