"""A cache of outputs, for elements whose calls would be identical."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache, TTLCache

from async_op.clock import Clock
from async_op.in_flight.entries import Entry
from async_op.outputs import own_outputs
from keygroups.arguments import (
    Duration,
    check_callable,
    check_count,
    check_flag,
    check_positive_duration,
    not_awaitable,
    seconds_of,
)
from keygroups.representation import fields_repr
from keygroups.state import identity_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Keeps outputs for a while; an element whose outputs are in the cache needs no call.

    The cache lives as long as its operator: it does not survive a restart, and each subtask has its own. In a pipeline
    on Spark it lasts as long as the query runs with one parallelism, or with ``resident=False`` for one epoch. Each
    partition of a DataFrame has its own. Errors and fallbacks are not cached. Each element gets its own copy of the
    outputs, so you may modify them.

    Parameters
    ----------
    key : callable
        Returns the cache key of a value; values with equal cache keys share outputs. Types matter, as for keys: 1, 1.0
        and True are three different ones.
    max_entries : int
        The most outputs in the cache; the least recently used are evicted first.
    ttl_seconds : float or timedelta, optional
        How long outputs are kept; by default until they are evicted.
    empty : bool
        If true, also cache that a call had no outputs.

    Raises
    ------
    ConfigError
        An argument is invalid.
    """

    key: Callable[[Any], Hashable]
    max_entries: int
    ttl_seconds: Duration | None = None
    empty: bool = False

    __repr__ = fields_repr

    def __post_init__(self) -> None:
        check_callable("key", self.key, 1, reason="it returns the same for identical calls")
        check_flag("empty", self.empty)
        check_count("max_entries", self.max_entries, 1, reason="at least one must fit")
        if self.ttl_seconds is not None:
            reason = "use None to keep outputs until there is no room"
            check_positive_duration("ttl_seconds", self.ttl_seconds, reason=reason)


class OutputCache:
    """The cached outputs. Only the thread of the event loop may call it.

    Parameters
    ----------
    settings : Cache
        What is cached, and for how long.
    clock : Clock
        The source of time.

    Attributes
    ----------
    hits, misses : int
        Elements whose outputs were in the cache, and elements whose outputs were not.
    """

    __slots__ = ("_asked", "_empty", "_key", "_outputs", "hits", "misses")

    def __init__(self, settings: Cache, clock: Clock) -> None:
        self._key = settings.key
        self._empty = settings.empty
        self._outputs: MutableMapping[Hashable, Sequence[Any]] = (
            LRUCache(settings.max_entries)
            if settings.ttl_seconds is None
            else TTLCache(settings.max_entries, seconds_of(settings.ttl_seconds), timer=clock.time)
        )
        # The cache keys of elements in flight: a function may modify the value from which the key was computed.
        self._asked: dict[Entry, Hashable] = {}
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._outputs)

    def get(self, entry: Entry) -> Sequence[Any] | None:
        """Return the cached outputs for an element, or None."""
        key = self._asked[entry] if entry in self._asked else identity_of(not_awaitable("key", self._key(entry.value)))
        outputs = self._outputs.get(key)
        if outputs is None:
            self.misses += 1
            self._asked[entry] = key
        else:
            self.hits += 1
            self._asked.pop(entry, None)
            outputs = own_outputs(outputs)
        return outputs

    def put(self, entry: Entry, outputs: Sequence[Any]) -> None:
        """Cache the outputs of an element's call."""
        if entry in self._asked:
            key = self._asked.pop(entry)
            if not entry.expired and (outputs or self._empty):
                self._outputs[key] = own_outputs(outputs)

    def forget(self, entry: Entry) -> None:
        """Drop what is held for an element that needs no call, or whose call has failed; nothing is cached for it."""
        self._asked.pop(entry, None)
