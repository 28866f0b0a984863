"""Internal: keyed state in memory, in dicts."""

from __future__ import annotations

from keygroups.state.memory.backend import MemoryBackend
from keygroups.state.memory.cut import MemoryGroup

__all__ = ["MemoryBackend", "MemoryGroup"]
