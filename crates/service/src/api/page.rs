//! Lists come in parts. Each says where the next begins.

use serde::Deserialize;
use utoipa::IntoParams;

use crate::problem::{Code, Problem};
use crate::store::Known;

/// How many a part has, unless fewer are asked for.
const MOST: usize = 100;
/// A cursor's beginning: what comes without it is not one of ours.
const MARK: char = 'p';

/// Which part of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page {
    /// The `next` of the part before, as it is.
    cursor: Option<String>,
    /// How many at most; 100 if nothing is said.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
}

impl Page {
    /// Of a list that is read from the state: what to look before, and how many.
    pub(super) fn bounds(&self) -> Result<(i64, usize), Problem> {
        let before = match self.place()? {
            Some(place) => place.parse().map_err(|_| not_ours())?,
            None => i64::MAX,
        };
        Ok((before, self.most()?))
    }

    /// Where the part after these begins, if there is one.
    pub(super) fn next(&self, found: &[Known]) -> Option<String> {
        let last = found.last().filter(|_| self.most().is_ok_and(|most| found.len() == most));
        last.map(|last| format!("{MARK}{}", last.place))
    }

    /// The part of a list that is at hand as a whole, and where the next begins. `key` orders it, and stays the same for as long as
    /// something is in it.
    pub(super) fn cut<T>(
        &self,
        all: Vec<T>,
        key: impl Fn(&T) -> String,
    ) -> Result<(Vec<T>, Option<String>), Problem> {
        let (most, place) = (self.most()?, self.place()?.unwrap_or_default());
        let mut after: Vec<(String, T)> =
            all.into_iter().map(|item| (key(&item), item)).filter(|(key, _)| key.as_str() > place).collect();
        after.sort_by(|(one, _), (other, _)| one.cmp(other));
        let is_last = after.len() <= most;
        after.truncate(most);
        let next = after.last().filter(|_| !is_last).map(|(key, _)| format!("{MARK}{key}"));
        Ok((after.into_iter().map(|(_, item)| item).collect(), next))
    }

    fn most(&self) -> Result<usize, Problem> {
        let most = self.limit.unwrap_or(MOST);
        match (1..=MOST).contains(&most) {
            true => Ok(most),
            false => {
                let hint = format!("limit is between 1 and {MOST}");
                Err(Problem::new(Code::Invalid, format!("a list of {most} cannot be had"), hint))
            }
        }
    }

    fn place(&self) -> Result<Option<&str>, Problem> {
        self.cursor.as_deref().map(|cursor| cursor.strip_prefix(MARK).ok_or_else(not_ours)).transpose()
    }
}

fn not_ours() -> Problem {
    Problem::new(Code::Invalid, "this is not a cursor", "send the `next` of the part before, as it is")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_up_the_whole_whatever_comes_and_goes() {
        let mut all: Vec<u32> = (0..7).rev().collect();
        let (mut cursor, mut seen) = (None, Vec::new());
        loop {
            let page = Page { cursor, limit: Some(3) };
            let (part, next) = page.cut(all.clone(), |number| format!("{number:010}")).expect("a part");
            assert!(part.len() <= 3 && !part.is_empty());
            seen.extend(part);
            // What was seen last is gone when the next part is asked for.
            all.retain(|number| Some(number) != seen.last());
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, (0..7).collect::<Vec<u32>>());
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let cut = |cursor: Option<&str>, limit| {
            let page = Page { cursor: cursor.map(str::to_owned), limit };
            page.cut(vec![1], i32::to_string).is_ok()
        };
        assert!(cut(None, None) && cut(Some("p0"), Some(100)));
        assert!(!cut(Some("0"), None) && !cut(None, Some(0)) && !cut(None, Some(101)));
        assert!(Page { cursor: Some("px".into()), limit: None }.bounds().is_err());
    }
}
