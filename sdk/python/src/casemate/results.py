"""What came of something, as it is handed to the caller."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from .errors import CodeFailed, CommandFailed

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Status:
    """How something ended. `kind` says which of the others are there."""

    kind: str
    """`exited`, `signaled`, `killed`, `refused` or `failed`."""
    code: int | None = None
    signal: int | None = None
    cause: str | None = None
    """Of `killed`: `wall-time`, `cpu-time`, `memory`, `egress`, `policy` or `cancelled`."""
    limit: int | None = None
    peak: int | None = None
    reason: str | None = None
    hint: str | None = None

    @staticmethod
    def of(said: Json) -> Status:
        return Status(
            **{name: said.get(name) for name in Status.__dataclass_fields__ if name != "kind"}, kind=said["kind"]
        )

    def describe(self) -> str:
        match self.kind:
            case "exited":
                return f"exited with {self.code}"
            case "signaled":
                return f"ended by signal {self.signal}"
            case "killed":
                return f"killed: {self.cause}"
            case kind:
                return f"{kind}: {self.reason}"


@dataclass(frozen=True)
class LimitHit:
    """A limit that was reached, in bytes, milliseconds or pieces."""

    kind: str
    limit: int
    peak: int | None


@dataclass(frozen=True)
class Usage:
    """What was used. None where the wall cannot tell."""

    wall_ms: int | None = None
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None
    disk_bytes: int | None = None
    pids_peak: int | None = None

    @staticmethod
    def of(said: Json) -> Usage:
        return Usage(**{name: said.get(name) for name in Usage.__dataclass_fields__})


@dataclass(frozen=True)
class FileOut:
    """A file or directory that came out of an execution."""

    path: str
    kind: str
    mode: int
    content: bytes | None

    @property
    def text(self) -> str:
        return (self.content or b"").decode()


@dataclass(frozen=True)
class Result:
    """What came of an execution, or of a program in a sandbox."""

    id: str
    status: Status
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    stack: tuple[str, ...] = ()
    isolation_class: str | None = None
    """Of the walls that really stood: `shared-kernel`, `userspace-kernel` or `hardware`."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    output_missed: bool = False
    """Not all that it wrote is in here: it was forgotten before somebody read it, or was told to somebody else."""
    limits_hit: tuple[LimitHit, ...] = ()
    unbounded: tuple[str, ...] = ()
    usage: Usage = Usage()
    denied: tuple[str, ...] = ()
    files: tuple[FileOut, ...] = ()
    pid: int | None = None
    receipt: str | None = None
    """`SEQ:DIGEST` of the closing record. `Client.receipt(result)` has the proof."""
    evidence_error: str | None = None

    @staticmethod
    def of(said: Json, output: Output | None = None) -> Result:
        """`output` is what was told as it came, where the answer does not repeat it."""
        if output is None:
            output = Output.of(said)
        return Result(
            id=said["id"],
            status=Status.of(said["status"]),
            stdout_bytes=bytes(output.stdout),
            stderr_bytes=bytes(output.stderr),
            stack=tuple(said.get("stack", ())),
            isolation_class=said.get("class"),
            stdout_truncated=said.get("stdout_truncated", False),
            stderr_truncated=said.get("stderr_truncated", False),
            output_missed=output.missed,
            limits_hit=tuple(
                LimitHit(hit["kind"], hit["limit"], hit.get("peak")) for hit in said.get("limits_hit", ())
            ),
            unbounded=tuple(said.get("unbounded", ())),
            usage=Usage.of(said.get("usage", {})),
            denied=tuple(said.get("denied", ())),
            files=tuple(
                FileOut(file["path"], file["kind"], int(file["mode"], 8), content(file, "content"))
                for file in said.get("files") or ()
            ),
            pid=said.get("pid"),
            receipt=said.get("receipt"),
            evidence_error=said.get("evidence_error"),
        )

    @staticmethod
    def without_output(said: Json) -> Result:
        return Result.of(said, Output(missed=True))

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """None if it did not end by itself."""
        return self.status.code

    @property
    def cause(self) -> str | None:
        """What it was killed for."""
        return self.status.cause

    @property
    def ok(self) -> bool:
        return self.status.kind == "exited" and self.status.code == 0

    def check(self) -> Result:
        """Itself, if all went well."""
        if not self.ok:
            raise CommandFailed(self)
        return self


