//! Kernel modules: which there are, what each needs, and an order in which they can be inserted.
//!
//! What a module needs stands in the section `.modinfo` of the module itself. `modules.dep`, where others look it up, is made when the
//! package is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ELSEWHERE, cannot, read_file};
use crate::failure::Failure;
use crate::setup::program;

const NO_XZ: &str = "install it with: apt-get install xz-utils";
const DAMAGED: &str = "the package is damaged, or not Debian's: get it again";

/// A module that is wanted for itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) name: &'static str,
    /// Whether a kernel that has none is of use.
    is_needed: bool,
}

impl Target {
    pub(super) const fn needed(name: &'static str) -> Target {
        Target { name, is_needed: true }
    }

    /// Taken if there is one.
    pub(super) const fn welcome(name: &'static str) -> Target {
        Target { name, is_needed: false }
    }
}

/// What a package of a kernel has.
#[derive(Debug)]
pub(super) struct Tree {
    files: BTreeMap<String, PathBuf>,
    /// Parts of the kernel itself.
    built_in: BTreeSet<String>,
}

impl Tree {
    /// A directory as `/lib/modules/VERSION`.
    pub(super) fn read(root: &Path) -> Result<Tree, Failure> {
        let list = root.join("modules.builtin");
        let list = String::from_utf8_lossy(&read_file(&list, ELSEWHERE)?).into_owned();
        let built_in = list.lines().filter_map(|path| name_of(path.rsplit('/').next()?)).collect();
        let mut tree = Tree { files: BTreeMap::new(), built_in };
        tree.walk(&root.join("kernel"))?;
        Ok(tree)
    }

