//! `service.toml`: what a server is told besides its flags. What is not understood is an error, and a file that cannot be read is
//! never taken for one that is not there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use casemate_core::limits::{parse_count, parse_duration, parse_size};
use casemate_core::request::Invalid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;

use crate::quota::{Quota, Quotas};

/// In the home, unless another file is named.
pub const FILE: &str = "service.toml";
/// Nobody needs a larger one.
const MAX_FILE: u64 = 1 << 20;

/// What the file says.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub tls: Option<Tls>,
    pub quotas: Quotas,
}

/// A certificate chain and its key, ready to be shown to clients.
#[derive(Clone)]
pub struct Tls(pub(crate) Arc<rustls::ServerConfig>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {message}")]
    Content { path: PathBuf, message: String, hint: String },
    #[error("{path} cannot be used for TLS: {message}")]
    Tls { path: PathBuf, message: String },
}

impl ConfigError {
    pub fn hint(&self) -> String {
        match self {
            ConfigError::Read { .. } => "name a file that this user can read".into(),
            ConfigError::Content { hint, .. } => hint.clone(),
            ConfigError::Tls { .. } => {
                "`certificate` is a PEM file with the chain, the server's own first; `key` is a PEM file with its private key"
                    .into()
            }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSettings {
    tls: Option<RawTls>,
    quotas: RawQuota,
    tenants: BTreeMap<String, RawQuota>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    certificate: PathBuf,
    key: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct RawQuota {
    cells: Option<Amount>,
    memory: Option<Amount>,
    disk: Option<Amount>,
    cpu_time: Option<Amount>,
    requests: Option<Amount>,
    egress: Option<Amount>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an amount such as \"8G\", \"10h\" or 64")]
enum Amount {
    Text(String),
    Whole(u64),
}

impl Settings {
    /// The named file, or the one in the home if there is one.
    pub fn load(named: Option<&Path>, home: &Path) -> Result<Settings, ConfigError> {
        let path = named.map_or_else(|| home.join(FILE), Path::to_owned);
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
        match read {
            Ok(_) => Settings::parse(&text, &path),
            Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => Ok(Settings::default()),
            Err(source) => Err(ConfigError::Read { path, source }),
        }
    }

    fn parse(text: &str, path: &Path) -> Result<Settings, ConfigError> {
        let content =
            |message: String, hint: String| ConfigError::Content { path: path.to_owned(), message, hint };
        let raw: RawSettings = toml::from_str(text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            let message = error.message().replacen("unknown field", "unknown key", 1);
            content(format!("line {line}: {message}"), "docs/service.md lists the keys".into())
        })?;
        let invalid =
            |what: String| move |Invalid { reason, hint }| content(format!("{what}: {reason}"), hint);
        let everyone = raw.quotas.over(&Quota::default()).map_err(invalid("[quotas]".into()))?;
        let mut quotas = Quotas { tenants: BTreeMap::new(), everyone };
        for (tenant, raw) in raw.tenants {
            let quota = raw.over(&quotas.everyone).map_err(invalid(format!("[tenants.{tenant}]")))?;
            quotas.tenants.insert(tenant, quota);
        }
        let beside = path.parent().unwrap_or(Path::new("."));
        let tls =
            raw.tls.map(|raw| Tls::load(&beside.join(raw.certificate), &beside.join(raw.key))).transpose()?;
        Ok(Settings { tls, quotas })
    }
}

impl RawQuota {
    /// What it leaves out is as in `base`.
    fn over(&self, base: &Quota) -> Result<Quota, Invalid> {
        if self.egress.is_some() {
            return Err(Invalid::new(
                "there is no egress that could be counted",
                "leave `egress` out: nothing leaves a cell by network yet",
            ));
        }
        let or = |amount: &Option<Amount>, parse: fn(&str) -> Result<u64, Invalid>, base: Option<u64>| {
            match amount {
                Some(amount) => parse(&amount.text()).map(Some),
                None => Ok(base),
            }
        };
        Ok(Quota {
            cells: or(&self.cells, parse_count, base.cells)?,
            memory: or(&self.memory, parse_size, base.memory)?,
            disk: or(&self.disk, parse_size, base.disk)?,
            cpu_millis: or(&self.cpu_time, parse_duration, base.cpu_millis)?,
            requests: or(&self.requests, parse_count, base.requests)?,
        })
    }
}

impl Amount {
    fn text(&self) -> String {
        match self {
            Amount::Text(text) => text.clone(),
            Amount::Whole(number) => number.to_string(),
        }
    }
}

impl Tls {
    fn load(certificate: &Path, key: &Path) -> Result<Tls, ConfigError> {
        let open = |path: &Path| {
            let opened = File::open(path).map(BufReader::new);
            opened.map_err(|source| ConfigError::Read { path: path.to_owned(), source })
        };
        let unusable = |path: &Path, message: String| ConfigError::Tls { path: path.to_owned(), message };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(open(certificate)?).collect();
        let chain = chain.map_err(|error| unusable(certificate, error.to_string()))?;
        let private = PrivateKeyDer::from_pem_reader(open(key)?);
        let private = private.map_err(|error| unusable(key, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
        let mut config = config.map_err(|error| unusable(certificate, error.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(Arc::new(config)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::parse(text, Path::new("/nowhere/service.toml"))
    }

    #[test]
    fn a_tenant_has_what_everyone_has_but_for_what_is_its_own() {
        let settings =
            parse("[quotas]\ncells = 4\nmemory = \"2G\"\n[tenants.acme]\ncells = 9\ncpu-time = \"1h\"");
        let quotas = settings.expect("it makes sense").quotas;
        assert_eq!((quotas.of("acme").cells, quotas.of("acme").memory), (Some(9), Some(2 << 30)));
        assert_eq!((quotas.of("other").cells, quotas.of("other").cpu_millis), (Some(4), None));
        assert_eq!(quotas.of("acme").cpu_millis, Some(3_600_000));
    }

    #[test]
    fn what_means_nothing_is_an_error_that_says_where() {
        for (text, words) in [
            ("[quotas]\nluck = 7", "line 2: unknown key `luck`"),
            ("[quotas]\nmemory = \"lots\"", "[quotas]"),
            ("[tenants.a]\ncells = 0", "[tenants.a]"),
            ("[quotas]\negress = \"1G\"", "no egress"),
            ("[tls]\ncertificate = \"a\"", "missing field `key`"),
            ("[tls]\ncertificate = \"a\"\nkey = \"b\"", "cannot read /nowhere/a"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.to_string().contains(words) && !error.hint().is_empty(), "{error}");
        }
    }
}
