//! The rules of a well-formed request, one function per field.

use std::collections::BTreeSet;

use super::{
    CodeSource, GuestPath, ImageRef, Invalid, MAX_ARG_BYTES, MAX_ARGS_TOTAL_BYTES, MAX_ENV_VARS, MAX_FILES,
    MAX_GRANTS, MAX_SOURCE_BYTES, MAX_TAGS, Workload,
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
    let arguments: usize = match workload {
        Workload::Command { argv } => argv.iter().map(|arg| arg.len() + 1).sum(),
        Workload::Code { source, args, .. } => {
            let inline = match source {
                CodeSource::Inline(code) => code.len() + 1,
                CodeSource::File { .. } => 0,
            };
            inline + args.iter().map(|arg| arg.len() + 1).sum::<usize>()
        }
    };
    let env: usize = env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    let total = arguments + env;
    if total <= MAX_ARGS_TOTAL_BYTES {
        return Ok(());
    }
    Err(Invalid::new(
        format!("arguments and environment together have {total} bytes"),
        format!("the kernel bounds them and we take at most {MAX_ARGS_TOTAL_BYTES}; pass data in a file"),
    ))
}

pub(super) fn image(image: &ImageRef) -> Result<(), Invalid> {
    let label = image.label();
    no_nul("an image label", label)?;
    if (1..=MAX_PATH_BYTES).contains(&label.len()) {
        return Ok(());
    }
    Err(Invalid::new(
        format!("{} cannot be an image label", quote(label)),
        format!("use 1 to {MAX_PATH_BYTES} bytes"),
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
