//! What a cell's root file system is made of, as a request names it. Where it lies on the host is not core's business.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::evidence::hex;
use crate::words::{Invalid, quote};

/// Of an image's name in the store.
pub const MAX_NAME_BYTES: usize = 128;
/// Digits of a digest that are enough to name an image, if no other begins with them.
pub const MIN_DIGEST_PREFIX: usize = 12;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum ImageRef {
    /// The host's own `/usr`, read-only.
    #[default]
    Host,
    /// A directory of the caller's; the label is what the evidence says about it.
    Directory { label: String },
    /// A tree in the store, by its digest. The name is what was asked for.
    Stored { name: String, digest: ImageDigest },
}

impl ImageRef {
    /// What evidence and explanations call it.
    pub fn label(&self) -> Cow<'_, str> {
        match self {
            ImageRef::Host => "host".into(),
            ImageRef::Directory { label } => label.into(),
            ImageRef::Stored { name, digest } if *name == digest.to_string() => name.into(),
            ImageRef::Stored { name, digest } => format!("{name}@{digest}").into(),
        }
    }
}

/// What an image in the store is known by: the SHA-256 of its manifest, of its configuration where it has no manifest, or, for a
/// bare root file system, of the tar that it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageDigest(pub [u8; 32]);

const ALGORITHM: &str = "sha256:";

impl ImageDigest {
    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{ALGORITHM}{}", self.hex()))
    }
}

impl FromStr for ImageDigest {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<ImageDigest, Invalid> {
        let digits = text.strip_prefix(ALGORITHM).unwrap_or_default();
        let mut digest = [0; 32];
        let is_hex = digits.len() == 64 && digits.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hex {
            return Err(Invalid::new(
                format!("{} is not a digest", quote(text)),
                "a digest is sha256: and 64 hexadecimal digits in lower case",
            ));
        }
        for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).unwrap_or_default();
            *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
        }
        Ok(ImageDigest(digest))
    }
}

/// The digits of a digest, or of its beginning, if that is what `text` must be taken for.
pub fn digest_prefix(text: &str) -> Option<&str> {
    let digits = text.strip_prefix(ALGORITHM);
    let is_hex = |digits: &str| digits.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    match digits {
        Some(digits) => Some(digits).filter(|digits| is_hex(digits)),
        None => Some(text).filter(|text| text.len() >= MIN_DIGEST_PREFIX && text.len() <= 64 && is_hex(text)),
    }
}

/// What an image in the store may be called: what is neither a path, nor a digest, nor the host.
pub fn check_image_name(name: &str) -> Result<(), Invalid> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'/' | b':');
    let begins = name.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric());
    let reason = match name {
        _ if !begins || !name.bytes().all(plain) || name.len() > MAX_NAME_BYTES => {
            "cannot be an image's name"
        }
        "host" => "is the host's own image",
        _ if name.starts_with(ALGORITHM) || digest_prefix(name).is_some() => "looks like a digest",
        _ => return Ok(()),
    };
    Err(Invalid::new(
        format!("{} {reason}", quote(name)),
        format!(
            "use up to {MAX_NAME_BYTES} letters, digits and ._-/: with a letter or digit first, such as tools:1.2"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_one_spelling() {
        let text = format!("sha256:{}", "0123456789abcdef".repeat(4));
        let digest: ImageDigest = text.parse().unwrap();
        assert_eq!(digest.to_string(), text);
        for bad in
            ["", "sha256:", &text[7..], &text[..70], &text.to_uppercase(), &text.replace("sha256", "sha512")]
        {
            assert!(bad.parse::<ImageDigest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_paths_and_digests_are_told_apart() {
        for name in ["default", "debian:12", "localhost:5000/team/tool:1.2", "abc", "deadbeef", "Sha256"] {
            assert!(check_image_name(name).is_ok(), "{name}");
            assert_eq!(digest_prefix(name), None);
        }
        let long = "x".repeat(129);
        for bad in [
            "",
            "host",
            "/x",
            "./x",
            "../x",
            "-x",
            ".x",
            "a b",
            "a@b",
            "sha256:ab",
            "0123456789ab",
            "é",
            &long,
        ] {
            assert!(check_image_name(bad).is_err(), "{bad}");
        }
        assert_eq!(digest_prefix("0123456789ab"), Some("0123456789ab"));
        assert_eq!(digest_prefix("sha256:01"), Some("01"));
        assert_eq!(digest_prefix("sha256:xyz"), None);
        assert_eq!(digest_prefix(&"a".repeat(65)), None);
    }

    #[test]
    fn a_label_pins_what_is_pinned() {
        let digest = ImageDigest([0xab; 32]);
        let named = ImageRef::Stored { name: "default".into(), digest };
        assert_eq!(named.label(), format!("default@sha256:{}", "ab".repeat(32)));
        let by_digest = ImageRef::Stored { name: digest.to_string(), digest };
        assert_eq!(by_digest.label(), digest.to_string());
    }
}