@dataclass
class Output:
    """What a program has written so far."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    missed: bool = False

    @staticmethod
    def of(said: Json) -> Output:
        return Output(bytearray(content(said, "stdout") or b""), bytearray(content(said, "stderr") or b""))

    def add(self, chunk: Chunk) -> None:
        match chunk.stream:
            case "stdout":
                self.stdout += chunk.data
            case "stderr":
                self.stderr += chunk.data
            case "missed":
                self.missed = True


@dataclass(frozen=True)
class Chunk:
    """A piece of output, as it came. A character may be cut at its end."""

    stream: Literal["stdout", "stderr", "missed"]
    """`missed`: some was forgotten before it was read."""
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


@dataclass(frozen=True)
class ProcessInfo:
    """A program in a sandbox."""

    id: str
    pid: int
    command: tuple[str, ...]
    running: bool
    cwd: str | None = None
    tag: str | None = None
    outcome: Result | None = None
    """Once it has ended, without its output."""

    @staticmethod
    def of(said: Json) -> ProcessInfo:
        outcome = said.get("outcome")
        return ProcessInfo(
            id=said["id"],
            pid=said["pid"],
            command=tuple(said["command"]),
            running=said["running"],
            cwd=said.get("cwd"),
            tag=said.get("tag"),
            outcome=None if outcome is None else Result.without_output(outcome),
        )


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox, or what is remembered of one that is over."""

    id: str
    state: str
    """`running` or `paused`; afterwards how it ended, such as `killed` or `interrupted`."""
    created: datetime
    expires: datetime | None = None
    ended: datetime | None = None
    stack: tuple[str, ...] = ()
    isolation_class: str | None = None
    unbounded: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    outcome: Result | None = None

    @staticmethod
    def of(said: Json) -> SandboxInfo:
        outcome = said.get("outcome")
        return SandboxInfo(
            id=said["id"],
            state=said["state"],
            created=_moment(said["created"]),
            expires=None if said.get("expires") is None else _moment(said["expires"]),
            ended=None if said.get("ended") is None else _moment(said["ended"]),
            stack=tuple(said.get("stack", ())),
            isolation_class=said.get("class"),
            unbounded=tuple(said.get("unbounded", ())),
            metadata=dict(said.get("metadata", {})),
            outcome=None if outcome is None else Result.without_output(outcome),
        )


@dataclass(frozen=True)
class ExecutionInfo:
    """An execution of which the server knows. What it wrote is not kept."""

    id: str
    state: str
    created: datetime
    ended: datetime | None
    outcome: Result | None

    @staticmethod
    def of(said: Json) -> ExecutionInfo:
        ended, outcome = said.get("ended"), said.get("outcome")
        return ExecutionInfo(
            id=said["id"],
            state=said["state"],
            created=_moment(said["created"]),
            ended=None if ended is None else _moment(ended),
            outcome=None if outcome is None else Result.without_output(outcome),
        )


@dataclass(frozen=True)
class FileInfo:
    """What is at a path."""

    path: str
    kind: str
    """`file`, `directory`, `link` or `other`."""
    size: int
    mode: int
    modified: datetime

    @staticmethod
    def of(said: Json) -> FileInfo:
        modified = _moment(said["modified_us"] / 1_000_000)
        return FileInfo(said["path"], said["kind"], said["size"], int(said["mode"], 8), modified)

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class FileChange:
    """Something changed in a directory that is watched."""

    path: str | None
    """Below the directory. None if there were more changes than could be told: look again."""
    change: str
    """`created`, `written`, `removed`, `renamed`, `attributes` or `missed`."""


