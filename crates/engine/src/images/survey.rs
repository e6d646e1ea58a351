//! Looks at an unpacked tree from outside, before it becomes an image: whoever unpacked it has read hostile bytes, and is not
//! believed.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::MAX_ENTRIES;
use super::error::{ImageError, at};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Surveyed {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

const SET_ID: u32 = 0o6000;
/// Each is a mount in every cell; the launcher takes no more, and none that is not UTF-8.
const MAX_TOP: usize = 256;

/// Files, directories and symbolic links of ours, without set-id bits, and not more than was allowed.
pub(super) fn survey(root: &Path, size_limit: u64) -> Result<Surveyed, ImageError> {
    let mut surveyed = Surveyed::default();
    let mut linked = HashSet::new();
    let mut directories = vec![root.to_owned()];
    let owner = rustix::process::geteuid().as_raw();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).map_err(at("list", &directory))? {
            let entry = entry.map_err(at("list", &directory))?;
            let path = entry.path();
            let meta = entry.metadata().map_err(at("look at", &path))?;
            let shown =
                || path.strip_prefix(root).unwrap_or(&path).display().to_string().escape_debug().to_string();
            let kind = meta.file_type();
            if !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
                return Err(ImageError::Survey(format!(
                    "{}, which is neither file, directory nor link",
                    shown()
                )));
            }
            if meta.uid() != owner || !kind.is_symlink() && meta.mode() & SET_ID != 0 {
                return Err(ImageError::Survey(format!("{}, which has another owner or sets ids", shown())));
            }
            surveyed.entries += 1;
            if kind.is_file() && (meta.nlink() == 1 || linked.insert(meta.ino())) {
                surveyed.bytes += meta.len();
            }
            if surveyed.entries > MAX_ENTRIES || surveyed.bytes > size_limit {
                return Err(ImageError::Survey("more than was allowed".into()));
            }
            if kind.is_dir() {
                directories.push(path);
            }
        }
    }
    check_top(root)?;
    if surveyed.entries == 0 { Err(ImageError::Empty) } else { Ok(surveyed) }
}

fn check_top(root: &Path) -> Result<(), ImageError> {
    let wrong =
        |why: &str| Err(ImageError::Document { what: "the top of the image".into(), why: why.into() });
    let names: Vec<_> =
        fs::read_dir(root).map_err(at("list", root))?.flatten().map(|entry| entry.file_name()).collect();
    if names.len() > MAX_TOP {
        return wrong(&format!("it has {} names, and {MAX_TOP} are the most", names.len()));
    }
    if names.iter().any(|name| name.to_str().is_none()) {
        return wrong("a name in it is not UTF-8");
    }
    Ok(())
}
