//! The key pair that signs seals, its two spellings (PEM for files, hexadecimal for people), and the key for MACs that is
//! derived from it.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;

use super::{hex, sha256, unhex};

#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    #[error("not an ed25519 private key (PKCS#8 PEM or 32 raw bytes)")]
    NotASecretKey,
    #[error("not an ed25519 public key (PEM or 64 hexadecimal digits)")]
    NotAPublicKey,
    #[error("a public key of small order, under which anything can be signed")]
    Weak,
}

/// Derives the key for MACs, and keeps it apart from any other that might be derived some day.
const MAC_LABEL: &[u8] = b"casemate evidence mac v1";

/// Held by the recorder alone.
pub struct SecretKey {
    signing: SigningKey,
    mac: MacKey,
    public: PublicKey,
}

/// Marks records that no seal names yet as the key holder's own. It proves nothing to anybody else.
#[derive(Clone)]
pub struct MacKey(Hmac<Sha256>);

/// What a verifier pins. Its `keyid` is the SHA-256 of the 32 key bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    verifying: VerifyingKey,
    keyid: String,
}

impl SecretKey {
    pub fn from_seed(seed: &[u8; 32]) -> SecretKey {
        SecretKey::new(SigningKey::from_bytes(seed))
    }

    /// Reads a key file: PKCS#8 PEM, or the 32 bytes themselves.
    pub fn from_file_bytes(bytes: &[u8]) -> Result<SecretKey, KeyError> {
        if let Ok(seed) = bytes.try_into() {
            return Ok(SecretKey::from_seed(seed));
        }
        let pem = std::str::from_utf8(bytes).map_err(|_| KeyError::NotASecretKey)?;
        SigningKey::from_pkcs8_pem(pem).map(SecretKey::new).map_err(|_| KeyError::NotASecretKey)
    }

    /// The PKCS#8 PEM for the key file, wiped from memory when dropped.
    pub fn to_pem(&self) -> impl Deref<Target = String> + use<> {
        self.signing.to_pkcs8_pem(LineEnding::LF).expect("a 32-byte key always encodes")
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    pub(super) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.signing.sign(message).to_bytes()
    }

    pub fn mac(&self) -> &MacKey {
        &self.mac
    }

    fn new(signing: SigningKey) -> SecretKey {
        let public = PublicKey::new(signing.verifying_key());
        let derived = MacKey::new(signing.as_bytes()).of(MAC_LABEL);
        SecretKey { mac: MacKey::new(&derived), signing, public }
    }
}

impl MacKey {
    /// The MAC of what hashes to `digest`. To hash first lets one pass over a line serve its MAC and its own digest.
    pub fn mac(&self, digest: &[u8; 32]) -> [u8; 32] {
        self.of(digest)
    }

    /// Takes the same time whatever the answer.
    pub fn verifies(&self, digest: &[u8; 32], mac: &[u8; 32]) -> bool {
        self.0.clone().chain_update(digest).verify_slice(mac).is_ok()
    }

    fn new(key: &[u8; 32]) -> MacKey {
        MacKey(Hmac::new_from_slice(key).expect("a key of any length will do"))
    }

    fn of(&self, message: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(message).finalize().into_bytes().into()
    }
}

impl PublicKey {
    pub fn keyid(&self) -> &str {
        &self.keyid
    }

    pub fn to_pem(&self) -> String {
        self.verifying.to_public_key_pem(LineEnding::LF).expect("a 32-byte key always encodes")
    }

    pub(super) fn verifies(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        self.verifying.verify_strict(message, &ed25519_dalek::Signature::from_bytes(signature)).is_ok()
    }

    fn new(verifying: VerifyingKey) -> PublicKey {
        let keyid = hex(&sha256(verifying.as_bytes()));
        PublicKey { verifying, keyid }
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        let verifying = match unhex(text.trim()) {
            Some(bytes) => VerifyingKey::from_bytes(&bytes).map_err(|_| KeyError::NotAPublicKey)?,
            None => VerifyingKey::from_public_key_pem(text).map_err(|_| KeyError::NotAPublicKey)?,
        };
        if verifying.is_weak() { Err(KeyError::Weak) } else { Ok(PublicKey::new(verifying)) }
    }
}

/// The 64 hexadecimal digits that `FromStr` takes back.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.verifying.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey")
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public)
    }
}
