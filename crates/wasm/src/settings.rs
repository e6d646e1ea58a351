//! How code is compiled, and hence has to be run. The compiler process has this very file, too.

use casemate_wire::worker::Mode;
use wasmtime::Config;

/// Everything about the code itself. Whatever is changed in here makes what was compiled before unusable.
pub(crate) fn of_code(mode: Mode) -> Config {
    let mut config = Config::new();
    // Always, or an endless loop could not be left.
    config.epoch_interruption(true);
    // An address space of its own for every memory, so that no access needs a check.
    config.memory_reservation(4 << 30).memory_guard_size(64 << 20);
    // What nobody asked for is one thing less to be wrong. Garbage collection, exceptions and threads are not even compiled in.
    config.gc_support(false).shared_memory(false).wasm_memory64(false);
    if mode == Mode::Deterministic {
        // Instructions are counted instead of time.
        config.consume_fuel(true);
        config.relaxed_simd_deterministic(true);
    }
    config
}
