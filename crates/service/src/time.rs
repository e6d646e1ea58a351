//! Times as people and programs write them.

const MICROS: i64 = 1_000_000;
const DAY: i64 = 24 * 3600;

/// `2026-01-31T12:00:00.000000Z`, from microseconds since 1970.
pub(crate) fn rfc3339_micros(micros: i64) -> String {
    let (seconds, fraction) = (micros.div_euclid(MICROS), micros.rem_euclid(MICROS));
    let (year, month, day) = date(seconds.div_euclid(DAY));
    let of_day = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

/// The same, from seconds.
pub(crate) fn rfc3339(seconds: i64) -> String {
    rfc3339_micros(seconds.saturating_mul(MICROS))
}

/// The date so many days after the first of January 1970. Years begin in March here, so that the odd day comes last.
fn date(days: i64) -> (i64, i64, i64) {
    const ERA: i64 = 146_097;
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_everybody_writes_them() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_827_696, "2000-02-29T12:34:56.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.000000Z"),
        ] {
            assert_eq!(rfc3339(seconds), expected);
        }
        assert_eq!(rfc3339_micros(1_500_001), "1970-01-01T00:00:01.500001Z");
    }
}
