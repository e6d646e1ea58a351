//! Durations and what is said about them.

use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Samples(Vec<Duration>);

impl Samples {
    pub(super) fn add(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// The sample below which this share of the others lies.
    pub(super) fn at(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let index = (sorted.len() as f64 * share) as usize;
        sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

/// Samples under names, in the order in which the names came up.
#[derive(Debug, Default)]
pub(super) struct Named(Vec<(String, Samples)>);

impl Named {
    pub(super) fn add(&mut self, name: &str, sample: Duration) {
        if !self.0.iter().any(|(known, _)| known == name) {
            self.0.push((name.to_owned(), Samples::default()));
        }
        for (known, samples) in &mut self.0 {
            if known == name {
                samples.add(sample);
            }
        }
    }

    pub(super) fn append(&mut self, other: Named) {
        for (name, samples) in other.0 {
            samples.0.into_iter().for_each(|sample| self.add(&name, sample));
        }
    }

    /// Those whose names begin with `kind:`.
    pub(super) fn of(&self, kind: &str) -> impl Iterator<Item = (&str, &Samples)> {
        self.0
            .iter()
            .filter_map(move |(name, samples)| Some((name.strip_prefix(kind)?.strip_prefix(':')?, samples)))
    }
}

pub(super) fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

pub(super) fn micros(duration: Duration) -> String {
    format!("{:.0} µs", duration.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.at(0.5), Duration::ZERO);
        (1..=100).rev().for_each(|n| samples.add(Duration::from_millis(n)));
        assert_eq!(samples.at(0.5), Duration::from_millis(51));
        assert_eq!(samples.at(0.99), Duration::from_millis(100));
    }
}
