//! Text for people. Whatever comes out of a cell is hostile: on a terminal it is shown, never obeyed.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use crate::failure::Failure;

/// Makes bytes harmless for a terminal, one stream at a time. Printable text, newlines and tabs stay as they are;
/// other control characters and bytes that are not UTF-8 are spelled out.
#[derive(Debug, Default)]
pub(crate) struct Escaper {
    /// The beginning of a character whose end has not come yet: at most three bytes.
    pending: Vec<u8>,
}

impl Escaper {
    /// Appends what can be shown of `bytes` to `out`.
    pub(crate) fn escape(&mut self, bytes: &[u8], out: &mut String) {
        let joined;
        let mut rest = if self.pending.is_empty() {
            bytes
        } else {
            joined = [&std::mem::take(&mut self.pending), bytes].concat();
            &joined[..]
        };
        while !rest.is_empty() {
            let (valid, invalid) = match std::str::from_utf8(rest) {
                Ok(_) => (rest.len(), 0),
                // The chunk ends within a character.
                Err(e) if e.error_len().is_none() => {
                    self.pending = rest[e.valid_up_to()..].to_vec();
                    rest = &rest[..e.valid_up_to()];
                    (rest.len(), 0)
                }
                Err(e) => (e.valid_up_to(), e.error_len().unwrap_or(1)),
            };
            let text = std::str::from_utf8(&rest[..valid]).unwrap_or_default();
            text.chars().for_each(|c| push_shown(c, out));
            rest[valid..valid + invalid].iter().for_each(|byte| push_byte(*byte, out));
            rest = &rest[valid + invalid..];
        }
    }

    /// The stream has ended: a character that was never finished is shown byte by byte.
    pub(crate) fn finish(&mut self, out: &mut String) {
        std::mem::take(&mut self.pending).iter().for_each(|byte| push_byte(*byte, out));
    }
}

/// One line of text that may hold words from a cell, safe to print anywhere.
pub(crate) fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            c => push_shown(c, &mut out),
        }
    }
    out
}

fn push_shown(c: char, out: &mut String) {
    match c {
        '\n' | '\t' => out.push(c),
        // Shown and not passed on: it would let a later line overwrite an earlier one.
        '\r' => out.push_str("\\r"),
        '\0'..='\x1f' | '\x7f' => push_byte(c as u8, out),
        // C1 controls, and what reverses the order in which text is displayed.
        '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        }
        c => out.push(c),
    }
}

fn push_byte(byte: u8, out: &mut String) {
    let _ = write!(out, "\\x{byte:02x}");
}

/// `error: …`, then `hint: …`, on standard error.
pub(crate) fn report(failure: &Failure) {
    let Failure::Told { message, hint } = failure else { return };
    let style = Style::of_stderr();
    let mut text = format!("{} {}\n", style.red("error:"), one_line(message));
    if let Some(hint) = hint {
        let _ = writeln!(text, "{} {}", style.cyan("hint:"), one_line(hint));
    }
    to_stderr(&text);
}

/// Advice that goes with a result and not with an error.
pub(crate) fn hint(hint: &str) {
    to_stderr(&format!("{} {}\n", Style::of_stderr().cyan("hint:"), one_line(hint)));
}

/// Remarks about a run, as `casemate: …` on standard error.
pub(crate) fn remark(lines: impl IntoIterator<Item = String>) {
    let text: String = lines.into_iter().map(|line| format!("casemate: {}\n", one_line(&line))).collect();
    to_stderr(&text);
}

/// Nobody is left to tell when this fails.
fn to_stderr(text: &str) {
    if !text.is_empty() {
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// Colours on a terminal, unless the caller does not want any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Coloured,
}

impl Style {
    pub(crate) fn of_stdout() -> Style {
        Style::for_stream(io::stdout().is_terminal())
    }

    pub(crate) fn of_stderr() -> Style {
        Style::for_stream(io::stderr().is_terminal())
    }

    fn for_stream(is_terminal: bool) -> Style {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if is_terminal && !set("NO_COLOR") && !dumb { Style::Coloured } else { Style::Plain }
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Style::Plain => text.to_owned(),
            Style::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// Columns that line up, two spaces apart; the last one is not padded.
pub(crate) fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    let line = |row: &Vec<String>| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(chunks: &[&[u8]]) -> String {
        let (mut escaper, mut out) = (Escaper::default(), String::new());
        chunks.iter().for_each(|chunk| escaper.escape(chunk, &mut out));
        escaper.finish(&mut out);
        out
    }

    #[test]
    fn ordinary_text_is_left_alone() {
        assert_eq!(shown(&["héllo\tworld 🦀\n".as_bytes()]), "héllo\tworld 🦀\n");
    }

    #[test]
    fn nothing_reaches_the_terminal_that_it_would_obey() {
        assert_eq!(shown(&[b"\x1b[2J\x1b]0;title\x07"]), "\\x1b[2J\\x1b]0;title\\x07");
        assert_eq!(shown(&[b"safe\rEVIL"]), "safe\\rEVIL");
        assert_eq!(shown(&[b"\x00\x08\x7f"]), "\\x00\\x08\\x7f");
        assert_eq!(shown(&["\u{9b}31m\u{85}".as_bytes()]), "\\u{9b}31m\\u{85}");
        assert_eq!(shown(&["\u{202e}txt.exe".as_bytes()]), "\\u{202e}txt.exe");
        assert_eq!(shown(&[b"\x9b31m"]), "\\x9b31m");
    }

    #[test]
    fn every_byte_and_every_pair_of_bytes_comes_out_harmless() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let harmless = |c: char| matches!(c, '\n' | '\t') || !c.is_control();
                assert!(shown(&[&[a, b]]).chars().all(harmless), "{a:02x} {b:02x}");
                assert!(shown(&[&[a], &[b]]).chars().all(harmless), "{a:02x} {b:02x}");
            }
        }
    }

    #[test]
    fn a_character_may_be_split_between_chunks_anywhere() {
        let text = "a🦀é\u{9b}z".as_bytes();
        let whole = shown(&[text]);
        for at in 0..text.len() {
            assert_eq!(shown(&[&text[..at], &text[at..]]), whole, "split at {at}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(shown(&bytes), whole);
    }

    #[test]
    fn an_unfinished_character_is_shown_at_the_end() {
        assert_eq!(shown(&[b"a\xf0\x9f"]), "a\\xf0\\x9f");
        assert_eq!(shown(&[b"\xf0\x9f", b"x"]), "\\xf0\\x9fx");
    }

    #[test]
    fn a_message_stays_on_one_line() {
        assert_eq!(one_line("a\nb\u{1b}[m"), "a\\nb\\x1b[m");
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(columns(&rows), ["a     b", "long"]);
    }
}
