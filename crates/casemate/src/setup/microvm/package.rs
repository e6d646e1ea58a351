//! Debian's package of a kernel: which one, where it comes from, and what is in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ELSEWHERE, Place};
use crate::failure::{Failure, os_words};
use crate::progress::Step;
use crate::setup::apt::{Apt, Suite};
use crate::setup::program::read;

/// Depends on the newest kernel for virtual machines, and has nothing itself.
const META: &str = "linux-image-cloud-amd64";
const PREFIX: &str = "linux-image-";
const SUFFIX: &str = "-cloud-amd64";

const NO_DPKG: &str = "dpkg-deb takes packages apart: install dpkg";

/// A package that can be had.
pub(super) struct Offer<'a> {
    /// As `uname -r` says it.
    kernel: String,
    version: String,
    origin: Origin<'a>,
}

enum Origin<'a> {
    File(PathBuf),
    Archive(Apt<'a>),
}

/// What is taken out of it.
pub(super) struct Unpacked {
    pub(super) version: String,
    pub(super) vmlinuz: PathBuf,
    /// `/lib/modules/VERSION`, wherever that is in the package.
    pub(super) modules: PathBuf,
}

impl<'a> Offer<'a> {
    /// The newest one, from where this machine gets its packages.
    pub(super) async fn of_the_archive(place: &'a Place) -> Result<Offer<'a>, Failure> {
        let _step = Step::begin("looking for Debian's newest kernel for virtual machines");
        let apt = Apt::within(place, &Suite::of_this_machine(ELSEWHERE).await?)?;
        read(apt.command("apt-get", &["update"]), ELSEWHERE, ELSEWHERE).await?;
        let show = async |package: &str| {
            let command = apt.command("apt-cache", &["show", "--no-all-versions", package]);
            let shown = read(command, ELSEWHERE, ELSEWHERE).await?;
            Ok::<_, Failure>(String::from_utf8_lossy(&shown).into_owned())
        };
        let nothing = || Failure::new(format!("{META} does not name a kernel"), ELSEWHERE);
        let meta = show(META).await?;
        let kernel = dependency(&meta).ok_or_else(nothing)?;
        let shown = show(&format!("{PREFIX}{kernel}")).await?;
        let version = field(&shown, "Version").filter(|version| is_version(version)).ok_or_else(nothing)?;
        Ok(Offer { kernel, version: version.to_owned(), origin: Origin::Archive(apt) })
    }

    /// The one that is in a directory.
    pub(super) async fn lying_in(directory: &Path) -> Result<Offer<'a>, Failure> {
        let _step = Step::begin(format!("looking for a kernel in {}", directory.display()));
        let hint = format!("--from takes a directory with one package {PREFIX}VERSION{SUFFIX}_….deb");
        let entries = fs::read_dir(directory).map_err(|error| {
            Failure::new(format!("cannot read {}: {}", directory.display(), os_words(error)), &hint)
        })?;
        let mut offers = Vec::new();
        for entry in entries.flatten() {
            // No name of a directory is taken for an option.
            let path = std::path::absolute(entry.path()).unwrap_or_else(|_| entry.path());
            let name = entry.file_name().to_string_lossy().into_owned();
            if !path.is_file() || !name.starts_with(PREFIX) || !name.ends_with(".deb") {
                continue;
            }
            let mut ask = Command::new("dpkg-deb");
            ask.arg("--field").arg(&path).args(["Package", "Version"]);
            let fields = read(ask, NO_DPKG, &hint).await?;
            let fields = String::from_utf8_lossy(&fields);
            // The package that depends on it may lie there, too.
            let kernel = field(&fields, "Package").and_then(kernel_of);
            let version = field(&fields, "Version").filter(|version| is_version(version));
            if let Some((kernel, version)) = kernel.zip(version) {
                offers.push(Offer { kernel, version: version.to_owned(), origin: Origin::File(path) });
            }
        }
        let count = offers.len();
        match offers.pop() {
            Some(offer) if count == 1 => Ok(offer),
            Some(_) => Err(Failure::new(format!("{} has {count} kernels", directory.display()), hint)),
            None => Err(Failure::new(format!("{} has no kernel of Debian's", directory.display()), hint)),
        }
    }

