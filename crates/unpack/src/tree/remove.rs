//! Removes what is in the way, or hidden by a whiteout. Links are removed and never followed.

use std::collections::BTreeSet;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Removes `name` in `directory`, which is `path` below the root, with all that is below it, but for what is in `kept`. If there is no
/// such name, that is fine, too.
pub(super) fn entry(
    directory: BorrowedFd<'_>,
    name: &[u8],
    path: &[u8],
    kept: &BTreeSet<Vec<u8>>,
) -> Result<(), Errno> {
    let stays = is_kept(path, kept);
    if !stays {
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno),
        }
    }
    let below = match open(directory, name) {
        // A file or link that stays has nothing below it.
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) if stays => return Ok(()),
        opened => opened?,
    };
    content(below, path, kept)?;
    if stays { Ok(()) } else { unlinkat(directory, name, AtFlags::REMOVEDIR) }
}

/// Removes everything in the directory at `path` but for what is in `kept`.
pub(super) fn content(directory: OwnedFd, path: &[u8], kept: &BTreeSet<Vec<u8>>) -> Result<(), Errno> {
    // All names first: a directory that changes while it is read may show some twice, and others never.
    // Opened once more, as `Dir::read_from` makes a call that the filter does not have.
    let mut listing = Dir::new(open(directory.as_fd(), b".")?)?;
    let mut names = Vec::new();
    while let Some(entry) = listing.read() {
        let name = entry?.file_name().to_bytes().to_vec();
        if !matches!(&name[..], b"." | b"..") {
            names.push(name);
        }
    }
    for name in names {
        let below = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
        entry(directory.as_fd(), &name, &below, kept)?;
    }
    Ok(())
}

/// Itself, or something below it.
fn is_kept(path: &[u8], kept: &BTreeSet<Vec<u8>>) -> bool {
    let below = [path, b"/"].concat();
    kept.contains(path) || kept.range(below.clone()..).next().is_some_and(|next| next.starts_with(&below))
}

fn open(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}
