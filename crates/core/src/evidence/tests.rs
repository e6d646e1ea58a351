use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

mod chain;

fn key() -> SecretKey {
    SecretKey::from_seed(&[7; 32])
}

fn entry(event: Event, id: &str) -> Entry {
    Entry {
        event,
        id: id.to_owned(),
        run: "run-1".to_owned(),
        time: time(),
        durability: Durability::OnExit,
        subjects: vec![Subject { name: "request".to_owned(), sha256: [3; 32] }],
        body: json!({"z": 1, "a": ["é", "\u{1}\n\"", null, true, -5, u64::MAX]}),
    }
}

fn time() -> Timestamp {
    Timestamp::from_unix_micros(1_774_084_500_000_042)
}

/// A record that follows `head`, and the head after it.
fn link(head: Head, entry: &Entry) -> (Vec<u8>, Head) {
    Draft::try_from(entry).unwrap().link(head, entry.time, key().mac()).unwrap()
}

fn record(line: &[u8]) -> Record {
    Line::parse(line).unwrap().record().unwrap()
}

#[test]
fn a_record_reads_back_as_it_was_written() {
    let (line, head) = link(Head::GENESIS, &entry(Event::Opened, "a"));
    let record = record(&line);
    assert_eq!(record.head(), head);
    assert_eq!(record.entry, entry(Event::Opened, "a"));
    assert_eq!(record.to_line().unwrap(), line.trim_ascii_end());
    record.written_by(key().mac()).unwrap();
}

#[test]
fn a_record_is_an_in_toto_statement_and_its_mac() {
    let (line, head) = link(Head::GENESIS, &entry(Event::Opened, "a"));
    let line = line.trim_ascii_end();
    assert_eq!(head, Head { seq: 1, digest: sha256(line) });
    let mut value = parse_canonical(line).expect("the whole line is canonical");
    // Computed with Python's hmac and hashlib from the seed, following SECURITY.md.
    assert_eq!(value["mac"], "d7b63725219c41b4ba1a5990e2f160ab2e4275fc72aaa49928463370927feb94");
    assert_eq!(
        value["intoto"].take(),
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
fn a_seal_is_a_dsse_envelope_around_a_statement_that_names_records() {
    let head = Head { seq: 18, digest: [6; 32] };
    let (line, head) = Seal::sign(head, &[[5; 32], [6; 32]], time(), &key());
    let line = line.trim_ascii_end();
    assert_eq!(head, Head { seq: 19, digest: sha256(line) });
    let outer = parse_canonical(line).expect("the envelope is canonical");
    assert_eq!(outer["payloadType"], "application/vnd.in-toto+json");
    assert_eq!(outer["signatures"][0]["keyid"], key().public().keyid());
    assert_eq!(
        parse_canonical(Envelope::parse(line).unwrap().payload()).expect("the statement is canonical"),
        json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [
                {"name": "record:17", "digest": {"sha256": "05".repeat(32)}},
                {"name": "record:18", "digest": {"sha256": "06".repeat(32)}},
            ],
            "predicateType": "https://casemate.dev/seal/v1",
            "predicate": {
                "chain": {"seq": 19, "prev": "06".repeat(32)},
                "time": "2026-03-21T09:15:00.000042Z",
            },
        })
    );
    let seal = Seal::parse(line).unwrap();
    seal.verify(key().public()).unwrap();
    assert_eq!((seal.first(), seal.names(17), seal.names(18)), (17, Some(&[5; 32]), Some(&[6; 32])));
    assert_eq!((seal.names(16), seal.names(19)), (None, None));
    assert_eq!(seal.to_line(), line);
}

#[test]
fn the_largest_seal_is_a_line_and_takes_no_more_than_its_share() {
    let size = |records: usize| {
        let head = Head { seq: u64::MAX - 3, digest: [0xff; 32] };
        let latest = Timestamp::from_unix_micros(u64::MAX);
        let (line, _) = Seal::sign(head, &vec![[0xff; 32]; records], latest, &key());
        assert!(Line::parse(&line).is_ok());
        line.len()
    };
    assert!(size(MAX_BATCH) <= MAX_LINE);
    assert!((1..=MAX_BATCH).all(|records| size(records) <= records * SEAL_SHARE));
}

