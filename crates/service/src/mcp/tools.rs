//! Which tools there are, what they are called with, and what they answer.

use std::sync::Arc;

use casemate_core::request::{Isolation, Request};
use rmcp::RoleServer;
use rmcp::model::{JsonObject, ToolAnnotations};
use rmcp::service::RequestContext;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Place, Setup};
use super::{Answer, files, parse, run};
use crate::app::App;
use crate::problem::{Code, Problem};
use crate::shape::outcome::ExplainJson;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    RunCode,
    RunCommand,
    ReadFile,
    WriteFile,
    ListFiles,
    Explain,
}

impl Tool {
    pub(super) const ALL: [Tool; 6] =
        [Tool::RunCode, Tool::RunCommand, Tool::ReadFile, Tool::WriteFile, Tool::ListFiles, Tool::Explain];

    pub(super) fn named(name: &str) -> Option<Tool> {
        Tool::ALL.into_iter().find(|tool| tool.name() == name)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Tool::RunCode => "run_code",
            Tool::RunCommand => "run_command",
            Tool::ReadFile => "read_file",
            Tool::WriteFile => "write_file",
            Tool::ListFiles => "list_files",
            Tool::Explain => "explain",
        }
    }

    pub(super) async fn answer(
        self,
        app: &App,
        place: &Place,
        setup: &Setup,
        arguments: &Value,
        context: &RequestContext<RoleServer>,
    ) -> Result<Answer, Problem> {
        let live = &place.live;
        match self {
            Tool::RunCode => {
                run::code(app, live, setup.timeouts(), parse(arguments, "arguments")?, context).await
            }
            Tool::RunCommand => {
                run::command(app, live, setup.timeouts(), parse(arguments, "arguments")?, context).await
            }
            Tool::ReadFile => files::read(live, parse(arguments, "arguments")?).await,
            Tool::WriteFile => files::write(live, parse(arguments, "arguments")?).await,
            Tool::ListFiles => files::list(live, parse(arguments, "arguments")?).await,
            Tool::Explain => explain(app, setup, parse(arguments, "arguments")?),
        }
    }

    /// As a client is told of it. `by_name`: the client has to say which session it means.
    pub(super) fn described(self, by_name: bool) -> rmcp::model::Tool {
        let Described { title, description, mut arguments, required, answer, annotations } = self.parts();
        if by_name && self != Tool::Explain {
            arguments["session"] = json!({
                "type": "string",
                "description": "The session that an earlier result named, to find its files. Left out: the client's own, or a new one.",
            });
        }
        let input = json!({
            "type": "object", "properties": arguments, "required": required, "additionalProperties": false,
        });
        let annotations = annotations.open_world(false);
        rmcp::model::Tool::new(self.name(), description, object(input))
            .with_title(title)
            .with_raw_output_schema(object(answer))
            .with_annotations(annotations)
    }

    fn parts(self) -> Described {
        let changes = || ToolAnnotations::new().read_only(false);
        let looks = || ToolAnnotations::new().read_only(true);
        match self {
            Tool::RunCode => Described {
                title: "Run code",
                description: "Runs a piece of Python, JavaScript or shell in the sandbox and waits for it. Each call is a fresh \
                    interpreter: variables do not stay, files below /work do. No network. Print what you want to see.",
                arguments: with_common(json!({
                    "code": {"type": "string", "description": "The source."},
                    "language": {"type": "string", "enum": ["python", "javascript", "shell"], "default": "python"},
                    "args": {"type": "array", "items": {"type": "string"}, "description": "Arguments for it."},
                })),
                required: &["code"],
                answer: run::schema(),
                annotations: changes().destructive(true),
            },
            Tool::RunCommand => Described {
                title: "Run a command",
                description: "Runs a shell command line in the sandbox and waits for it, in /work unless `cwd` says otherwise. Pipes and \
                    redirections work. No network.",
                arguments: with_common(json!({
                    "command": {"type": "string", "description": "For `sh`, such as `ls -l | head`."},
                })),
                required: &["command"],
                answer: run::schema(),
                annotations: changes().destructive(true),
            },
            Tool::ReadFile => Described {
                title: "Read a file",
                description: "Reads a file of the session. Text comes as text, a picture as a picture, anything else in base64. A long \
                    file comes in parts: `left_out` says how much follows.",
                arguments: json!({
                    "path": path("Below /work or /tmp; one without a slash in front is below /work."),
                    "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "The first byte to read."},
                    "length": {
                        "type": "integer", "minimum": 1, "maximum": files::MAX_READ, "default": files::MAX_READ,
                        "description": "How many bytes to read.",
                    },
                }),
                required: &["path"],
                answer: files::read_schema(),
                annotations: looks(),
            },
            Tool::WriteFile => Described {
                title: "Write a file",
                description: "Writes a file of the session, in place of what was there, and makes the directories above it.",
                arguments: json!({
                    "path": path("Below /work or /tmp; one without a slash in front is below /work."),
                    "content": {"type": "string", "description": "What is to be in it. Exactly one of this and `content_base64`."},
                    "content_base64": {"type": "string", "description": "The same for bytes that are not text."},
                    "mode": {"type": "string", "pattern": "^[0-7]{3}$", "default": "644", "description": "In octal."},
                }),
                required: &["path"],
                answer: files::write_schema(),
                annotations: changes().destructive(true).idempotent(true),
            },
            Tool::ListFiles => Described {
                title: "List files",
                description: "Lists a directory of the session.",
                arguments: json!({
                    "path": path("/work if none is named."),
                    "depth": {
                        "type": "integer", "minimum": 1, "maximum": files::MAX_DEPTH, "default": 1,
                        "description": "How many levels of directories.",
                    },
                }),
                required: &[],
                answer: files::list_schema(),
                annotations: looks(),
            },
            Tool::Explain => Described {
                title: "Explain the sandbox",
                description: "Says behind which walls code runs here, under which limits, and why not behind others. Runs nothing. With \
                    arguments, what would hold if they had been asked for.",
                arguments: json!({
                    "risk": {"type": "string", "enum": ["low", "medium", "high", "critical"]},
                    "on": {"type": "string", "description": "Exactly this stack of walls, such as `gvisor`."},
                    "at_least": {"type": "string", "description": "This wall, or a stronger one."},
                }),
                required: &[],
                answer: json!({
                    "type": "object",
                    "properties": {
                        "stack": {"type": "array", "items": {"type": "string"}},
                        "class": {"type": "string"},
                        "image": {"type": "string"},
                        "floors": {"type": "array", "items": {"type": "string"}},
                        "limits": {"type": "array", "items": {"type": "object"}},
                        "unbounded": {"type": "array", "items": {"type": "string"}},
                        "passed_over": {"type": "array", "items": {"type": "object"}},
                    },
                    "required": ["stack", "class", "image", "floors", "limits", "unbounded", "passed_over"],
                }),
                annotations: looks(),
            },
        }
    }
}

