//! Quantities as people write and read them. Every parser is exact: it works in thousandths, never in floats.

use crate::words::{Invalid, quote};

const SIZES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Bytes: `64M`, `64MiB`, `1.5G`, `4096`. Units are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, Invalid> {
    parse(text, "a size", "64M, 1.5G or 4096", |suffix| match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        "t" | "tib" => Some(1 << 40),
        _ => None,
    })
}

/// Milliseconds: `500ms`, `10s`, `2m`, `1h`; a bare number is seconds, as with `timeout(1)`.
pub fn parse_duration(text: &str) -> Result<u64, Invalid> {
    parse(text, "a duration", "500ms, 10s, 2m or 1h", |suffix| match suffix {
        "ms" => Some(1),
        "" | "s" => Some(1000),
        "m" => Some(60 * 1000),
        "h" => Some(3600 * 1000),
        _ => None,
    })
}

/// Thousandths of a cpu: `1`, `0.5`, `1.5`.
pub fn parse_cpus(text: &str) -> Result<u64, Invalid> {
    parse(text, "a number of cpus", "1, 0.5 or 1.5", |suffix| match suffix {
        "" | "cpu" | "cpus" => Some(1000),
        _ => None,
    })
}

/// A plain number: `64`.
pub fn parse_count(text: &str) -> Result<u64, Invalid> {
    parse(text, "a count", "64", |suffix| suffix.is_empty().then_some(1))
}

pub(super) fn format_size(bytes: u64) -> String {
    let fits = |unit: &&(&str, u64)| bytes >= unit.1 && bytes.is_multiple_of(unit.1);
    let (name, unit) = SIZES.iter().find(fits).unwrap_or(&("B", 1));
    format!("{} {name}", bytes / unit)
}

pub(super) fn format_size_rounded(bytes: u64) -> String {
    match SIZES.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if *unit > 1 => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        _ => format!("{bytes} B"),
    }
}

pub(super) fn format_duration(ms: u64) -> String {
    match ms {
        0 => "0s".to_owned(),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms >= 1000 => format!("{}s", thousandths(ms)),
        _ => format!("{ms}ms"),
    }
}

pub(super) fn format_cpus(milli: u64) -> String {
    let plural = if milli == 1000 { "" } else { "s" };
    format!("{} cpu{plural}", thousandths(milli))
}

/// `1500` as `1.5`, `2000` as `2`.
fn thousandths(value: u64) -> String {
    let text = format!("{}.{:03}", value / 1000, value % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn parse(text: &str, what: &str, example: &str, unit: impl Fn(&str) -> Option<u64>) -> Result<u64, Invalid> {
    let text = text.trim();
    let value = number_and_suffix(text)
        .and_then(|(thousandths, suffix)| scale(thousandths, unit(suffix.trim_start())?))
        .filter(|value| *value > 0);
    value.ok_or_else(|| {
        Invalid::new(format!("{} is not {what}", quote(text)), format!("write for example {example}"))
    })
}

/// Splits `1.5G` into 1500 thousandths and `G`. More than three decimals is more than any unit here means.
fn number_and_suffix(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, decimals) = match number.split_once('.') {
        Some((whole, decimals)) if (1..=3).contains(&decimals.len()) => (whole, decimals),
        Some(_) => return None,
        None => (number, "0"),
    };
    let scale = 10u64.pow(3 - decimals.len() as u32);
    let fraction = decimals.parse::<u64>().ok()?.checked_mul(scale)?;
    Some((whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction)?, suffix))
}

/// Thousandths times a unit; a part of an indivisible unit (half a byte) is no quantity.
fn scale(thousandths: u64, unit: u64) -> Option<u64> {
    let product = u128::from(thousandths) * u128::from(unit);
    let whole = product.is_multiple_of(1000) || unit > 1;
    u64::try_from(product / 1000).ok().filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::LimitKind;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("64 MiB", 64 << 20),
            ("1.5G", 1536 << 20),
            ("2KiB", 2048),
            (" 1K ", 1024),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn durations_and_cpus_are_exact() {
        for (text, ms) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("10", 10_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0.1s", 100),
        ] {
            assert_eq!(parse_duration(text), Ok(ms), "{text}");
        }
        assert_eq!(parse_cpus("1.5"), Ok(1500));
        assert_eq!(parse_cpus("0.05"), Ok(50));
    }

    #[test]
    fn nonsense_is_refused_by_every_parser() {
        let nonsense = [
            "",
            "-1",
            "+1",
            "0",
            "0.0",
            "NaN",
            "inf",
            "1e9",
            ".5",
            "5.",
            "1.2.3",
            "1.2345",
            "64X",
            "M",
            "0x10",
            "１",
            "18446744073709551616",
            "99999999999999999999T",
            "1_000",
            "6 4",
        ];
        for text in nonsense {
            for parse in [parse_size, parse_duration, parse_cpus, parse_count] {
                assert!(parse(text).is_err(), "{text}");
            }
        }
        assert!(parse_count("1.5").is_err());
        assert!(parse_size("1.5").is_err());
        assert!(parse_size("64KB").is_err(), "KB means 1000 to some and 1024 to others");
    }

    #[test]
    fn an_error_names_the_text_and_gives_an_example() {
        let error = LimitKind::Memory.parse("lots").unwrap_err();
        assert_eq!(error.reason, "memory: `lots` is not a size");
        assert!(error.hint.contains("64M"));
    }

    #[test]
    fn formats_read_like_a_person_would_write_them() {
        assert_eq!(format_size(64 << 20), "64 MiB");
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size_rounded((64 << 20) + 5), "64.0 MiB");
        assert_eq!(format_duration(10_000), "10s");
        assert_eq!(format_duration(1500), "1.5s");
        assert_eq!(format_duration(120_000), "2m");
        assert_eq!(format_cpus(1500), "1.5 cpus");
        assert_eq!(format_cpus(1000), "1 cpu");
        assert_eq!(LimitKind::DiskIo.format(1 << 20), "1 MiB/s");
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_as_the_same_value(
            kind in prop::sample::select(LimitKind::ALL.to_vec()),
            value in prop_oneof![1..=u64::from(u32::MAX), (1..=64u64).prop_map(|n| n << 20)],
        ) {
            prop_assert_eq!(kind.parse(&kind.format(value)), Ok(value));
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,24}") {
            for parse in [parse_size, parse_duration, parse_cpus, parse_count] {
                prop_assert!(parse(&text).map_or(true, |value| value > 0));
            }
        }
    }
}
