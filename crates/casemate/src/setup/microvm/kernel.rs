//! What a bzImage says about itself: the header that boot loaders read (Documentation/arch/x86/boot.rst of the kernel).

use std::fmt;

const MAGIC: &[u8] = b"HdrS";
const MAGIC_AT: usize = 0x202;
const SETUP_SECTORS_AT: usize = 0x1f1;
const PAYLOAD_PARAGRAPHS_AT: usize = 0x1f4;
const VERSION_POINTER_AT: usize = 0x20e;

const SECTOR: usize = 512;
const PARAGRAPH: usize = 16;

/// Why something is not a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    NoMagic,
    CutOff,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::NoMagic => "not a bzImage (there is no HdrS at 0x202)",
            Malformed::CutOff => "a bzImage that is cut off",
        })
    }
}

/// Its release, such as `6.1.0-13-cloud-amd64`, if it is a kernel and all of it is there.
pub(super) fn version(image: &[u8]) -> Result<String, Malformed> {
    let at = |offset: usize, length: usize| image.get(offset..offset.checked_add(length)?);
    if at(MAGIC_AT, MAGIC.len()) != Some(MAGIC) {
        return Err(Malformed::NoMagic);
    }
    let number = |offset: usize, length: usize| {
        let bytes = at(offset, length).ok_or(Malformed::CutOff)?;
        Ok(bytes.iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte)))
    };
    let sectors = match number(SETUP_SECTORS_AT, 1)? {
        // As it has been since before there was a header.
        0 => 4,
        sectors => sectors,
    };
    let setup = (sectors + 1) * SECTOR;
    // A signature may follow.
    if image.len() < setup + number(PAYLOAD_PARAGRAPHS_AT, 4)? * PARAGRAPH {
        return Err(Malformed::CutOff);
    }
    let words = match number(VERSION_POINTER_AT, 2)? {
        0 => &[][..],
        pointer => image[..setup].get(pointer + SECTOR..).ok_or(Malformed::CutOff)?,
    };
    let first = words.split(|byte| !byte.is_ascii_graphic()).next().unwrap_or_default();
    let release = String::from_utf8_lossy(first).into_owned();
    Ok(if release.is_empty() { "of an unknown version".to_owned() } else { release })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// As small as it can be.
    pub(crate) fn bz_image(version: &str) -> Vec<u8> {
        let mut image = vec![0; 2 * SECTOR + 3 * PARAGRAPH];
        image[SETUP_SECTORS_AT] = 1;
        image[PAYLOAD_PARAGRAPHS_AT] = 3;
        image[MAGIC_AT..][..4].copy_from_slice(MAGIC);
        image[VERSION_POINTER_AT..][..2].copy_from_slice(&0x100u16.to_le_bytes());
        image[SECTOR + 0x100..][..version.len()].copy_from_slice(version.as_bytes());
        image
    }

    #[test]
    fn a_kernel_says_its_release() {
        let image = bz_image("6.1.0-13-cloud-amd64 (builder) #1 SMP");
        assert_eq!(version(&image).unwrap(), "6.1.0-13-cloud-amd64");
        let signed = [&image[..], b"signature"].concat();
        assert_eq!(version(&signed).unwrap(), "6.1.0-13-cloud-amd64");
        assert_eq!(version(&bz_image("")).unwrap(), "of an unknown version");
    }

    #[test]
    fn what_is_not_a_kernel_is_told_apart() {
        assert_eq!(version(b""), Err(Malformed::NoMagic));
        assert_eq!(version(b"\x7fELF"), Err(Malformed::NoMagic));
        assert_eq!(version(&[0; 4096]), Err(Malformed::NoMagic));
        let image = bz_image("6.1.0");
        for length in 0..image.len() {
            assert!(version(&image[..length]).is_err(), "{length} bytes");
        }
        // A version that lies behind what belongs to the header.
        let mut image = bz_image("6.1.0");
        image[VERSION_POINTER_AT..][..2].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(version(&image), Err(Malformed::CutOff));
        // As many sectors and as large a payload as can be written down.
        let mut image = bz_image("6.1.0");
        image[SETUP_SECTORS_AT] = 0xff;
        image[PAYLOAD_PARAGRAPHS_AT..][..4].fill(0xff);
        assert_eq!(version(&image), Err(Malformed::CutOff));
    }
}
