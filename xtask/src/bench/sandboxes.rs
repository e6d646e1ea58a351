//! The walls that are built around somebody else's sandbox, beside that sandbox alone. They take a hundred times as long as the
//! others, so there are fewer rounds, and nobody but each other is compared with them.

use std::path::Path;

use super::candidates::{self, Candidate};
use super::stage::Stage;
use super::{Order, compare, load};
use crate::gvisor;
use crate::shell::{Result, heading};

/// One in so many rounds, but not fewer than some.
const SHARE: usize = 5;
const LEAST: usize = 20;
const WARM_UP: usize = 2;

pub(super) fn run(rounds: usize, casemate: &Path, stage: &Stage) -> Result {
    let home = gvisor::ensure(casemate)?;
    let mut candidates: Vec<Candidate> = candidates::sandboxes(stage, casemate, &home);
    let rounds = (rounds / SHARE).max(LEAST);
    heading(&format!("sandboxes of others: {rounds} rounds, with the machine's load at {} before", load()));
    let mut order = Order::new(candidates.len());
    for round in 0..WARM_UP + rounds {
        for &index in order.shuffled() {
            let candidate = &mut candidates[index];
            let Some(command) = &mut candidate.command else { continue };
            let took = candidates::time(command)?;
            if round >= WARM_UP {
                candidate.samples.add(took);
            }
        }
    }
    compare(&candidates);
    Ok(())
}