struct Described {
    title: &'static str,
    description: &'static str,
    arguments: Value,
    required: &'static [&'static str],
    answer: Value,
    annotations: ToolAnnotations,
}

/// What both kinds of program take.
fn with_common(mut arguments: Value) -> Value {
    arguments["stdin"] = json!({"type": "string", "description": "What it reads from standard input."});
    arguments["env"] = json!({
        "type": "object", "additionalProperties": {"type": "string"}, "description": "Environment variables.",
    });
    arguments["cwd"] = json!({"type": "string", "description": "The directory that it starts in."});
    arguments["timeout"] = json!({
        "type": "number", "exclusiveMinimum": 0,
        "description": "Seconds until it is killed; 60 unless you say otherwise, or whatever the operator allows.",
    });
    arguments
}

fn path(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn object(value: Value) -> Arc<JsonObject> {
    match value {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhatIf {
    risk: Option<String>,
    on: Option<String>,
    at_least: Option<String>,
}

/// Where the client's session is, or would be.
pub(super) fn explain(app: &App, setup: &Setup, asked: WhatIf) -> Result<Answer, Problem> {
    let mut draft = setup.draft().clone();
    draft.isolation = match (asked.on, asked.at_least) {
        (Some(_), Some(_)) => {
            return Err(Problem::new(
                Code::Invalid,
                "both `on` and `at_least` are given",
                "give one of them",
            ));
        }
        (Some(stack), None) => Isolation::Exactly(stack.parse()?),
        (None, Some(wall)) => Isolation::AtLeast(wall.parse()?),
        (None, None) => draft.isolation,
    };
    if let Some(risk) = asked.risk {
        draft.risk = risk.parse()?;
    }
    let request: Request = Setup::new(draft, None)?.request(app)?;
    let explanation = app.engine.explain(&request)?;
    let mut lines = vec![format!("runs on {} ({})", explanation.choice.stack, explanation.choice.class)];
    lines.extend(explanation.floors.iter().map(|floor| format!("at least {floor}")));
    lines.extend(explanation.limits.iter().map(|(kind, bound)| {
        let enforced = if explanation.choice.unbounded.contains(&kind) { ", not enforced here" } else { "" };
        format!("{kind}: {} ({}{enforced})", kind.format(bound.value), bound.origin)
    }));
    let passed_over = explanation.choice.passed_over.iter();
    lines.extend(passed_over.map(|other| format!("not {}: {}", other.stack, other.reason)));
    let structured = serde_json::to_value(ExplainJson::new(explanation));
    let structured = structured.map_err(|error| Problem::internal(error.to_string()))?;
    Ok(Answer::new(lines.join("\n"), structured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_found_by_its_name_and_says_what_it_takes() {
        for tool in Tool::ALL {
            assert_eq!(Tool::named(tool.name()), Some(tool));
            let described = tool.described(false);
            for required in tool.parts().required {
                assert!(described.input_schema["properties"].get(required).is_some(), "{required}");
            }
            assert_eq!(described.input_schema["additionalProperties"], false);
            assert!(described.input_schema["properties"].get("session").is_none());
            let by_name = tool.described(true);
            assert_eq!(by_name.input_schema["properties"].get("session").is_some(), tool != Tool::Explain);
        }
    }
}
