"""A service whose answers were recorded once: tests replay them, without the service."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self

from async_op.testing.errors import CallNotRecorded, NotRecordable
from async_op.threads.loop_thread import LoopThread
from keygroups.arguments import check_location
from keygroups.representation import representation, short


class RecordedService:
    """Stands for a client: the same methods, with answers from a file. Use it with `with`; any thread may call it.

    With `record`, calls go to the real client, and at the end of the `with` block its answers replace the file. Without
    it, nothing but the file is asked. A call is known by its method and its arguments, so a call that comes again gets
    the same answer. A call that raises is not recorded. Arguments and answers must be JSON values.

    While it records, coroutines of the client run on an event loop of their own, one call after the other. So they work
    in virtual time, too, and take none of it.

    Parameters
    ----------
    path : str or path
        The file, as JSON. Keep it beside the test, under version control.
    record : object, optional
        The real client.

    Raises
    ------
    CallNotRecorded
        Raised by a call, if the file has no answer to it.
    NotRecordable
        Raised by a call, if an argument or an answer is no JSON value.

    Examples
    --------
    >>> import tempfile
    >>> from async_op.testing import RecordedService
    >>> class Client:
    ...     def price(self, item):
    ...         return {"item": item, "price": 3}
    >>> path = tempfile.mkdtemp() + "/prices.json"
    >>> with RecordedService(path, record=Client()) as client:
    ...     _ = client.price("tea")
    >>> with RecordedService(path) as client:
    ...     client.price("tea")
    {'item': 'tea', 'price': 3}
    """

    def __init__(self, path: str | PathLike[str], record: object | None = None) -> None:
        self._path = Path(check_location("path", path, reason="name the file with the answers"))
        self._client = record
        self._calls: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        if record is None and self._path.exists():
            self._calls = {_name(**call): call for call in json.loads(self._path.read_text(encoding="utf-8"))}

    def __repr__(self) -> str:
        facts = {"path": str(self._path), "is_recording": self._client is not None, "calls": len(self._calls)}
        return representation(self, facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Write the file, if it records."""
        if self._thread is not None:
            self._thread.stop()
        if self._client is not None:
            calls = [self._calls[name] for name in sorted(self._calls)]
            written = self._path.with_name(f"{self._path.name}.writing")
            written.write_text(json.dumps(calls, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            written.replace(self._path)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return a method of the client."""
        if method.startswith("_"):
            raise AttributeError(method)
        if self._client is None:
            return lambda *arguments, **options: self._replay(method, arguments, options)
        call: Callable[..., Any] = getattr(self._client, method)
        return lambda *arguments, **options: self._record(method, call, arguments, options)

    def _replay(self, method: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        name = _name(method, arguments, options)
        if name not in self._calls:
            raise CallNotRecorded(str(self._path), _shown(method, arguments, options))
        found = self._calls[name]
        answer = json.loads(json.dumps(found["answer"]))  # the caller may change what it gets
        return _awaited(answer) if found["is_awaited"] else answer

    def _record(
        self, method: str, call: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Any:
        name = _name(method, arguments, options)  # before the call: what cannot be recorded is not asked for

        def keep(answer: Any, *, is_awaited: bool) -> Any:
            with self._lock:
                self._calls[name] = {
                    **json.loads(name),
                    "is_awaited": is_awaited,
                    "answer": _as_json(_shown(method, arguments, options), answer),
                }
            return answer

        async def awaited(outcome: Awaitable[Any]) -> Any:
            return keep(self._loop_thread().call(_result(outcome)), is_awaited=True)

        outcome = call(*arguments, **options)
        return awaited(outcome) if inspect.isawaitable(outcome) else keep(outcome, is_awaited=False)

    def _loop_thread(self) -> LoopThread:
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread(lambda error: None)
                self._thread.start()
            return self._thread


async def _result(outcome: Awaitable[Any]) -> Any:
    return await outcome


async def _awaited(answer: Any) -> Any:
    return answer


def _name(method: str, arguments: Any, options: Any, **_: Any) -> str:
    """Return what a call is known by."""
    call = {"method": method, "arguments": list(arguments), "options": dict(options)}
    return json.dumps(_as_json(method, call), sort_keys=True)


def _shown(method: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    given = [short(value) for value in arguments] + [f"{name}={short(value)}" for name, value in options.items()]
    return f"{method}({', '.join(given)})"


def _as_json(call: str, value: Any) -> Any:
    """Return a copy of a value, as JSON has it."""
    try:
        copied = json.loads(json.dumps(value))
    except (TypeError, ValueError):
        raise NotRecordable(call, value) from None
    if copied != value:
        raise NotRecordable(call, value)
    return copied
