use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn key() -> SecretKey {
    SecretKey::from_seed(&[7; 32])
}

fn entry(event: Event, id: &str) -> Entry {
    Entry {
        event,
        id: id.to_owned(),
        run: "run-1".to_owned(),
        time: Timestamp::from_unix_micros(1_774_084_500_000_042),
        durability: Durability::OnExit,
        subjects: vec![Subject { name: "request".to_owned(), sha256: [3; 32] }],
        body: json!({"z": 1, "a": ["é", "\u{1}\n\"", null, true, -5, u64::MAX]}),
    }
}

fn chain(events: &[(Event, &str)]) -> Vec<Vec<u8>> {
    chain_of(events.iter().map(|(event, id)| entry(*event, id)))
}

fn chain_of(entries: impl IntoIterator<Item = Entry>) -> Vec<Vec<u8>> {
    let mut head = Head::GENESIS;
    let mut append = |entry| {
        let (line, next) = link(head, entry, &key()).unwrap();
        head = next;
        line
    };
    entries.into_iter().map(&mut append).collect()
}

fn small_chain() -> Vec<Vec<u8>> {
    chain(&[(Event::Opened, "a"), (Event::Refused, "b"), (Event::Closed, "a")])
}

fn verify(chain: &[u8], pin: Option<Head>) -> Result<Report, ChainError> {
    let mut verifier = Verifier::new(key().public().clone(), KeyOrigin::Pinned, pin);
    for line in chain.split_inclusive(|b| *b == b'\n') {
        verifier.line(line)?;
    }
    verifier.finish()
}

fn complaint(lines: &[Vec<u8>]) -> String {
    verify(&lines.concat(), None).unwrap_err().to_string()
}

#[test]
fn an_untouched_chain_verifies_and_is_counted() {
    let lines =
        chain(&[(Event::Opened, "a"), (Event::Opened, "b"), (Event::Refused, "c"), (Event::Closed, "a")]);
    let report = verify(&lines.concat(), None).unwrap();
    assert_eq!((report.records, report.executions), (4, 3));
    assert_eq!(report.open, ["b"]);
    assert_eq!(report.head.digest, sha256(&lines[3][..lines[3].len() - 1]));
    assert_eq!(report.verdict.to_string(), "consistent, unanchored");
}

#[test]
fn an_empty_chain_verifies() {
    assert_eq!(verify(b"", None).unwrap().head, Head::GENESIS);
}

#[test]
fn flipping_any_bit_of_any_byte_is_noticed_and_the_record_is_named() {
    let lines = small_chain();
    let good = lines.concat();
    for at in 0..good.len() {
        let record = 1 + good[..at].iter().filter(|b| **b == b'\n').count();
        for flip in (0..8).map(|bit| 1u8 << bit).chain([0xff]) {
            let mut bad = good.clone();
            bad[at] ^= flip;
            let error = verify(&bad, None).expect_err("a changed byte must not verify").to_string();
            // A byte turned into a newline shortens its own line; nothing moves the blame elsewhere.
            assert!(error.starts_with(&format!("record {record}")), "byte {at} ^ {flip:#x}: {error}");
        }
    }
}

#[test]
fn inserting_or_deleting_any_single_byte_is_noticed() {
    let good = small_chain().concat();
    for at in 0..good.len() {
        let mut shorter = good.clone();
        shorter.remove(at);
        assert!(verify(&shorter, None).is_err(), "deleting byte {at}");
        for extra in [b' ', b'\n', b'A'] {
            let mut longer = good.clone();
            longer.insert(at, extra);
            assert!(verify(&longer, None).is_err(), "inserting {extra:#x} at {at}");
        }
    }
}

#[test]
fn a_removed_record_is_noticed() {
    let mut lines = small_chain();
    lines.remove(1);
    assert_eq!(
        complaint(&lines),
        "record 2 (id a): says it is record 3; a record was removed, repeated or moved"
    );
    let mut lines = small_chain();
    lines.remove(0);
    assert!(complaint(&lines).starts_with("record 1 (id b): says it is record 2"));
}

