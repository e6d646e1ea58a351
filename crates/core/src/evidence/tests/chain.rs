//! Chains as a verifier reads them, and their ends as a writer follows them.

use super::*;

/// Records in batches, each batch with its seal.
fn batches(batches: &[&[(Event, &str)]]) -> Vec<Vec<u8>> {
    let mut chain = Chain::default();
    for batch in batches {
        batch.iter().for_each(|(event, id)| chain.append(&entry(*event, id)));
        chain.seal();
    }
    chain.lines
}

/// Two batches: lines 1 and 2, sealed by 3, and line 4, sealed by 5.
pub(super) fn small_chain() -> Vec<Vec<u8>> {
    batches(&[&[(Event::Opened, "a"), (Event::Refused, "b")], &[(Event::Closed, "a")]])
}

#[derive(Default)]
struct Chain {
    lines: Vec<Vec<u8>>,
    end: End,
}

impl Chain {
    fn append(&mut self, entry: &Entry) {
        let (line, head) = self.end.link(Draft::try_from(entry).unwrap(), entry.time, &key()).unwrap();
        self.end.appended(head);
        self.lines.push(line);
    }

    fn seal(&mut self) {
        let (line, end) = self.end.seal(time(), &key()).expect("something to seal");
        self.end = end;
        self.lines.push(line);
    }

    fn refusals(mut self, count: usize) -> Chain {
        (0..count).for_each(|_| self.append(&entry(Event::Refused, &format!("r{}", self.lines.len()))));
        self
    }
}

fn verify(chain: &[u8], pin: Option<Head>) -> Result<Report, ChainError> {
    verify_with(Verifier::new(key().public().clone(), KeyOrigin::Pinned, pin), chain)
}

fn verify_with(mut verifier: Verifier, chain: &[u8]) -> Result<Report, ChainError> {
    for line in chain.split_inclusive(|b| *b == b'\n') {
        verifier.line(line)?;
    }
    verifier.finish()
}

fn complaint(lines: &[Vec<u8>]) -> String {
    verify(&lines.concat(), None).unwrap_err().to_string()
}

/// The number of the line that is named.
fn blamed(complaint: &str) -> usize {
    let (what, rest) = complaint.split_once(' ').unwrap();
    assert!(["record", "seal", "line"].contains(&what), "{complaint}");
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
    rest[..digits].parse().unwrap()
}

fn head_of(line: &[u8]) -> Head {
    Line::parse(line).unwrap().head()
}

/// A line after somebody put other text into it.
fn edited(line: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(line.to_vec()).unwrap();
    assert!(text.contains(from), "{text}");
    text.replace(from, to).into_bytes()
}

#[test]
fn an_untouched_chain_verifies_and_is_counted() {
    let lines = batches(&[
        &[(Event::Opened, "a"), (Event::Opened, "b")],
        &[(Event::Refused, "c"), (Event::Closed, "a")],
    ]);
    let report = verify(&lines.concat(), None).unwrap();
    assert_eq!((report.records, report.seals, report.unsealed, report.executions), (4, 2, 0, 3));
    assert_eq!(report.open, ["b"]);
    assert_eq!(report.head, Head { seq: 6, digest: sha256(&lines[5][..lines[5].len() - 1]) });
    assert_eq!(report.verdict.to_string(), "consistent, unanchored");
}

#[test]
fn what_is_noted_of_a_session_is_a_record_and_no_execution() {
    let lines = batches(&[&[(Event::Opened, "a"), (Event::Noted, "n")], &[(Event::Closed, "a")]]);
    let report = verify(&lines.concat(), None).unwrap();
    assert_eq!((report.records, report.executions, report.open.len()), (3, 1, 0));
    for (event, words) in
        [(Event::Noted, "n"), (Event::Opened, "n"), (Event::Closed, "n"), (Event::Noted, "a")]
    {
        let lines = batches(&[&[(Event::Opened, "a"), (Event::Noted, "n")], &[(event, words)]]);
        assert!(verify(&lines.concat(), None).is_err(), "{event} of {words}");
    }
}

