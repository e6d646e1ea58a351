//! What of an image is bound where. A directory of the image is a read-only bind, a link is a link of the skeleton; no byte is
//! written into an image, and none is copied.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use casemate_core::outcome::Refusal;
use casemate_core::policy::DockerRuntime;
use casemate_wire::image::{HOST_NAMES, MAX_NAMES, OURS};

use super::skeleton::{OWN, ROOT_AGAIN};

/// Mounts beneath what is bound, which have to be bound one by one: the engine's read-only binds are not recursive.
const MAX_BENEATH: usize = 64;
/// What fits into the skeleton.
const MAX_LINK: usize = 100;

pub(super) struct Layout {
    /// At the top, with what they point to.
    pub(super) links: Vec<(String, String)>,
    pub(super) etc: Etc,
    pub(super) binds: Vec<Bind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Etc {
    Synthesised,
    /// The image's own, or none.
    OfImage,
}

pub(super) struct Bind {
    pub(super) source: String,
    /// Where the engine is told to mount it, and where it is to be seen then.
    pub(super) target: String,
    pub(super) place: String,
    /// Device and inode of what must be there.
    pub(super) identity: (u64, u64),
}

impl Layout {
    /// Of the `host` image.
    pub(super) fn host() -> Result<Layout, Refusal> {
        let mut layout = Layout { links: Vec::new(), etc: Etc::Synthesised, binds: Vec::new() };
        for name in HOST_NAMES {
            layout.adopt(Path::new("/"), Path::new("/"), name)?;
        }
        // /usr links into the alternatives; the loader cache only lists libraries.
        for name in ["etc/alternatives", "etc/ld.so.cache"] {
            layout.adopt(Path::new("/"), Path::new("/"), name)?;
        }
        layout.beneath()?;
        Ok(layout)
    }

    /// Of the directory behind `image`. The engine takes paths, so what it made of them is looked at again before anything runs.
    pub(super) fn directory(image: BorrowedFd<'_>, runtime: DockerRuntime) -> Result<Layout, Refusal> {
        let way = PathBuf::from(format!("/proc/self/fd/{}", image.as_raw_fd()));
        let root = fs::read_link(&way).map_err(|error| unreadable(&way, &error))?;
        if identity(&root).ok() != identity(&way).ok() {
            return Err(Refusal::new(
                "the image directory was moved or replaced during the launch",
                "name a directory that stays where it is",
            ));
        }
        let mut layout = Layout { links: Vec::new(), etc: Etc::OfImage, binds: Vec::new() };
        let entries = fs::read_dir(&way).map_err(|error| unreadable(&root, &error))?;
        for (count, entry) in entries.enumerate() {
            if count >= MAX_NAMES {
                return Err(Refusal::new(
                    format!("the image has more than {MAX_NAMES} names at its top"),
                    "put them into directories: each is a mount of its own",
                ));
            }
            let name = entry.map_err(|error| unreadable(&root, &error))?.file_name();
            let name = name
                .to_str()
                .ok_or_else(|| Refusal::new("a name at the top of the image is not UTF-8", "rename it"))?;
            if !OURS.contains(&name) && name != OWN {
                layout.adopt(&way, &root, name)?;
            }
        }
        layout.place_etc(&way, runtime)?;
        layout.beneath()?;
        Ok(layout)
    }

    /// Whether all that is to be bound is where it was found.
    pub(super) fn is_there(&self) -> bool {
        let same = |bind: &Bind| {
            let found = fs::symlink_metadata(&bind.source).map(|found| (found.dev(), found.ino()));
            found.is_ok_and(|found| found == bind.identity)
        };
        self.binds.iter().all(same)
    }

