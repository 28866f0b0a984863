"""Outputs of earlier calls, for elements whose call would be the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache, TTLCache

from async_op.clock import Clock
from async_op.elements import Entry
from keygroups.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Outputs are kept for a while; an element that finds its own there is never called for.

    What is kept lives as long as the operator: not over restarts, on Spark not over micro-batches, and of a DataFrame
    not over partitions. Errors and fallbacks are not kept. The outputs are the same objects, so do not change them.

    Parameters
    ----------
    key : callable
        Returns of a value what makes its call the same as another's.
    max_entries : int
        How many outputs are kept; those that were not asked for the longest go first.
    ttl_seconds : float, optional
        How long; without it, until there is no room.
    empty : bool
        Keep also that there was no output.

    Raises
    ------
    ConfigError
        A number can never work.
    """

    key: Callable[[Any], Hashable]
    max_entries: int
    ttl_seconds: float | None = None
    empty: bool = False

    def __post_init__(self) -> None:
        if self.max_entries < 1:
            raise ConfigError("max_entries", self.max_entries, "at least one must fit")
        if self.ttl_seconds is not None and self.ttl_seconds <= 0:
            raise ConfigError("ttl_seconds", self.ttl_seconds, "use None to keep outputs until there is no room")


class OutputCache:
    """The outputs that are kept. Only the thread of the event loop may call it.

    Parameters
    ----------
    settings : Cache
        What is kept, and how long.
    clock : Clock
        The source of time.

    Attributes
    ----------
    hits, misses : int
        Elements that found their outputs, and those that did not.
    """

    __slots__ = ("_asked", "_empty", "_key", "_outputs", "hits", "misses")

    def __init__(self, settings: Cache, clock: Clock) -> None:
        self._key = settings.key
        self._empty = settings.empty
        self._outputs: MutableMapping[Hashable, Sequence[Any]] = (
            LRUCache(settings.max_entries)
            if settings.ttl_seconds is None
            else TTLCache(settings.max_entries, settings.ttl_seconds, timer=clock.time)
        )
        # The keys of elements in flight: a function may change the value that a key was made of.
        self._asked: dict[Entry, Hashable] = {}
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._outputs)

    def get(self, entry: Entry) -> Sequence[Any] | None:
        """Return the outputs for an element, or None."""
        key = self._asked[entry] if entry in self._asked else self._key(entry.value)
        outputs = self._outputs.get(key)
        if outputs is None:
            self.misses += 1
            self._asked[entry] = key
        else:
            self.hits += 1
            self._asked.pop(entry, None)
        return outputs

    def put(self, entry: Entry, outputs: Sequence[Any]) -> None:
        """Keep the outputs of an element's call."""
        if entry in self._asked:
            key = self._asked.pop(entry)
            if not entry.expired and (outputs or self._empty):
                self._outputs[key] = outputs

    def forget(self, entry: Entry) -> None:
        """Keep nothing of an element that has failed."""
        self._asked.pop(entry, None)
