"""Sandboxes on a real server, for those who wait."""

import io
import signal
import time

import pytest

import casemate


def test_a_program_is_told_by_what_it_wrote_and_how_it_ended(box):
    result = box.commands.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert (result.exit_code, result.status.kind, result.cause, result.ok) == (3, "exited", None, False)
    assert result.stack == ("container",) and result.usage.wall_ms is not None and result.receipt is not None


def test_words_are_not_taken_apart(box):
    assert box.commands.run(["printf", "%s|", "a b", "$HOME", ";"]).stdout == "a b|$HOME|;|"


def test_the_first_program_may_be_over_at_once(client):
    for _ in range(40):
        with casemate.Sandbox(client=client) as box:
            assert box.commands.run(["printf", "x"]).stdout == "x"


def test_where_with_what_and_for_how_long(box):
    box.files.mkdir("/work/deep/er")
    result = box.commands.run("pwd; echo $WHO", cwd="/work/deep/er", env={"WHO": "you"})
    assert result.stdout == "/work/deep/er\nyou\n"
    began = time.monotonic()
    late = box.commands.run("sleep 60", timeout=0.3)
    assert (late.status.kind, late.cause, late.exit_code) == ("killed", "wall-time", None)
    assert time.monotonic() - began < 30


def test_what_fails_can_be_an_error(box):
    assert box.commands.run("true", check=True).ok
    with pytest.raises(casemate.CommandFailed, match="exited with 7: oh no") as failed:
        box.commands.run("echo oh no >&2; exit 7", check=True)
    assert failed.value.result.exit_code == 7


def test_output_is_told_as_it_comes_and_in_whole_characters(box):
    out, err = [], []
    script = r"printf 'a\303'; sleep 0.3; printf '\244'; echo b >&2; sleep 0.3; printf 'c\303'"
    result = box.commands.run(script, on_stdout=out.append, on_stderr=err.append)
    assert (out, err) == (["a", "ä", "c", "\ufffd"], ["b\n"])
    assert result.stdout_bytes == "aäc".encode() + b"\xc3" and result.stdout == "aäc\ufffd"


def test_whoever_stops_listening_ends_the_program(box):
    def enough(_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        box.commands.run("echo go; sleep 600", on_stdout=enough)
    deadline = time.monotonic() + 30
    while any(process.running for process in box.commands.list()):
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.02)


def test_more_input_and_output_than_any_pipe_holds(box):
    much = bytes(range(256)) * 8192
    assert box.commands.run("cksum", stdin=much).stdout.split()[1] == str(len(much))
    assert box.commands.run("cat", stdin="x" * 400_000).stdout == "x" * 400_000


def test_input_that_nobody_reads_does_no_harm(box):
    assert box.commands.run("true", stdin=b"x" * 1_000_000, check=True).ok


def test_a_program_in_the_background(box):
    cat = box.commands.run("while read line; do echo got $line; done; exit 4", background=True, stdin=True, tag="cat")
    assert cat.info().running and cat.info().tag == "cat"
    written = iter(cat)
    cat.send_stdin("one\n")
    assert next(written).text == "got one\n"
    cat.send_stdin(b"two\n")
    cat.close_stdin()
    assert [chunk.text for chunk in written] == ["got two\n"]
    heard = []
    result = cat.wait(on_stdout=heard.append)
    assert "".join(heard) == result.stdout == "got one\ngot two\n" and result.exit_code == 4
    again = box.commands.connect(cat.pid)
    assert again.wait().exit_code == 4 and not again.info().running
    assert [process.pid for process in box.commands.list()] == [cat.pid]


def test_signals_and_kills(box):
    trapping = "trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.05; done"
    program = box.commands.run(trapping, background=True)
    assert next(iter(program)).text == "ready\n"
    program.signal(signal.SIGUSR1)
    assert program.wait().exit_code == 9
    sleeper = box.commands.run(["sleep", "600"], background=True)
    sleeper.kill()
    assert (sleeper.wait().status.kind, sleeper.wait().cause) == ("killed", "cancelled")
    other = box.commands.run(["sleep", "600"], background=True)
    box.commands.kill(other.pid)
    with pytest.raises(casemate.CommandFailed, match="killed: cancelled"):
        other.wait(check=True)


def test_options_that_mean_nothing_are_errors(box):
    with pytest.raises(TypeError, match="no option 'cmd'"):
        box.commands.run("true", cmd="x")
    with pytest.raises(TypeError, match="belong to `wait`"):
        box.commands.run("true", background=True, check=True)
    with pytest.raises(TypeError, match="in the background"):
        box.commands.run("true", stdin=True)
    with pytest.raises(casemate.InvalidRequest) as invalid:
        box.commands.run("true", limits={"colour": 1})
    assert invalid.value.code == "invalid-request" and invalid.value.hint and invalid.value.request_id


