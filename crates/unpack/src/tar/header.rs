//! One block of 512 bytes: the header of a member.

use crate::fault::Fault;

pub(super) const BLOCK: usize = 512;

pub(super) struct Header<'a>(&'a [u8; BLOCK]);

impl Header<'_> {
    /// A header is known by its checksum.
    pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Header<'_>, Fault> {
        let header = Header(block);
        let told = number(header.field(148, 8)).ok_or(Fault::NotAHeader)?;
        // The checksum is taken with spaces in its own place.
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        let own: u64 = header.field(148, 8).iter().map(|byte| u64::from(*byte)).sum();
        match told == Some(sum - own + 8 * u64::from(b' ')) {
            true => Ok(header),
            false => Err(Fault::NotAHeader),
        }
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    /// The name, after its prefix if there is one. GNU keeps other things where the prefix would be.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(self.field(0, 100));
        let prefix = if self.field(257, 6) == b"ustar\0" { text(self.field(345, 155)) } else { b"" };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        text(self.field(157, 100)).to_vec()
    }

    pub(super) fn size(&self) -> Result<u64, Fault> {
        number(self.field(124, 12)).flatten().ok_or(Fault::Number("size"))
    }

    /// The nine bits that say who may do what.
    pub(super) fn mode(&self) -> Result<u32, Fault> {
        let mode = number(self.field(100, 8)).flatten().ok_or(Fault::Number("mode"))?;
        Ok((mode & 0o777) as u32)
    }

    pub(super) fn mtime(&self) -> Result<u32, Fault> {
        match number(self.field(136, 12)).ok_or(Fault::Number("time"))? {
            Some(seconds) => Ok(u32::try_from(seconds).unwrap_or(u32::MAX)),
            None => Ok(0),
        }
    }

    fn field(&self, at: usize, length: usize) -> &[u8] {
        &self.0[at..at + length]
    }
}

/// Up to the first NUL, or the whole field.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal digits between spaces and NULs, or, where the first bit is set, a big-endian number. `Some(None)` for one that is
/// negative, and nothing for what is no number, or does not fit.
fn number(field: &[u8]) -> Option<Option<u64>> {
    let (&first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        if first & 0x40 != 0 {
            return Some(None);
        }
        return rest
            .iter()
            .try_fold(u64::from(first & 0x3f), |value, byte| {
                value.checked_mul(256)?.checked_add(u64::from(*byte))
            })
            .map(Some);
    }
    let is_filler = |byte: &u8| matches!(byte, b' ' | 0);
    let digits = field.iter().skip_while(|byte| **byte == b' ').take_while(|byte| !is_filler(byte));
    let after = field.iter().skip_while(|byte| **byte == b' ').skip_while(|byte| !is_filler(byte));
    if !after.into_iter().all(is_filler) {
        return None;
    }
    digits
        .map(|byte| matches!(byte, b'0'..=b'7').then(|| u64::from(byte - b'0')))
        .try_fold(0u64, |value, digit| value.checked_mul(8)?.checked_add(digit?))
        .map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, value) in [
            (&b"0000644\0"[..], 0o644),
            (b" 644 \0\0\0", 0o644),
            (b"00000000", 0),
            (b"\0\0\0\0\0\0\0\0", 0),
            (b"77777777777 ", 0o77_777_777_777),
            (b"\x80\0\0\0\0\0\0\x01\0\0\0\0", 1 << 32),
        ] {
            assert_eq!(number(field), Some(Some(value)), "{field:?}");
        }
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff"), Some(None), "before 1970");
        for nonsense in
            [&b"12x4567\0"[..], b"8\0", b"1 2\0", b"-1\0", b"+1\0", b"\x80\x01\0\0\0\0\0\0\0\0\0\0"]
        {
            assert_eq!(number(nonsense), None, "{nonsense:?}");
        }
    }
}
