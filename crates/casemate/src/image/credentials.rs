//! Who we are to a registry: as told, or as `docker login` has written it down.

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_engine::images::Credentials;
use serde::Deserialize;

use crate::failure::{Failure, os_words};

/// Of a password, or of Docker's file.
const MOST: u64 = 1 << 20;

/// The user that was named, with the password on standard input; or who Docker's file says we are; or nobody.
pub(super) fn find(user: Option<&str>, registry: &str) -> Result<Credentials, Failure> {
    if let Some(name) = user {
        let mut password = String::new();
        let read = std::io::stdin().lock().take(MOST).read_to_string(&mut password);
        read.map_err(|error| {
            let message = format!("cannot read the password: {}", os_words(error));
            Failure::new(message, "with --user, the password comes on standard input")
        })?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        return Ok(Credentials::User { name: name.to_owned(), password });
    }
    let Some(path) = config_path() else { return Ok(Credentials::Anonymous) };
    let Ok(text) = std::fs::read(&path) else { return Ok(Credentials::Anonymous) };
    of_config(&text, registry).map_err(|why| {
        Failure::new(
            format!("{}: {why}", path.display()),
            "correct it, or give --user and the password on standard input",
        )
    })
}

fn config_path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("DOCKER_CONFIG").or_else(|| set("HOME").map(|home| home.join(".docker")))?;
    Some(dir.join("config.json"))
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: HashMap<String, Auth>,
}

#[derive(Deserialize)]
struct Auth {
    auth: Option<String>,
}

/// Programs that keep passwords elsewhere are not asked: no code is run for a pull.
fn of_config(text: &[u8], registry: &str) -> Result<Credentials, String> {
    let config: Config = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let is_ours = |key: &str| {
        let host = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
        host.split('/').next() == Some(registry)
    };
    let ours = config.auths.into_iter().find(|(key, _)| is_ours(key));
    let Some(auth) = ours.and_then(|(_, auth)| auth.auth) else { return Ok(Credentials::Anonymous) };
    let decoded = STANDARD.decode(auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = decoded.as_deref().and_then(|pair| pair.split_once(':'));
    let (name, password) =
        pair.ok_or_else(|| format!("what it has for {registry} is no name and password"))?;
    Ok(Credentials::User { name: name.to_owned(), password: password.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dockers_file_is_read_for_the_registry_that_is_asked() {
        let auth = STANDARD.encode("me:se:cret");
        let text = format!(
            "{{\"auths\": {{\"https://r.example/v1/\": {{\"auth\": {auth:?}}}, \"x\": {{}}}}, \"credsStore\": \"y\"}}"
        );
        let Ok(Credentials::User { name, password }) = of_config(text.as_bytes(), "r.example") else {
            panic!()
        };
        assert_eq!((name.as_str(), password.as_str()), ("me", "se:cret"));
        for other in ["x", "example", "r.example.com", "r"] {
            assert!(matches!(of_config(text.as_bytes(), other), Ok(Credentials::Anonymous)), "{other}");
        }
        assert!(matches!(of_config(b"{}", "x"), Ok(Credentials::Anonymous)));
        assert!(of_config(b"nonsense", "x").is_err());
        assert!(of_config(br#"{"auths": {"x": {"auth": "!"}}}"#, "x").is_err());
    }
}