def test_files(box):
    assert box.files.write("/work/sub/a.txt", "grüße") == 7
    box.files.write("/work/sub/run", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert box.files.read("/work/sub/a.txt") == "grüße"
    assert box.commands.run("./run", cwd="/work/sub").stdout == "ran\n"
    assert {(entry.name, entry.kind) for entry in box.files.list()} == {("sub", "directory")}
    below = {entry.path for entry in box.files.list(depth=2)}
    assert below == {"/work/sub", "/work/sub/a.txt", "/work/sub/run"}
    found = box.files.stat("/work/sub/run")
    assert (found.kind, found.mode, found.size) == ("file", 0o755, 19)
    assert abs(found.modified.timestamp() - time.time()) < 60
    assert box.files.mkdir("/work/other") and not box.files.mkdir("/work/other")
    box.files.rename("/work/sub/a.txt", "/work/other/b.txt")
    assert box.files.exists("/work/other/b.txt") and not box.files.exists("/work/sub/a.txt")
    assert not box.files.exists("/work/other/b.txt/below")
    box.files.remove("/work/sub")
    assert not box.files.exists("/work/sub")


def test_large_files_travel_in_pieces(box):
    piece = bytes(range(256)) * 1024
    assert box.files.write("/work/large", (piece for _ in range(16))) == 16 * len(piece)
    assert box.files.write("/work/copy", io.BytesIO(piece * 16)) == 16 * len(piece)
    assert b"".join(box.files.stream("/work/large")) == piece * 16 == box.files.read_bytes("/work/copy")
    # Whoever has seen enough leaves.
    assert piece.startswith(next(box.files.stream("/work/large"))[:256])


def test_problems_with_files_say_what_to_do(box):
    with pytest.raises(casemate.NotFound) as missing:
        box.files.read("/work/missing")
    assert missing.value.status == 404 and "absolute" in missing.value.hint
    with pytest.raises(casemate.InvalidRequest):
        box.files.read("/etc/passwd")
    with pytest.raises(casemate.InvalidRequest):
        box.files.write("/work/../etc/passwd", "x")
    with pytest.raises(casemate.Conflict):
        box.files.read("/work")
    with pytest.raises(casemate.TooLarge):
        box.files.write("/work/much", (b"x" * 1_000_000 for _ in range(200)))


def test_changes_are_told(box):
    with box.files.watch("/work", recursive=True) as changes:
        box.files.mkdir("/work/new")
        first = next(changes)
        assert (first.path, first.change) == ("new", "created")
        box.files.remove("/work/new")
        assert any((change.path, change.change) == ("new", "removed") for change in changes)


def test_a_sandbox_lives_as_long_as_it_is_told(client):
    options = {"timeout": "2m", "idle_timeout": 60.0, "metadata": {"for": "test"}, "limits": {"pids": 20}}
    with casemate.Sandbox(client=client, env={"WHO": "all"}, **options) as box:
        info = box.info()
        assert (info.id, info.state, info.metadata) == (box.id, "running", {"for": "test"})
        assert 100 < (info.expires - info.created).total_seconds() <= 121
        assert [other.id for other in casemate.Sandbox.list(client=client)] == [box.id]
        assert box.commands.run("echo $WHO").stdout == "all\n"
        extended = box.extend(3600)
        assert (extended.expires - extended.created).total_seconds() > 3500
    assert client.sandboxes() == []
    ended = casemate.Sandbox.connect(box.id, client=client).info()
    assert (ended.state, ended.outcome.cause) == ("killed", "cancelled")
    with pytest.raises(casemate.NotFound):
        box.files.exists("/work/x")


def test_connecting_to_one_does_not_own_it(server):
    box = casemate.Sandbox(server=server.url)
    box.files.write("/work/note", "hello")
    with casemate.Sandbox.connect(box.id, server=server.url) as again:
        assert again.files.read("/work/note") == "hello"
    assert [info.id for info in casemate.Sandbox.list(server=server.url)] == [box.id]
    assert box.kill().cause == "cancelled"
    with pytest.raises(casemate.NotFound):
        box.kill()
    box.close()
    with pytest.raises(casemate.ConnectionFailed, match="closed"):
        box.info()


def test_time_stands_still_while_paused(box):
    box.commands.run("while :; do echo x >> /work/ticks; sleep 0.01; done", background=True)
    while not box.files.exists("/work/ticks"):
        time.sleep(0.01)
    assert box.pause().state == "paused"
    before = box.files.stat("/work/ticks").size
    time.sleep(0.3)
    assert box.files.stat("/work/ticks").size == before
    assert box.resume().state == "running"
    deadline = time.monotonic() + 30
    while box.files.stat("/work/ticks").size == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
