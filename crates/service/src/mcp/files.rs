//! Tools for the files of a session.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_core::request::GuestPath;
use casemate_engine::Entry;
use casemate_engine::session::{FileError, FileKind, Piece};
use rmcp::model::ContentBlock;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Answer;
use super::output::{gap, whole_characters};
use crate::problem::{Code, Problem};
use crate::sessions::Live;

/// Of one file, in one answer.
pub(super) const MAX_READ: u64 = 64 << 10;
/// A picture comes whole or not at all.
const MAX_PICTURE: u64 = 512 << 10;
/// How much of a file is passed over at most to get at a part of it.
const MAX_FILE: u64 = 1 << 34;
pub(super) const MAX_DEPTH: u32 = 16;
const MAX_LISTED: usize = 1000;
/// On the way in, at a time.
const PIECE: usize = 64 << 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    path: String,
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    path: String,
    content: Option<String>,
    content_base64: Option<String>,
    mode: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    path: Option<String>,
    depth: Option<u32>,
}

/// In its shortest spelling. The cell resolves it once more, beneath its writable directories.
fn place(path: &str) -> Result<String, Problem> {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/work/{path}") };
    match path.trim_end_matches('/') {
        whole @ ("/work" | "/tmp") => Ok(whole.to_owned()),
        "/work/." => Ok("/work".to_owned()),
        _ => Ok(GuestPath::new(&path)?.as_str().to_owned()),
    }
}

pub(super) async fn read(live: &Live, Wanted { path, offset, length }: Wanted) -> Result<Answer, Problem> {
    let path = place(&path)?;
    let length = length.unwrap_or(MAX_READ);
    if !(1..=MAX_READ).contains(&length) {
        let hint = format!("read between 1 and {MAX_READ} bytes at a time");
        return Err(Problem::new(Code::Invalid, format!("{length} bytes cannot be read at once"), hint));
    }
    let mut pieces = live.session.get(&path, MAX_FILE, 1);
    let size = match pieces.next().await {
        Some(Piece::Entry { entry: Entry::File { size, .. }, .. }) => size,
        Some(Piece::Entry { entry: Entry::Directory { .. }, .. }) => {
            return Err(Problem::new(Code::IsADirectory, "this is a directory", "list it instead"));
        }
        Some(Piece::Skipped { why, .. }) => {
            let detail = format!("this is neither a file nor a directory: {why}");
            return Err(Problem::new(
                Code::Invalid,
                detail,
                "name what a link leads to, and read no devices",
            ));
        }
        Some(Piece::Failed(error)) => return Err(error.into()),
        Some(Piece::Data(_)) | None => return Err(FileError::Ended.into()),
    };
    let may_be_picture = offset == 0 && size <= MAX_PICTURE;
    let (mut at, mut bytes) = (0, Vec::new());
    let enough = |bytes: &[u8]| {
        let whole = may_be_picture && picture(bytes).is_some();
        bytes.len() as u64 >= if whole { MAX_PICTURE } else { length }
    };
    while !enough(&bytes) {
        match pieces.next().await {
            Some(Piece::Data(piece)) => {
                let skipped = offset.saturating_sub(at).min(piece.len() as u64);
                at += piece.len() as u64;
                bytes.extend_from_slice(&piece[skipped as usize..]);
            }
            Some(Piece::Failed(error)) => return Err(error.into()),
            Some(Piece::Entry { .. } | Piece::Skipped { .. }) => {}
            None => break,
        }
    }
    if let Some(kind) = picture(&bytes).filter(|_| may_be_picture) {
        let structured = json!({"path": path, "size": size, "offset": 0, "left_out": 0, "media_type": kind});
        let mut answer = Answer::new(format!("{path}: {kind}, {size} bytes"), structured);
        answer.content.push(ContentBlock::image(STANDARD.encode(&bytes), kind));
        return Ok(answer);
    }
    bytes.truncate(length as usize);
    Ok(part(&path, size, offset, bytes))
}

/// Text as text, anything else in base64.
fn part(path: &str, size: u64, offset: u64, mut bytes: Vec<u8>) -> Answer {
    let follows = |bytes: &[u8]| size.saturating_sub(offset + bytes.len() as u64);
    if follows(&bytes) > 0 {
        bytes.truncate(whole_characters(&bytes));
    }
    let left_out = follows(&bytes);
    let mut structured = json!({"path": path, "size": size, "offset": offset, "left_out": left_out});
    let text = match String::from_utf8(bytes) {
        Ok(text) => {
            structured["content"] = text.clone().into();
            if left_out > 0 { format!("{text}\n{}", gap(left_out)) } else { text }
        }
        Err(error) => {
            let bytes = error.as_bytes();
            structured["content_base64"] = STANDARD.encode(bytes).into();
            format!(
                "{path}: {} of {size} bytes that are not text, in base64:\n{}",
                bytes.len(),
                STANDARD.encode(bytes)
            )
        }
    };
    Answer::new(text, structured)
}