    /// Takes over one name of what is behind `way`: a link as a link, a directory or a file as a bind. Devices, sockets and pipes are not
    /// for a cell. `root` is what the engine is told instead, which knows nothing of our ways.
    fn adopt(&mut self, way: &Path, root: &Path, place: &str) -> Result<(), Refusal> {
        let (source, seen) = (root.join(place), way.join(place));
        let found = match fs::symlink_metadata(&seen) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(unreadable(&source, &error)),
        };
        if found.is_symlink() {
            let target = fs::read_link(&seen).map_err(|error| unreadable(&source, &error))?;
            let target = target.to_str().filter(|target| target.len() <= MAX_LINK && place.len() <= MAX_LINK);
            let target = target.ok_or_else(|| {
                Refusal::new(
                    format!("the link /{place} at the top of the image is too long for the Docker wall"),
                    format!("links there are UTF-8, and {MAX_LINK} bytes at most; or use another wall"),
                )
            })?;
            self.links.push((place.to_owned(), target.to_owned()));
        } else if found.is_dir() || found.is_file() {
            self.bind(&source, place, (found.dev(), found.ino()))?;
        }
        Ok(())
    }

    fn bind(&mut self, source: &Path, place: &str, identity: (u64, u64)) -> Result<(), Refusal> {
        let source = source.to_str().ok_or_else(|| {
            Refusal::new(
                "the path of the image is not UTF-8, and the Docker Engine takes no other",
                "move it to a directory with another name",
            )
        })?;
        let place = format!("/{place}");
        self.binds.push(Bind { source: source.to_owned(), target: place.clone(), place, identity });
        Ok(())
    }

    /// The engine mounts `/etc/hostname` of its own. It must not have to make that file in the image, nor cover the image's.
    fn place_etc(&mut self, root: &Path, runtime: DockerRuntime) -> Result<(), Refusal> {
        if self.links.iter().any(|(name, _)| name == "etc") {
            return Err(Refusal::new(
                "/etc of the image is a link, and the Docker Engine makes a directory of it",
                "make it a directory, or use another wall",
            ));
        }
        let Some(etc) = self.binds.iter_mut().find(|bind| bind.place == "/etc") else { return Ok(()) };
        match runtime {
            // By this name it is mounted later.
            DockerRuntime::Runc => etc.target = format!("{ROOT_AGAIN}/etc"),
            // gVisor does not follow that. What it finds there, it does not have to make.
            DockerRuntime::Runsc => {
                let hostname = fs::symlink_metadata(root.join("etc/hostname"));
                if !hostname.is_ok_and(|found| found.is_file()) {
                    return Err(Refusal::new(
                        "the image has no /etc/hostname, and the Docker Engine's runsc would make it there",
                        "make an empty one in the image, or use --on gvisor",
                    ));
                }
            }
        }
        Ok(())
    }

    /// What is mounted beneath a bound directory is bound, too.
    fn beneath(&mut self) -> Result<(), Refusal> {
        let table = fs::read_to_string("/proc/self/mountinfo")
            .map_err(|error| unreadable(Path::new("/proc/self/mountinfo"), &error))?;
        let mut found = Vec::new();
        for point in table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped) {
            for bind in &self.binds {
                let Ok(rest) = point.strip_prefix(&bind.source) else { continue };
                if !rest.as_os_str().is_empty() {
                    found.push((point.clone(), format!("{}/{}", bind.place, rest.display())));
                }
            }
        }
        found.sort();
        found.dedup();
        if found.len() > MAX_BENEATH {
            return Err(Refusal::new(
                format!("{} file systems are mounted beneath the image's directories", found.len()),
                format!("the Docker wall takes {MAX_BENEATH}; use another wall"),
            ));
        }
        for (source, place) in found {
            let identity = identity(&source).map_err(|error| unreadable(&source, &error))?;
            self.bind(&source, place.trim_start_matches('/'), identity)?;
        }
        Ok(())
    }
}

/// As `mountinfo` writes paths: blanks and backslashes in octal.
pub(super) fn unescaped(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, more)) = rest.split_first() {
        let octal = (first == b'\\').then(|| more.get(..3)).flatten();
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) => (bytes.push(code), rest = &more[3..]).0,
            None => (bytes.push(first), rest = more).0,
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

fn unreadable(path: &Path, error: &io::Error) -> Refusal {
    Refusal::new(
        format!("cannot look at {}: {error}", path.display()),
        "the image must be readable for whoever runs casemate",
    )
}
