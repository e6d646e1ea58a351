//! casemate-machine: the first process of a virtual machine.
//!
//! It makes a small Linux system out of a kernel and an initial file system (`boot`), starts the same launcher as on a host, and says that
//! it is ready. Here a machine becomes a template: whatever is cloned from it is given an identity, entropy and the time of day
//! before anything else happens (`wake`). From then on it carries requests to the launcher and answers back (`serve`). The cell
//! that the launcher builds speaks to the engine by itself, on a port of its own.
//!
//! It trusts the engine, and nobody in the machine but the launcher. Ending it ends the machine.

mod boot;
mod failure;
#[cfg(feature = "hostile")]
mod hostile;
mod launcher;
mod line;
mod ports;
mod serve;
mod sys;
mod wake;

use crate::ports::Port;

fn main() -> ! {
    #[cfg(feature = "hostile")]
    hostile::load();
    let failure = match boot::boot() {
        Err(failure) => failure,
        // By now there is somebody to tell.
        Ok(boot::System { content, program }) => match Port::open(casemate_wire::machine::CONTROL_PORT) {
            Err(failure) => failure,
            Ok(port) => serve::serve(port, content, program),
        },
    };
    // What the machine's console shows is kept by the engine.
    eprintln!("casemate-machine: {failure}");
    sys::power_off()
}
