//! The closed vocabularies of requests and policies, and the one error for text that is not in them.

use thiserror::Error;

/// Input that cannot be right, whatever the policy says: what is wrong, and what to write instead.
///
/// One struct and not an enum, because nobody branches on it: it is shown to the person who wrote the input.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Invalid {
    pub reason: String,
    pub hint: String,
}

impl Invalid {
    pub fn new(reason: impl Into<String>, hint: impl Into<String>) -> Invalid {
        Invalid { reason: reason.into(), hint: hint.into() }
    }
}

/// Declares an enum whose variants have one spelling each: printing, parsing and the list of what is accepted
/// come from the same place, so they cannot drift apart.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $what:literal {
            $( $(#[$variant_meta:meta])* $variant:ident = $word:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )+
        }

        impl $name {
            pub const ALL: [$name; [$($name::$variant),+].len()] = [$($name::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $( $name::$variant => $word, )+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::words::Invalid;

            fn from_str(text: &str) -> Result<$name, $crate::words::Invalid> {
                $name::ALL.into_iter().find(|word| word.as_str() == text).ok_or_else(|| {
                    $crate::words::unknown($what, text, &$name::ALL.map($name::as_str))
                })
            }
        }
    };
}

pub(crate) use words;

pub(crate) fn unknown(what: &str, text: &str, expected: &[&str]) -> Invalid {
    Invalid::new(
        format!("unknown {what} {}", quote(text)),
        format!("expected one of {}", expected.join(", ")),
    )
}

/// Quotes untrusted text for a message: bounded, and with control characters escaped so that it cannot
/// rewrite the terminal it is shown on.
pub(crate) fn quote(text: &str) -> String {
    const SHOWN: usize = 80;
    let mut quoted: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        quoted.push('…');
    }
    format!("`{quoted}`")
}

/// `a`, `a or b`, `a, b or c`.
pub(crate) fn any_of<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let mut items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match (items.pop(), items.is_empty()) {
        (None, _) => String::new(),
        (Some(only), true) => only,
        (Some(last), false) => format!("{} or {last}", items.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_bounded_and_cannot_carry_escape_sequences() {
        assert_eq!(quote("a\u{1b}[31m"), "`a\\u{1b}[31m`");
        assert!(quote(&"x".repeat(5000)).chars().count() < 100);
    }

    #[test]
    fn lists_read_as_english() {
        assert_eq!(any_of(["a"]), "a");
        assert_eq!(any_of(["a", "b"]), "a or b");
        assert_eq!(any_of(["a", "b", "c"]), "a, b or c");
    }
}
