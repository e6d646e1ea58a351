//! Walls, the stacks they form, and which stack is at least as strong as which.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::words::{Invalid, quote, words};

words! {
    /// One isolation mechanism.
    pub enum Wall: "wall" {
        /// Landlock, seccomp and rlimits, without namespaces.
        Process = "process",
        /// The native, daemonless container.
        Container = "container",
        /// gVisor's `runsc`.
        Gvisor = "gvisor",
        /// Docker Engine.
        Docker = "docker",
        /// QEMU or Firecracker.
        Microvm = "microvm",
        /// The WASM worker, which always runs inside another wall.
        Wasm = "wasm",
    }
}

words! {
    /// What an escape from the outermost wall would have to break. Ordered from weakest to strongest.
    pub enum Class: "isolation class" {
        SharedKernel = "shared-kernel",
        UserspaceKernel = "userspace-kernel",
        Hardware = "hardware",
    }
}

words! {
    /// A reason for which a wall is of a lower class than its name promises. Only a policy that accepts it by
    /// name, or a caller who asks for that very stack, gets it counted at its nominal class.
    pub enum Weakness: "weakness" {
        /// QEMU emulating the processor: its own security policy does not call that a boundary.
        Tcg = "tcg",
    }
}

/// Walls around one execution, outermost first. Holds only combinations that make sense.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stack(Vec<Wall>);

/// How strong a stack is. A partial order: two stacks of one class with different layers do not compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strength {
    pub class: Class,
    pub layers: BTreeSet<Wall>,
}

/// What `wasm` may be put into, and what stands on its own.
const OUTER: [&[Wall]; 6] = [
    &[Wall::Process],
    &[Wall::Container],
    &[Wall::Gvisor],
    &[Wall::Docker],
    &[Wall::Microvm],
    &[Wall::Microvm, Wall::Container],
];

impl Stack {
    /// Takes walls, outermost first.
    pub fn new(walls: &[Wall]) -> Result<Stack, Invalid> {
        let outer = walls.strip_suffix(&[Wall::Wasm]).unwrap_or(walls);
        if outer.is_empty() && !walls.is_empty() {
            return Err(Invalid::new(
                "wasm always runs inside an outer wall and cannot stand alone",
                "write container+wasm",
            ));
        }
        if !OUTER.contains(&outer) {
            let asked = walls.iter().map(|wall| wall.as_str()).collect::<Vec<_>>().join("+");
            return Err(Invalid::new(
                format!("{} is not a stack of walls", quote(&asked)),
                "use process, container, gvisor, docker, microvm or microvm+container, each optionally with +wasm",
            ));
        }
        Ok(Stack(walls.to_vec()))
    }

    /// Every stack there is.
    pub fn all() -> impl Iterator<Item = Stack> {
        OUTER.into_iter().flat_map(|outer| {
            let with_wasm = [outer, &[Wall::Wasm]].concat();
            [Stack(outer.to_vec()), Stack(with_wasm)]
        })
    }

    /// The stack meant by "at least this wall": the wall alone, or in its default outer wall.
    pub fn of(wall: Wall) -> Stack {
        match wall {
            Wall::Wasm => Stack(vec![Wall::Container, Wall::Wasm]),
            other => Stack(vec![other]),
        }
    }

    pub fn walls(&self) -> &[Wall] {
        &self.0
    }

    pub fn outermost(&self) -> Wall {
        self.0[0]
    }

    pub fn innermost(&self) -> Wall {
        self.0[self.0.len() - 1]
    }

    pub fn contains(&self, wall: Wall) -> bool {
        self.0.contains(&wall)
    }

    /// The class this stack has where nothing is missing. What really stands may differ either way: an emulated
    /// microvm is weaker, a Docker Engine that runs `runsc` is stronger.
    pub fn nominal_class(&self) -> Class {
        match self.outermost() {
            Wall::Microvm => Class::Hardware,
            Wall::Gvisor => Class::UserspaceKernel,
            Wall::Process | Wall::Container | Wall::Docker | Wall::Wasm => Class::SharedKernel,
        }
    }

