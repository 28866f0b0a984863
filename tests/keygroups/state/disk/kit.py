"""Backends on the local disk, with a state of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keygroups import KeyGroupRange, ListState, MapState, StateDescriptor, ValueState
from keygroups.state import DiskBackend, DiskStateBackend

OWNED = KeyGroupRange(0, 15)
VALUE = ValueState("value")
LIST = ListState("list")
MAP = MapState("map")


def opened(directory: Path, *states: StateDescriptor, **options: Any) -> DiskBackend:
    return DiskStateBackend(directory, cache_bytes=2**20).open(states or (VALUE,), OWNED, **options)


def fill(backend: DiskBackend, count: int, state: str = "value") -> None:
    for number in range(count):
        backend.tables[state].put(number % 16, f"key {number}", number)
