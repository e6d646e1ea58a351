//! How far long work has come: a bar or a spinner on a terminal, a line for each step elsewhere.

use std::time::Duration;

use casemate_engine::images::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::render::terminal::Style;

/// One step after another. Gone from the terminal when dropped.
pub(crate) struct Step(Option<ProgressBar>);

impl Step {
    pub(crate) fn begin(words: impl Into<String>) -> Step {
        let step = Step((Style::of_stderr() != Style::Plain).then(ProgressBar::new_spinner));
        if let Some(bar) = &step.0 {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        step.set_style("{spinner} {msg} ({elapsed})");
        step.say(words.into());
        step
    }

    pub(crate) fn say(&self, words: String) {
        match &self.0 {
            Some(bar) => bar.set_message(words),
            None => eprintln!("{words} …"),
        }
    }

    fn set_style(&self, template: &str) {
        if let (Some(bar), Ok(style)) = (&self.0, ProgressStyle::with_template(template)) {
            bar.set_style(style);
        }
    }
}

impl Progress for Step {
    fn begin(&mut self, what: &str, bytes: Option<u64>) {
        self.say(what.to_owned());
        if let Some(bar) = &self.0 {
            bar.set_position(0);
            bar.set_length(bytes.unwrap_or(0));
        }
        self.set_style(match bytes {
            Some(_) => "{spinner} {msg} [{bar:30}] {bytes}/{total_bytes} ({elapsed})",
            None => "{spinner} {msg} {bytes} ({elapsed})",
        });
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
