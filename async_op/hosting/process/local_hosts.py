"""What is known on this machine of its hosts, without asking them."""

from __future__ import annotations

from pathlib import Path

from async_op.errors import BlocksEventLoop
from async_op.hosting.diagnostics import noted_blocking
from async_op.hosting.messages import Address
from async_op.hosting.process.host_files import holder_of
from snapshots.host_logs import digest_of, run_folder


def hosts_of(run_id: str, generation: str, parent: str | None = None) -> dict[int, Address]:
    """Return where the hosts of a generation on this machine listen, by their subtasks."""
    found = _files(run_folder(run_id, parent), f"{digest_of(generation)}-*.sock")
    return {int(path.stem.rpartition("-")[2]): found_at(path) for path in found}


def found_at(path: Path) -> Address:
    """Return what the files beside a host's socket tell about it."""
    logs = sorted(_files(path.parent, f"{path.stem}-*.log"), key=_last_change)
    return Address(str(path), log=str(logs[-1]) if logs else "", process=holder_of(path.with_suffix(".lock")))


def blocking_in(run_id: str, parent: str | None = None) -> list[BlocksEventLoop]:
    """Return which functions all hosts of a run on this machine have noted."""
    notes = _files(run_folder(run_id, parent), "*.blocking")
    return [found for path in notes for found in noted_blocking(path)]


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except FileNotFoundError:  # its last host has just removed the folder
        return []


def _last_change(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it has just been removed
        return 0.0
