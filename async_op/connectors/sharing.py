"""Sources and sinks that runs of one program share: no run may change what another one notes in the object."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from async_op.connectors.conformance import Connector, misbehaved
from async_op.connectors.sink import Sink
from async_op.connectors.source import Source
from keygroups.context_managers import contextmanager

_C = TypeVar("_C", bound=Source[Any] | Sink[Any])

_in_use: WeakValueDictionary[int, Connector] = WeakValueDictionary()
_lock = threading.Lock()


def taken(connector: _C) -> _C:
    """Return what a run uses of a source or a sink: the object itself, or its copy if another run has the object.

    Any thread may call it.
    """
    with _lock:
        if id(connector) not in _in_use:
            _in_use[id(connector)] = connector
            return connector
    copied: object = connector.for_another_run()
    if not isinstance(copied, Source if isinstance(connector, Source) else Sink):
        raise misbehaved(connector, "for_another_run()", copied, "return a copy, or the object itself")
    return copied  # type: ignore[return-value]  # which of the two, has just been checked


def given_back(connector: Connector) -> None:
    """Let another run have an object that `taken` has returned; nothing is known of copies. Any thread may call it."""
    with _lock:
        _in_use.pop(id(connector), None)


@contextmanager
def for_one_run(connector: _C) -> Iterator[_C]:
    """Take a source or a sink for the time of a run."""
    own = taken(connector)
    try:
        yield own
    finally:
        given_back(own)
