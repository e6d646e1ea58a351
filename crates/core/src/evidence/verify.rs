//! Checking a chain from its first line to its last.
//!
//! A record is proved by the seal after it. Until that seal is read, whatever looks wrong is only a suspicion: it may show at
//! one record because another was changed, and the seal's signed digests tell which.

use std::collections::HashMap;
use std::fmt;

use super::{
    ChainError, Entry, Event, Fault, Head, Line, MAX_BATCH, MacKey, PublicKey, Record, Seal, SignatureError,
    What,
};

/// Where the verifying key came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrigin {
    /// From the caller.
    Pinned,
    /// From next to the chain: whoever replaced the chain could have replaced the key.
    Store,
}

/// How much a successful verification proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Key and head were pinned: up to that line nothing was changed, added or cut.
    Anchored { line: u64 },
    /// The chain agrees with itself; a cut tail or a wholly new chain would too.
    Unanchored,
}

/// What a verified chain holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub records: u64,
    pub seals: u64,
    /// Records at the end that no seal names yet: their links hold, but no signature proves them.
    pub unsealed: u64,
    pub executions: u64,
    /// Executions that were opened and not closed, in the order of opening.
    pub open: Vec<String>,
    pub head: Head,
    pub verdict: Verdict,
}

/// Checks a chain line by line.
#[derive(Debug)]
pub struct Verifier {
    key: PublicKey,
    mac: Option<MacKey>,
    origin: KeyOrigin,
    pin: Option<Head>,
    head: Head,
    seals: u64,
    /// The records since the last seal: digest and execution.
    batch: Vec<([u8; 32], String)>,
    /// The first thing in `batch` that looks wrong.
    suspicion: Option<ChainError>,
    executions: HashMap<String, State>,
}

#[derive(Debug)]
enum State {
    Open {
        run: String,
        seq: u64,
    },
    Ended,
    /// No execution: something within one.
    Noted,
}

impl Verifier {
    pub fn new(key: PublicKey, origin: KeyOrigin, pin: Option<Head>) -> Verifier {
        Verifier {
            key,
            mac: None,
            origin,
            pin,
            head: Head::GENESIS,
            seals: 0,
            batch: Vec::new(),
            suspicion: None,
            executions: HashMap::new(),
        }
    }

    /// Checks MACs as well, so that even records without a seal cannot be somebody else's.
    pub fn with_macs(self, key: MacKey) -> Verifier {
        Verifier { mac: Some(key), ..self }
    }

    /// Takes the next line, newline included.
    pub fn line(&mut self, bytes: &[u8]) -> Result<Line, ChainError> {
        let number = self.head.seq + 1;
        let blame = |fault| ChainError::Line { number, what: What::of(bytes), fault };
        let line = Line::parse(bytes).map_err(|fault| self.first_blame(blame(fault)))?;
        if line.head().seq != number {
            return Err(self.first_blame(blame(Fault::Number { found: line.head().seq })));
        }
        match &line {
            Line::Record(_) if self.batch.len() == MAX_BATCH => {
                return Err(self.first_blame(blame(Fault::Unsealed)));
            }
            Line::Record(record) => {
                if self.suspicion.is_none() {
                    self.suspicion = self.place(&line, record).err().map(blame);
                }
                self.batch.push((record.digest, record.entry.id.clone()));
            }
            Line::Seal(seal) => {
                self.check_seal(seal).map_err(|fault| match fault {
                    // Under another key nothing else is worth looking at.
                    Fault::Signature(SignatureError::OtherKey { .. }) => blame(fault),
                    fault => self.first_blame(blame(fault)),
                })?;
                self.compare(seal)?;
                self.suspicion.take().map_or(Ok(()), Err)?;
                self.check_pin(line.head()).map_err(blame)?;
                self.seals += 1;
                self.batch.clear();
            }
        }
        self.head = line.head();
        Ok(line)
    }

