//! What extended headers say about the member after them.

use crate::fault::Fault;

/// Overrides what the member's own header says.
#[derive(Debug, Default)]
pub(super) struct Extensions {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<u32>,
    pub(super) sparse: bool,
}

impl Extensions {
    pub(super) fn is_empty(&self) -> bool {
        let Extensions { path, link, size, mtime, sparse } = self;
        path.is_none() && link.is_none() && size.is_none() && mtime.is_none() && !sparse
    }

    /// Of the many keys, those matter that say where content goes, and how much there is of it.
    pub(super) fn read_pax(&mut self, content: &[u8]) -> Result<(), Fault> {
        for record in records(content) {
            let (key, value) = record?;
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(decimal(value).ok_or(Fault::Number("size"))?),
                b"mtime" => self.mtime = Some(seconds(value).ok_or(Fault::Number("time"))?),
                b"SCHILY.realsize" => self.sparse = true,
                key if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A header for all members that follow. Comments and the like are passed over; one that would name every member is nonsense.
pub(super) fn check_global(content: &[u8]) -> Result<(), Fault> {
    for record in records(content) {
        let (key, _) = record?;
        if matches!(key, b"path" | b"linkpath" | b"size") || key.starts_with(b"GNU.sparse.") {
            return Err(Fault::Extension);
        }
    }
    Ok(())
}

/// `LENGTH KEY=VALUE\n`, where the length is that of the whole record.
fn records(mut rest: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), Fault>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = record(rest);
        rest = record.as_ref().map_or(&[][..], |(length, _, _)| &rest[*length..]);
        Some(record.map(|(_, key, value)| (key, value)))
    })
}

fn record(rest: &[u8]) -> Result<(usize, &[u8], &[u8]), Fault> {
    let space = rest.iter().take(20).position(|byte| *byte == b' ').ok_or(Fault::Extension)?;
    let length =
        decimal(&rest[..space]).and_then(|length| usize::try_from(length).ok()).ok_or(Fault::Extension)?;
    let body =
        rest.get(space + 1..length).and_then(|body| body.strip_suffix(b"\n")).ok_or(Fault::Extension)?;
    let equals = body.iter().position(|byte| *byte == b'=').ok_or(Fault::Extension)?;
    Ok((length, &body[..equals], &body[equals + 1..]))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whole seconds; what is after the point is of no use here.
fn seconds(value: &[u8]) -> Option<u32> {
    let (whole, fraction) = match value.iter().position(|byte| *byte == b'.') {
        Some(at) => (&value[..at], &value[at + 1..]),
        None => (value, &b"0"[..]),
    };
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    match whole.strip_prefix(b"-") {
        Some(before) => decimal(before).map(|_| 0),
        None => decimal(whole).map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> Result<Extensions, Fault> {
        let mut extensions = Extensions::default();
        extensions.read_pax(content.as_bytes()).map(|()| extensions)
    }

    #[test]
    fn what_is_known_is_taken_and_the_rest_passed_over() {
        let extensions = read("12 path=a/b\n21 mtime=1600000000.\n13 comment=x\n10 size=7\n").unwrap();
        assert_eq!(extensions.path.as_deref(), Some(&b"a/b"[..]));
        assert_eq!((extensions.mtime, extensions.size), (Some(1_600_000_000), Some(7)));
        assert!(read("22 GNU.sparse.major=1\n").unwrap().sparse);
        assert!(read("").unwrap().is_empty());
    }

    #[test]
    fn a_record_that_is_not_as_long_as_it_says_is_nonsense() {
        for content in ["6 a=b", "5 a=b\n", "7 a=b\n", "99999999999999999999 a=b\n", "x a=b\n", "5 ab\n", " "]
        {
            assert_eq!(read(content).map(drop), Err(Fault::Extension), "{content:?}");
        }
        assert_eq!(read("10 size=-\n").map(drop), Err(Fault::Number("size")));
        assert!(check_global(b"13 comment=x\n").is_ok());
        assert_eq!(check_global(b"12 path=a/b\n"), Err(Fault::Extension));
    }
}