    fn walk(&mut self, directory: &Path) -> Result<(), Failure> {
        let cannot_read = |error| cannot("read", directory, error);
        for entry in fs::read_dir(directory).map_err(cannot_read)? {
            let entry = entry.map_err(cannot_read)?;
            // Links lead out of the package.
            match entry.file_type().map_err(cannot_read)? {
                kind if kind.is_dir() => self.walk(&entry.path())?,
                kind if kind.is_file() => {
                    let name = entry.file_name().to_str().and_then(name_of);
                    self.files.extend(name.map(|name| (name, entry.path())));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// These modules, and all that they need.
    pub(super) async fn load(&self, targets: &[Target]) -> Result<Modules, Failure> {
        let mut modules = Modules(BTreeMap::new());
        let mut wanted = Vec::new();
        for target in targets.iter().rev().filter(|target| !self.built_in.contains(target.name)) {
            match self.files.contains_key(target.name) {
                true => wanted.push(target.name.to_owned()),
                false if target.is_needed => {
                    return Err(Failure::new(
                        format!("the package has no module {}", target.name),
                        ELSEWHERE,
                    ));
                }
                false => {}
            }
        }
        while let Some(name) = wanted.pop() {
            if modules.0.contains_key(&name) {
                continue;
            }
            let Some(path) = self.files.get(&name) else {
                return Err(Failure::new(
                    format!("a module needs {name}, which the package does not have"),
                    DAMAGED,
                ));
            };
            let bytes = bytes(path).await?;
            let info = Modinfo::read(&bytes)
                .map_err(|malformed| Failure::new(format!("{}: {malformed}", path.display()), DAMAGED))?;
            let needs = info.needs.into_iter().filter(|name| !self.built_in.contains(name)).collect();
            let wishes = info.wishes.iter().filter_map(|wish| self.granting(wish)).collect();
            let module = Module { needs, wishes, bytes };
            wanted.extend(module.needs.iter().chain(&module.wishes).cloned());
            modules.0.insert(name, module);
        }
        Ok(modules)
    }

    /// What grants a wish, if that has to be inserted. Wishes name algorithms, too, and the generic module of one will do.
    fn granting(&self, wish: &str) -> Option<String> {
        let candidates = [wish.to_owned(), format!("{wish}_generic")];
        let is_known = |name: &String| self.built_in.contains(name) || self.files.contains_key(name);
        candidates.into_iter().find(is_known).filter(|name| !self.built_in.contains(name))
    }
}

/// What a module is called that is in a file of this name, if it is one.
fn name_of(file: &str) -> Option<String> {
    module_name(file.strip_suffix(".xz").unwrap_or(file).strip_suffix(".ko")?)
}

/// As the kernel spells it. No more than that is allowed in a name: files are called by it.
fn module_name(word: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (!word.is_empty() && word.chars().all(is_allowed)).then(|| word.replace('-', "_"))
}

/// What the kernel is given: newer packages have their modules compressed.
async fn bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return read_file(path, DAMAGED);
    }
    let mut xz = Command::new("xz");
    xz.args(["--decompress", "--stdout", "--"]).arg(path);
    program::read(xz, NO_XZ, DAMAGED).await
}

/// Modules by name, with all that they need.
#[derive(Debug)]
pub(super) struct Modules(BTreeMap<String, Module>);

#[derive(Debug)]
struct Module {
    needs: Vec<String>,
    wishes: Vec<String>,
    bytes: Vec<u8>,
}

impl Modules {
    /// Each after what it needs, and otherwise in the order in which they are asked for. What is there already is left out.
    pub(super) fn order(&self, targets: &[Target], there: &[String]) -> Result<Vec<String>, Failure> {
        let mut walk = Walk {
            modules: self,
            done: there.iter().cloned().collect(),
            path: Vec::new(),
            order: Vec::new(),
        };
        for target in targets.iter().filter(|target| self.0.contains_key(target.name)) {
            walk.visit(target.name)?;
        }
        Ok(walk.order)
    }

    pub(super) fn bytes(&self, name: &str) -> &[u8] {
        self.0.get(name).map_or(&[], |module| &module.bytes)
    }
}

struct Walk<'a> {
    modules: &'a Modules,
    done: BTreeSet<String>,
    /// From a target to where we are.
    path: Vec<String>,
    order: Vec<String>,
}

impl Walk<'_> {
    fn visit(&mut self, name: &str) -> Result<(), Failure> {
        if self.done.contains(name) {
            return Ok(());
        }
        if self.path.iter().any(|other| other == name) {
            let circle = format!("{} -> {name}", self.path.join(" -> "));
            return Err(Failure::new(format!("modules need each other: {circle}"), DAMAGED));
        }
        let Some(module) = self.modules.0.get(name) else { return Ok(()) };
        self.path.push(name.to_owned());
        for other in &module.needs {
            self.visit(other)?;
        }
        // A wish is no need: two modules may wish for each other.
        for other in &module.wishes {
            if !self.path.contains(other) {
                self.visit(other)?;
            }
        }
        self.path.pop();
        self.done.insert(name.to_owned());
        self.order.push(name.to_owned());
        Ok(())
    }
}

/// What a module says about itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Modinfo {
    /// Without these it cannot be inserted.
    needs: Vec<String>,
    /// It asks for these when it is inserted, and there is nobody in the machine who would answer.
    wishes: Vec<String>,
}

/// Why something is not a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Malformed {
    NotAModule,
    CutOff,
    SaysNothing,
    BadName,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::NotAModule => "not a kernel module for x86_64",
            Malformed::CutOff => "a kernel module that is cut off",
            Malformed::SaysNothing => "a kernel module that does not say what it needs",
            Malformed::BadName => "a kernel module that needs something which cannot be a module",
        })
    }
}

