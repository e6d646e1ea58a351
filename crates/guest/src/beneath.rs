//! Opens files beneath a directory, following no link. Kernels without `openat2` (gVisor's is one) get a walk that opens
//! name after name.

use casemate_bare::io;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS);

pub(crate) fn open_beneath(root: impl AsFd, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let root = root.as_fd();
    match openat2(root, path, flags, mode, RESOLVE) {
        Err(Errno::NOSYS) => walk(root, path, flags, mode),
        opened => Ok(opened?),
    }
}

/// Without links and without `..`, no name leads out of the directory that it is looked up in, whatever is renamed meanwhile.
fn walk(root: impl AsFd, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let names = || path.split('/').filter(|name| !matches!(*name, "" | "."));
    if path.is_empty() {
        return Err(Errno::NOENT.into());
    }
    if path.starts_with('/') || names().any(|name| name == "..") {
        return Err(Errno::XDEV.into());
    }
    // What ends in a slash has to be a directory; so has the root itself.
    let flags = match path.rsplit('/').next() {
        Some("" | ".") => flags | OFlags::DIRECTORY,
        _ => flags,
    };
    let Some(last) = names().next_back() else { return Ok(openat(root, ".", flags, mode)?) };
    let above = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory: Option<OwnedFd> = None;
    let count = names().count();
    for name in names().take(count - 1) {
        let at = directory.as_ref().map_or(root.as_fd(), AsFd::as_fd);
        let next = openat(at, name, above, Mode::empty()).map_err(|error| no_link(at, name, error))?;
        directory = Some(next);
    }
    let at = directory.as_ref().map_or(root.as_fd(), AsFd::as_fd);
    let opened =
        openat(at, last, flags | OFlags::NOFOLLOW, mode).map_err(|error| no_link(at, last, error))?;
    // With O_PATH, a link itself would be opened.
    if flags.contains(OFlags::PATH) && is_link(opened.as_fd(), "")? {
        return Err(Errno::LOOP.into());
    }
    Ok(opened)
}

/// A link that should have been a directory is answered with ENOTDIR; `openat2` says ELOOP.
fn no_link(at: impl AsFd, name: &str, error: Errno) -> Errno {
    match error {
        Errno::NOTDIR if is_link(at, name).unwrap_or(false) => Errno::LOOP,
        error => error,
    }
}

fn is_link(at: impl AsFd, name: &str) -> io::Result<bool> {
    use rustix::fs::{AtFlags, FileType, statat};
    let stat = statat(at, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::os::unix::fs::symlink;
    use std::string::String;

    use super::*;

    /// What comes of it, in a word: the inode, or the error.
    fn told(opened: io::Result<OwnedFd>) -> String {
        match opened {
            Ok(file) => format!("inode {}", rustix::fs::fstat(&file).expect("open").st_ino),
            Err(error) => format!("{:?}", error.raw_os_error()),
        }
    }

    #[test]
    fn the_walk_finds_what_the_kernel_finds() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("a/b")).expect("directories");
        std::fs::write(at("a/file"), "x").expect("a file");
        for (target, name) in [
            ("a", "to-a"),
            ("a/file", "to-file"),
            ("..", "a/up"),
            ("/etc", "etc"),
            ("nowhere", "lost"),
            ("loop", "loop"),
        ] {
            symlink(target, at(name)).expect("a link");
        }
        let opened = std::fs::File::open(root.path()).expect("it opens");
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for path in [
            ".",
            "./",
            "a",
            "a/",
            "a/.",
            "./a//b",
            "a/b",
            "a/file",
            "a/file/",
            "a/file/x",
            "a/none",
            "none",
            "none/x",
            "..",
            "a/..",
            "a/../a",
            "a/b/../../..",
            "/",
            "/etc",
            "to-a",
            "to-a/",
            "to-a/file",
            "to-file",
            "a/up",
            "a/up/a",
            "etc",
            "etc/passwd",
            "lost",
            "lost/x",
            "loop",
            "loop/x",
            "",
        ] {
            for flags in [OFlags::RDONLY | OFlags::NONBLOCK, directory, OFlags::PATH] {
                let kernel = openat2(&opened, path, flags, Mode::empty(), RESOLVE).map_err(io::Error::from);
                let walked = walk(&opened, path, flags, Mode::empty());
                let (kernel, walked) = (told(kernel), told(walked));
                // Out of a directory and back again is nothing that anybody asks for.
                let same = kernel == walked || path.contains("..") && !walked.starts_with("inode");
                assert!(same, "{path:?} with {flags:?}: {kernel} by the kernel, {walked} by the walk");
            }
        }
        let created = walk(
            &opened,
            "a/new",
            OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        );
        assert!(created.is_ok() && at("a/new").exists());
        let through = walk(
            &opened,
            "lost",
            OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        );
        assert_eq!(told(through), format!("{:?}", Some(libc::ELOOP)));
        assert!(!at("nowhere").exists());
    }
}
