"""The asynchronous classes of E2B's packages, which speak to the server in ways of their own."""

import asyncio

import pytest
from e2b import AsyncSandbox, CommandExitException, FilesystemEventType, NotFoundException, TimeoutException
from e2b_code_interpreter import AsyncSandbox as AsyncInterpreter


def test_sandboxes(e2b):
    async def main():
        sandbox = await AsyncSandbox.create(timeout=60, metadata={"a": "b"})
        assert await sandbox.is_running()
        await sandbox.set_timeout(50)
        assert (await sandbox.get_info()).metadata == {"a": "b"}
        assert [each.sandbox_id for each in await AsyncSandbox.list().next_items()] == [sandbox.sandbox_id]
        assert await sandbox.pause()
        again = await AsyncSandbox.connect(sandbox.sandbox_id)
        assert (await again.commands.run("echo on")).stdout == "on\n"
        assert await sandbox.kill()
        assert not await sandbox.is_running()

    asyncio.run(main())


def test_commands(e2b):
    async def main():
        sandbox = await AsyncSandbox.create(timeout=60)
        heard = []
        result = await sandbox.commands.run("echo out; echo err >&2", on_stdout=heard.append, on_stderr=heard.append)
        assert (result.stdout, result.stderr, sorted(heard)) == ("out\n", "err\n", ["err\n", "out\n"])
        with pytest.raises(CommandExitException):
            await sandbox.commands.run("exit 3")
        with pytest.raises(TimeoutException):
            await sandbox.commands.run("sleep 20", timeout=0.3)
        handle = await sandbox.commands.run("cat", background=True, stdin=True)
        assert [each.pid for each in await sandbox.commands.list()] == [handle.pid]
        await sandbox.commands.send_stdin(handle.pid, "one\n")
        await sandbox.commands.close_stdin(handle.pid)
        assert (await handle.wait()).stdout == "one\n"
        sleeping = await sandbox.commands.run("sleep 20", background=True)
        again = await sandbox.commands.connect(sleeping.pid)
        assert await sandbox.commands.kill(sleeping.pid)
        with pytest.raises(CommandExitException):
            await again.wait()
        many = await asyncio.gather(*[sandbox.commands.run(f"sleep 0.1; echo {n}") for n in range(20)])
        assert [each.stdout for each in many] == [f"{n}\n" for n in range(20)]

    asyncio.run(main())


def test_files_and_what_changes_in_them(e2b):
    async def main():
        sandbox = await AsyncSandbox.create(timeout=60)
        files = sandbox.files
        await files.write("a/b", "content")
        assert await files.read("a/b") == "content"
        assert await files.read("a/b", format="bytes") == b"content"
        assert [each.path for each in await files.list("a")] == ["/work/a/b"]
        assert (await files.rename("a/b", "a/c")).path == "/work/a/c"
        assert await files.exists("a/c") and not await files.exists("a/b")
        assert await files.make_dir("d") and not await files.make_dir("d")
        events, ended = asyncio.Queue(), asyncio.Event()
        watch = await files.watch_dir("d", events.put, on_exit=lambda _: ended.set(), include_entry=True)
        await files.write("d/new", "12345")
        seen = []
        while FilesystemEventType.WRITE not in seen:
            event = await asyncio.wait_for(events.get(), 10)
            assert event.name == "new"
            seen.append(event.type)
        assert seen[0] == FilesystemEventType.CREATE and event.entry.size == 5
        await watch.stop()
        await asyncio.wait_for(ended.wait(), 10)
        await files.remove("a")
        with pytest.raises(NotFoundException):
            await files.read("a/c")

    asyncio.run(main())


def test_code(e2b):
    async def main():
        sandbox = await AsyncInterpreter.create(timeout=60)
        heard = []
        execution = await sandbox.run_code("x = 6\nprint('hi')\nx * 7", on_stdout=lambda message: heard.append(message.line))
        assert (execution.text, heard, execution.execution_count) == ("42", ["hi\n"], 1)
        context = await sandbox.create_code_context(language="javascript")
        assert (await sandbox.run_code("1 + 1", context=context)).text == "2"
        assert context.id in [each.id for each in await sandbox.list_code_contexts()]
        await sandbox.restart_code_context(context)
        await sandbox.remove_code_context(context)
        with pytest.raises(TimeoutException):
            await sandbox.run_code("while True: pass", timeout=0.3)
        assert (await sandbox.run_code("x")).text == "6"

    asyncio.run(main())
