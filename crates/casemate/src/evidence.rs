//! `casemate evidence`: looks at the chain, and needs nothing but the chain.

mod list;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use casemate_core::evidence::hex;
use casemate_engine::recorder::{Head, PublicKey, Reader, Record, Report, StoreError, Verdict};
use serde_json::{Value, json};

use crate::args::EvidenceCommand;
use crate::exit;
use crate::failure::{Failure, os_words};
use crate::render::terminal::{self, one_line};

pub(crate) fn evidence(command: &EvidenceCommand) -> Result<u8, Failure> {
    let reader = Reader::open(&casemate_engine::default_home())?;
    let mut out = BufWriter::new(io::stdout().lock());
    let code = match command {
        EvidenceCommand::Ls { json } => list::list(&reader, *json, &mut out)?,
        EvidenceCommand::Show { id, json } => show(&reader, id, *json, &mut out)?,
        EvidenceCommand::Verify { id, key, head, json, .. } => {
            let key = key.as_deref().map(read_key).transpose()?;
            let head = head.as_deref().map(read_head).transpose()?;
            verify(&reader, id.as_deref(), Pins { key, head }, *json, &mut out)?
        }
        EvidenceCommand::Head => {
            writeln!(out, "{}", reader.head()?)?;
            exit::DONE
        }
        EvidenceCommand::Export { file } => export(&reader, file.as_deref(), &mut out)?,
    };
    out.flush()?;
    Ok(code)
}

/// What the caller kept elsewhere, and trusts.
struct Pins {
    key: Option<PublicKey>,
    head: Option<Head>,
}

fn show(reader: &Reader, id: &str, raw: bool, out: &mut impl Write) -> Result<u8, Failure> {
    let records = reader.find_sealed(id)?;
    if records.is_empty() {
        return Err(unknown(id));
    }
    if raw {
        reader.export_one(id, out)?;
    } else {
        let shown: Vec<Value> = records.iter().map(|(found, seal)| record(found, *seal)).collect();
        serde_json::to_writer_pretty(&mut *out, &shown)?;
        writeln!(out)?;
    }
    Ok(exit::DONE)
}

fn record(record: &Record, seal: Option<Head>) -> Value {
    let entry = &record.entry;
    let subjects = entry.subjects.iter().map(|s| json!({"name": s.name, "sha256": hex(&s.sha256)}));
    json!({
        "seq": record.seq,
        "digest": hex(&record.digest),
        "prev": hex(&record.prev),
        "seal": seal.map(|seal| seal.to_string()),
        "event": entry.event.name(),
        "id": entry.id,
        "run": entry.run,
        "time": entry.time.to_string(),
        "durability": entry.durability.name(),
        "subjects": subjects.collect::<Vec<_>>(),
        "body": entry.body,
    })
}

fn verify(
    reader: &Reader,
    id: Option<&str>,
    pins: Pins,
    json: bool,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let hint = match (&pins.key, &pins.head) {
        (Some(_), Some(_)) => None,
        (None, Some(_)) => Some("the key was taken from beside the chain; pin it with --key"),
        (Some(_), None) => Some("a cut end cannot be seen; pin a head with --head"),
        (None, None) => Some("to see a cut end or a new chain, pin --key and --head"),
    };
    let verified = reader.verify(pins.key, pins.head).and_then(|report| {
        let records = id.map(|id| reader.find_sealed(id)).transpose()?;
        Ok((report, records))
    });
    let (report, records) = match verified {
        Ok(verified) => verified,
        Err(error @ (StoreError::Corrupt { .. } | StoreError::Cut { .. })) => {
            return does_not_verify(error, json, out);
        }
        Err(error) => return Err(error.into()),
    };
    if let (Some(id), Some([])) = (id, records.as_deref()) {
        if json {
            writeln!(out, "{}", json!({"verified": false, "reason": format!("no record of {id}")}))?;
        }
        terminal::report(&unknown(id));
        return Ok(exit::NO);
    }
    let places: Vec<Place> = records.iter().flatten().map(|(record, seal)| (record.seq, *seal)).collect();
    if json {
        writeln!(out, "{}", report_json(&report, id, &places))?;
        return Ok(exit::DONE);
    }
    writeln!(out, "{}", report_line(&report))?;
    if let Some(id) = id {
        let places: Vec<String> = places.iter().map(place_words).collect();
        writeln!(out, "{id}: {}", places.join(", "))?;
    }
    if let Some(hint) = hint {
        terminal::hint(hint);
    }
    Ok(exit::DONE)
}

