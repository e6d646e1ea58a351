"""Signatures, by the vectors of RFC 8032, section 7.1."""

import pytest

from casemate._ed25519 import _ORDER, verify

VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("key", "message", "signature"), [tuple(map(bytes.fromhex, vector)) for vector in VECTORS])
def test_signatures_hold_and_nothing_else_does(key, message, signature):
    assert verify(key, message, signature)
    assert not verify(key, message + b"\0", signature)
    for at in range(0, 512, 7):
        changed = bytearray(signature)
        changed[at // 8] ^= 1 << at % 8
        assert not verify(key, message, bytes(changed))
    for at in range(0, 256, 11):
        changed = bytearray(key)
        changed[at // 8] ^= 1 << at % 8
        assert not verify(bytes(changed), message, signature)


def test_there_is_one_signature_for_a_message():
    key, message, signature = map(bytes.fromhex, VECTORS[1])
    scalar = int.from_bytes(signature[32:], "little") + _ORDER
    assert not verify(key, message, signature[:32] + scalar.to_bytes(32, "little"))
    assert not verify(key, message, signature[:63]) and not verify(key[:31], message, signature)


@pytest.mark.parametrize("y", [0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**255 - 1])
def test_keys_that_sign_everything_are_no_keys(y):
    key = y.to_bytes(32, "little")
    neutral = (1).to_bytes(32, "little")
    assert not verify(key, b"anything", neutral + bytes(32))
