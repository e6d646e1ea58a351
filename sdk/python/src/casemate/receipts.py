"""Receipts: the signed lines about one execution, checked here, without asking anybody."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import _ed25519
from .errors import ReceiptInvalid
from .results import Json, Result

PublicKey = bytes | str | os.PathLike[str]
"""32 bytes, 64 hex digits, or PEM as in `evidence.pub`; a path names a file with one of these."""

_LONGEST_LINE = 131_072
_MOST_IN_A_SEAL = 256
_STATEMENT = "https://in-toto.io/Statement/v1"
_RECORD = "https://casemate.dev/evidence/v1"
_SEAL = "https://casemate.dev/seal/v1"
_PAYLOAD = "application/vnd.in-toto+json"
# What stands before the 32 bytes of an ed25519 key in DER.
_KEY_IN_DER = bytes.fromhex("302a300506032b6570032100")


@dataclass(frozen=True)
class Record:
    """One line of the chain about an execution, a sandbox or a program in one."""

    seq: int
    digest: str
    """SHA-256 of the line: `seq:digest` is what a result calls its receipt."""
    prev: str
    event: str
    """`opened`, `closed`, `refused`, `interrupted`, or `noted`: something small within a sandbox."""
    id: str
    run: str
    time: str
    body: Mapping[str, Any] = field(repr=False)
    subjects: Mapping[str, str] = field(repr=False)
    """SHA-256 of what went in and came out, such as `stdout`."""


@dataclass(frozen=True)
class _Seal:
    seq: int
    digest: str
    prev: str
    named: Mapping[str, str]
    key_id: str
    payload: bytes
    signature: bytes


@dataclass(frozen=True)
class Receipt:
    """The lines as they came. They prove nothing until `verify` has seen them."""

    lines: bytes = field(repr=False)
    records: tuple[Record, ...]
    _seals: tuple[_Seal, ...] = field(repr=False)

    @staticmethod
    def parse(lines: bytes) -> Receipt:
        """What the server sends, or `casemate evidence show ID --json` prints."""
        records: list[Record] = []
        seals: list[_Seal] = []
        for line in _split(lines):
            read = _read_line(line)
            if isinstance(read, Record):
                records.append(read)
            else:
                seals.append(read)
        if not records:
            raise ReceiptInvalid("there is no record in it")
        return Receipt(lines, tuple(records), tuple(seals))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Receipt:
        return Receipt.parse(Path(path).read_bytes())

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_bytes(self.lines)

    @property
    def id(self) -> str:
        return self.records[0].id

    @property
    def sealed(self) -> bool:
        """Whether there is a signature for each record. The server adds it within moments."""
        named = {name for seal in self._seals for name in seal.named}
        return all(f"record:{record.seq}" in named for record in self.records)

    @property
    def over(self) -> bool:
        """Whether it says what came of it."""
        return self.records[-1].event != "opened"

    def verify(self, public_key: PublicKey, *, result: Result | None = None, still_open: bool = False) -> None:
        """Raises `ReceiptInvalid` unless the holder of the key signed every record in it.

        With a `result`, the receipt must be that result's, and its output what was recorded. Something that is still running has
        only half a receipt: that is an error unless `still_open` says that it is fine.
        """
        key = _key(public_key)
        self._check_links()
        self._check_sealed()
        self._check_events(still_open)
        if result is not None:
            self._check_result(result)
        for seal in self._seals:
            _check_seal(seal, key)

    def _check_links(self) -> None:
        """Lines that are neighbours in the chain name each other."""
        lines: list[Record | _Seal] = [*self.records, *self._seals]
        for before, after in pairwise(sorted(lines, key=lambda line: line.seq)):
            if before.seq == after.seq:
                raise ReceiptInvalid(f"there are two lines {before.seq}")
            if before.seq + 1 == after.seq and after.prev != before.digest:
                raise ReceiptInvalid(f"line {after.seq} does not continue line {before.seq}")

    def _check_sealed(self) -> None:
        sealed = {name: (digest, seal.seq) for seal in self._seals for name, digest in seal.named.items()}
        for record in self.records:
            digest, at = sealed.get(f"record:{record.seq}", (None, 0))
            if digest is None:
                raise ReceiptInvalid(
                    f"record {record.seq} has no signature", "the server signs within moments: fetch it again"
                )
            if digest != record.digest or at <= record.seq:
                raise ReceiptInvalid(f"record {record.seq} is not the one that was signed")

    def _check_events(self, still_open: bool) -> None:
        """Opened once and closed once by the same run; or refused, or noted."""
        first, *rest = self.records
        if any(record.id != first.id or record.run != first.run for record in rest):
            raise ReceiptInvalid("its records are about different things")
        if [record.seq for record in self.records] != sorted(record.seq for record in self.records):
            raise ReceiptInvalid("its records are out of order")
        match [record.event for record in self.records]:
            case ["refused" | "noted"] | ["opened", "closed" | "interrupted"]:
                return
            case ["opened"] if still_open:
                return
            case ["opened"]:
                raise ReceiptInvalid("it does not say what came of it", "fetch it again when it is over")
            case events:
                raise ReceiptInvalid(f"this is no order of events: {', '.join(events)}")

    def _check_result(self, result: Result) -> None:
        last = self.records[-1]
        if result.id != last.id or result.receipt != f"{last.seq}:{last.digest}":
            raise ReceiptInvalid("it belongs to another result")
        if result.output_missed or last.event != "closed":
            return
        for name, content in (("stdout", result.stdout_bytes), ("stderr", result.stderr_bytes)):
            if last.subjects.get(name) != hashlib.sha256(content).hexdigest():
                raise ReceiptInvalid(f"{name} is not what was recorded")


def _check_seal(seal: _Seal, key: bytes) -> None:
    if seal.key_id != hashlib.sha256(key).hexdigest():
        raise ReceiptInvalid(
            f"seal {seal.seq} is by another key", "pin the `keys/evidence.pub` of the home that the server uses"
        )
    encoded = b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD), _PAYLOAD.encode(), len(seal.payload), seal.payload)
    if not _ed25519.verify(key, encoded, seal.signature):
        raise ReceiptInvalid(f"the signature of seal {seal.seq} is not good")


def _split(lines: bytes) -> list[bytes]:
    if not lines.endswith(b"\n"):
        raise ReceiptInvalid("its last line is cut")
    split = lines[:-1].split(b"\n")
    if any(len(line) >= _LONGEST_LINE for line in split):
        raise ReceiptInvalid("it has a line that is too long")
    return split


def _read_line(line: bytes) -> Record | _Seal:
    digest = hashlib.sha256(line).hexdigest()
    try:
        said = json.loads(line)
        return _record(said, digest) if "intoto" in said else _seal(said, line, digest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReceiptInvalid("it has a line that is neither a record nor a seal") from error


def _record(said: Json, digest: str) -> Record:
    _expect(said.keys() == {"intoto", "mac"})
    statement = said["intoto"]
    _expect(statement["_type"] == _STATEMENT and statement["predicateType"] == _RECORD)
    predicate = statement["predicate"]
    return Record(
        seq=_number(predicate["chain"]["seq"]),
        digest=digest,
        prev=predicate["chain"]["prev"],
        event=predicate["event"],
        id=predicate["id"],
        run=predicate["run"],
        time=predicate["time"],
        body=predicate["body"],
        subjects=_subjects(statement),
    )


def _seal(said: Json, line: bytes, digest: str) -> _Seal:
    # Nobody signs the envelope, so there must be one way to write it.
    _expect(json.dumps(said, separators=(",", ":"), sort_keys=True).encode() == line)
    _expect(said.keys() == {"payload", "payloadType", "signatures"} and said["payloadType"] == _PAYLOAD)
    (signature,) = said["signatures"]
    _expect(signature.keys() == {"keyid", "sig"})
    payload = _decoded(said["payload"])
    statement = json.loads(payload)
    _expect(statement["_type"] == _STATEMENT and statement["predicateType"] == _SEAL)
    chain = statement["predicate"]["chain"]
    named = _subjects(statement)
    _expect(1 <= len(named) <= _MOST_IN_A_SEAL)
    return _Seal(
        _number(chain["seq"]), digest, chain["prev"], named, signature["keyid"], payload, _decoded(signature["sig"])
    )


def _subjects(statement: Json) -> dict[str, str]:
    return {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}


def _number(said: Any) -> int:
    _expect(type(said) is int and said > 0)
    return int(said)


def _decoded(text: str) -> bytes:
    decoded = base64.b64decode(text, validate=True)
    # The last character may hold bits that mean nothing.
    _expect(base64.b64encode(decoded).decode() == text)
    return decoded


def _expect(holds: bool) -> None:
    if not holds:
        raise ValueError


def _key(given: PublicKey) -> bytes:
    if isinstance(given, os.PathLike):
        given = Path(given).read_bytes()
    if isinstance(given, bytes) and len(given) == 32:
        return given
    try:
        text = given.decode() if isinstance(given, bytes) else given
        words = text.split()
        if len(words) == 1:
            key = bytes.fromhex(text)
        else:
            der = base64.b64decode("".join(line for line in text.splitlines() if "-----" not in line), validate=True)
            key = der.removeprefix(_KEY_IN_DER)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != 32:
        raise ValueError("this is not an ed25519 public key: give 32 bytes, 64 hex digits or PEM")
    return key
