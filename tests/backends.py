"""All backends of keyed state, so that every test of one can be held to each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from keygroups.state import DiskStateBackend, KeyedStateBackend, MemoryBackend

MakeBackend: TypeAlias = Callable[..., KeyedStateBackend]
"""Called with what `MemoryBackend` is called with."""

BACKENDS: dict[str, MakeBackend] = {"memory": MemoryBackend, "disk": DiskStateBackend(cache_bytes=2**20).open}


def alternating() -> MakeBackend:
    """Return what makes a backend of another kind each time, so that state moves from one to the other."""
    kinds = itertools.cycle(BACKENDS.values())
    return lambda *arguments, **options: next(kinds)(*arguments, **options)


def contents(groups: Mapping[int, Any]) -> dict[int, dict[Any, object]]:
    """Return the key groups of a cut as dicts."""
    return {key_group: group if isinstance(group, dict) else group.load() for key_group, group in groups.items()}


def changes(changed: Mapping[int, Iterable[Any] | None]) -> dict[int, set[Any] | None]:
    """Return the changed keys of a cut as sets."""
    return {key_group: None if keys is None else set(keys) for key_group, keys in changed.items()}