    /// The end of the chain has been reached.
    pub fn finish(self) -> Result<Report, ChainError> {
        self.suspicion.map_or(Ok(()), Err)?;
        if let Some(pin) = self.pin.filter(|pin| pin.seq > self.head.seq) {
            return Err(ChainError::Cut { pinned: pin.seq, end: self.head.seq });
        }
        let is_execution = |state: &&State| !matches!(state, State::Noted);
        let executions = self.executions.values().filter(is_execution).count() as u64;
        let still_open = |(id, state)| match state {
            State::Open { seq, .. } => Some((seq, id)),
            State::Ended | State::Noted => None,
        };
        let mut open: Vec<(u64, String)> = self.executions.into_iter().filter_map(still_open).collect();
        open.sort_unstable();
        Ok(Report {
            records: self.head.seq - self.seals,
            seals: self.seals,
            unsealed: self.batch.len() as u64,
            executions,
            open: open.into_iter().map(|(_, id)| id).collect(),
            head: self.head,
            verdict: match (self.origin, self.pin) {
                (KeyOrigin::Pinned, Some(pin)) => Verdict::Anchored { line: pin.seq },
                _ => Verdict::Unanchored,
            },
        })
    }

    /// What was wrong first is what is reported.
    fn first_blame(&mut self, error: ChainError) -> ChainError {
        self.suspicion.take().unwrap_or(error)
    }

    /// Whether a seal can say anything about the records before it.
    fn check_seal(&self, seal: &Seal) -> Result<(), Fault> {
        seal.verify(&self.key)?;
        if seal.digests().len() == self.batch.len() {
            Ok(())
        } else {
            Err(Fault::OtherRecords { first: seal.first() })
        }
    }

    /// Finds the first record that is not the one which the seal names.
    fn compare(&self, seal: &Seal) -> Result<(), ChainError> {
        let named = (seal.first()..).zip(seal.digests());
        for ((number, named), (found, id)) in named.zip(&self.batch) {
            if named != found {
                let (what, fault) =
                    (What::Record { id: Some(id.clone()) }, Fault::NotAsSealed { seal: seal.seq });
                return Err(ChainError::Line { number, what, fault });
            }
        }
        Ok(())
    }

    fn check_pin(&self, head: Head) -> Result<(), Fault> {
        match self.pin {
            Some(pin) if pin.seq == head.seq && pin != head => Err(Fault::Pinned),
            _ => Ok(()),
        }
    }

    /// Checks a record against everything before it.
    fn place(&mut self, line: &Line, record: &Record) -> Result<(), Fault> {
        if let Some(mac) = &self.mac {
            record.written_by(mac)?;
        }
        line.follows(self.head)?;
        self.check_pin(record.head())?;
        let Entry { event, id, run, .. } = &record.entry;
        let (event, seq) = (*event, record.seq);
        let next = match (event, self.executions.get(id)) {
            (Event::Opened, None) => State::Open { run: run.clone(), seq },
            (Event::Refused, None) => State::Ended,
            (Event::Noted, None) => State::Noted,
            (Event::Opened | Event::Refused | Event::Noted, Some(_)) => {
                return Err(Fault::NotFresh { event });
            }
            (Event::Closed | Event::Interrupted, None | Some(State::Noted)) => {
                return Err(Fault::NeverOpened { event });
            }
            (Event::Closed | Event::Interrupted, Some(State::Ended)) => {
                return Err(Fault::AlreadyEnded { event });
            }
            (Event::Closed | Event::Interrupted, Some(State::Open { run: owner, .. })) if owner != run => {
                return Err(Fault::OtherOwner { event, found: run.clone(), owner: owner.clone() });
            }
            (Event::Closed | Event::Interrupted, Some(State::Open { .. })) => State::Ended,
        };
        self.executions.insert(id.clone(), next);
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Anchored { line } => write!(f, "anchored at line {line}"),
            Verdict::Unanchored => f.write_str("consistent, unanchored"),
        }
    }
}