@dataclass(frozen=True)
class LimitInfo:
    kind: str
    value: int
    shown: str
    origin: str
    enforced: bool


@dataclass(frozen=True)
class PassedOver:
    stack: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What would run where, and why not elsewhere."""

    stack: tuple[str, ...]
    isolation_class: str
    image: str
    floors: tuple[str, ...]
    limits: tuple[LimitInfo, ...]
    unbounded: tuple[str, ...]
    passed_over: tuple[PassedOver, ...]

    @staticmethod
    def of(said: Json) -> Explanation:
        return Explanation(
            stack=tuple(said["stack"]),
            isolation_class=said["class"],
            image=said["image"],
            floors=tuple(said["floors"]),
            limits=tuple(
                LimitInfo(limit["kind"], limit["value"], limit["shown"], limit["origin"], limit["enforced"])
                for limit in said["limits"]
            ),
            unbounded=tuple(said["unbounded"]),
            passed_over=tuple(PassedOver(tuple(other["stack"]), other["reason"]) for other in said["passed_over"]),
        )


@dataclass(frozen=True)
class ImageInfo:
    digest: str
    names: tuple[str, ...]
    size_bytes: int

    @staticmethod
    def of(said: Json) -> ImageInfo:
        return ImageInfo(said["digest"], tuple(said["names"]), said["size_bytes"])


@dataclass(frozen=True)
class CodeOutput:
    """Something that code showed: the same thing in one or more kinds of content."""

    data: Mapping[str, Any]
    """By kind, such as `text/plain` or `image/png`."""

    @property
    def text(self) -> str | None:
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        return self.data.get("text/html")

    @property
    def json(self) -> Any:
        return self.data.get("application/json")

    @property
    def png(self) -> bytes | None:
        """The picture itself."""
        encoded = self.data.get("image/png")
        return None if encoded is None else base64.b64decode(encoded)


@dataclass(frozen=True)
class CodeError:
    name: str
    value: str
    traceback: str


@dataclass(frozen=True)
class CodeResult:
    """What came of a piece of code that ran among others."""

    stdout: str = ""
    stderr: str = ""
    results: tuple[CodeOutput, ...] = ()
    error: CodeError | None = None
    execution_count: int | None = None
    context: str | None = None
    """Where it ran, for the next piece of code that shall know of this one."""

    @staticmethod
    def of(said: Json) -> CodeResult:
        return CodeResult(
            stdout=said.get("stdout", ""),
            stderr=said.get("stderr", ""),
            results=tuple(CodeOutput(data) for data in said.get("results", ())),
            error=code_error(said.get("error")),
            execution_count=said.get("execution_count"),
            context=said.get("context"),
        )

    @property
    def text(self) -> str | None:
        """Of the last thing that was shown and is no picture: the value of the last expression, if it has one."""
        texts = [result.text for result in self.results if result.png is None]
        return texts[-1] if texts else None

    def check(self) -> CodeResult:
        """Itself, if nothing was raised."""
        if self.error is not None:
            raise CodeFailed(self)
        return self


@dataclass(frozen=True)
class CodeContext:
    """Where code runs that knows what ran before it."""

    id: str
    language: str
    cwd: str

    @staticmethod
    def of(said: Json) -> CodeContext:
        return CodeContext(said["id"], said["language"], said["cwd"])


def code_error(said: Json | None) -> CodeError | None:
    if said is None:
        return None
    traceback = said.get("traceback", "")
    # Some interpreters tell it line by line.
    whole = traceback if isinstance(traceback, str) else "\n".join(traceback)
    return CodeError(said["name"], said["value"], whole)


def content(said: Json, name: str) -> bytes | None:
    """Bytes that travel as text where they are text. Where both are there, the text is only nearly the same."""
    encoded, text = said.get(f"{name}_base64"), said.get(name)
    if encoded is not None:
        return base64.b64decode(encoded)
    return None if text is None else str(text).encode()


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
