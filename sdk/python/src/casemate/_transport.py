"""Sends calls, waiting or not, and turns what can happen on the way into this package's errors."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx

from . import _local
from ._calls import Call, Page
from ._events import Decoder, Event
from .errors import ApiError, CasemateError, ConnectionFailed, RequestTimeout, of_problem

T = TypeVar("T")

# The server says something at least every quarter of a minute.
_SILENCE = 60.0
# Longer than this, waiting is for the caller to decide.
_LONGEST_PAUSE = 5.0
_FIRST_PAUSE = 0.1
_NOT_BEGUN = {"busy", "draining", "quota-exceeded"}


class Transport:
    """For those who wait. Any thread may use it."""

    def __init__(self, server: str | None, token: str | None, request_timeout: float, retries: int):
        self._timeout, self._retries = request_timeout, retries
        url, socket = _address(server) or (_ON_SOCKET, _local.ensure())
        transport = None if socket is None else httpx.HTTPTransport(uds=socket, limits=_LIMITS)
        self._http = httpx.Client(base_url=url, headers=_headers(token), transport=transport, limits=_LIMITS)
        # Connections of one that is forgotten are closed, too.
        self.close = weakref.finalize(self, self._http.close)

    def send(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            try:
                return self.upload(call, call.content)
            except CasemateError as error:
                pause = _pause(call, attempt, self._retries, error)
                if pause is None:
                    raise
            time.sleep(pause)
            attempt += 1

    def all(self, call: Call[Page[T]]) -> Iterator[T]:
        """A list, part by part."""
        while True:
            page, cursor = self.send(call)
            yield from page
            if cursor is None:
                return
            call = call.after(cursor)

    def upload(self, call: Call[T], content: bytes | Iterable[bytes] | None) -> T:
        """Once and no more: the content may come only once."""
        with self.open(call, content, None if call.patient else self._timeout) as response:
            with _failures():
                response.read()
            return _read(call, response)

    @contextmanager
    def open(
        self, call: Call[Any], content: bytes | Iterable[bytes] | None = None, silence: float | None = _SILENCE
    ) -> Iterator[httpx.Response]:
        """An answer whose body is read as it comes. Whoever leaves early closes the connection."""
        if self._http.is_closed:
            raise ConnectionFailed("this client was closed")
        with _failures():
            response = self._http.send(_request(self._http, call, content, self._timeout, silence), stream=True)
        try:
            if response.is_success:
                yield response
            else:
                with _failures():
                    response.read()
                raise _problem(response)
        finally:
            response.close()

    @contextmanager
    def events(self, call: Call[Any]) -> Iterator[Iterator[Event]]:
        with self.open(call) as response:
            yield self._events(response)

    @staticmethod
    def _events(response: httpx.Response) -> Iterator[Event]:
        decoder = Decoder()
        for piece in pieces(response):
            yield from decoder.feed(piece)


class AsyncTransport:
    """For those who do something else meanwhile, in one event loop."""

    def __init__(self, server: str | None, token: str | None, request_timeout: float, retries: int):
        self._timeout, self._retries = request_timeout, retries
        self._server, self._token = server, token
        self._opening = asyncio.Lock()
        self._http: httpx.AsyncClient | None = None

    async def _client(self) -> httpx.AsyncClient:
        """Made when it is first used: a server may have to be started, and nobody shall wait for that without `await`."""
        async with self._opening:
            if self._http is None:
                url, socket = _address(self._server) or (_ON_SOCKET, await asyncio.to_thread(_local.ensure))
                transport = None if socket is None else httpx.AsyncHTTPTransport(uds=socket, limits=_LIMITS)
                self._http = httpx.AsyncClient(
                    base_url=url, headers=_headers(self._token), transport=transport, limits=_LIMITS
                )
            return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            try:
                return await self.upload(call, call.content)
            except CasemateError as error:
                pause = _pause(call, attempt, self._retries, error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            attempt += 1

    async def all(self, call: Call[Page[T]]) -> AsyncIterator[T]:
        while True:
            page, cursor = await self.send(call)
            for item in page:
                yield item
            if cursor is None:
                return
            call = call.after(cursor)

    async def upload(self, call: Call[T], content: bytes | AsyncIterable[bytes] | None) -> T:
        async with self.open(call, content, None if call.patient else self._timeout) as response:
            with _failures():
                await response.aread()
            return _read(call, response)

    @asynccontextmanager
    async def open(
        self, call: Call[Any], content: bytes | AsyncIterable[bytes] | None = None, silence: float | None = _SILENCE
    ) -> AsyncIterator[httpx.Response]:
        http = await self._client()
        if http.is_closed:
            raise ConnectionFailed("this client was closed")
        with _failures():
            response = await http.send(_request(http, call, content, self._timeout, silence), stream=True)
        try:
            if response.is_success:
                yield response
            else:
                with _failures():
                    await response.aread()
                raise _problem(response)
        finally:
            await response.aclose()

    @asynccontextmanager
    async def events(self, call: Call[Any]) -> AsyncIterator[AsyncIterator[Event]]:
        async with self.open(call) as response, aclosing(self._events(response)) as events:
            yield events

    @staticmethod
    async def _events(response: httpx.Response) -> AsyncGenerator[Event, None]:
        decoder = Decoder()
        async with aclosing(async_pieces(response)) as came:
            async for piece in came:
                for event in decoder.feed(piece):
                    yield event


def pieces(response: httpx.Response) -> Iterator[bytes]:
    """What comes, until nothing more does. The reader's own errors stay what they are."""
    stream = response.iter_bytes()
    while True:
        with _failures():
            piece = next(stream, None)
        if piece is None:
            return
        yield piece


