//! `--in`: opens what the caller names, before anything runs.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use casemate_core::outcome::Refusal;
use casemate_core::request::GuestPath;
use casemate_engine::{Entry, Input};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::describe;
use crate::failure::os_words;
use crate::render::terminal::one_line;

/// Files and directories in all. Each file stays open until it has been sent.
const MAX_ENTRIES: usize = 16_384;
/// Directories within directories.
const MAX_DEPTH: usize = 64;
/// Without O_NONBLOCK a pipe that took the file's place would block us.
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// What goes in, parents first, and remarks on what was left out.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) inputs: Vec<Input>,
    pub(crate) remarks: Vec<String>,
    directories: HashSet<String>,
}

pub(crate) fn gather(hosts: &[PathBuf], guests: &[GuestPath]) -> Result<Gathered, Refusal> {
    let mut gathered = Gathered::default();
    if !hosts.is_empty() {
        allow_many_open_files();
    }
    for (host, guest) in hosts.iter().zip(guests) {
        gathered.parents(guest.as_str());
        gathered.root(host, guest.as_str())?;
    }
    Ok(gathered)
}

impl Gathered {
    fn root(&mut self, host: &Path, guest: &str) -> Result<(), Refusal> {
        let stat = look(CWD, host.as_os_str()).map_err(|error| cannot_read(host, error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(CWD, host.as_os_str(), host, guest.to_owned()),
            FileType::Directory => {
                let flags = OPEN | OFlags::DIRECTORY;
                let dir =
                    openat(CWD, host, flags, Mode::empty()).map_err(|error| cannot_read(host, error))?;
                self.directory(&dir, &stat, host, guest.to_owned(), 0)
            }
            other => Err(Refusal::new(
                format!("{} is {} and cannot be copied in", shown(host), describe(other)),
                match other {
                    FileType::Symlink => "name the file that it points to",
                    _ => "--in takes regular files and directories",
                },
            )),
        }
    }

    fn directory(
        &mut self,
        dir: &OwnedFd,
        stat: &Stat,
        host: &Path,
        guest: String,
        depth: usize,
    ) -> Result<(), Refusal> {
        if depth > MAX_DEPTH {
            return Err(Refusal::new(
                format!("{} is more than {MAX_DEPTH} directories deep", shown(host)),
                "copy in a smaller tree, or an archive",
            ));
        }
        let mode = stat.st_mode & 0o777;
        self.push(Input { path: guest.clone(), entry: Entry::Directory { mode }, content: None }, host)?;
        self.directories.insert(guest.clone());
        for name in names(dir).map_err(|error| cannot_read(host, error))? {
            let host = host.join(OsStr::from_bytes(&name));
            let Ok(name) = std::str::from_utf8(&name) else {
                self.leave_out(&host, "its name is not valid UTF-8");
                continue;
            };
            let guest = format!("{guest}/{name}");
            let stat = look(dir, OsStr::new(name)).map_err(|error| cannot_read(&host, error))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => self.file(dir, OsStr::new(name), &host, guest)?,
                FileType::Directory => {
                    let child = openat(dir, name, OPEN | OFlags::DIRECTORY, Mode::empty())
                        .map_err(|error| cannot_read(&host, error))?;
                    self.directory(&child, &stat, &host, guest, depth + 1)?;
                }
                other => self.leave_out(&host, describe(other)),
            }
        }
        Ok(())
    }

