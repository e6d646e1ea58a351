//! Counts what passed and what failed, and says it again at the end.

use std::process::Command;
use std::time::Duration;

use crate::shell::{self, Result, heading};

#[derive(Default)]
pub(super) struct Report {
    tally: Tally,
    tables: Vec<(String, String)>,
    failures: Vec<String>,
}

/// Marks a suite whose output is shown again at the end.
pub(super) struct Table;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
}

impl Report {
    /// Runs a suite and adds what it counts. A suite that counts nothing is one test.
    pub(super) fn run(&mut self, title: &str, table: Option<Table>, command: &mut Command, limit: Duration) {
        heading(title);
        let watched = shell::watch(command, limit);
        let mut tally = Tally::of(&watched.stdout);
        match &watched.end {
            Ok(()) if tally.failed > 0 => self.fail(title, "says that tests failed, but ended well"),
            Ok(()) if tally.passed == 0 && !watched.stdout.contains("0 passed") => tally.passed = 1,
            Ok(()) => {}
            Err(error) => {
                self.fail(title, error);
                // It may have died without counting.
                tally.failed = tally.failed.max(1);
            }
        }
        self.tally.add(tally);
        if let Some(Table) = table {
            self.tables.push((title.to_owned(), watched.stdout));
        }
    }

    /// Does one check and adds it.
    pub(super) fn part(&mut self, title: &str, check: impl FnOnce() -> Result) {
        heading(title);
        match check() {
            Ok(()) => {
                println!("ok");
                self.tally.passed += 1;
            }
            Err(error) => {
                println!("{error}");
                self.fail(title, &error);
                self.tally.failed += 1;
            }
        }
    }

    fn fail(&mut self, title: &str, why: &str) {
        self.failures.push(format!("{title}: {why}"));
    }

    /// Prints the tables again, then what failed, then the totals.
    pub(super) fn close(self, took: Duration) -> Result {
        for (title, table) in &self.tables {
            heading(title);
            print!("{table}");
        }
        heading(&format!("everything, in {} s", took.as_secs()));
        for failure in &self.failures {
            println!("FAILED {failure}");
        }
        let Tally { passed, failed } = self.tally;
        println!("{passed} passed, {failed} failed");
        if failed == 0 && self.failures.is_empty() { Ok(()) } else { Err("tests failed".into()) }
    }
}

impl Tally {
    /// The sum of the lines that count, whether libtest's or our own suites'.
    fn of(output: &str) -> Tally {
        let mut sum = Tally::default();
        output.lines().filter_map(Tally::line).for_each(|tally| sum.add(tally));
        sum
    }

    /// `test result: ok. 3 passed; 0 failed; …`, or `3 passed, 0 failed`.
    fn line(line: &str) -> Option<Tally> {
        let (counts, separator) = match line.strip_prefix("test result: ") {
            Some(result) => (result.split_once(". ")?.1, "; "),
            None => (line, ", "),
        };
        let mut counts = counts.trim().split(separator);
        let passed = counts.next()?.strip_suffix(" passed")?.parse().ok()?;
        let failed = counts.next()?.strip_suffix(" failed")?.parse().ok()?;
        Some(Tally { passed, failed })
    }

    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_and_of_our_own_suites_are_summed() {
        let output = "running 3 tests\n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            some attack   held\n\
            40 passed, 2 failed\n";
        assert_eq!(Tally::of(output), Tally { passed: 42, failed: 3 });
    }

    #[test]
    fn prose_about_passing_is_not_counted() {
        assert_eq!(Tally::of("all 3 passed, more or less\nx passed, 0 failed\n"), Tally::default());
    }
}
