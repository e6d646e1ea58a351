//! Links the unwinder statically: one library less to find, map and initialise at every start of `casemate`, which is a
//! command that mostly starts. The standard library asks for `gcc_s`; this gives it gcc's static half under that name.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return;
    }
    let out = std::env::var("OUT_DIR").expect("set by cargo");
    // A linker script: what the linker finds first when it looks for libgcc_s.
    std::fs::write(Path::new(&out).join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")
        .expect("OUT_DIR can be written to");
    println!("cargo:rustc-link-search=native={out}");
}
