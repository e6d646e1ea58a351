//! casemate-guest: see the library.

fn main() {
    #[cfg(feature = "weaken")]
    casemate_guest::weaken::load();
    casemate_guest::run(None)
}
