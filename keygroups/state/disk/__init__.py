"""Keyed state in an embedded store on the local disk, for state that is larger than memory."""

from __future__ import annotations

from keygroups.state.disk.backend import DiskBackend, DiskStateBackend

__all__ = ["DiskBackend", "DiskStateBackend"]