#[test]
fn a_moved_or_repeated_record_is_noticed() {
    let mut lines = small_chain();
    lines.swap(0, 1);
    assert!(complaint(&lines).starts_with("record 1 (id b): says it is record 2"));
    let mut lines = small_chain();
    lines.insert(1, lines[1].clone());
    assert!(complaint(&lines).starts_with("record 3 (id b): says it is record 2"));
}

#[test]
fn a_record_of_another_chain_with_the_same_key_and_number_is_noticed() {
    let mut lines = small_chain();
    lines[1] = chain(&[(Event::Opened, "x"), (Event::Refused, "b")]).remove(1);
    assert_eq!(complaint(&lines), "record 2 (id b): does not continue the record before it");
}

#[test]
fn a_cut_tail_is_seen_only_with_a_pinned_head() {
    let lines = small_chain();
    let head = verify(&lines.concat(), None).unwrap().head;
    let cut = lines[..2].concat();
    assert!(verify(&cut, None).is_ok());
    assert_eq!(
        verify(&cut, Some(head)).unwrap_err().to_string(),
        "the chain was cut: pinned head is record 3, the store ends at 2"
    );
    assert_eq!(verify(&lines.concat(), Some(head)).unwrap().verdict, Verdict::Anchored { record: 3 });
}

#[test]
fn a_pinned_head_inside_the_chain_must_match_its_record() {
    let lines = small_chain();
    let pin = Head { seq: 2, digest: sha256(lines[1].trim_ascii_end()) };
    assert_eq!(verify(&lines.concat(), Some(pin)).unwrap().verdict.to_string(), "anchored at record 2");
    let rewritten = chain(&[(Event::Opened, "a"), (Event::Refused, "other"), (Event::Closed, "a")]);
    assert_eq!(
        verify(&rewritten.concat(), Some(pin)).unwrap_err().to_string(),
        "record 2 (id other): differs from the pinned head"
    );
}

#[test]
fn a_pinned_head_alone_does_not_anchor_a_key_found_beside_the_chain() {
    let lines = small_chain();
    let pin = Head { seq: 1, digest: sha256(lines[0].trim_ascii_end()) };
    let mut verifier = Verifier::new(key().public().clone(), KeyOrigin::Store, Some(pin));
    lines.iter().for_each(|line| drop(verifier.line(line).unwrap()));
    assert_eq!(verifier.finish().unwrap().verdict, Verdict::Unanchored);
}

#[test]
fn a_chain_signed_with_another_key_is_noticed() {
    let other = SecretKey::from_seed(&[8; 32]);
    let (line, _) = link(Head::GENESIS, entry(Event::Opened, "a"), &other).unwrap();
    assert!(complaint(&[line]).starts_with("record 1 (id a): signed with another key"));
}

#[test]
fn executions_open_once_and_end_once() {
    use Event::{Closed, Interrupted, Opened, Refused};
    for (events, words) in [
        (vec![Opened, Opened], "record 2 (id a): opened, but the execution already has a record"),
        (vec![Opened, Refused], "record 2 (id a): refused, but the execution already has a record"),
        (vec![Refused, Refused], "record 2 (id a): refused, but the execution already has a record"),
        (vec![Refused, Closed], "record 2 (id a): closed, but the execution had ended"),
        (vec![Opened, Closed, Opened], "record 3 (id a): opened, but the execution already has a record"),
        (vec![Opened, Closed, Interrupted], "record 3 (id a): interrupted, but the execution had ended"),
        (vec![Opened, Interrupted, Closed], "record 3 (id a): closed, but the execution had ended"),
        (vec![Closed], "record 1 (id a): closed, but the execution was never opened"),
        (vec![Interrupted], "record 1 (id a): interrupted, but the execution was never opened"),
    ] {
        assert_eq!(complaint(&chain(&events.into_iter().map(|e| (e, "a")).collect::<Vec<_>>())), words);
    }
}

#[test]
fn only_the_owner_of_an_execution_closes_it() {
    let stranger = Entry { run: "run-2".to_owned(), ..entry(Event::Closed, "a") };
    assert_eq!(
        complaint(&chain_of([entry(Event::Opened, "a"), stranger])),
        "record 2 (id a): closed for run run-2, but it was opened by run run-1"
    );
}

