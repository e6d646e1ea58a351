//! Assembles the filters, with the same modules as the library, and writes them down as constants.

#![allow(dead_code, unreachable_pub, reason = "the library uses the rest of these modules")]

#[path = "src/assemble.rs"]
mod assemble;
#[path = "src/program.rs"]
mod program;
#[path = "src/syscalls.rs"]
mod syscalls;
#[path = "src/table.rs"]
mod table;

use std::fmt::Write;
use std::path::Path;

use program::{Ids, Network, Program, Ptrace};
use table::Arch;

fn main() {
    println!("cargo:rerun-if-changed=src");
    let arch = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => Arch::X86_64,
        Ok("aarch64") => Arch::Aarch64,
        other => panic!("there is no table of system calls for {other:?}"),
    };
    let (mut constants, mut arms) = (String::new(), String::new());
    for (index, program) in Program::all().enumerate() {
        let code = assemble::assemble(arch, program);
        write!(constants, "static PROGRAM_{index}: [libc::sock_filter; {}] = [", code.len())
            .expect("into memory");
        for libc::sock_filter { code, jt, jf, k } in code {
            write!(constants, "libc::sock_filter{{code:{code},jt:{jt},jf:{jf},k:{k}}},")
                .expect("into memory");
        }
        constants.push_str("];\n");
        writeln!(arms, "        {} => &PROGRAM_{index},", pattern(program)).expect("into memory");
    }
    let text = format!(
        "{constants}\nfn assembled(program: Program) -> &'static [libc::sock_filter] {{\n    match program {{\n{arms}    }}\n}}\n"
    );
    let out = std::env::var_os("OUT_DIR").expect("set by cargo");
    std::fs::write(Path::new(&out).join("programs.rs"), text).expect("OUT_DIR can be written to");
}

fn pattern(program: Program) -> String {
    match program {
        Program::Guest => "Program::Guest".into(),
        Program::Unpacker => "Program::Unpacker".into(),
        Program::Payload { network, ids, ptrace } => {
            format!(
                "Program::Payload {{ network: Network::{network:?}, ids: Ids::{ids:?}, ptrace: Ptrace::{ptrace:?} }}"
            )
        }
    }
}
