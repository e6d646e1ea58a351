//! A world in which nothing changes from run to run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

/// It is always the first moment of 2025.
const NOW: Duration = Duration::from_secs(1_735_689_600);
const SEED: u64 = 0x6361_7365_6d61_7465;

pub(crate) fn apply(builder: &mut WasiCtxBuilder) {
    builder.wall_clock(Standing).monotonic_clock(Counting(AtomicU64::new(0)));
    builder.secure_random(StdRng::seed_from_u64(SEED));
    builder.insecure_random(StdRng::seed_from_u64(!SEED));
    builder.insecure_random_seed(u128::from(SEED));
}

struct Standing;

impl HostWallClock for Standing {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        NOW
    }
}

/// A microsecond passes whenever somebody looks, so that whoever waits for time to pass does not wait for ever.
struct Counting(AtomicU64);

impl HostMonotonicClock for Counting {
    fn resolution(&self) -> u64 {
        1000
    }

    fn now(&self) -> u64 {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }
}
