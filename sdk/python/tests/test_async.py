"""The same for those who await."""

import asyncio
import time
from functools import wraps

import pytest

import casemate


def awaited(test):
    """Runs a test in an event loop of its own, which must not be left with anything."""

    @wraps(test)
    def run(server, tmp_path):
        asyncio.run(test(server, tmp_path), debug=True)

    del run.__wrapped__
    return run


@awaited
async def test_executions(server, _):
    async with casemate.AsyncClient(server.url) as client:
        result = await client.run(code="print(6 * 7)")
        assert result.stdout == "42\n"
        heard = []

        async def hear(text):
            await asyncio.sleep(0)
            heard.append(text)

        streamed = await client.run("echo a; sleep 0.4; echo b >&2", on_stdout=hear, on_stderr=heard.append)
        assert heard == ["a\n", "b\n"] and streamed.ok
        assert (await client.explain("true")).stack == ("container",)
        assert [one.id async for one in client.executions()] == [streamed.id, result.id]
        assert (await client.execution(result.id)).state == "exited"
        assert await client.images() == []
        await client.cancel(result.id)
        (await client.receipt(result)).verify(server.home / "keys/evidence.pub", result=result)
        with pytest.raises(casemate.CommandFailed):
            await client.run("false", check=True)


@awaited
async def test_many_at_once(server, _):
    async with casemate.AsyncClient(server.url) as client:
        results = await asyncio.gather(*(client.run(["echo", str(number)]) for number in range(20)))
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(20)]


@awaited
async def test_a_sandbox(server, _):
    async with casemate.AsyncSandbox(server=server.url, metadata={"for": "test"}) as box:
        assert (await box.info()).metadata == {"for": "test"}
        result = await box.commands.run("cat; echo err >&2; exit 3", stdin="x" * 500_000)
        assert (len(result.stdout), result.stderr, result.exit_code) == (500_000, "err\n", 3)
        (await box.receipt(result)).verify(server.home / "keys/evidence.pub", result=result)
        assert (await box.pause()).state == "paused"
        assert (await box.resume()).state == "running"
        await box.extend("1h")
        async with casemate.AsyncSandbox.connect(box.id, server=server.url) as again:
            assert (await again.commands.run("echo hi")).stdout == "hi\n"
        assert [info.id for info in await casemate.AsyncSandbox.list(server=server.url)] == [box.id]
    assert await casemate.AsyncSandbox.list(server=server.url) == []
    box = await casemate.AsyncSandbox(server=server.url)
    assert (await box.kill()).cause == "cancelled"
    await box.close()


@awaited
async def test_programs_in_the_background(server, _):
    async with casemate.AsyncSandbox(server=server.url) as box:
        cat = await box.commands.run("while read line; do echo got $line; done", background=True, stdin=True)
        written = aiter(cat)
        await cat.send_stdin("one\n")
        assert (await anext(written)).text == "got one\n"
        await cat.send_stdin("two\n", end=True)
        assert [chunk.text async for chunk in written] == ["got two\n"]
        heard = []
        assert (await cat.wait(on_stdout=heard.append)).ok and "".join(heard) == "got one\ngot two\n"
        sleeper = await box.commands.run(["sleep", "600"], background=True)
        assert (await sleeper.info()).running
        await sleeper.signal(9)
        assert (await sleeper.wait()).status.signal == 9
        other = await box.commands.run(["sleep", "600"], background=True)
        await (await box.commands.connect(other.pid)).kill()
        assert (await other.wait()).cause == "cancelled"
        assert {process.pid for process in await box.commands.list()} == {cat.pid, sleeper.pid, other.pid}


@awaited
async def test_cancelling_the_wait_ends_the_program(server, _):
    async with casemate.AsyncSandbox(server=server.url) as box:
        waiting = asyncio.create_task(box.commands.run(["sleep", "600"], stdin="nobody reads this"))
        deadline = time.monotonic() + 30
        while not await box.commands.list():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while any(process.running for process in await box.commands.list()):
            assert time.monotonic() < deadline, "it goes on"
            await asyncio.sleep(0.02)


@awaited
async def test_files(server, _):
    async with casemate.AsyncSandbox(server=server.url) as box:

        async def pieces():
            for _ in range(8):
                yield b"x" * 100_000

        assert await box.files.write("/work/large", pieces()) == 800_000
        assert b"".join([piece async for piece in box.files.stream("/work/large")]) == b"x" * 800_000
        assert await box.files.write("/work/a", "text", mode=0o600) == 4
        assert await box.files.read("/work/a") == "text" and (await box.files.stat("/work/a")).mode == 0o600
        assert await box.files.mkdir("/work/sub")
        await box.files.rename("/work/a", "/work/sub/b")
        assert await box.files.exists("/work/sub/b") and not await box.files.exists("/work/a")
        assert {entry.name for entry in await box.files.list()} == {"large", "sub"}
        async with box.files.watch() as changes:
            await box.files.remove("/work/sub")
            assert (await anext(changes)).path == "sub"
        with pytest.raises(casemate.NotFound):
            await box.files.read_bytes("/work/a")


@awaited
async def test_a_server_that_is_not_there(*_):
    async with casemate.AsyncClient("http://127.0.0.1:9", retries=1) as client:
        with pytest.raises(casemate.ConnectionFailed):
            await client.run("true")
    with pytest.raises(casemate.ConnectionFailed):
        async with casemate.AsyncSandbox(server="http://127.0.0.1:9"):
            pass