    fn file(&mut self, dir: impl AsFd, name: &OsStr, host: &Path, guest: String) -> Result<(), Refusal> {
        let opened = openat(dir, name, OPEN, Mode::empty()).and_then(|file| Ok((fstat(&file)?, file)));
        let (stat, file) = opened.map_err(|error| cannot_read(host, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            self.leave_out(host, "it changed while it was read");
            return Ok(());
        }
        let entry = Entry::File { mode: stat.st_mode & 0o777, size: stat.st_size as u64 };
        self.push(Input { path: guest, entry, content: Some(File::from(file)) }, host)
    }

    /// Directories between the cell's own ones and what the caller named.
    fn parents(&mut self, guest: &str) {
        for parent in super::parents(guest) {
            if self.directories.insert(parent.to_owned()) {
                let entry = Entry::Directory { mode: 0o755 };
                self.inputs.push(Input { path: parent.to_owned(), entry, content: None });
            }
        }
    }

    fn push(&mut self, input: Input, host: &Path) -> Result<(), Refusal> {
        if self.inputs.len() >= MAX_ENTRIES {
            return Err(Refusal::new(
                format!("{} brings the files to copy in above {MAX_ENTRIES}", shown(host)),
                "copy in a smaller tree, or an archive",
            ));
        }
        self.inputs.push(input);
        Ok(())
    }

    fn leave_out(&mut self, host: &Path, why: &str) {
        self.remarks.push(format!("--in left out {}: {why}", shown(host)));
    }
}

/// In a fixed order, so that the same tree is always sent in the same way.
fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn look(dir: impl AsFd, name: &OsStr) -> Result<Stat, Errno> {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Our own soft limit is often 1024; the cell's is set elsewhere.
fn allow_many_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn cannot_read(host: &Path, error: Errno) -> Refusal {
    let hint = match error {
        Errno::MFILE | Errno::NFILE => "raise `ulimit -n`, or copy in an archive",
        Errno::ACCESS => "copy in what you can read yourself",
        _ => "--in takes HOST:GUEST, and HOST is a file or directory that exists",
    };
    Refusal::new(format!("cannot read {}: {}", shown(host), os_words(error)), hint)
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn put(host: &Path, guest: &str) -> Result<Gathered, Refusal> {
        gather(&[host.to_owned()], &[GuestPath::new(guest).unwrap()])
    }

    fn paths(gathered: &Gathered) -> Vec<&str> {
        gathered.inputs.iter().map(|input| input.path.as_str()).collect()
    }

    #[test]
    fn a_file_comes_with_its_bytes_mode_and_parents() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        fs::write(&file, "hello").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4750)).unwrap();
        let mut gathered = put(&file, "/work/x/y/a").unwrap();
        assert_eq!(paths(&gathered), ["/work/x", "/work/x/y", "/work/x/y/a"]);
        let input = gathered.inputs.pop().unwrap();
        assert_eq!(input.entry, Entry::File { mode: 0o750, size: 5 });
        let mut text = String::new();
        input.content.unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn a_tree_is_sent_parents_first_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("b/c")).unwrap();
        fs::write(dir.path().join("b/c/z"), "").unwrap();
        fs::write(dir.path().join("a"), "").unwrap();
        let gathered = put(dir.path(), "/work/t").unwrap();
        assert_eq!(paths(&gathered), ["/work/t", "/work/t/a", "/work/t/b", "/work/t/b/c", "/work/t/b/c/z"]);
        assert!(gathered.remarks.is_empty());
    }

    #[test]
    fn links_and_special_files_in_a_tree_are_left_out_and_named() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/etc/passwd", dir.path().join("link")).unwrap();
        symlink("/etc", dir.path().join("dir")).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        fs::write(dir.path().join(OsStr::from_bytes(b"\xff")), "").unwrap();
        let gathered = put(dir.path(), "/work/t").unwrap();
        assert_eq!(paths(&gathered), ["/work/t"]);
        assert_eq!(gathered.remarks.len(), 4, "{:?}", gathered.remarks);
        assert!(gathered.remarks.iter().any(|remark| remark.ends_with("link: a symbolic link")));
    }

    #[test]
    fn a_link_that_is_named_itself_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink("/etc/passwd", &link).unwrap();
        assert!(put(&link, "/work/a").unwrap_err().reason.contains("symbolic link"));
        assert!(put(Path::new("/dev/zero"), "/work/a").unwrap_err().reason.contains("a device"));
        assert!(put(Path::new("/no/such"), "/work/a").unwrap_err().reason.contains("/no/such"));
    }

    #[test]
    fn a_tree_without_end_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let deep = (0..70).fold(dir.path().to_owned(), |path, _| path.join("d"));
        fs::create_dir_all(deep).unwrap();
        assert!(put(dir.path(), "/work/t").unwrap_err().reason.contains("directories deep"));
    }
}