/// What kind of picture begins like this.
fn picture(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

pub(super) async fn write(live: &Live, given: Given) -> Result<Answer, Problem> {
    let Given { path, content, content_base64, mode } = given;
    let path = place(&path)?;
    let bytes = match (content, content_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(base64)) => STANDARD.decode(base64).map_err(|error| {
            let detail = format!("`content_base64` is not base64: {error}");
            Problem::new(Code::Invalid, detail, "use the standard alphabet, with padding")
        })?,
        _ => {
            let hint = "give exactly one of `content` and `content_base64`";
            return Err(Problem::new(Code::Invalid, "it is not clear what is to be in the file", hint));
        }
    };
    let mode = mode.map_or(Ok(0o644), |mode| {
        u32::from_str_radix(&mode, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| {
            Problem::new(Code::Invalid, "this is not a mode", "write it in octal, such as 644")
        })
    })?;
    if let Some((above, _)) = path.rsplit_once('/')
        && !matches!(above, "/work" | "/tmp")
    {
        live.session.make_directory(above).await?;
    }
    let (input, done) = live.session.put(&path, mode);
    for piece in bytes.chunks(PIECE) {
        // Whoever takes it says why they do not take more.
        if input.send(piece.to_vec()).await.is_err() {
            break;
        }
    }
    input.end();
    done.await.unwrap_or(Err(FileError::Ended))?;
    let size = bytes.len();
    Ok(Answer::new(format!("{path}: {size} bytes written"), json!({"path": path, "size": size})))
}

pub(super) async fn list(live: &Live, Listed { path, depth }: Listed) -> Result<Answer, Problem> {
    let path = place(path.as_deref().unwrap_or("/work"))?;
    let depth = depth.unwrap_or(1);
    if !(1..=MAX_DEPTH).contains(&depth) {
        let hint = format!("list between 1 and {MAX_DEPTH} levels");
        return Err(Problem::new(Code::Invalid, format!("{depth} levels cannot be listed at once"), hint));
    }
    let found = live.session.list(&path, depth).await?;
    if found.first().is_some_and(|(_, itself)| itself.kind != FileKind::Directory) {
        return Err(Problem::new(Code::NotADirectory, "this is not a directory", "read it instead"));
    }
    let left_out = found.len().saturating_sub(1 + MAX_LISTED);
    let (mut lines, mut entries) = (Vec::new(), Vec::new());
    for (name, info) in found.iter().skip(1).take(MAX_LISTED) {
        let (kind, mark) = match info.kind {
            FileKind::File => ("file", ""),
            FileKind::Directory => ("directory", "/"),
            FileKind::Link => ("link", "@"),
            FileKind::Other => ("other", "?"),
        };
        lines.push(format!("{:>10}  {path}/{name}{mark}", info.size));
        entries.push(json!({"path": format!("{path}/{name}"), "kind": kind, "size": info.size}));
    }
    if lines.is_empty() {
        lines.push(format!("{path} is empty"));
    }
    if left_out > 0 {
        lines.push(format!("[… {left_out} entries left out …]"));
    }
    let structured = json!({"path": path, "entries": entries, "left_out": left_out});
    Ok(Answer::new(lines.join("\n"), structured))
}

pub(super) fn read_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "session": {"type": "string"},
            "path": {"type": "string"},
            "size": {"type": "integer", "description": "Of the whole file."},
            "offset": {"type": "integer"},
            "left_out": {"type": "integer", "description": "Bytes that follow what is told."},
            "content": {"type": "string"},
            "content_base64": {"type": "string", "description": "Where it is not text."},
            "media_type": {"type": "string", "description": "Of a picture, which is in the content beside this."},
        },
        "required": ["session", "path", "size", "offset", "left_out"],
    })
}

pub(super) fn write_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"session": {"type": "string"}, "path": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["session", "path", "size"],
    })
}

pub(super) fn list_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "session": {"type": "string"},
            "path": {"type": "string"},
            "entries": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string"},
                        "kind": {"enum": ["file", "directory", "link", "other"]},
                        "size": {"type": "integer"},
                    },
                    "required": ["path", "kind", "size"],
                },
            },
            "left_out": {"type": "integer", "description": "Entries that are not told."},
        },
        "required": ["session", "path", "entries", "left_out"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_what_may_be_written() {
        for (path, whole) in [
            ("a.txt", "/work/a.txt"),
            ("d/a.txt", "/work/d/a.txt"),
            ("/tmp/a", "/tmp/a"),
            ("/work/", "/work"),
            (".", "/work"),
            ("", "/work"),
        ] {
            assert_eq!(place(path), Ok(whole.to_owned()), "{path}");
        }
        for bad in ["/etc/passwd", "../x", "/work/../etc/passwd", "a\0b", "/"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_part_of_a_text_ends_with_a_whole_character() {
        let answer = part("/work/a", 100, 10, "ab\u{1f600}".as_bytes()[..4].to_vec());
        assert_eq!(answer.structured["content"], "ab");
        assert_eq!(answer.structured["left_out"], 88);
        let answer = part("/work/a", 3, 0, b"a\xffb".to_vec());
        assert_eq!(answer.structured["content_base64"], STANDARD.encode(b"a\xffb"));
        assert_eq!(answer.structured["left_out"], 0);
    }
}
