//! What makes a clone another machine than its template, and than every other clone.

use std::fs;
use std::io;

use casemate_wire::machine::Seed;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, Timespec, clock_settime};

use crate::failure::Failure;
use crate::sys;

/// Puts a seed into force, and returns what the kernel's generator says then.
pub(crate) fn wake(seed: &Seed) -> Result<[u8; 32], Failure> {
    sys::add_entropy(seed.entropy.as_flattened()).map_err(Failure::at("take entropy"))?;
    let time = Timespec {
        tv_sec: (seed.nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (seed.nanoseconds % 1_000_000_000) as i64,
    };
    clock_settime(ClockId::Realtime, time).map_err(Failure::at("set the clock"))?;
    let id: String = seed.id.iter().map(|byte| format!("{byte:02x}")).collect();
    rustix::system::sethostname(format!("machine-{}", &id[..12]).as_bytes())
        .map_err(Failure::at("set the host name"))?;
    fs::write("/etc/machine-id", format!("{id}\n")).map_err(Failure::at("set the machine id"))?;
    let mut sample = [0; 32];
    match getrandom(&mut sample, GetRandomFlags::empty()) {
        Ok(32) => Ok(sample),
        Ok(_) => Err(Failure::new("draw a sample", "it was too short")),
        Err(error) => Err(Failure::at("draw a sample")(io::Error::from(error))),
    }
}
