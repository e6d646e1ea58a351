//! casemate-guest: see the library.

#![no_std]
#![cfg_attr(feature = "bare", no_main)]

#[cfg(not(feature = "bare"))]
extern crate std;

#[cfg(feature = "bare")]
casemate_bare::program!(main);

fn main() -> ! {
    #[cfg(feature = "weaken")]
    casemate_guest::weaken::load();
    casemate_guest::run_as_given()
}
