//! The programs and directories that the candidates use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Result};

const TRUE: &str = "int main(void) { return 0; }\n";
/// Says that it runs, then waits to be killed.
const HOLD: &str = "#include <unistd.h>\nint main(void) { write(1, \".\", 1); for (;;) pause(); }\n";

/// Beside the build output: evidence is flushed to a disk, as it would be in use. Gone when dropped.
pub(super) struct Stage {
    dir: PathBuf,
}

impl Stage {
    pub(super) fn new() -> Result<Stage> {
        let stage = Stage { dir: shell::target_dir().join(format!("xtask-bench-{}", std::process::id())) };
        fs::create_dir_all(stage.image().join("bin")).map_err(|error| format!("{error}"))?;
        stage.compile(TRUE, &stage.program())?;
        stage.compile(HOLD, &stage.image().join("bin/hold"))?;
        stage.make_bundle()?;
        Ok(stage)
    }

    /// The static `true`.
    pub(super) fn program(&self) -> PathBuf {
        self.image().join("bin/true")
    }

    /// A copy, as whoever installs a program makes one. What a linker has just written is scattered in the page cache, and takes a
    /// fifth of a millisecond longer to start than the same bytes written in a row.
    pub(super) fn install(&self, binary: &Path) -> Result<PathBuf> {
        let installed = self.dir.join("casemate");
        fs::copy(binary, &installed).map_err(|error| format!("{}: {error}", installed.display()))?;
        Ok(installed)
    }

    /// A root directory that holds nothing but the programs.
    pub(super) fn image(&self) -> PathBuf {
        self.dir.join("image")
    }

    /// What runc runs.
    pub(super) fn bundle(&self) -> PathBuf {
        self.dir.join("bundle")
    }

    /// `CASEMATE_HOME` of `casemate run`, or of the engine: two runs must not wait for each other.
    pub(super) fn home(&self, whose: &str) -> PathBuf {
        self.dir.join(format!("home-{whose}"))
    }

    fn compile(&self, source: &str, program: &Path) -> Result {
        let file = self.dir.join("program.c");
        fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
        shell::run(Command::new("cc").args(["-O2", "-static", "-o"]).arg(program).arg(&file))
    }

    fn make_bundle(&self) -> Result {
        let (bundle, config) = (self.bundle(), self.bundle().join("config.json"));
        let root = bundle.join("rootfs");
        fs::create_dir_all(&root)
            .and_then(|()| fs::copy(self.program(), root.join("true")))
            .map_err(|error| format!("{}: {error}", root.display()))?;
        shell::run(Command::new("runc").args(["spec", "--bundle"]).arg(&bundle))?;
        let edit = |text: String| {
            text.replace("\"terminal\": true", "\"terminal\": false").replace("\"sh\"", "\"/true\"")
        };
        fs::read_to_string(&config)
            .and_then(|text| fs::write(&config, edit(text)))
            .map_err(|error| format!("{}: {error}", config.display()))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
