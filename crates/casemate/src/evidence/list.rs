//! `evidence ls`: one line per execution, per worker that executions share, or per thing that was noted of a session, from its
//! one or two records.

use std::collections::HashMap;
use std::io::Write;

use casemate_engine::recorder::{Event, Reader, Record};
use serde_json::{Value, json};

use crate::exit;
use crate::failure::Failure;
use crate::render::terminal::{columns, one_line};

/// A process that executions share has records of its own, to which theirs point.
const WORKER: &str = "worker";

/// What the records of one execution say, in short.
#[derive(Debug)]
struct Summary {
    id: String,
    time: String,
    tenant: Option<String>,
    stack: Vec<String>,
    status: Value,
    records: Vec<u64>,
}

pub(super) fn list(reader: &Reader, json: bool, out: &mut impl Write) -> Result<u8, Failure> {
    let mut executions: Vec<Summary> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for record in reader.records()? {
        let record = record?;
        match places.get(&record.entry.id) {
            Some(place) => executions[*place].end(&record),
            None => {
                places.insert(record.entry.id.clone(), executions.len());
                executions.push(Summary::begin(&record));
            }
        }
    }
    if json {
        for execution in &executions {
            writeln!(out, "{}", execution.to_json())?;
        }
        return Ok(exit::DONE);
    }
    let heading = ["ID", "TIME", "TENANT", "STACK", "STATUS"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> =
        std::iter::once(heading).chain(executions.iter().map(Summary::row)).collect();
    for line in columns(&rows) {
        writeln!(out, "{line}")?;
    }
    Ok(exit::DONE)
}

impl Summary {
    fn begin(record: &Record) -> Summary {
        let body = &record.entry.body;
        let of_worker = body["worker"].is_object();
        let (decided, tenant) = match record.entry.event {
            _ if of_worker => (&body["worker"]["stack"], &body["worker"]["tenant"]),
            Event::Noted => (&Value::Null, &body["tenant"]),
            _ => (&body["decision"]["stack"], &body["request"]["tenant"]),
        };
        let walls = decided.as_array().into_iter().flatten().filter_map(Value::as_str);
        let status = match record.entry.event {
            Event::Opened if of_worker => json!({"kind": WORKER}),
            Event::Opened => json!({"kind": "open"}),
            Event::Noted => noted(body),
            _ => body["status"].clone(),
        };
        Summary {
            id: record.entry.id.clone(),
            time: record.entry.time.to_string(),
            tenant: tenant.as_str().map(str::to_owned),
            stack: walls.map(str::to_owned).collect(),
            status,
            records: vec![record.seq],
        }
    }

    fn end(&mut self, record: &Record) {
        self.records.push(record.seq);
        self.status = match record.entry.event {
            Event::Interrupted => json!({"kind": "interrupted"}),
            _ if self.status["kind"] == WORKER => {
                json!({"kind": "worker-ended", "reason": record.entry.body["worker"]["ended"]})
            }
            _ => record.entry.body["status"].clone(),
        };
    }

    fn row(&self) -> Vec<String> {
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { one_line(&text) };
        let tenant = self.tenant.clone().unwrap_or_default();
        vec![
            one_line(&self.id),
            self.time.clone(),
            or_dash(tenant),
            or_dash(self.stack.join("+")),
            or_dash(status_words(&self.status)),
        ]
    }

    fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "time": self.time,
            "tenant": self.tenant,
            "stack": self.stack,
            "status": self.status,
            "records": self.records,
        })
    }
}

/// What happened in a session, in place of the status of an execution.
fn noted(body: &Value) -> Value {
    let (kind, note) = match &body["files"] {
        Value::Null => (&json!("code"), &body["code"]),
        files => (&files["operation"], files),
    };
    json!({"kind": kind, "result": note["result"], "session": body["session"]})
}

/// `exited 0`, `killed memory`, `refused`, `put ok`.
fn status_words(status: &Value) -> String {
    let kind = status["kind"].as_str().unwrap_or_default();
    let detail = ["code", "signal", "cause", "result"].iter().find_map(|key| match &status[key] {
        Value::Null => None,
        Value::String(word) => Some(word.clone()),
        other => Some(other.to_string()),
    });
    detail.map_or_else(|| kind.to_owned(), |detail| format!("{kind} {detail}"))
}
