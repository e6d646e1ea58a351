"""The MCP server as the official client meets it: on standard input and output and over HTTP, with the current protocol and the one before."""

import base64
import json
import os
import signal
import subprocess
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from conftest import CASEMATE, PATIENCE, Server
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

TOOLS = {"run_code", "run_command", "read_file", "write_file", "list_files", "explain"}
VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
KEPT = 16 << 10


class Place:
    """Where clients connect to."""

    def __init__(self, transport: str, mode: str, home: Path):
        self.transport, self.mode, self.home = transport, mode, home
        self.server = Server(home) if transport == "http" else None

    @asynccontextmanager
    async def client(self, **walls: str):
        if self.server:
            query = "&".join(f"{name}={value}" for name, value in walls.items())
            target = f"{self.server.url}/mcp?{query}"
        else:
            flags = [word for name, value in walls.items() for word in (f"--{name}", value)]
            environment = {**os.environ, "CASEMATE_HOME": str(self.home)}
            target = StdioServerParameters(command=CASEMATE, args=["mcp", *flags], env=environment)
        async with Client(target, mode=self.mode) as client:
            yield client

    def evidence(self, *words: str) -> str:
        environment = {**os.environ, "CASEMATE_HOME": str(self.home)}
        words = [CASEMATE, "evidence", *words]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ended(self) -> dict[str, dict]:
        """How each execution, session and program ended whose record is closed."""
        listed = [json.loads(line) for line in self.evidence("ls", "--json").splitlines()]
        return {one["id"]: one["status"] for one in listed if one.get("status")}


@pytest.fixture(params=VERSIONS)
def mode(request) -> str:
    return request.param


@pytest.fixture(params=["stdio", "http"])
def place(request, mode: str, home: Path):
    place = Place(request.param, mode, home)
    try:
        yield place
        if place.server:
            place.server.stop()
        place.evidence("verify", "--all")
    finally:
        if place.server:
            place.server.kill()


def text(result) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")


