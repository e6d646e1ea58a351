//! Time that only goes forward.
#![allow(unsafe_code, reason = "a system call that stores a timespec")]

use core::time::Duration;

use crate::call::call;

/// A point in time, for comparison with others of the same boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    pub fn now() -> Moment {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel stores one `timespec`. The call has no way to fail for this clock.
        let _ = unsafe {
            call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, &raw mut time as usize])
        };
        Moment(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Nothing if it was later.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn elapsed(self) -> Duration {
        Moment::now().since(self)
    }
}

impl core::ops::Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, duration: Duration) -> Moment {
        Moment(self.0 + duration)
    }
}