fn does_not_verify(error: StoreError, json: bool, out: &mut impl Write) -> Result<u8, Failure> {
    let reason = match &error {
        StoreError::Corrupt { source, .. } => source.to_string(),
        other => other.to_string(),
    };
    if json {
        writeln!(out, "{}", json!({"verified": false, "reason": reason}))?;
    }
    terminal::report(&Failure::new(
        format!("the evidence does not verify: {reason}"),
        "keep the chain as it is for inspection",
    ));
    Ok(exit::NO)
}

/// A record's number, and the seal that names it.
type Place = (u64, Option<Head>);

fn place_words((record, seal): &Place) -> String {
    match seal {
        Some(seal) => format!("record {record} sealed by {}", seal.seq),
        None => format!("record {record} not sealed yet"),
    }
}

fn report_line(report: &Report) -> String {
    let verdict = match report.verdict {
        Verdict::Anchored { line } => format!("verified, anchored at line {line}"),
        Verdict::Unanchored => "consistent, unanchored".to_owned(),
    };
    let Report { records, executions, open, unsealed, .. } = report;
    let unsealed = if *unsealed > 0 { format!(", {unsealed} not sealed yet") } else { String::new() };
    format!("{verdict}: {records} records{unsealed}, {executions} executions, {} still open", open.len())
}

fn report_json(report: &Report, id: Option<&str>, places: &[Place]) -> Value {
    let anchor = match report.verdict {
        Verdict::Anchored { line } => Some(line),
        Verdict::Unanchored => None,
    };
    let mut value = json!({
        "verified": true,
        "anchored": anchor.is_some(),
        "anchor": anchor,
        "records": report.records,
        "seals": report.seals,
        "unsealed": report.unsealed,
        "executions": report.executions,
        "open": report.open,
        "head": report.head.to_string(),
    });
    if let Some(id) = id {
        value["id"] = json!(id);
        value["of_id"] = places.iter().map(|(record, _)| *record).collect();
        value["sealed_by"] = places.iter().map(|(_, seal)| seal.map(|seal| seal.seq)).collect();
    }
    value
}

fn export(reader: &Reader, file: Option<&Path>, out: &mut impl Write) -> Result<u8, Failure> {
    let Some(path) = file else {
        reader.export(out)?;
        return Ok(exit::DONE);
    };
    let shown = one_line(&path.display().to_string());
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::new(format!("{shown} exists"), "choose a new file: an export does not replace another")
        }
        _ => Failure::Told { message: format!("cannot write {shown}: {}", os_words(error)), hint: None },
    };
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    match reader.export(&mut file) {
        Err(StoreError::Export(error)) => Err(failed(error)),
        other => other.map(|_| exit::DONE).map_err(Failure::from),
    }
}

fn read_key(given: &OsStr) -> Result<PublicKey, Failure> {
    if let Some(Ok(key)) = given.to_str().map(str::parse) {
        return Ok(key);
    }
    let shown = one_line(&given.to_string_lossy());
    let hint = "--key takes a file such as $CASEMATE_HOME/keys/evidence.pub, or its 64 hexadecimal digits";
    let mut text = String::new();
    let read = File::open(given)
        .and_then(|file| io::Read::read_to_string(&mut io::Read::take(file, 4096), &mut text));
    read.map_err(|error| Failure::new(format!("cannot read the key {shown}: {}", os_words(error)), hint))?;
    text.parse().map_err(|error| Failure::new(format!("{shown}: {error}"), hint))
}

fn read_head(given: &str) -> Result<Head, Failure> {
    given.trim().parse().map_err(|error| {
        Failure::new(error, "--head takes what `casemate evidence head` printed, such as 12:9f…")
    })
}

fn unknown(id: &str) -> Failure {
    Failure::new(
        format!("there is no record of `{}`", one_line(id)),
        "`casemate evidence ls` lists what there is",
    )
}

#[cfg(test)]
mod tests;
