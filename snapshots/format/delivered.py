"""The mark of the last delivered epoch. It is written after the sink has returned, and is not a version.

It names the epoch and the attempt that committed it, so the mark of a removed history has no effect. A crash may lose
it, like the hint at the newest version; then the epoch is delivered again.

It also names the newest epoch that was written to each sink, and the sink's target: not every epoch has outputs, and
dead letters are written to a sink of their own.

A job commits while outputs of earlier versions still wait for the sink. Its epochs are versions, and each manifest
names the outputs of all versions that had not been delivered when it was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from snapshots.filesystem import Folder
from snapshots.format.manifest import DataFile

WrittenEpochs: TypeAlias = Mapping[str, tuple[int, str]]
"""The newest epoch that was written to each sink, `outputs` or `dead_letters`, and the digest of its target."""

MARK = "delivered"

_MARK_BYTES_MAX = 256
_NOTHING: WrittenEpochs = MappingProxyType({})


class Delivered(NamedTuple):
    """An epoch that the sink has accepted.

    Attributes
    ----------
    epoch : int
        The number of the epoch.
    attempt : str
        Unique for each commit, as `PendingSnapshot.attempts_prefix` is.
    """

    epoch: int
    attempt: str


def mark_delivered(folder: Folder, delivered: Delivered, written: WrittenEpochs = _NOTHING) -> None:
    """Store the mark of the last delivered epoch, with the newest epoch that was written to each sink."""
    sinks = (f"{sink}={epoch}={target}" for sink, (epoch, target) in written.items())
    folder.replace(MARK, " ".join((f"{delivered.epoch:020d}", delivered.attempt, *sinks)).encode())


def last_delivered(folder: Folder) -> Delivered | None:
    """Return the last delivered epoch, or None if there is no mark."""
    return last_mark(folder)[0]


def last_mark(folder: Folder) -> tuple[Delivered | None, WrittenEpochs]:
    """Return the last delivered epoch, or None if there is no mark, and what was written to each sink."""
    try:
        epoch, attempt, *sinks = folder.read(MARK, 0, _MARK_BYTES_MAX).decode().split(" ")
        written = {name: (int(newest), target) for name, newest, target in (sink.split("=") for sink in sinks)}
        return Delivered(int(epoch), attempt), written
    except (FileNotFoundError, ValueError):
        return None, _NOTHING


def delivery_of(files: Iterable[DataFile]) -> Delivered:
    """Return the mark for the outputs of one version of a job.

    Parameters
    ----------
    files : iterable of DataFile
        All output files that this version added.
    """
    first = min(files, key=lambda file: file.path)
    # A footer contains the path of its file, so no other file has its digest.
    return Delivered(first.version, first.footer_sha256)


def by_version(files: Iterable[DataFile]) -> list[tuple[DataFile, ...]]:
    """Return the output files among some files: grouped by version, the oldest version first."""
    outputs = sorted((file for file in files if file.kind == "output"), key=lambda file: (file.version, file.subtask))
    return [tuple(found) for _, found in groupby(outputs, key=lambda file: file.version)]


def undelivered(files: Iterable[DataFile], mark: Delivered | None) -> list[tuple[DataFile, ...]]:
    """Return what `by_version` does, without the versions up to the mark; a mark of other files has no effect."""
    versions = by_version(files)
    done = next((number for number, found in enumerate(versions, 1) if delivery_of(found) == mark), 0)
    return versions[done:]
