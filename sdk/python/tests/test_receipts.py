"""Receipts of a real server, checked without it."""

import base64
import dataclasses
import random

import pytest
from conftest import Server

import casemate


@pytest.fixture
def key(server):
    return server.home / "keys/evidence.pub"


def test_what_ran_is_proved(client, key):
    result = client.run("echo out; echo err >&2")
    receipt = client.receipt(result)
    receipt.verify(key, result=result)
    assert receipt.id == result.id and receipt.sealed and receipt.over
    opened, closed = receipt.records
    assert (opened.event, closed.event) == ("opened", "closed")
    assert opened.body["request"]["workload"] and closed.body["status"] == {"code": 0, "kind": "exited"}
    assert result.receipt == f"{closed.seq}:{closed.digest}"


def test_keys_in_every_spelling(client, key):
    receipt = client.receipt(client.run("true"))
    pem = key.read_text()
    raw = base64.b64decode(pem.splitlines()[1])[-32:]
    for spelled in (key, pem, pem.encode(), raw, raw.hex()):
        receipt.verify(spelled)
    for wrong in (b"short", "no key", raw.hex()[:-2], pem[:-40]):
        with pytest.raises(ValueError, match="not an ed25519 public key"):
            receipt.verify(wrong)
    with pytest.raises(casemate.ReceiptInvalid, match="another key"):
        receipt.verify(bytes([raw[0] ^ 1]) + raw[1:])


def test_refusals_and_sandboxes_and_their_programs(client, key):
    client.receipt(client.run("true", on="microvm")).verify(key)
    with casemate.Sandbox(client=client) as box:
        result = box.commands.run("echo hello")
        box.receipt(result).verify(key, result=result)
        still = box.receipt()
        still.verify(key, still_open=True)
        assert not still.over
        with pytest.raises(casemate.ReceiptInvalid, match="what came of it"):
            still.verify(key)
    whole = client.receipt(box.id)
    whole.verify(key)
    assert whole.records[-1].body["status"]["cause"] == "cancelled"


def test_a_result_that_was_changed_is_not_proved(client, key):
    result, other = client.run("echo 1"), client.run("echo 1")
    receipt = client.receipt(result)
    with pytest.raises(casemate.ReceiptInvalid, match="another result"):
        receipt.verify(key, result=other)
    with pytest.raises(casemate.ReceiptInvalid, match="stdout is not"):
        receipt.verify(key, result=dataclasses.replace(result, stdout_bytes=b"2\n"))
    # Nobody can vouch for output that is not all there.
    receipt.verify(key, result=dataclasses.replace(result, stdout_bytes=b"", output_missed=True))


def test_they_can_be_kept(client, key, tmp_path):
    receipt = client.receipt(client.run("true"))
    receipt.save(tmp_path / "receipt.jsonl")
    casemate.Receipt.load(tmp_path / "receipt.jsonl").verify(key)


def test_no_bit_can_be_changed(client, key):
    lines = client.receipt(client.run("true")).lines
    pinned = key.read_text()

    def holds(changed: bytes) -> bool:
        try:
            casemate.Receipt.parse(changed).verify(pinned)
        except casemate.ReceiptInvalid:
            return False
        return True

    assert holds(lines)
    # Every byte once, at a bit that differs from run to run.
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for at in range(len(lines)):
        changed = bytearray(lines)
        changed[at] ^= 1 << chance.randrange(8)
        assert not holds(bytes(changed)), f"byte {at}, seed {seed}"


def test_no_line_can_be_left_out_repeated_or_moved(client, key):
    lines = client.receipt(client.run("true")).lines.splitlines(keepends=True)
    others = client.receipt(client.run("true")).lines.splitlines(keepends=True)
    kept = {b"".join(lines[:at] + lines[at + 1 :]) for at in range(len(lines))}
    twice = {b"".join(lines[:at] + [lines[at]] + lines[at:]) for at in range(len(lines))}
    mixed = {b"".join(lines + others), b"".join(lines[:1] + others[1:]), b"".join(lines)[:-1], b""}
    records = [line for line in lines if line.startswith(b'{"intoto"')]
    moved = {b"".join([*reversed(records), *(line for line in lines if line not in records)])}
    for changed in kept | twice | mixed | moved:
        with pytest.raises(casemate.ReceiptInvalid):
            casemate.Receipt.parse(changed).verify(key)


def test_somebody_elses_server_signs_otherwise(client, tmp_path, key):
    receipt = client.receipt(client.run("true"))
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other")
    try:
        with casemate.Client(other.url) as stranger:
            stranger.run("true")
        with pytest.raises(casemate.ReceiptInvalid, match="another key"):
            receipt.verify(other.home / "keys/evidence.pub")
        other.stop()
    finally:
        other.kill()
