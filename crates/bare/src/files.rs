//! Small files: those of procfs, cgroupfs and images.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use rustix::fd::BorrowedFd;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, openat};

use crate::io;

/// The whole of a file.
pub fn read_at(dir: BorrowedFd<'_>, path: &str) -> io::Result<Vec<u8>> {
    let fd = openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    // Files of procfs and cgroupfs do not know their size, and most of them fit.
    let (mut bytes, mut length) = (vec![0; 8192], 0);
    loop {
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
        match rustix::io::read(&fd, &mut bytes[length..])? {
            0 => break,
            n => length += n,
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

pub fn read(path: &str) -> io::Result<Vec<u8>> {
    read_at(CWD, path)
}

pub fn read_text_at(dir: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    io::text(read_at(dir, path)?)
}

pub fn read_text(path: &str) -> io::Result<String> {
    read_text_at(CWD, path)
}

/// Writes to a file that exists, in one go, as files of procfs want it.
pub fn write_at(dir: BorrowedFd<'_>, path: &str, text: &str) -> io::Result<()> {
    let fd = openat(dir, path, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    rustix::io::write(&fd, text.as_bytes())?;
    Ok(())
}

pub fn write(path: &str, text: &str) -> io::Result<()> {
    write_at(CWD, path, text)
}

/// What a directory holds, by name and kind, without itself and its parent. Names that are not UTF-8 are none of ours.
pub fn list(dir: BorrowedFd<'_>) -> io::Result<Vec<(String, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push((name.into(), entry.file_type())),
        }
    }
    Ok(names)
}

/// As [`list`], by path.
pub fn list_path(path: &str) -> io::Result<Vec<(String, FileType)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags, Mode::empty())?;
    list(rustix::fd::AsFd::as_fd(&dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn small_and_large_files_are_read_to_their_end() {
        assert!(read_text("/proc/self/status").is_ok_and(|status| status.starts_with("Name:")));
        assert!(read("/proc/self/exe").is_err(), "a link is not followed");
        let path = format!("{}/casemate-bare-{}", std::env::temp_dir().display(), std::process::id());
        let bytes: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        std::fs::write(&path, &bytes).expect("a file");
        let found = read(&path);
        std::fs::remove_file(&path).expect("it was there");
        assert_eq!(found.expect("it can be read"), bytes);
    }

    #[test]
    fn a_directory_is_listed_without_itself() {
        let tasks = list_path("/proc/self/task").expect("every process has one");
        assert!(!tasks.is_empty() && tasks.iter().all(|(name, _)| name.parse::<u32>().is_ok()));
    }
}
