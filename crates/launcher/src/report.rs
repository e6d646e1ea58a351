//! What the first process of a cell, and its first payload, say about how far they came.

use alloc::string::String;
use alloc::vec::Vec;

use casemate_guest::{BORN, HELD};

use crate::cells::Failure;
use crate::interpret;
use crate::recipe::Op;

/// What a report says once it has ended.
pub(crate) enum Report {
    /// The timings of all steps; the first payload waits at the gate.
    Held(Vec<(String, u32)>),
    Failed(Failure),
    /// If the child lives, it is a guest whose first payload did not come to the gate.
    Silence,
}

/// Whether all is said, though somebody may still hold the pipe open. A failure ends with it.
pub(crate) fn is_complete(report: &[u8], ops: &[Op]) -> bool {
    let (alone, with_kernel) = ([BORN, HELD].len(), [interpret::STARTED, BORN, HELD].len());
    let words = if matches!(ops.last(), Some(Op::BecomeKeeper(_))) { with_kernel } else { alone };
    // Besides, the timings of every operation but the last, which does not return.
    matches!(report.first(), Some(&(BORN | interpret::TIMINGS))) && report.len() > words + 4 * (ops.len() - 1)
}

pub(crate) fn parse(report: &[u8], ops: &[Op]) -> Report {
    let failure = |bytes: &[u8]| {
        let step = bytes.first().and_then(|&index| ops.get(usize::from(index)));
        Report::Failed(Failure {
            step: step.map_or_else(|| "setup".into(), |op| op.name()),
            message: String::from_utf8_lossy(bytes.get(1..).unwrap_or_default()).into_owned(),
        })
    };
    match report.strip_prefix(&[BORN]).unwrap_or(report).split_first() {
        Some((&interpret::TIMINGS, rest)) => {
            let (timings, rest) = rest.split_at(rest.len().min(4 * (ops.len() - 1)));
            let micros = timings.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) / 1000);
            let held = match rest {
                [HELD] => true,
                // Where another kernel is started, its guest does not wait for whoever started it.
                [interpret::STARTED, BORN, HELD]
                | [BORN, interpret::STARTED, HELD]
                | [BORN, HELD, interpret::STARTED] => matches!(ops.last(), Some(Op::BecomeKeeper(_))),
                [interpret::FAILURE, rest @ ..] => return failure(rest),
                _ => false,
            };
            match held {
                true => Report::Held(ops.iter().map(|op| op.name()).zip(micros).collect()),
                false => Report::Silence,
            }
        }
        Some((&interpret::FAILURE, rest)) => failure(rest),
        _ => Report::Silence,
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::vec;

    use casemate_wire::guest::Terminals;
    use casemate_wire::launch::{Attached, Platform};

    use super::*;
    use crate::recipe::Sentry;

    const OPS: [Op; 3] = [Op::EnterCgroups, Op::AwaitLauncher, Op::BecomeGuest];

    fn failed(report: &[u8]) -> (String, String) {
        match parse(report, &OPS) {
            Report::Failed(failure) => (failure.step, failure.message),
            _ => panic!("not a failure: {report:?}"),
        }
    }

    /// A payload, and timings of the two steps that return: 5 and 7 µs.
    fn timings() -> Vec<u8> {
        [vec![BORN, interpret::TIMINGS], 5000u32.to_le_bytes().into(), 7000u32.to_le_bytes().into()].concat()
    }

    #[test]
    fn a_payload_at_the_gate_ends_the_report() {
        let report = [timings(), vec![HELD]].concat();
        assert!(is_complete(&report, &OPS) && !is_complete(&report[..report.len() - 1], &OPS));
        let Report::Held(steps) = parse(&report, &OPS) else { panic!("it is held") };
        assert_eq!(steps, [("enter cgroups".to_owned(), 5), ("await launcher".to_owned(), 7)]);
    }

    #[test]
    fn a_kernel_of_its_own_must_be_left_by_who_started_it() {
        let (platform, attached, terminals) = (Platform::Systrap, Attached::Nothing, Terminals::None);
        let sentry = Sentry { platform, attached, terminals };
        let ops = [Op::EnterCgroups, Op::AwaitLauncher, Op::BecomeKeeper(sentry)];
        let with = |words: &[u8]| [&timings()[1..], words].concat();
        for words in [
            [interpret::STARTED, BORN, HELD],
            [BORN, interpret::STARTED, HELD],
            [BORN, HELD, interpret::STARTED],
        ] {
            let report = with(&words);
            assert!(
                is_complete(&report, &ops) && matches!(parse(&report, &ops), Report::Held(_)),
                "{words:?}"
            );
            assert!(matches!(parse(&report, &OPS), Report::Silence), "there is no such kernel");
        }
        let early = with(&[BORN, HELD]);
        assert!(!is_complete(&early, &ops) && matches!(parse(&early, &ops), Report::Silence));
        let failed = [&timings()[1..], &[interpret::FAILURE, 2], b"no such platform"].concat();
        let Report::Failed(failure) = parse(&failed, &ops) else { panic!("it failed") };
        assert_eq!((failure.step.as_str(), failure.message.as_str()), ("start gvisor", "no such platform"));
    }

    #[test]
    fn a_report_without_that_is_not_a_payload_at_the_gate() {
        for end in [&b""[..], b"x", b"hh", b"h\0"] {
            let report = [&timings(), end].concat();
            assert!(matches!(parse(&report, &OPS), Report::Silence), "{report:?}");
        }
        for report in [&b""[..], &[HELD], &[BORN], &[BORN, HELD]] {
            assert!(matches!(parse(report, &OPS), Report::Silence), "the gate alone says nothing");
        }
    }

    #[test]
    fn a_failure_names_its_step() {
        let refused = [&[interpret::FAILURE, 1][..], b"not allowed"].concat();
        assert_eq!(failed(&refused), ("await launcher".into(), "not allowed".into()));
        assert_eq!(failed(&[interpret::FAILURE, 200]).0, "setup");
    }
}
