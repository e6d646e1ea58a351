"""Commands and terminals with the unmodified packages of E2B."""

import threading
import time

import pytest
from e2b import CommandExitException, InvalidArgumentException, NotFoundException, PtySize, Sandbox, SandboxException, TimeoutException


@pytest.fixture
def sandbox(e2b):
    return Sandbox.create(timeout=120)


def test_a_command_runs_and_its_output_comes_as_it_is_written(sandbox):
    heard = []
    command = "echo one; sleep 0.3; echo two >&2; sleep 0.3; echo three"
    note = lambda text: heard.append((time.monotonic(), text))
    result = sandbox.commands.run(command, on_stdout=note, on_stderr=note)
    assert (result.stdout, result.stderr, result.exit_code) == ("one\nthree\n", "two\n", 0)
    assert [text for _, text in heard] == ["one\n", "two\n", "three\n"]
    assert heard[2][0] - heard[0][0] > 0.4, "it did not wait for the end"


def test_a_command_that_fails_raises_with_all_that_it_said(sandbox):
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("echo out; echo err >&2; exit 7")
    assert (raised.value.exit_code, raised.value.stdout, raised.value.stderr) == (7, "out\n", "err\n")


def test_directories_variables_and_the_user_are_as_asked(sandbox):
    sandbox.files.make_dir("below")
    run = sandbox.commands.run
    assert run("pwd").stdout == "/work\n"
    assert run("pwd", cwd="below").stdout == "/work/below\n"
    assert run("pwd", cwd="/home/user/below").stdout == "/work/below\n"
    assert run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert run("echo $A-$B", envs={"A": "1", "B": "two words"}).stdout == "1-two words\n"
    assert run("echo yes", user="user").stdout == "yes\n"
    with pytest.raises(InvalidArgumentException, match="root"):
        run("id", user="root")
    with pytest.raises(InvalidArgumentException, match="working directory"):
        run("pwd", cwd="/no/such/place")


def test_much_output_comes_whole(sandbox):
    assert len(sandbox.commands.run("head -c 5000000 /dev/zero | tr '\\0' x").stdout) == 5_000_000


def test_a_command_is_ended_when_its_time_is_over(sandbox):
    began = time.monotonic()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 30", timeout=0.5)
    assert time.monotonic() - began < 10
    deadline = time.monotonic() + 10
    while sandbox.commands.list():
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.05)


def test_a_command_in_the_background_is_listed_left_found_again_and_killed(sandbox):
    handle = sandbox.commands.run("echo begun; sleep 0.5; echo more; exec sleep 100", background=True, timeout=0)
    listed = sandbox.commands.list()
    assert [each.pid for each in listed] == [handle.pid]
    assert (listed[0].cmd, listed[0].args[:2]) == ("/bin/bash", ["-l", "-c"])
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    for stdout, _, _ in again:
        if stdout and "more" in stdout:
            break
    assert sandbox.commands.kill(handle.pid)
    with pytest.raises(SandboxException) as raised:
        sandbox.commands.connect(handle.pid).wait()
    assert isinstance(raised.value, (NotFoundException, CommandExitException))
    assert not sandbox.commands.kill(999_999)


def test_a_killed_command_says_so(sandbox):
    handle = sandbox.commands.run("sleep 100", background=True)
    assert handle.kill()
    with pytest.raises(CommandExitException) as raised:
        handle.wait()
    assert raised.value.exit_code == -1 and "signal 9" in raised.value.error


def test_a_command_is_written_to(sandbox):
    handle = sandbox.commands.run("while read line; do echo got $line; done; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "one\n")
    handle.send_stdin("two\n")
    sandbox.commands.stream_input(handle.pid, iter(["thr", b"ee\n"]))
    handle.close_stdin()
    assert handle.wait().stdout == "got one\ngot two\ngot three\nend\n"
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(handle.pid, "too late")
    deaf = sandbox.commands.run("sleep 20", background=True)
    with pytest.raises(InvalidArgumentException, match="standard input"):
        deaf.send_stdin("hello")


def test_a_command_ends_with_its_sandbox(sandbox):
    handle = sandbox.commands.run("sleep 100", background=True)
    threading.Timer(0.3, sandbox.kill).start()
    with pytest.raises(TimeoutException, match="killed or reached"):
        handle.wait()
    with pytest.raises(SandboxException, match="not found"):
        sandbox.commands.run("true")


def collect(handle, until):
    seen = b""
    for _, _, pty in handle:
        seen += pty or b""
        if until(seen):
            return seen
    raise AssertionError(seen)


def test_a_terminal_is_typed_into_resized_and_killed(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"PS1": "> "}, cwd="/tmp")
    sandbox.pty.send_stdin(terminal.pid, b"tty; stty size; pwd; echo en''d\n")
    seen = collect(terminal, lambda seen: b"end" in seen)
    assert b"/dev/pts/" in seen and b"24 80" in seen and b"/tmp" in seen
    sandbox.pty.resize(terminal.pid, PtySize(rows=50, cols=132))
    sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    sandbox.pty.stream_input(terminal.pid, [b"stty size\n", b"echo en''d\n"])
    assert b"50 132" in collect(again, lambda seen: b"end" in seen)
    assert sandbox.pty.kill(terminal.pid)
    with pytest.raises(CommandExitException):
        again.wait()


def test_a_terminal_that_exits_ends(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.send_stdin(terminal.pid, b"exit 3\n")
    with pytest.raises(CommandExitException) as raised:
        terminal.wait()
    assert raised.value.exit_code == 3


def test_input_of_the_wrong_kind_is_refused(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    with pytest.raises(InvalidArgumentException, match="no input of this kind"):
        sandbox.pty.send_stdin(handle.pid, b"x")
    with pytest.raises(InvalidArgumentException, match="no terminal"):
        sandbox.pty.resize(handle.pid, PtySize(rows=1, cols=1))
