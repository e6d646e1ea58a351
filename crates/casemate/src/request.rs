//! From flags to a request that makes sense. What does not is refused with a reason and a hint.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use casemate_core::limits::LimitsDraft;
use casemate_core::outcome::Refusal;
use casemate_core::request::{
    CodeSource, Component, ImageRef, Invalid, Isolation, Language, MAX_COMPONENT_BYTES, MAX_SOURCE_BYTES,
    Request, RequestDraft, Stdin, Workload, parse_env,
};
use casemate_engine::images::Images;
use rustix::fs::{Mode, OFlags};

use crate::args::{GrantArgs, LimitArgs, RunArgs, WallArgs};
use crate::failure::os_words;
use crate::files;
use crate::render::terminal::one_line;

/// A request and the host paths behind it, which are the command line's business alone.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) image: Option<OwnedFd>,
    /// One per path in the request's `files_in`, of which the directories above these paths come last.
    pub(crate) inputs: Vec<PathBuf>,
    /// One per path in the request's `files_out`.
    pub(crate) outputs: Vec<PathBuf>,
}

pub(crate) fn build(args: &RunArgs, stdin: Stdin) -> Result<Asked, Refusal> {
    let mut draft = RequestDraft::new(workload(args)?);
    draft.stdin = stdin;
    draft.limits = limits(&args.limits)?;
    walls(&args.walls, &mut draft)?;
    let GrantArgs { image, cwd, env, files_in, files_out, grant, allow, secret } = &args.grants;
    draft.capabilities = grant.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    draft.cwd = cwd.clone();
    draft.egress = allow.clone();
    draft.secrets = secret.clone();
    for variable in env {
        draft.env.push(parse_env(utf8("an environment variable", variable)?)?);
    }
    let (image_ref, image) = open_image(image)?;
    draft.image = image_ref;
    let mut inputs = Vec::new();
    for pair in files_in {
        let (host, guest) = files::parse_in(pair)?;
        inputs.push(host);
        draft.files_in.push(guest);
    }
    files::add_parents(&mut draft.files_in);
    let mut outputs = Vec::new();
    for pair in files_out {
        let (guest, host) = files::parse_out(pair)?;
        draft.files_out.push(guest);
        outputs.push(host);
    }
    Ok(Asked { request: Request::new(draft)?, image, inputs, outputs })
}

pub(crate) fn limits(args: &LimitArgs) -> Result<LimitsDraft, Invalid> {
    let mut limits = LimitsDraft::new();
    for (kind, text) in args.given() {
        limits.set(kind, kind.check(kind.parse(text)?)?);
    }
    Ok(limits)
}

pub(crate) fn walls(args: &WallArgs, draft: &mut RequestDraft) -> Result<(), Invalid> {
    draft.isolation = match (&args.on, &args.at_least) {
        (Some(stack), _) => Isolation::Exactly(stack.parse()?),
        (None, Some(wall)) => Isolation::AtLeast(wall.parse()?),
        (None, None) => Isolation::Auto,
    };
    draft.risk = args.risk.parse()?;
    draft.kind = args.kind.as_deref().map(str::parse).transpose()?;
    draft.needs = args.needs.iter().map(|need| need.parse()).collect::<Result<_, _>>()?;
    draft.tags = args.tag.clone();
    draft.tenant = args.tenant.clone();
    draft.deterministic = args.deterministic;
    Ok(())
}

fn workload(args: &RunArgs) -> Result<Workload, Refusal> {
    let language = args.lang.as_deref().map(str::parse).transpose()?;
    let words = |words: &[OsString]| {
        words
            .iter()
            .map(|word| Ok(utf8("an argument", word)?.to_owned()))
            .collect::<Result<Vec<_>, Refusal>>()
    };
    match (&args.code, &args.words[..]) {
        (Some(code), rest) => Ok(Workload::Code {
            language: language.unwrap_or(Language::Python),
            source: CodeSource::Inline(utf8("the code", code)?.to_owned()),
            args: words(rest)?,
        }),
        (None, []) => Err(Refusal::new(
            "there is nothing to run",
            "give code with -c CODE, a FILE, or a command after `--`",
        )),
        (None, argv) if args.dashed => match language {
            None => Ok(Workload::Command { argv: words(argv)? }),
            Some(_) => Err(Refusal::new(
                "--lang says how to run code, but a command follows `--`",
                "drop --lang, or give the code with -c or as a FILE",
            )),
        },
        (None, [file, rest @ ..]) => {
            let path = Path::new(file);
            let args = words(rest)?;
            if language.is_none() && path.extension().is_some_and(|extension| extension == "wasm") {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let component = Component::new(one_line(&name), read_bounded(path, MAX_COMPONENT_BYTES)?)?;
                return Ok(Workload::Component { component, args });
            }
            let (language, source) = read_source(path, language)?;
            Ok(Workload::Code { language, source, args })
        }
    }
}

