"""What a running job answers over HTTP, and the small server on its event loop.

The server knows GET only, has a few clients at a time, and waits for none of them for ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from async_op.metrics.families import CONTENT_TYPE, exposition
from async_op.metrics.watch import WatchedJob, Watches
from async_op.threads.own_thread import on_own_thread
from keygroups.context_managers import asynccontextmanager
from keygroups.errors import ConfigError, KeyGroupsError

_log = logging.getLogger(__package__)

_HEAD_BYTES_MAX = 8 * 1024
_CLIENTS_MAX = 32
"""A probe, a Prometheus and some browsers. More clients are refused, because they share the event loop with the job."""
_SECONDS_MAX = 5.0
"""How long a client may take to send its request, and to take the answer."""

_READY = frozenset({"running", "rescaling", "draining", "stopping"})
"""The states in which a job has opened its source, steps and sink."""


@asynccontextmanager
async def serving_job(serve: str, job: WatchedJob) -> AsyncIterator[str]:
    """Answer requests about a job while the block runs; yields the address.

    Parameters
    ----------
    serve : str
        Host and port.
    job : Job
        The job.

    Raises
    ------
    ConfigError, AddressUnavailable
        As for `serving`.
    """
    page = await on_own_thread(files(__package__ or "").joinpath("page.html").read_text, "utf-8")
    watches = Watches()
    watches.add_job(job)
    try:
        async with serving(serve, _pages(watches, job, page)) as address:
            yield address
    finally:
        watches.close()


def _pages(watches: Watches, job: WatchedJob, page: str) -> Pages:
    def ready() -> Response:
        state = job.progress().state
        return Response(f"{state}\n", status=HTTPStatus.OK if state in _READY else HTTPStatus.SERVICE_UNAVAILABLE)

    return {
        "/": lambda: Response(page, "text/html; charset=utf-8"),
        "/healthz": lambda: Response("ok\n"),  # that the event loop answers is what is asked for
        "/readyz": ready,
        "/metrics": lambda: Response(exposition(watches.families()), CONTENT_TYPE),
        "/progress": lambda: Response(json.dumps(as_json(job.progress())), "application/json"),
    }


def as_json(value: Any) -> Any:
    """Return a progress as data for JSON.

    Examples
    --------
    >>> as_json({"left": (1.5, float("inf"))})
    {'left': [1.5, None]}
    """
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class AddressUnavailable(KeyGroupsError, OSError):
    """The address of `serve` cannot be listened on."""

    is_permanent = True

    address: str
    """The address, as it was passed."""
    reason: str
    """What the system says."""

    _template = (
        "serve={address!r}: {reason}; stop the program that listens there, or choose another port (0 takes any that is "
        "free)"
    )


@dataclass(frozen=True, slots=True)
class Response:
    """What is sent back.

    Attributes
    ----------
    body : str
        The text.
    content_type : str
        Its type.
    status : HTTPStatus
        Whether it is what was asked for.
    """

    body: str
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[], Response]]
"""For each path what makes the answer; called on the event loop, so it must be quick."""


def address_of(serve: str) -> tuple[str, int]:
    """Return host and port of "host:port"; an IPv6 host is in brackets.

    Examples
    --------
    >>> address_of("127.0.0.1:8080"), address_of("[::1]:0")
    (('127.0.0.1', 8080), ('::1', 0))

    Raises
    ------
    ConfigError
        It is not of this form.
    """
    host, colon, port = str(serve).rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ConfigError("serve", serve, 'pass host and port, such as "127.0.0.1:8080"')
    return host.removeprefix("[").removesuffix("]"), int(port)


@asynccontextmanager
async def serving(serve: str, pages: Pages) -> AsyncIterator[str]:
    """Answer requests while the block runs; yields the address, with the port that was taken.

    Raises
    ------
    ConfigError
        The address is invalid.
    AddressUnavailable
        It cannot be listened on.
    """
    host, port = address_of(serve)
    clients = _Clients(pages)
    try:
        server = await asyncio.start_server(clients.serve, host, port, limit=_HEAD_BYTES_MAX)
    except (OSError, UnicodeError) as error:
        raise AddressUnavailable(serve, str(error)) from error
    taken = server.sockets[0].getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{taken}"
    _log.info("%s has the probes, metrics and page of the job", address)
    try:
        yield address
    finally:
        server.close()
        await clients.end()


class _Clients:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        if len(self._tasks) >= _CLIENTS_MAX:
            # No answer: one that is sent before the request is read may get lost.
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None, "the server makes a task for each client"
        self._tasks.add(task)
        try:
            # Whatever a client does, it ends here: the job must not hear of it. Nor may the task end cancelled, which
            # asyncio's streams report to the loop as an error.
            with suppress(TimeoutError, OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
                async with asyncio.timeout(_SECONDS_MAX):
                    await self._answer(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        answer = self._find(method, rest.partition(" ")[0].partition("?")[0])
        body = answer.body.encode("utf-8", "replace")
        lines = [
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if method == "HEAD" else body))
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    def _find(self, method: str, path: str) -> Response:
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        make = self._pages.get(path)
        if make is None:
            return _plain(HTTPStatus.NOT_FOUND)
        try:
            return make()
        except Exception:  # noqa: BLE001 - the job must not fail because it was asked
            _log.exception("%s could not be answered", path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def end(self) -> None:
        """Leave clients that are still there."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _plain(status: HTTPStatus) -> Response:
    return Response(f"{status.phrase}\n", status=status)
