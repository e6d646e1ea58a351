"""A server as somebody sees it who waits for its answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from . import _calls
from ._calls import Command, RunOptions
from ._events import Following, OnText
from ._transport import Transport
from .receipts import Receipt
from .results import ExecutionInfo, Explanation, ImageInfo, Result, SandboxInfo

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

# A seal follows its records within hundredths of a second, unless the machine is busy.
SEALED_WITHIN = 2.0
ASKED_AGAIN_AFTER = 0.02


class Client:
    """One-shot executions, and what there is on a server.

    `server` is an address such as `http://127.0.0.1:7070` or `unix:/run/casemate.sock`; without one it is CASEMATE_SERVER, and without
    that, a server that this process starts for itself. `token` is CASEMATE_TOKEN unless it is given.

    Whatever can be asked twice without harm is asked again, up to `retries` times, if the connection fails or the server is busy.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        request_timeout: float = 60.0,
        retries: int = 2,
    ):
        self._transport = Transport(server, token, request_timeout, retries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of its connections."""
        self._transport.close()

    def run(
        self,
        command: Command | None = None,
        *,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Runs a command, or `code`, or a `component`, in a cell of its own.

        With callbacks, output is told as it comes, and the program ends if this does. Without, the request has a key, under which it
        is asked for again if the connection fails: it runs once, and goes on until its own end even if nobody waits any more.
        """
        if on_stdout is None and on_stderr is None:
            result = self._transport.send(_calls.run(command, options, idempotency_key or uuid.uuid4().hex))
        else:
            result = self._follow(_calls.run(command, options, idempotency_key), Following(on_stdout, on_stderr))
        return result.check() if check else result

    def _follow(self, call: _calls.Call[Result], following: Following) -> Result:
        with self._transport.events(_calls.streamed(call)) as events:
            for event in events:
                following.hear(event)
        return following.finish()

    def explain(self, command: Command | None = None, **options: Unpack[RunOptions]) -> Explanation:
        """What would run where, and why not elsewhere. Nothing runs. Raises `Refused` if there is no place for it."""
        return self._transport.send(_calls.explain(command, options))

    def execution(self, id: str) -> ExecutionInfo:
        return self._transport.send(_calls.execution(id))

    def executions(self) -> Iterator[ExecutionInfo]:
        """All that the server knows of, newest first."""
        return self._transport.all(_calls.executions())

    def cancel(self, id: str) -> None:
        self._transport.send(_calls.cancel(id))

    def sandboxes(self) -> list[SandboxInfo]:
        """Those that are open, oldest first."""
        return list(self._transport.all(_calls.sandboxes()))

    def images(self) -> list[ImageInfo]:
        return list(self._transport.all(_calls.images()))

    def receipt(self, of: Result | str) -> Receipt:
        """The signed lines about an execution, a sandbox, or a program in one. Waits a moment for the signature."""
        deadline = time.monotonic() + SEALED_WITHIN
        while True:
            receipt = self._transport.send(_calls.receipt(of if isinstance(of, str) else of.id))
            if receipt.sealed or time.monotonic() > deadline:
                return receipt
            time.sleep(ASKED_AGAIN_AFTER)


def run(
    command: Command | None = None,
    *,
    on_stdout: OnText | None = None,
    on_stderr: OnText | None = None,
    check: bool = False,
    **options: Unpack[RunOptions],
) -> Result:
    """`Client.run` on the server of the environment, or on this process's own."""
    with Client() as client:
        return client.run(command, on_stdout=on_stdout, on_stderr=on_stderr, check=check, **options)


def explain(command: Command | None = None, **options: Unpack[RunOptions]) -> Explanation:
    """`Client.explain` on the server of the environment, or on this process's own."""
    with Client() as client:
        return client.explain(command, **options)
