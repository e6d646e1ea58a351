//! What is in the store, by name and by digest.

use std::fs;
use std::io;

use casemate_core::image::{ImageDigest, digest_prefix};
use casemate_core::outcome::Refusal;

use super::error::{ImageError, at};
use super::names::Names;
use super::staging::Staging;
use super::{About, Images};

/// One image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    pub digest: ImageDigest,
    pub names: Vec<String>,
    /// Seconds since 1970.
    pub created: u64,
    /// In files.
    pub bytes: u64,
    pub entries: u64,
    pub format: String,
    pub source: String,
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    /// The image has other names.
    Name {
        digest: ImageDigest,
    },
    Image {
        digest: ImageDigest,
    },
}

impl Images {
    /// Every image, the oldest first.
    pub fn list(&self) -> Result<Vec<ImageInfo>, ImageError> {
        self.sweep()?;
        let names = Names::read(&self.dir)?;
        let mut images = Vec::new();
        for digest in self.digests()? {
            let path = self.tree(digest).join("image.json");
            let text = match fs::read(&path) {
                // Removed while we were looking.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text.map_err(at("read", &path))?,
            };
            let About { created, source, format, bytes, entries } =
                serde_json::from_slice(&text).map_err(|error| ImageError::Document {
                    what: path.display().to_string(),
                    why: error.to_string(),
                })?;
            let names = names.of(digest).map(str::to_owned).collect();
            images.push(ImageInfo { digest, names, created, bytes, entries, format, source });
        }
        images.sort_by_key(|image| (image.created, image.digest));
        Ok(images)
    }

    /// Removes a name, and its image if that was the last one; or an image with all its names. Not while it is used.
    pub fn remove(&self, asked: &str) -> Result<Removed, ImageError> {
        self.sweep()?;
        let digest = find(self, asked)?;
        let _guard = self.lock()?;
        let names = Names::read(&self.dir)?;
        let is_name = names.get(asked) == Some(digest);
        if is_name && names.of(digest).count() > 1 {
            names.without(|name, _| name == asked).prepare(&self.dir)?.commit()?;
            return Ok(Removed::Name { digest });
        }
        let tree = self.tree(digest);
        let path = tree.join("lock");
        let lock = fs::OpenOptions::new().read(true).write(true).open(&path).map_err(at("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(ImageError::InUse(asked.to_owned())),
            Err(fs::TryLockError::Error(error)) => return Err(at("lock", &path)(error)),
        }
        // First the names: an image without one is still whole, and a name without its image would lead nowhere.
        names.without(|_, of| of == digest).prepare(&self.dir)?.commit()?;
        drop(Staging::take_out(&self.staging(), &tree, lock)?);
        Ok(Removed::Image { digest })
    }

    fn digests(&self) -> Result<Vec<ImageDigest>, ImageError> {
        let trees = self.dir.join("trees");
        let entries = match fs::read_dir(&trees) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(at("list", &trees))?,
        };
        let digest =
            |entry: fs::DirEntry| format!("sha256:{}", entry.file_name().to_string_lossy()).parse().ok();
        Ok(entries.flatten().filter_map(digest).collect())
    }
}

/// The image that a name, a digest or the beginning of one stands for.
pub(super) fn find(images: &Images, asked: &str) -> Result<ImageDigest, Refusal> {
    let unreadable = |error: ImageError| Refusal::new(error.to_string(), error.hint());
    let names = Names::read(&images.dir).map_err(unreadable)?;
    if let Some(digest) = names.get(asked) {
        return Ok(digest);
    }
    let digests = images.digests().map_err(unreadable)?;
    let matching: Vec<ImageDigest> = match digest_prefix(asked) {
        Some(prefix) => digests.into_iter().filter(|digest| digest.hex().starts_with(prefix)).collect(),
        None => Vec::new(),
    };
    match matching[..] {
        [digest] => Ok(digest),
        [] => Err(unknown(asked, &names)),
        _ => Err(Refusal::new(
            format!("{} images begin with {asked}", matching.len()),
            "give more digits; `casemate image ls` lists the images",
        )),
    }
}

fn unknown(asked: &str, names: &Names) -> Refusal {
    let near: Vec<&str> =
        names.iter().map(|(name, _)| name).filter(|name| is_near(name, asked)).take(3).collect();
    let hint = match near[..] {
        [] if asked == "default" => "build it first: casemate image build".to_owned(),
        [] => "`casemate image ls` lists what is there; get one with `casemate image import`, `pull` or `build`, or use --image host or a \
               directory such as ./rootfs"
            .to_owned(),
        _ => format!("is it {}? `casemate image ls` lists all", near.join(" or ")),
    };
    Refusal::new(format!("there is no image called {}", asked.escape_debug()), hint)
}

/// One contains the other, or they differ in a letter or two.
fn is_near(name: &str, asked: &str) -> bool {
    let contains = asked.len() >= 3 && (name.contains(asked) || asked.contains(name));
    contains || name.len().abs_diff(asked.len()) <= 2 && distance(name.as_bytes(), asked.as_bytes()) <= 2
}

/// Letters to be changed, added or left out, as Levenshtein counts them.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_those_that_were_probably_meant() {
        for (name, asked) in [("default", "defualt"), ("debian:12", "debian"), ("tools", "tool"), ("a", "b")]
        {
            assert!(is_near(name, asked), "{name} {asked}");
        }
        for (name, asked) in [("default", "alpine"), ("tools:1", "xyz"), ("debian:12", "de")] {
            assert!(!is_near(name, asked), "{name} {asked}");
        }
        assert_eq!(distance(b"kitten", b"sitting"), 3);
    }
}
