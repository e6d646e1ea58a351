//! What an interpreter writes: output of the code, and what is told about it, told apart by a mark. Hostile: the code may find out the
//! mark of its own interpreter.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Of one line that begins with the mark, and of what several of them say together.
const MAX_LINE: usize = 4096;
const MAX_FRAME: usize = 16 << 20;
/// Ways in which one result may be shown.
const MAX_FORMATS: usize = 64;
const MAX_KIND: usize = 128;

/// Something was told that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the interpreter said something that makes no sense")]
pub(super) struct Nonsense;

/// Takes one stream of bytes apart.
#[derive(Debug)]
pub(super) struct Splitter {
    mark: Vec<u8>,
    /// What cannot be told yet: it may be the beginning of a mark, or of a line.
    held: Vec<u8>,
    /// The beginning of a character.
    cut: Vec<u8>,
    frame: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    Frame(Vec<u8>),
}

/// What is told about a piece of code.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Told {
    Result { main: bool, data: BTreeMap<String, String> },
    Error { name: String, value: String, traceback: String },
    Done { count: u64 },
}

impl Splitter {
    pub(super) fn new(mark: &str) -> Splitter {
        let mark = mark.as_bytes().to_vec();
        Splitter { mark, held: Vec::new(), cut: Vec::new(), frame: Vec::new() }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Vec<Part>, Nonsense> {
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let (mut parts, mut text, mut rest) = (Vec::new(), Vec::new(), &held[..]);
        while let Some(at) = rest.iter().position(|byte| *byte == self.mark[0]) {
            let (before, from) = rest.split_at(at);
            text.extend_from_slice(before);
            rest = from;
            if self.mark.starts_with(rest) {
                break;
            }
            let Some(said) = rest.strip_prefix(&self.mark[..]) else {
                text.push(rest[0]);
                rest = &rest[1..];
                continue;
            };
            let Some(end) = said.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
                if said.len() >= MAX_LINE {
                    return Err(Nonsense);
                }
                break;
            };
            parts.extend(self.text(&std::mem::take(&mut text)));
            parts.extend(self.line(&said[..end])?);
            rest = &said[end + 1..];
        }
        if rest.first() != self.mark.first() {
            text.extend_from_slice(rest);
            rest = &[];
        }
        parts.extend(self.text(&text));
        self.held = rest.to_vec();
        Ok(parts)
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Part>, Nonsense> {
        let (flag, piece) = line.split_first().ok_or(Nonsense)?;
        self.frame.extend_from_slice(piece);
        match flag {
            _ if self.frame.len() > MAX_FRAME => Err(Nonsense),
            b'+' => Ok(None),
            b'.' => Ok(Some(Part::Frame(std::mem::take(&mut self.frame)))),
            _ => Err(Nonsense),
        }
    }

    /// Whole characters; what is none is replaced.
    fn text(&mut self, bytes: &[u8]) -> Option<Part> {
        if bytes.is_empty() {
            return None;
        }
        self.cut.extend_from_slice(bytes);
        let end = match std::str::from_utf8(&self.cut) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.cut.len(),
        };
        let rest = self.cut.split_off(end);
        let whole = std::mem::replace(&mut self.cut, rest);
        (!whole.is_empty()).then(|| Part::Text(String::from_utf8_lossy(&whole).into_owned()))
    }
}

impl Told {
    pub(super) fn read(frame: &[u8]) -> Result<Told, Nonsense> {
        let told = serde_json::from_slice(frame).map_err(|_| Nonsense)?;
        match &told {
            Told::Result { data, .. } => {
                let odd = |kind: &String| {
                    kind.is_empty() || kind.len() > MAX_KIND || !kind.bytes().all(|c| c.is_ascii_graphic())
                };
                if data.len() > MAX_FORMATS || data.keys().any(odd) {
                    return Err(Nonsense);
                }
            }
            Told::Error { .. } | Told::Done { .. } => {}
        }
        Ok(told)
    }
}

