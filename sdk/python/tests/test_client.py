"""One-shot executions and what there is on a server, for those who wait."""

import threading
import time

import pytest

import casemate


def test_code_and_commands_in_cells_of_their_own(client):
    result = client.run(code="import sys; print(6 * 7, sys.argv[1:], input())", args=["a", "b"], stdin="in\n")
    assert result.stdout == "42 ['a', 'b'] in\n" and result.ok
    assert client.run("echo $0 $WHO; pwd", env={"WHO": "you"}, cwd="/tmp").stdout == "sh you\n/tmp\n"
    assert client.run(code="echo $((1 + 1))", language="shell").stdout == "2\n"
    assert client.run(["cat"], stdin=b"\xff\x00").stdout_bytes == b"\xff\x00"
    with pytest.raises(casemate.CommandFailed):
        client.run("exit 1", check=True)


def test_files_go_in_and_come_out(client):
    result = client.run(
        "cat in/text in/bytes > out/both; ls -l in/tool | cut -c1-10",
        files_in={
            "/work/in/text": "text\n",
            "/work/in/bytes": b"\xff\n",
            "/work/in/tool": {"content": "#!/bin/sh\n", "mode": 0o700},
            "/work/out/empty": "",
        },
        files_out=["/work/out"],
        check=True,
    )
    assert result.stdout == "-rwx------\n"
    assert {file.path: file.content for file in result.files if file.kind == "file"} == {
        "/work/out/both": b"text\n\xff\n",
        "/work/out/empty": b"",
    }


def test_limits_and_what_they_did(client):
    late = client.run("sleep 60", timeout="300ms")
    assert (late.status.kind, late.cause, late.status.limit) == ("killed", "wall-time", 300)
    full = client.run("head -c 5M /dev/zero > big", limits={"disk": "1M", "memory": "64M"})
    assert [(hit.kind, hit.limit) for hit in full.limits_hit] == [("disk", 1 << 20)]
    cut = client.run(code="print('x' * 100)", limits={"output": 10})
    assert cut.stdout_truncated and cut.stdout == "x" * 10


def test_what_is_refused_has_a_reason_a_hint_and_a_receipt(client):
    refused = client.run("true", on="microvm")
    assert refused.status.kind == "refused" and refused.status.reason and refused.status.hint and refused.receipt
    with pytest.raises(casemate.CommandFailed, match="hint: "):
        refused.check()
    with pytest.raises(casemate.Refused):
        client.explain("true", on="microvm")
    with pytest.raises(casemate.InvalidRequest) as invalid:
        client.run("true", code="print(1)")
    assert "exactly one" in invalid.value.hint
    with pytest.raises(TypeError, match="no option 'lang'"):
        client.run(code="1", lang="python")


def test_output_is_told_as_it_comes(client):
    heard = []
    result = client.run("echo a; sleep 0.5; echo b >&2", on_stdout=heard.append, on_stderr=heard.append)
    assert heard == ["a\n", "b\n"] and (result.stdout, result.stderr) == ("a\n", "b\n")


def test_whoever_stops_listening_ends_the_execution(client):
    def enough(_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        client.run("echo go; sleep 600", on_stdout=enough, timeout="10m")
    deadline = time.monotonic() + 30
    while (last := next(client.executions())).outcome is None:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.02)
    assert last.outcome.cause == "cancelled"


def test_a_key_is_one_execution(client):
    first = client.run(code="import os; print(os.urandom(8))", idempotency_key="once")
    assert client.run(code="import os; print(os.urandom(8))", idempotency_key="once") == first
    with pytest.raises(casemate.InvalidRequest) as other:
        client.run(code="print(1)", idempotency_key="once")
    assert other.value.code == "idempotency-key-reused"
    with pytest.raises(casemate.InvalidRequest):
        client.run(code="print(1)", idempotency_key="streamed", on_stdout=print)


def test_an_answer_that_takes_longer_than_a_request_may_is_asked_for_again(server):
    with casemate.Client(server.url, request_timeout=0.4) as client:
        result = client.run(code="import time; time.sleep(2); print('done')")
        assert result.stdout == "done\n"
        assert len(list(client.executions())) == 1, "it ran once"


def test_explaining_runs_nothing(client):
    told = client.explain(code="print(1)", limits={"memory": "64M"})
    assert told.stack == ("container",) and told.isolation_class == "shared-kernel"
    memory = next(limit for limit in told.limits if limit.kind == "memory")
    assert (memory.value, memory.origin, memory.enforced) == (64 << 20, "request", True)
    assert any(other.stack == ("process",) and other.reason for other in told.passed_over)
    assert list(client.executions()) == []


def test_lists_come_whole(client):
    ran = [client.run("true").id for _ in range(3)]
    assert [execution.id for execution in client.executions()] == ran[::-1]
    known = client.execution(ran[0])
    assert known.state == "exited" and known.outcome.exit_code == 0 and known.outcome.output_missed
    assert client.images() == []


def test_cancelling(client):
    ended = []
    running = threading.Thread(target=lambda: ended.append(client.run("sleep 600", timeout="10m")))
    running.start()
    deadline = time.monotonic() + 30
    while not (known := list(client.executions())) or known[0].state != "running":
        assert time.monotonic() < deadline, known
        time.sleep(0.02)
    client.cancel(known[0].id)
    running.join(30)
    assert ended[0].cause == "cancelled"


def test_one_client_for_many_threads(client):
    found = {}

    def ask(number: int) -> None:
        found[number] = client.run(["echo", str(number)]).stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number}\n" for number in range(12)}


def test_tokens(server, monkeypatch):
    token = server.token("acme")
    with casemate.Client(server.url) as nobody, pytest.raises(casemate.Unauthenticated) as refused:
        nobody.run("true")
    assert refused.value.code == "unauthenticated" and "token" in refused.value.hint
    with casemate.Client(server.url, "cmt_wrong") as stranger, pytest.raises(casemate.Unauthenticated):
        stranger.sandboxes()
    monkeypatch.setenv("CASEMATE_SERVER", server.url)
    monkeypatch.setenv("CASEMATE_TOKEN", token)
    assert casemate.run("echo hi").stdout == "hi\n"
    assert casemate.explain("true").stack == ("container",)
    with casemate.Sandbox() as box:
        with casemate.Client(token=server.token("other")) as other:
            assert other.sandboxes() == []
            with pytest.raises(casemate.NotFound):
                casemate.Sandbox.connect(box.id, client=other)
    weak = server.token("acme", "--scope", "receipts")
    with casemate.Client(token=weak) as client, pytest.raises(casemate.Forbidden):
        client.run("true")


def test_a_server_that_is_not_there():
    with casemate.Client("http://127.0.0.1:9", retries=0) as client, pytest.raises(casemate.ConnectionFailed) as failed:
        client.run("true")
    assert "is it running" in failed.value.hint


def test_ids_cannot_become_other_addresses(client):
    for id in ("", "..", "a/b", "a?b", "a%2fb"):
        with pytest.raises(ValueError, match="is not an id"):
            client.execution(id)
