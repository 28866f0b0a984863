"""Tells of snapshots, restores and rescales as events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from keygroups.events import Value, observed

if TYPE_CHECKING:
    from snapshots.in_flight import RestoredQueue
    from snapshots.manifest import DataFile, Manifest
    from snapshots.pending import PendingSnapshot
    from snapshots.restore import SubtaskRestore
    from snapshots.snapshot import Snapshot
    from snapshots.writer import SubtaskHandle

_log = logging.getLogger("snapshots")

_Args = ParamSpec("_Args")


def observed_write(
    write: Callable[Concatenate[PendingSnapshot, _Args], SubtaskHandle],
) -> Callable[Concatenate[PendingSnapshot, _Args], SubtaskHandle]:
    """Tell when a subtask's part has been written."""

    @wraps(write)
    def observe(pending: PendingSnapshot, /, *args: _Args.args, **options: _Args.kwargs) -> SubtaskHandle:
        place: dict[str, Value] = {"operator_id": pending.operator_id, "version": pending.version}
        with observed(_log, logging.DEBUG, "write", **place) as found:
            handle = write(pending, *args, **options)
            found |= {"subtask_index": handle.subtask_index, **_sizes(handle.files)}
        return handle

    return observe


def observed_commit(
    commit: Callable[Concatenate[PendingSnapshot, _Args], Snapshot],
) -> Callable[Concatenate[PendingSnapshot, _Args], Snapshot]:
    """Tell of a snapshot, and of a rescale if it has another parallelism than the one before."""

    @wraps(commit)
    def observe(pending: PendingSnapshot, /, *args: _Args.args, **options: _Args.kwargs) -> Snapshot:
        parent = pending.parent
        place: dict[str, Value] = {"operator_id": pending.operator_id, "version": pending.version}
        with observed(_log, logging.INFO, "snapshot", **place) as found:
            snapshot = commit(pending, *args, **options)
            manifest = snapshot.manifest
            kept = set() if parent is None else {file.path for file in parent.files}
            found |= {
                "parallelism": manifest.parallelism,
                "max_parallelism": manifest.max_parallelism,
                "in_flight": manifest.in_flight_count,
                **_sizes(file for file in manifest.files if file.path not in kept),
            }
        if parent is not None and parent.parallelism != snapshot.parallelism:
            with observed(_log, logging.INFO, "rescale", **place) as found:
                found |= _change(parent.parallelism, snapshot)
        return snapshot

    return observe


@contextmanager
def observed_rescale(operator_id: str) -> Iterator[Callable[[Manifest, Snapshot], None]]:
    """Tell of a rescale, once what is given has been called with the snapshot before it and the one after."""
    with observed(_log, logging.INFO, "rescale", operator_id=operator_id) as found:
        yield lambda parent, snapshot: found.update(version=snapshot.version, **_change(parent.parallelism, snapshot))


def observed_restore(queue: Callable[[SubtaskRestore], RestoredQueue]) -> Callable[[SubtaskRestore], RestoredQueue]:
    """Tell of a subtask's restore; its keyed state is read later, when it is asked for."""

    @wraps(queue)
    def observe(share: SubtaskRestore) -> RestoredQueue:
        place: dict[str, Value] = {"operator_id": share.manifest.operator_id, "version": share.manifest.version}
        with observed(_log, logging.DEBUG, "restore", **place, subtask_index=share.subtask_index) as found:
            restored = queue(share)
            found |= {"parallelism": share.parallelism, "in_flight": len(restored.elements)}
        return restored

    return observe


def _change(parallelism: int, snapshot: Snapshot) -> dict[str, Value]:
    return {
        "from_parallelism": parallelism,
        "parallelism": snapshot.parallelism,
        "max_parallelism": snapshot.max_parallelism,
        "rewritten": snapshot.manifest.operation == "rewrite",
    }


def _sizes(files: Iterable[DataFile]) -> dict[str, Value]:
    files = list(files)
    return {
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "rows": sum(file.rows for file in files),
    }
