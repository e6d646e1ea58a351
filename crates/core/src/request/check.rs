//! The rules of a well-formed request, one function per field.

use std::collections::BTreeSet;

use super::{
    Capability, CodeSource, GuestPath, ImageRef, Invalid, MAX_ARG_BYTES, MAX_ARGS_TOTAL_BYTES,
    MAX_COMPONENT_BYTES, MAX_ENV_VARS, MAX_FILES, MAX_GRANTS, MAX_SOURCE_BYTES, MAX_TAGS, Workload,
};
use crate::words::quote;

/// Longest path and longest component that Linux takes.
const MAX_PATH_BYTES: usize = 4095;
const MAX_NAME_BYTES: usize = 255;

/// Tenants and tags: `[a-z0-9][a-z0-9._-]{0,62}`.
pub(crate) fn name(what: &str, text: &str) -> Result<(), Invalid> {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = (1..=63).contains(&text.len())
        && text.bytes().next().is_some_and(plain)
        && text.bytes().all(|c| plain(c) || b"._-".contains(&c));
    if fits {
        return Ok(());
    }
    Err(Invalid::new(
        format!("{} is not a {what} name", quote(text)),
        "use 1 to 63 of a-z, 0-9, `.`, `_` and `-`, starting with a letter or digit",
    ))
}

pub(super) fn workload(workload: &Workload) -> Result<(), Invalid> {
    match workload {
        Workload::Command { argv } => {
            if argv.first().is_none_or(String::is_empty) {
                return Err(Invalid::new("the command is empty", "name a program after `--`"));
            }
            argv.iter().try_for_each(|arg| argument(arg))
        }
        Workload::Code { source, args, .. } => {
            code(source)?;
            args.iter().try_for_each(|arg| argument(arg))
        }
        Workload::Component { args, .. } => args.iter().try_for_each(|arg| argument(arg)),
        Workload::Session => Ok(()),
    }
}

pub(super) fn component(name: &str, bytes: &[u8]) -> Result<(), Invalid> {
    if bytes.len() > MAX_COMPONENT_BYTES {
        return Err(Invalid::new(
            format!("{} has {} bytes", quote(name), bytes.len()),
            format!("a component has at most {MAX_COMPONENT_BYTES} bytes"),
        ));
    }
    if !bytes.starts_with(b"\0asm") {
        return Err(Invalid::new(
            format!("{} is not WASM", quote(name)),
            "give a component (or a module for WASI preview 1) in its binary form; `wasm-tools parse` makes one of text",
        ));
    }
    Ok(())
}

pub(super) fn capabilities(workload: &Workload, capabilities: &[Capability]) -> Result<(), Invalid> {
    match (workload, capabilities) {
        (Workload::Component { .. }, _) | (_, []) => Ok(()),
        (_, [capability, ..]) => Err(Invalid::new(
            format!("{capability} can only be granted to a WASM component"),
            "drop --grant: programs and interpreters have it anyway",
        )),
    }
}

/// Whoever has files can see when they were made.
pub(super) fn determinism(
    deterministic: bool,
    files_in: &[String],
    files_out: &[String],
) -> Result<(), Invalid> {
    match deterministic && !(files_in.is_empty() && files_out.is_empty()) {
        false => Ok(()),
        true => Err(Invalid::new(
            "a deterministic run has no files: the times of a file differ from run to run",
            "give it its input on standard input, and take what it prints; or drop --deterministic",
        )),
    }
}

fn argument(text: &str) -> Result<(), Invalid> {
    no_nul("an argument", text)?;
    if text.len() <= MAX_ARG_BYTES {
        return Ok(());
    }
    Err(Invalid::new(
        format!("an argument of {} bytes is too long", text.len()),
        format!("the kernel takes at most {MAX_ARG_BYTES} bytes per argument; pass it on stdin or in a file"),
    ))
}

fn code(source: &CodeSource) -> Result<(), Invalid> {
    match source {
        CodeSource::Inline(code) => {
            no_nul("inline code", code)?;
            if code.len() <= MAX_ARG_BYTES {
                return Ok(());
            }
            Err(Invalid::new(
                format!("inline code of {} bytes is too long", code.len()),
                format!(
                    "the kernel takes at most {MAX_ARG_BYTES} bytes per argument; put the code in a file"
                ),
            ))
        }
        CodeSource::File { name, bytes } => {
            file_name(name)?;
            if bytes.len() <= MAX_SOURCE_BYTES {
                return Ok(());
            }
            Err(Invalid::new(
                format!("the source file {} has {} bytes", quote(name), bytes.len()),
                format!("a source file has at most {MAX_SOURCE_BYTES} bytes; pass data as an input file"),
            ))
        }
    }
}

