//! A thread that makes running instances look at the clock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::modules::Engines;

/// How long an instance runs before it is looked at.
const TICK: Duration = Duration::from_millis(1);
/// After so many ticks without a call it sleeps: to wake it up for each would take longer than most of them.
const IDLE: u32 = 200;

pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Default)]
struct Shared {
    running: AtomicU32,
    asleep: AtomicBool,
}

/// A call, as long as this lives.
pub(crate) struct Running(Arc<Shared>);

impl Ticker {
    pub(crate) fn start(engines: Engines) -> io::Result<Ticker> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = thread::Builder::new().name("ticker".into()).spawn(move || theirs.tick(&engines))?;
        Ok(Ticker { shared, thread: thread.thread().clone() })
    }

    pub(crate) fn begin(&self) -> Running {
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
        Running(self.shared.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    fn tick(&self, engines: &Engines) {
        let mut idle = 0;
        loop {
            thread::sleep(TICK);
            engines.tick();
            idle = if self.running.load(Ordering::SeqCst) > 0 { 0 } else { idle + 1 };
            if idle > IDLE {
                self.asleep.store(true, Ordering::SeqCst);
                // A call that began just before may not have seen that.
                while self.running.load(Ordering::SeqCst) == 0 && self.asleep.load(Ordering::SeqCst) {
                    thread::park();
                }
                self.asleep.store(false, Ordering::SeqCst);
                idle = 0;
            }
        }
    }
}