#[test]
fn a_line_of_the_format_before_seals_is_refused_as_such() {
    let (line, _) = link(Head::GENESIS, &entry(Event::Opened, "a"));
    let mac = ",\"mac\":\"\"}\n".len() + 64;
    let statement = &line[RECORD_START.len()..line.len() - mac];
    let mut old = Envelope::sign(statement.to_vec(), &key()).to_line();
    old.push(b'\n');
    assert!(matches!(Line::parse(&old), Err(Fault::OldFormat)), "{:?}", Line::parse(&old));
}

#[test]
fn macs_of_other_keys_and_of_other_text_are_not_accepted() {
    let (line, _) = link(Head::GENESIS, &entry(Event::Opened, "a"));
    let other = SecretKey::from_seed(&[8; 32]);
    assert!(matches!(record(&line).written_by(other.mac()), Err(Fault::Mac)));
    let changed = String::from_utf8(line).unwrap().replace("run-1", "run-2");
    assert!(matches!(record(changed.as_bytes()).written_by(key().mac()), Err(Fault::Mac)));
}

#[test]
fn a_body_written_in_order_is_the_same_as_a_sorted_one() {
    #[derive(serde::Serialize)]
    struct Ordered {
        a: Option<i64>,
        z: u64,
    }
    let text = ["é", "\u{1}\u{8}\t\n\u{c}\r\"\\/\u{7f}", "\u{10000}"];
    let ordered = Ordered { a: Some(-5), z: u64::MAX };
    let body = Body::members().with("a", &ordered).with_fragment("b", &Fragment::new(&text).unwrap());
    let body = body.with("c", &true).with_value("d", &json!({"\u{ff61}": [], "\u{10000}": {}}));
    let sorted =
        json!({"d": {"\u{10000}": {}, "\u{ff61}": []}, "c": true, "b": text, "a": {"z": u64::MAX, "a": -5}});
    assert_eq!(body.end().unwrap(), Body::new(&sorted).unwrap());
    assert_eq!(Body::members().end().unwrap(), Body::new(&json!({})).unwrap());
    let fraction = Body::members().with_value("a", &json!(0.5)).with("b", &1).end();
    assert!(matches!(fraction, Err(EntryError::Body(CanonicalError::NotAnInteger(_)))));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic = "not in order"]
fn a_body_out_of_order_is_caught_in_tests() {
    let _ = Body::members().with("b", &1).with("a", &2).end();
}

#[test]
fn the_pre_authentication_encoding_is_the_one_of_the_dsse_specification() {
    assert_eq!(
        pae("http://example.com/HelloWorld", b"hello world"),
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    );
}

#[test]
fn an_entry_that_would_not_read_back_is_not_written() {
    let refusal = |entry: Entry| match Draft::try_from(&entry) {
        Err(error) => error.to_string(),
        Ok(draft) => draft.link(Head::GENESIS, entry.time, key().mac()).unwrap_err().to_string(),
    };
    let good = || entry(Event::Opened, "a");
    assert!(refusal(Entry { id: "a b".to_owned(), ..good() }).starts_with("execution id \"a b\" is not"));
    assert!(refusal(Entry { run: String::new(), ..good() }).starts_with("run id \"\" is not"));
    assert_eq!(refusal(Entry { subjects: vec![], ..good() }), "a record needs at least one subject");
    assert_eq!(refusal(Entry { body: json!(null), ..good() }), "the body is not a JSON object");
    assert_eq!(refusal(Entry { body: json!({"x": 0.5}), ..good() }), "the body has no canonical form");
    let long = refusal(Entry { body: json!({"x": "y".repeat(MAX_LINE)}), ..good() });
    assert!(long.ends_with("the limit is 131072"), "{long}");
}

#[test]
fn every_beginning_of_a_line_is_torn_and_no_whole_line_is() {
    for line in chain::small_chain() {
        let whole = line.len() - 1;
        assert!((1..whole).all(|n| is_torn(&line[..n])));
        assert!(!is_torn(&line[..whole]));
        for byte in (0..=255u8).filter(|b| *b != b'\n') {
            let flipped = [&line[..whole], &[byte]].concat();
            assert!(!is_torn(&flipped), "a newline turned into {byte:#x}");
        }
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
        let (line, _) = link(Head::GENESIS, &entry);
        prop_assert_eq!(record(&line).entry, entry);
    }

    #[test]
    fn a_time_survives_its_spelling(micros in 0..253_402_300_800_000_000u64) {
        let time = Timestamp::from_unix_micros(micros);
        prop_assert_eq!(time.to_string().parse::<Timestamp>(), Ok(time));
    }

    #[test]
    fn no_bytes_make_the_line_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        prop_assert!(Line::parse(&bytes).is_err());
    }
}