fn file_name(name: &str) -> Result<(), Invalid> {
    no_nul("a file name", name)?;
    let plain = !name.contains('/') && ![".", ".."].contains(&name) && !name.starts_with('-');
    if plain && (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    Err(Invalid::new(
        format!("{} cannot name a source file", quote(name)),
        "use a plain file name such as main.py, without directories or a leading `-`",
    ))
}

pub(super) fn env(env: &[(String, String)]) -> Result<(), Invalid> {
    at_most("environment variables", env.len(), MAX_ENV_VARS)?;
    let mut seen = BTreeSet::new();
    for (name, value) in env {
        env_var(name, value)?;
        if !seen.insert(name) {
            return Err(Invalid::new(
                format!("the environment variable {} is set twice", quote(name)),
                "set each variable once",
            ));
        }
    }
    Ok(())
}

pub(super) fn env_var(name: &str, value: &str) -> Result<(), Invalid> {
    if !is_variable_name(name) {
        return Err(Invalid::new(
            format!("{} is not an environment variable name", quote(name)),
            "use letters, digits and `_`, not starting with a digit",
        ));
    }
    no_nul("an environment variable", value)?;
    // The kernel sees `NAME=value` as one string.
    if name.len() + 1 + value.len() <= MAX_ARG_BYTES {
        return Ok(());
    }
    Err(Invalid::new(
        format!("the environment variable {} is too long", quote(name)),
        format!("the kernel takes at most {MAX_ARG_BYTES} bytes per variable; pass the value in a file"),
    ))
}

pub(super) fn argument_total(workload: &Workload, env: &[(String, String)]) -> Result<(), Invalid> {
    // What the kernel charges for one string: its bytes, a NUL and a pointer. Empty strings are not free.
    let charge = |len: usize| len + 1 + size_of::<usize>();
    let (inline, args) = match workload {
        Workload::Command { argv } => (0, argv),
        Workload::Code { source: CodeSource::Inline(code), args, .. } => (charge(code.len()), args),
        Workload::Code { source: CodeSource::File { .. }, args, .. } | Workload::Component { args, .. } => {
            (0, args)
        }
        Workload::Session => (0, &Vec::new()),
    };
    let args: usize = args.iter().map(|arg| charge(arg.len())).sum();
    let env: usize = env.iter().map(|(name, value)| charge(name.len() + 1 + value.len())).sum();
    let total = inline + args + env;
    if total <= MAX_ARGS_TOTAL_BYTES {
        return Ok(());
    }
    Err(Invalid::new(
        format!("arguments and environment together take {total} bytes"),
        format!("the kernel bounds them; we take at most {MAX_ARGS_TOTAL_BYTES}: pass data in a file"),
    ))
}

pub(super) fn image(image: &ImageRef) -> Result<(), Invalid> {
    let label = match image {
        ImageRef::Host => return Ok(()),
        ImageRef::Directory { label } => label,
        // By its digest, it may be asked for without a name.
        ImageRef::Stored { name, digest } if *name == digest.to_string() => return Ok(()),
        ImageRef::Stored { name, .. } => return crate::image::check_image_name(name),
    };
    no_nul("an image label", label)?;
    // A directory that called itself `host` would read as the host image in the evidence.
    let disguised = *label == ImageRef::Host.label();
    if (1..=MAX_PATH_BYTES).contains(&label.len()) && !disguised {
        return Ok(());
    }
    Err(Invalid::new(
        format!("{} cannot be an image label", quote(label)),
        format!("use 1 to {MAX_PATH_BYTES} bytes, and not the word host"),
    ))
}

pub(super) fn tags(tags: &[String]) -> Result<(), Invalid> {
    at_most("tags", tags.len(), MAX_TAGS)?;
    tags.iter().try_for_each(|tag| name("tag", tag))
}

pub(super) fn egress(rules: &[String]) -> Result<(), Invalid> {
    at_most("egress rules", rules.len(), MAX_GRANTS)?;
    rules.iter().try_for_each(|rule| {
        let shaped = rule.rsplit_once(':').is_some_and(|(host, port)| {
            let decimal = port.bytes().all(|c| c.is_ascii_digit());
            is_host(host) && decimal && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        let wrong =
            || Invalid::new(format!("{} is not an egress rule", quote(rule)), "write api.example.com:443");
        shaped.then_some(()).ok_or_else(wrong)
    })
}

pub(super) fn secrets(secrets: &[String]) -> Result<(), Invalid> {
    at_most("secrets", secrets.len(), MAX_GRANTS)?;
    secrets.iter().try_for_each(|secret| {
        let shaped =
            secret.split_once('@').is_some_and(|(name, host)| is_variable_name(name) && is_host(host));
        let wrong =
            || Invalid::new(format!("{} is not a secret", quote(secret)), "write TOKEN@api.example.com");
        shaped.then_some(()).ok_or_else(wrong)
    })
}

pub(super) fn files(direction: &str, paths: &[String]) -> Result<Vec<GuestPath>, Invalid> {
    at_most(&format!("files {direction}"), paths.len(), MAX_FILES)?;
    let mut seen = BTreeSet::new();
    paths
        .iter()
        .map(|path| {
            let path = GuestPath::new(path)?;
            if !seen.insert(path.clone()) {
                return Err(Invalid::new(
                    format!("{} is listed twice among the files {direction}", quote(path.as_str())),
                    "list each path once",
                ));
            }
            Ok(path)
        })
        .collect()
}

pub(super) fn cwd(path: &str) -> Result<String, Invalid> {
    absolute("a working directory", path)
}

/// A path beneath one of the two writable places of a cell.
pub(super) fn beneath_writable(path: &str) -> Result<String, Invalid> {
    let shortest = absolute("a path in the cell", path)?;
    if shortest.starts_with("/work/") || shortest.starts_with("/tmp/") {
        return Ok(shortest);
    }
    Err(Invalid::new(
        format!("{} is not beneath /work or /tmp", quote(path)),
        "everything else in a cell is read-only: use a path such as /work/input.json",
    ))
}

/// Checks an absolute path and returns its shortest spelling.
fn absolute(what: &str, path: &str) -> Result<String, Invalid> {
    no_nul(what, path)?;
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let problem = if !path.starts_with('/') {
        "is not absolute"
    } else if parts.contains(&"..") {
        "contains `..`"
    } else if path.len() > MAX_PATH_BYTES || parts.iter().any(|part| part.len() > MAX_NAME_BYTES) {
        "is too long"
    } else {
        return Ok(format!("/{}", parts.join("/")));
    };
    Err(Invalid::new(
        format!("{what} {problem}: {}", quote(path)),
        "write an absolute path without `..`, such as /work/data",
    ))
}

fn at_most(what: &str, count: usize, max: usize) -> Result<(), Invalid> {
    if count <= max {
        return Ok(());
    }
    Err(Invalid::new(format!("{count} {what} are too many"), format!("give at most {max}")))
}

fn no_nul(what: &str, text: &str) -> Result<(), Invalid> {
    if text.contains('\0') {
        return Err(Invalid::new(
            format!("{what} contains a NUL byte"),
            "the kernel cannot take it: remove it",
        ));
    }
    Ok(())
}

fn is_variable_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
}

/// A DNS name or an IPv4 address. Each label is what DNS takes, so nothing here can hide a scheme, a port or a
/// user name.
fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
    };
    host.len() <= 253 && host.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::super::{Language, Request, RequestDraft, parse_env};
    use super::*;
    use crate::limits::{LimitKind, LimitsDraft};

    fn draft() -> RequestDraft {
        RequestDraft::new(command(&["true"]))
    }

    fn command(argv: &[&str]) -> Workload {
        Workload::Command { argv: argv.iter().map(ToString::to_string).collect() }
    }

    fn code(source: CodeSource) -> Workload {
        Workload::Code { language: Language::Python, source, args: Vec::new() }
    }

    fn error(change: impl FnOnce(&mut RequestDraft)) -> Invalid {
        let mut draft = draft();
        change(&mut draft);
        Request::new(draft).unwrap_err()
    }

    #[test]
    fn the_plainest_request_is_denied_everything() {
        let request = Request::new(draft()).unwrap();
        assert_eq!(request.tenant(), "local");
        assert!(request.env().is_empty() && request.egress().is_empty() && request.secrets().is_empty());
        assert!(request.files_in().is_empty() && request.files_out().is_empty());
    }

    #[test]
    fn tenant_and_tag_names_are_plain() {
        for bad in ["", "A", "-a", "a b", "a/b", "ä", &"a".repeat(64)] {
            assert!(error(|d| d.tenant = Some(bad.to_owned())).reason.contains("tenant name"), "{bad}");
            assert!(error(|d| d.tags = vec![bad.to_owned()]).reason.contains("tag name"), "{bad}");
        }
        name("tenant", &"a".repeat(63)).unwrap();
        name("tenant", "0.team_a-b").unwrap();
    }

    #[test]
    fn a_command_names_a_program() {
        assert!(error(|d| d.workload = command(&[])).reason.contains("empty"));
        assert!(error(|d| d.workload = command(&["", "x"])).reason.contains("empty"));
        assert!(error(|d| d.workload = command(&["a\0b"])).reason.contains("NUL"));
    }

    #[test]
    fn what_the_kernel_would_not_take_is_refused_with_a_way_out() {
        let long = "x".repeat(MAX_ARG_BYTES + 1);
        let hint = error(|d| d.workload = command(&["echo", &long])).hint;
        assert!(hint.contains("kernel") && hint.contains("file"), "{hint}");
        let hint = error(|d| d.workload = code(CodeSource::Inline(long.clone()))).hint;
        assert!(hint.contains("put the code in a file"), "{hint}");
        Request::new(RequestDraft::new(code(CodeSource::Inline("x".repeat(MAX_ARG_BYTES))))).unwrap();

        let many = vec!["x".repeat(MAX_ARG_BYTES); 9];
        assert!(error(|d| d.workload = Workload::Command { argv: many }).hint.contains("kernel"));
        let empty = vec!["x".to_owned(); 200_000];
        assert!(error(|d| d.workload = Workload::Command { argv: empty }).reason.contains("together"));
    }

    #[test]
    fn a_source_file_is_bounded_and_has_a_plain_name() {
        for bad in ["", ".", "..", "a/b", "/etc/passwd", "-c", "a\0"] {
            let source = CodeSource::File { name: bad.to_owned(), bytes: Vec::new() };
            assert!(Request::new(RequestDraft::new(code(source))).is_err(), "{bad}");
        }
        let source = CodeSource::File { name: "main.py".to_owned(), bytes: vec![b' '; MAX_SOURCE_BYTES + 1] };
        assert!(error(|d| d.workload = code(source)).hint.contains("at most"));
    }

    #[test]
    fn environment_variables_are_named_once_and_properly() {
        let env =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        assert!(error(|d| d.env = env(&[("A", "1"), ("A", "2")])).reason.contains("twice"));
        for bad in ["", "1A", "A-B", "A=B", "Ä"] {
            assert!(error(|d| d.env = env(&[(bad, "x")])).reason.contains("variable name"), "{bad}");
        }
        assert!(error(|d| d.env = env(&[("A", "\0")])).reason.contains("NUL"));
        assert_eq!(parse_env("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(parse_env("A").is_err());
    }

    #[test]
    fn guest_paths_stay_beneath_the_writable_places() {
        for bad in [
            "",
            "work/a",
            "/work",
            "/work/",
            "/tmp/..",
            "/work/../etc",
            "/etc/passwd",
            "/workshop/a",
            "/work/a\0",
        ] {
            assert!(GuestPath::new(bad).is_err(), "{bad}");
        }
        assert_eq!(GuestPath::new("/work//a/./b/").unwrap().as_str(), "/work/a/b");
        let twice = vec!["/work/a".to_owned(), "/work//a".to_owned()];
        assert!(error(|d| d.files_in = twice).reason.contains("twice"));
        assert!(error(|d| d.cwd = Some("work".to_owned())).reason.contains("not absolute"));
    }

    #[test]
    fn egress_rules_and_secrets_have_their_shape() {
        egress(&["api.example.com:443".to_owned(), "10.0.0.1:80".to_owned()]).unwrap();
        for bad in
            ["", "a", "a:", ":443", "a:0", "a:70000", "a:+1", "http://a:80", "u@a:80", "-a:80", "a..b:80"]
        {
            assert!(egress(&[bad.to_owned()]).is_err(), "{bad}");
        }
        secrets(&["TOKEN@api.example.com".to_owned()]).unwrap();
        for bad in ["", "TOKEN", "@a", "TOKEN@", "T-K@a", "TOKEN@a@b"] {
            assert!(secrets(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directory_cannot_pose_as_the_host_image() {
        assert!(
            error(|d| d.image = ImageRef::Directory { label: "host".to_owned() }).reason.contains("label")
        );
    }

    #[test]
    fn limits_outside_their_range_never_become_a_request() {
        let error = error(|d| d.limits = LimitsDraft::new().with(LimitKind::Memory, 1));
        assert_eq!(error.reason, "memory 1 B is below the minimum of 8 MiB");
    }
}