impl Modinfo {
    fn read(file: &[u8]) -> Result<Modinfo, Malformed> {
        let mut info = Modinfo::default();
        let mut says_something = false;
        for line in section(file, b".modinfo")?.split(|byte| *byte == 0) {
            let words = |key: &str| line.strip_prefix(key.as_bytes()).map(String::from_utf8_lossy);
            if let Some(names) = words("depends=") {
                says_something = true;
                for name in names.split(',').filter(|name| !name.is_empty()) {
                    info.needs.push(module_name(name).ok_or(Malformed::BadName)?);
                }
            } else if let Some(words) = words("softdep=") {
                let mut is_before = false;
                for word in words.split_ascii_whitespace() {
                    match word {
                        "pre:" => is_before = true,
                        "post:" => is_before = false,
                        name if is_before => info.wishes.extend(module_name(name)),
                        _ => {}
                    }
                }
            }
        }
        if says_something { Ok(info) } else { Err(Malformed::SaysNothing) }
    }
}

/// Of an ELF file (elf(5)): what of its headers we look at, and the values that a module has there.
const IDENTITY: &[u8] = b"\x7fELF\x02\x01\x01";
const TYPE_AT: u64 = 0x10;
const RELOCATABLE: u64 = 1;
const MACHINE_AT: u64 = 0x12;
const X86_64: u64 = 62;
const SECTIONS_AT: u64 = 0x28;
const SECTION_SIZE_AT: u64 = 0x3a;
const SECTION_SIZE: u64 = 64;
const SECTION_COUNT_AT: u64 = 0x3c;
const NAMES_SECTION_AT: u64 = 0x3e;
/// And of each section's.
const NAME_AT: u64 = 0x00;
const KIND_AT: u64 = 0x04;
const DATA: u64 = 1;
const STRINGS: u64 = 3;
const OFFSET_AT: u64 = 0x18;
const SIZE_AT: u64 = 0x20;

/// The content of a section.
fn section<'a>(file: &'a [u8], name: &[u8]) -> Result<&'a [u8], Malformed> {
    if !file.starts_with(IDENTITY) {
        return Err(Malformed::NotAModule);
    }
    let is = |at, expected| number::<2>(file, at).map(|found| found == expected);
    if !is(TYPE_AT, RELOCATABLE)? || !is(MACHINE_AT, X86_64)? || !is(SECTION_SIZE_AT, SECTION_SIZE)? {
        return Err(Malformed::NotAModule);
    }
    let table = number::<8>(file, SECTIONS_AT)?;
    let count = number::<2>(file, SECTION_COUNT_AT)?;
    let header = |index: u64| {
        let at = (index < count).then(|| table.checked_add(index * SECTION_SIZE)).flatten();
        part(file, at.ok_or(Malformed::CutOff)?, SECTION_SIZE)
    };
    let content = |header: &[u8]| part(file, number::<8>(header, OFFSET_AT)?, number::<8>(header, SIZE_AT)?);
    let names = header(number::<2>(file, NAMES_SECTION_AT)?)?;
    if number::<4>(names, KIND_AT)? != STRINGS {
        return Err(Malformed::NotAModule);
    }
    let names = content(names)?;
    for index in 0..count {
        let header = header(index)?;
        let at = usize::try_from(number::<4>(header, NAME_AT)?).map_err(|_| Malformed::CutOff)?;
        let found = names.get(at..).ok_or(Malformed::CutOff)?.split(|byte| *byte == 0).next();
        if found == Some(name) && number::<4>(header, KIND_AT)? == DATA {
            return content(header);
        }
    }
    Err(Malformed::SaysNothing)
}

/// A little-endian number of so many bytes.
fn number<const BYTES: u64>(bytes: &[u8], at: u64) -> Result<u64, Malformed> {
    let bytes = part(bytes, at, BYTES)?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn part(bytes: &[u8], at: u64, length: u64) -> Result<&[u8], Malformed> {
    let end = at.checked_add(length).ok_or(Malformed::CutOff)?;
    let range = usize::try_from(at).ok().zip(usize::try_from(end).ok());
    range.and_then(|(at, end)| bytes.get(at..end)).ok_or(Malformed::CutOff)
}

#[cfg(test)]
mod tests;