    /// For people, and to tell it from another.
    pub(super) fn source(&self) -> String {
        format!("{PREFIX}{} {} (Debian)", self.kernel, self.version)
    }

    /// Its files, in a directory of ours. Nothing is installed, and no script of the package runs.
    pub(super) async fn unpack(&self, place: &Place) -> Result<Unpacked, Failure> {
        let name = format!("{PREFIX}{}", self.kernel);
        let file = match &self.origin {
            Origin::File(path) => path.clone(),
            Origin::Archive(apt) => {
                let _step = Step::begin(format!("fetching {name}"));
                let wanted = format!("{name}={}", self.version);
                read(apt.command("apt-get", &["download", &wanted]), ELSEWHERE, ELSEWHERE).await?;
                apt.fetched(ELSEWHERE)?
            }
        };
        let _step = Step::begin(format!("unpacking {name}"));
        let root = place.path("package");
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(file).arg(&root);
        read(unpack, NO_DPKG, ELSEWHERE).await?;
        let trees = ["lib/modules", "usr/lib/modules"].map(|path| root.join(path).join(&self.kernel));
        let modules = trees.into_iter().find(|path| path.is_dir());
        let Some(modules) = modules else {
            return Err(Failure::new(format!("{name} has no modules"), ELSEWHERE));
        };
        let vmlinuz = root.join(format!("boot/vmlinuz-{}", self.kernel));
        Ok(Unpacked { version: self.kernel.clone(), vmlinuz, modules })
    }
}

/// The kernel that the meta package depends on.
fn dependency(shown: &str) -> Option<String> {
    let packages = field(shown, "Depends")?.split(',');
    packages.filter_map(|package| kernel_of(package.split_whitespace().next()?)).next()
}

/// The kernel that a package of this name has: `6.1.0-13-cloud-amd64`. It becomes part of paths.
fn kernel_of(package: &str) -> Option<String> {
    let kernel = package.strip_prefix(PREFIX)?;
    let number = kernel.strip_suffix(SUFFIX)?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "+-.~".contains(c);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit()) && number.chars().all(is_allowed);
    is_number.then(|| kernel.to_owned())
}

fn is_version(word: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "+-.:~".contains(c);
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(is_allowed)
}

/// Of what `apt-cache show` and `dpkg-deb --field` print.
fn field<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meta_package_names_the_kernel() {
        let shown = "Package: linux-image-cloud-amd64\nVersion: 6.12.107-1\n\
                     Depends: linux-base, linux-image-6.12.107+deb13-cloud-amd64 (= 6.12.107-1)\nSize: 1496\n";
        assert_eq!(dependency(shown).unwrap(), "6.12.107+deb13-cloud-amd64");
        assert_eq!(field(shown, "Version"), Some("6.12.107-1"));
        assert_eq!(dependency("Package: linux-image-cloud-amd64\n"), None);
        assert_eq!(dependency("Depends: linux-image-amd64\n"), None);
        assert_eq!(field(shown, "Vers"), None);
    }

    #[test]
    fn what_becomes_part_of_a_path_is_looked_at() {
        assert_eq!(kernel_of("linux-image-6.1.0-56-cloud-amd64").unwrap(), "6.1.0-56-cloud-amd64");
        for package in [
            "linux-image-cloud-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-56-cloud-amd64-dbg",
            "linux-image-6.1/../../x-cloud-amd64",
            "linux-image-../x-cloud-amd64",
            "linux-image--cloud-amd64",
            "linux-headers-6.1.0-56-cloud-amd64",
        ] {
            assert_eq!(kernel_of(package), None, "{package}");
        }
        for version in ["", "-1", "1 2", "1/2", "1;x", "a"] {
            assert!(!is_version(version), "{version:?}");
        }
        assert!(is_version("1:6.1.192-2~bpo12+1"));
    }
}
