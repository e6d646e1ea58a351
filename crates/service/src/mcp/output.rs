//! The head and the tail of something long, and how much lies between them.

use std::collections::VecDeque;

/// What is kept of either end. Both streams of a program, told twice and escaped, still make less than the megabyte that clients take.
const KEPT: usize = 16 << 10;

#[derive(Debug, Default)]
pub(super) struct Excerpt {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Excerpt {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(KEPT - self.head.len()));
        self.head.extend_from_slice(first);
        // Of a long piece, only its end can stay.
        let rest = &rest[rest.len().saturating_sub(KEPT)..];
        self.tail.drain(..(self.tail.len() + rest.len()).saturating_sub(KEPT).min(self.tail.len()));
        self.tail.extend(rest);
    }

    /// As text, and how many bytes were left out of it.
    pub(super) fn text(self) -> (String, u64) {
        let (mut head, mut tail) = (self.head, Vec::from(self.tail));
        let is_whole = self.total == (head.len() + tail.len()) as u64;
        if is_whole {
            head.append(&mut tail);
            return (String::from_utf8_lossy(&head).into_owned(), 0);
        }
        // No character is cut in two.
        head.truncate(whole_characters(&head));
        let begun = tail.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
        tail.drain(..begun);
        let left_out = self.total - (head.len() + tail.len()) as u64;
        let (head, tail) = (String::from_utf8_lossy(&head), String::from_utf8_lossy(&tail));
        (format!("{head}\n{}\n{tail}", gap(left_out)), left_out)
    }
}

pub(super) fn gap(left_out: u64) -> String {
    format!("[… {left_out} bytes left out …]")
}

/// How much of this is left when a character that only begins at its end is not counted.
pub(super) fn whole_characters(bytes: &[u8]) -> usize {
    let is_start = |at: &usize| bytes[*at] & 0b1100_0000 != 0b1000_0000;
    let Some(last) = (bytes.len().saturating_sub(4)..bytes.len()).rev().find(is_start) else {
        return bytes.len();
    };
    match std::str::from_utf8(&bytes[last..]) {
        Err(error) if error.error_len().is_none() => last,
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(pieces: &[&[u8]]) -> (String, u64) {
        let mut excerpt = Excerpt::default();
        pieces.iter().for_each(|piece| excerpt.push(piece));
        assert!(excerpt.head.len() <= KEPT && excerpt.tail.len() <= KEPT);
        excerpt.text()
    }

    #[test]
    fn what_is_short_is_told_as_it_is() {
        assert_eq!(excerpt(&[]), (String::new(), 0));
        assert_eq!(excerpt(&[b"a\n", b"", b"b"]), ("a\nb".to_owned(), 0));
        let both = "x".repeat(2 * KEPT);
        assert_eq!(excerpt(&[both.as_bytes()]), (both, 0));
    }

    #[test]
    fn of_what_is_long_both_ends_are_told_and_the_rest_is_counted() {
        for piece in [1, 7, 4096, KEPT, 3 * KEPT, 100_000] {
            let all: Vec<u8> = (0..100_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
            let (text, left_out) = excerpt(&all.chunks(piece).collect::<Vec<_>>());
            assert_eq!(left_out as usize, all.len() - 2 * KEPT);
            let (head, tail) = text.split_once(&format!("\n{}\n", gap(left_out))).expect("a gap");
            assert_eq!(head.as_bytes(), &all[..KEPT], "in pieces of {piece}");
            assert_eq!(tail.as_bytes(), &all[all.len() - KEPT..], "in pieces of {piece}");
        }
    }

    #[test]
    fn no_character_is_cut_in_two() {
        for offset in 0..4 {
            let all = format!("{}{}", "x".repeat(offset), "\u{1f600}".repeat(20_000));
            let (text, left_out) = excerpt(&[all.as_bytes()]);
            assert!(!text.contains('\u{fffd}'), "{offset}");
            let kept = text.len() - gap(left_out).len() - 2;
            assert_eq!(kept + left_out as usize, all.len());
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_told_all_the_same() {
        assert_eq!(excerpt(&[b"a\xffb"]).0, "a\u{fffd}b");
        let (text, left_out) = excerpt(&[&[0x80; 100_000]]);
        assert!(text.contains(&gap(left_out)));
    }
}
