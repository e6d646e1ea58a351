//! QEMU, and a kernel for it, as `casemate setup microvm` gets them: once, for all homes of all tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages;
use crate::shell::{self, Result, heading};

/// Where tests look for a home with the kernel (`crates/testkit/src/microvm.rs`).
pub(crate) const VARIABLE: &str = "CASEMATE_TEST_MICROVM";

/// Without a network: a directory with Debian's package of its kernel for virtual machines.
const PACKAGES: &str = "CASEMATE_TEST_KERNEL_PACKAGES";

const QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// What the image is called there, and what is in it.
const IMAGE: &str = "suite";
const PROGRAMS: [&str; 8] =
    ["python3", "nodejs", "strace", "procps", "util-linux", "busybox-static", "buildah", "runc"];

/// Says which modules are taken.
const SOURCE: &str = "crates/casemate/src/setup/microvm.rs";

/// A home with a kernel in it, and QEMU on this machine.
pub(crate) fn ensure(casemate: &Path) -> Result<PathBuf> {
    if !Path::new(QEMU).exists() {
        packages::ensure(&["qemu-system-x86"])?;
    }
    let home = shell::target_dir().join("microvm-home");
    let (source, made_by) = (shell::root().join(SOURCE), home.join("made-by"));
    let source = fs::read(&source).map_err(|error| format!("cannot read {}: {error}", source.display()))?;
    let run = |words: &[&str]| shell::run(Command::new(casemate).args(words).env("CASEMATE_HOME", &home));
    let is_there = home.join("microvm/kernel/kernel.json").exists();
    if !is_there || fs::read(&made_by).is_ok_and(|made_by| made_by != source) {
        heading("getting a kernel for microVMs");
        let mut setup = Command::new(casemate);
        setup.args(["setup", "microvm"]).env("CASEMATE_HOME", &home);
        if let Some(packages) = std::env::var_os(PACKAGES) {
            setup.arg("--from").arg(packages);
        }
        shell::run(&mut setup)?;
        write(&made_by, &source)?;
    }
    let (recipe, path) = (recipe(), home.join("suite.toml"));
    if fs::read_to_string(&path).is_ok_and(|made_of| made_of == recipe) {
        heading("an image for microVMs is there");
    } else {
        heading("building an image for microVMs");
        packages::ensure(&["mmdebstrap"])?;
        let fresh = home.join("fresh.toml");
        write(&fresh, recipe.as_bytes())?;
        run(&["image", "build", &fresh.to_string_lossy()])?;
        fs::rename(&fresh, &path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    // It works, and whoever needs such a machine next finds a template of it.
    run(&["run", "--on", "microvm", "--image", IMAGE, "--", "true"])?;
    Ok(home)
}

fn write(path: &Path, bytes: &[u8]) -> Result {
    fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Of this machine's own release of Debian, whose packages its mirrors have; with what shows that a machine is one.
fn recipe() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.unwrap_or("stable").trim_matches('"');
    format!("name = \"{IMAGE}\"\nsuite = \"{suite}\"\npackages = {PROGRAMS:?}\nsize-limit = \"1G\"\n")
}
