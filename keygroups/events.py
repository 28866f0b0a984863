"""Rare but notable events, such as snapshots, restores, rescales and epochs, for logs, metrics and traces."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from keygroups.context_managers import contextmanager

Value = str | int | float | bool | None

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """An operation that has ended.

    Attributes
    ----------
    name : str
        "snapshot", "write" (a subtask's part of a snapshot), "restore", "rescale", "epoch" or "call".
    seconds : float
        Its duration.
    attributes : mapping of str to str, int, float, bool or None
        Details of the operation.
    error : str or None
        The type of the error with which it ended; None if it succeeded.
    """

    name: str
    seconds: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None


Listener = Callable[[Event], None]

_listeners: tuple[Listener, ...] = ()


def listen(listener: Listener) -> Callable[[], None]:
    """Call a listener with every event of this process, on the thread of the event; returns a function that stops it.

    A listener must not block. An error that it raises is logged and has no other effect;
    only `SystemExit` and `KeyboardInterrupt`, which may come from a signal, end the operation.

    Examples
    --------
    >>> heard = []
    >>> stop = listen(heard.append)
    >>> publish(Event("restore", 0.1))
    >>> stop()
    >>> [event.name for event in heard]
    ['restore']
    """
    global _listeners
    _listeners = (*_listeners, listener)

    def stop() -> None:
        global _listeners
        _listeners = tuple(other for other in _listeners if other is not listener)

    return stop


def publish(event: Event) -> None:
    """Pass an event to all listeners. Any thread may call it."""
    for listener in _listeners:
        try:
            listener(event)
        except (Exception, asyncio.CancelledError, GeneratorExit):  # noqa: BLE001 - it must not harm the operation
            _log.exception("a listener failed at the event %s", event.name)


def is_anybody_listening() -> bool:
    """Return whether any listener would get an event; if not, the caller can skip making one."""
    return bool(_listeners)


@contextmanager
def observed(log: logging.Logger, level: int, name: str, **attributes: Value) -> Iterator[dict[str, Value]]:
    """Publish the body as an event and log it in one line; a failure is logged as a warning.

    Parameters
    ----------
    log : logging.Logger
        The logger of the line; the attributes become fields of its record.
    level : int
        The level of the line.
    name : str
        The name of the event.
    **attributes : str, int, float, bool or None
        Details that are known before the body runs.

    Yields
    ------
    dict
        The attributes; the body may add to them.
    """
    started = time.monotonic()
    error = None
    try:
        yield attributes
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        event = Event(name, time.monotonic() - started, attributes, error)
        publish(event)
        _write(log, level, event)


def _write(log: logging.Logger, level: int, event: Event) -> None:
    level = level if event.error is None else logging.WARNING
    if log.isEnabledFor(level):
        fields: dict[str, Value] = {"event": event.name, "seconds": round(event.seconds, 6), **event.attributes}
        if event.error is not None:
            fields["error"] = event.error
        text = " ".join(f"{name}={value}" for name, value in fields.items() if name != "event")
        log.log(level, "%s: %s", event.name, text, extra=fields)