/// The content of a file, up to one byte more than `most`: that is enough to be refused for it, whatever it pretends to be.
fn read_bounded(path: &Path, most: usize) -> Result<Vec<u8>, Refusal> {
    let shown = one_line(&path.display().to_string());
    let unreadable = |error: std::io::Error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => {
                format!(
                    "FILE is a source file or a WASM component; to run a command write: casemate run -- {shown}"
                )
            }
            _ => "FILE is a source file or a WASM component that you can read".to_owned(),
        };
        Refusal::new(format!("cannot read {shown}: {}", os_words(error)), hint)
    };
    let mut bytes = Vec::new();
    let mut bounded = File::open(path).map_err(unreadable)?.take(most as u64 + 1);
    bounded.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn read_source(path: &Path, language: Option<Language>) -> Result<(Language, CodeSource), Refusal> {
    let shown = one_line(&path.display().to_string());
    let bytes = read_bounded(path, MAX_SOURCE_BYTES)?;
    let by_name = || language_by_extension(path).or_else(|| language_by_first_line(&bytes));
    let language = language.or_else(by_name).ok_or_else(|| {
        Refusal::new(
            format!("cannot tell the language of {shown}"),
            "say it with --lang python, --lang javascript or --lang shell",
        )
    })?;
    let name = source_name(path, language);
    Ok((language, CodeSource::File { name, bytes }))
}

fn language_by_extension(path: &Path) -> Option<Language> {
    match path.extension()?.to_str()? {
        "py" => Some(Language::Python),
        "js" | "mjs" => Some(Language::Javascript),
        "sh" => Some(Language::Shell),
        _ => None,
    }
}

/// `#!/usr/bin/env python3`, `#!/bin/bash -e`, …
fn language_by_first_line(source: &[u8]) -> Option<Language> {
    let line = source.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
    let mut program = words.next()?.rsplit('/').next()?;
    if program == "env" {
        program = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    }
    match program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
        "python" => Some(Language::Python),
        "node" | "nodejs" => Some(Language::Javascript),
        "sh" | "bash" | "dash" => Some(Language::Shell),
        _ => None,
    }
}

/// What the file is called in the cell: its own name, where a cell can take it.
fn source_name(path: &Path, language: Language) -> String {
    let own = path.file_name().and_then(OsStr::to_str).filter(|name| !name.starts_with('-'));
    own.unwrap_or(match language {
        Language::Python => "main.py",
        Language::Javascript => "main.js",
        Language::Shell => "main.sh",
    })
    .to_owned()
}

/// The host, a directory of the caller's if it looks like a path, and otherwise what the store has under that name.
fn open_image(image: &Path) -> Result<(ImageRef, Option<OwnedFd>), Refusal> {
    if image.as_os_str() == &*ImageRef::Host.label() {
        return Ok((ImageRef::Host, None));
    }
    if !is_path(image) {
        let name = utf8("an image's name", image.as_os_str())?;
        return Ok((Images::of(&casemate_engine::default_home()).find(name)?, None));
    }
    let shown = one_line(&image.display().to_string());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(image, flags, Mode::empty()).map_err(|error| {
        Refusal::new(
            format!("cannot open the image {shown}: {}", os_words(error)),
            "--image takes `host`, an image of the store, or a directory that holds a root file system",
        )
    })?;
    // Absolute, so that the evidence does not depend on where the command was given.
    let label = image.canonicalize().unwrap_or_else(|_| image.to_owned()).to_string_lossy().into_owned();
    Ok((ImageRef::Directory { label }, Some(opened)))
}

/// Begins with `/`, `./` or `../`.
fn is_path(image: &Path) -> bool {
    use std::path::Component;
    let first = image.components().next();
    matches!(first, Some(Component::RootDir | Component::CurDir | Component::ParentDir))
}