#[test]
fn a_record_reads_back_as_it_was_written() {
    let (line, head) = link(Head::GENESIS, entry(Event::Opened, "a"), &key()).unwrap();
    let record = Record::parse(&line, Some(key().public())).unwrap();
    assert_eq!(record.head(), head);
    assert_eq!(record.entry, entry(Event::Opened, "a"));
}

#[test]
fn a_line_is_a_dsse_envelope_around_an_in_toto_statement() {
    let (line, _) = link(Head::GENESIS, entry(Event::Opened, "a"), &key()).unwrap();
    let outer = parse_canonical(line.trim_ascii_end()).expect("the envelope is canonical");
    assert_eq!(outer["payloadType"], "application/vnd.in-toto+json");
    assert_eq!(outer["signatures"][0]["keyid"], key().public().keyid());
    let payload = Envelope::parse(line.trim_ascii_end()).unwrap().payload().to_vec();
    assert_eq!(
        parse_canonical(&payload).expect("the statement is canonical"),
        json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "request", "digest": {"sha256": "03".repeat(32)}}],
            "predicateType": "https://casemate.dev/evidence/v1",
            "predicate": {
                "chain": {"seq": 1, "prev": "0".repeat(64)},
                "event": "opened", "id": "a", "run": "run-1",
                "time": "2026-03-21T09:15:00.000042Z", "durability": "on-exit",
                "body": {"z": 1, "a": ["é", "\u{1}\n\"", null, true, -5, u64::MAX]},
            },
        })
    );
}

#[test]
fn the_pre_authentication_encoding_is_the_one_of_the_dsse_specification() {
    assert_eq!(
        pae("http://example.com/HelloWorld", b"hello world"),
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    );
}

#[test]
fn an_entry_that_would_not_read_back_is_not_signed() {
    let sign = |entry| link(Head::GENESIS, entry, &key()).unwrap_err().to_string();
    let good = || entry(Event::Opened, "a");
    assert!(sign(Entry { id: "a b".to_owned(), ..good() }).starts_with("execution id \"a b\" is not"));
    assert!(sign(Entry { run: String::new(), ..good() }).starts_with("run id \"\" is not"));
    assert_eq!(sign(Entry { subjects: vec![], ..good() }), "a record needs at least one subject");
    assert_eq!(sign(Entry { body: json!(null), ..good() }), "the body is not a JSON object");
    assert_eq!(sign(Entry { body: json!({"x": 0.5}), ..good() }), "the body has no canonical form");
    let long = sign(Entry { body: json!({"x": "y".repeat(MAX_LINE)}), ..good() });
    assert!(long.ends_with("the limit is 131072"), "{long}");
}

#[test]
fn every_beginning_of_a_line_is_torn_and_no_whole_line_is() {
    let line = small_chain().remove(0);
    let whole = line.len() - 1;
    assert!((1..whole).all(|n| is_torn(&line[..n])));
    assert!(!is_torn(&line[..whole]));
    for byte in (0..=255u8).filter(|b| *b != b'\n') {
        let flipped = [&line[..whole], &[byte]].concat();
        assert!(!is_torn(&flipped), "a newline turned into {byte:#x}");
    }
    assert!(!is_torn(b" ") && !is_torn(b"[1,") && !is_torn(&[0; 16]));
}

#[test]
fn a_head_is_printed_and_read_back_in_one_spelling() {
    let head = Head { seq: 12, digest: [0xab; 32] };
    assert_eq!(head.to_string(), format!("12:{}", "ab".repeat(32)));
    assert_eq!(head.to_string().parse(), Ok(head));
    for bad in [
        "",
        "12",
        "12:",
        &format!("012:{}", "ab".repeat(32)),
        &format!("12:{}", "AB".repeat(32)),
        &format!("0:{}", "ab".repeat(32)),
    ] {
        assert!(bad.parse::<Head>().is_err(), "{bad}");
    }
}

