//! Files in a form, taken apart while they arrive.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::app::BODY_PATIENCE;
use crate::problem::{Code, Problem};

/// What comes before the content of a file.
const MAX_HEAD: usize = 16 << 10;
const MAX_BOUNDARY: usize = 70;

pub(super) struct Form {
    body: Body,
    waiting: BytesMut,
    /// What is between two files: a line break, two dashes, and a word of the client's.
    boundary: Vec<u8>,
    inside: bool,
}

impl Form {
    /// `None`: this is no form.
    pub(super) fn new(content_type: &str, body: Body) -> Option<Form> {
        let rest = content_type.strip_prefix("multipart/form-data")?;
        let word = rest.split(';').find_map(|part| part.trim().strip_prefix("boundary="))?.trim_matches('"');
        if word.is_empty() || word.len() > MAX_BOUNDARY {
            return None;
        }
        // There is no line before the first boundary; this stands for its end.
        let waiting = BytesMut::from("\r\n");
        Some(Form { body, waiting, boundary: format!("\r\n--{word}").into_bytes(), inside: true })
    }

    /// The name of the next file. What nobody has read of the one before is passed over.
    pub(super) async fn next(&mut self) -> Result<Option<String>, Problem> {
        while self.data().await?.is_some() {}
        while self.waiting.len() < 2 {
            self.more().await?;
        }
        if self.waiting.starts_with(b"--") {
            return Ok(None);
        }
        let end = loop {
            match position(&self.waiting, b"\r\n\r\n") {
                Some(end) => break end,
                None if self.waiting.len() > MAX_HEAD => {
                    return Err(malformed("a part of the form has no end"));
                }
                None => self.more().await?,
            }
        };
        let head = self.waiting.split_to(end + 4);
        self.inside = true;
        let head = std::str::from_utf8(&head).map_err(|_| malformed("a name in the form is not text"))?;
        head.lines().find_map(file_name).map(Some).ok_or_else(|| malformed("a part of the form is no file"))
    }

    /// More of the content of this file.
    pub(super) async fn data(&mut self) -> Result<Option<Bytes>, Problem> {
        while self.inside {
            let ready = match position(&self.waiting, &self.boundary) {
                Some(0) => {
                    let _ = self.waiting.split_to(self.boundary.len());
                    self.inside = false;
                    return Ok(None);
                }
                Some(at) => at,
                // The end of it may be the beginning of a boundary.
                None => self.waiting.len().saturating_sub(self.boundary.len() - 1),
            };
            if ready > 0 {
                return Ok(Some(self.waiting.split_to(ready).freeze()));
            }
            self.more().await?;
        }
        Ok(None)
    }

    async fn more(&mut self) -> Result<(), Problem> {
        let frame = timeout(BODY_PATIENCE, self.body.frame()).await.map_err(|_| {
            Problem::new(Code::TooSlow, "the body did not arrive in time", "send it without long pauses")
        })?;
        match frame {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.waiting.extend_from_slice(&data);
                }
                Ok(())
            }
            Some(Err(_)) | None => Err(malformed("the form ends early")),
        }
    }
}

/// As it is in `Content-Disposition`, with what its quotes needed undone.
fn file_name(line: &str) -> Option<String> {
    let (name, value) = line.split_once(':')?;
    if !name.eq_ignore_ascii_case("content-disposition") {
        return None;
    }
    let (_, quoted) = value.split_once("filename=\"")?;
    let (quoted, _) = quoted.rsplit_once('"')?;
    Some(quoted.replace("%22", "\"").replace("\\\\", "\\"))
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn malformed(detail: &str) -> Problem {
    Problem::new(Code::Malformed, detail, "send files as `multipart/form-data`, each with a `filename`")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(form: &[u8], size: usize) -> Result<Vec<(String, Vec<u8>)>, Problem> {
        let chunks: Vec<_> =
            form.chunks(size).map(|c| Ok::<_, std::io::Error>(Bytes::copy_from_slice(c))).collect();
        let body = Body::from_stream(futures_util::stream::iter(chunks));
        let mut form = Form::new("multipart/form-data; boundary=xyz", body).expect("a form");
        let mut files = Vec::new();
        while let Some(name) = form.next().await? {
            let mut content = Vec::new();
            while let Some(bytes) = form.data().await? {
                content.extend_from_slice(&bytes);
            }
            files.push((name, content));
        }
        Ok(files)
    }

    const HEAD: &str = "Content-Disposition: form-data; name=\"file\"; filename=";

    #[tokio::test]
    async fn files_come_out_as_they_went_in_however_they_are_cut() {
        let form = format!(
            "--xyz\r\n{HEAD}\"a b%22.txt\"\r\nContent-Type: text/plain\r\n\r\none\r\n--xy\r\n\r\n--xyz\r\n{HEAD}\"empty\"\r\n\r\n\r\n--xyz--\r\n"
        );
        let expected =
            [("a b\".txt".to_owned(), b"one\r\n--xy\r\n".to_vec()), ("empty".to_owned(), Vec::new())];
        for size in 1..=form.len() {
            assert_eq!(
                read(form.as_bytes(), size).await.as_deref(),
                Ok(&expected[..]),
                "in pieces of {size}"
            );
        }
    }

    #[tokio::test]
    async fn what_is_no_form_is_refused() {
        let endless = format!("--xyz\r\n{}", "a".repeat(2 * MAX_HEAD));
        let nameless = "--xyz\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n--xyz--";
        let cut = format!("--xyz\r\n{HEAD}\"a\"\r\n\r\ncontent");
        for bad in ["", "garbage", "--xyz", &endless, nameless, &cut] {
            let refused = read(bad.as_bytes(), 100).await.expect_err("it is no form");
            assert_eq!(refused.code, Code::Malformed, "{bad:.20}");
        }
        assert!(Form::new("multipart/form-data", Body::empty()).is_none());
        assert!(Form::new("text/plain; boundary=xyz", Body::empty()).is_none());
    }
}
