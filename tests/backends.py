"""All backends of keyed state, so that every test of one can be held to each of them.

A module whose tests use `new_backend` is run with each backend by

    pytestmark = pytest.mark.usefixtures("each_backend")
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from keygroups.state import DiskStateBackend, KeyedStateBackend, MemoryBackend, MemoryGroup, TakeRows
from keygroups.state.disk import backend as disk
from keygroups.state.disk.store import Store

MakeBackend: TypeAlias = Callable[..., KeyedStateBackend]
"""Called with what `MemoryBackend` is called with."""

_IN_MEMORY = Path("/dev/shm")

ON_DISK = DiskStateBackend(_IN_MEMORY if _IN_MEMORY.is_dir() else None, cache_bytes=2**20)
"""Where a file needs no disk, if there is such a place: tests open many stores."""

BACKENDS: dict[str, MakeBackend] = {"memory": MemoryBackend, "disk": ON_DISK.open}

_chosen: list[str] = ["memory"]

_stores: list[weakref.ref[Store]] = []


def watch_stores(patch: pytest.MonkeyPatch) -> None:
    """Remember each store on disk that is opened from now on; that keeps none of them alive."""

    class Watched(Store):
        __slots__ = ()

        def __init__(self, parent: Path, cache_bytes: int) -> None:
            super().__init__(parent, cache_bytes)
            _stores.append(weakref.ref(self))

    patch.setattr(disk, "Store", Watched)


def end_stores() -> int:
    """End all stores, also those whose views are garbage, and return how many nobody had closed."""
    left = [store for reference in _stores if (store := reference()) is not None and store._end.alive]
    _stores.clear()
    forgotten = sum(not store._is_closed for store in left)
    for store in left:
        store._end()
    return forgotten


def new_backend(*arguments: Any, **options: Any) -> KeyedStateBackend:
    """Return a backend of the kind that the test is run with."""
    return BACKENDS[_chosen[-1]](*arguments, **options)


@contextmanager
def chosen(kind: str) -> Iterator[str]:
    """Let `new_backend` make another kind meanwhile; what it has made has ended afterwards."""
    _chosen.append(kind)
    try:
        yield kind
    finally:
        _chosen.pop()
        end_stores()


def alternating() -> MakeBackend:
    """Return what makes a backend of another kind each time, so that state moves from one to the other."""
    kinds = itertools.cycle(BACKENDS.values())
    return lambda *arguments, **options: next(kinds)(*arguments, **options)


class UnreadGroup:
    """A key group that has to be read; a test says how."""

    def load(self) -> dict[Hashable, object]:
        raise NotImplementedError

    def in_memory(self) -> None:
        """Return None: it has to be read."""

    def kinds(self, column: str, keys_max: int | None = None) -> Collection[type]:
        return MemoryGroup(self.load(), "value").kinds(column, keys_max)

    def rows(self, changed: Collection[Any] | None = None) -> TakeRows:
        return MemoryGroup(self.load(), "value").rows(changed)

    def stored(self) -> None:
        """Return None: no file has its rows."""


def contents(groups: Mapping[int, Any]) -> dict[int, dict[Any, object]]:
    """Return the key groups of a cut as dicts."""
    return {key_group: group.load() for key_group, group in groups.items()}
