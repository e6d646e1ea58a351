//! WASM to be run: real programs in `wasm/`, as text.

use std::sync::OnceLock;

use casemate_core::request::Component;

/// The programs of `wasm/`, each of which says at its top what it is for.
macro_rules! programs {
    ($($name:ident = $file:literal;)+) => {
        $(pub fn $name() -> Component {
            static MADE: OnceLock<Component> = OnceLock::new();
            MADE.get_or_init(|| from_text($file, include_str!(concat!("../wasm/", $file)))).clone()
        })+
    };
}

programs! {
    nothing = "nothing.wat";
    echo = "echo.wat";
    endless_loop = "loop.wat";
    spin = "spin.wat";
    memory_grow = "memory-grow.wat";
    table_grow = "table-grow.wat";
    recursion = "recursion.wat";
    poll = "poll.wat";
    random = "random.wat";
    random_all = "random-all.wat";
    iovec = "iovec.wat";
    handles = "handles.wat";
    http = "http.wat";
    open = "open.wat";
    create = "create.wat";
    traps = "traps.wat";
    nan = "nan.wat";
}

/// A component or module in the text format.
pub fn from_text(name: &str, text: &str) -> Component {
    let bytes = wat::parse_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    from_bytes(name, bytes)
}

pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Component {
    Component::new(name, bytes).unwrap_or_else(|invalid| panic!("{name}: {invalid}"))
}

/// A module that takes a compiler far longer than it may have, although it is small: one function of many values, all of which
/// live until its end, and each of which may come from many places. `seed` makes another one of it.
pub fn compile_bomb(seed: u32) -> Component {
    heavy(120_000, seed)
}

/// The same with so many steps: a few thousand keep a compiler busy for long enough to be seen.
pub fn heavy(steps: u32, seed: u32) -> Component {
    use std::fmt::Write;
    const LOCALS: u32 = 1000;
    let mut text = String::from("(module (memory (export \"memory\") 1) (func (export \"_start\")");
    let _ = write!(text, "(local {})", "i64 ".repeat(LOCALS as usize));
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut pick = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % LOCALS
    };
    for _ in 0..steps {
        let (a, b, c, d) = (pick(), pick(), pick(), pick());
        let _ = write!(
            text,
            "(block (br_if 0 (i64.lt_s (local.get {a}) (local.get {b}))) (local.set {c} (i64.mul (local.get {d}) (local.get {a}))))"
        );
    }
    for local in 0..LOCALS {
        let _ = write!(text, "(i64.store (i32.const {}) (local.get {local}))", local * 8);
    }
    text.push_str("))");
    from_text("bomb.wasm", &text)
}
