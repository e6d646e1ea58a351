//! Writes tar archives, also such that no honest program would write.

/// An archive in the making: members first, then [`Tar::end`].
#[derive(Debug, Clone, Default)]
pub struct Tar(Vec<u8>);

/// The header of one member. Everything in it can be wrong.
#[derive(Debug, Clone)]
pub struct Header<'a> {
    pub name: &'a [u8],
    pub kind: u8,
    pub size: u64,
    pub mode: u32,
    pub link: &'a [u8],
    pub mtime: u64,
}

impl<'a> Header<'a> {
    pub fn new(name: &'a str, kind: u8) -> Header<'a> {
        let mode = if kind == b'5' { 0o755 } else { 0o644 };
        Header { name: name.as_bytes(), kind, size: 0, mode, link: b"", mtime: 1_600_000_000 }
    }

    /// As ustar has it.
    pub fn block(&self) -> [u8; 512] {
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.name[..self.name.len().min(100)]);
        put(100, format!("{:07o}\0", self.mode).as_bytes());
        put(108, b"0001750\0");
        put(116, b"0001750\0");
        match self.size < 1 << 33 {
            true => put(124, format!("{:011o}\0", self.size).as_bytes()),
            false => put(124, &[&[0x80, 0, 0, 0][..], &self.size.to_be_bytes()].concat()),
        }
        put(136, format!("{:011o}\0", self.mtime).as_bytes());
        put(148, b"        ");
        put(156, &[self.kind]);
        put(157, &self.link[..self.link.len().min(100)]);
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

impl Tar {
    pub fn new() -> Tar {
        Tar::default()
    }

    /// A header, and whatever is to come after it, filled up to whole blocks.
    pub fn member(mut self, header: &Header<'_>, content: &[u8]) -> Tar {
        self.0.extend(header.block());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, name: &str, content: impl AsRef<[u8]>) -> Tar {
        self.file_with_mode(name, content, 0o644)
    }

    pub fn file_with_mode(self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> Tar {
        let content = content.as_ref();
        let header = Header { size: content.len() as u64, mode, ..Header::new(name, b'0') };
        self.member(&header, content)
    }

    pub fn directory(self, name: &str) -> Tar {
        self.member(&Header::new(name, b'5'), b"")
    }

    pub fn symlink(self, name: &str, target: &str) -> Tar {
        self.member(&Header { link: target.as_bytes(), ..Header::new(name, b'2') }, b"")
    }

    pub fn hard_link(self, name: &str, target: &str) -> Tar {
        self.member(&Header { link: target.as_bytes(), ..Header::new(name, b'1') }, b"")
    }

    /// A character or block device, or a FIFO, by its kind.
    pub fn special(self, name: &str, kind: u8) -> Tar {
        self.member(&Header::new(name, kind), b"")
    }

    /// An extended header for the member after it.
    pub fn pax(self, records: &[(&str, &str)]) -> Tar {
        let content: String = records.iter().map(|(key, value)| record(key, value)).collect();
        let header = Header { size: content.len() as u64, ..Header::new("PaxHeaders/x", b'x') };
        self.member(&header, content.as_bytes())
    }

    /// GNU's way to say a long name, or the target of a link (`K`).
    pub fn gnu_long(self, kind: u8, name: &str) -> Tar {
        let content = [name.as_bytes(), b"\0"].concat();
        self.member(&Header { size: content.len() as u64, ..Header::new("././@LongLink", kind) }, &content)
    }

    /// What there is so far, without an end.
    pub fn unfinished(self) -> Vec<u8> {
        self.0
    }

    /// Two blocks of zeros, filled up as usual.
    pub fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0.resize(self.0.len().next_multiple_of(10_240), 0);
        self.0
    }
}

/// The length of a record is part of the record.
fn record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len() + 1;
    while length != rest.len() + length.to_string().len() {
        length += 1;
    }
    format!("{length}{rest}")
}
