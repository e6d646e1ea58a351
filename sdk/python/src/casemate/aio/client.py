"""A server as somebody sees it who awaits its answers."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _calls
from .._calls import Command, RunOptions
from .._events import Following, OnText
from .._transport import AsyncTransport
from ..client import ASKED_AGAIN_AFTER, SEALED_WITHIN
from ..receipts import Receipt
from ..results import ExecutionInfo, Explanation, ImageInfo, Result, SandboxInfo

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncClient:
    """Like `Client`. Callbacks may be coroutine functions."""

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        request_timeout: float = 60.0,
        retries: int = 2,
    ):
        self._transport = AsyncTransport(server, token, request_timeout, retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets go of its connections."""
        await self._transport.close()

    async def run(
        self,
        command: Command | None = None,
        *,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Like `Client.run`."""
        if on_stdout is None and on_stderr is None:
            result = await self._transport.send(_calls.run(command, options, idempotency_key or uuid.uuid4().hex))
        else:
            following = Following(on_stdout, on_stderr)
            async with self._transport.events(_calls.streamed(_calls.run(command, options, idempotency_key))) as events:
                async for event in events:
                    await heard(following.hear(event))
            result = following.finish()
        return result.check() if check else result

    async def explain(self, command: Command | None = None, **options: Unpack[RunOptions]) -> Explanation:
        """What would run where, and why not elsewhere. Nothing runs. Raises `Refused` if there is no place for it."""
        return await self._transport.send(_calls.explain(command, options))

    async def execution(self, id: str) -> ExecutionInfo:
        return await self._transport.send(_calls.execution(id))

    def executions(self) -> AsyncIterator[ExecutionInfo]:
        """All that the server knows of, newest first."""
        return self._transport.all(_calls.executions())

    async def cancel(self, id: str) -> None:
        await self._transport.send(_calls.cancel(id))

    async def sandboxes(self) -> list[SandboxInfo]:
        """Those that are open, oldest first."""
        return [one async for one in self._transport.all(_calls.sandboxes())]

    async def images(self) -> list[ImageInfo]:
        return [one async for one in self._transport.all(_calls.images())]

    async def receipt(self, of: Result | str) -> Receipt:
        """The signed lines about an execution, a sandbox, or a program in one. Waits a moment for the signature."""
        deadline = time.monotonic() + SEALED_WITHIN
        while True:
            receipt = await self._transport.send(_calls.receipt(of if isinstance(of, str) else of.id))
            if receipt.sealed or time.monotonic() > deadline:
                return receipt
            await asyncio.sleep(ASKED_AGAIN_AFTER)


async def heard(returned: list[Any]) -> None:
    """Awaits what asynchronous callbacks returned."""
    for answer in returned:
        if inspect.isawaitable(answer):
            await answer
