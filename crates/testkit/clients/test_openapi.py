"""The API as its own description has it: schemathesis asks for everything that is described, well and badly, and holds the answers
against it."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
METHODS = ("get", "put", "post", "delete", "patch")
SCOPES = [word for scope in ("run", "receipts", "images", "metrics") for word in ("--scope", scope)]
# Not every text is a limit, a path or a name, and a description cannot say which are. A session that is over can still be asked about.
OTHERS = "positive_data_acceptance,use_after_free"


@pytest.fixture
def client(server):
    """Somebody who may do everything."""
    headers = {"Authorization": f"Bearer {server.token('acme', *SCOPES)}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture
def document(client):
    return client.get("/openapi.json").raise_for_status().json()


@pytest.mark.parametrize("flags", [("--cells", "256", "--cells-per-tenant", "256")])
def test_every_answer_is_as_described(server, client, tmp_path):
    session = client.post("/v1/sessions", json={"ttl": "10m"}).raise_for_status().json()["id"]
    program = {"command": ["sleep", "0.1"], "background": True}
    pid = client.post(f"/v1/sessions/{session}/processes", json=program).raise_for_status().json()["pid"]
    words = [SCHEMATHESIS, "run", f"{server.url}/openapi.json", "--header", f"Authorization: {client.headers['Authorization']}"]
    words += ["--seed", "7", "--generation-deterministic", "--no-color", "--max-examples", "12", "--request-timeout", "30"]
    # It goes on for as long as the session lives, which is tested elsewhere.
    words += ["--exclude-checks", OTHERS, "--exclude-operation-id", "watchFiles"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(HERE), "SESSION": session, "PID": str(pid)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    # It was about something.
    assert client.get(f"/v1/sessions/{session}/files/list", params={"path": "/work"}).raise_for_status().json()["entries"]


def test_nothing_is_there_that_is_not_described(client, document):
    for path, item in document["paths"].items():
        taken = client.request("TRACE", path)
        assert taken.status_code == 405 and taken.json()["code"] == "method-not-allowed", path
        described = {method.upper() for method in METHODS if method in item}
        if "GET" in described:
            described.add("HEAD")
        assert set(taken.headers["allow"].split(",")) == described, path


def test_examples_work_when_they_are_pasted(client, document):
    schemas = document["components"]["schemas"]
    examples = lambda name: schemas[name]["examples"]
    for example in examples("NewExecution"):
        told = client.post("/v1/executions", json=example).raise_for_status().json()
        assert told["status"] == {"kind": "exited", "code": 0}, told
        client.post("/v1/explain", json=example).raise_for_status()
    for example in examples("NewSession"):
        session = client.post("/v1/sessions", json=example).raise_for_status().json()
    place = f"/v1/sessions/{session['id']}"
    for example in examples("Extension"):
        client.patch(place, json=example).raise_for_status()
    for example in examples("NewProcess"):
        client.post(f"{place}/processes", json=example).raise_for_status()
    pid = client.post(f"{place}/processes", json={"command": ["sleep", "60"], "background": True}).json()["pid"]
    for example in examples("Signal"):
        client.post(f"{place}/processes/{pid}/signal", json=example).raise_for_status()
    of = lambda name: {key: schema["example"] for key, schema in schemas[name]["properties"].items()}
    client.put(f"{place}/files", params={"path": of("Renaming")["from"]}, content=b"text").raise_for_status()
    client.post(f"{place}/files/rename", json=of("Renaming")).raise_for_status()
    client.post(f"{place}/files/mkdir", json=of("NewDirectory")).raise_for_status()
    client.delete(place).raise_for_status()


def parts(client, place, name, limit):
    """Everything in a list, part by part."""
    found, cursor = [], None
    while True:
        page = client.get(place, params={"limit": limit, **({"cursor": cursor} if cursor else {})}).raise_for_status().json()
        assert len(page[name]) <= limit
        found += page[name]
        if not (cursor := page["next"]):
            return found


def test_lists_come_in_parts(client):
    executions = [client.post("/v1/executions", json={"command": ["true"]}).json()["id"] for _ in range(5)]
    sessions = [client.post("/v1/sessions", json={}).json()["id"] for _ in range(3)]
    place = f"/v1/sessions/{sessions[0]}"
    start = lambda: client.post(f"{place}/processes", json={"command": ["sleep", "60"], "background": True}).json()["pid"]
    pids = [start() for _ in range(5)]
    assert [one["id"] for one in parts(client, "/v1/executions", "executions", 2)] == executions[::-1]
    assert sorted(one["id"] for one in parts(client, "/v1/sessions", "sessions", 2)) == sorted(sessions)
    assert [one["pid"] for one in parts(client, f"{place}/processes", "processes", 2)] == pids
    for session in sessions:
        client.delete(f"/v1/sessions/{session}").raise_for_status()
    refused = client.get("/v1/sessions", params={"cursor": "nonsense"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-request")


def archive(*names):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    return made.getvalue()


def test_images_come_and_go(server, client):
    content = archive("etc/one")
    first = client.post("/v1/images", params={"name": "team/one:1"}, content=content)
    assert first.status_code == 201, first.text
    digest = first.json()["digest"]
    again = client.post("/v1/images", content=content)
    assert (again.status_code, again.json()) == (200, {"digest": digest, "known": True, "unnamed": None})
    second = client.post("/v1/images", params={"name": "two"}, content=archive("etc/two"))
    assert second.status_code == 201, second.text
    assert {image["digest"] for image in parts(client, "/v1/images", "images", 1)} == {digest, second.json()["digest"]}
    for name in ("team%2Fone:1", digest, digest.removeprefix("sha256:")[:12]):
        assert client.get(f"/v1/images/{name}").raise_for_status().json()["names"] == ["team/one:1"]
    # What is cut off is not half an image, even where it would be a whole one.
    large = archive("etc/large") + bytes(1 << 20)
    with pytest.raises(httpx.HTTPError):
        def cut_off():
            yield large[:-1000]
            raise httpx.WriteError("gone")

        client.post("/v1/images", params={"name": "large"}, content=cut_off())
    assert client.get("/v1/images/large").status_code == 404
    assert client.post("/v1/images", params={"name": "big"}, content=b"no archive").status_code == 422
    reader = {"Authorization": f"Bearer {server.token('acme')}"}
    assert client.post("/v1/images", content=content, headers=reader).status_code == 403
    assert client.delete("/v1/images/two", headers=reader).status_code == 403
    client.delete("/v1/images/two").raise_for_status()
    assert client.delete("/v1/images/two").status_code == 404


def test_the_page_loads_nothing_from_elsewhere(client):
    page = client.get("/docs")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
