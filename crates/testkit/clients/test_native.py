"""What the service's own API offers besides executions: archives, volumes, terminals, quotas, TLS, and tokens that are replaced."""

import io
import json
import ssl
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import httpx
import pytest
from conftest import PATIENCE, Server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect


def client(server: Server, token: str | None = None) -> httpx.Client:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE)


def opened(api: httpx.Client, **asked) -> str:
    answer = api.post("/v1/sessions", json=asked)
    assert answer.status_code == 201, answer.text
    return f"/v1/sessions/{answer.json()['id']}"


def said(api: httpx.Client, session: str, script: str) -> str:
    answer = api.post(f"{session}/processes", json={"command": ["sh", "-c", script]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == {"kind": "exited", "code": 0}, answer.text
    return answer.json()["stdout"]


def problem(answer: httpx.Response, status: int, code: str) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["code"] == code and told["hint"], told
    return told


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def file(name: str, mode: int = 0o644, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.type, member.linkname = mode, kind, link
    return member


def test_a_tree_comes_back_as_it_went_in(server: Server):
    with client(server) as api:
        session = opened(api)
        long = f"{'d' * 120}/é {'n' * 90}"
        tree = {"a": b"", "sub/b": b"x" * 513, long: b"long", "sub/large": bytes(range(256)) * 8192}
        sent = tar_of(*((file(name, 0o700), content) for name, content in tree.items()))
        answer = api.put(f"{session}/files/archive", params={"path": "/work/in"}, content=sent)
        assert answer.status_code == 201, answer.text
        assert (answer.json()["files"], answer.json()["bytes"]) == (4, sum(map(len, tree.values())))
        said(api, session, "ln -s /etc/passwd in/link; mkfifo in/fifo; mkdir in/in; echo same > in/in/in")
        got = api.get(f"{session}/files/archive", params={"path": "/work/in"})
        assert got.status_code == 200 and got.headers["content-type"] == "application/x-tar"
        with tarfile.open(fileobj=io.BytesIO(got.content)) as archive:
            found = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
            assert found == {**tree, "in/in": b"same\n"}
            assert all(member.isfile() or member.isdir() for member in archive)
            comment = archive.pax_headers["comment"]
        # What was left out is told, not passed over.
        assert "link" in comment and "fifo" in comment, comment
        single = api.get(f"{session}/files/archive", params={"path": "/work/in/sub/b"})
        with tarfile.open(fileobj=io.BytesIO(single.content)) as archive:
            assert archive.getnames() == ["b"]
        problem(api.get(f"{session}/files/archive", params={"path": "/work/none"}), 404, "not-found")


def test_an_archive_cannot_name_what_a_client_could_not(server: Server):
    with client(server) as api:
        session = opened(api, limits={"disk": "1M"})

        def put(content: bytes, path: str = "/work/x") -> httpx.Response:
            return api.put(f"{session}/files/archive", params={"path": path}, content=content)

        for name in ("../escaped", "a/../../escaped", "/tmp/escaped", "a//../../escaped"):
            problem(put(tar_of((file(name), b"x"))), 422, "invalid-request")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
            problem(put(tar_of((file("m", kind=kind, link="/etc/passwd"), b""))), 422, "invalid-request")
        whole = tar_of((file("a"), b"x" * 2000))
        problem(put(b"no archive at all" * 100), 422, "invalid-request")
        problem(put(whole[:700]), 422, "invalid-request")
        problem(put(tar_of((file("huge"), b"x" * (2 << 20)))), 507, "no-space")
        for path in ("/etc", "/work/../etc", "work", "/work/a\0b", ""):
            assert 400 <= put(whole, path).status_code < 500
        # A link that was there before leads nowhere.
        said(api, session, "rm -rf /work/*; ln -s /etc link; ln -s / root")
        for path in ("/work/link", "/work/root/tmp/out"):
            assert 400 <= put(whole, path).status_code < 500
        # Privileges are not handed out.
        assert put(tar_of((file("tool", 0o6755), b"#!/bin/sh\n")), "/work/ok").status_code == 201
        assert said(api, session, "stat -c %a ok/tool; ls -A /tmp").splitlines() == ["755"]


def test_a_volume_outlives_its_session_and_its_server(home: Path):
    server = Server(home)
    with client(server) as api:
        data = {"name": "data", "path": "/work/kept"}
        first = opened(api, volumes=[data])
        said(api, first, "mkdir -p kept/d; echo one > kept/d/x")
        problem(api.post("/v1/sessions", json={"volumes": [data]}), 409, "in-use")
        problem(api.delete("/v1/volumes/data"), 409, "in-use")
        assert api.delete(first).status_code == 200
        second = opened(api, volumes=[data])
        assert said(api, second, "cat kept/d/x") == "one\n"
        copy = opened(api, volumes=[{**data, "path": "/tmp/copy", "keep": False}])
        assert said(api, copy, "cat /tmp/copy/d/x; echo lost > /tmp/copy/d/x") == "one\n"
        problem(api.post(f"{copy}/volumes/data"), 422, "invalid-request")
        assert api.delete(copy).status_code == 200
        said(api, second, "echo two > kept/d/x")
        assert api.post(f"{second}/volumes/data").json()["bytes"] > 0
        said(api, second, "echo three > kept/d/x")
    # Killed, it has what was kept before.
    server.kill()
    server = Server(home)
    with client(server) as api:
        third = opened(api, volumes=[data])
        assert said(api, third, "cat kept/d/x; echo four > kept/d/x") == "two\n"
        problem(api.post(f"{third}/volumes/other"), 404, "not-found")
        for name in ("../x", "", "A", "a/b"):
            assert api.post("/v1/sessions", json={"volumes": [{**data, "name": name}]}).status_code == 422
        assert api.post("/v1/sessions", json={"volumes": [{"name": "v", "path": "/etc"}]}).status_code == 422
    # Told to stop, it keeps what there is.
    server.stop()
    server = Server(home)
    with client(server) as api:
        last = opened(api, volumes=[data], ttl="1s")
        assert said(api, last, "cat kept/d/x; echo five > kept/d/x") == "four\n"
        deadline = time.monotonic() + PATIENCE
        while api.get("/v1/volumes").json()["volumes"][0]["in_use"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert said(api, opened(api, volumes=[data]), "cat kept/d/x") == "five\n"
    server.stop()


def test_volumes_belong_to_their_tenant(home: Path):
    server = Server(home)
    acme, other = server.token("acme"), server.token("other")
    with client(server, acme) as ours, client(server, other) as theirs:
        data = {"name": "data", "path": "/work/v"}
        session = opened(ours, volumes=[data])
        said(ours, session, "echo secret > v/x")
        assert ours.delete(session).status_code == 200
        assert theirs.get("/v1/volumes").json()["volumes"] == []
        assert said(theirs, opened(theirs, volumes=[data]), "ls -A v") == ""
        problem(theirs.delete("/v1/volumes/nothing"), 404, "not-found")
        assert ours.delete("/v1/volumes/data").status_code == 204
        problem(ours.delete("/v1/volumes/data"), 404, "not-found")
    server.stop()


def terminal(server: Server, session: str, pid: int, token: str | None = None):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    address = f"{server.url.replace('http', 'ws', 1)}{session}/processes/{pid}/terminal"
    return connect(address, additional_headers=headers, open_timeout=PATIENCE)


def heard(socket, until: bytes) -> bytes:
    shown = b""
    while until not in shown:
        message = socket.recv(PATIENCE)
        assert isinstance(message, bytes), message
        shown += message
    return shown


def test_a_terminal_over_a_websocket(server: Server):
    with client(server) as api:
        session = opened(api)
        asked = {"command": ["sh"], "background": True, "stdin": True, "terminal": {"rows": 24, "columns": 80}}
        started = api.post(f"{session}/processes", json=asked)
        assert started.status_code == 201, started.text
        pid = started.json()["pid"]
        with terminal(server, session, pid) as socket:
            socket.send(b"tty; stty size; echo do''ne\n")
            shown = heard(socket, b"done\r\n")
            assert b"/dev/pts/" in shown and b"24 80" in shown, shown
            socket.send(json.dumps({"resize": {"rows": 40, "columns": 132}}))
            socket.send(b"stty size\n")
            assert b"40 132" in heard(socket, b"40 132\r\n")
            # Ctrl-C ends what runs in the foreground, not the shell.
            socket.send(b"sleep 100\n")
            time.sleep(0.3)
            socket.send(b"\x03")
            socket.send(b"echo al''ive\n")
            heard(socket, b"alive\r\n")
        # Whoever comes back hears what was said.
        with terminal(server, session, pid) as socket:
            heard(socket, b"alive\r\n")
            socket.send(b"exit 3\n")
            with pytest.raises(ConnectionClosed):
                while True:
                    last = socket.recv(PATIENCE)
            assert json.loads(last)["ended"]["status"] == {"kind": "exited", "code": 3}


def test_garbage_on_a_websocket_ends_it_and_nothing_else(server: Server):
    with client(server) as api:
        session = opened(api)
        asked = {"command": ["cat"], "background": True, "stdin": True, "terminal": {"rows": 24, "columns": 80}}
        pid = api.post(f"{session}/processes", json=asked).json()["pid"]
        for garbage in ("{", "[]", '{"resize": {"rows": -1, "columns": 2}}', '{"run": "sh"}'):
            with terminal(server, session, pid) as socket:
                socket.send(garbage)
                with pytest.raises(ConnectionClosed) as closed:
                    socket.recv(PATIENCE)
                assert closed.value.rcvd.code == 1007
        with terminal(server, session, pid) as socket:
            with pytest.raises(ConnectionClosed):
                socket.send(b"x" * (1 << 20))
                while True:
                    socket.recv(PATIENCE)
        raw = terminal(server, session, pid)
        raw.socket.sendall(b"\xff\xff\xff\xff not a frame")
        with pytest.raises(ConnectionClosed):
            while True:
                raw.recv(PATIENCE)
        plain = api.get(f"{session}/processes/{pid}/terminal")
        problem(plain, 426, "upgrade-required")
        quiet = api.post(f"{session}/processes", json={"command": ["sleep", "50"], "background": True}).json()["pid"]
        with pytest.raises(InvalidStatus) as refused:
            terminal(server, session, quiet)
        assert refused.value.response.status_code == 422
        assert api.get(f"{session}/processes/{pid}").json()["running"] is True


def test_quotas_bound_a_tenant_and_leave_others_alone(home: Path):
    (home / "service.toml").write_text(
        '[quotas]\nmemory = "300M"\ncpu-time = "2s"\n[tenants.large]\nmemory = "2G"\ncpu-time = "1h"\nrequests = 5\n'
        '[tenants.bad]\ncells = 1\n'
    )
    server = Server(home)
    small, large, single = server.token("small"), server.token("large"), server.token("bad")
    spin = {"code": "while True: pass", "limits": {"wall-time": "20s"}}
    with client(server, small) as api:
        problem(api.post("/v1/executions", json={"code": "1", "limits": {"memory": "301M"}}), 429, "quota-exceeded")
        # Two of 200M do not fit at once: the second one waits, and both run.
        slow = {"command": ["sleep", "0.5"], "limits": {"memory": "200M", "cpu-time": "100ms"}}
        began, answers = time.monotonic(), []
        both = [threading.Thread(target=lambda: answers.append(api.post("/v1/executions", json=slow))) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert time.monotonic() - began >= 1.0
        # No more processor time than there is, however much was asked for.
        told = api.post("/v1/executions", json=spin).json()
        assert told["status"]["kind"] == "killed" and told["status"]["cause"] == "cpu-time", told
        assert told["status"]["limit"] <= 2000, told
        refused = api.post("/v1/executions", json=spin)
        problem(refused, 429, "quota-exceeded")
        assert int(refused.headers["retry-after"]) > 0
        usage = api.get("/v1/usage").json()
        assert usage["cpu_ms_today"]["quota"] == 2000 and usage["cpu_ms_today"]["used"] >= 1900, usage
    with client(server, large) as api:
        answers = [api.get("/v1/sessions").status_code for _ in range(40)]
        assert answers.count(200) >= 10 and answers.count(429) >= 10, answers
    with client(server, single) as api:
        opened(api, limits={"memory": "64M", "cpu-time": "100ms"})
        with pytest.raises(httpx.ReadTimeout):
            api.post("/v1/executions", json={"code": "1", "limits": {"memory": "64M", "cpu-time": "100ms"}}, timeout=1)
    server.stop()
    # A day is not over because a server is.
    server = Server(home)
    with client(server, small) as api:
        problem(api.post("/v1/executions", json=spin), 429, "quota-exceeded")
    server.stop()


def test_bad_settings_are_refused_before_anything_listens(home: Path):
    for text, words in (
        ("[quotas]\nluck = 1", "unknown key `luck`"),
        ('[quotas]\negress = "1G"', "no egress"),
        ('[tls]\ncertificate = "a.pem"\nkey = "b.pem"', "cannot read"),
        ("nonsense", "line 1"),
    ):
        (home / "service.toml").write_text(text)
        with pytest.raises(AssertionError, match="error: ") as failed:
            Server(home).kill()
        assert words in str(failed.value) and "hint: " in str(failed.value)


def certificate(place: Path) -> Path:
    place.mkdir(exist_ok=True)
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(place / "key.pem"), "-out", str(place / "cert.pem")]
    subprocess.run([*words.split(), *names, *files], check=True, capture_output=True)
    return place / "cert.pem"


def test_tls_for_those_who_trust_the_certificate(home: Path):
    trusted, stranger = certificate(home), certificate(home.parent / "other")
    (home / "service.toml").write_text('[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\n')
    server = Server(home)
    assert server.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(trusted))
    with httpx.Client(base_url=server.url, verify=context, timeout=PATIENCE) as api:
        assert api.post("/v1/executions", json={"code": "print(6 * 7)"}).json()["stdout"] == "42\n"
    with httpx.Client(verify=ssl.create_default_context(cafile=str(stranger))) as api:
        with pytest.raises(httpx.ConnectError):
            api.get(f"{server.url}/healthz")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{server.url.replace('https', 'http')}/healthz", timeout=PATIENCE)
    server.stop()


def test_a_token_is_replaced_while_clients_change_over(home: Path):
    server = Server(home)
    old = server.token("acme", "--scope", "run")
    name = json.loads(server.casemate("token", "ls", "--json"))["tokens"][0]["id"]
    new = server.casemate("token", "rotate", name, "--grace", "2s").splitlines()[-1]
    for token in (old, new):
        with client(server, token) as api:
            assert api.get("/v1/sessions").status_code == 200
            problem(api.get("/v1/receipts/none"), 403, "forbidden")
    time.sleep(2.5)
    with client(server, old) as api:
        problem(api.get("/v1/sessions"), 401, "unauthenticated")
    with client(server, new) as api:
        assert api.get("/v1/sessions").status_code == 200
    server.stop()
