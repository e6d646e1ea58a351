//! Lines of a chain that somebody else has written.

use std::sync::LazyLock;

use casemate_core::evidence::{
    End, Envelope, Head, KeyOrigin, Line, SecretKey, Statement, Timestamp, Verifier, is_torn,
    parse_canonical, to_canonical,
};

/// Signed the seeds too.
static KEY: LazyLock<SecretKey> = LazyLock::new(|| SecretKey::from_seed(&[7; 32]));

/// Everything that is accepted has exactly one spelling.
pub fn evidence(data: &[u8]) {
    for line in data.split_inclusive(|&byte| byte == b'\n') {
        let _ = is_torn(line);
        let bare = line.strip_suffix(b"\n").unwrap_or(line);
        match Line::parse(line) {
            Ok(Line::Record(record)) => {
                assert_eq!(record.to_line().expect("it was a record"), bare, "a record has another spelling");
            }
            Ok(Line::Seal(seal)) => {
                assert_eq!(seal.to_line(), bare, "a seal has another spelling");
                assert_eq!(seal.names(seal.seq - 1), Some(&seal.prev), "a seal does not follow its records");
            }
            Err(_) => {}
        }
        if let Ok(envelope) = Envelope::parse(bare) {
            assert_eq!(envelope.to_line(), bare, "an envelope has another spelling");
        }
    }
    chain(data);
    let _ = Statement::parse(data);
    if let Ok(value) = parse_canonical(data) {
        assert_eq!(to_canonical(&value).expect("it was canonical"), data, "JSON has another spelling");
    }
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(head) = text.parse::<Head>() {
            assert_eq!(head.to_string(), text, "a head has another spelling");
        }
        if let Ok(time) = text.parse::<Timestamp>() {
            assert_eq!(time.to_string(), text, "a time has another spelling");
        }
    }
}

/// What a writer follows, a verifier that checks MACs accepts, up to the order of events; and both come to the same end.
fn chain(data: &[u8]) {
    let verifier = Verifier::new(KEY.public().clone(), KeyOrigin::Pinned, None);
    let mut verifier = verifier.with_macs(KEY.mac().clone());
    let mut end = End::default();
    for line in data.split_inclusive(|&byte| byte == b'\n') {
        let followed = end.follow(line, &KEY);
        if verifier.line(line).is_err() {
            return;
        }
        // A suspicion waits for its seal, so only the other direction holds line by line.
        if followed.is_err() {
            let _ = verifier.finish().expect_err("a verifier accepts what a writer does not follow");
            return;
        }
    }
    if let Ok(report) = verifier.finish() {
        assert_eq!(report.head, end.head(), "two ends");
        assert_eq!(report.unsealed, end.unsealed() as u64, "two counts");
    }
}
