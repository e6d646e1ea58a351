"""Without any server named: this process starts one for itself, and it ends with the process."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

import casemate
from casemate import _local

PATIENCE = 60


@pytest.fixture
def environment(home, tmp_path, monkeypatch):
    """A home and a place for temporary files, which must be as empty afterwards as before."""
    # Short enough for a socket, wherever these tests have their own files.
    place = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))
    monkeypatch.setenv("CASEMATE_HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PYTHONPATH", str(Path(casemate.__file__).parents[1]))
    monkeypatch.setenv("PYTHONWARNINGS", "error::ResourceWarning")
    try:
        yield place
    finally:
        _local.stop()
        eventually(lambda: not processes(str(home)), "something is left")
        shutil.rmtree(place)


def processes(words: str) -> list[int]:
    """Those that were started with these words, in their arguments or their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            told = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
        except OSError:
            continue
        if words.encode() in told and int(place.name) not in (os.getpid(), os.getppid()):
            found.append(int(place.name))
    return found


def eventually(holds, otherwise: str):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def python(script: str, **more) -> subprocess.Popen:
    words = [sys.executable, "-B", "-c", textwrap.dedent(script)]
    # A job in the background is started with interrupts ignored, and this may be one.
    more.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


def test_no_server_has_to_be_there(environment):
    assert casemate.run(code="print(6 * 7)").stdout == "42\n"
    (place,) = environment.iterdir()
    assert place.stat().st_mode & 0o777 == 0o700 and [file.name for file in place.iterdir()] == ["socket"]
    with casemate.Sandbox() as one, casemate.Sandbox() as two:
        assert {info.id for info in casemate.Sandbox.list()} == {one.id, two.id}, "they share it"
        one.files.write("/work/note", "hello")
        assert one.files.read("/work/note") == "hello" and not two.files.exists("/work/note")


def test_one_that_died_is_replaced(environment):
    assert casemate.run("true").ok
    (place,) = environment.iterdir()
    os.kill(_local._daemon._process.pid, signal.SIGKILL)
    eventually(lambda: not _local._daemon.runs(), "it lives")
    assert casemate.run("true").ok
    assert not place.exists()


def test_it_ends_with_the_process(environment):
    script = """
        import casemate
        box = casemate.Sandbox()
        box.commands.run(["sleep", "4321.125"], background=True)
        print(casemate.run("echo done").stdout, end="")
    """
    began = python(script)
    out, err = began.communicate(timeout=PATIENCE)
    assert (began.returncode, out, err) == (0, "done\n", "")
    assert processes("4321.125") == [] and list(environment.iterdir()) == []


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_when_the_process_is_killed(environment, home, way):
    script = """
        import casemate
        with casemate.Sandbox() as box:
            box.commands.run(["sleep", "4321.25"], background=True)
            print("ready", flush=True)
            box.commands.run(["sleep", "4321.25"])
    """
    killed = python(script)
    with killed:
        assert killed.stdout.readline() == "ready\n"
        eventually(lambda: len(processes("4321.25")) >= 3, "the programs do not run")
        killed.send_signal(way)
    eventually(lambda: not processes("4321.25"), "a program of the sandbox goes on")
    eventually(lambda: not processes(str(home)), "the server goes on")
    verified = subprocess.run(
        [os.environ["CASEMATE_BIN"], "evidence", "verify", "--all"], capture_output=True, text=True
    )
    assert verified.returncode == 0 and "0 still open" in verified.stdout, verified.stdout + verified.stderr


def test_an_interrupt_leaves_time_to_clean_up(environment, home):
    script = """
        import casemate
        try:
            with casemate.Sandbox() as box:
                print("ready", flush=True)
                box.commands.run(["sleep", "4321.375"])
        except KeyboardInterrupt:
            print("interrupted", casemate.Sandbox.list())
    """
    # As a terminal does it: everybody in the foreground hears of it.
    began = python(script, start_new_session=True)
    with began:
        assert began.stdout.readline() == "ready\n"
        eventually(lambda: processes("4321.375"), "the program does not run")
        time.sleep(0.2)
        os.killpg(began.pid, signal.SIGINT)
        assert (began.stdout.read(), began.stderr.read()) == ("interrupted []\n", "")


def test_a_forked_child_has_a_server_of_its_own(environment, home):
    script = """
        import casemate, os, sys
        box = casemate.Sandbox()
        if (child := os.fork()) == 0:
            sys.exit(len(casemate.Sandbox.list()))
        assert os.waitpid(child, 0)[1] == 0, "it saw the parent's"
        print(box.commands.run("echo still here").stdout, end="")
        box.close()
    """
    began = python(script)
    out, err = began.communicate(timeout=PATIENCE)
    assert (began.returncode, out, err) == (0, "still here\n", "")
    assert list(environment.iterdir()) == []


def test_what_somebody_left_behind_is_swept(environment):
    left, young, other = (environment / name for name in ("casemate-python-old", "casemate-python-new", "other"))
    for place in (left, young, other):
        place.mkdir()
    os.utime(left, (1, 1))
    os.utime(other, (1, 1))
    assert casemate.run("true").ok
    assert not left.exists() and young.exists() and other.exists()


def test_why_it_does_not_start_is_said(environment, home, monkeypatch):
    (home / "policy.toml").write_text("nonsense = 1\n")
    with pytest.raises(casemate.DaemonFailed, match="nonsense"):
        casemate.run("true")
    monkeypatch.setenv("CASEMATE_BIN", str(environment / "missing"))
    with pytest.raises(casemate.DaemonFailed, match="missing"):
        casemate.Sandbox()
    monkeypatch.delenv("CASEMATE_BIN")
    monkeypatch.setenv("PATH", str(environment))
    with pytest.raises(casemate.DaemonFailed) as failed:
        casemate.Sandbox()
    assert "CASEMATE_SERVER" in failed.value.hint
    assert list(environment.iterdir()) == []


def test_temporary_files_may_be_anywhere(environment, tmp_path, monkeypatch):
    place = tmp_path / ("long" * 20) / ("longer" * 20)
    place.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    with casemate.Sandbox() as box:
        assert box.commands.run("echo here").stdout == "here\n"
