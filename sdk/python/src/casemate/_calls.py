"""The addresses of the API: what is sent to each, and how its answer is read. Nothing here sends anything, so that it serves those
who wait and those who do not."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypedDict, TypeVar

from .receipts import Receipt
from .results import (
    CodeContext,
    CodeResult,
    ExecutionInfo,
    Explanation,
    FileInfo,
    ImageInfo,
    Json,
    ProcessInfo,
    Result,
    SandboxInfo,
)

T = TypeVar("T")

Command = str | Sequence[str]
"""A line for `sh`, or a program with its arguments."""
Duration = float | str | timedelta
"""In seconds, or as on the command line: `"500ms"`, `"10s"`, `"2m"`, `"1h"`."""
Limits = Mapping[str, str | int | float]
"""By kind, such as `{"memory": "256M", "pids": 64}`."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """Something to ask."""

    method: str
    path: str
    read: Callable[[Any], T]
    query: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    """Twice is the same as once, so that it may be asked again when the answer was lost."""
    patient: bool = False
    """The answer comes when some program is done with something, whenever that is."""

    def after(self, cursor: str) -> Call[T]:
        """The next part of a list."""
        return replace(self, query={**self.query, "cursor": cursor})


Page = tuple[list[T], str | None]
"""Part of a list, and where the next one begins."""


class FileIn(TypedDict, total=False):
    """A file that goes in with other rights than 644."""

    content: str | bytes
    mode: int


class Walls(TypedDict, total=False):
    """Where something runs, and with what. Whatever is left out is decided by the server's policy."""

    image: str
    risk: str
    """`low`, `medium`, `high` or `critical`."""
    kind: str
    tags: Sequence[str]
    needs: Sequence[str]
    on: str
    """Exactly this stack, such as `container+wasm`."""
    at_least: str
    """This wall or a stronger one."""
    env: Mapping[str, str]
    cwd: str
    limits: Limits
    egress: Sequence[str]
    secrets: Sequence[str]


class RunOptions(Walls, total=False):
    """What runs once, in a cell of its own."""

    code: str
    language: str
    """`python`, `javascript` or `shell`."""
    component: bytes
    """A WASM component."""
    args: Sequence[str]
    stdin: str | bytes
    timeout: Duration
    files_in: Mapping[str, str | bytes | FileIn]
    files_out: Sequence[str]
    capabilities: Sequence[str]
    deterministic: bool


class VolumeIn(TypedDict, total=False):
    """A volume that is not kept as the sandbox leaves it, if `keep` is false."""

    name: str
    keep: bool


class SandboxOptions(Walls, total=False):
    """A cell for several programs."""

    timeout: Duration
    """How long it lives, unless it is extended."""
    idle_timeout: Duration
    """How long it lives without being used."""
    metadata: Mapping[str, str]
    volumes: Mapping[str, str | VolumeIn]
    """Directories that outlive it: by where they are in it, their names."""


class ProcessOptions(TypedDict, total=False):
    """How a program runs in a sandbox."""

    cwd: str
    env: Mapping[str, str]
    timeout: Duration
    limits: Limits
    tag: str


class CodeOptions(TypedDict, total=False):
    """Where code runs that knows what ran before it, and with what."""

    language: str
    """`python` or `javascript`: the context that each sandbox has for it."""
    context: str
    """Another one, by its id."""
    env: Mapping[str, str]
    timeout: Duration


