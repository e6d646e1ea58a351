//! Every exit code of `casemate`. The only file that knows them.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0–255 | the guest's own code, when it exited |
//! | 128+n | the guest was ended by signal n |
//! | 124 | killed by a time limit (wall time or cpu time) |
//! | 125 | Casemate refused, failed, or was called wrongly |
//! | 137 | killed for any other reason, cancellation included |
//! | 141 | whoever read our output went away |
//! | 1 | the answer of `doctor` or `evidence verify` is no |

use casemate_core::outcome::{Cause, Status};
use clap::error::ErrorKind;

pub(crate) const DONE: u8 = 0;
/// The question was answered, and the answer is no.
pub(crate) const NO: u8 = 1;
const TIME_LIMIT: u8 = 124;
/// Casemate's own fault, or the caller's, never the guest's.
pub(crate) const NOT_RUN: u8 = 125;
pub(crate) const KILLED: u8 = 137;
/// What a shell reports for a program that died of SIGPIPE, as ours would have without a cell to clean up.
pub(crate) const BROKEN_PIPE: u8 = 141;

pub(crate) fn of_status(status: &Status) -> u8 {
    match status {
        // Both numbers come from a wait status, so they fit; what does not fit is not shown as success.
        Status::Exited { code } => u8::try_from(*code).unwrap_or(u8::MAX),
        Status::Signaled { signal } => {
            u8::try_from(*signal).ok().and_then(|n| n.checked_add(128)).unwrap_or(u8::MAX)
        }
        Status::Killed { cause: Cause::WallTime | Cause::CpuTime, .. } => TIME_LIMIT,
        Status::Killed { .. } => KILLED,
        Status::Refused(_) | Status::Failed { .. } => NOT_RUN,
    }
}

pub(crate) fn of_usage(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => DONE,
        _ => NOT_RUN,
    }
}

#[cfg(test)]
mod tests {
    use casemate_core::outcome::Refusal;

    use super::*;

    fn killed(cause: Cause) -> Status {
        Status::Killed { cause, limit: None, peak: None }
    }

    #[test]
    fn the_guests_own_end_is_passed_on() {
        assert_eq!(of_status(&Status::Exited { code: 0 }), 0);
        assert_eq!(of_status(&Status::Exited { code: 7 }), 7);
        assert_eq!(of_status(&Status::Exited { code: 255 }), 255);
        assert_eq!(of_status(&Status::Signaled { signal: 9 }), 137);
        assert_eq!(of_status(&Status::Signaled { signal: 11 }), 139);
    }

    #[test]
    fn time_limits_are_told_from_other_kills() {
        for cause in Cause::ALL {
            let expected = if matches!(cause, Cause::WallTime | Cause::CpuTime) { 124 } else { 137 };
            assert_eq!(of_status(&killed(cause)), expected, "{cause}");
        }
    }

    #[test]
    fn what_never_ran_is_casemates_own_code() {
        assert_eq!(of_status(&Status::Refused(Refusal::new("no", ""))), 125);
        assert_eq!(of_status(&Status::Failed { reason: "host".to_owned() }), 125);
        assert_eq!(of_usage(ErrorKind::UnknownArgument), 125);
        assert_eq!(of_usage(ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand), 125);
        assert_eq!(of_usage(ErrorKind::DisplayVersion), 0);
    }

    #[test]
    fn a_code_that_does_not_fit_is_not_success() {
        assert_eq!(of_status(&Status::Exited { code: 256 }), 255);
        assert_eq!(of_status(&Status::Exited { code: -1 }), 255);
    }
}
