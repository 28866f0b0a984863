"""Objects of the user that several runs are given: no run may change what another one keeps in the object."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from keygroups.context_managers import contextmanager

T = TypeVar("T")

_in_use: WeakValueDictionary[int, Any] = WeakValueDictionary()
_lock = threading.Lock()


def taken(given: T, copied: Callable[[T], T]) -> T:
    """Return what a run uses of an object: the object itself, or its copy if another run has it.

    Any thread may call it.
    """
    with _lock:
        if id(given) not in _in_use:
            _in_use[id(given)] = given
            return given
    return copied(given)


def given_back(used: object) -> None:
    """Let another run have an object that `taken` has returned; nothing is known of copies. Any thread may call it."""
    with _lock:
        _in_use.pop(id(used), None)


@contextmanager
def for_one_run(given: T, copied: Callable[[T], T]) -> Iterator[T]:
    """Take an object for the time of a run."""
    used = taken(given, copied)
    try:
        yield used
    finally:
        given_back(used)