def body(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, as JSON has it. What is None was not given."""
    given = {name: value for name, value in options.items() if value is not None}
    if "timeout" in given:
        given["limits"] = {**given.get("limits", {}), "wall-time": duration(given.pop("timeout"))}
    for name, value in given.items():
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            given[name] = list(value)
        elif isinstance(value, Mapping):
            given[name] = dict(value)
    return given


def duration(given: Duration) -> str:
    if isinstance(given, str):
        return given
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    return f"{round(seconds * 1000)}ms"


def argv(command: Command) -> list[str]:
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


def bytes_of(given: str | bytes) -> bytes:
    return given.encode() if isinstance(given, str) else given


def _text_or_base64(name: str, given: str | bytes) -> dict[str, str]:
    if isinstance(given, str):
        return {name: given}
    return {f"{name}_base64": base64.b64encode(given).decode()}


def _file_in(path: str, given: str | bytes | FileIn) -> dict[str, Any]:
    if isinstance(given, str | bytes):
        return {"path": path, **_text_or_base64("content", given)}
    mode = {"mode": f"{given['mode']:o}"} if "mode" in given else {}
    return {"path": path, **_text_or_base64("content", given["content"]), **mode}


def _execution(command: Command | None, options: Mapping[str, Any]) -> dict[str, Any]:
    _only(options, RunOptions)
    asked = body(options)
    if command is not None:
        asked["command"] = argv(command)
    if "component" in asked:
        asked["component"] = base64.b64encode(asked["component"]).decode()
    if "stdin" in asked:
        asked.update(_text_or_base64("stdin", asked.pop("stdin")))
    if "files_in" in asked:
        asked["files_in"] = [_file_in(path, given) for path, given in asked["files_in"].items()]
    return asked


def _only(options: Mapping[str, Any], known: type) -> None:
    """A word that means nothing is an error, here as everywhere."""
    unknown = sorted(options.keys() - known.__annotations__.keys())
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; there are {', '.join(sorted(known.__annotations__))}")


# Executions


def run(command: Command | None, options: RunOptions, key: str | None = None) -> Call[Result]:
    """With a key, the same request twice is one execution."""
    keyed = {} if key is None else {"idempotency-key": key}
    asked = _execution(command, options)
    return Call("POST", "/v1/executions", Result.of, json=asked, headers=keyed, repeatable=key is not None)


def streamed(call: Call[Any]) -> Call[None]:
    """The same, told as it happens."""
    return replace(call, read=_nothing, json={**call.json, "stream": True}, repeatable=False)


def explain(command: Command | None, options: RunOptions) -> Call[Explanation]:
    return Call("POST", "/v1/explain", Explanation.of, json=_execution(command, options), repeatable=True)


def execution(id: str) -> Call[ExecutionInfo]:
    return _get(f"/v1/executions/{_part(id)}", ExecutionInfo.of)


def executions() -> Call[Page[ExecutionInfo]]:
    return _list("/v1/executions", "executions", ExecutionInfo.of)


def cancel(id: str) -> Call[None]:
    return Call("DELETE", f"/v1/executions/{_part(id)}", _nothing, repeatable=True)


def images() -> Call[Page[ImageInfo]]:
    return _list("/v1/images", "images", ImageInfo.of)


def receipt(id: str) -> Call[Receipt]:
    return _get(f"/v1/receipts/{_part(id)}", Receipt.parse)


# Sandboxes


def open_sandbox(options: SandboxOptions) -> Call[SandboxInfo]:
    _only(options, SandboxOptions)
    asked = body({**options, "timeout": None, "volumes": None})
    if volumes := options.get("volumes"):
        named = {path: {"name": volume} if isinstance(volume, str) else volume for path, volume in volumes.items()}
        asked["volumes"] = [{**volume, "path": path} for path, volume in named.items()]
    if (ttl := options.get("timeout")) is not None:
        asked["ttl"] = duration(ttl)
    if (idle := options.get("idle_timeout")) is not None:
        asked["idle_timeout"] = duration(idle)
    return Call("POST", "/v1/sessions", SandboxInfo.of, json=asked)


def sandboxes() -> Call[Page[SandboxInfo]]:
    return _list("/v1/sessions", "sessions", SandboxInfo.of)


def sandbox(id: str) -> Call[SandboxInfo]:
    return _get(_of(id), SandboxInfo.of)


def extend(id: str, ttl: Duration) -> Call[SandboxInfo]:
    return Call("PATCH", _of(id), SandboxInfo.of, json={"ttl": duration(ttl)}, repeatable=True)


def kill_sandbox(id: str) -> Call[Result]:
    return Call("DELETE", _of(id), Result.without_output)


def pause(id: str) -> Call[SandboxInfo]:
    return Call("POST", _of(id, "pause"), SandboxInfo.of)


def resume(id: str) -> Call[SandboxInfo]:
    return Call("POST", _of(id, "resume"), SandboxInfo.of)


# Programs in a sandbox


def start(id: str, command: Command, *, stdin: bool, options: ProcessOptions) -> Call[ProcessInfo]:
    """Starts it in the background."""
    _only(options, ProcessOptions)
    asked = {**body(options), "command": argv(command), "stdin": stdin, "background": True}
    return Call("POST", _of(id, "processes"), ProcessInfo.of, json=asked)


def follow_new(id: str, command: Command, *, stdin: bool, options: ProcessOptions) -> Call[None]:
    """Starts it and tells what it does. It ends when nobody listens any more."""
    asked = {**start(id, command, stdin=stdin, options=options).json, "background": False, "stream": True}
    return Call("POST", _of(id, "processes"), _nothing, json=asked)


def follow(id: str, pid: int) -> Call[None]:
    return Call("GET", _of(id, "processes", str(pid), "output"), _nothing)


def processes(id: str) -> Call[Page[ProcessInfo]]:
    return _list(_of(id, "processes"), "processes", ProcessInfo.of)


def process(id: str, pid: int) -> Call[ProcessInfo]:
    return _get(_of(id, "processes", str(pid)), ProcessInfo.of)


def kill_process(id: str, pid: int) -> Call[None]:
    return Call("DELETE", _of(id, "processes", str(pid)), _nothing, repeatable=True)


def signal(id: str, pid: int, number: int) -> Call[None]:
    return Call("POST", _of(id, "processes", str(pid), "signal"), _nothing, json={"signal": int(number)})


def stdin(id: str, pid: int, data: str | bytes, end: bool) -> Call[None]:
    query = {"end": "true"} if end else {}
    return Call(
        "POST", _of(id, "processes", str(pid), "stdin"), _nothing, query=query, content=bytes_of(data), patient=True
    )


def run_code(id: str, code: str, options: CodeOptions, stream: bool) -> Call[CodeResult]:
    _only(options, CodeOptions)
    asked: dict[str, Any] = {**body({**options, "timeout": None}), "code": code, "stream": stream}
    if (timeout := options.get("timeout")) is not None:
        asked["timeout"] = duration(timeout)
    return Call("POST", _of(id, "code"), CodeResult.of, json=asked, patient=True)


def new_context(id: str, language: str | None, cwd: str | None) -> Call[CodeContext]:
    return Call("POST", _of(id, "contexts"), CodeContext.of, json=body({"language": language, "cwd": cwd}))


def contexts(id: str) -> Call[Page[CodeContext]]:
    return _list(_of(id, "contexts"), "contexts", CodeContext.of)


def remove_context(id: str, context: str) -> Call[None]:
    return Call("DELETE", _of(id, "contexts", _part(context)), _nothing)


def restart_context(id: str, context: str) -> Call[CodeContext]:
    return Call("POST", _of(id, "contexts", _part(context), "restart"), CodeContext.of)


# Files of a sandbox


def read_file(id: str, path: str) -> Call[bytes]:
    return _get(_of(id, "files"), _bytes, {"path": path})


def write_file(id: str, path: str, mode: int | None, content: bytes | None = None) -> Call[int]:
    """Without content, whoever sends it adds some as it comes."""
    query = {"path": path} if mode is None else {"path": path, "mode": f"{mode:o}"}
    return Call(
        "PUT", _of(id, "files"), _size, query=query, content=content, headers=_OCTETS, repeatable=content is not None
    )


def list_files(id: str, path: str, depth: int) -> Call[Page[FileInfo]]:
    return _list(_of(id, "files", "list"), "entries", FileInfo.of, {"path": path, "depth": str(depth)})


def stat(id: str, path: str) -> Call[FileInfo]:
    return _get(_of(id, "files", "stat"), FileInfo.of, {"path": path})


def make_directory(id: str, path: str) -> Call[bool]:
    return Call("POST", _of(id, "files", "mkdir"), lambda said: bool(said["created"]), json={"path": path})


def rename(id: str, old: str, new: str) -> Call[None]:
    return Call("POST", _of(id, "files", "rename"), _nothing, json={"from": old, "to": new})


def remove(id: str, path: str) -> Call[None]:
    return Call("DELETE", _of(id, "files"), _nothing, query={"path": path})


def watch(id: str, path: str, recursive: bool) -> Call[None]:
    query = {"path": path, "recursive": "true" if recursive else "false"}
    return Call("GET", _of(id, "files", "watch"), _nothing, query=query)


def download(id: str, path: str) -> Call[None]:
    return Call("GET", _of(id, "files", "archive"), _nothing, query={"path": path})


def upload(id: str, path: str) -> Call[None]:
    return Call("PUT", _of(id, "files", "archive"), _nothing, query={"path": path}, headers=_TAR)


_OCTETS = {"content-type": "application/octet-stream"}
_TAR = {"content-type": "application/x-tar"}


def _get(path: str, read: Callable[[Any], T], query: Mapping[str, str] | None = None) -> Call[T]:
    return Call("GET", path, read, query=query or {}, repeatable=True)


def _list(path: str, name: str, of: Callable[[Json], T], query: Mapping[str, str] | None = None) -> Call[Page[T]]:
    return _get(path, lambda said: ([of(one) for one in said[name]], said.get("next")), query)


def _of(id: str, *rest: str) -> str:
    return "/".join(["/v1/sessions", _part(id), *rest])


def _part(id: str) -> str:
    """An id may come from anywhere, and must not become another address."""
    if not re.fullmatch("[A-Za-z0-9_-]+", id):
        raise ValueError(f"{id!r} is not an id")
    return id


def _nothing(_: Any) -> None:
    return None


def _bytes(said: bytes) -> bytes:
    return said


def _size(said: Json) -> int:
    return int(said["size"])
