"""What goes over the wire, and what is made of what comes back, when things go wrong."""

import asyncio
import json

import pytest
from stub import EXECUTED, OPENED, events, problem, serving

import casemate
from casemate._events import Decoder


def test_a_lost_answer_is_asked_for_again_under_the_same_key():
    with serving(None, None, EXECUTED) as (url, asked), casemate.Client(url) as client:
        assert client.run("true").stdout == "hi\n"
    assert len({request.headers["idempotency-key"] for request in asked}) == 1 and len(asked) == 3
    assert len({request.body for request in asked}) == 1


def test_what_is_being_done_is_waited_for():
    waiting = problem(409, "in-progress", **{"retry-after": "0"})
    with serving(waiting, waiting, waiting, waiting, EXECUTED) as (url, _), casemate.Client(url) as client:
        assert client.run("true").ok


def test_what_is_not_known_to_be_harmless_is_not_repeated():
    with serving(None) as (url, asked), casemate.Client(url) as client, pytest.raises(casemate.ConnectionFailed):
        casemate.Sandbox(client=client)
    assert len(asked) == 1
    with serving(OPENED, None) as (url, asked), pytest.raises(casemate.ConnectionFailed):
        casemate.Sandbox(server=url).commands.run("true", background=True)
    assert asked[1].path == "/v1/sessions/s1/processes" and "idempotency-key" not in asked[1].headers


def test_what_did_not_begin_is_tried_again_and_not_for_ever():
    busy = problem(503, "busy", **{"retry-after": "0"})
    with serving(busy, busy, OPENED) as (url, _), casemate.Client(url) as client:
        assert casemate.Sandbox(client=client).id == "s1"
    with serving(busy, busy, busy) as (url, _), casemate.Client(url) as client, pytest.raises(casemate.Unavailable):
        casemate.Sandbox(client=client)
    later = problem(503, "draining", **{"retry-after": "3600"})
    with serving(later) as (url, _), casemate.Client(url) as client, pytest.raises(casemate.Unavailable) as told:
        client.run("true")
    assert told.value.retry_after == 3600


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "malformed-request", casemate.InvalidRequest),
        (401, "unauthenticated", casemate.Unauthenticated),
        (403, "forbidden", casemate.Forbidden),
        (404, "not-found", casemate.NotFound),
        (409, "already-exists", casemate.Conflict),
        (410, "session-ended", casemate.SandboxEnded),
        (413, "too-large", casemate.TooLarge),
        (422, "refused", casemate.Refused),
        (429, "quota-exceeded", casemate.QuotaExceeded),
        (500, "internal", casemate.ServerFailed),
        (507, "no-space", casemate.TooLarge),
        (418, "not-known-yet", casemate.InvalidRequest),
        (599, "not-known-yet", casemate.ServerFailed),
    ],
)
def test_problems_are_exceptions(status, code, kind):
    answer = problem(status, code, **{"x-request-id": "r1"})
    with serving(answer) as (url, _), casemate.Client(url, retries=0) as client, pytest.raises(kind) as told:
        client.sandboxes()
    error = told.value
    assert (error.code, error.status, error.request_id) == (code, status, "r1")
    assert (error.message, error.hint, str(error)) == ("told why", "do so", "told why\nhint: do so")


@pytest.mark.parametrize(
    "answer", [(200, {}, b"<html>"), {"other": 1}, (200, {"content-type": "application/json"}, b"{")]
)
def test_servers_of_another_kind_are_told(answer):
    with serving(answer) as (url, _), casemate.Client(url, retries=0) as client:
        with pytest.raises(casemate.ConnectionFailed, match="not how Casemate answers"):
            client.sandboxes()


def test_something_in_between_answers():
    with serving((502, {"content-type": "text/html"}, b"bad gateway")) as (url, _), casemate.Client(url) as client:
        with pytest.raises(casemate.ServerFailed) as told:
            client.sandboxes()
    assert (told.value.code, told.value.status) == ("unknown", 502)
    with serving((302, {"location": "http://127.0.0.1:9/"}, b"")) as (url, _), casemate.Client(url) as client:
        with pytest.raises(casemate.InvalidRequest):
            client.sandboxes()


def test_a_stream_that_breaks_off_is_not_an_end():
    cut = events(("started", {"id": "e1"}), ("stdout", {"data": "half"}))
    with serving(cut) as (url, _), casemate.Client(url) as client:
        with pytest.raises(casemate.ConnectionFailed, match="before the program ended"):
            client.run("true", on_stdout=lambda _: None)
    lost = events(("started", {"id": "e1"}), ("lost", {}))
    with serving(lost) as (url, _), casemate.Client(url) as client:
        with pytest.raises(casemate.ConnectionFailed, match="does not know"):
            client.run("true", on_stdout=lambda _: None)


def test_output_that_was_forgotten_is_told():
    started = {"id": "p1", "pid": 3, "command": ["yes"], "running": True}
    told = events(("missed", {}), ("stdout", {"data": "end"}), ("ended", EXECUTED))
    with serving(OPENED, started, told, told) as (url, _), casemate.Client(url) as client:
        process = casemate.Sandbox(client=client).commands.run("yes", background=True)
        assert [chunk.stream for chunk in process] == ["missed", "stdout"]
        assert process.wait().output_missed


