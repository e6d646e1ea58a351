//! The policy file as written. These types exist to be converted: they never leave this module.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use super::{AnyOf, DockerRuntime, Durability, Policy, Prices, Rules, Sharing};
use crate::limits::{LimitKind, Limits, LimitsDraft, check_disk_below_memory};
use crate::request::{Invalid, Kind, Risk, check_name};
use crate::stack::{Stack, Weakness};

/// What is wrong with a policy file, and where.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct PolicyError {
    /// Both count from 1.
    pub line: usize,
    pub column: usize,
    pub message: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawPolicy {
    accept: Vec<Spanned<String>>,
    floors: RawFloors,
    kinds: RawKinds,
    tags: BTreeMap<Spanned<String>, Spanned<RawAnyOf>>,
    defaults: RawLimits,
    caps: RawLimits,
    evidence: RawEvidence,
    wasm: RawWasm,
    docker: RawDocker,
    prices: RawPrices,
    tenants: BTreeMap<Spanned<String>, RawTenant>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawTenant {
    floors: RawFloors,
    kinds: RawKinds,
    tags: BTreeMap<Spanned<String>, Spanned<RawAnyOf>>,
    caps: RawLimits,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawFloors {
    low: Option<Spanned<RawAnyOf>>,
    medium: Option<Spanned<RawAnyOf>>,
    high: Option<Spanned<RawAnyOf>>,
    critical: Option<Spanned<RawAnyOf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct RawKinds {
    pure_compute: Option<Spanned<RawAnyOf>>,
    file_ops: Option<Spanned<RawAnyOf>>,
    build_test: Option<Spanned<RawAnyOf>>,
    untrusted_script: Option<Spanned<RawAnyOf>>,
    model: Option<Spanned<RawAnyOf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct RawLimits {
    wall_time: Option<Spanned<RawLimit>>,
    cpu_time: Option<Spanned<RawLimit>>,
    cpus: Option<Spanned<RawLimit>>,
    memory: Option<Spanned<RawLimit>>,
    disk: Option<Spanned<RawLimit>>,
    inodes: Option<Spanned<RawLimit>>,
    disk_io: Option<Spanned<RawLimit>>,
    pids: Option<Spanned<RawLimit>>,
    open_files: Option<Spanned<RawLimit>>,
    output: Option<Spanned<RawLimit>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawEvidence {
    durability: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawWasm {
    sharing: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawDocker {
    runtime: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct RawPrices {
    currency: Option<Spanned<String>>,
    cpu_hour: Option<Spanned<f64>>,
    gb_hour: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a stack such as \"container\", or a list of stacks")]
enum RawAnyOf {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a limit such as \"256M\", \"10s\" or 64")]
enum RawLimit {
    Text(String),
    Whole(u64),
    Decimal(f64),
}

/// A value that parsed as TOML and means nothing, with its place in the file.
struct Misplaced {
    span: Range<usize>,
    invalid: Invalid,
}

pub(super) fn parse(text: &str) -> Result<Policy, PolicyError> {
    let raw: RawPolicy = toml::from_str(text).map_err(|error| {
        // serde calls a key of a TOML table a field of a struct.
        let message = error.message().replacen("unknown field", "unknown key", 1);
        PolicyError::at(text, error.span().unwrap_or_default(), message)
    })?;
    Policy::try_from(raw).map_err(|Misplaced { span, invalid }| {
        PolicyError::at(text, span, format!("{}; {}", invalid.reason, invalid.hint))
    })
}

impl PolicyError {
    fn at(text: &str, span: Range<usize>, message: String) -> PolicyError {
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        // A message is one line, wherever it is shown.
        PolicyError { line, column, message: message.trim().replace('\n', ", ") }
    }
}

impl TryFrom<RawPolicy> for Policy {
    type Error = Misplaced;

    fn try_from(raw: RawPolicy) -> Result<Policy, Misplaced> {
        let mut policy = Policy::default();
        policy.rules.overlay(RawTenant {
            floors: raw.floors,
            kinds: raw.kinds,
            tags: raw.tags,
            caps: raw.caps,
        })?;
        let disk = raw.defaults.disk.as_ref().map(Spanned::span);
        policy.defaults = raw.defaults.read(&policy.rules.caps)?;
        if let Some(span) = disk {
            check_default_disk(&policy).map_err(|invalid| Misplaced { span, invalid })?;
        }
        for weakness in raw.accept {
            policy.accept.insert(at(weakness, |text| text.parse::<Weakness>())?);
        }
        if let Some(durability) = raw.evidence.durability {
            policy.durability = at(durability, |text| text.parse::<Durability>())?;
        }
        if let Some(sharing) = raw.wasm.sharing {
            policy.sharing = at(sharing, |text| text.parse::<Sharing>())?;
        }
        if let Some(runtime) = raw.docker.runtime {
            policy.docker = at(runtime, |text| text.parse::<DockerRuntime>())?;
        }
        policy.prices.overlay(raw.prices)?;
        for (tenant, raw) in raw.tenants {
            let mut rules = Rules::default();
            rules.overlay(raw)?;
            policy.tenants.insert(checked_name("tenant", tenant)?, rules);
        }
        Ok(policy)
    }
}

impl Prices {
    fn overlay(&mut self, raw: RawPrices) -> Result<(), Misplaced> {
        if let Some(currency) = raw.currency {
            self.currency = at(currency, read_currency)?;
        }
        if let Some(price) = raw.cpu_hour {
            self.cpu = at(price, millionths)?;
        }
        if let Some(price) = raw.gb_hour {
            self.gigabyte = at(price, millionths)?;
        }
        Ok(())
    }
}

fn read_currency(text: String) -> Result<String, Invalid> {
    match (1..=8).contains(&text.chars().count())
        && !text.contains(|c: char| c.is_control() || c.is_whitespace())
    {
        true => Ok(text),
        false => Err(Invalid::new(
            format!("`{}` is not a currency", text.escape_debug()),
            "it has one to eight characters, such as \"EUR\"",
        )),
    }
}

fn millionths(price: f64) -> Result<u64, Invalid> {
    match (0.0..=1e6).contains(&price) {
        true => Ok((price * 1e6).round() as u64),
        false => {
            Err(Invalid::new(format!("{price} is not a price"), "it is between 0 and a million, per hour"))
        }
    }
}

impl Rules {
    fn overlay(&mut self, raw: RawTenant) -> Result<(), Misplaced> {
        let RawFloors { low, medium, high, critical } = raw.floors;
        let floors =
            [(Risk::Low, low), (Risk::Medium, medium), (Risk::High, high), (Risk::Critical, critical)];
        for (risk, floor) in floors {
            if let Some(floor) = floor {
                self.floors.insert(risk, at(floor, AnyOf::try_from)?);
            }
        }
        let RawKinds { pure_compute, file_ops, build_test, untrusted_script, model } = raw.kinds;
        let kinds = [
            (Kind::PureCompute, pure_compute),
            (Kind::FileOps, file_ops),
            (Kind::BuildTest, build_test),
            (Kind::UntrustedScript, untrusted_script),
            (Kind::Model, model),
        ];
        for (kind, floor) in kinds {
            if let Some(floor) = floor {
                self.kinds.insert(kind, at(floor, AnyOf::try_from)?);
            }
        }
        for (tag, floor) in raw.tags {
            self.tags.insert(checked_name("tag", tag)?, at(floor, AnyOf::try_from)?);
        }
        self.caps = raw.caps.read(&LimitsDraft::new())?;
        Ok(())
    }
}

impl RawLimits {
    /// Reads a section of limits, none of which may exceed its cap.
    fn read(self, caps: &LimitsDraft) -> Result<LimitsDraft, Misplaced> {
        let mut limits = LimitsDraft::new();
        for (kind, raw) in self.by_kind() {
            if let Some(raw) = raw {
                limits.set(kind, at(raw, |raw| read_limit(kind, raw, caps))?);
            }
        }
        Ok(limits)
    }

    fn by_kind(self) -> [(LimitKind, Option<Spanned<RawLimit>>); LimitKind::ALL.len()] {
        [
            (LimitKind::WallTime, self.wall_time),
            (LimitKind::CpuTime, self.cpu_time),
            (LimitKind::Cpus, self.cpus),
            (LimitKind::Memory, self.memory),
            (LimitKind::Disk, self.disk),
            (LimitKind::Inodes, self.inodes),
            (LimitKind::DiskIo, self.disk_io),
            (LimitKind::Pids, self.pids),
            (LimitKind::OpenFiles, self.open_files),
            (LimitKind::Output, self.output),
        ]
    }
}

fn read_limit(kind: LimitKind, raw: RawLimit, caps: &LimitsDraft) -> Result<u64, Invalid> {
    let text = match raw {
        RawLimit::Text(text) => text,
        RawLimit::Whole(number) => number.to_string(),
        RawLimit::Decimal(number) => number.to_string(),
    };
    let value = kind.check(kind.parse(&text)?)?;
    match caps.get(kind) {
        Some(cap) if value > cap => Err(Invalid::new(
            format!("the default {kind} {} is above its cap of {}", kind.format(value), kind.format(cap)),
            "lower the default or raise the cap",
        )),
        _ => Ok(value),
    }
}

/// A default disk that no run could have is a mistake in the file; one that only a small `--memory` rules out
/// gives way to it.
fn check_default_disk(policy: &Policy) -> Result<(), Invalid> {
    let unset = LimitsDraft::new();
    let limits = Limits::resolve(&unset, &policy.defaults, &policy.rules.caps)?;
    match (policy.defaults.get(LimitKind::Disk), limits.get(LimitKind::Memory)) {
        (Some(disk), Some(memory)) => check_disk_below_memory(disk, memory.value),
        _ => Ok(()),
    }
}

impl TryFrom<RawAnyOf> for AnyOf {
    type Error = Invalid;

    fn try_from(raw: RawAnyOf) -> Result<AnyOf, Invalid> {
        let names = match raw {
            RawAnyOf::One(name) => vec![name],
            RawAnyOf::Many(names) => names,
        };
        if names.is_empty() {
            return Err(Invalid::new("a floor without stacks admits nothing", "name at least one stack"));
        }
        names.iter().map(|name| name.parse::<Stack>()).collect::<Result<_, _>>().map(AnyOf)
    }
}

fn checked_name(what: &str, name: Spanned<String>) -> Result<String, Misplaced> {
    at(name, |name| check_name(what, &name).map(|()| name))
}

/// Converts a value and keeps its place for the error.
fn at<T, U>(spanned: Spanned<T>, convert: impl FnOnce(T) -> Result<U, Invalid>) -> Result<U, Misplaced> {
    let span = spanned.span();
    convert(spanned.into_inner()).map_err(|invalid| Misplaced { span, invalid })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DOCUMENTED: &str = include_str!("../../../../docs/policy.toml");

    fn error(text: &str) -> PolicyError {
        Policy::parse(text).unwrap_err()
    }

    #[test]
    fn the_documented_policy_is_the_default() {
        assert_eq!(Policy::parse(DOCUMENTED), Ok(Policy::default()));
        assert_eq!(Policy::parse(""), Ok(Policy::default()));
    }

    #[test]
    fn every_key_that_the_documentation_only_shows_is_accepted() {
        let is_key = |line: &str| {
            line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
        };
        let uncomment =
            |line: &'static str| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line);
        let text: String = DOCUMENTED.lines().map(|line| uncomment(line).to_owned() + "\n").collect();
        let policy = Policy::parse(&text).unwrap();
        for kind in LimitKind::ALL {
            assert!(policy.defaults.get(kind).is_some(), "{kind} has no documented default");
            assert_eq!(policy.rules.caps.get(kind), Some(kind.range().cap), "{kind}");
            if let Some(default) = kind.range().default {
                assert_eq!(policy.defaults.get(kind), Some(default), "{kind}");
            }
        }
        assert_eq!(policy.tenants.keys().collect::<Vec<_>>(), ["acme"]);
    }

    #[test]
    fn prices_are_what_they_say() {
        let policy = Policy::parse("[prices]\ncurrency = \"EUR\"\ncpu-hour = 0.031\n").unwrap();
        let prices = policy.prices();
        assert_eq!((prices.currency(), prices.cpu_hour()), ("EUR", 0.031));
        assert_eq!(prices.gb_hour(), Prices::default().gb_hour());
        assert_eq!(Policy::parse("[prices]\ngb-hour = 2").unwrap().prices().gb_hour(), 2.0);
    }

    #[test]
    fn an_unknown_key_is_shown_with_its_line_and_the_known_ones() {
        let error = error("[floors]\nlow = \"container\"\n\nflor = \"container\"\n");
        assert_eq!((error.line, error.column), (4, 1));
        assert_eq!(
            error.to_string(),
            "line 4: unknown key `flor`, expected one of `low`, `medium`, `high`, `critical`"
        );
        assert!(self::error("[flors]\n").to_string().starts_with("line 1: unknown key `flors`"));
        assert!(
            self::error("\n[tenants.a.defaults]\n").to_string().starts_with("line 2: unknown key `defaults`")
        );
    }

    #[test]
    fn a_value_that_means_nothing_is_shown_with_its_line() {
        for (text, line, words) in [
            ("[floors]\nhigh = \"wasm\"", 2, "container+wasm"),
            ("[floors]\n\nhigh = []", 3, "at least one"),
            ("[floors]\nhigh = 3", 2, "expected a stack"),
            ("[kinds]\nmodel = [\"container\",\n\"castle\"]", 2, "castle"),
            ("[defaults]\nmemory = \"lots\"", 2, "`lots` is not a size"),
            ("[defaults]\npids = -1", 2, "`-1` is not a count"),
            ("[caps]\nmemory = \"1M\"", 2, "below the minimum"),
            ("[caps]\npids = 4\n[defaults]\npids = 5", 4, "above its cap"),
            ("[defaults]\ndisk = \"256M\"", 2, "not below memory"),
            ("[evidence]\ndurability = \"never\"", 2, "batch, each"),
            ("[docker]\nruntime = \"crun\"", 2, "runc, runsc"),
            ("[prices]\ncpu-hour = -1", 2, "not a price"),
            ("[prices]\ngb-hour = nan", 2, "not a price"),
            ("[prices]\ngb-hour = \"1\"", 2, "expected f64"),
            ("[prices]\ncurrency = \"\"", 2, "not a currency"),
            ("accept = [\"tcg\", \"anything\"]", 1, "anything"),
            ("[tags]\n\"No Tag\" = \"container\"", 2, "tag name"),
            ("\n[tenants.ACME]", 2, "tenant name"),
            ("[floors", 1, ""),
        ] {
            let error = error(text);
            assert_eq!(error.line, line, "{text}: {error}");
            assert!(error.message.contains(words), "{text}: {error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn unknown_keys_are_rejected_in_every_section(
            key in "[a-z]{1,12}(-[a-z]{1,8})?",
            section in prop::sample::select(vec![
                "", "floors", "kinds", "defaults", "caps", "evidence", "wasm", "docker", "prices",
                "tenants.a", "tenants.a.floors", "tenants.a.kinds", "tenants.a.caps",
            ]),
        ) {
            // Every known key is a word of the documented file.
            prop_assume!(!DOCUMENTED.contains(&key));
            let header = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
            let line = header.lines().count() + 1;
            let error = error(&format!("{header}{key} = \"container\"\n"));
            prop_assert_eq!(error.line, line);
            let expected = format!("unknown key `{key}`");
            prop_assert!(error.message.starts_with(&expected), "{}", error);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "(\\PC|\n){0,120}") {
            let _ = Policy::parse(&text);
        }
    }
}
