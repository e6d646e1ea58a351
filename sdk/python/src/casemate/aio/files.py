"""Like `casemate.files`, awaited."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

from .. import _archive, _calls
from .._events import change_of, check_watching
from .._transport import AsyncTransport, async_pieces
from ..errors import Conflict, NotFound
from ..results import FileChange, FileInfo


class AsyncFiles:
    """Files of a sandbox: below `/work` and `/tmp`. Paths are absolute and follow no links."""

    def __init__(self, transport: AsyncTransport, sandbox: str):
        self._transport, self._sandbox = transport, sandbox

    async def read(self, path: str) -> str:
        """As UTF-8."""
        return (await self.read_bytes(path)).decode()

    async def read_bytes(self, path: str) -> bytes:
        return await self._transport.send(_calls.read_file(self._sandbox, path))

    async def stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """In pieces as they come, for what should not be in memory as a whole."""
        async with self._transport.open(_calls.read_file(self._sandbox, path)) as response:
            async for piece in async_pieces(response):
                yield piece

    async def write(self, path: str, content: str | bytes | AsyncIterable[bytes], *, mode: int | None = None) -> int:
        """Makes or replaces a file, and makes the directories above it. Returns its size."""
        if isinstance(content, str | bytes):
            call = _calls.write_file(self._sandbox, path, mode, _calls.bytes_of(content))
            return await self._transport.send(call)
        return await self._transport.upload(_calls.write_file(self._sandbox, path, mode), content)

    async def list(self, path: str = "/work", *, depth: int = 1) -> builtins.list[FileInfo]:
        """What is in a directory, down to `depth`."""
        return [one async for one in self._transport.all(_calls.list_files(self._sandbox, path, depth))]

    async def stat(self, path: str) -> FileInfo:
        return await self._transport.send(_calls.stat(self._sandbox, path))

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except (NotFound, Conflict) as error:
            if error.code == "not-found":
                # Or the sandbox itself is not there: then neither is this.
                await self.stat("/work")
            elif error.code != "not-a-directory":
                raise
            return False
        return True

    async def mkdir(self, path: str) -> bool:
        """With all above it. False: it was there."""
        return await self._transport.send(_calls.make_directory(self._sandbox, path))

    async def rename(self, old: str, new: str) -> None:
        await self._transport.send(_calls.rename(self._sandbox, old, new))

    async def remove(self, path: str) -> None:
        """With everything below it."""
        await self._transport.send(_calls.remove(self._sandbox, path))

    @asynccontextmanager
    async def watch(self, path: str = "/work", *, recursive: bool = False) -> AsyncIterator[AsyncIterator[FileChange]]:
        """Changes from the moment on that the block is entered. Iterating waits for the next."""
        async with self._transport.events(_calls.watch(self._sandbox, path, recursive)) as events:
            check_watching(await anext(events, None))
            yield (change_of(event) async for event in events)

    async def upload(self, tree: str | os.PathLike[str], path: str = "/work") -> None:
        """Puts what is below a local directory into one of the sandbox."""
        with await asyncio.to_thread(_archive.pack, tree) as packed:
            await self._transport.upload(_calls.upload(self._sandbox, path), _pieces(packed))

    async def download(self, path: str, tree: str | os.PathLike[str]) -> None:
        """Puts what is below a directory of the sandbox into a local one. Only files and directories come."""
        with _archive.spool() as packed:
            async with self._transport.open(_calls.download(self._sandbox, path)) as response:
                async for piece in async_pieces(response):
                    await asyncio.to_thread(packed.write, piece)
            await asyncio.to_thread(_archive.unpack, packed, tree)


async def _pieces(packed: IO[bytes]) -> AsyncIterator[bytes]:
    """Disks are waited for elsewhere."""
    while piece := await asyncio.to_thread(packed.read, _archive.PIECE):
        yield piece