def test_events_come_in_pieces_of_any_size():
    said = ': \n\nevent: stdout\r\ndata: {"data": "a\u2028\x85\\n"}\r\n\r\ndata: 1\ndata:2\n\nevent: x\ndata: "ä"\n\n'
    whole = [(event.name, event.data) for event in Decoder().feed(said.replace("1\ndata:2", "[1,\ndata:2]").encode())]
    assert whole == [("stdout", {"data": "a\u2028\x85\n"}), ("", [1, 2]), ("x", "ä")]
    decoder = Decoder()
    pieces = [bytes([byte]) for byte in said.replace("1\ndata:2", "[1,\ndata:2]").encode()]
    assert [(event.name, event.data) for piece in pieces for event in decoder.feed(piece)] == whole


def test_what_was_given_is_sent_and_nothing_else():
    with serving(EXECUTED, EXECUTED) as (url, asked), casemate.Client(url, "cmt_x") as client:
        client.run("ls", limits={"pids": 4}, timeout=1.5, tags=("a",), image=None)
        client.run(component=b"\x00asm", stdin=b"\xff", files_in={"/work/x": {"content": b"\x01", "mode": 0o600}})
    assert json.loads(asked[0].body) == {
        "command": ["sh", "-c", "ls"],
        "limits": {"pids": 4, "wall-time": "1500ms"},
        "tags": ["a"],
    }
    assert json.loads(asked[1].body) == {
        "component": "AGFzbQ==",
        "stdin_base64": "/w==",
        "files_in": [{"path": "/work/x", "content_base64": "AQ==", "mode": "600"}],
    }
    assert asked[0].headers["authorization"] == "Bearer cmt_x"


def test_lists_are_read_to_their_end():
    first, second = {"sessions": [OPENED], "next": "p7"}, {"sessions": [{**OPENED, "id": "s2"}], "next": None}
    with serving(first, second) as (url, asked), casemate.Client(url) as client:
        assert [info.id for info in client.sandboxes()] == ["s1", "s2"]
    assert [request.path for request in asked] == ["/v1/sessions", "/v1/sessions?cursor=p7"]


CODE = {
    "stdout": "out\n",
    "stderr": "",
    "results": [{"text/plain": "42"}, {"text/plain": "<Figure>", "image/png": "iVBORw=="}],
    "error": None,
    "execution_count": 2,
    "context": "c1",
}
FAILED = {"name": "ValueError", "value": "no", "traceback": "Traceback\nValueError: no"}


def test_code_that_remembers():
    with (
        serving(OPENED, CODE, {**CODE, "results": [], "error": FAILED}) as (url, asked),
        casemate.Client(url) as client,
    ):
        box = casemate.Sandbox(client=client)
        result = box.run_code("6 * 7", context="c1", timeout=5, env={"A": "b"})
        assert (result.text, result.stdout, result.execution_count, result.context) == ("42", "out\n", 2, "c1")
        assert result.results[1].png == b"\x89PNG" and result.check() is result
        with pytest.raises(casemate.CodeFailed, match="ValueError: no") as failed:
            box.run_code("1 / 0", check=True)
        assert failed.value.result.error.traceback.startswith("Traceback")
    assert asked[1].path == "/v1/sessions/s1/code"
    asked_for = {"code": "6 * 7", "context": "c1", "timeout": "5000ms", "env": {"A": "b"}, "stream": False}
    assert json.loads(asked[1].body) == asked_for


def test_code_that_is_heard_while_it_runs():
    told = events(
        ("started", {"context": "c2"}),
        ("stdout", {"data": "a"}),
        ("result", {"formats": {"text/plain": "1"}, "is_main": True}),
        ("stderr", {"data": "b"}),
        ("error", FAILED),
        ("ended", {"execution_count": 3}),
    )
    heard = []
    with serving(OPENED, told) as (url, asked), casemate.Client(url) as client:
        box = casemate.Sandbox(client=client)
        result = box.run_code("…", on_stdout=heard.append, on_result=lambda shown: heard.append(shown.text))
    assert heard == ["a", "1"] and (result.stdout, result.stderr, result.text) == ("a", "b", "1")
    assert result.error.name == "ValueError" and (result.execution_count, result.context) == (3, "c2")
    assert json.loads(asked[1].body)["stream"] is True

    gone = events(("started", {"context": "c3"}), ("error", FAILED))
    with serving(OPENED, gone, events(("started", {"context": "c3"}))) as (url, _), casemate.Client(url) as client:
        box = casemate.Sandbox(client=client)
        assert box.run_code("exit()", on_stdout=heard.append).error.value == "no"
        with pytest.raises(casemate.ConnectionFailed):
            box.run_code("1", on_stdout=heard.append)

    async def awaited(url):
        async with casemate.AsyncClient(url) as client:
            box = await casemate.AsyncSandbox(client=client)
            assert (await box.run_code("1")).text == "42"
            return await box.run_code("1", on_stderr=heard.append)

    with serving(OPENED, CODE, told) as (url, _):
        assert asyncio.run(awaited(url)).stderr == "b" == heard[-1]
