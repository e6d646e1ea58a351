//! Lines of a chain that somebody else has written.

use std::sync::LazyLock;

use casemate_core::evidence::{
    Envelope, Head, KeyOrigin, Record, SecretKey, Statement, Timestamp, Verifier, is_torn, parse_canonical,
    to_canonical,
};

/// Signed the seeds too.
static KEY: LazyLock<SecretKey> = LazyLock::new(|| SecretKey::from_seed(&[7; 32]));

/// Everything that is accepted has exactly one spelling.
pub fn evidence(data: &[u8]) {
    let mut verifier = Verifier::new(KEY.public().clone(), KeyOrigin::Pinned, None);
    for line in data.split_inclusive(|&byte| byte == b'\n') {
        let _ = is_torn(line);
        let _ = Record::parse(line, None);
        let bare = line.strip_suffix(b"\n").unwrap_or(line);
        if let Ok(envelope) = Envelope::parse(bare) {
            assert_eq!(envelope.to_line(), bare, "an envelope has another spelling");
            statement(envelope.payload());
        }
        if verifier.line(line).is_err() {
            break;
        }
    }
    let _ = verifier.finish();
    statement(data);
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

fn statement(payload: &[u8]) {
    if let Ok(statement) = Statement::parse(payload) {
        let again = statement.to_payload().expect("it was a statement");
        assert_eq!(again, payload, "a statement has another spelling");
    }
}