/// As clients get it: JSON as JSON, everything else as text. What only claims to be JSON is left out.
pub(super) fn formats(data: BTreeMap<String, String>) -> Map<String, Value> {
    let read = |(kind, content): (String, String)| match kind.as_str() {
        "application/json" => Some((kind, serde_json::from_str(&content).ok()?)),
        _ => Some((kind, Value::String(content))),
    };
    data.into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "\x1e0123";

    fn text(text: &str) -> Part {
        Part::Text(text.into())
    }

    fn frame(text: &str) -> Part {
        Part::Frame(text.into())
    }

    #[test]
    fn what_is_told_is_taken_out_of_the_output_wherever_it_is_cut() {
        let written = "one\x1e0123+{\"a\n\x1e0123.\"}\ntwo\x1e01 \x1e\x1e0123.x\n\x1e";
        let expected = [text("one"), frame("{\"a\"}"), text("two\x1e01 \x1e"), frame("x")];
        for size in 1..=written.len() {
            let mut splitter = Splitter::new(MARK);
            let mut parts: Vec<Part> = Vec::new();
            for chunk in written.as_bytes().chunks(size) {
                for part in splitter.take(chunk).expect("it makes sense") {
                    match (parts.last_mut(), part) {
                        (Some(Part::Text(so_far)), Part::Text(more)) => so_far.push_str(&more),
                        (_, part) => parts.push(part),
                    }
                }
            }
            assert_eq!(parts, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn characters_stay_whole() {
        let mut splitter = Splitter::new(MARK);
        let bytes = "aé".as_bytes();
        assert_eq!(splitter.take(&bytes[..2]), Ok(vec![text("a")]));
        assert_eq!(splitter.take(&bytes[2..]), Ok(vec![text("é")]));
        assert_eq!(splitter.take(b"\xff!"), Ok(vec![text("\u{fffd}!")]));
    }

    #[test]
    fn lines_and_frames_are_bounded() {
        let mut splitter = Splitter::new(MARK);
        assert_eq!(splitter.take(format!("{MARK}.{}", "x".repeat(MAX_LINE)).as_bytes()), Err(Nonsense));
        let mut splitter = Splitter::new(MARK);
        let line = format!("{MARK}+{}\n", "x".repeat(4000));
        let taken = (0..=MAX_FRAME / 4000).try_for_each(|_| splitter.take(line.as_bytes()).map(drop));
        assert_eq!(taken, Err(Nonsense));
        assert_eq!(Splitter::new(MARK).take(format!("{MARK}?\n").as_bytes()), Err(Nonsense));
        assert_eq!(Splitter::new(MARK).take(format!("{MARK}\n").as_bytes()), Err(Nonsense));
    }

    #[test]
    fn what_is_told_is_read_strictly() {
        assert_eq!(Told::read(br#"{"kind":"done","count":3}"#), Ok(Told::Done { count: 3 }));
        for odd in [
            &br#"{"kind":"done","count":-1}"#[..],
            br#"{"kind":"done","count":1,"more":2}"#,
            br#"{"kind":"other"}"#,
            br#"{"kind":"result","main":true,"data":{"a b":""}}"#,
            br#"{"kind":"result","main":true,"data":{"text/plain":1}}"#,
            b"\xff",
        ] {
            assert_eq!(Told::read(odd), Err(Nonsense), "{}", String::from_utf8_lossy(odd));
        }
    }

    #[test]
    fn json_that_is_none_is_left_out() {
        let data = [("application/json", "{\"a\": [1]}"), ("text/plain", "1")];
        let data = data.map(|(kind, content)| (kind.to_owned(), content.to_owned()));
        assert_eq!(
            Value::Object(formats(data.into())),
            serde_json::json!({"application/json": {"a": [1]}, "text/plain": "1"})
        );
        assert!(formats([("application/json".to_owned(), "[".repeat(500))].into()).is_empty());
    }
}
