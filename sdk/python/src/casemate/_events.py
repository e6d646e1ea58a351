"""Server-sent events, and the output of programs that comes in them."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .errors import ConnectionFailed
from .results import Chunk, CodeOutput, CodeResult, FileChange, Output, Result, code_error, content


@dataclass(frozen=True)
class Event:
    name: str
    data: Any


@dataclass
class Decoder:
    """Bytes in, in pieces of any size; events out."""

    _rest: bytes = b""
    _name: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> Iterable[Event]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        # Only line feeds end lines: JSON may hold what else Unicode takes for an end.
        for line in lines:
            name, _, value = line.rstrip(b"\r").decode().partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            elif not line.strip() and self._data:
                yield Event(self._name, json.loads("\n".join(self._data)))
                self._name, self._data = "", []


@dataclass
class Text:
    """Bytes in, whole characters out."""

    hear: Callable[[str], Any]
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def add(self, data: bytes, last: bool = False) -> Any:
        text = self._decoder.decode(data, last)
        return self.hear(text) if text else None


OnText = Callable[[str], Any]


class Following:
    """A program's events as they come: collected, told to whoever wants to hear them, until it has ended."""

    def __init__(self, on_stdout: OnText | None = None, on_stderr: OnText | None = None):
        self.output = Output()
        self.result: Result | None = None
        self._told = {"stdout": on_stdout and Text(on_stdout), "stderr": on_stderr and Text(on_stderr)}

    def hear(self, event: Event) -> list[Any]:
        """What the callbacks returned: an asynchronous caller awaits it."""
        if (chunk := chunk_of(event)) is not None:
            self.output.add(chunk)
            told = self._told.get(chunk.stream)
            return [told.add(chunk.data)] if told else []
        if is_last(event):
            self.result = Result.of(event.data, self.output)
            return self.end()
        return []

    def end(self) -> list[Any]:
        """Tells what is left of a character that was cut."""
        return [told.add(b"", last=True) for told in self._told.values() if told]

    def finish(self) -> Result:
        if self.result is None:
            raise went_away()
        return self.result


def chunk_of(event: Event) -> Chunk | None:
    """None: it is about something else."""
    match event.name:
        case "stdout":
            return Chunk("stdout", content(event.data, "data") or b"")
        case "stderr":
            return Chunk("stderr", content(event.data, "data") or b"")
        case "missed":
            return Chunk("missed", b"")
        case _:
            return None


def is_last(event: Event) -> bool:
    if event.name == "lost":
        raise lost()
    return event.name == "ended"


def lost() -> ConnectionFailed:
    return ConnectionFailed("the server does not know what became of the program")


def went_away() -> ConnectionFailed:
    return ConnectionFailed("the server went away before the program ended")


class CodeFollowing:
    """Like `Following`, of a piece of code."""

    def __init__(
        self, on_stdout: OnText | None, on_stderr: OnText | None, on_result: Callable[[CodeOutput], Any] | None
    ):
        self._output = Following(on_stdout, on_stderr)
        self._on_result = on_result
        self._results: list[CodeOutput] = []
        self._context: str | None = None
        self._error: Any = None
        self._ended: Any = None

    def hear(self, event: Event) -> list[Any]:
        match event.name:
            case "started":
                self._context = event.data["context"]
                return []
            case "result":
                self._results.append(CodeOutput(event.data["formats"]))
                return [self._on_result(self._results[-1])] if self._on_result else []
            case "error":
                self._error = event.data
                return []
            case "ended":
                self._ended = event.data
                return self._output.end()
            case _:
                return self._output.hear(event)

    def finish(self) -> CodeResult:
        # A context that is lost with the code tells an error, and nothing more.
        if self._ended is None and self._error is None:
            raise went_away()
        output = self._output.output
        return CodeResult(
            stdout=output.stdout.decode(errors="replace"),
            stderr=output.stderr.decode(errors="replace"),
            results=tuple(self._results),
            error=code_error(self._error),
            execution_count=None if self._ended is None else self._ended["execution_count"],
            context=self._context,
        )


def check_watching(event: Event | None) -> None:
    """The first that is said: from here on nothing is missed unnoticed."""
    if event is None or event.name != "watching":
        raise ConnectionFailed("the server went away before it watched")


def change_of(event: Event) -> FileChange:
    return FileChange(event.data.get("path"), event.data.get("change", event.name))
