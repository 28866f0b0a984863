"""All backends of keyed state, so that every test of one can be held to each of them.

A module whose tests use `new_backend` is run with each backend by

    pytestmark = pytest.mark.usefixtures("each_backend")
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from keygroups.state import DiskStateBackend, KeyedStateBackend, MemoryBackend

MakeBackend: TypeAlias = Callable[..., KeyedStateBackend]
"""Called with what `MemoryBackend` is called with."""

_IN_MEMORY = Path("/dev/shm")

ON_DISK = DiskStateBackend(_IN_MEMORY if _IN_MEMORY.is_dir() else None, cache_bytes=2**20)
"""Where a file needs no disk, if there is such a place: tests open many stores."""

BACKENDS: dict[str, MakeBackend] = {"memory": MemoryBackend, "disk": ON_DISK.open}

_chosen: list[str] = ["memory"]


def new_backend(*arguments: Any, **options: Any) -> KeyedStateBackend:
    """Return a backend of the kind that the test is run with."""
    return BACKENDS[_chosen[-1]](*arguments, **options)


def choose(kind: str) -> Callable[[], str]:
    """Let `new_backend` make another kind; what is returned undoes it."""
    _chosen.append(kind)
    return _chosen.pop


def alternating() -> MakeBackend:
    """Return what makes a backend of another kind each time, so that state moves from one to the other."""
    kinds = itertools.cycle(BACKENDS.values())
    return lambda *arguments, **options: next(kinds)(*arguments, **options)


def contents(groups: Mapping[int, Any]) -> dict[int, dict[Any, object]]:
    """Return the key groups of a cut as dicts."""
    return {key_group: group if isinstance(group, dict) else group.load() for key_group, group in groups.items()}
