//! The comparison, for people.

use super::Finding;
use super::advice::thousand;
use super::compare::{Compared, Comparison, Strace};
use crate::render::terminal::{Style, columns, one_line};

pub(super) fn render(comparison: &Comparison, style: Style) -> String {
    let (ready, absent): (Vec<&Compared>, Vec<&Compared>) =
        comparison.stacks.iter().partition(|stack| stack.is_ready());
    let mut lines = vec![style.bold("measured here")];
    lines.extend(figures(&ready, &comparison.prices.currency));
    lines.extend(notes(comparison, &ready));
    for stack in &ready {
        lines.extend([String::new(), style.bold(&stack.name())]);
        lines.extend(character(stack));
    }
    if !absent.is_empty() {
        lines.extend([String::new(), style.bold("not here")]);
        lines.extend(columns(&absent.iter().map(|stack| absence(stack)).collect::<Vec<_>>()));
    }
    lines.extend([String::new(), style.bold("where your policy sends work")]);
    lines.extend(decisions(comparison));
    lines.extend([String::new(), style.bold("advice")]);
    lines.extend(comparison.remarks.iter().map(|remark| format!("  {}", one_line(remark))));
    lines.push(String::new());
    lines.join("\n")
}

fn figures(stacks: &[&Compared], currency: &str) -> Vec<String> {
    let head = ["  stack", "class", "cold start", "again", "memory", "evaluation", "CPU-s", "GB-s"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows[0].push(format!("{currency} per 1000"));
    for stack in stacks {
        let Some(measured) = &stack.measured else { continue };
        let mut row = vec![
            format!("  {}", stack.name()),
            stack.class.to_owned(),
            milliseconds(measured.cold_ms),
            milliseconds(measured.again_ms),
            format!("{:.1} MB", measured.memory_bytes as f64 / 1e6),
        ];
        match &measured.evaluation {
            Some(cost) => row.extend([
                milliseconds(cost.wall_ms),
                cost.cpu_seconds.map_or("-".into(), |seconds| format!("{seconds:.4}")),
                format!("{:.5}", cost.gb_seconds),
                thousand(stack).map_or("-".into(), |price| format!("{price:.5}")),
            ]),
            None => row.push("-".into()),
        }
        rows.push(row);
    }
    columns(&rows)
}

fn milliseconds(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2} ms"),
        ..100.0 => format!("{value:.1} ms"),
        _ => format!("{value:.0} ms"),
    }
}

/// What the figures mean, and why some are missing.
fn notes(comparison: &Comparison, stacks: &[&Compared]) -> Vec<String> {
    let prices = &comparison.prices;
    let mut lines = vec![
        "  cold start: a new engine, a cell and a small program in it, as `casemate run` does; again: in an engine that stays".into(),
        "  memory: a cell in which a shell waits; of WASM, the worker, which later calls share".into(),
        format!(
            "  evaluation: a small Python program; {} {} per CPU hour and {} per GB hour ([prices] in the policy)",
            prices.cpu_hour, prices.currency, prices.gb_hour
        ),
        "  CPU-s: what the whole machine spent on one more evaluation, start and removal included; - where other work drowned it".into(),
        "  GB-s: the memory of the cell and the peak of what ran in it, for as long as it took".into(),
    ];
    let measured = stacks.iter().filter_map(|stack| Some((stack.name(), stack.measured.as_ref()?)));
    for (name, measured) in measured {
        if let Some(why) = &measured.not_evaluated {
            lines.push(format!("  {name} was not evaluated: {}", one_line(why)));
        }
    }
    lines
}

fn character(stack: &Compared) -> Vec<String> {
    let character = &stack.character;
    let features = character.kernel.iter().map(|(name, there)| match there {
        true => format!("{name}: if asked for"),
        false => format!("{name}: no"),
    });
    let strace = match stack.strace {
        Strace::Works => "strace: works",
        Strace::Fails => "strace: fails",
        Strace::Refused => "strace: no",
        Strace::Untried => "strace: not tried, there is none here",
    };
    let features = features.chain([strace.to_owned()]).collect::<Vec<_>>().join(", ");
    let mut rows = vec![
        ("isolates", character.isolates.clone()),
        ("runs", character.runs.clone()),
        ("network", character.network.to_owned()),
        ("files", character.files.clone()),
        ("kernel", features),
        ("limits", character.limits.join(", ")),
    ];
    if !character.limits_not_enforced.is_empty() {
        rows.push(("no limit", character.limits_not_enforced.join(", ")));
    }
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, text)| vec![format!("  {name}"), text]).collect();
    columns(&rows)
}

fn absence(stack: &Compared) -> Vec<String> {
    let (state, words) = match &stack.finding {
        Finding::Ready { .. } => ("ready", String::new()),
        Finding::Missing { reason, fix } => ("missing", format!("{reason}: {fix}")),
        Finding::Broken { reason, fix } => ("broken", format!("{reason}: {fix}")),
    };
    vec![format!("  {}", stack.name()), stack.class.to_owned(), state.to_owned(), one_line(&words)]
}

/// A row for each risk, a column for each sort of work.
fn decisions(comparison: &Comparison) -> Vec<String> {
    let mut rows = vec![vec!["  risk".to_owned()]];
    for advice in &comparison.advice {
        if !rows[0].iter().any(|head| head == advice.work) {
            rows[0].push(advice.work.to_owned());
        }
        let name = format!("  {}", advice.risk);
        if rows.last().is_some_and(|row| row[0] != name) {
            rows.push(vec![name]);
        }
        let answer = advice.stack.clone().unwrap_or_else(|| "refused".to_owned());
        rows.last_mut().into_iter().for_each(|row| row.push(answer.clone()));
    }
    // One thing to do often serves several sorts of work.
    let mut hints: Vec<&str> =
        comparison.advice.iter().filter_map(|advice| advice.missing.as_deref()).collect();
    hints.dedup();
    let hints = hints.into_iter().map(|hint| format!("  refused: {}", one_line(hint)));
    columns(&rows).into_iter().chain(hints).collect()
}
