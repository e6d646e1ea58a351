"""Checks ed25519 signatures (RFC 8032). Everything that goes in is public, so nothing here has to hide how long it takes."""

from __future__ import annotations

import hashlib

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)

# A point (x, y) is kept as (X, Y, Z, T) with x = X/Z, y = Y/Z and xy = T/Z: to add two takes no division.
_Point = tuple[int, int, int, int]
_NEUTRAL: _Point = (0, 1, 1, 0)


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the holder of the key's other half signed the message."""
    if len(public_key) != 32 or len(signature) != 64:
        return False
    key, commitment = _decode(public_key), _decode(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    # A scalar that is too large would be a second signature of the same message.
    if key is None or commitment is None or scalar >= _ORDER:
        return False
    # Under a key of small order, a signature says nothing about its message.
    if _equal(_times(8, key), _NEUTRAL):
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % _ORDER
    return _equal(_times(scalar, _BASE), _add(commitment, _times(challenge, key)))


def _decode(encoded: bytes) -> _Point | None:
    """The point with this y, and an x that is as odd as the top bit says."""
    number = int.from_bytes(encoded, "little")
    odd, y = number >> 255, number & (2**255 - 1)
    # Each point has one spelling.
    if y >= _P:
        return None
    above, below = (y * y - 1) % _P, (_D * y * y + 1) % _P
    # above / below to the power of (p + 3) / 8, with one exponentiation: a square root, up to a root of -1.
    x = above * below**3 * pow(above * below**7, (_P - 5) // 8, _P) % _P
    if (below * x * x - above) % _P:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if (below * x * x - above) % _P or (x == 0 and odd):
        return None
    if x & 1 != odd:
        x = _P - x
    return (x, y, 1, x * y % _P)


def _add(p: _Point, q: _Point) -> _Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % _P, g * h % _P, f * g % _P, e * h % _P)


def _times(scalar: int, point: _Point) -> _Point:
    product = _NEUTRAL
    while scalar:
        if scalar & 1:
            product = _add(product, point)
        point = _add(point, point)
        scalar >>= 1
    return product


def _equal(p: _Point, q: _Point) -> bool:
    return (p[0] * q[2] - q[0] * p[2]) % _P == 0 and (p[1] * q[2] - q[1] * p[2]) % _P == 0


def _base() -> _Point:
    """The even point whose y is 4/5."""
    base = _decode((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert base is not None
    return base


_BASE = _base()
