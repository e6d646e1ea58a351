"""The servers are those of the other clients' tests."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

import casemate

_SHARED = Path(__file__).parents[3] / "crates/testkit/clients/conftest.py"
_spec = importlib.util.spec_from_file_location("clients_conftest", _SHARED)
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)

Server, home, flags, server = _shared.Server, _shared.home, _shared.flags, _shared.server


@pytest.fixture(autouse=True)
def no_server_of_somebody_elses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CASEMATE_SERVER", raising=False)
    monkeypatch.delenv("CASEMATE_TOKEN", raising=False)


@pytest.fixture
def client(server) -> Iterator[casemate.Client]:
    with casemate.Client(server.url) as client:
        yield client


@pytest.fixture
def box(client) -> Iterator[casemate.Sandbox]:
    with casemate.Sandbox(client=client) as box:
        yield box
