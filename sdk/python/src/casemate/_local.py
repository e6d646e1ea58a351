"""A server of this process's own, for those who name none. It ends with the process, whatever ends the process."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from .errors import DaemonFailed

_PATIENCE = 30.0
_PREFIX = "casemate-python-"
# Of 107 bytes for a socket's path, with room for what comes after it.
_LONGEST_BASE = 70
# Directories without a server that are younger than this may belong to one that is being started.
_YOUNG = 60.0


class _Daemon:
    """`casemate serve` on a socket that only this user can open."""

    def __init__(self) -> None:
        program = os.environ.get("CASEMATE_BIN") or shutil.which("casemate")
        if program is None:
            raise DaemonFailed(
                "there is no `casemate` on PATH to start a server with",
                "install it, name it with CASEMATE_BIN, or name a server with CASEMATE_SERVER",
            )
        self._place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base()))
        self.socket = str(self._place / "socket")
        self._log = tempfile.TemporaryFile()
        words = [program, "serve", "--socket", self.socket, "--until-stdin-closes", "--drain", "1s"]
        try:
            # The kernel closes the pipe when this process is gone. A session of its own keeps Ctrl-C from it: what is cleaned up
            # on the way out still needs it.
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._log, start_new_session=True
            )
        except OSError as error:
            self._clear()
            raise DaemonFailed(f"cannot start {program}: {error.strerror}", "check CASEMATE_BIN and PATH") from error
        self._await()

    def runs(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._close_pipe()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._clear()

    def leave_to_parent(self) -> None:
        """In a child that was forked: the server must not live for as long as that does."""
        self._close_pipe()
        self._log.close()
        # Not ours to wait for.
        self._process.returncode = 0

    def _await(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            if not self.runs() or time.monotonic() > deadline:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").strip()
                self.stop()
                raise DaemonFailed(f"the server does not start: {said}" if said else "the server does not start")
            time.sleep(0.002)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0

    def _close_pipe(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _clear(self) -> None:
        self._log.close()
        shutil.rmtree(self._place, ignore_errors=True)


_lock = threading.Lock()
_daemon: _Daemon | None = None


def ensure() -> str:
    """Where the server of this process listens. Started when it is first wanted."""
    global _daemon
    with _lock:
        if _daemon is not None and not _daemon.runs():
            _daemon.stop()
            _daemon = None
        if _daemon is None:
            _sweep()
            _daemon = _Daemon()
        return _daemon.socket


def stop() -> None:
    """Ends it, and everything that runs in it. The next that is wanted is another one."""
    global _daemon
    with _lock:
        if _daemon is not None:
            _daemon.stop()
            _daemon = None


def _base() -> Path:
    """The temporary directory, unless its path is so long that the kernel would not take a socket's below it."""
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) < _LONGEST_BASE else Path("/tmp")


def _sweep() -> None:
    """Removes what those left behind who were killed: an empty directory each."""
    for place in _base().glob(f"{_PREFIX}*"):
        try:
            if time.time() - place.lstat().st_mtime > _YOUNG:
                place.rmdir()
        except OSError:
            # In use, somebody else's, or gone.
            pass


def _forget() -> None:
    global _daemon, _lock
    _lock = threading.Lock()
    if _daemon is not None:
        _daemon.leave_to_parent()
        _daemon = None


atexit.register(stop)
# Where there is no fork, there is no server to be started, either: but others can be used.
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
