//! `casemate image`: what cells can have for a root file system.

mod build;
mod credentials;
mod recipe;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use casemate_core::evidence::Timestamp;
use casemate_core::limits::{LimitKind, parse_size};
use casemate_engine::images::{
    DEFAULT_SIZE_LIMIT, ImageInfo, Images, Import, Imported, Origin, Remote, Removed,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::args::{ImageCommand, StoreArgs};
use crate::exit;
use crate::failure::{Failure, os_words};
use crate::progress::Step;
use crate::render::terminal::{self, columns, one_line};

pub(crate) async fn image(command: &ImageCommand) -> Result<u8, Failure> {
    let images = Images::of(&casemate_engine::default_home());
    match command {
        ImageCommand::Ls { json } => list(&images, *json),
        ImageCommand::Import { from, store } => import(&images, from, store),
        ImageCommand::Pull { reference, user, store } => {
            pull(&images, reference, user.as_deref(), store).await
        }
        ImageCommand::Build(args) => build::build(&images, args),
        ImageCommand::Rm { image } => remove(&images, image),
    }
}

/// Whatever a registry sends, this process does not grow beyond it.
const MAX_PULL_MEMORY: u64 = 1 << 30;

async fn pull(
    images: &Images,
    reference: &str,
    user: Option<&str>,
    store: &StoreArgs,
) -> Result<u8, Failure> {
    let remote = Remote::parse(reference)?;
    let credentials = credentials::find(user, remote.registry())?;
    let mut import = options(store, format!("pull of {}", one_line(reference)))?;
    import.name.get_or_insert_with(|| remote.name());
    let hard = getrlimit(Resource::Data).maximum;
    let current = Some(hard.map_or(MAX_PULL_MEMORY, |hard| hard.min(MAX_PULL_MEMORY)));
    setrlimit(Resource::Data, Rlimit { current, maximum: hard }).map_err(std::io::Error::from)?;
    let imported = {
        let mut step = Step::begin(format!("pulling {}", one_line(reference)));
        images.pull(&remote, &credentials, &import, &mut step).await?
    };
    told(&imported, import.name.as_deref())
}

fn import(images: &Images, from: &Path, store: &StoreArgs) -> Result<u8, Failure> {
    let shown = one_line(&from.display().to_string());
    let unreadable = |error: std::io::Error| {
        Failure::new(
            format!("cannot read {shown}: {}", os_words(error)),
            "FILE is a tar, or a directory with an OCI layout, that you can read; - is standard input",
        )
    };
    let origin = if from.as_os_str() == "-" {
        Origin::Stream(Box::new(std::io::stdin()))
    } else if from.is_dir() {
        Origin::Layout(from.to_owned())
    } else {
        Origin::Stream(Box::new(File::open(from).map_err(unreadable)?))
    };
    let source = match from.file_name() {
        Some(name) if from.as_os_str() != "-" => format!("import of {}", one_line(&name.to_string_lossy())),
        _ => "import of standard input".to_owned(),
    };
    let import = options(store, source)?;
    let imported = {
        let mut step = Step::begin(format!("importing {shown}"));
        images.import(origin, &import, &mut step)?
    };
    told(&imported, import.name.as_deref())
}

fn options(StoreArgs { name, size_limit }: &StoreArgs, source: String) -> Result<Import, Failure> {
    let size_limit = match size_limit {
        Some(text) => parse_size(text)?,
        None => DEFAULT_SIZE_LIMIT,
    };
    Ok(Import { name: name.clone(), size_limit, source })
}

/// The digest goes to standard output, for programs; the rest is for people.
fn told(imported: &Imported, name: Option<&str>) -> Result<u8, Failure> {
    writeln!(std::io::stdout(), "{}", imported.digest)?;
    let mut remarks = Vec::new();
    if imported.known {
        remarks.push("this image was in the store already".to_owned());
    }
    if let (Some(name), Some(unnamed)) = (name, imported.unnamed) {
        remarks.push(format!("{name} was {unnamed}, which has no name now; `casemate image rm` removes it"));
    }
    terminal::remark(remarks);
    Ok(exit::DONE)
}

fn list(images: &Images, json: bool) -> Result<u8, Failure> {
    let images = images.list()?;
    let mut out = std::io::stdout().lock();
    if json {
        for ImageInfo { digest, names, created, bytes, entries, format, source } in &images {
            let line = json!({"digest": digest.to_string(), "names": names, "created": time(*created),
                "bytes": bytes, "entries": entries, "format": format, "source": source});
            writeln!(out, "{line}")?;
        }
        return Ok(exit::DONE);
    }
    let heading = ["NAME", "DIGEST", "CREATED", "SIZE", "SOURCE"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(images.iter().map(row)).collect();
    for line in columns(&rows) {
        writeln!(out, "{line}")?;
    }
    Ok(exit::DONE)
}

fn row(image: &ImageInfo) -> Vec<String> {
    let names = if image.names.is_empty() { "-".to_owned() } else { image.names.join(", ") };
    // Enough to be given back to us.
    let digest = image.digest.to_string()[..19].to_owned();
    let size = LimitKind::Disk.format_measured(image.bytes);
    vec![names, digest, time(image.created), size, one_line(&image.source)]
}

/// To the second.
fn time(created: u64) -> String {
    let time = Timestamp::from_unix_micros(created.saturating_mul(1_000_000)).to_string();
    time.split_once('.').map_or(time.clone(), |(seconds, _)| format!("{seconds}Z"))
}

fn remove(images: &Images, asked: &str) -> Result<u8, Failure> {
    let words = match images.remove(asked)? {
        Removed::Name { digest } => format!("{asked} is no name of {digest} any more, which has others"),
        Removed::Image { digest } => format!("{digest} was removed"),
    };
    terminal::remark([words]);
    Ok(exit::DONE)
}
