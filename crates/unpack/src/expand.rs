//! From compressed bytes to plain ones.

use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::fault::{Error, Fault, Shown};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstd,
}

/// More than this from one byte, once there is a lot of it, is made to fill disks: software compresses to a third.
pub const MAX_GROWTH: u64 = 200;
/// What is not looked at, since a few zeros are no harm.
const HARMLESS: u64 = 64 << 20;

/// Everything that `input` holds, which must be complete.
pub fn expand(input: impl Read, output: &mut impl Write, compression: Compression) -> Result<(), Error> {
    let input = BufReader::with_capacity(64 * 1024, Counted { input, count: 0 });
    match compression {
        Compression::Gzip => gzip(input, output),
        Compression::Zstd => zstd(input, output),
    }
}

/// One member after another, as parallel compressors write them.
fn gzip<R: Read>(input: BufReader<Counted<R>>, output: &mut impl Write) -> Result<(), Error> {
    let mut decoder = MultiGzDecoder::new(input);
    let mut out = Out::new(output);
    loop {
        let n = decoder.read(&mut out.buffer).map_err(|error| broken("gzip", &error))?;
        if n == 0 {
            return out.finish();
        }
        let taken = decoder.get_ref().get_ref().count;
        out.pass_on(n, taken)?;
    }
}

/// One frame after another, likewise; each with its checksum, if it has one.
fn zstd<R: Read>(mut input: BufReader<Counted<R>>, output: &mut impl Write) -> Result<(), Error> {
    const NAME: &str = "Zstandard";
    let mut out = Out::new(output);
    let mut decoder = FrameDecoder::new();
    while !input.fill_buf().map_err(Error::Read)?.is_empty() {
        let mut frame = match StreamingDecoder::new_with_decoder(&mut input, &mut decoder) {
            Ok(frame) => frame,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let skipped = io::copy(&mut input.by_ref().take(length.into()), &mut io::sink());
                if skipped.map_err(Error::Read)? < u64::from(length) {
                    return Err(Error::archive(Fault::Truncated));
                }
                continue;
            }
            Err(error) => return Err(broken(NAME, &io::Error::other(error))),
        };
        loop {
            let n = frame.read(&mut out.buffer).map_err(|error| broken(NAME, &error))?;
            if n == 0 {
                break;
            }
            let taken = frame.get_ref().get_ref().count;
            out.pass_on(n, taken)?;
        }
        if let Some(told) = decoder.get_checksum_from_data()
            && decoder.get_calculated_checksum() != Some(told)
        {
            let words = "the checksum of a frame is wrong".to_owned();
            return Err(Error::archive(Fault::Compression(NAME, words)));
        }
    }
    out.finish()
}

/// What decoders say when the input ends too early varies.
fn broken(name: &'static str, error: &io::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let early = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        if error.downcast_ref::<io::Error>().is_some_and(early) {
            return Error::archive(Fault::Truncated);
        }
        // The error within an `io::Error` is not its source, but itself.
        cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(within) => Some(within),
            None => error.source(),
        };
    }
    Error::archive(Fault::Compression(name, error.to_string().replace('\n', " ")))
}

/// Plain bytes on their way out.
struct Out<'a, W> {
    output: &'a mut W,
    buffer: Vec<u8>,
    count: u64,
}

impl<'a, W: Write> Out<'a, W> {
    fn new(output: &'a mut W) -> Out<'a, W> {
        Out { output, buffer: vec![0; 64 * 1024], count: 0 }
    }

    /// The first `n` bytes of the buffer, which came of the first `taken` bytes of the input.
    fn pass_on(&mut self, n: usize, taken: u64) -> Result<(), Error> {
        self.count += n as u64;
        if self.count > HARMLESS && self.count / MAX_GROWTH > taken {
            return Err(Error::archive(Fault::Bomb(self.count, MAX_GROWTH)));
        }
        self.output.write_all(&self.buffer[..n]).map_err(unwritten)
    }

    fn finish(self) -> Result<(), Error> {
        self.output.flush().map_err(unwritten)
    }
}

fn unwritten(source: io::Error) -> Error {
    Error::Write { member: Shown::new(b"the expanded bytes"), source }
}

struct Counted<R> {
    input: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.count += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use flate2::write::GzEncoder;

    use super::*;

    fn gzipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstded(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn expanded(bytes: &[u8], compression: Compression) -> Result<Vec<u8>, String> {
        let mut plain = Vec::new();
        expand(bytes, &mut plain, compression).map(|()| plain).map_err(|error| error.reason())
    }

    #[test]
    fn what_was_compressed_comes_back_whole_and_in_order() {
        let (a, b) = (vec![7; 300_000], b"and more".to_vec());
        for (compression, compress) in [
            (Compression::Gzip, gzipped as fn(&[u8]) -> Vec<u8>),
            (Compression::Zstd, zstded as fn(&[u8]) -> Vec<u8>),
        ] {
            let both = [compress(&a), compress(&b)].concat();
            assert_eq!(expanded(&both, compression).unwrap(), [a.clone(), b.clone()].concat());
        }
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstded(&b)].concat();
        assert_eq!(expanded(&skippable, Compression::Zstd).unwrap(), b);
    }

    #[test]
    fn what_is_cut_off_or_goes_on_is_refused() {
        for (compression, whole) in
            [(Compression::Gzip, gzipped(&[1; 5000])), (Compression::Zstd, zstded(&[1; 5000]))]
        {
            for end in 1..whole.len() {
                let error = expanded(&whole[..end], compression).unwrap_err();
                assert!(error.contains("cut off") || error.contains("cannot be expanded"), "{end}: {error}");
            }
            assert!(expanded(&[&whole[..], b"garbage"].concat(), compression).is_err());
            let mut damaged = whole.clone();
            let last = damaged.len() - 1;
            damaged[last] ^= 1;
            assert!(expanded(&damaged, compression).is_err(), "a wrong checksum");
        }
        assert!(expanded(b"", Compression::Gzip).is_err());
    }

    #[test]
    fn a_bomb_is_stopped_early() {
        let bomb = gzipped(&vec![0; 300 << 20]);
        let mut plain = Vec::new();
        let error = expand(&bomb[..], &mut plain, Compression::Gzip).unwrap_err();
        assert!(error.reason().contains("bomb"), "{}", error.reason());
        assert!(plain.len() < 100 << 20, "{} bytes came out", plain.len());
    }
}
