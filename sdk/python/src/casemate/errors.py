"""Everything that can go wrong, as exceptions that say what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import CodeResult, Result


class CasemateError(Exception):
    """Whatever this package raises."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint


class ApiError(CasemateError):
    """The server said no. `code` is stable: a program can rely on it."""

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        code: str,
        status: int,
        request_id: str | None = None,
        retry_after: float | None = None,
    ):
        super().__init__(message, hint)
        self.code = code
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after


class InvalidRequest(ApiError):
    """The request makes no sense."""


class Unauthenticated(ApiError):
    """There is no valid token in it."""


class Forbidden(ApiError):
    """The token, or the place in the sandbox, does not allow it."""


class NotFound(ApiError):
    """There is no such thing, or it belongs to somebody else."""


class Conflict(ApiError):
    """Something else is there already."""


class Refused(ApiError):
    """A wall, a limit or a clause is missing. Nothing weaker is used instead."""


class SandboxEnded(ApiError):
    """The sandbox, or the program in it, is over."""


class QuotaExceeded(ApiError):
    """The tenant uses all that it may use."""


class Unavailable(ApiError):
    """Not now. Later, perhaps."""


class TooLarge(ApiError):
    """There is more than is taken, or than there is room for."""


class ServerFailed(ApiError):
    """Something went wrong in the server."""


class ConnectionFailed(CasemateError):
    """The server cannot be reached, or went away."""


class RequestTimeout(ConnectionFailed):
    """The server did not answer in time."""


class DaemonFailed(CasemateError):
    """The server that this process wanted to start for itself does not run."""


class CommandFailed(CasemateError):
    """A program did not end with exit code 0, and `check` was asked for."""

    def __init__(self, result: Result):
        said = result.stderr.strip().splitlines()
        super().__init__(f"{result.status.describe()}{': ' + said[-1] if said else ''}", result.status.hint)
        self.result = result


class CodeFailed(CasemateError):
    """Code raised an error, and `check` was asked for."""

    def __init__(self, result: CodeResult):
        error = result.error
        super().__init__("the code failed" if error is None else f"{error.name}: {error.value}")
        self.result = result


class ReceiptInvalid(CasemateError):
    """A receipt does not prove what it says."""


_BY_CODE: dict[str, type[ApiError]] = {
    "malformed-request": InvalidRequest,
    "invalid-request": InvalidRequest,
    "method-not-allowed": InvalidRequest,
    "unsupported-media-type": InvalidRequest,
    "upgrade-required": InvalidRequest,
    "idempotency-key-reused": InvalidRequest,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "not-found": NotFound,
    "no-such-route": NotFound,
    "already-exists": Conflict,
    "in-use": Conflict,
    "not-a-directory": Conflict,
    "is-a-directory": Conflict,
    "in-progress": Conflict,
    "refused": Refused,
    "session-ended": SandboxEnded,
    "quota-exceeded": QuotaExceeded,
    "busy": Unavailable,
    "draining": Unavailable,
    "too-slow": Unavailable,
    "too-large": TooLarge,
    "no-space": TooLarge,
    "internal": ServerFailed,
}


def of_problem(
    problem: dict[str, Any], status: int, request_id: str | None = None, retry_after: float | None = None
) -> ApiError:
    """What an RFC 9457 problem document says. A code that is new to this version is told by its status."""
    code = str(problem.get("code", "unknown"))
    kind = _BY_CODE.get(code) or (ServerFailed if status >= 500 else InvalidRequest)
    detail = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    hint = problem.get("hint")
    return kind(
        detail,
        None if hint is None else str(hint),
        code=code,
        status=status,
        request_id=request_id,
        retry_after=retry_after,
    )