#[test]
fn an_empty_chain_verifies() {
    assert_eq!(verify(b"", None).unwrap().head, Head::GENESIS);
}

#[test]
fn flipping_any_bit_of_any_byte_is_noticed_and_the_line_is_named() {
    let good = small_chain().concat();
    for at in 0..good.len() {
        let line = 1 + good[..at].iter().filter(|b| **b == b'\n').count();
        for flip in (0..8).map(|bit| 1u8 << bit).chain([0xff]) {
            let mut bad = good.clone();
            bad[at] ^= flip;
            let error = verify(&bad, None).expect_err("a changed byte must not verify").to_string();
            // A byte turned into a newline shortens its own line; nothing moves the blame elsewhere.
            assert_eq!(blamed(&error), line, "byte {at} ^ {flip:#x}: {error}");
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
fn a_record_that_still_makes_sense_after_the_change_is_found_by_its_seal() {
    let lines = batches(&[&[(Event::Opened, "a"), (Event::Opened, "b"), (Event::Refused, "c")]]);
    for (at, from, to, words) in [
        // The first sign of it is the link of the record after.
        (0, "run-1", "run-9", "record 1 (id a): is not the record that seal 4 names"),
        // The first sign of it is an execution that seems to be there twice.
        (1, r#""id":"b""#, r#""id":"a""#, "record 2 (id a): is not the record that seal 4 names"),
        (2, r#""z":1"#, r#""z":2"#, "record 3 (id c): is not the record that seal 4 names"),
    ] {
        let mut lines = lines.clone();
        lines[at] = edited(&lines[at], from, to);
        assert_eq!(complaint(&lines), words);
    }
}

#[test]
fn a_removed_line_is_noticed() {
    let without = |at: usize| {
        let mut lines = small_chain();
        lines.remove(at);
        lines
    };
    assert_eq!(complaint(&without(1)), "seal 2: says it is line 3; a line was removed, repeated or moved");
    assert!(complaint(&without(0)).starts_with("record 1 (id b): says it is line 2"));
    assert!(complaint(&without(2)).starts_with("record 3 (id a): says it is line 4"));
}

#[test]
fn a_moved_or_repeated_line_is_noticed() {
    for at in 0..4 {
        let mut lines = small_chain();
        lines.swap(at, at + 1);
        assert_eq!(blamed(&complaint(&lines)), at + 1);
    }
    for at in 0..5 {
        let mut lines = small_chain();
        lines.insert(at, lines[at].clone());
        assert_eq!(blamed(&complaint(&lines)), at + 2);
    }
}

#[test]
fn a_record_of_another_chain_with_the_same_key_and_number_is_noticed() {
    let mut lines = small_chain();
    lines[1] = batches(&[&[(Event::Opened, "x"), (Event::Refused, "b")]]).remove(1);
    assert_eq!(complaint(&lines), "record 2 (id b): is not the record that seal 3 names");
}

#[test]
fn a_seal_of_other_records_is_noticed() {
    // Of the same chain, elsewhere.
    let mut lines = small_chain();
    lines[4] = lines[2].clone();
    assert!(complaint(&lines).starts_with("seal 5: says it is line 3"));
    // Of another chain, at the same place.
    let mut lines = small_chain();
    lines[2] = batches(&[&[(Event::Opened, "a"), (Event::Refused, "other")]]).remove(2);
    assert_eq!(complaint(&lines), "record 2 (id b): is not the record that seal 3 names");
    // Of fewer records than there are.
    let mut lines = small_chain();
    let head = head_of(&lines[1]);
    lines[2] = Seal::sign(head, &[head.digest], time(), &key()).0;
    assert_eq!(
        complaint(&lines),
        "seal 3: the records it names, from 2 on, are not those since the last seal"
    );
}

#[test]
fn a_seal_that_lists_a_wrong_digest_is_noticed() {
    let mut lines = small_chain();
    let head = head_of(&lines[1]);
    lines[2] = Seal::sign(head, &[[9; 32], head.digest], time(), &key()).0;
    assert_eq!(complaint(&lines), "record 1 (id a): is not the record that seal 3 names");
}

#[test]
fn a_seal_of_another_key_is_noticed() {
    let mut lines = small_chain();
    let (first, second) = (head_of(&lines[0]), head_of(&lines[1]));
    let other = SecretKey::from_seed(&[8; 32]);
    lines[2] = Seal::sign(second, &[first.digest, second.digest], time(), &other).0;
    assert!(complaint(&lines).starts_with("seal 3: signed with another key"));
}

#[test]
fn records_without_a_seal_are_consistent_and_counted() {
    let mut chain = Chain { lines: Vec::new(), end: End::default() }.refusals(2);
    chain.seal();
    let chain = chain.refusals(3);
    let report = verify(&chain.lines.concat(), None).unwrap();
    assert_eq!((report.records, report.seals, report.unsealed), (5, 1, 3));
    // A head may be one of them, and must match.
    let pin = head_of(&chain.lines[4]);
    assert_eq!(verify(&chain.lines.concat(), Some(pin)).unwrap().verdict, Verdict::Anchored { line: 5 });
    let error = verify(&chain.lines.concat(), Some(Head { digest: [1; 32], ..pin })).unwrap_err();
    assert_eq!(error.to_string(), "record 5 (id r4): differs from the pinned head");
}

#[test]
fn among_records_without_a_seal_the_mac_tells_which_was_changed() {
    let mut lines = Chain::default().refusals(3).lines;
    lines[1] = edited(&lines[1], r#""z":1"#, r#""z":2"#);
    // Without the key, all that shows is a broken link.
    assert_eq!(complaint(&lines), "record 3 (id r2): does not continue the line before it");
    let verifier = Verifier::new(key().public().clone(), KeyOrigin::Pinned, None);
    let error = verify_with(verifier.with_macs(key().mac().clone()), &lines.concat()).unwrap_err();
    assert_eq!(error.to_string(), "record 2 (id r1): its mac is not from the holder of the signing key");
}

#[test]
fn no_more_records_wait_for_a_seal_than_one_can_name() {
    let mut chain = Chain::default().refusals(MAX_BATCH);
    assert!(chain.end.is_full());
    assert_eq!(verify(&chain.lines.concat(), None).unwrap().unsealed, 256);
    let too_many = chain.lines.len();
    chain = chain.refusals(1);
    assert_eq!(complaint(&chain.lines), "record 257 (id r256): comes after 256 records that nobody sealed");
    let mut end = End::default();
    assert!(chain.lines[..too_many].iter().all(|line| end.follow(line, &key()).is_ok()));
    assert!(matches!(end.follow(&chain.lines[too_many], &key()), Err(Fault::Unsealed)));
}

#[test]
fn one_execution_is_proved_by_its_records_and_the_seals_that_name_them() {
    let lines = small_chain();
    // What `evidence show --json` prints, handed to somebody who has nothing but the public key.
    let (records, seals) = ([&lines[0], &lines[3]], [&lines[2], &lines[4]]);
    for (line, seal) in records.into_iter().zip(seals) {
        let Line::Seal(seal) = Line::parse(seal).unwrap() else { panic!("not a seal") };
        seal.verify(key().public()).unwrap();
        let record = record(line);
        assert_eq!(record.entry.id, "a");
        assert_eq!(seal.names(record.seq), Some(&sha256(line.trim_ascii_end())));
    }
}

#[test]
fn a_cut_tail_is_seen_only_with_a_pinned_head() {
    let lines = small_chain();
    let head = verify(&lines.concat(), None).unwrap().head;
    for kept in 0..5 {
        let cut = lines[..kept].concat();
        assert!(verify(&cut, None).is_ok());
        assert_eq!(
            verify(&cut, Some(head)).unwrap_err().to_string(),
            format!("the chain was cut: pinned head is line 5, the store ends at {kept}")
        );
    }
    assert_eq!(verify(&lines.concat(), Some(head)).unwrap().verdict, Verdict::Anchored { line: 5 });
}

#[test]
fn a_pinned_head_inside_the_chain_must_match_its_line() {
    let lines = small_chain();
    for line in &lines {
        let pin = head_of(line);
        let verdict = verify(&lines.concat(), Some(pin)).unwrap().verdict;
        assert_eq!(verdict.to_string(), format!("anchored at line {}", pin.seq));
    }
    let rewritten =
        batches(&[&[(Event::Opened, "a"), (Event::Refused, "other")], &[(Event::Closed, "a")]]).concat();
    let against = |line: usize| verify(&rewritten, Some(head_of(&lines[line - 1]))).unwrap_err().to_string();
    assert_eq!(against(2), "record 2 (id other): differs from the pinned head");
    assert_eq!(against(3), "seal 3: differs from the pinned head");
}

#[test]
fn a_pinned_head_alone_does_not_anchor_a_key_found_beside_the_chain() {
    let lines = small_chain();
    let verifier = Verifier::new(key().public().clone(), KeyOrigin::Store, Some(head_of(&lines[0])));
    assert_eq!(verify_with(verifier, &lines.concat()).unwrap().verdict, Verdict::Unanchored);
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
        let events: Vec<_> = events.into_iter().map(|event| (event, "a")).collect();
        let mut lines = batches(&[&events]);
        assert_eq!(complaint(&lines), words);
        lines.pop();
        assert_eq!(complaint(&lines), words, "without a seal");
    }
}

#[test]
fn only_the_owner_of_an_execution_closes_it() {
    let mut chain = Chain::default();
    chain.append(&entry(Event::Opened, "a"));
    chain.append(&Entry { run: "run-2".to_owned(), ..entry(Event::Closed, "a") });
    chain.seal();
    assert_eq!(
        complaint(&chain.lines),
        "record 2 (id a): closed for run run-2, but it was opened by run run-1"
    );
}

#[test]
fn a_writer_that_follows_another_comes_to_the_same_end() {
    let mut chain = Chain::default().refusals(3);
    let mut end = End::default();
    chain.lines.iter().for_each(|line| end.follow(line, &key()).unwrap());
    assert_eq!((&end, end.unsealed()), (&chain.end, 3));
    chain.seal();
    let chain = chain.refusals(2);
    // Line by line, or from the last seal on.
    let mut resumed = end.clone();
    resumed.resume(&chain.lines[3], key().public()).unwrap();
    end.follow(&chain.lines[3], &key()).unwrap();
    for end in [&mut end, &mut resumed] {
        chain.lines[4..].iter().for_each(|line| end.follow(line, &key()).unwrap());
        assert_eq!((&*end, end.unsealed()), (&chain.end, 2));
    }
}

#[test]
fn a_writer_follows_nothing_that_its_key_did_not_write() {
    let mut chain = Chain::default().refusals(2);
    let end = chain.end.clone();
    let refusal = |line: &[u8]| end.clone().follow(line, &key()).unwrap_err().to_string();

    // A record with the right number and link, by somebody without the key.
    let stranger = SecretKey::from_seed(&[8; 32]);
    let draft = Draft::try_from(&entry(Event::Refused, "x")).unwrap();
    let (forged, _) = end.link(draft, time(), &stranger).unwrap();
    assert_eq!(refusal(&forged), "its mac is not from the holder of the signing key");
    let (forged, _) = end.seal(time(), &stranger).unwrap();
    assert!(refusal(&forged).starts_with("signed with another key"));

    // The key's own words, in the wrong place.
    assert!(refusal(&chain.lines[0]).starts_with("says it is line 1"));
    let mut other = Chain::default().refusals(1);
    other.append(&entry(Event::Refused, "other"));
    other.seal();
    assert_eq!(refusal(&other.lines[2]), "does not continue the line before it");

    chain.seal();
    let mut resumed = end.clone();
    let refused = resumed.resume(&other.lines[2], key().public());
    assert!(matches!(refused, Err(Fault::OtherRecords { first: 1 })), "{refused:?}");
    assert!(resumed.resume(&chain.lines[0], key().public()).is_err(), "a record is no place to go on from");
    resumed.resume(&chain.lines[2], key().public()).unwrap();
    assert!(resumed.resume(&chain.lines[2], key().public()).is_err(), "there is no way back");
}
