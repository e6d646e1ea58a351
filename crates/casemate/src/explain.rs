//! `casemate explain`: what would run where, and why not elsewhere.

use std::io::Write;
use std::path::Path;

use casemate_core::outcome::Refusal;
use casemate_core::request::Stdin;
use casemate_engine::{Ahead, Engine, Explanation};
use casemate_service::shape::outcome::{ExplainJson, RefusedJson};

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::render::terminal::{Style, columns, one_line};
use crate::{exit, home, request};

pub(crate) async fn explain(args: &RunArgs, policy: Option<&Path>) -> Result<u8, Failure> {
    let engine = home::open(policy, Ahead::Nothing, None).await?;
    let explained = decide(&engine, args);
    engine.shutdown().await?;
    let mut stdout = std::io::stdout().lock();
    match explained {
        Ok(explanation) if args.json => {
            serde_json::to_writer(&mut stdout, &ExplainJson::new(explanation))?;
            writeln!(stdout)?;
        }
        Ok(explanation) => stdout.write_all(render(&explanation, Style::of_stdout()).as_bytes())?,
        Err(refusal) if args.json => {
            serde_json::to_writer(&mut stdout, &RefusedJson::from(refusal))?;
            writeln!(stdout)?;
            stdout.flush()?;
            return Ok(exit::NOT_RUN);
        }
        Err(refusal) => return Err(refusal.into()),
    }
    stdout.flush()?;
    Ok(exit::DONE)
}

fn decide(engine: &Engine, args: &RunArgs) -> Result<Explanation, Refusal> {
    // Nothing is opened or copied: what the files hold does not change where they would go.
    let asked = request::build(args, Stdin::Empty)?;
    engine.explain(&asked.request)
}

fn render(explanation: &Explanation, style: Style) -> String {
    let Explanation { choice, image, limits, floors } = explanation;
    let mut lines =
        vec![format!("would run on {} ({})", style.bold(&choice.stack.to_string()), choice.class)];
    lines.extend(floors.iter().map(|floor| format!("  at least {}", one_line(floor))));

    lines.push(format!("image: {}", one_line(image)));
    lines.push("passed over:".to_owned());
    let passed: Vec<Vec<String>> = choice
        .passed_over
        .iter()
        .map(|other| vec![format!("  {}", other.stack), one_line(&other.reason)])
        .collect();
    lines.extend(columns(&passed));

    lines.push("limits:".to_owned());
    let bounds: Vec<Vec<String>> = limits
        .iter()
        .map(|(kind, bound)| {
            let unbounded = choice.unbounded.contains(&kind);
            let enforced = if unbounded { "unbounded: not enforced on this stack" } else { "" };
            vec![format!("  {kind}"), kind.format(bound.value), bound.origin.to_string(), enforced.to_owned()]
        })
        .collect();
    lines.extend(columns(&bounds));
    lines.push(String::new());
    lines.join("\n")
}
