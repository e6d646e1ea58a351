//! What one stack can do on this machine, as the engine found it.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::LimitKind;
use crate::request::{ImageRef, Language, Need};
use crate::stack::{Class, Stack, Weakness};

/// One stack on this machine. A new profile can do nothing: everything it enforces and supports is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    stack: Stack,
    class: Class,
    cost: u32,
    state: State,
    selection: Selection,
    weakness: Option<Weakness>,
    clauses: Clauses,
    enforces: BTreeSet<LimitKind>,
    unenforced_hints: BTreeMap<LimitKind, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Ready,
    Missing { reason: String, hint: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// The router may choose it on its own.
    Routed,
    /// Only for a request or policy that names it.
    ByName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Support {
    #[default]
    No,
    Yes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageKind {
    Host,
    Directory,
    Stored,
}

/// Which clauses of a request this stack can honour. The default is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Clauses {
    /// Native programs of the image, by argv.
    pub commands: Support,
    pub languages: BTreeSet<Language>,
    /// Those whose interpreter would have to be set up first.
    pub languages_to_set_up: BTreeSet<Language>,
    /// WASM components and modules.
    pub components: Support,
    pub needs: BTreeSet<Need>,
    pub images: BTreeSet<ImageKind>,
    pub cwd: Support,
    pub files_in: Support,
    pub files_out: Support,
    pub egress: Support,
    pub secrets: Support,
    pub deterministic: Support,
}

impl Profile {
    /// `class` is what really stands; of several stacks that will do, the one with the lowest `cost` is chosen.
    pub fn new(stack: Stack, class: Class, cost: u32) -> Profile {
        Profile {
            stack,
            class,
            cost,
            state: State::Ready,
            selection: Selection::Routed,
            weakness: None,
            clauses: Clauses::default(),
            enforces: BTreeSet::new(),
            unenforced_hints: BTreeMap::new(),
        }
    }

    pub fn missing(mut self, reason: impl Into<String>, hint: impl Into<String>) -> Profile {
        self.state = State::Missing { reason: reason.into(), hint: hint.into() };
        self
    }

    pub fn by_name_only(mut self) -> Profile {
        self.selection = Selection::ByName;
        self
    }

    /// Says why the class is lower than the stack's name promises.
    pub fn weakened(mut self, weakness: Weakness) -> Profile {
        self.weakness = Some(weakness);
        self
    }

    pub fn supporting(mut self, clauses: Clauses) -> Profile {
        self.clauses = clauses;
        self
    }

    pub fn enforcing(mut self, kinds: impl IntoIterator<Item = LimitKind>) -> Profile {
        self.enforces.extend(kinds);
        self
    }

    /// Says how this limit could be made enforceable here.
    pub fn unenforced_hint(mut self, kind: LimitKind, hint: impl Into<String>) -> Profile {
        self.unenforced_hints.insert(kind, hint.into());
        self
    }

    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    pub fn class(&self) -> Class {
        self.class
    }

    pub fn cost(&self) -> u32 {
        self.cost
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn selection(&self) -> Selection {
        self.selection
    }

    pub fn weakness(&self) -> Option<Weakness> {
        self.weakness
    }

    pub fn clauses(&self) -> &Clauses {
        &self.clauses
    }

    pub fn enforces(&self, kind: LimitKind) -> bool {
        self.enforces.contains(&kind)
    }

    pub fn hint_for(&self, kind: LimitKind) -> Option<&str> {
        self.unenforced_hints.get(&kind).map(String::as_str)
    }
}

impl ImageKind {
    pub fn of(image: &ImageRef) -> ImageKind {
        match image {
            ImageRef::Host => ImageKind::Host,
            ImageRef::Directory { .. } => ImageKind::Directory,
            ImageRef::Stored { .. } => ImageKind::Stored,
        }
    }
}
