"""Like `casemate.sandbox`, awaited."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from .. import _calls
from .._calls import Command, Duration, SandboxOptions
from .._events import CodeFollowing, Following, OnText, chunk_of, is_last, went_away
from ..errors import NotFound, SandboxEnded
from ..receipts import Receipt
from ..results import Chunk, CodeContext, CodeResult, ProcessInfo, Result, SandboxInfo
from .client import AsyncClient, heard
from .files import AsyncFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self, Unpack

    from .._calls import CodeOptions, ProcessOptions
    from .._transport import AsyncTransport
    from ..results import CodeOutput


class AsyncSandbox:
    """Opened when it is awaited or entered: `box = await AsyncSandbox()`, or `async with AsyncSandbox() as box`, which kills it at the
    end. Callbacks may be coroutine functions.
    """

    id: str
    commands: AsyncCommands
    files: AsyncFiles
    contexts: AsyncContexts

    def __init__(
        self,
        *,
        server: str | None = None,
        token: str | None = None,
        client: AsyncClient | None = None,
        **options: Unpack[SandboxOptions],
    ):
        self._belong_to(client, server, token)
        self._opening: _calls.Call[SandboxInfo] | None = _calls.open_sandbox(options)
        self._own = True

    @classmethod
    def connect(
        cls, id: str, *, server: str | None = None, token: str | None = None, client: AsyncClient | None = None
    ) -> Self:
        """One that somebody opened; awaited or entered like a new one. At the end of a block it is let go of, and lives on."""
        box = cls.__new__(cls)
        box._belong_to(client, server, token)
        box._opening = _calls.sandbox(id)
        box._own = False
        return box

    @staticmethod
    async def list(
        *, server: str | None = None, token: str | None = None, client: AsyncClient | None = None
    ) -> builtins.list[SandboxInfo]:
        """Those that are open, oldest first."""
        if client is not None:
            return await client.sandboxes()
        async with AsyncClient(server, token) as own:
            return await own.sandboxes()

    def _belong_to(self, client: AsyncClient | None, server: str | None, token: str | None) -> None:
        self._client = client or AsyncClient(server, token)
        self._shared = client is not None
        self._transport: AsyncTransport = self._client._transport

    async def _open(self) -> Self:
        opening, self._opening = self._opening, None
        if opening is None:
            return self
        try:
            self.id = (await self._transport.send(opening)).id
        except BaseException:
            await self.close()
            raise
        self.commands = AsyncCommands(self._transport, self.id)
        self.files = AsyncFiles(self._transport, self.id)
        self.contexts = AsyncContexts(self._transport, self.id)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._own:
                await self._kill_if_open()
        finally:
            await self.close()

    async def _kill_if_open(self) -> None:
        try:
            await self.kill()
        except (NotFound, SandboxEnded):
            # Its time was over, or somebody else was faster.
            pass

    async def close(self) -> None:
        """Lets go of it, and of connections that are its own. It lives until its time is over."""
        if not self._shared:
            await self._client.close()

    async def kill(self) -> Result:
        """Ends everything in it. What is told is how the sandbox ended."""
        return await self._transport.send(_calls.kill_sandbox(self.id))

    async def extend(self, ttl: Duration) -> SandboxInfo:
        """It lives for this long, from now on."""
        return await self._transport.send(_calls.extend(self.id, ttl))

    async def pause(self) -> SandboxInfo:
        """Everything in it stands still. Its own time goes on."""
        return await self._transport.send(_calls.pause(self.id))

    async def resume(self) -> SandboxInfo:
        return await self._transport.send(_calls.resume(self.id))

    async def info(self) -> SandboxInfo:
        return await self._transport.send(_calls.sandbox(self.id))

    async def receipt(self, of: Result | None = None) -> Receipt:
        """Its own, or that of a program in it."""
        return await self._client.receipt(self.id if of is None else of)

    async def run_code(
        self,
        code: str,
        *,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: Callable[[CodeOutput], Any] | None = None,
        check: bool = False,
        **options: Unpack[CodeOptions],
    ) -> CodeResult:
        """Runs code where what ran before it in this context is still known. A new interpreter each time is `commands.run`."""
        listening = on_stdout is not None or on_stderr is not None or on_result is not None
        call = _calls.run_code(self.id, code, options, listening)
        if listening:
            following = CodeFollowing(on_stdout, on_stderr, on_result)
            async with self._transport.events(call) as events:
                async for event in events:
                    await heard(following.hear(event))
            result = following.finish()
        else:
            result = await self._transport.send(call)
        return result.check() if check else result


class AsyncCommands:
    """Programs in a sandbox."""

    def __init__(self, transport: AsyncTransport, sandbox: str):
        self._transport, self._sandbox = transport, sandbox

    @overload
    async def run(
        self,
        command: Command,
        *,
        background: Literal[False] = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        stdin: str | bytes | None = None,
        check: bool = False,
        **options: Unpack[ProcessOptions],
    ) -> Result: ...

    @overload
    async def run(
        self,
        command: Command,
        *,
        background: Literal[True],
        stdin: Literal[True] | str | bytes | None = None,
        **options: Unpack[ProcessOptions],
    ) -> AsyncProcess: ...

    async def run(
        self,
        command: Command,
        *,
        background: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        stdin: Literal[True] | str | bytes | None = None,
        check: bool = False,
        **options: Unpack[ProcessOptions],
    ) -> Result | AsyncProcess:
        """Runs a line of shell, or a program with its arguments, and waits for it; it ends if this is cancelled.

        In the background it goes on by itself. There, `stdin=True` keeps its standard input open for `send_stdin`.
        """
        if background:
            if check or on_stdout is not None or on_stderr is not None:
                raise TypeError("callbacks and `check` belong to `wait` of what runs in the background")
            return await self._start(command, stdin, options)
        if stdin is True:
            raise TypeError("nobody could write to its standard input: start it in the background")
        following = Following(on_stdout, on_stderr)
        call = _calls.follow_new(self._sandbox, command, stdin=stdin is not None, options=options)
        feeding: asyncio.Task[None] | None = None
        try:
            async with self._transport.events(call) as events:
                async for event in events:
                    await heard(following.hear(event))
                    if event.name == "started" and stdin is not None:
                        # It may want somebody to read before it has read everything itself.
                        feeding = asyncio.create_task(self._feed(event.data["pid"], stdin))
        except BaseException:
            if feeding is not None:
                feeding.cancel()
            raise
        if feeding is not None:
            await feeding
        result = following.finish()
        return result.check() if check else result

    async def _start(
        self, command: Command, stdin: Literal[True] | str | bytes | None, options: ProcessOptions
    ) -> AsyncProcess:
        call = _calls.start(self._sandbox, command, stdin=stdin is not None, options=options)
        process = AsyncProcess(self._transport, self._sandbox, await self._transport.send(call))
        if isinstance(stdin, str | bytes):
            await process.send_stdin(stdin, end=True)
        return process

    async def _feed(self, pid: int, stdin: str | bytes) -> None:
        try:
            await self._transport.send(_calls.stdin(self._sandbox, pid, stdin, end=True))
        except (NotFound, SandboxEnded):
            # It ended without reading all of it.
            pass

    async def list(self) -> builtins.list[ProcessInfo]:
        """Those that run, and the last that ran."""
        return [one async for one in self._transport.all(_calls.processes(self._sandbox))]

    async def connect(self, pid: int) -> AsyncProcess:
        found = await self._transport.send(_calls.process(self._sandbox, pid))
        return AsyncProcess(self._transport, self._sandbox, found)

    async def kill(self, pid: int) -> None:
        await self._transport.send(_calls.kill_process(self._sandbox, pid))


class AsyncProcess:
    """A program that runs in the background. Iterated, it is what it writes, from the beginning, until it ends."""

    def __init__(self, transport: AsyncTransport, sandbox: str, started: ProcessInfo):
        self._transport, self._sandbox = transport, sandbox
        self.id, self.pid, self.command = started.id, started.pid, started.command

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        async with self._transport.events(_calls.follow(self._sandbox, self.pid)) as events:
            async for event in events:
                if (chunk := chunk_of(event)) is not None:
                    yield chunk
                elif is_last(event):
                    return
        raise went_away()

    async def wait(
        self, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None, check: bool = False
    ) -> Result:
        """Until it has ended. May be called by several, and again."""
        following = Following(on_stdout, on_stderr)
        async with self._transport.events(_calls.follow(self._sandbox, self.pid)) as events:
            async for event in events:
                await heard(following.hear(event))
        result = following.finish()
        return result.check() if check else result

    async def info(self) -> ProcessInfo:
        return await self._transport.send(_calls.process(self._sandbox, self.pid))

    async def send_stdin(self, data: str | bytes, *, end: bool = False) -> None:
        """Waits until the program has room for it. `end`: nothing follows."""
        await self._transport.send(_calls.stdin(self._sandbox, self.pid, data, end))

    async def close_stdin(self) -> None:
        await self.send_stdin(b"", end=True)

    async def signal(self, number: int) -> None:
        """To it and everything in its session, such as `signal.SIGINT`."""
        await self._transport.send(_calls.signal(self._sandbox, self.pid, number))

    async def kill(self) -> None:
        """Ends it as if its time were over."""
        await self._transport.send(_calls.kill_process(self._sandbox, self.pid))


class AsyncContexts:
    """Where code runs that knows what ran before it. Each sandbox has one for each language; these are others."""

    def __init__(self, transport: AsyncTransport, sandbox: str):
        self._transport, self._sandbox = transport, sandbox

    async def create(self, *, language: str | None = None, cwd: str | None = None) -> CodeContext:
        return await self._transport.send(_calls.new_context(self._sandbox, language, cwd))

    async def list(self) -> builtins.list[CodeContext]:
        return [one async for one in self._transport.all(_calls.contexts(self._sandbox))]

    async def remove(self, id: str) -> None:
        await self._transport.send(_calls.remove_context(self._sandbox, id))

    async def restart(self, id: str) -> CodeContext:
        """With nothing defined in it."""
        return await self._transport.send(_calls.restart_context(self._sandbox, id))
