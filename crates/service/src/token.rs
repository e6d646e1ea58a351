//! Tokens: who may do what, for whom, until when. Only a digest of the secret is kept.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use casemate_core::request::Invalid;
use sha2::{Digest, Sha256};

/// What every token begins with, so that one that leaked can be found.
pub(crate) const PREFIX: &str = "cmt_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

macro_rules! scopes {
    ($($name:ident = $word:literal, $meaning:literal;)*) => {
        /// What a token allows.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Scope { $(#[doc = $meaning] $name),* }

        impl Scope {
            pub const ALL: &[Scope] = &[$(Scope::$name),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Scope::$name => $word),* }
            }
        }
    };
}

scopes! {
    Run = "run", "Executions and sessions, and what they would come to.";
    Receipts = "receipts", "Reading the tenant's receipts.";
    Images = "images", "Changing the images that all tenants share.";
    Metrics = "metrics", "Reading the numbers of the whole server.";
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Scope, Invalid> {
        Scope::ALL.iter().copied().find(|scope| scope.as_str() == text).ok_or_else(|| {
            let known: Vec<&str> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
            Invalid::new(format!("{text:?} is not a scope"), format!("use {}", known.join(", ")))
        })
    }
}

/// What a token has unless somebody says otherwise: what a tenant needs, and nothing of the server's.
pub fn default_scopes() -> BTreeSet<Scope> {
    [Scope::Run, Scope::Receipts].into()
}

/// A token as its owner has it. Shown once.
pub struct Token {
    pub(crate) id: String,
    secret: [u8; SECRET_BYTES],
}

impl Token {
    pub(crate) fn generate() -> rustix::io::Result<Token> {
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        fill(&mut id)?;
        fill(&mut secret)?;
        Ok(Token { id: hex(&id), secret })
    }

    /// Reads what a client has sent. Says nothing about whether it is a good one.
    pub(crate) fn parse(text: &str) -> Option<Token> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let id_is_plain =
            id.len() == 2 * ID_BYTES && id.bytes().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase());
        if !id_is_plain || secret.len() != 2 * SECRET_BYTES {
            return None;
        }
        let mut bytes = [0; SECRET_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(secret.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Token { id: id.to_owned(), secret: bytes })
    }

    /// What is kept of it. The secret has 256 random bits: there is nothing to be guessed, so it need not be slow.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"casemate token\0");
        hash.update(self.id.as_bytes());
        hash.update(self.secret);
        hash.finalize().into()
    }
}

/// For its owner's eyes.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_{}", self.id, hex(&self.secret))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

/// A word that nobody can guess.
pub(crate) fn random() -> rustix::io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    fill(&mut bytes)?;
    Ok(hex(&bytes))
}

fn fill(bytes: &mut [u8]) -> rustix::io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    casemate_core::evidence::hex(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_as_itself() {
        let token = Token::generate().expect("randomness");
        let again = Token::parse(&token.to_string()).expect("it is one");
        assert_eq!((again.id.as_str(), again.digest()), (token.id.as_str(), token.digest()));
        assert!(!format!("{token:?}").contains(&token.to_string()[24..]));
    }

    #[test]
    fn what_is_no_token_is_none() {
        let token = Token::generate().expect("randomness").to_string();
        for bad in [
            "",
            "cmt_",
            "cmt__",
            "Bearer x",
            &token[1..],
            &token[..token.len() - 1],
            &format!("{token}0"),
            &token.replace("cmt_", "cmt-"),
            &token.to_uppercase(),
            &format!("cmt_{}_{}", "é".repeat(8), "0".repeat(64)),
            &format!("cmt_{}_{}", "0".repeat(16), "é".repeat(32)),
        ] {
            assert!(Token::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn another_secret_has_another_digest() {
        let token = Token::generate().expect("randomness");
        let mut other = Token { id: token.id.clone(), secret: token.secret };
        other.secret[31] ^= 1;
        assert_ne!(token.digest(), other.digest());
    }
}
