"""Files of a sandbox: below `/work` and `/tmp`. Paths are absolute and follow no links."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO

from . import _archive, _calls
from ._events import change_of, check_watching
from ._transport import Transport, pieces
from .errors import Conflict, NotFound
from .results import FileChange, FileInfo


class Files:
    def __init__(self, transport: Transport, sandbox: str):
        self._transport, self._sandbox = transport, sandbox

    def read(self, path: str) -> str:
        """As UTF-8."""
        return self.read_bytes(path).decode()

    def read_bytes(self, path: str) -> bytes:
        return self._transport.send(_calls.read_file(self._sandbox, path))

    def stream(self, path: str) -> Iterator[bytes]:
        """In pieces as they come, for what should not be in memory as a whole."""
        with self._transport.open(_calls.read_file(self._sandbox, path)) as response:
            yield from pieces(response)

    def write(self, path: str, content: str | bytes | IO[bytes] | Iterable[bytes], *, mode: int | None = None) -> int:
        """Makes or replaces a file, and makes the directories above it. Returns its size."""
        if isinstance(content, str | bytes):
            call = _calls.write_file(self._sandbox, path, mode, _calls.bytes_of(content))
            return self._transport.send(call)
        return self._transport.upload(_calls.write_file(self._sandbox, path, mode), content)

    def list(self, path: str = "/work", *, depth: int = 1) -> builtins.list[FileInfo]:
        """What is in a directory, down to `depth`."""
        return [*self._transport.all(_calls.list_files(self._sandbox, path, depth))]

    def stat(self, path: str) -> FileInfo:
        return self._transport.send(_calls.stat(self._sandbox, path))

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except (NotFound, Conflict) as error:
            if error.code == "not-found":
                # Or the sandbox itself is not there: then neither is this.
                self.stat("/work")
            elif error.code != "not-a-directory":
                raise
            return False
        return True

    def mkdir(self, path: str) -> bool:
        """With all above it. False: it was there."""
        return self._transport.send(_calls.make_directory(self._sandbox, path))

    def rename(self, old: str, new: str) -> None:
        self._transport.send(_calls.rename(self._sandbox, old, new))

    def remove(self, path: str) -> None:
        """With everything below it."""
        self._transport.send(_calls.remove(self._sandbox, path))

    @contextmanager
    def watch(self, path: str = "/work", *, recursive: bool = False) -> Iterator[Iterator[FileChange]]:
        """Changes from the moment on that the block is entered. Iterating waits for the next."""
        with self._transport.events(_calls.watch(self._sandbox, path, recursive)) as events:
            check_watching(next(events, None))
            yield (change_of(event) for event in events)

    def upload(self, tree: str | os.PathLike[str], path: str = "/work") -> None:
        """Puts what is below a local directory into one of the sandbox."""
        with _archive.pack(tree) as packed:
            self._transport.upload(_calls.upload(self._sandbox, path), packed)

    def download(self, path: str, tree: str | os.PathLike[str]) -> None:
        """Puts what is below a directory of the sandbox into a local one. Only files and directories come."""
        with _archive.spool() as packed:
            with self._transport.open(_calls.download(self._sandbox, path)) as response:
                for piece in pieces(response):
                    packed.write(piece)
            _archive.unpack(packed, tree)
