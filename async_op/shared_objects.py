"""Objects of the user that several runs are given: no run may change what another one keeps in the object."""

from __future__ import annotations

import copy
import threading
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from async_op.connectors.conformance import Connector, for_another_run
from async_op.functions.base import Function

T = TypeVar("T", bound="Connector | Function[Any, Any]")


class Use(Generic[T]):
    """The use of a source, a sink or a function by a run, until `end`. Any thread may call it.

    Parameters
    ----------
    given : Source, Sink or Function
        What the user has passed. It was not opened, unless another run uses it.

    Attributes
    ----------
    own : Source, Sink or Function
        What the run works with: the object itself, or a copy if another run uses it.
    """

    def __init__(self, given: T) -> None:
        with _lock:
            first = _first.get(id(given))
            if first is None:
                self.own = given
                # A later copy would have what `open` has put into the object, such as a client.
                self._as_it_was = _copied(given)
                _first[id(given)] = self
            else:
                self.own = _copied(first._as_it_was)

    def __enter__(self) -> T:
        return self.own

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let another run have the object; does nothing the second time."""
        with _lock:
            if _first.get(id(self.own)) is self:
                del _first[id(self.own)]


_first: WeakValueDictionary[int, Use[Any]] = WeakValueDictionary()
_lock = threading.Lock()


def _copied(given: T) -> T:
    return copy.copy(given) if isinstance(given, Function) else for_another_run(given)
