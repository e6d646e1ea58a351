//! The time of a record: UTC with microseconds, in one fixed spelling.

use std::fmt;
use std::str::FromStr;

/// Microseconds since 1970-01-01, printed as `2026-03-21T09:15:00.000042Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

const DAY: u64 = 86_400_000_000;
/// The first microsecond of the year 10000, which no longer fits the spelling.
const END: u64 = 2_932_897 * DAY;

impl Timestamp {
    /// A clock outside the years 1970 to 9999 is shown as the nearest end of that range.
    pub fn from_unix_micros(micros: u64) -> Timestamp {
        Timestamp(micros.min(END - 1))
    }

    pub fn unix_micros(self) -> u64 {
        self.0
    }
}

impl Timestamp {
    /// What `Display` prints. Every record needs it while the chain is locked, so it is done without the formatter.
    pub(super) fn spelled(self) -> [u8; 27] {
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        let mut put = |from: usize, to: usize, mut value: u64| {
            for digit in text[from..to].iter_mut().rev() {
                *digit = b'0' + (value % 10) as u8;
                value /= 10;
            }
        };
        let (year, month, day) = date_of(self.0 / DAY);
        let (seconds, micros) = (self.0 % DAY / 1_000_000, self.0 % 1_000_000);
        put(0, 4, year);
        put(5, 7, month);
        put(8, 10, day);
        put(11, 13, seconds / 3600);
        put(14, 16, seconds / 60 % 60);
        put(17, 19, seconds % 60);
        put(20, 26, micros);
        text
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.spelled()).expect("digits and signs are ASCII"))
    }
}

/// Accepts what `Display` prints, and only that.
impl FromStr for Timestamp {
    type Err = ();

    fn from_str(text: &str) -> Result<Timestamp, ()> {
        let field = |from: usize, to: usize| {
            let digits = text.get(from..to).filter(|d| d.bytes().all(|b| b.is_ascii_digit())).ok_or(())?;
            digits.parse::<u64>().map_err(|_| ())
        };
        let (year, month, day) = (field(0, 4)?, field(5, 7)?, field(8, 10)?);
        let (h, m, s, micros) = (field(11, 13)?, field(14, 16)?, field(17, 19)?, field(20, 26)?);
        if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return Err(());
        }
        let seconds = day_of(year, month, day) * 86_400 + h * 3600 + m * 60 + s;
        let time = Timestamp::from_unix_micros(seconds * 1_000_000 + micros);
        // Printing it again rejects wrong punctuation, a thirtieth of February and a twenty-fifth hour at once.
        if time.spelled() == text.as_bytes() { Ok(time) } else { Err(()) }
    }
}

// Years are counted from March, so that the leap day comes last and month lengths follow one formula.

fn day_of(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before_month = (153 * month + 2) / 5;
    // 719468 days lie between the first of March of year 0 and the first of January 1970.
    365 * year + year / 4 - year / 100 + year / 400 + before_month + (day - 1) - 719_468
}

fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, in_era) = (days / 146_097, days % 146_097);
    let year_in_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_in_era + year_in_era / 4 - year_in_era / 100);
    let month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_in_era;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}