fn utf8<'a>(what: &str, word: &'a OsStr) -> Result<&'a str, Refusal> {
    word.to_str().ok_or_else(|| {
        Refusal::new(
            format!("{what} is not valid UTF-8: {}", one_line(&word.to_string_lossy())),
            "pass such bytes on standard input or in a file",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use casemate_core::limits::LimitKind;
    use casemate_core::request::Risk;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(words: &[OsString]) -> RunArgs {
        let raw: Vec<OsString> = ["casemate", "run"].iter().map(Into::into).chain(words.to_vec()).collect();
        match Cli::parse_words(&raw).unwrap().command {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn asked(words: &[&str]) -> Result<Request, Refusal> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        build(&args(&words), Stdin::Empty).map(|asked| asked.request)
    }

    fn refusal(words: &[&str]) -> Refusal {
        asked(words).unwrap_err()
    }

    #[test]
    fn code_is_python_unless_said_otherwise() {
        let request = asked(&["-c", "print(1)", "a", "-b"]).unwrap();
        let Workload::Code { language, source, args } = request.workload() else { panic!() };
        assert_eq!(*language, Language::Python);
        assert_eq!(*source, CodeSource::Inline("print(1)".to_owned()));
        assert_eq!(args, &["a", "-b"]);
        let request = asked(&["--lang", "shell", "-c", "true"]).unwrap();
        assert!(matches!(request.workload(), Workload::Code { language: Language::Shell, .. }));
    }

    #[test]
    fn a_command_is_taken_as_it_is() {
        let request = asked(&["--risk", "high", "--", "ls", "-l"]).unwrap();
        assert_eq!(*request.workload(), Workload::Command { argv: vec!["ls".to_owned(), "-l".to_owned()] });
        assert_eq!(request.risk(), Risk::High);
        assert!(refusal(&["--lang", "shell", "--", "ls"]).hint.contains("drop --lang"));
    }

    #[test]
    fn nothing_to_run_is_said_clearly() {
        assert_eq!(refusal(&[]).reason, "there is nothing to run");
        assert!(refusal(&["ls-of-no-such-file"]).hint.contains("casemate run -- ls-of-no-such-file"));
    }

    #[test]
    fn the_language_of_a_file_comes_from_its_name_or_first_line() {
        let dir = tempfile::tempdir().unwrap();
        let language = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            read_source(&path, None).map(|(language, _)| language)
        };
        assert_eq!(language("a.py", ""), Ok(Language::Python));
        assert_eq!(language("a.mjs", ""), Ok(Language::Javascript));
        assert_eq!(language("a.js", "#!/bin/sh"), Ok(Language::Javascript));
        assert_eq!(language("a", "#!/usr/bin/env -S FOO=1 python3.12 -u\n"), Ok(Language::Python));
        assert_eq!(language("b", "#! /bin/bash -e\n"), Ok(Language::Shell));
        assert_eq!(language("c.txt", "#!/usr/bin/node"), Ok(Language::Javascript));
        for unknown in ["", "#!", "#!/usr/bin/env", "#!/usr/bin/perl\n", "#!\u{1b}"] {
            assert!(language("d", unknown).unwrap_err().hint.contains("--lang"), "{unknown:?}");
        }
    }

    #[test]
    fn a_file_without_end_is_refused_and_not_read_to_it() {
        let path = Path::new("/dev/zero");
        let (_, source) = read_source(path, Some(Language::Python)).unwrap();
        let CodeSource::File { bytes, .. } = &source else { panic!() };
        assert_eq!(bytes.len(), MAX_SOURCE_BYTES + 1);
        assert!(asked(&["--lang", "python", "/dev/zero"]).is_err());
    }

    #[test]
    fn limits_that_make_no_sense_are_refused_with_a_hint() {
        for (kind, bad) in LimitKind::ALL.into_iter().flat_map(|kind| {
            ["", "-1", "-5M", "abc", "1e999", "99999999999999999999999T", "NaN", "0x10"]
                .map(|bad| (kind, bad))
        }) {
            let refusal = refusal(&[kind.flag(), bad, "-c", "x"]);
            assert!(!refusal.reason.is_empty() && !refusal.hint.is_empty(), "{kind} {bad}");
        }
        assert_eq!(refusal(&["--memory", "1M", "-c", ""]).hint, "set --memory between 8 MiB and 64 GiB");
        let request = asked(&["--memory", "64M", "--max-output", "0", "-c", ""]).unwrap();
        assert_eq!(request.limits().get(LimitKind::Memory), Some(64 << 20));
        assert_eq!(request.limits().get(LimitKind::Output), Some(0));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused_where_the_guest_would_see_them() {
        let bad = || OsString::from_vec(b"a\xff=b".to_vec());
        for words in [
            vec!["--".into(), "echo".into(), bad()],
            vec!["-c".into(), bad()],
            vec!["--env".into(), bad(), "-c".into(), "x".into()],
        ] {
            let refusal = build(&args(&words), Stdin::Empty).unwrap_err();
            assert!(refusal.reason.contains("not valid UTF-8"), "{refusal:?}");
        }
    }

    #[test]
    fn an_image_is_the_host_or_a_directory() {
        assert_eq!(*asked(&["-c", "x"]).unwrap().image(), ImageRef::Host);
        assert!(refusal(&["--image", "debian", "-c", "x"]).hint.contains("casemate image"));
        assert!(refusal(&["--image", "./no-such-place", "-c", "x"]).reason.contains("no-such-place"));
        assert!(refusal(&["--image", "/dev/null", "-c", "x"]).reason.contains("cannot open"));
        let image = asked(&["--image", "/tmp/../usr", "-c", "x"]).unwrap().image().clone();
        assert_eq!(image, ImageRef::Directory { label: "/usr".to_owned() });
    }

    #[test]
    fn a_stack_that_makes_no_sense_says_what_to_write() {
        assert!(refusal(&["--on", "wasm", "-c", "x"]).hint.contains("container+wasm"));
        assert!(refusal(&["--on", "castle", "-c", "x"]).hint.contains("container"));
    }
}
