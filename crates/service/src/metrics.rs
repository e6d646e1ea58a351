//! Numbers for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use casemate_core::outcome::Status;

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connections: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) problems: AtomicU64,
    pub(crate) sessions: AtomicU64,
    executions: [AtomicU64; 5],
    cpu_micros: AtomicU64,
}

const KINDS: [&str; 5] = ["exited", "signaled", "killed", "refused", "failed"];

impl Metrics {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn executed(&self, executed: &casemate_engine::Executed) {
        Metrics::add(&self.executions[index(&executed.outcome.status)], 1);
        let cpu = executed.outcome.usage.cpu.map_or(0, |cpu| cpu.as_micros() as u64);
        Metrics::add(&self.cpu_micros, cpu);
    }

    /// In the text format that Prometheus reads.
    pub(crate) fn text(&self, (cells, waiting): (usize, usize), sessions: usize) -> String {
        let mut text = String::new();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut line = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
            let _ = writeln!(text, "# HELP casemate_{name} {help}\n# TYPE casemate_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "casemate_{name}{labels} {value}");
            }
        };
        let plain = |value: u64| vec![(String::new(), value as f64)];
        let by_kind: Vec<(String, f64)> = KINDS
            .iter()
            .zip(&self.executions)
            .map(|(kind, count)| (format!("{{status=\"{kind}\"}}"), get(count) as f64))
            .collect();
        line("executions_total", "counter", "Executions and programs of sessions that ended.", &by_kind);
        line("requests_total", "counter", "HTTP requests.", &plain(get(&self.requests)));
        line("problems_total", "counter", "HTTP requests that came to nothing.", &plain(get(&self.problems)));
        line("sessions_total", "counter", "Sessions that were created.", &plain(get(&self.sessions)));
        line("sessions", "gauge", "Sessions that are open.", &plain(sessions as u64));
        line("connections", "gauge", "Connections that are open.", &plain(get(&self.connections)));
        line("cells", "gauge", "Cells that were admitted.", &plain(cells as u64));
        line("waiting", "gauge", "Requests that wait for a cell.", &plain(waiting as u64));
        let cpu = vec![(String::new(), get(&self.cpu_micros) as f64 / 1e6)];
        line("cpu_seconds_total", "counter", "Processor time of what ran in cells.", &cpu);
        text
    }
}

const fn index(status: &Status) -> usize {
    match status {
        Status::Exited { .. } => 0,
        Status::Signaled { .. } => 1,
        Status::Killed { .. } => 2,
        Status::Refused(_) => 3,
        Status::Failed { .. } => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_kind_and_a_meaning() {
        let text = Metrics::default().text((3, 4), 5);
        assert!(text.contains("casemate_executions_total{status=\"killed\"} 0\n"));
        assert!(text.contains("casemate_cells 3\n") && text.contains("casemate_sessions 5\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().expect("a name");
            assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
        }
    }
}