    /// The strength of this stack when its outer wall is of the given class.
    pub fn strength(&self, class: Class) -> Strength {
        Strength { class, layers: self.0.iter().flat_map(|wall| wall.layers()).copied().collect() }
    }

    pub fn nominal_strength(&self) -> Strength {
        self.strength(self.nominal_class())
    }
}

impl Wall {
    /// What stands when this wall stands. Every cell's guest applies the process wall to what it starts, and
    /// Docker Engine builds its cells from the same kernel mechanisms as the native container.
    fn layers(self) -> &'static [Wall] {
        match self {
            Wall::Process => &[Wall::Process],
            Wall::Container => &[Wall::Container, Wall::Process],
            Wall::Docker => &[Wall::Docker, Wall::Container, Wall::Process],
            Wall::Gvisor => &[Wall::Gvisor, Wall::Process],
            Wall::Microvm => &[Wall::Microvm, Wall::Process],
            Wall::Wasm => &[Wall::Wasm],
        }
    }
}

impl Strength {
    /// The class decides; within one class, the layers must include the other's.
    pub fn at_least(&self, other: &Strength) -> bool {
        self.class > other.class || (self.class == other.class && self.layers.is_superset(&other.layers))
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|wall| wall.as_str()).collect();
        f.pad(&names.join("+"))
    }
}

impl FromStr for Stack {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Stack, Invalid> {
        let walls = text.split('+').map(Wall::from_str).collect::<Result<Vec<_>, _>>()?;
        Stack::new(&walls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(text: &str) -> Stack {
        text.parse().unwrap()
    }

    fn at_least(stronger: &str, weaker: &str) -> bool {
        stack(stronger).nominal_strength().at_least(&stack(weaker).nominal_strength())
    }

    #[test]
    fn every_stack_survives_printing_and_parsing() {
        assert_eq!(Stack::all().count(), 12);
        for each in Stack::all() {
            assert_eq!(stack(&each.to_string()), each);
        }
    }

    #[test]
    fn wasm_alone_is_refused_and_the_message_says_what_to_write() {
        let error = "wasm".parse::<Stack>().unwrap_err();
        assert!(error.reason.contains("always runs inside an outer wall"), "{error}");
        assert!(error.hint.contains("container+wasm"));
    }

    #[test]
    fn senseless_stacks_are_refused() {
        for text in
            ["", "+", "container+microvm", "wasm+container", "microvm+gvisor", "container+container", "vm"]
        {
            assert!(text.parse::<Stack>().is_err(), "{text}");
        }
        assert!(Stack::new(&[]).is_err());
    }

    #[test]
    fn the_class_decides_before_the_layers() {
        assert!(at_least("gvisor", "container+wasm"));
        assert!(at_least("microvm", "gvisor"));
        assert!(!at_least("container+wasm", "gvisor"));
    }

    #[test]
    fn within_a_class_layers_must_be_included() {
        assert!(at_least("microvm+container", "microvm"));
        assert!(!at_least("microvm", "microvm+container"));
        assert!(at_least("container", "process"));
        assert!(at_least("docker", "process"));
        assert!(at_least("docker", "container"));
        assert!(!at_least("container", "docker"));
        assert!(!at_least("container", "container+wasm"));
    }

    #[test]
    fn an_emulated_microvm_does_not_even_replace_a_container() {
        let emulated = stack("microvm").strength(Class::SharedKernel);
        assert!(!emulated.at_least(&stack("container").nominal_strength()));
        let with_container = stack("microvm+container").strength(Class::SharedKernel);
        assert!(with_container.at_least(&stack("container").nominal_strength()));
        assert!(!with_container.at_least(&stack("gvisor").nominal_strength()));
    }
}
