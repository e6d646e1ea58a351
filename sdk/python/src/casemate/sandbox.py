"""A sandbox: one cell for several programs, with files that stay until it ends."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _calls
from ._calls import Command, Duration, SandboxOptions
from ._events import CodeFollowing, Following, OnText, chunk_of, is_last, went_away
from ._transport import Transport
from .client import Client
from .errors import NotFound, SandboxEnded
from .files import Files
from .receipts import Receipt
from .results import Chunk, CodeContext, CodeResult, ProcessInfo, Result, SandboxInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self, Unpack

    from ._calls import CodeOptions, ProcessOptions
    from .results import CodeOutput


class Sandbox:
    """Opened when it is made; as a context manager, killed at the end.

    `client` shares the connections of a client; otherwise `server` and `token` are as for `Client`.
    """

    def __init__(
        self,
        *,
        server: str | None = None,
        token: str | None = None,
        client: Client | None = None,
        **options: Unpack[SandboxOptions],
    ):
        self._belong_to(client, server, token)
        try:
            self._attach(self._transport.send(_calls.open_sandbox(options)).id, own=True)
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(
        cls, id: str, *, server: str | None = None, token: str | None = None, client: Client | None = None
    ) -> Self:
        """One that somebody opened. As a context manager it is let go of, and lives on."""
        box = cls.__new__(cls)
        box._belong_to(client, server, token)
        try:
            box._transport.send(_calls.sandbox(id))
            box._attach(id, own=False)
        except BaseException:
            box.close()
            raise
        return box

    @staticmethod
    def list(
        *, server: str | None = None, token: str | None = None, client: Client | None = None
    ) -> builtins.list[SandboxInfo]:
        """Those that are open, oldest first."""
        if client is not None:
            return client.sandboxes()
        with Client(server, token) as own:
            return own.sandboxes()

    def _belong_to(self, client: Client | None, server: str | None, token: str | None) -> None:
        self._client = client or Client(server, token)
        self._shared = client is not None
        self._transport: Transport = self._client._transport

    def _attach(self, id: str, own: bool) -> None:
        self.id = id
        self._own = own
        self.commands = Commands(self._transport, id)
        self.files = Files(self._transport, id)
        self.contexts = Contexts(self._transport, id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._own:
                self._kill_if_open()
        finally:
            self.close()

    def _kill_if_open(self) -> None:
        try:
            self.kill()
        except (NotFound, SandboxEnded):
            # Its time was over, or somebody else was faster.
            pass

    def close(self) -> None:
        """Lets go of it, and of connections that are its own. It lives until its time is over."""
        if not self._shared:
            self._client.close()

    def kill(self) -> Result:
        """Ends everything in it. What is told is how the sandbox ended."""
        return self._transport.send(_calls.kill_sandbox(self.id))

    def extend(self, ttl: Duration) -> SandboxInfo:
        """It lives for this long, from now on."""
        return self._transport.send(_calls.extend(self.id, ttl))

    def pause(self) -> SandboxInfo:
        """Everything in it stands still. Its own time goes on."""
        return self._transport.send(_calls.pause(self.id))

    def resume(self) -> SandboxInfo:
        return self._transport.send(_calls.resume(self.id))

    def info(self) -> SandboxInfo:
        return self._transport.send(_calls.sandbox(self.id))

    def receipt(self, of: Result | None = None) -> Receipt:
        """Its own, or that of a program in it."""
        return self._client.receipt(self.id if of is None else of)

    def run_code(
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
            with self._transport.events(call) as events:
                for event in events:
                    following.hear(event)
            result = following.finish()
        else:
            result = self._transport.send(call)
        return result.check() if check else result


class Commands:
    """Programs in a sandbox."""

    def __init__(self, transport: Transport, sandbox: str):
        self._transport, self._sandbox = transport, sandbox

    @overload
    def run(
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
    def run(
        self,
        command: Command,
        *,
        background: Literal[True],
        stdin: Literal[True] | str | bytes | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Process: ...

    def run(
        self,
        command: Command,
        *,
        background: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        stdin: Literal[True] | str | bytes | None = None,
        check: bool = False,
        **options: Unpack[ProcessOptions],
    ) -> Result | Process:
        """Runs a line of shell, or a program with its arguments, and waits for it; it ends if this is interrupted.

        In the background it goes on by itself. There, `stdin=True` keeps its standard input open for `send_stdin`.
        """
        if background:
            if check or on_stdout is not None or on_stderr is not None:
                raise TypeError("callbacks and `check` belong to `wait` of what runs in the background")
            return self._start(command, stdin, options)
        if stdin is True:
            raise TypeError("nobody could write to its standard input: start it in the background")
        following = Following(on_stdout, on_stderr)
        call = _calls.follow_new(self._sandbox, command, stdin=stdin is not None, options=options)
        fed: Future[None] | None = None
        with ThreadPoolExecutor(1) as beside, self._transport.events(call) as events:
            for event in events:
                following.hear(event)
                if event.name == "started" and stdin is not None:
                    # It may want somebody to read before it has read everything itself.
                    fed = beside.submit(self._feed, event.data["pid"], stdin)
        if fed is not None:
            fed.result()
        result = following.finish()
        return result.check() if check else result

    def _start(self, command: Command, stdin: Literal[True] | str | bytes | None, options: ProcessOptions) -> Process:
        call = _calls.start(self._sandbox, command, stdin=stdin is not None, options=options)
        process = Process(self._transport, self._sandbox, self._transport.send(call))
        if isinstance(stdin, str | bytes):
            process.send_stdin(stdin, end=True)
        return process

    def _feed(self, pid: int, stdin: str | bytes) -> None:
        try:
            self._transport.send(_calls.stdin(self._sandbox, pid, stdin, end=True))
        except (NotFound, SandboxEnded):
            # It ended without reading all of it.
            pass

    def list(self) -> builtins.list[ProcessInfo]:
        """Those that run, and the last that ran."""
        return [*self._transport.all(_calls.processes(self._sandbox))]

    def connect(self, pid: int) -> Process:
        return Process(self._transport, self._sandbox, self._transport.send(_calls.process(self._sandbox, pid)))

    def kill(self, pid: int) -> None:
        self._transport.send(_calls.kill_process(self._sandbox, pid))


class Process:
    """A program that runs in the background. Iterated, it is what it writes, from the beginning, until it ends."""

    def __init__(self, transport: Transport, sandbox: str, started: ProcessInfo):
        self._transport, self._sandbox = transport, sandbox
        self.id, self.pid, self.command = started.id, started.pid, started.command

    def __iter__(self) -> Iterator[Chunk]:
        with self._transport.events(_calls.follow(self._sandbox, self.pid)) as events:
            for event in events:
                if (chunk := chunk_of(event)) is not None:
                    yield chunk
                elif is_last(event):
                    return
        raise went_away()

    def wait(self, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None, check: bool = False) -> Result:
        """Until it has ended. May be called by several, and again."""
        following = Following(on_stdout, on_stderr)
        with self._transport.events(_calls.follow(self._sandbox, self.pid)) as events:
            for event in events:
                following.hear(event)
        result = following.finish()
        return result.check() if check else result

    def info(self) -> ProcessInfo:
        return self._transport.send(_calls.process(self._sandbox, self.pid))

    def send_stdin(self, data: str | bytes, *, end: bool = False) -> None:
        """Waits until the program has room for it. `end`: nothing follows."""
        self._transport.send(_calls.stdin(self._sandbox, self.pid, data, end))

    def close_stdin(self) -> None:
        self.send_stdin(b"", end=True)

    def signal(self, number: int) -> None:
        """To it and everything in its session, such as `signal.SIGINT`."""
        self._transport.send(_calls.signal(self._sandbox, self.pid, number))

    def kill(self) -> None:
        """Ends it as if its time were over."""
        self._transport.send(_calls.kill_process(self._sandbox, self.pid))


class Contexts:
    """Where code runs that knows what ran before it. Each sandbox has one for each language; these are others."""

    def __init__(self, transport: Transport, sandbox: str):
        self._transport, self._sandbox = transport, sandbox

    def create(self, *, language: str | None = None, cwd: str | None = None) -> CodeContext:
        return self._transport.send(_calls.new_context(self._sandbox, language, cwd))

    def list(self) -> builtins.list[CodeContext]:
        return [*self._transport.all(_calls.contexts(self._sandbox))]

    def remove(self, id: str) -> None:
        self._transport.send(_calls.remove_context(self._sandbox, id))

    def restart(self, id: str) -> CodeContext:
        """With nothing defined in it."""
        return self._transport.send(_calls.restart_context(self._sandbox, id))
