//! The DSSE envelope: a payload, and one ed25519 signature over its pre-authentication encoding.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use thiserror::Error;

use super::{PublicKey, SecretKey};

pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// How every envelope begins, because its keys are sorted.
pub const ENVELOPE_START: &[u8] = b"{\"payload\":\"";

#[derive(Debug, Error)]
pub enum EnvelopeError {
    #[error("not a DSSE envelope")]
    NotAnEnvelope(#[source] serde_json::Error),
    #[error("the payload type is not {PAYLOAD_TYPE}")]
    PayloadType,
    #[error("the envelope carries {0} signatures instead of one")]
    SignatureCount(usize),
    #[error("the envelope's base64 is not valid")]
    Base64,
    #[error("the envelope is not in canonical form")]
    NotCanonical,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum SignatureError {
    #[error("signed with another key ({found} instead of {expected})")]
    OtherKey { found: String, expected: String },
    #[error("signature does not verify")]
    Invalid,
}

/// An envelope whose form has been checked. Its signature is checked by [`Envelope::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    payload: Vec<u8>,
    keyid: String,
    signature: [u8; 64],
}

impl Envelope {
    pub fn sign(payload: Vec<u8>, key: &SecretKey) -> Envelope {
        let signature = key.sign(&pae(PAYLOAD_TYPE, &payload));
        Envelope { payload, keyid: key.public().keyid().to_owned(), signature }
    }

    pub fn verify(&self, key: &PublicKey) -> Result<(), SignatureError> {
        if self.keyid != key.keyid() {
            let (found, expected) = (self.keyid.clone(), key.keyid().to_owned());
            return Err(SignatureError::OtherKey { found, expected });
        }
        if key.verifies(&pae(PAYLOAD_TYPE, &self.payload), &self.signature) {
            Ok(())
        } else {
            Err(SignatureError::Invalid)
        }
    }

    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    pub fn keyid(&self) -> &str {
        &self.keyid
    }

    /// Canonical JSON on one line, without the newline.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = String::with_capacity(self.payload.len() * 4 / 3 + 320);
        line.push_str("{\"payload\":\"");
        STANDARD.encode_string(&self.payload, &mut line);
        line.push_str("\",\"payloadType\":\"");
        line.push_str(PAYLOAD_TYPE);
        line.push_str("\",\"signatures\":[{\"keyid\":\"");
        line.push_str(&self.keyid);
        line.push_str("\",\"sig\":\"");
        STANDARD.encode_string(self.signature, &mut line);
        line.push_str("\"}]}");
        line.into_bytes()
    }

    /// Accepts what [`Envelope::to_line`] writes, and only that.
    pub fn parse(line: &[u8]) -> Result<Envelope, EnvelopeError> {
        let wire: WireEnvelope = serde_json::from_slice(line).map_err(EnvelopeError::NotAnEnvelope)?;
        if wire.payload_type != PAYLOAD_TYPE {
            return Err(EnvelopeError::PayloadType);
        }
        let count = wire.signatures.len();
        let [signature] = <[WireSignature; 1]>::try_from(wire.signatures)
            .map_err(|_| EnvelopeError::SignatureCount(count))?;
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| EnvelopeError::Base64);
        // The key id is compared with the one expected before it means anything, but it is written without escapes.
        if super::unhex(&signature.keyid).is_none() {
            return Err(EnvelopeError::NotCanonical);
        }
        let envelope = Envelope {
            payload: decode(&wire.payload)?,
            keyid: signature.keyid,
            signature: decode(&signature.sig)?.try_into().map_err(|_| EnvelopeError::Base64)?,
        };
        if envelope.to_line() == line { Ok(envelope) } else { Err(EnvelopeError::NotCanonical) }
    }
}

/// What is signed: the type and the payload, each with its length, so that neither can pass for the other.
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    out.extend_from_slice(payload);
    out
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireEnvelope {
    payload: String,
    #[serde(rename = "payloadType")]
    payload_type: String,
    signatures: Vec<WireSignature>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSignature {
    keyid: String,
    sig: String,
}