async def async_pieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    stream = response.aiter_bytes()
    while True:
        with _failures():
            piece = await anext(stream, None)
        if piece is None:
            return
        yield piece


# Streams are held for as long as somebody follows them, so there is no bound on how many connections are in use.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
_ON_SOCKET = "http://localhost"


def _address(server: str | None) -> tuple[str, str | None] | None:
    """The address that was named, and its socket. None: nobody named one."""
    server = server or os.environ.get("CASEMATE_SERVER")
    if not server:
        return None
    if server.startswith("unix:"):
        return _ON_SOCKET, server.removeprefix("unix:").removeprefix("//")
    return server, None


def _headers(token: str | None) -> dict[str, str]:
    token = token or os.environ.get("CASEMATE_TOKEN")
    return {"authorization": f"Bearer {token}"} if token else {}


def _request(
    http: httpx.Client | httpx.AsyncClient,
    call: Call[Any],
    content: bytes | Iterable[bytes] | AsyncIterable[bytes] | None,
    patience: float,
    silence: float | None,
) -> httpx.Request:
    # A program that does not read its input for a while is no reason to give up.
    timeout = httpx.Timeout(connect=patience, read=silence, write=None, pool=patience)
    return http.build_request(
        call.method,
        call.path,
        params=dict(call.query),
        json=call.json,
        content=content,
        headers=dict(call.headers),
        timeout=timeout,
    )


def _read(call: Call[T], response: httpx.Response) -> T:
    is_json = response.headers.get("content-type", "").split(";")[0] == "application/json"
    try:
        return call.read(response.json() if is_json else response.content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConnectionFailed("this is not how Casemate answers", "check the server's address and version") from error


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise RequestTimeout("the server did not answer in time") from error
    except httpx.TransportError as error:
        said = str(error) or type(error).__name__
        raise ConnectionFailed(
            f"the connection to the server failed: {said}", "is it running, and is this its address?"
        ) from error


def _problem(response: httpx.Response) -> ApiError:
    try:
        said = response.json()
    except ValueError:
        said = None
    after = response.headers.get("retry-after", "")
    return of_problem(
        said if isinstance(said, dict) else {},
        response.status_code,
        request_id=response.headers.get("x-request-id"),
        retry_after=float(after) if after.isdecimal() else None,
    )


def _pause(call: Call[Any], attempt: int, retries: int, error: CasemateError) -> float | None:
    """How long to wait before it is asked again. None: it is not."""
    if isinstance(error, ApiError):
        after = error.retry_after or _FIRST_PAUSE
        # Asked before under the same key, and still being done.
        if error.code == "in-progress" and call.repeatable:
            return after
        later = error.code in _NOT_BEGUN and after <= _LONGEST_PAUSE
        return after if later and attempt < retries else None
    unsent = isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
    lost = isinstance(error, ConnectionFailed) and (unsent or call.repeatable)
    return _FIRST_PAUSE * 2**attempt if lost and attempt < retries else None
