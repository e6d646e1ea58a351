"""What every test of a client shares: a server of its own, in a home of its own, that leaves nothing behind."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

CASEMATE = os.environ["CASEMATE_BIN"]
PATIENCE = 60


class Server:
    """`casemate serve` on a free port of this machine."""

    def __init__(self, home: Path, *flags: str):
        self.home = home
        self.log = home.parent / f"{home.name}.log"
        self.environment = {**os.environ, "CASEMATE_HOME": str(home)}
        with open(self.log, "wb") as log:
            words = [CASEMATE, "serve", "--listen", "127.0.0.1:0", *flags]
            self.process = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(r"listening on (https?://\S+)\n", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "it does not listen"
            time.sleep(0.005)
        self.url = found[1]

    def casemate(self, *words: str) -> str:
        """Another `casemate` in the same home. Must succeed."""
        done = subprocess.run([CASEMATE, *words], env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def token(self, tenant: str = "acme", *flags: str) -> str:
        return self.casemate("token", "create", "--tenant", tenant, *flags).splitlines()[-1]

    def stop(self):
        """Ends well, and what it has recorded verifies."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE)
        log = self.log.read_text()
        assert status == 0, log
        assert "panicked" not in log, log
        self.casemate("evidence", "verify", "--all")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


@pytest.fixture
def server(home: Path):
    """A server that answers without tokens. It must end well."""
    server = Server(home)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