#[test]
fn keys_are_read_in_every_spelling_they_are_printed_in() {
    let key = key();
    let public = key.public();
    assert_eq!(public.to_string().parse(), Ok(public.clone()));
    assert_eq!(public.to_pem().parse(), Ok(public.clone()));
    assert_eq!(SecretKey::from_file_bytes(key.to_pem().as_bytes()).unwrap().public(), public);
    assert_eq!(SecretKey::from_file_bytes(&[7; 32]).unwrap().public(), public);
    assert_eq!(SecretKey::from_file_bytes(b"").unwrap_err(), KeyError::NotASecretKey);
    assert_eq!("00".repeat(32).parse::<PublicKey>(), Err(KeyError::Weak));
    assert!(!format!("{key:?}").contains("0707"), "a debug print does not show the secret");
}

#[test]
fn times_have_one_spelling() {
    for (micros, text) in [
        (0, "1970-01-01T00:00:00.000000Z"),
        (951_782_400_000_001, "2000-02-29T00:00:00.000001Z"),
        (u64::MAX, "9999-12-31T23:59:59.999999Z"),
    ] {
        assert_eq!(Timestamp::from_unix_micros(micros).to_string(), text);
        assert_eq!(text.parse::<Timestamp>().unwrap().to_string(), text);
    }
    for bad in [
        "2026-02-30T00:00:00.000000Z",
        "2026-01-01T24:00:00.000000Z",
        "2026-01-01T00:00:00Z",
        "2026-01-01 00:00:00.000000Z",
    ] {
        assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
    }
}

#[test]
fn only_the_canonical_spelling_of_a_value_is_accepted() {
    for bad in [
        &b" 1"[..],
        b"1 ",
        b"1.0",
        b"1e3",
        b"-0",
        b"01",
        b"{\"b\":1,\"a\":2}",
        b"{\"a\":1,\"a\":1}",
        b"{\"a\": 1}",
        b"\"\\u0041\"",
        b"\"\\/\"",
        b"\"\\u001F\"",
        b"1 2",
        b"",
        b"18446744073709551616",
        b"\"\xff\"",
    ] {
        assert!(parse_canonical(bad).is_err(), "{}", String::from_utf8_lossy(bad));
    }
    // U+10000 sorts before U+FF61 by UTF-16 code units, after it by bytes.
    assert!(parse_canonical("{\"\u{10000}\":1,\"\u{ff61}\":2}".as_bytes()).is_ok());
    assert!(parse_canonical("{\"\u{ff61}\":2,\"\u{10000}\":1}".as_bytes()).is_err());
}

#[test]
fn values_nest_to_the_limit_and_no_deeper() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse_canonical(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert!(matches!(parse_canonical(nested(MAX_DEPTH + 1).as_bytes()), Err(CanonicalError::TooDeep)));
    assert!(parse_canonical(nested(100_000).as_bytes()).is_err());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::hash_map(any::<String>(), inner, 0..8).prop_map(|m| m.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn a_value_survives_its_canonical_form(value in any_value()) {
        let bytes = to_canonical(&value).unwrap();
        prop_assert_eq!(parse_canonical(&bytes).unwrap(), value);
    }

    #[test]
    fn whatever_is_accepted_is_already_canonical(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(value) = parse_canonical(&bytes) {
            prop_assert_eq!(to_canonical(&value).unwrap(), bytes);
        }
    }

    #[test]
    fn any_body_survives_a_record(body in prop::collection::hash_map(any::<String>(), any_value(), 0..4)) {
        let entry = Entry { body: body.into_iter().collect(), ..entry(Event::Opened, "a") };
        let (line, _) = link(Head::GENESIS, entry.clone(), &key()).unwrap();
        prop_assert_eq!(Record::parse(&line, Some(key().public())).unwrap().entry, entry);
    }

    #[test]
    fn a_time_survives_its_spelling(micros in 0..253_402_300_800_000_000u64) {
        let time = Timestamp::from_unix_micros(micros);
        prop_assert_eq!(time.to_string().parse::<Timestamp>(), Ok(time));
    }

    #[test]
    fn no_bytes_make_the_line_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        prop_assert!(Record::parse(&bytes, None).is_err());
    }
}