def is_running(words: str) -> bool:
    """Whether a program with these words runs on this machine, in whatever cell."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if words in (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                return True
        except OSError:
            pass
    return False


async def gone_within(words: str, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        while is_running(words):
            await anyio.sleep(0.02)
        return True
    return False


def test_tools_say_what_they_take_and_what_they_answer(place):
    async def check():
        async with place.client() as client:
            assert client.protocol_version == VERSIONS[place.mode]
            assert client.server_info.name == "casemate"
            assert "sandbox" in client.instructions
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert tools.keys() == TOOLS
            for tool in tools.values():
                assert tool.description and tool.title
                assert tool.input_schema["additionalProperties"] is False
                assert tool.output_schema["required"]
                assert tool.annotations.open_world_hint is False
            looks = {name for name, tool in tools.items() if tool.annotations.read_only_hint}
            assert looks == {"read_file", "list_files", "explain"}
            assert "fresh" in tools["run_code"].description

    anyio.run(check)


def test_code_runs_and_files_stay(place):
    async def check():
        async with place.client() as client:
            ran = await client.call_tool("run_code", {"code": "open('/work/a', 'w').write('hi'); print(6 * 7)"})
            assert not ran.is_error and text(ran) == "42", ran
            told = ran.structured_content
            assert told["status"] == {"kind": "exited", "code": 0}
            assert (told["stdout"], told["stderr"], told["stack"]) == ("42\n", "", ["container"])
            again = await client.call_tool(
                "run_code", {"code": "cat a; cat; echo $X $1 >&2; pwd", "language": "shell", "args": ["arg"],
                             "stdin": " there\n", "env": {"X": "env"}, "cwd": "/work"})
            assert again.structured_content["session"] == told["session"]
            assert again.structured_content["stdout"] == "hi there\n/work\n"
            assert again.structured_content["stderr"] == "env arg\n"
            assert text(again) == "hi there\n/work\n[standard error]\nenv arg"
            await client.call_tool("write_file", {"path": "/work/d/b.py", "content": "print('b')"})
            ran = await client.call_tool("run_command", {"command": "python3 d/b.py | tr b c; exit 3"})
            assert not ran.is_error, "a program that fails is an answer"
            assert ran.structured_content["status"] == {"kind": "exited", "code": 3}
            assert text(ran) == "c\n[exited with code 3]"
            listed = await client.call_tool("list_files", {"depth": 2})
            entries = {entry["path"]: entry["kind"] for entry in listed.structured_content["entries"]}
            assert entries == {"/work/a": "file", "/work/d": "directory", "/work/d/b.py": "file"}

    anyio.run(check)


def test_files_come_as_what_they_are(place):
    async def check():
        async with place.client() as client:
            async def read(**asked):
                return await client.call_tool("read_file", asked)

            long = "".join(f"line {n}\n" for n in range(20_000))
            await client.call_tool("write_file", {"path": "long.txt", "content": long})
            first = await read(path="long.txt")
            part, left_out = first.structured_content["content"], first.structured_content["left_out"]
            assert long.startswith(part) and len(part) + left_out == len(long) == first.structured_content["size"]
            assert f"[… {left_out} bytes left out …]" in text(first)
            rest = await read(path="/work/long.txt", offset=len(long) - 8, length=8)
            assert text(rest) == long[-8:] and rest.structured_content["left_out"] == 0
            data = bytes(range(256))
            await client.call_tool("write_file", {"path": "/tmp/b", "content_base64": base64.b64encode(data).decode()})
            binary = await read(path="/tmp/b")
            assert base64.b64decode(binary.structured_content["content_base64"]) == data
            drawn = await client.call_tool("run_code", {"timeout": 60, "code": (
                "import struct, zlib\n"
                "chunk = lambda kind, data: struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))\n"
                "head = chunk(b'IHDR', struct.pack('>IIBBBBB', 1, 1, 8, 2, 0, 0, 0))\n"
                "open('/work/p.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + head + chunk(b'IDAT', zlib.compress(b'\\0abc')) + chunk(b'IEND', b''))"
            )})
            assert not drawn.is_error, drawn
            picture = await read(path="p.png")
            assert picture.content[1].type == "image" and picture.content[1].mime_type == "image/png"
            assert base64.b64decode(picture.content[1].data).startswith(b"\x89PNG")

    anyio.run(check)


def test_of_long_output_both_ends_are_told(place):
    async def check():
        async with place.client() as client:
            code = "import sys\nfor n in range(400_000): print(f'line {n}')\nprint('x' * 50_000, file=sys.stderr)"
            ran = await client.call_tool("run_code", {"code": code})
            whole = "".join(f"line {n}\n" for n in range(400_000))
            told = ran.structured_content
            assert told["stdout_left_out"] == len(whole) - 2 * KEPT
            assert told["stderr_left_out"] == 50_001 - 2 * KEPT
            head, tail = told["stdout"].split(f"\n[… {told['stdout_left_out']} bytes left out …]\n")
            assert (head, tail) == (whole[:KEPT], whole[-KEPT:])
            assert not told["stdout_truncated"]
            assert "line 399999" in text(ran) and len(text(ran)) < 5 * KEPT

    anyio.run(check)


def test_what_goes_wrong_comes_with_a_hint(place):
    async def check():
        async with place.client(timeout="20s") as client:
            with pytest.raises(MCPError, match="no tool"):
                await client.call_tool("run_anything", {})
            for tool, arguments, code in [
                ("run_code", {}, "invalid-request"),
                ("run_code", {"code": "1", "nonsense": 1}, "invalid-request"),
                ("run_code", {"code": "1", "language": "cobol"}, "invalid-request"),
                ("run_code", {"code": "1", "timeout": 21}, "invalid-request"),
                ("run_code", {"code": "1", "env": {"A=B": "x"}}, "refused"),
                ("read_file", {"path": "nowhere"}, "not-found"),
                ("read_file", {"path": "/etc/passwd"}, "invalid-request"),
                ("read_file", {"path": "../../etc/passwd"}, "invalid-request"),
                ("write_file", {"path": "a"}, "invalid-request"),
                ("write_file", {"path": "a", "content": "a", "content_base64": "YQ=="}, "invalid-request"),
                ("list_files", {"path": "/work", "depth": 1000}, "invalid-request"),
                ("explain", {"on": "castle"}, "invalid-request"),
            ]:
                result = await client.call_tool(tool, arguments)
                assert result.is_error, (tool, arguments)
                error = result.structured_content["error"]
                assert error["code"] == code and error["hint"], (tool, arguments, error)
                assert error["detail"] in text(result) and "hint: " in text(result)
            await client.call_tool("run_command", {"command": "ln -s /etc/passwd link; mkfifo pipe"})
            for path in ["link", "pipe", "link/x"]:
                with anyio.fail_after(5):
                    strange = await client.call_tool("read_file", {"path": path})
                assert strange.is_error and "root" not in text(strange), strange
            began = time.monotonic()
            late = await client.call_tool("run_command", {"command": "echo begun; sleep 30", "timeout": 0.5})
            assert late.is_error and time.monotonic() - began < 5
            assert late.structured_content["status"]["cause"] == "wall-time"
            assert late.structured_content["stdout"] == "begun\n" and "timeout" in text(late)
            fine = await client.call_tool("run_command", {"command": "echo fine"})
            assert text(fine) == "fine"

    anyio.run(check)


def test_a_session_that_ran_out_of_memory_is_replaced(place):
    async def check():
        async with place.client(memory="64M") as client:
            before = await client.call_tool("write_file", {"path": "a", "content": "x"})
            killed = await client.call_tool("run_code", {"code": "x = bytearray(1 << 30)"})
            assert killed.is_error
            status = killed.structured_content["status"]
            assert (status["kind"], status["cause"], status["limit"]) == ("killed", "memory", 64 << 20)
            assert "memory limit 64 MiB exceeded" in text(killed) and "hint: " in text(killed)
            after = await client.call_tool("list_files", {})
            assert "the earlier session is over (memory limit 64 MiB exceeded" in text(after)
            assert after.structured_content["entries"] == []
            assert after.structured_content["session"] != before.structured_content["session"]
            again = await client.call_tool("run_code", {"code": "print(1)"})
            assert text(again) == "1"

    anyio.run(check)


def test_a_call_can_be_cancelled(place):
    async def check():
        async with place.client() as client:
            before = await client.call_tool("write_file", {"path": "a", "content": "x"})
            words = f"sleep 3{os.getpid()}{time.monotonic_ns() % 10**6}"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "run_command", {"command": f"{words} & {words}", "timeout": 600})
                with anyio.fail_after(10):
                    while not is_running(words):
                        await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()
            assert await gone_within(words, 1), "it is killed within a second"
            after = await client.call_tool("list_files", {})
            assert after.structured_content["session"] == before.structured_content["session"]
            assert [entry["path"] for entry in after.structured_content["entries"]] == ["/work/a"]

    anyio.run(check)


def test_progress_is_told_while_something_runs(place):
    async def check():
        heard = []

        async def hear(progress, total, message):
            heard.append((progress, total, message))

        async with place.client() as client:
            command = {"command": "printf 12345; sleep 3.5", "timeout": 30}
            await client.call_tool("run_command", command, progress_callback=hear)
        assert len(heard) >= 2, heard
        assert [progress for progress, _, _ in heard] == sorted({progress for progress, _, _ in heard})
        assert all(total == 30 and "5 bytes" in message for _, total, message in heard), heard

    anyio.run(check)


def test_clients_do_not_see_each_other(place):
    async def check():
        async with place.client() as one, place.client() as other:
            first = await one.call_tool("write_file", {"path": "secret", "content": "one"})
            second = await other.call_tool("list_files", {})
            assert second.structured_content["entries"] == []
            assert first.structured_content["session"] != second.structured_content["session"]
            assert (await other.call_tool("read_file", {"path": "secret"})).is_error
            assert text(await one.call_tool("read_file", {"path": "secret"})) == "one"

    anyio.run(check)


def test_calls_of_one_client_share_its_session(place):
    async def check():
        async with place.client() as client:
            async def say(n):
                told[n] = (await client.call_tool("run_code", {"code": f"print({n})"})).structured_content

            told = {}
            async with anyio.create_task_group() as tasks:
                for n in range(8):
                    tasks.start_soon(say, n)
            assert {n: one["stdout"] for n, one in told.items()} == {n: f"{n}\n" for n in range(8)}
            assert len({one["session"] for one in told.values()}) == 1

    anyio.run(check)


def test_explain_says_where_and_why_and_runs_nothing(place):
    async def check():
        async with place.client(memory="64M") as client:
            explained = await client.call_tool("explain", {})
            told = explained.structured_content
            limits = {limit["kind"]: limit for limit in told["limits"]}
            assert told["stack"] == ["container"] and limits["memory"]["value"] == 64 << 20
            assert told["passed_over"] is not None and "runs on container" in text(explained)
            stronger = await client.call_tool("explain", {"on": "process"})
            assert stronger.is_error or stronger.structured_content["stack"] == ["process"]
        assert place.evidence("ls", "--json") == ""

    anyio.run(check)


def test_receipts_verify_and_nothing_is_left(place):
    async def check():
        words = f"sleep 4{os.getpid()}{time.monotonic_ns() % 10**6}"
        walls = {"idle_timeout": "2s"} if (place.transport, place.mode) == ("http", "auto") else {}
        async with place.client(**walls) as client:
            ran = (await client.call_tool("run_command", {"command": f"{words} >/dev/null 2>&1 & echo begun"})).structured_content
            assert ran["stdout"] == "begun\n" and is_running(words)
            assert ran["id"] in place.evidence("show", ran["id"])
            place.evidence("verify", ran["id"], "--head", ran["receipt"])
        assert await gone_within(words, 10), "it ends with its client"
        with anyio.fail_after(10):
            while (status := place.ended().get(ran["session"])) is None:
                await anyio.sleep(0.05)
        assert (status["kind"], status["cause"]) == ("killed", "wall-time" if walls else "cancelled")
        place.evidence("verify", ran["session"])

    anyio.run(check)


class Pipe:
    """`casemate mcp`, without a client that means well."""

    def __init__(self, home: Path, *flags: str):
        words, environment = [CASEMATE, "mcp", *flags], {**os.environ, "CASEMATE_HOME": str(home)}
        self.process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def send(self, line: bytes):
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict, id=1):
        self.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode())

    def initialize(self):
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        self.ask("initialize", about, id=0)
        assert self.answer()["result"]["protocolVersion"] == "2025-06-18"
        self.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')

    def answer(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def end(self) -> tuple[int, list[dict], str]:
        """Its status, what it still said, and its log."""
        rest, log = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, [json.loads(line) for line in rest.splitlines()], log.decode()


@pytest.fixture
def pipe(home: Path):
    pipe = Pipe(home)
    try:
        yield pipe
    finally:
        pipe.process.kill()
        pipe.process.communicate()


@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGINT"])
def test_whatever_ends_it_takes_the_cell_along(pipe, home, how):
    pipe.initialize()
    words = f"sleep 5{os.getpid()}{time.monotonic_ns() % 10**6}"
    pipe.ask("tools/call", {"name": "run_command", "arguments": {"command": words, "timeout": 600}})
    deadline = time.monotonic() + 20
    while not is_running(words):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    began = time.monotonic()
    if how == "end of input":
        pipe.process.stdin.close()
        pipe.process.stdin = None
    else:
        pipe.process.send_signal(getattr(signal, how))
    status, _, log = pipe.end()
    assert status == 0 and "panicked" not in log, log
    assert not is_running(words), "it went before its server did"
    assert time.monotonic() - began < 15
    place = Place("stdio", "legacy", home)
    place.evidence("verify", "--all")


def test_what_is_not_the_protocol_is_answered_and_harms_nothing(pipe):
    pipe.initialize()
    pipe.send(b"this is no JSON")
    pipe.send(b"")
    pipe.send(b'{"x": 1}')
    assert pipe.answer()["error"]["code"] == -32600
    pipe.send(b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call"}')
    assert "error" in pipe.answer()
    pipe.ask("no/such/method", {}, id=8)
    assert pipe.answer()["error"]["code"] == -32601
    pipe.send(b"[" * 200_000)
    pipe.ask("tools/call", {"name": "run_code", "arguments": {"code": "print(1)"}}, id=9)
    answer = pipe.answer()
    assert answer["id"] == 9 and answer["result"]["structuredContent"]["stdout"] == "1\n"


def test_much_output_takes_little_memory(pipe):
    def resident() -> int:
        status = Path(f"/proc/{pipe.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) << 10

    pipe.initialize()
    pipe.ask("tools/call", {"name": "run_code", "arguments": {"code": "print(1)"}}, id=1)
    assert pipe.answer()["result"]["isError"] is False
    before = resident()
    code = "import sys\nfor _ in range(60): sys.stdout.write('x' * (1 << 20))"
    pipe.ask("tools/call", {"name": "run_code", "arguments": {"code": code}}, id=2)
    told = pipe.answer()["result"]["structuredContent"]
    assert told["status"] == {"kind": "exited", "code": 0} and told["stdout_left_out"] == (60 << 20) - 2 * KEPT
    assert resident() - before < 16 << 20


def test_a_home_with_a_daemon_is_shared(server, home):
    place = Place("stdio", "auto", home)

    async def check():
        async with place.client() as client:
            assert text(await client.call_tool("run_code", {"code": "print(1)"})) == "1"
            assert httpx.get(f"{server.url}/v1/sessions").json()["sessions"] == []

    anyio.run(check)


HEADERS = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


def connect(server: Server, **headers: str) -> str:
    answer = httpx.post(f"{server.url}/mcp", json=INITIALIZE, headers={**HEADERS, **headers})
    assert answer.status_code == 200, answer.text
    return answer.headers["mcp-session-id"]


def visit(server: Server, name: str, arguments: dict, **headers: str) -> dict:
    """A call as the current protocol has it: alone, and without a cookie."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments, "_meta": meta}}
    standard = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
    answer = httpx.post(f"{server.url}/mcp", json=asked, headers={**HEADERS, **standard, **headers}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    messages = [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:") and len(line) > 6]
    return messages[-1]["result"]


def test_a_visitor_names_the_session(server):
    first = visit(server, "write_file", {"path": "a", "content": "x"})
    session = first["structuredContent"]["session"]
    assert session in first["content"][-1]["text"]
    again = visit(server, "read_file", {"path": "a", "session": session})
    assert again["structuredContent"]["content"] == "x"
    assert visit(server, "list_files", {})["structuredContent"]["entries"] == []
    assert httpx.delete(f"{server.url}/v1/sessions/{session}").status_code == 200
    late = visit(server, "read_file", {"path": "a", "session": session})
    assert late["isError"] and "leave `session` out" in late["content"][0]["text"]


def test_tenants_do_not_see_each_other(server):
    one, other = ({"authorization": f"Bearer {server.token(tenant)}"} for tenant in ("one", "other"))
    connection = connect(server, **one)
    ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    for method, body in [("POST", ask), ("GET", None), ("DELETE", None)]:
        foreign = httpx.request(method, f"{server.url}/mcp", json=body, headers={**HEADERS, **other, "mcp-session-id": connection})
        unknown = httpx.request(method, f"{server.url}/mcp", json=body, headers={**HEADERS, **one, "mcp-session-id": "nobody"})
        assert foreign.status_code == unknown.status_code == 404, method
        assert foreign.json() == unknown.json() and foreign.json()["code"] == "not-found"
    session = visit(server, "write_file", {"path": "a", "content": "x"}, **one)["structuredContent"]["session"]
    assert visit(server, "read_file", {"path": "a", "session": session}, **other)["isError"]
    mine = httpx.post(f"{server.url}/mcp", json=ask, headers={**HEADERS, **one, "mcp-session-id": connection})
    assert mine.status_code == 200
    assert httpx.delete(f"{server.url}/mcp", headers={**HEADERS, **one, "mcp-session-id": connection}).status_code == 204
    gone = httpx.post(f"{server.url}/mcp", json=ask, headers={**HEADERS, **one, "mcp-session-id": connection})
    assert gone.status_code == 404


def test_tokens_are_those_of_everything_else(server):
    evil = httpx.post(f"{server.url}/mcp", json=INITIALIZE, headers={**HEADERS, "host": "evil.example"})
    assert evil.status_code == 403
    evil = httpx.post(f"{server.url}/mcp", json=INITIALIZE, headers={**HEADERS, "origin": "https://evil.example"})
    assert evil.status_code == 403
    good = server.token("acme")
    weak = server.token("acme", "--scope", "metrics")
    for token, status in [(None, 401), ("cmt_0000_0000", 401), (weak, 403), (good, 200)]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = httpx.post(f"{server.url}/mcp", json=INITIALIZE, headers={**HEADERS, **headers})
        assert answer.status_code == status, (token, answer.text)


def test_bad_requests_are_refused(server):
    url = f"{server.url}/mcp"
    kind = {"content-type": "application/json"}
    connection = connect(server)
    for what, status, answer in [
        ("garbage", 415, httpx.post(url, content=b"garbage", headers=HEADERS)),
        ("no JSON", 400, httpx.post(url, content=b"{nonsense", headers={**HEADERS, **kind})),
        ("no message", 400, httpx.post(url, json={"x": 1}, headers=HEADERS)),
        ("a bomb", 400, httpx.post(url, content=b"[" * 100_000, headers={**HEADERS, **kind})),
        ("only JSON is taken", 406, httpx.post(url, json=INITIALIZE, headers={"accept": "application/json"})),
        ("no session", 400, httpx.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=HEADERS)),
        ("unknown version", 400, httpx.get(url, headers={**HEADERS, "mcp-session-id": connection, "mcp-protocol-version": "1999-01-01"})),
        ("other methods", 405, httpx.put(url, headers=HEADERS)),
        ("too large", 413, httpx.post(url, content=b" " * ((16 << 20) + 1), headers={**HEADERS, **kind})),
        ("unknown wish", 422, httpx.post(f"{url}?walls=high", json=INITIALIZE, headers=HEADERS)),
        ("bad wish", 422, httpx.post(f"{url}?memory=lots", json=INITIALIZE, headers=HEADERS)),
        ("too long", 422, httpx.post(f"{url}?timeout=2h", json=INITIALIZE, headers=HEADERS)),
    ]:
        assert answer.status_code == status, (what, answer.status_code, answer.text)
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "explain", "arguments": {}}}
    fine = httpx.post(url, json=call, headers={**HEADERS, "mcp-session-id": connection})
    assert fine.status_code == 200 and "container" in fine.text
    other = httpx.post(f"{url}?risk=high", json=call, headers={**HEADERS, "mcp-session-id": connection})
    assert "other walls than before" in other.text


def test_a_server_that_stops_waits_for_no_client(server):
    connection = connect(server)
    headers = {**HEADERS, "mcp-session-id": connection}
    words = f"sleep 6{os.getpid()}{time.monotonic_ns() % 10**6}"
    call = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "run_command", "arguments": {"command": words, "timeout": 600}},
    }
    url = f"{server.url}/mcp"
    with httpx.stream("GET", url, headers=headers) as heard, httpx.stream("POST", url, json=call, headers=headers) as answer:
        assert heard.status_code == answer.status_code == 200
        deadline = time.monotonic() + 20
        while not is_running(words):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 15 and not is_running(words)


def test_a_tenant_has_so_many_clients_and_no_more(server):
    url = f"{server.url}/mcp"
    with httpx.Client(headers=HEADERS) as client:
        connections = [client.post(url, json=INITIALIZE).headers["mcp-session-id"] for _ in range(256)]
        assert "too many clients" in client.post(url, json=INITIALIZE).text
        assert client.delete(url, headers={"mcp-session-id": connections[0]}).status_code == 204
        deadline = time.monotonic() + 5
        while "too many" in client.post(url, json=INITIALIZE).text:
            assert time.monotonic() < deadline
