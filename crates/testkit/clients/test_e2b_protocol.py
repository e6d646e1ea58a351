"""What no client of E2B would send."""

import base64
import json
import struct

import httpx
import pytest
from e2b import Sandbox

START = {"process": {"cmd": "/bin/echo", "args": ["hello"]}}


@pytest.fixture
def http(e2b):
    sandbox = Sandbox.create(timeout=60)
    headers = {"e2b-sandbox-id": sandbox.sandbox_id, "x-access-token": sandbox._envd_access_token}
    # A server that refuses a request unread may close its connection: each gets one of its own.
    alone = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=e2b.url, headers=headers, timeout=60, limits=alone) as http:
        yield http
        assert sandbox.commands.run("echo still here").stdout == "still here\n"


def envelope(message, flags=0):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body)) + body


def envelopes(body):
    found = []
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        found.append((flags, json.loads(body[5 : 5 + length])))
        body = body[5 + length :]
    return found


def stream(http, call, content, kind="application/connect+json"):
    return http.post(f"/process.Process/{call}", content=content, headers={"content-type": kind})


def test_a_stream_is_what_the_protocol_says(http):
    answer = stream(http, "Start", envelope(START))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/connect+json")
    (_, first), *data, (_, last), (flags, trailer) = envelopes(answer.content)
    assert first["event"]["start"]["pid"] > 0
    assert b"".join(base64.b64decode(each["event"]["data"]["stdout"]) for _, each in data) == b"hello\n"
    assert last["event"]["end"] == {"exitCode": 0, "exited": True, "status": "exit status 0"}
    assert (flags, trailer) == (2, {})


GARBAGE = [
    b"",
    b"\x00",
    b"\x00\x00\x00\x00",
    b"garbage that is no envelope at all",
    envelope(b""),
    envelope(b"{"),
    envelope(b"[" * 100_000),
    envelope(b"\xff\xfe"),
    envelope(START)[:-1],
    envelope(START) + envelope(START),
    envelope(START) + b"\x00",
    envelope(START, flags=1),
    envelope(START, flags=4),
    envelope({"process": {"cmd": 1}}),
    envelope({**START, "more": True}),
    envelope({**START, "pty": {"size": {"cols": 70000, "rows": 1}}}),
    struct.pack(">BI", 0, 0xFFFF_FFFF),
]


def test_garbage_is_refused(http):
    for content in GARBAGE:
        answer = stream(http, "Start", content)
        assert answer.status_code in (400, 413), (content[:50], answer.text)
        assert answer.json()["code"] == answer.status_code and answer.json()["message"]


def test_other_kinds_of_content_are_refused(http):
    for kind in ["application/connect+proto", "application/json", "text/plain", ""]:
        assert stream(http, "Start", envelope(START), kind).status_code == 400
    answer = http.post("/process.Process/List", content=b"\x00", headers={"content-type": "application/proto"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_headers_are_read_strictly(http):
    for name, value in [("connect-timeout-ms", "soon"), ("connect-timeout-ms", "-1"), ("connect-timeout-ms", "9" * 11), ("keepalive-ping-interval", "x")]:
        headers = {"content-type": "application/connect+json", name: value}
        assert http.post("/process.Process/Start", content=envelope(START), headers=headers).status_code == 400
    for value in ["Basic !", "Bearer x", "Basic " + "x" * 9]:
        headers = {"authorization": value}
        assert http.post("/filesystem.Filesystem/ListDir", json={"path": "."}, headers=headers).status_code == 400


def test_one_is_told_that_a_silent_program_lives(http):
    headers = {"content-type": "application/connect+json", "keepalive-ping-interval": "1"}
    start = {"process": {"cmd": "/bin/sleep", "args": ["2.5"]}}
    answer = http.post("/process.Process/Start", content=envelope(start), headers=headers)
    assert [message for _, message in envelopes(answer.content)].count({"event": {"keepalive": {}}}) == 2


def test_input_is_streamed_in_order_or_not_at_all(http):
    def trailer(*messages):
        answer = stream(http, "StreamInput", b"".join(envelope(message) for message in messages))
        return envelopes(answer.content)[-1][1].get("error", {}).get("code")

    data = {"data": {"input": {"stdin": "eA=="}}}
    assert trailer(data) == "invalid_argument"
    assert trailer({"start": {"process": {"pid": 999999}}}) == "not_found"
    assert trailer({"start": {"process": {"tag": "none"}}}, data) == "not_found"
    assert trailer({"keepalive": {}}) is None
    assert trailer({"other": {}}) == "invalid_argument"


def test_calls_that_make_no_sense_are_refused(http):
    for call, asked, code in [
        ("process.Process/SendSignal", {"process": {"pid": 1}, "signal": "SIGNAL_SIGUSR1"}, "invalid_argument"),
        ("process.Process/SendSignal", {"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"}, "not_found"),
        ("process.Process/SendSignal", {"process": {}, "signal": "SIGNAL_SIGKILL"}, "invalid_argument"),
        ("process.Process/SendInput", {"process": {"pid": 1}}, "invalid_argument"),
        ("filesystem.Filesystem/Stat", {"path": "x", "odd": 1}, "invalid_argument"),
        ("filesystem.Filesystem/Stat", {"path": "a\0b"}, "invalid_argument"),
        ("filesystem.Filesystem/GetWatcherEvents", {"watcherId": "none"}, "not_found"),
        ("filesystem.Filesystem/RemoveWatcher", {"watcherId": "plain-none"}, "not_found"),
    ]:
        answer = http.post(f"/{call}", json=asked)
        assert (answer.json()["code"], answer.status_code // 100) == (code, 4), (call, asked, answer.text)
    assert http.post("/process.Process/Nothing", json={}).status_code == 404


def test_forms_that_make_no_sense_are_refused(http):
    kind = {"content-type": "multipart/form-data; boundary=x"}
    for form in [b"", b"--x", b"--x\r\nno header", b'--x\r\nContent-Disposition: form-data; filename="a"\r\n\r\ncut']:
        assert http.post("/files", content=form, headers=kind).status_code == 400
    assert http.post("/files", content=b"x", headers={"content-type": "text/plain"}).status_code == 400
    assert http.post("/files", content=b"x", headers={"content-type": "application/octet-stream"}).status_code == 400
    assert http.get("/files").status_code == 400
