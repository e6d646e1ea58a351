//! How large a machine is. There are few sizes, since each image has a template for each.

use casemate_core::limits::LimitKind;
use casemate_core::plan::Plan;

const MIB: u64 = 1 << 20;

/// What the kernel, its first process and the launcher take, with room for what they do for a cell.
const OWN: u64 = 128 * MIB;
/// The smallest that a machine is made for.
const LEAST: u64 = 128 * MIB;

/// What QEMU takes besides the machine's memory: itself, and what it translates code into.
const OF_QEMU: u64 = 224 * MIB;
/// Besides one per processor, QEMU has threads for its main loop, for signals and for its disk.
const THREADS: u64 = 96;
/// More are of no use to a machine that is emulated.
pub(super) const MOST_CPUS: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) memory_bytes: u64,
    pub(super) cpus: u32,
}

impl Shape {
    /// What holds a cell with the limits of `plan`, which are enforced inside, and so much besides.
    pub(super) fn of(plan: &Plan, besides: u64) -> Shape {
        let limit = |kind| plan.limits().get(kind).map_or(0, |bound| bound.value);
        // Twice: as a file at first, and then as memory that can be executed.
        Shape::holding(limit(LimitKind::Memory) + 2 * besides, limit(LimitKind::Cpus))
    }

    fn holding(memory: u64, thousandths: u64) -> Shape {
        let memory_bytes = memory.max(LEAST).next_power_of_two() + OWN;
        let cpus = thousandths.div_ceil(1000).clamp(1, MOST_CPUS) as u32;
        Shape { memory_bytes, cpus }
    }

    /// What a machine of this shape may take from the host, besides its time.
    pub(super) fn outside(self) -> (u64, u64) {
        (self.memory_bytes + OF_QEMU, THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_holds_its_cell_and_there_are_few_sizes() {
        assert_eq!(Shape::holding(1, 50), Shape { memory_bytes: 256 * MIB, cpus: 1 });
        assert_eq!(Shape::holding(256 * MIB, 1000), Shape { memory_bytes: 384 * MIB, cpus: 1 });
        assert_eq!(Shape::holding(257 * MIB, 1001), Shape { memory_bytes: 640 * MIB, cpus: 2 });
        for memory in (8 * MIB..4096 * MIB).step_by(7 * MIB as usize) {
            let shape = Shape::holding(memory, 64_000);
            assert!(shape.memory_bytes >= memory + OWN && shape.memory_bytes <= 2 * memory.max(LEAST) + OWN);
            assert_eq!(u64::from(shape.cpus), MOST_CPUS);
        }
    }
}
